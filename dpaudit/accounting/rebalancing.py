"""What noisy counts of records per cluster cost: Laplace noise on all of them, before anything is chosen by them.

A record that comes or goes changes one count by 1; an exchanged one changes two, or none. Noise on the counts of g
records' clusters costs most when all g fall into one (docs/budgets.md, "Rebalancing").
"""

from __future__ import annotations

import math

from dpaudit.accounting.medians import HALF_STEPS, Relation


def rebalancing_epsilon(scale: float, relation: Relation, records: int = 1) -> float:
    """Pure epsilon of Laplace noise of this scale on every count, in nats: what is added to an ex-post epsilon.

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
    """The scale of the noise that costs this epsilon: `rebalancing_epsilon`, the other way.

    Raises:
        ValueError: epsilon is not positive, or `records` is below 1.
    """
    _require_positive("epsilon", epsilon)
    return math.nextafter(_sensitivity(relation, records) / epsilon, math.inf)


def rebalancing_events(epsilon: float, relation: Relation) -> tuple[float, ...]:
    """The same cost as events for joint composition: one count moves, or, where records are exchanged, two by half.

    Args:
        epsilon: of all counts together, for one unit.
        relation: of records, not of contexts.

    Returns:
        shift / scale of each count that moves; nothing where epsilon is 0.
    """
    if epsilon == 0:
        return ()
    _require_positive("epsilon", epsilon)
    counts = HALF_STEPS[relation]
    return (epsilon / counts,) * counts


def _sensitivity(relation: Relation, records: int) -> int:
    if records < 1:
        raise ValueError(f"records must be at least 1, not {records}")
    return HALF_STEPS[relation] * records


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, not {value}")
