"""`dpaudit generate`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.options import (
    RUN_DIR,
    NamedPath,
    TitledCommand,
    model_engine_options,
    output_options,
)
from dpaudit.commands.terminal import TERMINAL, note, print_json, show_document, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from dpaudit.api.generating import Event, RecordsPlaced, RunResumed
    from dpaudit.api.places import Location
    from dpaudit.api.reading import Run
    from dpaudit.runs.engines import Engine

#: Batches with fewer contexts than this are warned of; with WELL or more, noise seldom decides a
#: token.
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
    help="Write nothing. Print what the run would be: contexts, texts, tokens, claim, time and "
    "disk space.",
)
@click.option(
    "--public-only",
    is_flag=True,
    help="Write the baseline of this config instead: texts from its prompts without any record, "
    "epsilon 0.",
)
@click.option(
    "--spent",
    type=RUN_DIR,
    multiple=True,
    help="Finished run of the same records, whose remaining budgets this run uses. Repeat it for "
    "each run.",
)
@click.option(
    "--stop-after",
    type=click.IntRange(min=1),
    metavar="ROUNDS",
    help="Stop after this many of batching.rounds. The run costs as much as all rounds "
    "(docs/generation.md).",
)
@click.option(
    "--unverified",
    is_flag=True,
    help="Generate even if the run cannot pass its audit: for experiments whose texts are not "
    "released.",
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

    An interrupted run goes on at its first unfinished batch when you give the same command again.
    On a Ray cluster every worker reads the data, loads the model and writes to the run directory:
    all nodes must reach them.

    A config whose run could not pass `dpaudit verify` is refused, with the reason, before the model
    is loaded.

    \b
    Example:
      dpaudit generate examples/bbc-median.yaml --out run
      dpaudit generate examples/bbc-median.yaml --out public --public-only
    """
    from dpaudit.api import generating
    from dpaudit.api.places import last_part
    from dpaudit.reports.planning import build

    if (out is None) != dry_run:
        raise click.UsageError("Give --out, or --dry-run without it.")
    if dry_run and (public_only or stop_after or engine):
        raise click.UsageError("--dry-run takes --spent and --unverified alone.")
    if out is not None:
        generating.place_for_run(out)
    _require_config(config)
    if public_only and engine is not None:
        raise click.UsageError(
            "--public-only works in this process: leave out --workers and --engine."
        )
    if public_only and spent:
        raise click.UsageError("--public-only spends nothing: leave out --spent.")
    if public_only and stop_after:
        raise click.UsageError("--public-only has no rounds: leave out --stop-after.")
    if out is None:
        planned = generating.plan(config, spent=spent, unverified=unverified, monitor=TERMINAL)
        show_document(planned, as_json, lambda found: build(found, str(config)))
        return
    monitor = TERMINAL.titled(last_part(out))
    if public_only:
        generating.generate_public(config, out, monitor=monitor)
        _tell_public(out, as_json)
        return
    run = generating.generate(
        config,
        out=out,
        spent=spent,
        stop_after=stop_after,
        unverified=unverified,
        engine=engine,
        monitor=monitor,
    )
    settings = generating.read_config(config)
    _tell_run(out, run, settings.model.name, settings.sampling.seed_files or (), as_json)


def _require_config(config: Path) -> None:
    from dpaudit import InputError
    from dpaudit.results.shell import argument

    if not config.exists():
        remedy = f"Write one with `dpaudit init {argument(str(config), 'CONFIG')}`."
        raise InputError(str(config), "there is no such file.", remedy)


def _tell_public(out: Location, as_json: bool) -> None:
    from dpaudit.reports.text import in_a_line
    from dpaudit.results.shell import argument

    if as_json:
        print_json(json.dumps({"public": str(out)}))
        return
    baseline = argument(str(out), "PUBLIC_DIR")
    note(
        f"Texts written to {in_a_line(out)}. No private record went into them, so there is "
        "nothing to audit. Next, "
        f"for a run of this config: dpaudit evaluate RUN_DIR --reference DATA --baseline {baseline}"
    )


def _tell_run(out: Location, made: Run, model: str, seeds: Sequence[str], as_json: bool) -> None:
    """Say what a finished run can be held against, and how it is audited."""
    from dpaudit.api.generating import unknown_tokenizer
    from dpaudit.reports.text import in_a_line
    from dpaudit.results.shell import argument

    digests = {"commitment": made.commitment, "head": made.head}
    if as_json:
        print_json(json.dumps({"run": str(out), **digests}))
        return
    given = " ".join(f"--{name} {digest}" for name, digest in digests.items())
    given += "".join(f" --seed-file {argument(file, 'FILE')}" for file in seeds)
    tokenizer = unknown_tokenizer(made, model)
    run = argument(str(out), "RUN_DIR")
    run += "" if tokenizer is None else f" --tokenizer {argument(str(tokenizer), 'FILE')}"
    # Audits recompute what a run took from its public prompts with the model.
    public = f" --model {argument(model, 'NAME')}" if made.manifest.public_parts else ""
    note(
        f"Save the second fingerprint (head) with the first. To check both: dpaudit verify {run} "
        f"{given}{public}"
    )
    note(f"Run written to {in_a_line(out)}. Next: dpaudit report {run}{public}")


