"""Results at a prompt and in a notebook: a title and a few short lines, escaped."""

from __future__ import annotations

import html
from typing import Generic, Protocol, TypeVar

from dpaudit.reports.text import one_line


class Serialisable(Protocol):
    """A result that can be written as JSON."""

    def to_json(self) -> str:
        """Return the result as JSON text."""


Content = TypeVar("Content", bound=Serialisable, covariant=True)
#: Characters of a line, and how notebooks are told to align it.
_LONGEST, _LEFT = 160, " style='text-align:left'"


class Shown(Generic[Content]):
    """Base of what the front door returns.

    Attributes:
        result: all of it, as an immutable pydantic model.
    """

    def __init__(self, result: Content) -> None:
        self.result = result

    def to_json(self) -> str:
        """Return the whole result as JSON text: numbers that are not finite are strings."""
        return self.result.to_json()

    def _title(self) -> str:
        raise NotImplementedError

    def _rows(self) -> list[tuple[str, str]]:
        raise NotImplementedError

    def __repr__(self) -> str:
        rows = [(name, one_line(value, _LONGEST)) for name, value in self._rows()]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(
            [one_line(self._title()), *(f"  {name:<{width}}  {value}" for name, value in rows)]
        )

    def _repr_html_(self) -> str:
        """Return a small table for notebooks. Everything in it is escaped."""
        cells = "".join(
            f"<tr><th{_LEFT}>{_escaped(name)}</th><td{_LEFT}>{_escaped(value)}</td></tr>"
            for name, value in self._rows()
        )
        return f"<div><b>{_escaped(self._title())}</b><table>{cells}</table></div>"


def _escaped(text: str) -> str:
    return html.escape(one_line(text, _LONGEST))
