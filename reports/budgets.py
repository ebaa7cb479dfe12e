"""The use of contexts' own budgets: figures, words for a drawing, and its points. Private."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dpaudit.reports.costs import MOST_DRAWN
from dpaudit.reports.document import Entry
from dpaudit.results import BudgetUse
from dpaudit.results.rounding import bound, nearest

#: The last digit of a share.
_FINEST = 0.001


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


def took_part(use: BudgetUse) -> str:
    """Return the shares of contexts that took part, by position, in words; empty without a draw."""
    if not use.position:
        return ""
    first, last, first_fewest, last_fewest = (
        _share(share) for share in (use.active[0], use.active[-1], use.fewest[0], use.fewest[-1])
    )
    return (
        f"Of the contexts of all batches, {first} took part at the first position and {last} at "
        "the last "
        f"({use.position[-1]:,}); in the batch where fewest did, {first_fewest} and {last_fewest}."
    )


def thinned(use: BudgetUse) -> tuple[list[int], list[float], list[float]]:
    """Return up to MOST_DRAWN points: positions, mean shares, and the least batch's shares.

    The means are over all batches. Where there are more positions, neighbours share a point at the
    last of them.
    """
    count = len(use.position)
    step = max(1, -(-count // MOST_DRAWN))
    groups = [slice(start, min(start + step, count)) for start in range(0, count, step)]

    def mean(shares: Sequence[float]) -> float:
        return math.fsum(shares) / len(shares)

    return (
        [use.position[group][-1] for group in groups],
        [mean(use.active[group]) for group in groups],
        [min(use.fewest[group]) for group in groups],
    )


def _share(share: float) -> str:
    """Return a share in percent, by which nobody and everybody can be told from few and most."""
    if 0 < share < _FINEST:
        return f"under {100 * _FINEST:g}%"
    if 1 - _FINEST < share < 1:
        return f"over {100 - 100 * _FINEST:g}%"
    return f"{100 * share:.0f}%" if share in (0, 1) else f"{100 * share:.1f}%"
