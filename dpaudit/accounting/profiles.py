"""Privacy profiles put together: of mechanisms that run one after another, or beside each other.

Whatever has the profile delta(e) is dominated by a pair of distributions with that profile, and
several mechanisms by the product of their pairs (docs/composition.md). Here such a pair is its
losses under P, on a grid. Everything is rounded up: to larger losses, to more probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.recursion import placed
from dpaudit.accounting.renyi import (
    TINY,
    ULP,
    Doubles,
    RenyiTable,
    most_variation,
    sum_up,
)

#: Points of the common grid on either side of 0: epsilon comes out less than a thousandth too
#: large.
POINTS = 1 << 12
#: Orders at which Renyi divergences are converted, those of a table aside.
_ORDERS = np.geomspace(1.02, 1e5, 400)
#: Relative room: for orders up to 10^6 times losses up to 10^3 in an exponent; for sums of some
#: 10^4 products; and for a dozen operations.
_CONVERSION_ROOM, _SUM_ROOM, _ROOM = 2.0**-20, 2.0**-36, 2.0**-40
#: The share of delta that a grid may leave out, of all products of a size together.
_TAIL = 1e-4
#: The most rounds that are looked for.
MOST_ROUNDS = 1 << 20


class Profile(NamedTuple):
    """Upper bounds on delta(e) of all neighbours, in both directions.

    Attributes:
        step: of the grid, in nats, positive.
        deltas: at e = 0, step, 2 step, ... [n], two at least. Beyond the last delta is at most that
            one.
    """

    step: float
    deltas: Doubles


#: The profile of outputs that no neighbour changes.
NOTHING = Profile(1.0, np.zeros(2))


class Losses(NamedTuple):
    """Losses of a pair of distributions that dominates a mechanism, under the first of the two.

    Attributes:
        step: of the grid, in nats, positive.
        masses: probabilities of the losses -r .. r times the step [2 r + 1].
        infinite: that of an infinite loss.
    """

    step: float
    masses: Doubles
    infinite: float

    def on(self, step: float) -> Losses:
        """Return the same losses on another grid of POINTS to either side."""
        radius = len(self.masses) // 2
        losses = self.step * np.arange(-radius, radius + 1, dtype=np.float64)
        masses = placed(losses, self.masses, step, upper=True) * (1 + _ROOM)
        return _fit_points(Losses(step, masses, self.infinite))

    def times(self, other: Losses) -> Losses:
        """Return the sum of both independent pairs' losses, on the same grid."""
        return _fit_points(self._product(other))

    def then(self, other: Losses, tail: float) -> Losses:
        """Return the sum of both independent pairs' losses.

        The grid grows until it leaves out no more than `tail` of them.
        """
        coarser = max(self.step, other.step)
        one, two = (each if each.step == coarser else each.on(coarser) for each in (self, other))
        return one._product(two)._fit_grid(tail)

    def _product(self, other: Losses) -> Losses:
        masses = np.convolve(self.masses, other.masses) * (1 + _SUM_ROOM)
        mass = float(other.masses.sum()) * (1 + _SUM_ROOM) + other.infinite
        infinite = self.infinite * mass + other.infinite * float(self.masses.sum()) * (
            1 + _SUM_ROOM
        )
        return Losses(self.step, masses, infinite)

    def _fit_grid(self, tail: float) -> Losses:
        """Return the losses on POINTS to either side, beyond which no more than `tail` lies."""
        radius = len(self.masses) // 2
        beyond = np.cumsum(self.masses[::-1][:radius])
        reach = radius - int(np.searchsorted(beyond, tail, side="right"))
        if reach <= POINTS:
            return _fit_points(self)
        return self.on(grid_to(reach * self.step))

    def profile(self) -> Profile:
        """Return delta(e), at e >= 0 on the grid.

        It is the mean of 1 - exp(e - L) over the losses L above e.
        """
        radius = len(self.masses) // 2
        found = np.convolve(self.masses[radius:], gains(self.step, radius))[radius:] + self.infinite
        return Profile(self.step, found * (1 + _SUM_ROOM) + TINY)


def gains(step: float, points: int) -> Doubles:
    """Return 1 - exp(-L) of the losses L = points * step .. step, 0 [points + 1]."""
    return np.asarray(-np.expm1(-step * np.arange(points, -1, -1)))


