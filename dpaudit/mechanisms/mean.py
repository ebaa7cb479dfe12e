"""The mean over a fixed public divisor, and how far one unit's difference moves it.

A step samples from softmax(sum of contributions / s / temperature). A neighbour's mean differs by
at most the sensitivity in every component, so a draw is an exponential mechanism of bounded range
eta = 2 sensitivity / temperature: its privacy losses lie in an interval of that length. Proofs are
in docs/budgets.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from typing_extensions import override

from dpaudit.mechanisms.claims import ApproximateClaim, ClaimKind, ExPostClaim, ZcdpClaim
from dpaudit.mechanisms.interfaces import (
    Aggregator,
    Arrays,
    Box,
    Contribution,
    Doubles,
    Floats,
    Positive,
    Problem,
    ReducedSteps,
    StepArray,
    blocks,
    log_probabilities,
)
from dpaudit.mechanisms.neighbors import ContextChange

if TYPE_CHECKING:
    from torch import Tensor

DivisorKind: TypeAlias = Literal["fixed", "actual"]

#: Rounding may move a mean by this share of clip / divisor. Pairwise sums in float64, as numpy
#: makes of contiguous values, keep within it for up to 2^20 contexts (30 n 2^-53, twice), and sums
#: one by one for some 8,000 (n^2 2^-53).
ROUNDING = 2.0**-26
#: Relative rounding of sums of contexts.
_EQUAL = 1e-6


class Mean(Aggregator):
    """The sum of contributions over a fixed public number.

    Attributes:
        divisor: that number, s. It stays when a context comes or goes.
    """

    name: ClassVar[str] = "mean"
    kinds: ClassVar[tuple[ClaimKind, ...]] = (ApproximateClaim.id, ZcdpClaim.id, ExPostClaim.id)
    dtype: ClassVar[Literal["float32", "float64"]] = "float64"
    sums: ClassVar[bool] = True
    not_applicable: ClassVar[Mapping[str, str]] = {
        "record.sides": "mechanisms.no-sides",
        "neighbors.addition": "mechanisms.bound-of-mean",
    }

    divisor: Positive

    @override
    def arrays(self, contexts: int, width: int, clip: float) -> dict[str, StepArray]:
        """Return the mean itself, in float64."""
        return {"aggregate": StepArray("real", largest=clip * contexts, divisor=self.divisor)}

    @override
    def step(self, values: Floats, clip: float, width: int) -> Arrays:
        """Return the mean, summed in float64 by halves.

        In float32, or added up one by one, rounding could move a mean of many contexts by more than
        its guarantee allows for (`ROUNDING`).
        """
        if not len(values):
            return {"aggregate": np.zeros(values.shape[1])}
        return {"aggregate": column_sums(values.astype(np.float64)) / self.divisor}

    @override
    def step_on_device(self, values: Tensor, clip: float, width: int) -> Arrays:
        import torch

        return {"aggregate": (column_sums(values.to(torch.float64)) / self.divisor).cpu().numpy()}

    @override
    def aggregate(self, arrays: Arrays) -> Floats:
        return arrays["aggregate"]

    @override
    def box(self, arrays: Arrays, change: ContextChange, clip: float) -> Box:
        return mean_box(arrays["aggregate"], clip, self.divisor, change.half_steps)

    @override
    def eta(self, change: ContextChange, clip: float, temperature: float) -> float:
        return bounded_range(clip, temperature, self.divisor, change)

    @override
    def ranges(self, contributions: Floats, clip: float, temperature: float) -> Doubles:
        """Return the ranges, with room for what rounding may move the sum by."""
        own = np.ptp(contributions.astype(np.float64), axis=1)
        ranges: Doubles = (own + 2 * clip * ROUNDING) / self.divisor / temperature * (1 + ROUNDING)
        return ranges

    @override
    def sensitivity(self, change: ContextChange) -> str:
        return mean_sensitivity(change).text

    @override
    def losses(
        self, steps: ReducedSteps, contributions: Floats | None, contexts: int, temperature: float
    ) -> Doubles | None:
        """Return the losses: a context that goes takes its share of the sum along."""
        if contributions is None:
            return None
        aggregate = steps.anchored(steps.arrays["aggregate"])
        of = partial(
            log_probabilities,
            tokens=steps.tokens,
            spans=steps.spans,
            temperature=temperature,
            log_sums=steps.log_sums,
        )
        here, losses = of(aggregate), np.empty((len(contributions), len(steps.spans)))
        for rows in blocks(len(contributions), 8 * len(aggregate)):
            losses[rows] = here - of(
                aggregate - contributions[rows].astype(np.float64) / self.divisor
            )
        return losses

    @override
    def range_problem(
        self, arrays: Arrays, contexts: int, contribution: Contribution
    ) -> Problem | None:
        """Return why a mean is larger than if all n contexts were at the clip, or None."""
        largest = contribution.clip * contexts / self.divisor
        # A comparison with NaN is false, so this refuses NaN too.
        if (np.abs(arrays["aggregate"]) <= largest * (1 + _EQUAL)).all():
            return None
        return Problem("mechanisms.mean-too-large", {"most": largest})

    @override
    def definition_problem(
        self, arrays: Arrays, contributions: Floats, width: int, contribution: Contribution
    ) -> Problem | None:
        """Return None: `divisor_problem` checks all that a mean is."""
        return None

    @override
    def divisor_problem(
        self, arrays: Arrays, contributions: Floats, contribution: Contribution
    ) -> Problem | None:
        mean = contributions.sum(axis=0, dtype=np.float64) / self.divisor
        n, eps = len(contributions), float(np.finfo(arrays["aggregate"].dtype).eps)
        rounding = (4 + n) * max(n, 1) * contribution.clip * eps / self.divisor
        if np.allclose(mean, arrays["aggregate"], rtol=0, atol=rounding):
            return None
        return Problem("mechanisms.other-sum")


class MeanSensitivity(NamedTuple):
    """The distance by which one unit's difference moves each component of the mean.

    Attributes:
        multiple: in units of clip / divisor.
        text: the same in words, for reports.
    """

    multiple: int
    text: str


def mean_sensitivity(change: ContextChange, divisor_kind: DivisorKind = "fixed") -> MeanSensitivity:
    """Return the mean's sensitivity to a change that falls on one batch, the worst case.

    Args:
        change: what neighbouring batches differ by.
        divisor_kind: "fixed" divides the sum by a public number s. "actual" divides by the number
            of contexts, and s is a public floor under it, in the larger of two neighbouring
            batches: then a context also changes the weight of all others, and counts twice when it
            comes or goes.

    Raises:
        ValueError: the kind of divisor is unknown.
    """
    if divisor_kind not in get_args(DivisorKind):
        raise ValueError(f"divisor_kind must be fixed or actual, not {divisor_kind!r}")
    multiple = change.half_steps if divisor_kind == "fixed" else 2 * change.contexts
    each = "2c/s" if multiple == 2 * change.contexts else "c/s"
    divisor = "divisor the number of contexts, at least s"
    if divisor_kind == "fixed":
        divisor = "fixed divisor s"
    contexts = f", {change.contexts} contexts" if change.contexts > 1 else ""
    return MeanSensitivity(multiple, f"{divisor}, {change.relation}: {each} per context{contexts}")


def bounded_range(
    clip: float,
    temperature: float,
    divisor: float,
    change: ContextChange,
    divisor_kind: DivisorKind = "fixed",
) -> float:
    """Return eta of one draw, in nats; infinite if the settings overflow float64.

    Raises:
        ValueError: a setting is not positive, or the kind of divisor is unknown.
    """
    for name, value in (("clip", clip), ("temperature", temperature), ("divisor", divisor)):
        # An infinite clip has a meaning: it bounds nothing.
        if not value > 0 or (math.isinf(value) and name != "clip"):
            allowed = "positive" if name == "clip" else "positive and finite"
            raise ValueError(f"{name} must be {allowed}, not {value}")
    sensitivity = mean_sensitivity(change, divisor_kind).multiple * (clip / divisor)
    return 2 * sensitivity / temperature * (1 + ROUNDING)


def mean_box(aggregate: Floats, clip: float, divisor: float, half_steps: int = 1) -> Box:
    """Return bounds on a neighbour's mean when `half_steps` contexts come or go.

    A replaced context counts twice.

    Args:
        aggregate: [..., S] sum of contributions over the fixed `divisor`.
        clip: every contribution lies in [-clip, clip].
        divisor: the fixed divisor.
        half_steps: number of contexts that come or go.

    Returns:
        (lower, center, upper), float64 [..., S].

    Raises:
        ValueError: clip or divisor is not positive.
    """
    if not (clip > 0 and 0 < divisor < math.inf and half_steps >= 0):
        raise ValueError(
            f"clip {clip} and divisor {divisor} must be positive, and half_steps {half_steps} "
            "not negative"
        )
    center = np.asarray(aggregate, dtype=np.float64)
    reach = half_steps * clip / divisor * (1 + ROUNDING)
    return center - reach, center, center + reach


def column_sums(rows: Any) -> Any:
    """Return the column sums of an array or a tensor [n, columns], n >= 1, which is overwritten.

    Halves are added to halves, so that a sum's terms go through ceil(log2 n) roundings at most.
    """
    left = len(rows)
    while left > 1:
        half = left // 2
        rows[:half] += rows[left - half : left]
        left -= half
    return rows[0]
