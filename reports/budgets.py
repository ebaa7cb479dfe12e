"""The use of contexts' own budgets, in words. Private."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dpaudit.reports.document import Entry
from dpaudit.results import BudgetUse
from dpaudit.results.rounding import bound, nearest


def entries(use: BudgetUse) -> Iterator[Entry]:
    """Yield what each context may spend and did, and what worst-case accounting would charge."""
    yield Entry("Budget of a context, over all tokens of its batch", f"ρ ≤ {bound(use.budget)}")
    if use.smallest < use.budget:
        yield Entry("Smallest share that a context has of it", f"ρ {nearest(use.smallest)}")
    yield Entry(
        "Contexts left out of a draw at least once", f"{use.left_out:,} of {use.contexts:,}"
    )
    least, _, median, _, most = (f"{100 * share:.0f}%" for share in use.spent)
    yield Entry("Spent of it: least, median and most (rounded up)", f"{least}, {median}, {most}")
    charge = "bounds nothing"
    if math.isfinite(use.worst_case):
        times = nearest(use.worst_case / use.budget, 3)
        charge = f"ρ {nearest(use.worst_case)}, {times} times the budget"
    yield Entry("Worst-case accounting for the most tokens of a batch", charge)
    if use.moved:
        moved = f"{100 * use.moved:.0f}% as far as the clip lets any"
        yield Entry("How far those who took part moved draws", moved)
