"""The share of its budget that each context may spend, where it is not the same for all.

A user's contexts share one budget, and what was spent in earlier runs is gone. Both follow from the
payer's own records alone, so that nobody's share tells of another's records.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from dpaudit.runs.assignment import Assigned


def allowances(assignment: Iterable[Assigned], budget: float) -> dict[int, tuple[float, ...]]:
    """Return what contexts may spend in a run of "hashed-records", by batch.

    m contexts of one payer in one batch move its draws together, which costs up to m times the sum
    of what each would cost (Cauchy and Schwarz). What a payer has left is therefore parted evenly
    over all its contexts in the run, and each part by m (docs/budgets.md, "Individual budgets").

    Args:
        assignment: every record's place, in the run's order.
        budget: of one payer, in nats of rho.

    Returns:
        [n] shares of each batch, in the order of its contexts, in nats of rho. They are rounded
            down, so that they never add up to more than what is left. 0 where nothing is left.
    """
    placed = [
        (assigned.batch, assigned.payer, assigned.spent)
        for assigned in assignment
        if assigned.batch is not None
    ]
    in_all = Counter(payer for _, payer, _ in placed)
    in_batch = Counter((batch, payer) for batch, payer, _ in placed)
    found: defaultdict[int, list[float]] = defaultdict(list)
    for batch, payer, spent in placed:
        share = budget
        if spent:
            share = math.nextafter(share - spent, 0.0)
        parts = in_all[payer] * in_batch[batch, payer]
        if parts > 1:
            share = math.nextafter(share / parts, 0.0)
        found[batch].append(max(0.0, share))
    return {batch: tuple(shares) for batch, shares in found.items()}
