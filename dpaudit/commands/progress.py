"""Progress of commands on standard error: bars on a terminal, lines in a log."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from dpaudit.api.monitor import Monitor, Progress, Steps
from dpaudit.commands.terminal import console, note, session, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dpaudit.api.generating import Event, ModelLoaded, Phase, RecordsPlaced, RunResumed

#: Seconds between lines that tell how far something is, where no bar shows it, and until the first
#: line about something that takes longer than a moment.
PATIENCE, SOON = 30.0, 1.5
#: Batches with fewer contexts than this are warned of; with WELL or more, noise seldom decides a
#: token.
FEW, WELL = 8, 30
#: Of the budgets, on average: where earlier runs left less, hardly any context takes part.
NOTHING_LEFT = 0.01
#: A text that is longer than most takes one in so many of the tokens that it may have still.
_LONGER = 4
#: Batches in a line.
_LISTED = 10
#: What phases are called.
PHASES: dict[Phase, str] = {
    "reading": "reading the records",
    "starting": "starting PyTorch",
    "loading": "loading the model",
    "converting": "converting the model, which takes minutes and is done once",
    "prompts": "computing the public prompts",
    "placing": "placing the records in batches",
    "timing": "timing a few steps",
}


class Pulse:
    """Lines in a log about what is going on: once that takes a moment, and then now and then."""

    def __init__(self, line: Callable[[], str]) -> None:
        """Args: what returns the line of this moment."""
        self._line, self._wake, self._ended = line, threading.Event(), False
        self._due = time.monotonic() + SOON
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Pulse:
        if not (session().quiet or sys.stderr.isatty()):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def wait(self, seconds: float | None = None) -> None:
        """Say the next line so much later: something new begins, or a line was just said."""
        self._due = time.monotonic() + (SOON if seconds is None else seconds)
        self._wake.set()

    def _beat(self) -> None:
        while not self._ended:
            if self._wake.wait(max(0.0, self._due - time.monotonic())):
                self._wake.clear()
                continue
            self._due = time.monotonic() + PATIENCE
            note(self._line())


class Bars(Protocol):
    """Bars on standard error: those of rich, or none.

    Attributes:
        disable: whether none is shown.
    """

    disable: bool

    def add_task(self, description: str, *, total: float | None, **fields: Any) -> Any:
        """Return the number of a further bar."""

    def update(self, task_id: Any, **values: Any) -> None:
        """Show how far a bar is."""


class _NoBars:
    """Nothing, in a log or with --quiet: most audits need no library that draws on terminals."""

    disable = True

    def add_task(self, description: str, *, total: float | None, **fields: Any) -> Any:
        del description, total, fields

    def update(self, task_id: Any, **values: Any) -> None:
        del task_id, values


def progress_bars(time: str = "") -> AbstractContextManager[Bars]:
    """Return bars on stderr; none in a log, or with --quiet.

    Args:
        time: what shows the remaining time, as a format of a task; by default that of rich.
    """
    if session().quiet or not sys.stderr.isatty():
        return nullcontext(_NoBars())
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
        *(
            [TextColumn(time, markup=False)]
            if time
            else [MofNCompleteColumn(), Remaining(elapsed_when_finished=True)]
        ),
        console=console(stderr=True),
        expand=True,
    )


@contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Progress]:
    """Show one bar, as a function of the amount done and the total; lines in a log."""
    from dpaudit.reports.text import span

    now, amount = time.monotonic, [0, 0]
    begun: tuple[float, int] | None = None

    def line() -> str:
        if begun is None:
            return title
        (since, first), (done, total) = begun, amount
        said = f"{title}: {done:,} of {total:,} {unit}"
        if not first < done < total:  # nothing is measured yet, or what is left is no such unit
            return said
        left = (now() - since) * (total - done) / (done - first)
        return f"{said}, about {span(left)} left"

    with progress_bars() as bars, Pulse(line):
        task = bars.add_task(title, total=None)

        def show(done: int, total: int) -> None:
            nonlocal begun
            bars.update(task, completed=done, total=total)
            begun = begun or (now(), done)  # what was loaded before is no measure of what is left
            amount[:] = done, total

        yield show


@contextmanager
def progress_steps() -> Iterator[Steps]:
    """Show one bar, as a function of what, how much of it and the total; lines in a log."""
    said = "starting"
    with progress_bars() as bars, Pulse(lambda: said) as pulse:
        task = bars.add_task(said, total=None)

        def show(what: str, done: int, total: int) -> None:
            nonlocal said
            bars.update(task, description=what, completed=done, total=total)
            if not said.startswith(what):
                pulse.wait()
            said = f"{what}: {done:,} of {total:,}"

        yield show


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
        """Show a bar, or lines for phases and batches."""
        with progress_bars("{task.fields[left]}") as bars:
            shown = GenerationProgress(bars, self._title, tokens)
            with shown.pulse:
                yield shown

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Say what is going on, once it takes a moment."""
        bare = session().quiet or not sys.stderr.isatty()
        with nullcontext() if bare else console(stderr=True).status(what), Pulse(lambda: what):
            yield

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
    """A run's progress, on a bar, or in lines where there is none.

    Attributes:
        pulse: says lines of a phase or batch that takes long.
    """

    def __init__(self, bars: Bars, title: str, steps: int) -> None:
        """Args: bars to show it on; the run's name; tokens that a batch takes at most."""
        self._bars, self._title, self._steps = bars, title, steps
        self._task = bars.add_task(title, total=None, left="")
        self._doing = title
        self._batches = self._done = self._finished = self._written = 0
        self._under_way: dict[int, int] = {}
        self._begun = self._stepped = self._ends = 0.0
        self.pulse = Pulse(self._line)

    def __call__(self, event: Event) -> None:
        """Show an event."""
        from dpaudit.api.generating import events

        match event:
            case events.PhaseBegan():
                self._show(PHASES[event.phase])
                self.pulse.wait()
            case events.ModelLoaded():
                _tell_toy(self._title, event)
            case events.RecordsPlaced():
                _tell_placed(self._title, event)
            case events.RunCommitted():
                self._begun = time.monotonic()
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
                self._show(f"embedding {event.texts} texts", event.done, event.total)
            case events.BatchStarted():
                if not self._finished and not self._under_way:
                    self._begun = time.monotonic()
                    self.pulse.wait()
                self._batches, self._under_way[event.batch] = event.batches, 0
                self._go_on()
            case events.StepDone():
                self._stepped = self._stepped or time.monotonic()
                self._under_way[event.batch] = event.tokens
                self._go_on()
            case events.BatchDone():
                self._batches = event.batches
                self._end_batch(event.batch, event.tokens, resumed=event.resumed)
                self._go_on()
                if self._bars.disable:
                    note(self._with_time(f"{self._title}: {self._all_done()}"))
                    self.pulse.wait(PATIENCE)

    def _end_batch(self, batch: int, tokens: int, *, resumed: bool) -> None:
        self._under_way.pop(batch, None)
        self._done += 1
        if resumed:  # it took no time now
            return
        self._finished, self._written = self._finished + 1, self._written + tokens
        now, tokens = time.monotonic(), self._written + sum(self._under_way.values())
        self._ends = now + (now - self._begun) / max(1, tokens) * self._remaining()

    def _remaining(self) -> float:
        """Return about how many tokens there are to come: texts end as early as the others did.

        One that is longer than most has a part of what it may have still.
        """
        usual = self._written / self._finished if self._finished else self._steps
        started = sum(
            max(usual - tokens, (self._steps - tokens) / _LONGER)
            for tokens in self._under_way.values()
        )
        return started + usual * (self._batches - self._done - len(self._under_way))

    def seconds_left(self) -> float | None:
        """Return how long it takes from now, about; None before batches have some tokens.

        A batch takes as long as the finished ones on average, prompts included. Before one is
        finished, it is what the longest texts would take.
        """
        tokens, now = self._written + sum(self._under_way.values()), time.monotonic()
        if self._finished:
            left = self._ends - now
            return left if left > 0 else (now - self._begun) / max(1, tokens) * self._remaining()
        if tokens <= len(self._under_way):
            return None
        prompts = (self._stepped - self._begun) / len(self._under_way)
        step = (now - self._stepped) / (tokens - len(self._under_way))
        to_begin = self._batches - self._done - len(self._under_way)
        return to_begin * prompts + step * self._remaining()

    def _go_on(self) -> None:
        if self._batches:
            done = self._written + sum(self._under_way.values())
            self._show(self._place(), done, done + self._remaining(), self._left())

    def _show(
        self, doing: str, done: float = 0, total: float | None = None, left: str = ""
    ) -> None:
        self._doing = f"{self._title}: {doing}" if self._title else doing
        self._bars.update(
            self._task, description=self._doing, completed=done, total=total, left=left
        )

    def _place(self) -> str:
        """Say which batches are under way, or how many are done."""
        first, last = self._done + 1, self._done + len(self._under_way)
        if last > first:
            return f"batches {first:,} to {last:,} of {self._batches:,}"
        if last == first:
            return f"batch {first:,} of {self._batches:,}"
        return self._all_done()

    def _all_done(self) -> str:
        return f"{self._done:,} of {self._batches:,} batches done"

    def _left(self) -> str:
        from dpaudit.reports.text import span

        seconds = self.seconds_left()
        if seconds is None or self._done == self._batches:
            return ""
        return f"{'about' if self._finished else 'at most about'} {span(seconds)} left"

    def _line(self) -> str:
        """Return what is going on, and about how long the rest takes."""
        return self._with_time(self._doing)

    def _with_time(self, said: str) -> str:
        left = self._left() if self._batches else ""
        return f"{said}, {left}" if left else said


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


def _tell_toy(title: str, loaded: ModelLoaded) -> None:
    """Say that the model is a toy, if it is one."""
    from dpaudit.reports.preview import toy_words

    if words := toy_words(loaded.name, loaded.parameters):
        note(f"{title}: {' '.join(words)}")


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
    if placed.large is not None:
        from dpaudit.reports.planning import large_words

        tell(f"dpaudit: warning: {title}: {large_words(*placed.large)}")
    if placed.contexts >= FEW:
        return
    tell(
        f"dpaudit: warning: {title}: batches have about {placed.contexts:.2g} contexts on "
        f"average; {WELL} or more work "
        f"well. A batch without any writes {placed.of_none} and costs as much. {placed.remedy}. "
        "Choose that by a "
        "public number of records; if you counted them, declare chosen_from.batching: private."
    )
