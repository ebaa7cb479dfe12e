"""Rows of benchmarks, and the JSON of a run of all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).parent / "results" / "latest.json"
SCHEMA_VERSION = 2

Unit = Literal["x", "%", "h", "s", "ms"]


@dataclass(frozen=True)
class Wanted:
    """The bound that a figure is held against."""

    bound: Literal["at least", "at most"]
    value: float

    def met(self, measured: float) -> bool:
        """Return whether a figure keeps to it."""
        return measured >= self.value if self.bound == "at least" else measured <= self.value


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        topic: the benchmark's name.
        what: what was compared with what.
        measured: in `unit`; None when it was not measured.
        unit: x for a ratio, % for a share, or h, s or ms.
        wanted: the bound it is held against, if there is one.
        figures: what the ratio was formed from; each name states its unit.
        skipped: why it was not measured, and the remedy.
    """

    topic: str
    what: str
    measured: float | None
    unit: Unit = "x"
    wanted: Wanted | None = None
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    skipped: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the bound is kept; None without a bound or a figure."""
        return (
            None if self.wanted is None or self.measured is None else self.wanted.met(self.measured)
        )


@dataclass(frozen=True)
class Results:
    """Rows, and the machine that they were measured on.

    Attributes:
        machine: hardware and versions (`machine.describe`).
        made: topic -> when its rows were measured and of which commit (`machine.made`).
        rows: all topics'.
        small: whether they show only that the benchmarks work.
    """

    machine: Mapping[str, Any]
    made: Mapping[str, str]
    rows: tuple[Row, ...]
    small: bool

    def with_newer(self, newer: Results) -> Results:
        """Return these with newer rows in place of their topics' own.

        Raises ValueError when they are of another machine: its figures cannot stand beside these.
        """
        if newer.machine != self.machine:
            raise ValueError("other topics were measured on another machine: leave --only away")
        others = (row for row in self.rows if row.topic not in newer.made)
        made = {**self.made, **newer.made}
        return Results(self.machine, made, (*others, *newer.rows), newer.small)

    def write(self, path: Path) -> None:
        """Write as JSON."""
        fields = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        path.write_text(
            json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
            encoding="utf-8",
        )

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what `write` wrote. Raises ValueError when the file is of another version."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"{path} is not of version {SCHEMA_VERSION}: measure again")
        rows = [
            row | {"wanted": row["wanted"] and Wanted(**row["wanted"])} for row in fields["rows"]
        ]
        found = tuple(Row(**row) for row in rows)
        return cls(fields["machine"], fields["made"], found, fields["small"])

    def row(self, topic: str, what: str) -> Row:
        """Return this topic's first row whose `what` begins so.

        Raises ValueError when there is none.
        """
        for row in self.rows:
            if row.topic == topic and row.what.startswith(what):
                return row
        raise ValueError(f"no row of {topic} begins with {what!r}")


def shown(value: float, unit: Unit) -> str:
    """Return three significant digits with the unit."""
    return f"{significant(value)} {unit}"


def significant(value: float) -> str:
    """Return three significant digits, without an exponent."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"
