"""Privacy profiles put together: of mechanisms that run one after another, or beside each other.

Whatever has the profile delta(e) is dominated by a pair of distributions with that profile, and several mechanisms by
the product of their pairs (docs/composition.md). Here such a pair is its losses under P, on a grid. Everything is
rounded up: to larger losses, to more probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.composition import TINY, ULP, Doubles, placed
from dpaudit.accounting.renyi import RenyiTable

#: Points of the common grid on either side of 0: epsilon comes out less than a thousandth above what they stand for.
POINTS = 1 << 12
#: Orders at which Renyi divergences are converted, those of a table aside.
_ORDERS = np.geomspace(1.02, 1e5, 400)
#: Relative room: for orders up to 10^6 times losses up to 10^3 in an exponent; for sums of some 10^4 products; and for
#: a dozen operations.
_CONVERSION_ROOM, _SUM_ROOM, _ROOM = 2.0**-20, 2.0**-36, 2.0**-40


@dataclass(frozen=True)
class Profile:
    """Upper bounds on delta(e) of all neighbours, in both directions.

    Attributes:
        step: of the grid, in nats, positive.
        deltas: at e = 0, step, 2 step, ... [n], two at least. Beyond the last delta is at most that one.
    """

    step: float
    deltas: Doubles


@dataclass(frozen=True)
class _Losses:
    """Probabilities of the losses -r .. r times a step [2 r + 1], and of an infinite one."""

    masses: Doubles
    infinite: float


def renyi_profile(rho: float, tables: Sequence[RenyiTable], end: float) -> Profile:
    """What zCDP of rho and tables of divergences together say of delta(e), for e from 0 to `end`, in nats.

    The best of the conversions at all orders: proposition 12 of Canonne, Kamath and Steinke
    (https://arxiv.org/abs/2004.00010), and the inequality of Bretagnolle and Huber.
    """
    listed = [table.orders for table in tables]
    orders = np.union1d(_ORDERS, [order for known in listed for order in known])
    orders = orders[orders <= min((known[-1] for known in listed), default=math.inf)]
    bounds = sum((table.at(orders) for table in tables), rho * orders) * (1 + _ROOM)
    step = end / (POINTS - 1)
    losses, logs = np.arange(POINTS) * step, np.zeros(POINTS)
    for order, bound in zip(orders.tolist(), bounds.tolist(), strict=True):
        np.minimum(logs, (order - 1) * (bound - losses + math.log1p(-1 / order)) - math.log(order), out=logs)
    least = math.sqrt(-math.expm1(-float(bounds.min())))  # of the total variation distance, which is delta(0)
    return Profile(step, np.minimum(np.exp(logs), least) * (1 + _CONVERSION_ROOM) + TINY)


def epsilon_of_all(profiles: Sequence[Profile], delta: float, end: float) -> float:
    """epsilon at delta of one or more mechanisms together, each of which has one of the profiles.

    Args:
        profiles: of each. What one does may depend on what others gave, in any order and draw by draw.
        delta: in (0, 1).
        end: in nats, positive: where next to nothing is left of the total's delta, so that the grid may end a little
            further on. It can make the answer larger than need be, never too small.

    Returns:
        An upper bound in nats; infinite where none is found up to there.
    """
    step = end * 1.125 / POINTS
    together = reduce(_product, (_on_grid(_dominating(profile), profile.step, step) for profile in profiles))
    # delta(e) is the mean of 1 - exp(e - L) over the losses L above e.
    above = -np.expm1(-step * np.arange(POINTS, -1, -1))
    found = np.convolve(together.masses[POINTS:], above)[POINTS:] + together.infinite
    within = found * (1 + _SUM_ROOM) + TINY <= delta
    return math.nextafter(int(np.argmax(within)) * step * (1 + _ROOM), math.inf) if within.any() else math.inf


def _dominating(profile: Profile) -> _Losses:
    """Losses whose profile is nowhere below: linear in exp(e) between grid points, and level beyond the last."""
    step, above = profile.step, np.minimum(np.minimum.accumulate(profile.deltas), 1.0)
    at = np.arange(len(above)) * step
    below = np.exp(-at) * above - np.expm1(-at)  # delta(-e) by symmetry
    values = _hull(np.concatenate([below[:0:-1], above]), step)
    # Where the slope changes there is probability. On the left the line comes from 1 at exp(e) = 0.
    growth, rise = math.exp(step), math.expm1(step)
    drops = -np.diff(values, append=values[-1])
    masses = (growth * np.concatenate([[0.0], drops[:-1]]) - drops) / rise
    masses[0] = 1 - values[0] - drops[0] / rise
    left, right = np.concatenate([[1.0], values[:-1]]), np.concatenate([values[1:], values[-1:]])
    room = 16 * ULP * (growth * left + (1 + growth) * values + right) / rise
    room[0] += 16 * ULP
    return _Losses(np.maximum(masses, 0.0) + room, float(values[-1]))


def _hull(values: Doubles, step: float) -> Doubles:
    """The largest function below, convex in exp(e), of values at grid points e [n]; rounded up.

    A true profile is convex in exp(e), so what bounds it at two points bounds it by the chord between them.
    """
    corners: list[int] = []
    for right in range(len(values)):
        while len(corners) > 1:
            left, middle = corners[-2:]
            if values[middle] < _chord(values, step, left, middle, right):
                break
            corners.pop()
        corners.append(right)
    ends, at = np.array(corners), np.arange(len(values))
    place = np.clip(np.searchsorted(ends, at, side="right"), 1, len(ends) - 1)
    return np.minimum(values, _chord(values, step, ends[place - 1], at, ends[place]) * (1 + _ROOM))


_Place = int | NDArray[np.int64]


def _chord(values: Doubles, step: float, left: _Place, at: _Place, right: _Place) -> Doubles:
    """At a place between two others, of the line in exp(e) through their values."""
    whole = np.expm1((left - right) * step)
    share = np.expm1((at - right) * step) / whole
    rest = np.exp((at - right) * step) * np.expm1((left - at) * step) / whole
    return np.asarray(share * values[left] + rest * values[right])


def _on_grid(losses: _Losses, own: float, step: float) -> _Losses:
    """The same on the common grid."""
    radius = len(losses.masses) // 2
    masses = placed(own * np.arange(-radius, radius + 1, dtype=np.float64), losses.masses, step, upper=True)
    return _within(masses * (1 + _ROOM), losses.infinite)


def _product(one: _Losses, other: _Losses) -> _Losses:
    """Losses of independent pairs add up."""
    masses = np.convolve(one.masses, other.masses) * (1 + _SUM_ROOM)
    mass = float(other.masses.sum()) * (1 + _SUM_ROOM) + other.infinite
    infinite = one.infinite * mass + other.infinite * float(one.masses.sum()) * (1 + _SUM_ROOM)
    return _within(masses, infinite)


def _within(masses: Doubles, infinite: float) -> _Losses:
    """The same on POINTS grid points to either side: larger losses are infinite, and smaller ones the least."""
    radius = len(masses) // 2
    if radius <= POINTS:
        return _Losses(np.pad(masses, POINTS - radius), infinite)
    cut = radius - POINTS
    kept = masses[cut:-cut].copy()
    kept[0] += masses[:cut].sum() * (1 + _SUM_ROOM)
    return _Losses(kept, infinite + float(masses[-cut:].sum()) * (1 + _SUM_ROOM))
