"""First steps from Python: a commented config for records of one's own, and the demo."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from dpaudit.api import places
from dpaudit.api.audits import audit
from dpaudit.api.comparing import RunComparison, compare
from dpaudit.api.generating import generate
from dpaudit.api.monitor import SILENT, Monitor, Progress
from dpaudit.api.reading import open_run
from dpaudit.auditing.checks.preflight import obstacles, refuse
from dpaudit.generation.joined import JOINED, join_parts
from dpaudit.generation.joined import terms_to_accept as terms_to_accept
from dpaudit.generation.sources import is_at_hand
from dpaudit.generation.starting import MODEL as MODEL
from dpaudit.generation.starting import (
    PARTS,
    First,
    demo_configs,
    example_config,
    first_config,
    missing_parts,
)
from dpaudit.generation.starting import PLACEHOLDER as PLACEHOLDER
from dpaudit.generation.starting import Demo as Demo
from dpaudit.generation.starting import Own as Own
from dpaudit.generation.starting import promises as promises
from dpaudit.runs import InputError
from dpaudit.runs.layout import HASHES


@dataclass(frozen=True)
class Starter:
    """A commented config that was written.

    Attributes:
        file: where.
        own: what it says of the records, and the sizes that follow; None for the example.
        first: the same as YAML; None for the example.
        finished: whether `generate` takes it as it is. Else labels are to be filled in, in the
            place of PLACEHOLDER.
        needs: the command that installs what the model and the example's records need; empty if
            nothing is missing.
        at_hand: whether the model is here, so that its texts can be shown before the run.
    """

    file: Path
    own: Own | None
    first: First | None
    finished: bool
    needs: str
    at_hand: bool


def init(
    config: str | os.PathLike[str] = "dpaudit.yaml",
    own: Own | None = None,
    *,
    aggregator: Demo = "mean",
    overwrite: bool = False,
    draft_examples: bool = False,
    monitor: Monitor = SILENT,
) -> Starter:
    """Write a commented config for `generate`.

    Drafting examples loads torch and the model.

    Args:
        config: the file to write.
        own: what is known of your records; None for the example's, which runs as it stands.
        aggregator: mean or central.
        overwrite: replace a file that is there.
        draft_examples: let the model write four public examples a label, from the labels and what
            `own` says the texts are about. The config marks them as drafted.
        monitor: receives the progress of drafting.

    Raises:
        InputError: the records or a setting cannot be used, a run could not pass its audit, or the
            file is there.
    """
    if aggregator not in get_args(Demo):
        raise InputError("aggregator", f"the value is {aggregator!r}.", "Give mean or central.")
    file, first = places.path_of(config, "config"), None
    if own is not None:
        if own.epsilon is not None and not promises(aggregator):
            problem = f"that of a {aggregator} run is known once the texts are."
            raise InputError("epsilon", problem, "Leave it out, or choose aggregator mean.")
        if own.label is None and own.template not in (None, "own"):
            raise InputError(
                "template", "the others show a label, and there is none.", "Choose own."
            )
        first = first_config(aggregator, own)
        _require_possible(own, first)
        if draft_examples:
            _require_draftable(own)
            if not overwrite and file.exists():
                raise _taken(file)
            with monitor.progress("Drafts of public examples", "tokens") as watch:
                own = replace(own, drafts=_drafts(first, watch))
            first = first_config(aggregator, own)
    text = example_config(aggregator) if first is None else first.text
    with places.writing(file, "CONFIG"):
        try:
            with file.open(
                "w" if overwrite and file.is_file() else "x", encoding="utf-8"
            ) as opened:
                opened.write(text)
        except FileExistsError:
            raise _taken(file) from None
    needs = PARTS if own is None else missing_parts(text)
    at_hand = own is not None and is_at_hand(own.model)
    return Starter(file, own, first, PLACEHOLDER not in text, needs, at_hand)


def _taken(file: Path) -> InputError:
    return InputError(
        str(file), "this is there already.", "Name another file, or overwrite it with --force."
    )


def _require_draftable(own: Own) -> None:
    """Refuse to draft examples where it is not said of what, or the prompt is not the config's own.

    Raises:
        InputError: names what is missing.
    """
    field = "--draft-examples"
    if own.label is not None and not own.labels:
        raise InputError(field, "there are no labels yet.", "Give each with --label-value.")
    if own.about is None:
        remedy = 'Say it with --about, such as --about "Notes of an insurer on claims".'
        raise InputError(field, "nothing says what the texts are.", remedy)
    if own.template not in (None, "own"):
        raise InputError(field, "it needs the prompt of the config's own.", "Leave out --template.")


def _drafts(first: First, watch: Progress) -> dict[str, tuple[str, ...]]:
    from dpaudit.generation.preview import draft_examples

    return draft_examples(first.config, watch)


def _require_possible(own: Own, first: First) -> None:
    """Refuse a config whose runs could not pass their audit, as far as is known without labels.

    Raises:
        InputError: they could not.
    """
    found = obstacles(first.planned)
    if own.records is None and any(each.check == "claim.delta" for each in found):
        problem = (
            "the example's delta is too large for so many records, and `init` chooses none "
            "by counting them."
        )
        raise InputError(
            "--records", problem, "Say about how many there are. This number becomes public."
        )
    refuse(found)


def demo(
    out: str | os.PathLike[str],
    *,
    quick: bool = False,
    model: str = MODEL,
    accept_terms: bool = False,
    monitor: Monitor = SILENT,
) -> RunComparison:
    """Generate, audit and compare two small runs: of a mean and of a central mean.

    This loads torch and the model.

    Runs that are there already are not generated again.

    Args:
        out: folder for the runs, their reports and comparison.html.
        quick: short texts of one label.
        model: as in a config's model.name. One that packages carry in parts is joined in the cache.
        accept_terms: whether you accept its terms of use (`terms_to_accept`).
        monitor: receives progress and warnings.

    Returns:
        The comparison; `audits` are named mean and central.

    Raises:
        InputError: the model is not here, its terms were not accepted, or the folder has a run of
            another model.
    """
    if not accept_terms and terms_to_accept(model):
        problem = f"{model} has terms of use, which were not accepted here."
        raise InputError("--accept-gemma-terms", problem, "Read them, and give this option.")
    if model in JOINED:
        join_parts(model)
    folder, audits = places.path_of(out, "out"), {}
    for name, config in demo_configs(model, quick=quick).items():
        run = folder / name
        if not (run / HASHES).exists():
            generate(config, out=run, monitor=monitor.titled(name))
        elif (other := open_run(run).manifest.model.name) != model:
            raise InputError("--out", f"{run} is a run of {other}.", "Name another folder.")
        audits[name] = audit(run, model=config.model.name, monitor=monitor)
        audits[name].save()
    found = compare(*audits.values(), names=tuple(audits), monitor=monitor)
    found.save(folder / "comparison.html", {name: f"{name}/report/report.html" for name in audits})
    return found
