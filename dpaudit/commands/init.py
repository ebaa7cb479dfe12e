"""`dpaudit init`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dpaudit.commands.options import POSITIVE, NamedPath, output_options
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import note, print_document, print_line

if TYPE_CHECKING:
    from dpaudit.api.starting import Demo, Own, Starter

#: A batch with fewer records than one in so many of those that its epsilon is for is warned of.
_FAR = 4
#: As in dpaudit.runs.manifest, which is not loaded for this.
POSITIVE_COUNT = click.IntRange(1, 1 << 40)


@click.command()
@click.argument(
    "config", type=NamedPath(path_type=Path, dir_okay=False), default=Path("dpaudit.yaml")
)
@click.option(
    "--aggregator", type=click.Choice(["mean", "central"]), default="mean", show_default=True
)
@click.option(
    "--data",
    type=NamedPath(path_type=str),
    metavar="FILE",
    help="Your records: .csv, .jsonl, .parquet or a folder of LABEL/*.txt [default: the "
    "example's].",
)
@click.option(
    "--encoding",
    metavar="NAME",
    help="Encoding of a .csv or .jsonl file, such as cp1252 [default: UTF-8 or UTF-16].",
)
@click.option("--text", metavar="COLUMN", help="Column of the texts [default: text].")
@click.option("--label", metavar="COLUMN", help="Column of the labels [default: label].")
@click.option(
    "--label-value",
    "label_values",
    multiple=True,
    metavar="LABEL",
    help="A label (repeat for each). Labels become public, so list them; they are not taken from "
    "your data.",
)
@click.option(
    "--no-labels",
    is_flag=True,
    help="Your records have no labels: the config has a prompt for you to fill in.",
)
@click.option(
    "--model",
    metavar="NAME",
    help="Model: a Hugging Face name or a folder [default: the example's].",
)
@click.option(
    "--template",
    type=click.Choice(["it", "pt", "own"]),
    help="Prompt: `own` for one that the config holds, `it` for a model with a chat template, `pt` "
    "for a base model [default: own].",
)
@click.option(
    "--records",
    type=POSITIVE_COUNT,
    metavar="N",
    help="About how many records you have. This number becomes public.",
)
@click.option(
    "--texts",
    type=POSITIVE_COUNT,
    metavar="N",
    help="Generate at least this many texts [default: all that the records give].",
)
@click.option(
    "--epsilon",
    type=POSITIVE,
    help="Largest epsilon that you accept, at the release level. For a mean only.",
)
@click.option(
    "--about",
    metavar="SENTENCE",
    help="What your texts are, in a sentence with nothing private in it. It becomes public.",
)
@click.option(
    "--draft-examples",
    is_flag=True,
    help="Let the model write four public examples for each label, from the labels and --about, "
    "for you to edit.",
)
@click.option("--force", is_flag=True, help="Overwrite CONFIG.")
@output_options
def init(
    config: Path,
    aggregator: Literal["mean", "central"],
    data: str | None,
    encoding: str | None,
    text: str | None,
    label: str | None,
    label_values: tuple[str, ...],
    no_labels: bool,
    model: str | None,
    template: Literal["it", "pt", "own"] | None,
    records: int | None,
    texts: int | None,
    epsilon: float | None,
    about: str | None,
    draft_examples: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a commented config for `dpaudit generate`.

    CONFIG is dpaudit.yaml unless you name another file. Without --data, it is the config of the
    example, which runs as it is. On a terminal, `init` asks for the settings that matter and were
    not given. Press Enter for the default. If the model is installed here, `init` shows what it
    writes from the public prompt alone.

    \b
    Example:
      dpaudit init mine.yaml --data records.csv --text body --label topic \\
        --label-value sport --label-value tech --records 1200 --epsilon 3
    """
    from dpaudit.api.generating import preview
    from dpaudit.api.starting import MODEL, PLACEHOLDER, Own
    from dpaudit.api.starting import init as write_config
    from dpaudit.reports.preview import build
    from dpaudit.reports.text import in_a_line
    from dpaudit.results.shell import argument

    about_records = (
        encoding,
        text,
        label,
        label_values,
        no_labels,
        model,
        template,
        records,
        texts,
        epsilon,
        about,
        draft_examples,
    )
    if data is None and any(about_records):
        about_data = (
            "--encoding, --text, --label, --no-labels, --model, --template, --records, "
            "--texts, --epsilon, --about and --draft-examples"
        )
        raise click.UsageError(f"{about_data} need --data.")
    if no_labels and (label or label_values):
        raise click.UsageError("--no-labels does not go with --label and --label-value.")
    own = None
    if data is not None:
        column = None if no_labels else label or "label"
        own = Own(
            data,
            text or "text",
            column,
            label_values,
            model or MODEL,
            template,
            about,
            records=records,
            texts=texts,
            epsilon=epsilon,
            encoding=encoding,
        )
        own = _asked(own, aggregator) if _is_terminal() and not as_json else own
    written = write_config(
        config,
        own,
        aggregator=aggregator,
        overwrite=force,
        draft_examples=draft_examples,
        monitor=TERMINAL,
    )
    seen = None
    if own is not None and written.finished and written.at_hand:
        seen = preview(config, monitor=TERMINAL)
    run = argument(f"{config.stem}-run", "RUN_DIR")
    then = f"dpaudit generate {argument(str(config), 'CONFIG')} --out {run}"
    told: dict[str, Any] = {"config": str(config), "next": then if written.finished else None}
    if seen is not None:
        told["preview"] = seen.model_dump(mode="json")
    print_line(json.dumps(told) if as_json else f"  {in_a_line(config)}")
    if seen is not None and not as_json:
        print_document(build(seen))
    if said := _yield(written):
        note(said)
    if written.needs:
        what = "the example's model and texts" if own is None else "the model"
        note(f"To install {what}: {written.needs}")
    if not written.finished:
        note(
            f"Next: in {in_a_line(config)}, replace {PLACEHOLDER} by your labels. Without "
            "labels: --no-labels --force"
        )
        note(f"Then: {then}")
        return
    if no_labels and about is None:
        note(f"First: in {in_a_line(config)}, say in prompt.text what your texts are.")
    note(f"Next: {then}")


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _asked(own: Own, aggregator: Demo) -> Own:
    """Ask at the terminal for what was not given; an empty answer takes the default."""
    from dpaudit.api.starting import promises

    def ask(question: str, kind: click.ParamType[Any]) -> Any:
        answer = click.prompt(
            question, default="", type=_Optional(kind), show_default=False, err=True
        )
        return answer or None

    if own.label is not None and not own.labels:
        question = "Labels, with commas between them; they become public [fill them in later]"
        given = ask(question, click.STRING) or ""
        own = replace(own, labels=tuple(filter(None, map(str.strip, given.split(",")))))
    if own.about is None and own.template in (None, "own"):
        question = "What are your texts, in a sentence with nothing private in it? [texts]"
        own = replace(own, about=ask(question, click.STRING))
    if own.records is None and (own.labels or own.label is None):
        question = "About how many records do you have? This number becomes public [not stated]"
        own = replace(own, records=ask(question, POSITIVE_COUNT))
    if own.epsilon is None and promises(aggregator):
        own = replace(
            own,
            epsilon=ask(
                "Largest epsilon that you accept [that of batches of 32 records]", POSITIVE
            ),
        )
    if own.texts is None:
        default = "two for each label" if own.records is None else "all that the records give"
        own = replace(own, texts=ask(f"How many texts do you need? [{default}]", POSITIVE_COUNT))
    return own


