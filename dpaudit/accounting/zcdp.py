"""Tests under zCDP: the exact region of their error rates.

Two numbers are the rates (x, y) of false and true positives of some test about a rho-zCDP
mechanism's output exactly if a coin that shows heads with probability y is as close to one with x,
in both directions and at every order a: by data processing, and as the coins themselves are such a
mechanism's output. The region is convex. Here it is bounded by tangents of its sides, so no
rounding of where they touch matters (docs/mathematics.md, "Secret batches").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.profiles import (
    NOTHING,
    POINTS,
    Profile,
    least_divergence,
    least_of,
    lower_hull,
    renyi_profile,
)
from dpaudit.accounting.recursion import REMOTE
from dpaudit.accounting.renyi import TINY, ULP, Doubles, RenyiTable, most_variation
from dpaudit.accounting.risk import AttackCurve

#: Orders beside 1, at which divergences are those of Kullback and Leibler; rates of false
#: positives; halvings.
_ORDERS = np.geomspace(1.01, 2000.0, 160)
_RATES, _HALVINGS = 640, 30
_FURTHER = 2.0**-10
#: Relative room for a dozen operations, some of which take half of the digits.
_ROOM = 2.0**-30


# Halving takes a fifth of a second, and both levels of a run ask for the same ones again.
@lru_cache(maxsize=16)
def zcdp_profile(rho: float, delta: float) -> Profile:
    """Return delta(e) by rho-zCDP, to where next to nothing is left of the delta asked about."""
    if not rho:
        return NOTHING
    least = max(delta * REMOTE, TINY)
    end = rho + 2 * math.sqrt(-rho * math.log(least))
    step = end / (POINTS - 1)
    found, lines = [renyi_profile(rho, (), end)], _lines(_divergences(rho, ()), least)
    if len(lines.slopes):  # none keep their digits where rho is next to nothing
        found.append(lines.profile(step, POINTS))
    return least_of(found)


def renyi_attacks(rho: float, tables: Sequence[RenyiTable], delta: float) -> AttackCurve:
    """Bound tests by zCDP of rho and tables of divergences together, whatever else is known.

    Args:
        rho: in nats; positive, or there is a table.
        tables: of all parts that rho is not about.
        delta: in (0, 1), the least that matters.

    Raises:
        ValueError: nothing is lost.
    """
    if not (rho or tables):
        raise ValueError("a rho of 0 and no table leave nothing to bound")
    known = _divergences(rho, tables)
    # By order 1 alone, whatever the digits.
    first = np.array([most_variation(known.bounds[0]), 1.0])
    curve = AttackCurve.of_profile(Profile(1.0, first), "zcdp")
    lines = _lines(known, max(delta * REMOTE, TINY))
    return curve.meet(lines) if len(lines.slopes) else curve


class _Divergences(NamedTuple):
    """Bounds on Renyi divergences of neighbours, both ways, in nats, at ascending orders from 1.

    At order 1 it is that of Kullback and Leibler.
    """

    orders: Doubles
    bounds: Doubles


def _divergences(rho: float, tables: Sequence[RenyiTable]) -> _Divergences:
    listed = [table.orders for table in tables]
    orders = np.union1d(_ORDERS, [order for known in listed for order in known])
    orders = orders[orders <= min((known[-1] for known in listed), default=math.inf)]
    bounds = sum((table.at(orders) for table in tables), rho * orders)
    first = least_divergence(rho, tables, bounds)
    return _Divergences(np.append(1.0, orders), np.append(first, bounds))


def _lines(known: _Divergences, least: float) -> AttackCurve:
    """Return tangents of the region of such divergences, for rates down to `least` and further."""
    x = np.geomspace(max(least * _FURTHER, TINY), 0.5, _RATES)[:, None]
    low, high = np.log(x), np.full_like(x, -ULP)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        excess = np.maximum(_excess(np.exp(middle), x, known), _excess(x, np.exp(middle), known))
        inside = excess.max(1, keepdims=True) <= 0
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    lines = [_tangents(x, np.exp(low), known, swapped) for swapped in (False, True)]
    slopes, intercepts = (np.concatenate(each) for each in zip(*lines, strict=True))
    # The rates of a test and of its complement.
    slopes, intercepts = (
        np.concatenate([slopes, 1 / slopes]),
        np.concatenate([intercepts, (1 - (1 - intercepts) / slopes) * (1 + _ROOM)]),
    )
    slopes, places = np.unique(slopes, return_index=True)
    # A mean of two lines is one, too.
    corners = lower_hull(slopes, intercepts[places])[::-1]
    return AttackCurve(slopes[corners], intercepts[places][corners])


def _excess(p: Doubles, q: Doubles, known: _Divergences) -> Doubles:
    """Return how far the logs of coins' moments exceed what divergences allow [n, orders].

    At order 1 it is the divergence itself.
    """
    heads, tails = np.log(p) - np.log(q), np.log1p(-p) - np.log1p(-q)
    less = known.orders[1:] - 1
    moments = np.logaddexp(np.log(p) + less * heads, np.log1p(-p) + less * tails)
    divergence = p * heads + (1 - p) * tails
    return np.concatenate([divergence - known.bounds[0], moments - less * known.bounds[1:]], axis=1)


def _tangents(
    x: Doubles, y: Doubles, known: _Divergences, swapped: bool
) -> tuple[Doubles, Doubles]:
    """Return slopes and intercepts of lines above the region, at points (x, y) [n, 1] of one side.

    They are of the tightest order. Moments are convex in (x, y): no point with a moment of c lies
    beyond the tangent of their level at any other point, moved by what that point's moment is short
    of c. The point need not be on the region's edge.
    """
    p, q = (x, y) if swapped else (y, x)
    excess = _excess(p, q, known)
    at = excess.argmax(1, keepdims=True)
    beyond, order = np.take_along_axis(excess, at, 1), known.orders[at]
    heads, tails = np.log(p) - np.log(q), np.log1p(-p) - np.log1p(-q)
    one = np.log(p) + (order - 1) * heads
    share = np.exp(one - np.logaddexp(one, np.log1p(-p) + (order - 1) * tails))
    plain = order == 1
    with np.errstate(over="ignore"):  # an infinite one leaves a line that is of no use
        short = np.where(plain, -beyond, np.expm1(-beyond))
    # The rounding of the logs of either side, and so of the moment.
    of_heads = 8 * ULP * (order * (abs(np.log(p)) + abs(np.log(q))) + 1)
    of_tails = 8 * ULP * (order * (abs(np.log1p(-p)) + abs(np.log1p(-q))) + 1)
    weight = np.where(plain, p, share)
    off = (
        weight * of_heads
        + (1 - weight) * of_tails
        + 8 * ULP * (order * known.bounds[at] + abs(beyond))
    )
    p_terms = (
        np.where(plain, heads, order * share / p),
        np.where(plain, tails, order * (1 - share) / (1 - p)),
    )
    q_terms = (
        np.where(plain, p / q, (order - 1) * share / q),
        np.where(plain, (1 - p) / (1 - q), (order - 1) * (1 - share) / (1 - q)),
    )
    by_p, by_q = p_terms[0] - p_terms[1], q_terms[1] - q_terms[0]
    # Differences that have kept their digits: a slope that is off by a little lies below the one
    # that is rounded up.
    kept = np.ones_like(plain)
    for (first, second), found in ((p_terms, by_p), (q_terms, by_q)):
        kept &= (abs(first) + abs(second)) * 2 * (of_heads + of_tails) + np.where(
            plain, of_heads, 0
        ) <= abs(found) * _ROOM / 8
    by_x, by_y = (by_p, by_q) if swapped else (by_q, by_p)
    with np.errstate(all="ignore"):  # what is not finite is of no use
        slopes = -by_x / by_y
        intercepts = (
            y + (short + off) / by_y - slopes * x + _ROOM * (y + slopes * x + abs(short / by_y))
        )
        useful = (
            kept
            & (by_y > 0)
            & (by_x < 0)
            & np.isfinite(intercepts)
            & np.isfinite(slopes)
            & (slopes > 0)
        )
    return slopes[useful] * (1 + _ROOM), intercepts[useful]
