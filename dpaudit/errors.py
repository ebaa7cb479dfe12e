"""Errors that users can mend: a file, a field or a command line that cannot be used."""

from __future__ import annotations

import reprlib

#: The most characters of a value in an error.
_LINE = 80


class InputError(ValueError):
    """An input that cannot be used.

    Attributes:
        where: the file, and the field, batch or step inside it.
        problem: what is wrong there. Never holds text of a private record.
        remedy: what the reader can do about it.
        code: the error's identity for programs, `family.name`, or "".
    """

    def __init__(self, where: str, problem: str, remedy: str, code: str = "") -> None:
        super().__init__(f"{where}: {problem} {remedy}")
        self.where = where
        self.problem = problem
        self.remedy = remedy
        self.code = code

    @property
    def file(self) -> str:
        """The file, or the argument or setting, that cannot be used."""
        return self.where.partition(": ")[0]

    @property
    def field(self) -> str:
        """The place inside the file: a field, a row or a column; empty for the whole file."""
        return self.where.partition(": ")[2]

    def alone(self) -> InputError:
        """Return the error without its traceback.

        A traceback would keep everything that was read by then in memory.
        """
        return type(self)(self.where, self.problem, self.remedy, self.code)

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str, str]]:
        """Pickle by the parts, not by the message: worker processes hand these errors on."""
        return type(self), (self.where, self.problem, self.remedy, self.code)


class UnfinishedError(InputError):
    """A run that is not finished, and has no file yet that only a finished one has."""


def in_short(value: object) -> str:
    """Show a value in one line.

    A small file's aliases can make one that is endless when written out.
    """
    writer = reprlib.Repr()
    writer.maxstring = writer.maxother = _LINE
    writer.maxlevel = 3
    shown = writer.repr(value)
    if len(shown) <= _LINE:
        return shown
    return shown[: _LINE - 3] + "..."
