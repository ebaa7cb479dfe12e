"""The change of contexts for one unit's difference: privacy unit and relation, translated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Relation: TypeAlias = Literal["add_remove", "replace"]
Unit: TypeAlias = Literal["record", "context", "user"]
BatchingRule: TypeAlias = Literal["hashed-records", "hashed-slots", "hashed-cells", "paper-slices"]

#: The rules under which adding or removing a record adds or removes at most one context. Under
#: others contexts outlive their records.
COME_AND_GO: frozenset[BatchingRule] = frozenset({"hashed-records", "hashed-cells"})

#: The relations in units of a context that comes or goes: a replaced one goes, and another comes.
HALF_STEPS: dict[Relation, int] = {"add_remove": 1, "replace": 2}


@dataclass(frozen=True)
class ContextChange:
    """The difference of neighbouring data sets at the level of contexts, in the worst case.

    Attributes:
        relation: whether contexts come and go, or are replaced by others.
        contexts: how many at most, in one batch or spread over several in any way (the group size
            of the bounds).
        shares: how many budgets these contexts share between them; None if each has its own.

    Raises:
        ValueError: `contexts` or `shares` is below 1.
    """

    relation: Relation
    contexts: int = 1
    shares: int | None = None

    def __post_init__(self) -> None:
        if self.contexts < 1 or (self.shares or 1) < 1:
            raise ValueError(f"a difference changes at least one context, not {self.contexts}")

    @property
    def half_steps(self) -> int:
        """The number of contexts that come and go when all of the change falls on one batch.

        Each moves a median by half a place.
        """
        return HALF_STEPS[self.relation] * self.contexts

    @property
    def budgets(self) -> int:
        """The number of budgets, one context's or one user's each, that pay for the difference."""
        return self.half_steps if self.shares is None else self.shares


def context_change(
    unit: Unit,
    relation: Relation,
    rule: BatchingRule,
    *,
    records_per_user: int | None = None,
    shared: bool = False,
) -> ContextChange | None:
    """Return the change of contexts that covers every difference of one unit; None if unbounded.

    - A claim per context takes the batches as given.
    - "hashed-records": a record is a context. Adding or removing it adds or removes one context;
      exchanging it removes one and adds one, in one batch or in two.
    - "hashed-slots": the slot survives without the record, so one context is replaced. An exchanged
      record leaves one slot and enters another.
    - "hashed-cells": a record more or less changes how many its cell holds, so at most one context
      comes or goes. An exchanged record does that to two cells, in one batch or in two; or to one
      cell, whose context goes while another comes. Either way two come or go at most
      (docs/mathematics.md, "Cells").
    - "paper-slices": one record shifts every later one into another context or batch.
    - A user is `records_per_user` records at most, a public number, wherever the rule puts them.
      Without it nothing bounds the unit "user".
    - With `shared`, a user's contexts have one budget between them. One record more or less then
      changes what its user's other contexts may spend: no less than if the user were exchanged for
      another.
    """
    if unit == "context":
        return ContextChange(relation)
    records = records_per_user if unit == "user" or shared else 1
    if rule == "paper-slices" or records is None:
        return None
    units = 2 if relation == "replace" else 1  # what one unit takes away, another may bring
    if shared and unit == "record":
        units *= 2
    kind: Relation = "add_remove" if rule in COME_AND_GO else "replace"
    return ContextChange(kind, records * units, units if shared else None)
