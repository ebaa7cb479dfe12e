"""Lower bounds on epsilon, and on delta(epsilon), from log-likelihood ratios of sampled outputs.

An (epsilon, delta) guarantee means E[max(0, 1 - exp(epsilon - L))] <= delta for the exact log-ratio
L = log p(X) - log p'(X) of an output X drawn from p, with p and p' on neighbours in either order. A
sample of L bounds that expectation from below: with probability 1 - a, at least q_k of the mass
lies at or above the k-th largest of n losses, q_k the quantile of order a of Beta(k, n - k + 1)
(Clopper and Pearson, 1934). Held for all k at once, these q_k bound the whole curve. The proof is
in docs/replay.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

#: Points of the curve.
POINTS = 33


@dataclass(frozen=True)
class LowerBound:
    """An empirical epsilon lower bound, in nats.

    Attributes:
        delta: the delta it is for.
        confidence: probability with which it holds, over the sampled outputs.
        epsilon: no (epsilon', delta) guarantee with epsilon' below this holds; 0 where nothing is
            shown, inf if no epsilon' at all.
        estimate: the same without allowing for chance, the other end of what the sample suggests.
        curve: (epsilon, delta estimated, delta from below) along a grid of epsilons, the last at
            `confidence`.
    """

    delta: float
    confidence: float
    epsilon: float
    estimate: float
    curve: tuple[tuple[float, float, float], ...]


def epsilon_lower_bound(
    forward: Doubles, backward: Doubles, delta: float, confidence: float = 0.95
) -> LowerBound:
    """Return the smallest epsilon that a mechanism can have, from exact losses of its outputs.

    Args:
        forward: float64 [n], log p(X) - log p'(X) in nats for independent X drawn from p; inf if
            p' cannot give X.
        backward: float64 [m], log p'(X) - log p(X) for X drawn from p'.
        delta: in [0, 1). With 0 chance plays no part: the largest loss was attained, so it is a
            bound itself.
        confidence: in (0, 1).

    Raises:
        ValueError: a loss is not a number, there is none, or an argument is out of its range.
    """
    if not (0 <= delta < 1 and 0 < confidence < 1):
        raise ValueError(f"delta {delta} must be in [0, 1), and confidence {confidence} in (0, 1)")
    sides = [_descending(losses) for losses in (forward, backward)]
    certain = [_masses(len(losses), confidence) for losses in sides]
    likely = [np.diff(np.arange(1, len(losses) + 1) / len(losses), prepend=0.0) for losses in sides]
    # Beyond the largest finite loss the curve is flat.
    seen = np.concatenate(sides)
    grid = np.linspace(0.0, seen[(seen > 0) & np.isfinite(seen)].max(initial=0.0) or 1.0, POINTS)
    rows = zip(grid, _profile(sides, likely, grid), _profile(sides, certain, grid), strict=True)
    return LowerBound(
        delta=delta,
        confidence=confidence,
        epsilon=_epsilon(sides, certain, delta),
        estimate=_epsilon(sides, likely, delta),
        curve=tuple(
            (float(epsilon), float(estimate), float(below)) for epsilon, estimate, below in rows
        ),
    )


def _descending(losses: Doubles) -> Doubles:
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1 or not len(values) or np.isnan(values).any():
        raise ValueError("losses must be numbers, at least one in either direction")
    return np.sort(values)[::-1]


def _masses(n: int, confidence: float) -> Doubles:
    """Return the least mass that each of n losses stands for.

    That is what lies above it, less what lies above the one before.
    """
    from scipy.special import betaincinv  # type: ignore[import-untyped]  # slow to load, and only attacks need it

    k = np.arange(1, n + 1)
    # Half of the chance of error a direction, and a share of it for each of its order statistics.
    return np.diff(betaincinv(k, n - k + 1, (1 - confidence) / (2 * n)), prepend=0.0)


def _profile(sides: list[Doubles], masses: list[Doubles], epsilons: Doubles) -> Doubles:
    """Return delta at each epsilon, the larger of both directions.

    It is the sum of mass * max(0, 1 - exp(epsilon - loss)).
    """
    deltas = np.zeros_like(epsilons)
    for losses, mass in zip(sides, masses, strict=True):
        gaps = np.minimum(epsilons[:, None] - losses, 0.0)
        deltas = np.maximum(deltas, -np.expm1(gaps) @ mass)
    return deltas


def _epsilon(sides: list[Doubles], masses: list[Doubles], delta: float) -> float:
    """Return the largest epsilon, 0 or more, at which the profile exceeds delta.

    The profile is the largest, over j, of the first j terms A_j - exp(epsilon) B_j taken without
    their maxima. So it exceeds delta up to the largest log((A_j - delta) / B_j).
    """
    largest = 0.0
    for losses, mass in zip(sides, masses, strict=True):
        above = np.cumsum(mass) - delta
        with np.errstate(divide="ignore"):
            weighted = np.logaddexp.accumulate(np.log(mass) - losses)
        # no other term of the profile is positive at an epsilon of 0 or more
        useful = (above > 0) & (losses > 0)
        if useful.any():
            found = float((np.log(above[useful]) - weighted[useful]).max())
            # rounding must not lead beyond what was seen
            largest = max(largest, min(found, float(losses[0])))
    return largest
