"""Output of commands: its destination, progress, and closed pipes."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import stat
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
    """

    quiet: bool = False


class _Pipe(io.FileIO):
    """A standard stream whose reader may leave: what is written after that goes nowhere.

    Attributes:
        reader_left: whether something was written that nobody reads.
    """

    def __init__(self, number: int, *, closed: bool = False) -> None:
        """Args: the descriptor's number; whether nobody reads it from the start."""
        super().__init__(number, "wb", closefd=False)
        self._is_closed, self.reader_left = closed, False

    def write(self, data: Any) -> int:
        """Write bytes, and return how many there are. Raises OSError where the disk is full."""
        try:
            if not self._is_closed:
                return super().write(data)
        except BrokenPipeError:
            self._is_closed = True
        self.reader_left = True
        return len(data)


def prepare_streams() -> None:
    """Make standard streams of any encoding, or none, take all that commands say.

    A character that an encoding lacks is written as an escape. A stream that was closed from the
    start is the null device's: no file that is opened later may get its number, for libraries write
    there unasked.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream, closed = getattr(sys, name), getattr(sys, name) is None
        if closed or _is_pipe(stream):
            raw = _Pipe(number if closed else stream.fileno(), closed=closed)
            encoding = "utf-8" if closed else stream.encoding
            setattr(
                sys, name, io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace")
            )
        elif isinstance(stream, io.TextIOWrapper):
            # of a file that became a pipe, whose place is asked for afterwards
            with suppress(OSError):
                stream.reconfigure(errors="backslashreplace")


def _is_pipe(stream: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # a stream of a test, which has no descriptor
        return False


def reader_left() -> bool:
    """Return whether standard output has something that nobody read, with all of it written."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Pipe) and raw.reader_left


def session() -> Session:
    """Return the session of the running command; a fresh one outside of commands."""
    context = click.get_current_context(silent=True)
    return Session() if context is None else context.find_root().ensure_object(Session)


def progress_bars(unit: str) -> Any:
    """Show bars on stderr with rates, in `tokens` or the like, and the remaining time.

    There are none in a log, or with --quiet.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
    )
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.table import Column
    from rich.text import Text

    class Rate(ProgressColumn):
        """The number done in a second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(
                ""
                if not speed
                else f"{speed:,.3g} {unit}/s"
                if speed < 100
                else f"{speed:,.0f} {unit}/s"
            )

    return Progress(
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis"),
        ),
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
        yield lambda what, done, total: progress.update(
            task, description=what, completed=done, total=total
        )


def tell(message: str) -> None:
    """Say an error or a warning on stderr; what a run says in it must not drive the terminal."""
    from dpaudit.reports.text import printable

    with suppress(OSError):  # it has no room: what a command finds stands nevertheless
        click.echo(printable(message), err=True)


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

    terminal.print_document(document, _console(stderr=False))


def print_line(text: str) -> None:
    """Print text on standard output, and a line break."""
    click.echo(text)


def _console(stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr)
