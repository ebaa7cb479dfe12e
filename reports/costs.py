"""The ex-post costs of a run's batches and token positions, and their distributions in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from dpaudit.reports.levels import digits_for
from dpaudit.reports.text import counted
from dpaudit.results import AuditResult, BatchResult, TokenCurve
from dpaudit.results.rounding import bound, lower_bound, nearest, saving

#: Fewer batches, or tokens at a place, are drawn one by one: they have neither bins nor quantiles.
FEWEST_BINNED = 10
#: The most points of a curve that a figure draws.
MOST_DRAWN = 512


@dataclass(frozen=True)
class BatchCosts:
    """Exact ex-post generation cost of every batch, in nats.

    Attributes:
        costliest: batches with the largest cost first; ties by id.
        values: their costs.
        finite, theorem1: those of them that can be drawn, and Theorem 1's.
        unbounded: number of batches whose cost is not finite.
        digits: significant digits to show costs with.
    """

    costliest: tuple[BatchResult, ...]
    values: list[float]
    finite: list[float]
    theorem1: list[float]
    unbounded: int
    digits: int

    @property
    def few(self) -> bool:
        """True if so few that each is drawn.

        Bins of a batch or two would show a shape that is not there.
        """
        return len(self.finite) < FEWEST_BINNED

    @property
    def quartiles(self) -> list[float]:
        """The least cost, three quartiles and the largest: all are costs of actual batches."""
        last = len(self.values) - 1
        return [self.values[last - math.ceil(share * last / 4)] for share in range(5)]

    @property
    def marks(self) -> str:
        """The marks of their figure."""
        if self.few:
            return "Each dot is a batch: filled by exact cost, hollow by Theorem 1."
        return "Bars count batches by exact cost, the outline by Theorem 1."

    def described(self) -> str:
        """Return the distribution in a sentence or two, with the costliest batch's Theorem 1."""
        worst, shown = self.costliest[0], partial(bound, digits=self.digits)
        most, beside = shown(self.values[0]), ""
        if worst.theorem1 is not None and worst.exact is not None:
            saved = saving(worst.theorem1, worst.exact)
            beside = f" Theorem 1 gives {shown(worst.theorem1)} for that batch: saving {saved}."
        if len(self.costliest) == 1:
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
            f"Exact cost of {counted(len(self.costliest), 'batch', 'batches')} (nats): least "
            f"{shown(self.values[-1])}, median {middle}, most {most} in batch "
            f"{worst.id}.{unbounded}{beside}"
        )


def cost_of(exact: float | None) -> float:
    """Return an exact cost; an absent one, or NaN, counts as infinite, for nothing bounds it."""
    return math.inf if exact is None or math.isnan(exact) else exact


def batch_costs(result: AuditResult) -> BatchCosts | None:
    """Return the run's per-batch costs, or None if no batch has one."""
    if all(batch.exact is None for batch in result.batches):
        return None
    costliest = costliest_first(result.batches)
    values = [cost_of(batch.exact) for batch in costliest]
    finite = list(filter(math.isfinite, values))
    theorem1 = [
        each.theorem1
        for each in costliest
        if each.theorem1 is not None and math.isfinite(each.theorem1)
    ]
    return BatchCosts(
        costliest, values, finite, theorem1, len(values) - len(finite), ex_post_digits(result)
    )


