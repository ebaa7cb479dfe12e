"""Data-dependent ex-post cost of sampled tokens, per step, batch and run (the paper's Theorem 1)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from dpaudit.accounting.medians import Floats, bounds_from_central
from dpaudit.accounting.neighbors import ContextChange


def theorem1_cost(lower: Floats, center: Floats, upper: Floats, token: int, temperature: float) -> float:
    """gamma of one step, in nats (the paper, Definition "per-token privacy cost").

    Both directions of the log-ratio between the step's distribution and any neighbour's lie below it.

    Args:
        lower, center, upper: [S] bounds on neighbouring medians, and the median that was sampled from.
        token: index of the sampled token in these vectors.
        temperature: tau > 0.

    Raises:
        ValueError: a value is not finite, the vectors are not in order, the token is not among them, or the
            temperature is not positive: no bound follows from such a record.
    """
    if not 0 <= token < len(center):
        raise ValueError(f"token {token} is not among the {len(center)} tokens")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    low, mid, high = (np.asarray(v, dtype=np.float64) / temperature for v in (lower, center, upper))
    if not all(np.isfinite(v).all() for v in (low, mid, high)):
        raise ValueError("a bound on the median is not a finite number")
    if not ((low <= mid).all() and (mid <= high).all()):
        raise ValueError("the median does not lie between its bounds")
    lse_mid = _log_sum_exp(mid)
    log_inverse_alpha = high[token] - mid[token] + lse_mid - _log_sum_exp(low)
    log_beta = mid[token] - low[token] + _log_sum_exp(high) - lse_mid
    return float(max(log_inverse_alpha, log_beta))


def _log_sum_exp(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    largest = values.max()
    return float(largest + np.log(np.exp(values - largest).sum()))


def rounding_allowance(lower: Floats, upper: Floats, temperature: float) -> float:
    """How far float64 may put a step's cost below its true value, in nats.

    Scaled logits of size R are off by R * 2^-53, a sum of S exponentials by some (R + log S) * 2^-53, and a sampler
    that adds up S weights draws each token with a probability that is off by S * 2^-53, for this data set and for its
    neighbour. The factors below are generous.
    """
    largest = float(max(-lower.min(), upper.max(), 0.0)) / temperature
    return (16 * largest + 4 * len(lower) + 64) * 2.0**-53


class ExPostAccountant:
    """Adds up a run's ex-post epsilon, a step at a time.

    A unit's difference changes the contexts of a batch in one of several ways (`ContextChange`). A batch costs the
    sum of its tokens; a run costs the worst batch, or the worst few where one difference reaches several batches
    (parallel composition over disjoint batches). The worst way counts. Every figure is rounded up.
    """

    def __init__(self, changes: Sequence[ContextChange], temperature: float) -> None:
        """Raises ValueError when `changes` is empty: then no bound is known and no sum means anything."""
        if not changes:
            raise ValueError("no way of changing contexts is given, so nothing bounds the cost")
        self._changes = tuple(changes)
        self._temperature = temperature
        self._sums: dict[ContextChange, defaultdict[int, float]] = {c: defaultdict(float) for c in self._changes}

    def charge(self, batch: int, central: Floats, token: int) -> float:
        """Add one step and return its cost in nats.

        Args:
            batch: batch id.
            central: [2w + n % 2, S] central order statistics.
            token: index of the sampled token along S.

        Raises:
            ValueError: `central` holds a value that is not finite, or is too narrow for the changes.
        """
        worst = 0.0
        for change in self._changes:
            lower, center, upper = bounds_from_central(central, change.relation, change.contexts)
            cost = theorem1_cost(lower, center, upper, token, self._temperature)
            cost += rounding_allowance(lower, upper, self._temperature)
            self._sums[change][batch] = math.nextafter(self._sums[change][batch] + cost, math.inf)
            worst = max(worst, cost)
        return worst

    def batch_epsilon(self, batch: int) -> float:
        """What one batch has cost so far: the worst way of changing its contexts, in nats."""
        return max(self._sums[change].get(batch, 0.0) for change in self._changes)

    @property
    def epsilon(self) -> float:
        """What the run has cost so far, in nats."""
        return max(self._worst(change) for change in self._changes)

    def _worst(self, change: ContextChange) -> float:
        costs = sorted(self._sums[change].values(), reverse=True)
        total = sum(costs[: change.batches])
        return math.nextafter(total, math.inf) if change.batches > 1 else total
