"""Output of commands: its destination, progress, and closed pipes."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from dpaudit.api.shown import Serialisable
    from dpaudit.reports.document import Document


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


def tell(message: str) -> None:
    """Say an error or a warning on stderr; what a run says in it must not drive the terminal."""
    from dpaudit.reports.text import printable

    with suppress(OSError):  # it has no room: what a command finds stands nevertheless
        click.echo(printable(message), err=True)


def note(message: str, *, wrapped: bool = False) -> None:
    """Say something on stderr that --quiet does without; `wrapped` lines fit there."""
    if session().quiet:
        return
    if wrapped:
        from dpaudit.reports.text import wrapped as in_lines

        message = in_lines(message, _width(), "  ")
    tell(message)


def _width() -> int:
    """Return how many columns a terminal has: $COLUMNS, or any standard stream's; else 80."""
    if (asked := os.environ.get("COLUMNS", "")).isdecimal() and int(asked):
        return int(asked)
    for number in range(3):
        with suppress(OSError):
            if columns := os.get_terminal_size(number).columns:
                return columns
    return 80


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
    """Print a document on standard output, in colour on a terminal unless NO_COLOR is set."""
    from dpaudit.reports.writers import terminal

    terminal.print_document(document, console(stderr=False))


def print_line(text: str) -> None:
    """Print text on standard output, and a line break."""
    click.echo(text)


def console(*, stderr: bool) -> Console:
    """Return standard output or standard error as rich prints to it."""
    from rich.console import Console

    return Console(stderr=stderr)
