"""Leave-one-out losses of a run's contexts, gathered a step at a time."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import mean_losses, median_losses
from dpaudit.results import ContextLoss, Empirical
from dpaudit.runs import BatchHeader, Manifest, Step

#: How many of the worst contexts are listed.
LISTED = 10


class RealisedLosses:
    """What each batch's tokens cost each of its contexts: sums for the open batch, the worst few for the run."""

    def __init__(self, manifest: Manifest) -> None:
        self._mechanism = manifest.mechanism
        self._sums: NDArray[np.float64] | None = None
        self._worst: list[tuple[float, int, int, float]] = []
        self._contexts = 0

    def start(self, header: BatchHeader) -> None:
        """A batch's steps follow."""
        self._sums = np.zeros(header.contexts)

    def add(self, step: Step, token: int) -> None:
        """Take in one step; `token` is its index in the support. A step without exact losses leaves the batch none."""
        losses = None if self._sums is None else self._losses(step, len(self._sums), token)
        if self._sums is None or losses is None or not np.isfinite(losses).all():
            self._sums = None
        else:
            self._sums += losses

    def skip(self) -> None:
        """A step of the open batch cannot be evaluated."""
        self._sums = None

    def finish(self, header: BatchHeader) -> float | None:
        """The batch has no more steps: its largest absolute loss in nats, or None where its record gives none."""
        if self._sums is None or not header.contexts:
            return None
        sizes = np.abs(self._sums)
        self._contexts += header.contexts
        for slot in np.argsort(-sizes, kind="stable")[:LISTED]:
            # Equal losses are listed in order of batch and slot.
            entry = (float(sizes[slot]), -header.id, -int(slot), float(self._sums[slot]))
            if len(self._worst) < LISTED:
                heapq.heappush(self._worst, entry)
            else:
                heapq.heappushpop(self._worst, entry)
        return float(sizes.max())

    def result(self) -> Empirical:
        """What is known after all batches."""
        worst = sorted(self._worst, reverse=True)
        return Empirical(
            leave_one_out_max=worst[0][0] if worst else None,
            contexts=self._contexts,
            worst=tuple(ContextLoss(batch=-batch, slot=-slot, loss=loss) for _, batch, slot, loss in worst),
        )

    def _losses(self, step: Step, contexts: int, token: int) -> NDArray[np.float64] | None:
        temperature, divisor = self._mechanism.temperature, self._mechanism.divisor
        if step.central is not None and step.sides is not None:
            if step.holder is not None and step.holder.max() >= contexts:
                return None  # record.sides objects
            return median_losses(step.central, step.sides, step.holder, contexts, token, temperature)
        if step.aggregate is not None and step.contexts is not None and divisor is not None:
            return mean_losses(step.aggregate, step.contexts, divisor, token, temperature)
        return None
