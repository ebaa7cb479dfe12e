"""What each context may spend of its budget, where that is not the same for all: by the assignment alone.

A user's contexts share one budget, and what was spent in earlier runs is gone. Both follow from the payer's own records
and from nothing else, so that nobody's share tells of another's records.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from dpaudit.runs.assignment import Assigned


def allowances(assignment: Iterable[Assigned], budget: float) -> dict[int, tuple[float, ...]]:
    """What contexts may spend in a run of "hashed-records", by batch: [n], in the order of the batch's contexts.

    m contexts of one payer in one batch move its draws together, which costs up to m times the sum of what each would
    cost (Cauchy and Schwarz). What a payer has left is therefore parted evenly over all its contexts in the run, and
    each part by m (docs/budgets.md, "Individual budgets").

    Args:
        assignment: every record's place, in the run's order.
        budget: of one payer, in nats of rho.

    Returns:
        Shares rounded down, so that they never add up to more than what is left. 0 where nothing is.
    """
    placed = [(assigned.batch, assigned.payer, assigned.spent) for assigned in assignment if assigned.batch is not None]
    in_all = Counter(payer for _, payer, _ in placed)
    in_batch = Counter((batch, payer) for batch, payer, _ in placed)
    found: defaultdict[int, list[float]] = defaultdict(list)
    for batch, payer, spent in placed:
        left = math.nextafter(budget - spent, 0.0) if spent else budget
        parts = in_all[payer] * in_batch[batch, payer]
        found[batch].append(max(0.0, math.nextafter(left / parts, 0.0) if parts > 1 else left))
    return {batch: tuple(shares) for batch, shares in found.items()}