def renyi_profile(rho: float, tables: Sequence[RenyiTable], end: float) -> Profile:
    """Return delta(e) by zCDP of rho and tables of divergences together, for e from 0 to `end`.

    e is in nats. It is the best of the conversions at all orders: proposition 12 of Canonne, Kamath
    and Steinke (https://arxiv.org/abs/2004.00010), and the most that the total variation distance
    can be, which is delta(0).
    """
    listed = [table.orders for table in tables]
    orders = np.union1d(_ORDERS, [order for known in listed for order in known])
    orders = orders[orders <= min((known[-1] for known in listed), default=math.inf)]
    bounds = sum((table.at(orders) for table in tables), rho * orders) * (1 + _ROOM)
    step = end / (POINTS - 1)
    losses, logs = np.arange(POINTS) * step, np.zeros(POINTS)
    for order, bound in zip(orders.tolist(), bounds.tolist(), strict=True):
        np.minimum(
            logs,
            (order - 1) * (bound - losses + math.log1p(-1 / order)) - math.log(order),
            out=logs,
        )
    least = most_variation(least_divergence(rho, tables, bounds))
    return Profile(step, np.minimum(np.exp(logs) * (1 + _CONVERSION_ROOM), least) + TINY)


def least_divergence(rho: float, tables: Sequence[RenyiTable], bounds: Doubles) -> float:
    """Return the divergence of order 1 of zCDP of rho and tables together, rounded up.

    Divergences grow with their order, so it is at most each of `bounds`, of all parts together at
    an order above 1 each; and at most the sum of rho and of each table's at its least order.
    """
    lowest = (table.epsilons[0][1] for table in tables)
    return min(float(bounds.min()), sum_up(filter(None, [rho, *lowest])))


def pure_profile(epsilon: float) -> Profile:
    """Return delta(e) of pure events with these nats in all, positive: randomised response's."""
    return Profile(epsilon, np.array([min(1.0, math.tanh(epsilon / 2) * (1 + _ROOM)), 0.0]))


def profile_of_all(parts: Sequence[Losses], end: float) -> Profile:
    """Return the profile of mechanisms together, each dominated by one of the pairs.

    Args:
        parts: of each mechanism, one or more. A mechanism may depend on what others gave, in any
            order and draw by draw.
        end: in nats, positive: where next to nothing is left of the total's delta, so that the grid
            may end a little further on. It can make the profile larger than need be, never too
            small.
    """
    return reduce(Losses.times, (part.on(grid_to(end)) for part in parts)).profile()


def profile_of_rounds(profile: Profile, rounds: int, delta: float) -> Profile:
    """Return the profile of `rounds` mechanisms that each have the profile whatever came before.

    It is found by repeated squaring, on a grid that grows with the losses.

    Args:
        profile: of one of them. Where it ends its delta counts as often as there are rounds.
        rounds: how many, positive.
        delta: in (0, 1), the least that matters.
    """
    if rounds == 1:
        return profile
    power, total, size, left = _dominating_losses(profile), None, 1, rounds
    while left:
        if left & 1:
            total = power if total is None else total.then(power, delta * _TAIL)
        if left := left >> 1:
            size *= 2
            power = power.then(power, delta * _TAIL * size / rounds)
    assert total is not None  # rounds are positive
    return total.profile()


def most_rounds(profile: Profile, delta: float, within: Callable[[Profile], bool]) -> int:
    """Return the most rounds, up to MOST_ROUNDS, whose profile is within; 0 if one is not.

    Args:
        profile: as for `profile_of_rounds`, and so is `delta`.
        delta: see `profile`.
        within: whether a profile is; no longer so once it has stopped to be, up to the grid's
            rounding.
    """
    powers, rounds = [_dominating_losses(profile)], 0
    while within(powers[-1].profile()) and 1 << len(powers) <= MOST_ROUNDS:
        powers.append(powers[-1].then(powers[-1], delta * _TAIL / 2 ** (20 - len(powers))))
    total = None
    for place in reversed(range(len(powers))):
        more = powers[place] if total is None else total.then(powers[place], delta * _TAIL)
        if within(more.profile()):
            total, rounds = more, rounds + (1 << place)
    return min(rounds, MOST_ROUNDS)


def profile_of_both(one: Profile, other: Profile, delta: float) -> Profile:
    """Return the profile of two mechanisms, each of which has its own whatever the other gave."""
    return _dominating_losses(one).then(_dominating_losses(other), delta * _TAIL).profile()


def _dominating_losses(profile: Profile) -> Losses:
    """Return what dominates a profile, on POINTS to either side."""
    found = dominating(profile)
    radius = len(found.masses) // 2
    if radius > POINTS:
        return found.on(grid_to(radius * found.step))
    return _fit_points(found)


def least_of(profiles: Sequence[Profile]) -> Profile:
    """Return the smallest of bounds on the same mechanism, to where the first of them ends."""
    return _pointwise(np.minimum, profiles, min(_end(each) for each in profiles))


def largest_of(profiles: Sequence[Profile]) -> Profile:
    """Return a bound on each of several mechanisms."""
    return _pointwise(np.maximum, profiles, max(_end(each) for each in profiles))


def _end(profile: Profile) -> float:
    return (len(profile.deltas) - 1) * profile.step


