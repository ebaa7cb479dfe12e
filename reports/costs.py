"""Which cost stands for a batch, and its distribution over the run."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from dpaudit.results import AuditResult, BatchResult
from reports.rounding import bound
from reports.text import counted

Measure = Literal["exact", "theorem1"]

MEASURE_NAMES: dict[Measure, str] = {"exact": "exact", "theorem1": "Theorem 1"}


@dataclass(frozen=True)
class BatchCosts:
    """Ex-post generation cost of every batch, all by the same measure, in nats.

    Attributes:
        measure: "exact" only where every batch has it: two measures in one distribution would mean nothing.
        costliest: batches with the largest cost first; ties by id.
    """

    measure: Measure
    costliest: tuple[BatchResult, ...]

    def of(self, batch: BatchResult) -> float:
        """The batch's cost; "not a number" counts as infinite, for nothing bounds it."""
        value = batch.exact if self.measure == "exact" else batch.theorem1
        return math.inf if value is None or math.isnan(value) else value

    @property
    def values(self) -> list[float]:
        """All costs, largest first."""
        return [self.of(batch) for batch in self.costliest]

    @property
    def finite(self) -> list[float]:
        """The costs that can be drawn."""
        return [value for value in self.values if math.isfinite(value)]

    @property
    def unbounded(self) -> int:
        """Number of batches whose cost is not finite."""
        return len(self.values) - len(self.finite)

    @property
    def minimum(self) -> float:
        """Cost of the cheapest batch."""
        return self.values[-1]

    @property
    def median(self) -> float:
        """Cost in the middle."""
        # The upper of the two middle costs, for the mean of a finite and an infinite one would hide the finite one.
        return statistics.median_high(self.values)

    @property
    def maximum(self) -> float:
        """Cost of the costliest batch: what the run's generation costs."""
        return self.values[0]

    def described(self) -> str:
        """The distribution in one sentence."""
        name = MEASURE_NAMES[self.measure]
        if len(self.costliest) == 1:
            return f"The only batch, {self.costliest[0].id}, cost {bound(self.maximum)} nats ({name})."
        unbounded = f" {counted(self.unbounded, 'batch has', 'batches have')} no finite cost." if self.unbounded else ""
        return (
            f"Cost of {counted(len(self.costliest), 'batch', 'batches')} ({name}, nats): least {bound(self.minimum)}, "
            f"median {bound(self.median)}, most {bound(self.maximum)} in batch {self.costliest[0].id}.{unbounded}"
        )


def batch_costs(result: AuditResult) -> BatchCosts | None:
    """The run's per-batch costs, or None where the aggregator gives none (or no batch was read)."""
    for measure in ("exact", "theorem1"):
        costs = BatchCosts(measure, result.batches)
        if result.batches and all(_has(batch, measure) for batch in result.batches):
            ranked = sorted(result.batches, key=lambda batch: (-costs.of(batch), batch.id))
            return BatchCosts(measure, tuple(ranked))
    return None


def curve_described(result: AuditResult) -> str:
    """The per-token curve in one sentence; empty where there is none."""
    curve = result.tokens
    if curve is None or not curve.position:
        return ""
    finite = [index for index, value in enumerate(curve.mean) if math.isfinite(value)]
    if not finite:
        return "No token position has a finite mean cost."
    peak = max(finite, key=lambda index: curve.mean[index])
    worst = max(range(len(curve.maximum)), key=lambda index: _or_infinite(curve.maximum[index]))
    named = [(finite[0], "at the first"), (peak, "at most"), (finite[-1], "at the last")]
    points = [f"{bound(curve.mean[index])} {name}" for index, name in named]
    return (
        f"Mean cost of a token over the batches that reached its position (nats): {points[0]} position, {points[1]} "
        f"(position {curve.position[peak]}), {points[2]}. The costliest single token took "
        f"{bound(_or_infinite(curve.maximum[worst]))} nats, at position {curve.position[worst]}."
    )


def _has(batch: BatchResult, measure: Measure) -> bool:
    return (batch.exact if measure == "exact" else batch.theorem1) is not None


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value
