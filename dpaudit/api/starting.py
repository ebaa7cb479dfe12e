"""First steps from Python: a commented config for records of one's own, and the demo."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from dpaudit.api import places
from dpaudit.api.audits import audit
from dpaudit.api.comparing import RunComparison, compare
from dpaudit.api.generating import generate, nothing_is_left
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.api.reading import open_run
from dpaudit.auditing.checks.preflight import obstacles, refuse
from dpaudit.generation import events
from dpaudit.generation.joined import JOINED, join_parts
from dpaudit.generation.joined import terms_to_accept as terms_to_accept
from dpaudit.generation.rows import read_columns as read_columns
from dpaudit.generation.sources import is_installed as is_installed
from dpaudit.generation.sources import locate
from dpaudit.generation.starting import MODEL as MODEL
from dpaudit.generation.starting import (
    PARTS,
    demo_configs,
    example_config,
    first_config,
    first_menu,
    first_records,
    missing_parts,
)
from dpaudit.generation.starting import TOKENS as TOKENS
from dpaudit.generation.starting import Demo as Demo
from dpaudit.generation.starting import First as First
from dpaudit.generation.starting import Own as Own
from dpaudit.generation.starting import promises as promises
from dpaudit.results.plan import Menu as Menu
from dpaudit.results.rounding import stated
from dpaudit.runs import InputError
from dpaudit.runs import MostTruePositives as MostTruePositives
from dpaudit.runs.limits import given_limits


@dataclass(frozen=True)
class Starter:
    """A commented config that was written.

    Attributes:
        file: where.
        first: the config for one's own records; None for the example.
        needs: the command that installs what the model and the example's records need; empty if
            nothing is missing.
        at_hand: whether the model is here, so that its texts can be shown before the run.
    """

    file: Path
    first: First | None
    needs: str
    at_hand: bool


def timed_menu(found: First, *, monitor: Monitor = SILENT) -> Menu:
    """Return the plans with their times, where the model is installed: it generates a few tokens.

    This loads torch and the model. No record is read. Without the model, times stay out.

    Raises:
        InputError: the model cannot be used.
    """
    if not is_installed(found.config.model.name):
        return found.menu
    with monitor.generation(found.menu.tokens) as watch:
        watch(events.PhaseBegan("starting"))
        from dpaudit.generation.planning import timed

        return timed(found.menu, found.config, watch)


def first(own: Own, *, aggregator: Demo = "mean") -> First:
    """Return a commented config for your records, and the plans that it is one of.

    Args:
        own: what is known of your records.
        aggregator: mean or central.

    Raises:
        InputError: the records or a setting cannot be used, or a run could not pass its audit.
    """
    _require_consistent(own, aggregator)
    locate(own.data, own.data)  # a mistyped path is told first of all
    records = first_records(own)
    found = first_config(aggregator, own, first_menu(aggregator, own), records)
    _require_possible(found)
    return found


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
    file = places.path_of(config, "config")
    require_free(file, overwrite)
    if draft_examples:
        own = _with_drafts(own, aggregator, file, overwrite, monitor)
    made = None if own is None else first(own, aggregator=aggregator)
    text = example_config(aggregator) if made is None else made.text
    with places.writing(file, "CONFIG"):
        try:
            with file.open(
                "w" if overwrite and file.is_file() else "x", encoding="utf-8"
            ) as opened:
                opened.write(text)
        except FileExistsError:
            raise _taken(file) from None
    needs = PARTS if made is None else missing_parts(text)
    at_hand = made is not None and is_installed(made.config.model.name)
    return Starter(file, made, needs, at_hand)


def require_free(file: Path, overwrite: bool) -> None:
    """Refuse a config that is there already, before anything is asked or computed.

    Raises:
        InputError: the file is there, and is not to be overwritten.
    """
    if not overwrite and file.exists():
        raise _taken(file)


def _taken(file: Path) -> InputError:
    return InputError(
        str(file), "this is there already.", "Name another file, or overwrite it with --force."
    )


def _with_drafts(
    own: Own | None, aggregator: Demo, file: Path, overwrite: bool, monitor: Monitor
) -> Own:
    """Return the settings with public examples that the model wrote.

    Raises:
        InputError: it is not said of what, the prompt is not the config's own.
    """
    field = "--draft-examples"
    if own is not None and own.examples is not None:
        raise InputError(field, "there is --examples, too.", "Give one of them.")
    if own is None or own.about is None:
        remedy = 'Say it with --about, such as --about "Notes of an insurer on claims".'
        raise InputError(field, "nothing says what the texts are.", remedy)
    if own.template not in (None, "own"):
        raise InputError(field, "it needs the prompt of the config's own.", "Leave out --template.")
    config = first(own, aggregator=aggregator).config
    with monitor.progress("Drafts of public examples", "tokens") as watch:
        from dpaudit.generation.preview import draft_examples

        return replace(own, drafts=draft_examples(config, watch))


def _require_consistent(own: Own, aggregator: Demo) -> None:
    """Refuse settings that contradict each other."""
    options = [f"--{name.replace('_', '-')}" for name in given_limits(own)]
    if len(options) > 1:
        raise InputError(options[1], f"there is {options[0]}, too.", "Give one of them.")
    if options and not promises(aggregator):
        problem = f"what a {aggregator} run costs is known once the texts are."
        raise InputError(options[0], problem, "Leave it out, or choose --aggregator mean.")
    if own.label is None and own.template not in (None, "own"):
        problem = "the others show a label, and there is none."
        raise InputError("--template", problem, "Choose own.")
    if own.about is not None and not (own.about.strip() and own.about.isprintable()):
        raise InputError("--about", "this is no sentence.", "Say in one line what the texts are.")


def _require_possible(first: First) -> None:
    """Refuse a config whose runs could not pass their audit.

    Raises:
        InputError: they could not.
    """
    found = obstacles(first.planned)
    if any(each.check == "claim.delta" for each in found):
        problem = (
            f"delta {stated(first.planned.claim.delta)} is for about {first.menu.records:,} "
            "records, and too large for yours."
        )
        raise InputError("--records", problem, "State a larger number. It becomes public.")
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
        finished = nothing_is_left(run, worth=False)
        if finished and (other := open_run(run).manifest.model.name) != model:
            raise InputError("--out", f"{run} is a run of {other}.", "Name another folder.")
        if not nothing_is_left(run):
            generate(config, out=run, monitor=monitor.titled(name))
        audits[name] = audit(run, model=config.model.name, monitor=monitor)
        audits[name].save()
    found = compare(*audits.values(), names=tuple(audits), monitor=monitor)
    found.save(folder / "comparison.html", {name: f"{name}/report/report.html" for name in audits})
    return found
