"""The ex-post costs of a run's batches and token positions, and their distributions in words."""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import NamedTuple

from dpaudit.reports.levels import digits_for
from dpaudit.reports.text import counted
from dpaudit.results import AuditResult, BatchResult, TokenCurve
from dpaudit.results.rounding import bound, nearest, saving

#: Batches that a report lists.
MOST_BATCHES = 50


class BatchCosts(NamedTuple):
    """Exact ex-post generation cost of every batch, in nats.

    Attributes:
        costliest: the first MOST_BATCHES batches, those with the largest cost first; ties by id.
        values: the costs of all batches, in this order.
        finite: those of them that can be drawn.
        theorem1: the same batches' costs by Theorem 1.
        unbounded: number of batches whose cost is not finite.
        digits: significant digits to show costs with.
    """

    costliest: tuple[BatchResult, ...]
    values: list[float]
    finite: list[float]
    theorem1: list[float]
    unbounded: int
    digits: int

    def described(self) -> str:
        """Return the distribution in a sentence or two, with the costliest batch's Theorem 1."""
        worst, shown = self.costliest[0], partial(bound, digits=self.digits)
        most, beside = shown(self.values[0]), ""
        if worst.theorem1 is not None and worst.exact is not None:
            saved = saving(worst.theorem1, worst.exact)
            beside = f" Theorem 1 gives {shown(worst.theorem1)} for that batch: saving {saved}."
        if len(self.values) == 1:
            return f"The only batch, {worst.id}, cost {most} nats (exact).{beside}"
        unbounded = (
            f" {counted(self.unbounded, 'batch has', 'batches have')} no finite cost."
            if self.unbounded
            else ""
        )
        # The upper of two middle costs, for the mean of a finite and an infinite one would hide the
        # finite one.
        middle = shown(statistics.median_high(self.values))
        return (
            f"Exact cost of {counted(len(self.values), 'batch', 'batches')} (nats): least "
            f"{shown(self.values[-1])}, median {middle}, most {most} in batch "
            f"{worst.id}.{unbounded}{beside}"
        )


def cost_of(cost: float | None) -> float:
    """Return a cost; an absent one, or NaN, counts as infinite, for nothing bounds it."""
    return math.inf if cost is None or math.isnan(cost) else cost


def batch_costs(result: AuditResult) -> BatchCosts | None:
    """Return the run's per-batch costs, or None if no batch has one."""
    found = [(batch.exact, batch.theorem1, batch.id) for batch in result.batches]
    if all(exact is None for exact, _, _ in found):
        return None
    order = sorted(
        range(len(found)), key=lambda place: (-cost_of(found[place][0]), found[place][2])
    )
    values = [cost_of(found[place][0]) for place in order]
    finite = list(filter(math.isfinite, values))
    return BatchCosts(
        tuple(result.batches[place] for place in order[:MOST_BATCHES]),
        values,
        finite,
        [cost_of(found[place][1]) for place in order],
        len(values) - len(finite),
        ex_post_digits(result),
    )


def ex_post_digits(result: AuditResult) -> int:
    """Return significant digits for every ex-post figure of a report."""
    return digits_for(result.claim, result.guarantees.ex_post)


def curve_described(curve: TokenCurve | None) -> str:
    """Return the cost of a token by its position, in words; empty without one."""
    if curve is None or not curve.position:
        return ""
    left_out = ""
    if curve.unbounded:
        are = "is" if curve.unbounded == 1 else "are"
        left_out = f" {counted(curve.unbounded, 'token')} without a bound {are} left out."
    finite = [index for index, value in enumerate(curve.mean) if math.isfinite(value)]
    if not finite:
        return f"No token position has a finite mean cost.{left_out}"
    peak = max(finite, key=lambda index: curve.mean[index])
    worst = max(range(len(curve.maximum)), key=lambda index: cost_of(curve.maximum[index]))
    first, most, last = (bound(curve.mean[index]) for index in (finite[0], peak, finite[-1]))
    said = (
        f"Mean exact cost of a token over the batches that reached its position (nats): {first} "
        "at the first position, "
        f"{most} at most (position {curve.position[peak]}), {last} at the last. The costliest "
        "single token "
        f"{'with a bound ' if curve.unbounded else ''}took "
        f"{bound(cost_of(curve.maximum[worst]))} nats, at position {curve.position[worst]}."
    )
    return said + left_out


def percent(share: float) -> str:
    """Return a share of 1 in percent, three digits."""
    return f"{nearest(100 * share, 3)}%" if math.isfinite(share) else nearest(share)