class _Optional(click.ParamType[Any]):
    """A value of another type, or nothing."""

    name = "value"

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one answer."""
        return self._kind.convert(value, param, ctx) if value != "" else ""


def _yield(written: Starter) -> str:
    """Return in a line how many texts the records give, or "" if labels are to be filled in."""
    from dpaudit.reports.text import counted
    from dpaudit.results.rounding import stated

    own, found = written.own, written.first
    if own is None or found is None or not written.finished:
        return ""
    groups, sizes, records = len(own.labels) or 1, found.sizes, own.records or found.records or 0
    labels = f", {counted(len(own.labels), 'label')}" if own.labels else ""
    each = round(records / groups / sizes.batches)
    cost, rounds = "", f" in {sizes.rounds:,} rounds" if sizes.rounds > 1 else ""
    if found.epsilon is not None and found.batch_epsilon is not None:
        cost = (
            f", at epsilon {stated(found.epsilon)} (release level; "
            f"{stated(found.batch_epsilon)} at the batch level)"
        )
    texts = counted(sizes.generated * groups * sizes.rounds, "text") + rounds
    more = (
        ". For more, give --records N if that number may become public"
        if own.records is None
        else ""
    )
    about = f"about {counted(each, 'record')}" if each else "less than one record"
    said = f"{counted(records, 'record')}{labels}: {texts}, each from {about}{cost}{more}"
    if each * _FAR < sizes.contexts:
        said += (
            f"\ndpaudit: warning: the epsilon is for {sizes.contexts:,} records in each batch. "
            "With so few, the "
            "texts come from the prompt, not from your data. Use more records, or fewer batches "
            "(batching.batches_per_label)"
        )
    return said
