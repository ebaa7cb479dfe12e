"""`dpaudit generate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.options import RUN_DIR, NamedPath, TitledCommand, model_engine_options, output_options
from dpaudit.commands.terminal import TERMINAL, note, output, show, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from dpaudit.api.generating import Event, RecordsPlaced, RunResumed
    from dpaudit.api.places import Location
    from dpaudit.api.reading import Run
    from dpaudit.engines import Engine

#: Batches with fewer contexts than this are warned of; with WELL or more, noise seldom decides a token.
FEW, WELL = 8, 30
#: Of the budgets, on average: where earlier runs left less, hardly any context takes part.
NOTHING_LEFT = 0.01
#: Batches in a line.
_LISTED = 10


@click.command(cls=TitledCommand)
@click.argument("config", type=NamedPath(path_type=Path))
@click.option("--out", type=RUN_DIR, help="Run directory to write or to continue: a path or a URL.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show how many contexts, texts and tokens there would be, the claim, time and disk. Write nothing.",
)
@click.option(
    "--public-only",
    is_flag=True,
    help="Generate from the config's prompts without any record instead: a baseline at epsilon 0.",
)
@click.option(
    "--spent",
    type=RUN_DIR,
    multiple=True,
    help="A finished run of the same records. Spend what it left of their budgets. Repeat it for each.",
)
@click.option(
    "--stop-after",
    type=click.IntRange(min=1),
    metavar="ROUNDS",
    help="Finish the run after this many of batching.rounds, at the cost of all rounds (docs/generation.md).",
)
@click.option(
    "--unverified",
    is_flag=True,
    help="Also generate what cannot pass its audit: for experiments whose texts are not released.",
)
@model_engine_options
@output_options
def generate(
    config: Path,
    out: Location | None,
    dry_run: bool,
    public_only: bool,
    spent: tuple[Location, ...],
    stop_after: int | None,
    unverified: bool,
    engine: Engine | None,
    as_json: bool,
) -> None:
    """Generate synthetic texts from your private records.

    An interrupted run goes on at its first unfinished batch when you give the same command again. On a Ray cluster
    every worker reads the data, loads the model and writes to the run directory: all nodes must reach them.

    A config whose run could not pass `dpaudit verify` is refused, with the reason, before the model is loaded.

    \b
    Example:
      dpaudit generate examples/bbc-median.yaml --out run
      dpaudit generate examples/bbc-median.yaml --out public --public-only
    """
    from dpaudit.api import generating
    from dpaudit.api.places import last_part
    from dpaudit.reports.planning import print_plan

    if (out is None) != dry_run:
        raise click.UsageError("Give --out, or --dry-run without it.")
    if dry_run and (public_only or stop_after or engine):
        raise click.UsageError("--dry-run takes --spent and --unverified alone.")
    if out is not None:
        generating.place_for_run(out)
    _require_config(config)
    if public_only and engine is not None:
        raise click.UsageError("--public-only works in this process: leave out --workers and --engine.")
    if public_only and spent:
        raise click.UsageError("--public-only spends nothing: leave out --spent.")
    if public_only and stop_after:
        raise click.UsageError("--public-only has no rounds: leave out --stop-after.")
    if out is None:
        planned = generating.plan(config, spent=spent, unverified=unverified, monitor=TERMINAL)
        show(planned, as_json, lambda found, console: print_plan(found, str(config), console))
        return
    monitor = TERMINAL.titled(last_part(out))
    if public_only:
        generating.generate_public(config, out, monitor=monitor)
        _tell_public(out, as_json)
        return
    run = generating.generate(
        config, out=out, spent=spent, stop_after=stop_after, unverified=unverified, engine=engine, monitor=monitor
    )
    settings = generating.read_config(config)
    _tell_run(out, run, settings.model.name, settings.decoding.randomness.seed_files or (), as_json)


def _require_config(config: Path) -> None:
    from dpaudit import InputError
    from dpaudit.results.shell import argument

    if not config.exists():
        remedy = f"Write one with `dpaudit init {argument(str(config), 'CONFIG')}`."
        raise InputError(str(config), "there is no such file.", remedy)


def _tell_public(out: Location, as_json: bool) -> None:
    from dpaudit.reports.text import in_a_line
    from dpaudit.results.shell import argument

    with output():
        if as_json:
            click.echo(json.dumps({"public": str(out)}))
            return
        baseline = argument(str(out), "PUBLIC_DIR")
        note(
            f"Texts written to {in_a_line(out)}. Nothing private went into them: there is nothing to audit. Next, "
            f"for a run of this config: dpaudit evaluate RUN_DIR --reference DATA --baseline {baseline}"
        )


def _tell_run(out: Location, made: Run, model: str, seeds: Sequence[str], as_json: bool) -> None:
    """Say what a finished run can be held against, and how it is audited."""
    from dpaudit.api.generating import unknown_tokenizer
    from dpaudit.reports.text import in_a_line
    from dpaudit.results.shell import argument

    digests = {"commitment": made.commitment, "head": made.head}
    with output():
        if as_json:
            click.echo(json.dumps({"run": str(out), **digests}))
            return
        given = " ".join(f"--{name} {digest}" for name, digest in digests.items())
        given += "".join(f" --seed-file {argument(file, 'FILE')}" for file in seeds)
        tokenizer = unknown_tokenizer(made, model)
        run = argument(str(out), "RUN_DIR")
        run += "" if tokenizer is None else f" --tokenizer {argument(str(tokenizer), 'FILE')}"
        # Audits recompute what a run took from its public prompts with the model.
        public = f" --model {argument(model, 'NAME')}" if made.manifest.public_parts else ""
        note(
            "Save the second fingerprint, the head, with the first. "
            f"To check both: dpaudit verify {run} {given}{public}"
        )
        note(f"Run written to {in_a_line(out)}. Next: dpaudit report {run}{public}")


class GenerationProgress:
    """How far a run is, on a bar, or in a line for each batch where there is none. It is called with every event."""

    def __init__(self, bars: Progress, title: str, steps: int, ended: str) -> None:
        """Args: tokens that a batch takes at most; where one that has ended is."""
        self._bars, self._title, self._steps, self._ended = bars, title, steps, ended
        self._task = bars.add_task(f"{title}: loading", total=None)
        self._done = self._written = self._spared = 0
        self._under_way: dict[int, int] = {}
        self._batches = ""

    def __call__(self, event: Event) -> None:
        """Show an event."""
        from dpaudit.api.generating import events

        match event:
            case events.RecordsPlaced():
                _tell_placed(self._title, event)
            case events.RunCommitted():
                note(
                    f"{self._title}: the commitment is {event.commitment}. Save this fingerprint in a ticket now. It "
                    "later proves that data and settings were not changed: `dpaudit verify RUN_DIR --commitment HEX`"
                )
            case events.RunResumed():
                _tell_resumed(self._title, event)
            case events.MemoryRanOut():
                note(f"{self._title}: out of memory; going on with {event.rows} contexts in a pass")
            case events.TextsEmbedded():
                where = f"{self._title}: embedding {event.texts} texts"
                self._bars.update(self._task, description=where, total=event.total, completed=event.done)
            case events.BatchStarted():
                self._update(event.batches)
            case events.StepDone():
                self._under_way[event.batch] = event.tokens
                self._go_on()
            case events.BatchDone():
                # Neither a text that ended early nor one that was there already takes its steps now.
                tokens = 0 if event.resumed else event.tokens
                self._under_way.pop(event.batch, None)
                self._done, self._written = self._done + 1, self._written + tokens
                self._spared += self._steps - tokens
                self._go_on()
                self._update(event.batches)
                if self._bars.disable:
                    note(f"{self._batches} are {self._ended}")

    def _update(self, batches: int) -> None:
        self._batches = f"{self._title}: {self._done}/{batches} batches"
        total = batches * self._steps - self._spared
        self._bars.update(self._task, description=self._batches, total=total)

    def _go_on(self) -> None:
        completed = self._written + sum(self._under_way.values())
        self._bars.update(self._task, completed=completed)


def _tell_resumed(title: str, resumed: RunResumed) -> None:
    """What somebody who was given the commitment may be given, too, and what was done to the run meanwhile."""
    note(
        f"{title}: {resumed.done} of {resumed.batches} batches are finished; their head is {resumed.head}. Save it "
        "with the commitment: `dpaudit verify --head` tells later whether one of them was changed or drawn again"
    )
    if resumed.redrawn:
        shown = ", ".join(map(str, resumed.redrawn[:_LISTED])) + ", ..." * (len(resumed.redrawn) > _LISTED)
        tell(
            f"dpaudit: warning: {title}: drawn again after they were finished: batches {shown}. The run says so "
            "(redrawn in run.json) and fails its audit"
        )


def _tell_placed(title: str, placed: RecordsPlaced) -> None:
    """What is known before anything is spent. Nothing of what the key made of it: then it could be drawn until it does.

    Counts are private: for this terminal, not the record.
    """
    if placed.repeated:
        rows = "1 duplicate row" if placed.repeated == 1 else f"{placed.repeated:,} duplicate rows"
        note(f"{title}: {rows} (same text and label) counted once")
    if placed.left is not None:
        note(f"{title}: earlier runs left contexts {100 * placed.left:.0f}% of their budgets on average")
        if placed.left < NOTHING_LEFT:
            tell(
                f"dpaudit: warning: {title}: that is next to nothing: hardly any context takes part. A larger "
                "privacy.epsilon leaves more; plan it beforehand, for what was spent is private."
            )
    if placed.contexts >= FEW:
        return
    tell(
        f"dpaudit: warning: {title}: so many records make some {placed.contexts:.2g} contexts a batch on average; "
        f"{WELL} or more do well. A batch without any writes {placed.of_none} at full price. {placed.remedy}, by a "
        "public number of records: by one that was counted it is chosen_from.batching: private."
    )
