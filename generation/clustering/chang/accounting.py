"""How much noise a budget asks for."""

from __future__ import annotations

import math
from functools import cache

from scipy import optimize  # type: ignore[import-untyped]

from dpaudit.accounting.centers import ChangScales
from dpaudit.mechanisms import Relation

#: How closely noise is calibrated, relatively.
TOLERANCE = 1e-4


@cache
def calibrated(epsilon: float, delta: float, relation: Relation, depth: int, counts_share: float) -> ChangScales:
    """The least noise that keeps within a budget, as `ChangScales.epsilon` has it.

    Args:
        epsilon: in nats.
        delta: in [LEAST_DELTA, MOST_DELTA].
        relation: for which the budget holds.
        depth: of the tree.
        counts_share: of the budget, as zero-concentrated DP measures it under add_remove, that goes into the counts,
            evenly over the levels. The rest goes into the sums.

    Raises:
        ValueError: no noise is right for epsilon: it would be too much or too little to be worked with, or all that is
            enough costs far less.
    """
    try:
        scales = _least(epsilon, delta, relation, depth, counts_share)
        spent = scales.epsilon(delta, relation)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"no noise is right for epsilon {epsilon} and delta {delta}: {error}") from None
    if spent < epsilon / 2:  # so little beside delta that the accountant's grid decides
        raise ValueError(f"no noise is right for epsilon {epsilon} and delta {delta}")
    return scales


def _least(epsilon: float, delta: float, relation: Relation, depth: int, counts_share: float) -> ChangScales:
    def scales(noise: float) -> ChangScales:
        return ChangScales(depth, noise * math.sqrt((depth + 1) / counts_share), noise / math.sqrt(1 - counts_share))

    def excess(log_noise: float) -> float:
        spent = scales(math.exp(log_noise)).epsilon(delta, relation)
        return math.log(spent / epsilon) if spent else -math.inf

    high = math.log(scales(1.0).rho(relation)) / 2 - math.log(_zcdp_root(epsilon, delta))
    while excess(high) > 0:
        high += 1
    low = high - 1 / 2
    while excess(low) <= 0:
        low, high = low - 1 / 2, low
    # Nearly a straight line, so this takes few steps.
    noise = optimize.brentq(lambda log_noise: max(excess(log_noise), -1.0), low, high, xtol=TOLERANCE)
    while excess(noise) > 0:
        noise += TOLERANCE
    return scales(math.exp(noise))


def _zcdp_root(epsilon: float, delta: float) -> float:
    """Root of the rho of zero-concentrated DP that gives this epsilon (Bun and Steinke, 2016, proposition 1.3)."""
    root = math.sqrt(-math.log(delta))
    return epsilon / (math.sqrt(root**2 + epsilon) + root)
