"""Output of commands: its destination, progress, and closed pipes."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import select
import sys
import time
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from dpaudit.api.monitor import Monitor, Progress, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from dpaudit.api.generating import Event
    from dpaudit.api.shown import Serialisable
    from dpaudit.reports.document import Document


#: Seconds between lines that tell how far something is, where no bar shows it.
PATIENCE = 15.0
#: What a stream of some other encoding than UTF-8 may lack, and what could drive a terminal.
_BEYOND_ASCII = re.compile("[^\n\x20-\x7e]")
#: What a command finds: it can be printed as JSON.
Found = TypeVar("Found", bound="Serialisable")


@dataclass
class Session:
    """One call of the program, from its command line to its exit.

    Attributes:
        quiet: neither progress nor notes.
        reader_left: what reads standard output went away, so what was printed is not whole.
    """

    quiet: bool = False
    reader_left: bool = False


def prepare_streams() -> None:
    """Make standard streams of any encoding, or none, take all that commands say.

    A character that an encoding lacks is written as an escape. A stream that was closed from the start is the null
    device's: no file that is opened later may get its number, for libraries write there unasked. Standard output stays
    None then, by which `_output` knows that nobody reads it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the program runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # of a file that became a pipe, whose place is asked for afterwards
                stream.reconfigure(errors="backslashreplace")


def session() -> Session:
    """Return the session of the running command; a fresh one outside of commands."""
    context = click.get_current_context(silent=True)
    return Session() if context is None else context.find_root().ensure_object(Session)


def progress_bars(unit: str) -> Any:
    """Show bars on stderr with rates, in `tokens` or the like, and the remaining time.

    There are none in a log, or with --quiet.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.table import Column
    from rich.text import Text

    class Rate(ProgressColumn):
        """The number done in a second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if not speed else f"{speed:,.3g} {unit}/s" if speed < 100 else f"{speed:,.0f} {unit}/s")

    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=None, table_column=Column(min_width=5, ratio=1)),
        MofNCompleteColumn(),
        Rate(Column(no_wrap=True)),
        Remaining(elapsed_when_finished=True),
        console=_console(stderr=True),
        expand=True,
        disable=session().quiet or not sys.stderr.isatty(),
    )


@contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Progress]:
    """Show one bar, as a function of the amount done and the total.

    In a log it is a line now and then.
    """
    from dpaudit.reports.planning import span

    with progress_bars(unit) as bars:
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
    with progress_bars("steps") as progress:
        task = progress.add_task("", total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


@contextmanager
def _output() -> Iterator[None]:
    """End the output, not the command, where what is printed inside has lost its reader (`| head`).

    A closed standard output has no reader from the start.
    """
    if sys.stdout is None:
        session().reader_left = True
    try:
        yield
    except BrokenPipeError:
        session().reader_left = True
        discard_rest(sys.stdout)


def discard_rest(stream: TextIO) -> None:
    """Send what is left in the buffer of a stream that nobody reads to nowhere."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_closed_pipe(stream: TextIO) -> bool:
    """Return whether a stream is a pipe without a reader."""
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def tell(message: str) -> None:
    """Say an error or a warning on stderr; what a run says in it must not drive the terminal."""
    from dpaudit.reports.text import printable

    try:
        click.echo(printable(message), err=True)
    except OSError:  # nobody reads it, or it has no room: what a command finds stands nevertheless
        discard_rest(sys.stderr)


def note(message: str, *, wrapped: bool = False) -> None:
    """Say something on stderr that --quiet does without.

    `wrapped` lines fit there, indented from the second.
    """
    if session().quiet:
        return
    if wrapped:
        from dpaudit.reports.text import wrapped as in_lines

        message = in_lines(message, _console(stderr=True).width, "  ")
    tell(message)


def note_in_log(message: str) -> None:
    """Say what begins, where no bar shows it: standard error is no terminal."""
    if not sys.stderr.isatty():
        note(message)


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
        from dpaudit.commands.generate import GenerationProgress

        with progress_bars("tokens") as bars:
            yield GenerationProgress(bars, self._title, tokens)

    def titled(self, title: str) -> TerminalMonitor:
        """Return one that begins lines with a run's name."""
        return TerminalMonitor(title)

    def note(self, message: str) -> None:
        """Say what begins, where no bar shows it."""
        note_in_log(message)

    def hint(self, message: str) -> None:
        """Say it, unless the command is quiet."""
        note(message)

    def problem(self, message: str) -> None:
        """Say an error."""
        tell(f"dpaudit: {message}")

    def warn(self, message: str) -> None:
        """Say a warning, in one line."""
        title = f"{self._title}: " if self._title else ""
        tell(f"dpaudit: warning: {title}{' '.join(message.splitlines())}")


TERMINAL = TerminalMonitor()


def print_json(text: str) -> None:
    """Print JSON that a terminal shows as it is.

    What could drive or reorder it stands as an escape, which JSON has. So does all beyond ASCII
    where the stream is of another encoding than UTF-8, which no reader of JSON expects.
    """
    from dpaudit.reports.text import DRIVING

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    escaped = DRIVING if codecs.lookup(encoding).name == "utf-8" else _BEYOND_ASCII
    print_line(escaped.sub(_escape, text.rstrip("\n")))


def _escape(found: re.Match[str]) -> str:
    """Return a character as JSON's escape, which is two of them beyond 16 bits."""
    return f"\\u{ord(found[0]):04x}" if found[0] <= "\uffff" else json.dumps(found[0])[1:-1]


def show_document(found: Found, as_json: bool, build: Callable[[Found], Document]) -> None:
    """Print what was found on standard output, as JSON or as the document that `build` returns."""
    if as_json:
        print_json(found.to_json())
    else:
        print_document(build(found))


def print_document(document: Document) -> None:
    """Print a document on standard output.

    It has colour on a terminal alone, and not where NO_COLOR is set.
    """
    from dpaudit.reports.writers import terminal

    with _output():
        terminal.print_document(document, _console(stderr=False))


def print_line(text: str) -> None:
    """Print text on standard output, and a line break."""
    with _output():
        click.echo(text)


def _console(stderr: bool) -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        """A console that leaves a closed pipe to `_output`.

        rich's own exits with 1, which is a verdict here.
        """

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipeConsole(stderr=stderr)
