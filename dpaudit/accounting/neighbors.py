"""What one unit's difference does to the contexts of a run: from privacy unit and relation to context level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from dpaudit.accounting.medians import HALF_STEPS, Relation

Unit: TypeAlias = Literal["record", "context"]
Rule: TypeAlias = Literal["hashed-records", "hashed-slots", "paper-slices"]


@dataclass(frozen=True)
class ContextChange:
    """One way in which neighbouring data sets differ at the level of contexts.

    Attributes:
        relation: whether contexts come and go, or are replaced by others.
        contexts: how many in each batch concerned.
        batches: how many batches are concerned.
    """

    relation: Relation
    contexts: int = 1
    batches: int = 1

    @property
    def half_steps(self) -> int:
        """How far, in half places, this moves a median."""
        return HALF_STEPS[self.relation] * self.contexts


def context_changes(unit: Unit, relation: Relation, rule: Rule) -> tuple[ContextChange, ...]:
    """All ways in which one unit's difference can change contexts; the worst of them is what a claim must cover.

    - A claim per context takes the batches as given.
    - "hashed-records": a record is a context, and its batch depends on it alone. Adding or removing it adds or
      removes one context. Replacing it by another one either stays in the batch or touches two batches.
    - "hashed-slots": the slot survives without the record, so one context is replaced. A replaced record leaves
      one slot and enters another: two contexts of one batch, or one in each of two.
    - "paper-slices": one record shifts every later one into another context or batch; no bound is known, and the
      result is empty.
    """
    if unit == "context":
        return (ContextChange(relation),)
    if rule == "hashed-records":
        if relation == "add_remove":
            return (ContextChange("add_remove"),)
        return (ContextChange("replace"), ContextChange("add_remove", batches=2))
    if rule == "hashed-slots":
        if relation == "add_remove":
            return (ContextChange("replace"),)
        return (ContextChange("replace", contexts=2), ContextChange("replace", batches=2))
    return ()