def _pointwise(choose: np.ufunc, profiles: Sequence[Profile], end: float) -> Profile:
    if len(profiles) == 1:
        return profiles[0]
    points = min(max(len(each.deltas) for each in profiles), 2 * POINTS)
    step = end / (points - 1)
    at = np.arange(points, dtype=np.float64) * step
    return Profile(step, reduce(choose, [deltas_at(each, at) for each in profiles]))


def deltas_at(profile: Profile, losses: Doubles) -> Doubles:
    """Return upper bounds on delta [m] at losses [m] of at least 0.

    Between grid points they are by chords in exp(e).
    """
    deltas, step = np.minimum.accumulate(profile.deltas), profile.step
    place = np.minimum((losses / step * (1 - _ROOM)).astype(np.int64), len(deltas) - 1)
    following = np.minimum(place + 1, len(deltas) - 1)
    share = np.clip(np.expm1(losses - place * step) / math.expm1(step) * (1 - _ROOM), 0.0, 1.0)
    return np.asarray(deltas[place] - share * (deltas[place] - deltas[following])) * (1 + _ROOM)


def grid_to(end: float) -> float:
    """Return the step of a grid of POINTS that ends a little beyond `end`."""
    return end * 1.125 / POINTS


def epsilon_of_profile(profile: Profile, delta: float) -> float:
    """Return epsilon at delta, in nats, rounded up; infinite if none is found.

    delta(e) lies below its chord in exp(e).
    """
    within = profile.deltas <= delta
    if not within.any():
        return math.inf
    if not (place := int(np.argmax(within))):
        return 0.0
    above, below = profile.deltas[place - 1 : place + 1].tolist()
    share = (above - delta) / (above - below)
    return ((place - 1) * profile.step + math.log1p(share * math.expm1(profile.step))) * (1 + _ROOM)


def dominating(profile: Profile) -> Losses:
    """Return losses whose profile is nowhere below the given one.

    It is linear in exp(e) between grid points, and level beyond the last.
    """
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
    return Losses(step, np.maximum(masses, 0.0) + room, float(values[-1]))


def lower_hull(x: NDArray[np.floating[Any]], y: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Return which points (x, y), x ascending, are corners of the largest convex function below.

    Slopes ascend.
    """
    # Lists of numbers are walked faster than arrays.
    places: list[float] = x.tolist()
    values: list[float] = y.tolist()
    corners: list[int] = []
    slopes: list[float] = []  # of the lines between corners
    for right, (place, value) in enumerate(zip(places, values, strict=True)):
        while corners:
            slope = (value - values[corners[-1]]) / (place - places[corners[-1]])
            if not slopes or slopes[-1] < slope:
                slopes.append(slope)
                break
            slopes.pop()
            corners.pop()
        corners.append(right)
    return np.array(corners, dtype=np.int64)


def _hull(values: Doubles, step: float) -> Doubles:
    """Return the largest function below, convex in exp(e), of values at grid points e [n].

    It is rounded up. A true profile is convex in exp(e), so bounds at two points bound it by the
    chord between them.
    """
    at = np.arange(len(values))
    # Distances in exp(e), in units of the place in the middle, which keeps them within floats.
    down: list[float] = (-np.expm1(-step * at)).tolist()
    with np.errstate(over="ignore"):  # further than any slope reaches
        up: list[float] = np.expm1(step * at).tolist()
    known: list[float] = values.tolist()
    ends: list[int] = []
    for right, value in enumerate(known):
        while len(ends) > 1:
            left, middle = ends[-2:]
            slope = (known[middle] - known[left]) / down[middle - left]
            if slope < (value - known[middle]) / up[right - middle]:
                break
            ends.pop()
        ends.append(right)
    corners = np.array(ends, dtype=np.int64)
    place = np.clip(np.searchsorted(corners, at, side="right"), 1, len(corners) - 1)
    return np.minimum(
        values, _chord(values, step, corners[place - 1], at, corners[place]) * (1 + _ROOM)
    )


_Places: TypeAlias = NDArray[np.int64]


def _chord(values: Doubles, step: float, left: _Places, at: _Places, right: _Places) -> Doubles:
    """Return the lines in exp(e) through two places' values, at places between them."""
    whole = np.expm1((left - right) * step)
    share = np.expm1((at - right) * step) / whole
    rest = np.exp((at - right) * step) * np.expm1((left - at) * step) / whole
    return np.asarray(share * values[left] + rest * values[right])


def _fit_points(losses: Losses) -> Losses:
    """Return the losses on POINTS grid points to either side.

    Larger losses are infinite, and smaller ones the least.
    """
    masses, radius = losses.masses, len(losses.masses) // 2
    if radius <= POINTS:
        return Losses(losses.step, np.pad(masses, POINTS - radius), losses.infinite)
    cut = radius - POINTS
    kept = masses[cut:-cut].copy()
    kept[0] += masses[:cut].sum() * (1 + _SUM_ROOM)
    return Losses(losses.step, kept, losses.infinite + float(masses[-cut:].sum()) * (1 + _SUM_ROOM))
