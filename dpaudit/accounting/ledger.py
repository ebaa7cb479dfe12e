"""How a run's figures come about: trees of figures that can only be combined with their own kind.

An approximate guarantee, an ex-post cost and an empirical loss are statements of different kinds. Their sum means
nothing, so it cannot be formed; nor can that of figures for different relations or units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dpaudit.mechanisms import Kind, Relation, Unit

Rule: TypeAlias = Literal["leaf", "sum", "maximum", "joint"]


class KindError(ValueError):
    """Figures of different kinds, relations or units were about to be combined."""


@dataclass(frozen=True)
class Figure:
    """One number and what it is a number of.

    Attributes:
        kind: what sort of statement it makes.
        relation, unit: what neighbouring data sets differ by.
        value: nats, non-negative; may be infinite.
        delta: of an approximate guarantee, or what noised centres add to sets of outcomes beside an ex-post cost.

    Raises:
        ValueError: value or delta is negative or not a number, or a delta stands beside an empirical loss.
    """

    kind: Kind
    relation: Relation
    unit: Unit
    value: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not self.value >= 0 or not 0 <= self.delta <= 1:
            raise ValueError(f"a figure is at least 0, with a delta from 0 to 1, not {self.value} and {self.delta}")
        if self.delta and self.kind == "empirical":
            raise ValueError("an empirical figure has no delta")

    def __add__(self, other: Figure) -> Figure:
        """Basic composition: values and deltas add up, rounded up. Raises KindError where they must not."""
        self.require_same_kind(other)
        if self.kind == "empirical":
            raise KindError("empirical losses of different neighbours do not add up to anything")
        value, delta = (rounded_sum(a, b) for a, b in ((self.value, other.value), (self.delta, other.delta)))
        return Figure(self.kind, self.relation, self.unit, value, min(1.0, delta))

    def require_same_kind(self, other: Figure) -> None:
        """Raises KindError unless both figures make the same sort of statement about the same neighbours."""
        mine, theirs = ((f.kind, f.relation, f.unit) for f in (self, other))
        if mine != theirs:
            raise KindError(f"{' '.join(mine)} and {' '.join(theirs)} figures cannot be combined")


@dataclass(frozen=True)
class Entry:
    """A node of the ledger. Build it with `leaf`, `total`, `worst` or `joint`, which check the children.

    Attributes:
        name: what cost it.
        figure: how much.
        rule: how the children make it up.
        reference: what justifies the rule.
        omitted: how many children are left out of the listing.
    """

    name: str
    figure: Figure
    rule: Rule
    reference: str
    children: tuple[Entry, ...] = ()
    omitted: int = 0


def leaf(name: str, figure: Figure, reference: str) -> Entry:
    """A figure that was computed elsewhere."""
    return Entry(name, figure, "leaf", reference)


def total(name: str, children: Sequence[Entry], reference: str) -> Entry:
    """The sum of one or more children. Raises KindError where their kinds differ."""
    first, *others = (child.figure for child in children)
    return Entry(name, sum(others, first), "sum", reference, tuple(children))


def worst(name: str, children: Sequence[Entry], reference: str, listed: int | None = None) -> Entry:
    """The maximum over one or more children, of which the `listed` largest are kept. Raises KindError likewise."""
    ranked = sorted(children, key=lambda child: -child.figure.value)
    for child in ranked[1:]:
        ranked[0].figure.require_same_kind(child.figure)
    kept = ranked if listed is None else ranked[:listed]
    return Entry(name, ranked[0].figure, "maximum", reference, tuple(kept), len(ranked) - len(kept))


def joint(name: str, figure: Figure, children: Sequence[Entry], reference: str, omitted: int = 0) -> Entry:
    """What an accountant made of the children together. Raises KindError where kinds differ."""
    for child in children:
        figure.require_same_kind(child.figure)
    return Entry(name, figure, "joint", reference, tuple(children), omitted)


def rounded_sum(left: float, right: float) -> float:
    """The sum of two costs, rounded up; exact where one of them is 0."""
    return left + right if 0 in (left, right) else math.nextafter(left + right, math.inf)