class GenerationProgress:
    """A run's progress, on a bar, or in a line for each batch where there is none.

    It takes every event.
    """

    def __init__(self, bars: Progress, title: str, steps: int) -> None:
        """Args: bars to show it on; the run's name; tokens that a batch takes at most."""
        self._bars, self._title, self._steps = bars, title, steps
        self._task = bars.add_task(f"{title}: loading", total=None)
        self._done = self._written = self._spared = 0
        self._under_way: dict[int, int] = {}
        self._begun = 0.0

    def __call__(self, event: Event) -> None:
        """Show an event."""
        from dpaudit.api.generating import events

        match event:
            case events.RecordsPlaced():
                _tell_placed(self._title, event)
            case events.RunCommitted():
                note(
                    f"{self._title}: the commitment is {event.commitment}. Save this fingerprint "
                    "in a ticket now: it "
                    "later proves that data and settings were not changed (`dpaudit verify "
                    "RUN_DIR --commitment HEX`)"
                )
            case events.RunResumed():
                _tell_resumed(self._title, event)
            case events.MemoryRanOut():
                note(
                    f"{self._title}: out of memory; continuing with {event.rows} contexts at a time"
                )
            case events.TextsEmbedded():
                where = f"{self._title}: embedding {event.texts} texts"
                self._bars.update(
                    self._task, description=where, total=event.total, completed=event.done
                )
            case events.BatchStarted():
                self._update(event.batches)
            case events.StepDone():
                self._under_way[event.batch] = event.tokens
                self._go_on()
            case events.BatchDone():
                # Neither a text that ended early nor one that was there already takes its steps
                # now.
                tokens = 0 if event.resumed else event.tokens
                self._under_way.pop(event.batch, None)
                self._done, self._written = self._done + 1, self._written + tokens
                self._spared += self._steps - tokens
                self._go_on()
                self._update(event.batches)
                if self._bars.disable:
                    note(self._line(event.batches))

    def _update(self, batches: int) -> None:
        self._begun = self._begun or time.monotonic()
        description, total = f"{self._title}: {self._done}/{batches} batches", self._total(batches)
        self._bars.update(self._task, description=description, total=total)

    def _total(self, batches: int) -> int:
        return batches * self._steps - self._spared

    def _completed(self) -> int:
        return self._written + sum(self._under_way.values())

    def _go_on(self) -> None:
        self._bars.update(self._task, completed=self._completed())

    def _line(self, batches: int) -> str:
        """Return how many batches are done, and about how long the others take."""
        from dpaudit.reports.planning import span

        said, completed = (
            f"{self._title}: {self._done:,} of {batches:,} batches done",
            self._completed(),
        )
        if not completed or self._done == batches:
            return said
        seconds = (time.monotonic() - self._begun) / completed * (self._total(batches) - completed)
        return f"{said}, about {span(seconds)} left"


def _tell_resumed(title: str, resumed: RunResumed) -> None:
    """Say the fingerprint of the finished batches, and which batches were drawn again."""
    note(
        f"{title}: {resumed.done} of {resumed.batches} batches are finished; their head is "
        f"{resumed.head}. Save this "
        "fingerprint with the commitment: `dpaudit verify --head` later shows whether one was "
        "changed or drawn again"
    )
    if resumed.redrawn:
        shown = ", ".join(map(str, resumed.redrawn[:_LISTED])) + ", ..." * (
            len(resumed.redrawn) > _LISTED
        )
        tell(
            f"dpaudit: warning: {title}: finished batches were drawn again: {shown}. The run "
            "records this (redrawn in "
            "run.json) and fails its audit"
        )


def _tell_placed(title: str, placed: RecordsPlaced) -> None:
    """Tell what is known before anything is spent: counts, private and for this terminal alone.

    Nothing that depends on the key is told: a user could draw keys until it looks well.
    """
    if placed.repeated:
        rows = "1 duplicate row" if placed.repeated == 1 else f"{placed.repeated:,} duplicate rows"
        note(
            f"{title}: {rows} (same text and label) {'is' if placed.repeated == 1 else 'are'} "
            "counted once"
        )
    if placed.left is not None:
        note(
            f"{title}: earlier runs left {100 * placed.left:.0f}% of the contexts' budgets on "
            "average"
        )
        if placed.left < NOTHING_LEFT:
            tell(
                f"dpaudit: warning: {title}: so little is left that hardly any context takes "
                "part. A larger "
                "privacy.epsilon leaves more. Choose it before a run: what was spent is private."
            )
    if placed.contexts >= FEW:
        return
    tell(
        f"dpaudit: warning: {title}: batches have about {placed.contexts:.2g} contexts on "
        f"average; {WELL} or more work "
        f"well. A batch without any writes {placed.of_none} and costs as much. {placed.remedy}. "
        "Choose that by a "
        "public number of records; if you counted them, declare chosen_from.batching: private."
    )
