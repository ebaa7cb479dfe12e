"""Progress of commands on standard error: bars on a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from dpaudit.api.monitor import Monitor, Progress, Steps
from dpaudit.commands.terminal import console, note, session, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress as Bars

    from dpaudit.api.generating import Event, RecordsPlaced, RunResumed

#: Seconds between lines that tell how far something is, where no bar shows it.
PATIENCE = 15.0
#: Batches with fewer contexts than this are warned of; with WELL or more, noise seldom decides a
#: token.
FEW, WELL = 8, 30
#: Of the budgets, on average: where earlier runs left less, hardly any context takes part.
NOTHING_LEFT = 0.01
#: Batches in a line.
_LISTED = 10


def progress_bars() -> Bars:
    """Return bars on stderr with the remaining time; disabled in a log, or with --quiet."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.table import Column

    return Progress(
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis"),
        ),
        BarColumn(bar_width=None, table_column=Column(min_width=5, ratio=1)),
        MofNCompleteColumn(),
        Remaining(elapsed_when_finished=True),
        console=console(stderr=True),
        expand=True,
        disable=session().quiet or not sys.stderr.isatty(),
    )


@contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Progress]:
    """Show one bar, as a function of the amount done and the total; lines in a log."""
    from dpaudit.reports.planning import span

    with progress_bars() as bars:
        task = bars.add_task(title, total=None)
        begun = told = None

        def show(done: int, total: int) -> None:
            nonlocal begun, told
            bars.update(task, completed=done, total=total)
            now = time.monotonic()
            if begun is None:  # what was loaded before is no measure of what is left
                begun, told = now, now - PATIENCE / 2
            if bars.disable and now - told >= PATIENCE:
                told = now
                left = (now - begun) * (total - done) / max(done, 1)
                note(f"{title}: {done:,} of {total:,} {unit}, about {span(left)} left")

        yield show


@contextmanager
def progress_steps() -> Iterator[Steps]:
    """Show one bar, as a function of what is done, how much of it, and the total."""
    with progress_bars() as progress:
        task = progress.add_task("", total=None)
        yield lambda what, done, total: progress.update(
            task, description=what, completed=done, total=total
        )


class TerminalMonitor(Monitor):
    """Progress as bars on standard error, or as lines in a log, and warnings there too."""

    def __init__(self, title: str = "") -> None:
        self._title = title

    def progress(self, title: str, unit: str) -> AbstractContextManager[Progress]:
        """Show a bar."""
        return progress_bar(title, unit)

    def steps(self) -> AbstractContextManager[Steps]:
        """Show one bar for tasks that follow each other."""
        return progress_steps()

    @contextmanager
    def generation(self, tokens: int) -> Iterator[Callable[[Event], None]]:
        """Show a bar, or a line for each batch."""
        with progress_bars() as bars:
            yield GenerationProgress(bars, self._title, tokens)

    def titled(self, title: str) -> TerminalMonitor:
        """Return one that begins lines with a run's name."""
        return TerminalMonitor(title)

    def note(self, message: str) -> None:
        """Say what begins, where no bar shows it: standard error is no terminal."""
        if not sys.stderr.isatty():
            note(message)

    def hint(self, message: str) -> None:
        """Say it, unless the command is quiet."""
        note(message)

    def warn(self, message: str) -> None:
        """Say a warning, in one line."""
        title = f"{self._title}: " if self._title else ""
        tell(f"dpaudit: warning: {title}{' '.join(message.splitlines())}")


TERMINAL = TerminalMonitor()


class GenerationProgress:
    """A run's progress, on a bar, or in a line for each batch where there is none."""

    def __init__(self, bars: Bars, title: str, steps: int) -> None:
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
    """Tell counts, but nothing that depends on the key: a user could draw keys until it pleases."""
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
