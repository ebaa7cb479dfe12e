"""The cost of noisy counts of records per cluster, and free choices from them.

Laplace noise is on all counts, before anything is chosen by them; choices are then post-processing.

A record that comes or goes changes one count by 1; an exchanged one changes two, or none. Noise on
the counts of g records' clusters costs most when all g fall into one (docs/budgets.md,
"Rebalancing").
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.neighbors import HALF_STEPS, Relation


def rebalancing_epsilon(scale: float, relation: Relation, records: int = 1) -> float:
    """Return the pure epsilon of Laplace noise on every count, in nats.

    It is added to an ex-post epsilon.

    Args:
        scale: of the noise, in records.
        relation: whether records come and go, or are exchanged.
        records: how many of them one unit has at most.

    Raises:
        ValueError: the scale is not positive, or `records` is below 1.
    """
    _require_positive("scale", scale)
    return math.nextafter(_sensitivity(relation, records) / scale, math.inf)


def rebalancing_scale(epsilon: float, relation: Relation, records: int = 1) -> float:
    """Return the scale of the noise that costs this epsilon: the inverse of `rebalancing_epsilon`.

    Raises:
        ValueError: epsilon is not positive, or `records` is below 1.
    """
    _require_positive("epsilon", epsilon)
    return math.nextafter(_sensitivity(relation, records) / epsilon, math.inf)


def rebalancing_events(epsilon: float, relation: Relation) -> tuple[float, ...]:
    """Return the same cost as events for joint composition.

    One count moves, or, where records are exchanged, two by half.

    Args:
        epsilon: of all counts together, for one unit.
        relation: of records, not of contexts.

    Returns:
        shift / scale of each count that moves; nothing if epsilon is 0.
    """
    if epsilon == 0:
        return ()
    _require_positive("epsilon", epsilon)
    counts = HALF_STEPS[relation]
    return (epsilon / counts,) * counts


def noise_covers(scale: float, epsilon: float, relation: Relation, records: int = 1) -> bool:
    """Return whether Laplace noise of this scale on every count costs this epsilon or less.

    The comparison is exact, without any rounding.

    Raises:
        ValueError: the scale or epsilon is not positive, or `records` is below 1.
    """
    _require_positive("scale", scale)
    _require_positive("epsilon", epsilon)
    return Fraction(scale) * Fraction(epsilon) >= _sensitivity(relation, records)


def kept_by_counts(noisy: NDArray[np.int64], keep: int) -> NDArray[np.int64]:
    """Return each label's centres with the highest noisy counts; ties go to lower indices.

    Args:
        noisy: int64 [labels, k], counts after their noise.
        keep: how many, 1 to k. Public.

    Returns:
        int64 [labels, keep], each row ascending.

    Raises:
        ValueError: `keep` is out of its range.
    """
    centers = noisy.shape[1]
    if not 1 <= keep <= centers:
        raise ValueError(f"keep must be between 1 and the number of centres, {centers}, not {keep}")
    descending = np.argsort(-noisy, axis=1, kind="stable")
    return np.sort(descending[:, :keep], axis=1)


def batches_by_counts(
    noisy: NDArray[np.int64],
    kept: NDArray[np.integer],
    records_per_batch: float,
    most: int,
    least: int = 1,
) -> NDArray[np.int64]:
    """Return how many batches the records of each kept cluster are hashed into.

    Records of a label that were at other centres move to kept ones, so its kept clusters share out
    the noisy number of all its records, in proportion to their own noisy counts.

    Args:
        noisy: int64 [labels, k], counts after their noise.
        kept: int [labels, keep], the centres that are kept.
        records_per_batch: wanted, about, positive.
        most: batches a cluster.
        least: the same, from 1 to `most`.

    Returns:
        int64 [labels, keep], each between `least` and `most`.

    Raises:
        ValueError: `records_per_batch` or `least` is out of its range, or `kept` is of other
            labels.
    """
    if not 0 < records_per_batch < math.inf or not 1 <= least <= most:
        raise ValueError(
            f"records_per_batch {records_per_batch} must be positive, and least {least} 1 to {most}"
        )
    if len(kept) != len(noisy):
        raise ValueError(
            f"{len(kept)} rows of kept centres are not one for each of {len(noisy)} labels"
        )
    weights = np.maximum(np.take_along_axis(noisy, kept, axis=1), 0)
    totals = np.maximum(noisy.sum(axis=1, keepdims=True), 0)
    # Without a positive count among them there is nothing to share out by: the fewest batches each.
    records = (
        totals.astype(np.float64) * weights / np.maximum(weights.sum(axis=1, keepdims=True), 1)
    )
    with np.errstate(over="ignore"):  # an infinite number is more than `most` too
        wanted = np.rint(records / records_per_batch)
    batches: NDArray[np.int64] = np.clip(wanted, least, most).astype(np.int64)
    return batches


def noise_tail(total: int, scale: float, counts: int) -> float:
    """Return the log of an upper bound on the chance of noise this small (Chernoff's), in nats.

    Args:
        total: absolute values of the noise on all counts, added up; Laplace noise that was rounded
            to integers.
        scale: of the noise, in records.
        counts: number of counts.

    Returns:
        log p, p >= P(the sum is `total` or less); 0 where nothing is to be said.

    Raises:
        ValueError: the scale is not positive.
    """
    _require_positive("scale", scale)
    # Any tilt gives a bound; these hold the best one to within a few per cent of its logarithm.
    tilts = np.geomspace(1e-3 / max(scale, 1.0), 60.0, 2000)
    fall = math.exp(-1 / scale)
    beyond = (1 - fall) * math.exp(-0.5 / scale) * np.exp(-tilts) / (1 - fall * np.exp(-tilts))
    moments = -math.expm1(-0.5 / scale) + beyond  # E exp(-tilt |noise|)
    return min(0.0, float((counts * np.log(moments) + tilts * total).min()))


def noise_reach(total: int, scale: float, counts: int) -> float:
    """Return the log of an upper bound on the chance of noise this large (Chernoff's), in nats.

    Args:
        total: the noise on all counts, added up, or its least absolute value; Laplace noise that
            was rounded to integers, or noise with lighter tails.
        scale: of the noise, in records.
        counts: number of counts.

    Returns:
        log p, p >= P(the sum is |total| or more in absolute value); 0 where nothing is to be said.

    Raises:
        ValueError: the scale is not positive.
    """
    _require_positive("scale", scale)
    rise = math.expm1(-1 / scale)
    # Any tilt below 1 / scale gives a bound. These hold the best one closely, for one count and for
    # many.
    shares = np.concatenate([np.geomspace(1e-6, 0.5, 1000), 1 - np.geomspace(0.5, 1e-9, 1000)])
    tilts = shares * min(1 / scale, 500.0)
    up = np.exp(tilts - 0.5 / scale) * (rise / np.expm1(tilts - 1 / scale))
    down = np.exp(-tilts - 0.5 / scale) * (rise / np.expm1(-tilts - 1 / scale))
    moments = -math.expm1(-0.5 / scale) + (up + down) / 2  # E exp(tilt noise)
    logs = counts * np.log(moments) - tilts * abs(total)
    return min(0.0, math.log(2) + float(logs.min()))


def _sensitivity(relation: Relation, records: int) -> int:
    if records < 1:
        raise ValueError(f"records must be at least 1, not {records}")
    return HALF_STEPS[relation] * records


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, not {value}")