def costliest_first(batches: Iterable[BatchResult]) -> tuple[BatchResult, ...]:
    """Return the batches by their cost; ties by id."""
    return tuple(sorted(batches, key=lambda batch: (-cost_of(batch.exact), batch.id)))


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
    worst = max(range(len(curve.maximum)), key=lambda index: _or_infinite(curve.maximum[index]))
    first, most, last = (bound(curve.mean[index]) for index in (finite[0], peak, finite[-1]))
    said = (
        f"Mean exact cost of a token over the batches that reached its position (nats): {first} "
        "at the first position, "
        f"{most} at most (position {curve.position[peak]}), {last} at the last. The costliest "
        "single token "
        f"{'with a bound ' if curve.unbounded else ''}took "
        f"{bound(_or_infinite(curve.maximum[worst]))} nats, at position {curve.position[worst]}."
    )
    # how far tokens at one place differ, where the middle one is costliest
    if (band := curve.band) is not None:
        at = max(range(len(band.median)), key=lambda index: _or_infinite(band.median[index]))
        start, end = band.first[at], band.last[at]
        among = "all tokens" if band.tokens[at] < FEWEST_BINNED else "eight of ten tokens"
        place = f"position {start}" if start == end else f"positions {start} to {end}"
        said += (
            f" The median token is costliest at {place}: {bound(band.median[at])} nats, {among} "
            "there "
            f"between {lower_bound(band.low[at])} and {bound(band.high[at])} nats."
        )
    return said + left_out


def thinned(curve: TokenCurve) -> TokenCurve:
    """Return the curve to draw: up to MOST_DRAWN points, each for several positions up to it."""
    step = -(-len(curve.position) // MOST_DRAWN)
    if step <= 1:
        return curve
    groups = [
        range(start, min(start + step, len(curve.position)))
        for start in range(0, len(curve.position), step)
    ]
    tokens = [sum(curve.batches[at] for at in group) for group in groups]
    sums = [sum(curve.batches[at] * curve.mean[at] for at in group) for group in groups]
    last = [group[-1] for group in groups]
    return TokenCurve(
        position=tuple(curve.position[at] for at in last),
        batches=tuple(max(curve.batches[at] for at in group) for group in groups),
        mean=tuple(total / count for total, count in zip(sums, tokens, strict=True)),
        maximum=tuple(max(curve.maximum[at] for at in group) for group in groups),
        theorem1=tuple(curve.theorem1[at] for at in last),
        exact=tuple(curve.exact[at] for at in last),
        band=curve.band,
        unbounded=curve.unbounded,
    )


def growth_described(result: AuditResult) -> str:
    """Return epsilon by length in words: halfway and at the end, with the saving, or ""."""
    curve, digits = result.tokens, ex_post_digits(result)
    if curve is None or not curve.position:
        return ""
    last = len(curve.position) - 1
    said = [
        f"{counted(curve.position[index], 'token')}: exact {bound(curve.exact[index], digits)}, "
        f"Theorem 1 {bound(curve.theorem1[index], digits)}, saving "
        f"{saving(curve.theorem1[index], curve.exact[index])}"
        for index in sorted({last // 2, last})
    ]
    return (
        "Ex-post epsilon of generation at the batch level (nats) had no batch gone beyond "
        f"{'; beyond '.join(said)}."
    )


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def losses_described(result: AuditResult) -> str:
    """Say how close losses come to the bounds of their batches; empty without any."""
    rows = [
        (batch.id, batch.exact, batch.leave_one_out_max)
        for batch in result.batches
        if batch.exact is not None and batch.leave_one_out_max is not None
    ]
    if not rows:
        return ""
    contexts = counted(result.guarantees.empirical.contexts, "context")
    said = f"{contexts} left out one at a time, in {counted(len(rows), 'batch', 'batches')}."
    # A comparison with NaN is false.
    if beyond := sum(not loss <= exact for _, exact, loss in rows):
        whose = counted(beyond, "batch has", "batches have")
        return f"{said} {whose} a loss beyond the bound, which no sound bound allows."
    said = f"{said} No loss is beyond the bound of its batch."
    shares = [(loss / exact, batch) for batch, exact, loss in rows if 0 < exact < math.inf]
    if not shares:
        return said
    share, batch = max(shares)
    return f"{said} The largest share of its bound is reached in batch {batch}: {percent(share)}."


def percent(share: float) -> str:
    """Return a share of 1 in percent, three digits."""
    return f"{nearest(100 * share, 3)}%" if math.isfinite(share) else nearest(share)
