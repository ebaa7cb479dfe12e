"""The use of contexts' own budgets, in words, in a table and thinned for a figure.

All of it is private.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpaudit.reports.costs import MOST_DRAWN
from dpaudit.results import BudgetUse
from dpaudit.results.rounding import bound, nearest

#: The last digit of a share.
_FINEST = 0.001


def described(use: BudgetUse) -> str:
    """Return in words the contexts, their budgets and spending, and the worst-case accounting.

    The latter is what it would have charged.
    """
    one = use.contexts == 1
    may = "The only context may" if one else f"Each of {use.contexts:,} contexts may"
    most = f"rho\u00a0{bound(use.budget)}"
    if use.smallest < use.budget:
        most = f"its share of {most}, which is at least {nearest(use.smallest)},"
    return (
        f"{may} spend {most} over all tokens of its batch. {_spent(use)} (rounded up); "
        f"{_left_out(use)}. {_worst_case(use)}"
    )


def took_part(use: BudgetUse) -> str:
    """Return in words the shares of contexts that took part, by position, or "" without draws."""
    if not use.position:
        return ""
    (first, last), (first_fewest, last_fewest) = (
        [_share(share) for share in (shares[0], shares[-1])] for shares in (use.active, use.fewest)
    )
    if len(use.position) == 1:
        where = "the only draw of their batch; in the batch where fewest did"
        return f"{first} of the contexts took part in {where}, {first_fewest}."
    falls = {_first_below(use, share): words for share, words in ((1.0, "fewer than all"), (0.5, "fewer than half"))}
    reached = ", ".join(f"{words} at position {place:,}" for place, words in falls.items() if place is not None)
    return (
        f"Of the contexts of all batches, {first} took part at the first position and {last} at the last "
        f"({use.position[-1]:,}); in the batch where fewest did, {first_fewest} and {last_fewest}."
    ) + f" For the first time, {reached}." * bool(reached)


def thinned(use: BudgetUse) -> tuple[list[int], list[float], list[float]]:
    """Return up to MOST_DRAWN points: positions, mean shares, and the least batch's shares.

    The means are over all batches.

    If there are more, neighbours share a point at the last of them: the mean share, and the least
    one.
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
    """Return a share in percent, in which none and all differ from few and most."""
    if 0 < share < _FINEST:
        return f"under {100 * _FINEST:g}%"
    if 1 - _FINEST < share < 1:
        return f"over {100 - 100 * _FINEST:g}%"
    return f"{100 * share:.0f}%" if share in (0, 1) else f"{100 * share:.1f}%"


def _first_below(use: BudgetUse, share: float) -> int | None:
    """Return the first position at which a smaller share took part, over all batches."""
    return next((place for place, active in zip(use.position, use.active, strict=True) if active < share), None)


def _spent(use: BudgetUse) -> str:
    least, _, median, _, most = (f"{100 * share:.0f}%" for share in use.spent)
    if use.contexts == 1:
        return f"It has spent {most} of that"
    return f"The median context has spent {median} of that, the least {least}, the most {most}"


def _left_out(use: BudgetUse) -> str:
    who = f"{use.left_out:,} were"
    if use.left_out == use.contexts:
        who = "it was" if use.contexts == 1 else "all of them were"
    elif use.left_out < 2:
        who = "one was" if use.left_out else "none was"
    return f"{who} left out of {'a draw at least once' if use.left_out else 'any draw'}"


def _worst_case(use: BudgetUse) -> str:
    """Say how much more worst-case accounting would have charged, and why."""
    if not math.isfinite(use.worst_case):
        return "Worst-case accounting would bound nothing."
    said = (
        f"Worst-case accounting would charge rho\u00a0{nearest(use.worst_case)} a context for the most tokens that a "
        f"batch may have, {nearest(use.worst_case / use.budget, 3)} times the budget"
    )
    moved = f": those who took part moved draws {100 * use.moved:.0f}% as far as the clip lets any"
    return said + moved * bool(use.moved) + "."
