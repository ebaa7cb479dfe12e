"""Leave-one-out losses of a run's contexts: a batch's, a step at a time, and the worst of the run."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.checks.view import StepView
from dpaudit.results import ContextLoss, Empirical

#: How many of the worst contexts are listed.
LISTED = 10


@dataclass(frozen=True)
class BatchLosses:
    """What one batch's tokens cost its contexts.

    Attributes:
        contexts: how many contexts have a loss.
        worst: the largest losses in absolute value, and in order of slots where they are equal.
    """

    contexts: int
    worst: tuple[ContextLoss, ...]

    @property
    def largest(self) -> float:
        """The largest absolute loss, in nats."""
        return abs(self.worst[0].loss)


class ContextSums:
    """Adds up the losses of one batch's contexts, a step at a time. A step without exact losses leaves it none."""

    def __init__(self, contexts: int) -> None:
        self._sums: NDArray[np.float64] | None = np.zeros(contexts)

    def add(self, view: StepView) -> None:
        """Take in one step."""
        losses = None
        if self._sums is not None and view.reduced is not None:
            losses = view.mechanism.losses(view.reduced, view.step.contexts, len(self._sums))
        if self._sums is None or losses is None or not np.isfinite(losses).all():
            self._sums = None
        else:
            self._sums += losses

    def result(self, batch: int) -> BatchLosses | None:
        """The losses of a batch that has no more steps; None where its record gives none."""
        if self._sums is None or not len(self._sums):
            return None
        order = np.argsort(-np.abs(self._sums), kind="stable")[:LISTED]
        worst = tuple(ContextLoss(batch=batch, slot=int(slot), loss=float(self._sums[slot])) for slot in order)
        return BatchLosses(len(self._sums), worst)


class RealisedLosses:
    """The worst losses of a run, gathered a batch at a time."""

    def __init__(self) -> None:
        self._worst: list[tuple[float, int, int, ContextLoss]] = []
        self._contexts = 0

    def take(self, batch: BatchLosses) -> None:
        """Take in one batch."""
        self._contexts += batch.contexts
        # Equal losses are listed in order of batch and slot.
        found = [(abs(each.loss), -each.batch, -each.slot, each) for each in batch.worst]
        self._worst = heapq.nlargest(LISTED, self._worst + found, key=lambda entry: entry[:3])

    def result(self) -> Empirical:
        """What is known after all batches."""
        return Empirical(
            leave_one_out_max=self._worst[0][0] if self._worst else None,
            contexts=self._contexts,
            worst=tuple(loss for *_, loss in self._worst),
        )
