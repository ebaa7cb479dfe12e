"""The release-level guarantee: what readers learn who do not know which batch a record was in.

A keyed hash puts each record into one of B batches, uniformly and in secret. Let (P, Q) dominate
one batch with and without her record, and let g of the B batches be generated. Then the whole
release is dominated by the pair

    (g / B) * mean over j <= g of [P in place j, Q in the others] + (1 - g / B) Q^g
    against Q^g

whose likelihood ratio under Q^g is X = (L_1 + ... + L_g + B - g) / B, for independent L = dP/dQ
under Q. With put(a) = E max(0, a - X), both directions follow:

    added:   delta(e) = E max(0, 1 - exp(e) X) = exp(e) put(exp(-e))
    removed: delta(e) = 1 - exp(e) + put(exp(e))

Both grow with every mean-preserving spread of an L, so each atom of L is split between two points
of a linear grid, and the law of the sum is a power, by Fourier transforms with a certified error.
docs/mathematics.md has the proofs (random allocation: https://arxiv.org/abs/2502.08202; for DP-SGD,
Chua et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.profiles import POINTS, Profile, deltas_at, lower_hull
from dpaudit.accounting.renyi import TINY, ULP, Doubles, sum_up

#: The widest floats of the machine. Where a long double is a double, bounds stay sound and reach
#: less far.
Wide: TypeAlias = NDArray[np.longdouble]

#: Points of the linear grid of likelihood ratios: for the answer, and for a first look at its end.
GRID, COARSE_GRID = 1 << 17, 1 << 13
#: The profile ends, in nats, between these two, at this share of the delta that is asked about.
_NEAREST, _FURTHEST, _REMOTE = 0.25, 40.0, 0.25
#: On a finer grid of losses, exponentials run into each other.
FINEST = 2.0**-30
#: Half the last place of a number; and relative room for sums over a grid and for powers of up to
#: MOST_BATCHES.
_UNIT = float(np.finfo(np.longdouble).eps) / 2
MOST_BATCHES = 1 << 20
_SUM = 16 * MOST_BATCHES * _UNIT


def allocated(profile: Profile, batches: int, generated: int, delta: float) -> Profile:
    """Bound the release-level profile of one round: a batch's profile under a secret batch.

    Args:
        profile: of one batch, for all neighbours in both directions.
        batches: B, the number of batches of the record's group; positive. More than MOST_BATCHES
            count as so many.
        generated: g, how many of them are generated, from 0 to B.
        delta: in (0, 1); the least that matters. The result ends where it comes to a part of this.

    Returns:
        Upper bounds in both directions, nowhere above the batch's own profile. With one batch it is
        that profile.

    Raises:
        ValueError: a number is out of its range.
    """
    if not batches >= 1 or not 0 <= generated <= batches:
        raise ValueError(f"{generated} of {batches} batches cannot be generated")
    # Fewer batches, of which as many are generated or all, cover more (docs/mathematics.md, "Secret
    # batches").
    batches = min(batches, MOST_BATCHES)
    generated = min(generated, batches)
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta}")
    if batches == 1 and generated == 1:
        return profile
    if generated == 0:
        return Profile(profile.step, np.zeros(2))
    if not FINEST < profile.step < _FURTHEST:  # next to nothing is lost, or everything
        return profile
    kept = Profile(profile.step, profile.deltas[: int(2 * _FURTHEST / profile.step) + 2])
    ratios, most = _ratios(kept), (len(kept.deltas) - 1) * kept.step
    total = _Sum.of(ratios, batches, generated, _end(ratios, batches, generated, delta, most), GRID)
    step = total.end / (POINTS - 1)
    at: Doubles = np.arange(POINTS, dtype=np.float64) * step
    return Profile(
        step, np.minimum(np.minimum.accumulate(total.deltas(at)), deltas_at(profile, at))
    )


def _end(ratios: _Ratios, batches: int, generated: int, delta: float, most: float) -> float:
    """Return the loss at which delta is a small part of the delta that is asked about.

    It ends earlier at the least delta that the transforms can show.
    """
    end, furthest = min(_NEAREST, most), min(most, _FURTHEST)
    looks: list[tuple[float, float]] = []
    points = COARSE_GRID
    while True:
        found = float(_Sum.of(ratios, batches, generated, end, points).deltas(np.array([end]))[0])
        if points == COARSE_GRID and looks and found > looks[-1][0]:
            points = GRID  # so far an end is beyond a coarse grid, which shows more than there is
            continue
        looks.append((found, end))
        if looks[-1][0] <= _REMOTE * delta:
            return end
        if end >= furthest:
            return min(looks)[1]
        end = min(2 * end, furthest)


def allocated_cost(costs: Doubles, batches: int) -> float:
    """Bound the release-level ex-post epsilon of one group's texts in one round.

    The group's log-ratio is log((1 / B) (sum over b of exp(l_b) + B - g)) for someone who knows all
    other records and their batches, but not hers. l_b lies in [-fall_b, rise_b] where she would
    come to batch b, and in [-rise_b, fall_b] where she was in it and goes.

    Args:
        costs: exact rise and fall [g, 2] of the group's generated batches, for one context that
            comes or goes, in nats.
        batches: B, at least g.

    Returns:
        The larger of both directions, over her being in no batch and in each of them; in nats,
        rounded up.

    Raises:
        ValueError: there are more costs than batches, or a cost is negative or not a number.
    """
    generated = len(costs)
    if not generated <= batches or not (costs >= 0).all():
        raise ValueError("costs are at least 0, of as many batches as the group has or fewer")
    if not np.isfinite(costs).all():
        return math.inf
    if not generated:
        return 0.0
    rise, fall = costs[:, 0], costs[:, 1]
    rest = np.array([math.log(batches - generated) if generated < batches else -math.inf])
    found = [0.0]
    for come, gone, sign in ((rise, fall, 1), (-fall, -rise, -1)):
        # Of those before and after each, so that its own goes without a difference.
        before = np.logaddexp.accumulate(np.concatenate([rest, come]))
        after = np.logaddexp.accumulate(np.concatenate([[-math.inf], come[::-1]]))[::-1]
        own = np.logaddexp(np.logaddexp(before[:-1], after[1:]), gone)
        found += [
            sign * (float(before[-1]) - math.log(batches)),
            float((sign * (own - math.log(batches))).max()),
        ]
    largest = float(costs.max()) + math.log(batches)
    return max(found) + (generated + 8) * 4 * ULP * (1 + largest)


def release_cost(costs: Mapping[tuple[int, int], Doubles], batches: Mapping[int, int]) -> float:
    """Bound the release-level ex-post epsilon of a run's texts, in nats, without clusters.

    It is rounded up.

    A record is in one group, and in one batch of it a round: her group's rounds add up, and the
    costliest group counts.

    Args:
        costs: by (round, group), what `allocated_cost` takes.
        batches: B of each group in a round.

    Raises:
        ValueError: as `allocated_cost` does, or a group's B is not said.
    """
    if unsaid := {group for _, group in costs} - set(batches):
        raise ValueError(f"how many batches has group {min(unsaid)}?")
    by_group: dict[int, list[float]] = {}
    for (_, group), known in costs.items():
        by_group.setdefault(group, []).append(allocated_cost(known, batches[group]))
    return max(map(sum_up, by_group.values()), default=0.0)


class _Ratios(NamedTuple):
    """The law of a batch's likelihood ratio dP/dQ under Q.

    Values [n] ascend from 0, and have probabilities [n].
    """

    values: Wide
    masses: Wide


def _ratios(profile: Profile) -> _Ratios:
    """Find a pair whose profile is nowhere below the one that is given.

    A true profile is convex in a = exp(e), so chords between bounds are bounds. Up to a = 1 it is
    kept as put(a) = a delta(-log a), beyond as delta: neither loses its digits to a difference with
    1.
    """
    n = len(profile.deltas)
    room = np.longdouble(64 * n * _UNIT)
    deltas = np.minimum(np.minimum.accumulate(profile.deltas), 1.0).astype(np.longdouble) * (
        1 + room
    )
    above = np.exp(np.arange(n) * np.longdouble(profile.step))
    below, zero = (1 / above)[::-1], np.zeros(1, np.longdouble)
    left = _corners(np.concatenate([zero, below]), np.concatenate([zero, below * deltas[::-1]]))
    right = _corners(above, deltas)
    under, over = (
        _slopes(*left),
        -_slopes(*right),
    )  # P(L < a) between corners up to 1, P(L > a) beyond
    if under[-1] + over[0] <= 1:
        masses = np.concatenate(
            [np.diff(under, prepend=zero), [1 - under[-1] - over[0]], -np.diff(over, append=zero)]
        )
        values = np.concatenate([left[0][:-1], right[0]])
    else:
        values, masses = _bridged(left, right)
    # Rounding beyond 1 moves the profile by less than `room`, which a ratio of 0 instead of another
    # one makes up for.
    largest = int(np.argmax(masses[1:])) + 1
    moved = min(room, masses[largest])
    masses[0] += moved
    masses[largest] -= moved
    return _Ratios(np.asarray(values * (1 - 16 * _UNIT)), np.asarray(masses, np.longdouble))


def _bridged(left: tuple[Wide, Wide], right: tuple[Wide, Wide]) -> tuple[Wide, Wide]:
    """Return values and masses of bounds that are not convex at 1, bridged there.

    A line over that point takes the place of the corners about it.
    """
    (x, put), (above, delta) = left, right
    under, over, zero = _slopes(x, put), -_slopes(above, delta), np.zeros(1, np.longdouble)
    i, j = len(x) - 2, 1
    while True:
        width = above[j] - x[i]
        slope, rest = (
            (delta[j] + (above[j] - 1) - put[i]) / width,
            (1 - x[i] + put[i] - delta[j]) / width,
        )
        if i and slope <= under[i - 1]:
            i -= 1
        elif j < len(over) and rest <= over[j]:
            j += 1
        else:
            break
    lower, higher = np.append(under[:i], slope), np.concatenate([[rest], over[j:]])
    values = np.concatenate([x[: i + 1], above[j:]])
    return values, np.concatenate([np.diff(lower, prepend=zero), -np.diff(higher, append=zero)])


def _corners(x: Wide, y: Wide) -> tuple[Wide, Wide]:
    """Return the corners of the largest convex function below the points."""
    places = lower_hull(x, y)
    return x[places], y[places]


def _slopes(x: Wide, y: Wide) -> Wide:
    """Return the slopes of the lines between corners."""
    return np.diff(y) / np.diff(x)


@dataclass(frozen=True)
class _Power:
    """The law of a sum of independent ratios on the grid, below its end [n].

    Its error is in l1.
    """

    masses: Wide
    error: float

    def times(self, other: _Power) -> _Power:
        """Return the law of the sum of both.

        Theorem 24.2 of Higham's Accuracy and Stability of Numerical Algorithms bounds a transform's
        relative error in l2; a square root of the length takes it to l1. What lies beyond the end
        is dropped: ratios are not negative.
        """
        n = len(self.masses)
        product = np.fft.irfft(self._transform * other._transform, 2 * n)
        one, two = (float(each.masses.sum()) * (1 + _SUM) for each in (self, other))
        long_one, long_two = (
            math.sqrt(float((each.masses**2).sum()) * (1 + _SUM)) for each in (self, other)
        )
        transform = 16 * _UNIT * math.log2(2 * n)
        rounding = math.sqrt(2 * n) * 2 * transform * (one * long_two + two * long_one)
        error = (one * other.error + two * self.error + self.error * other.error + rounding) * (
            1 + _SUM
        )
        return _Power(np.maximum(product[:n], 0), error)

    @cached_property
    def _transform(self) -> NDArray[np.complexfloating[Any, Any]]:
        return np.fft.rfft(self.masses, 2 * len(self.masses))


class _Sum(NamedTuple):
    """X, the likelihood ratio of the whole release, as put(a) = E max(0, a - X) up to a = exp(end).

    Attributes:
        batches: B.
        end: in nats, positive.
        lowest: the least value of B X, which is B - g.
        step: of the grid of B X.
        below: P(sum < (k + 1) steps) at each grid point k [n].
        puts: E max(0, k - sum / step) at each grid point k [n].
        error: of these probabilities, in l1.
    """

    batches: int
    end: float
    lowest: int
    step: float
    below: Wide
    puts: Wide
    error: float

    @classmethod
    def of(cls, ratios: _Ratios, batches: int, generated: int, end: float, points: int) -> _Sum:
        step = np.longdouble((math.exp(end) - 1) * batches + generated) * (1 + _SUM) / (points - 1)
        place = ratios.values / step
        floor = np.floor(place)
        within = floor < points - 1
        low, share = floor[within].astype(np.int64), (place - floor)[within]
        one = np.zeros(points, np.longdouble)
        np.add.at(one, low, ratios.masses[within] * (1 - share))
        np.add.at(one, low + 1, ratios.masses[within] * share)
        power, total, left = _Power(one, 0.0), None, generated
        while left:
            if left & 1:
                total = power if total is None else total.times(power)
            if left := left >> 1:
                power = power.times(power)
        assert total is not None  # something was generated
        below = np.cumsum(total.masses)
        puts = np.concatenate([np.zeros(1, np.longdouble), np.cumsum(below)[:-1]])
        return cls(batches, end, batches - generated, float(step), below, puts, total.error)

    def deltas(self, losses: Doubles) -> Doubles:
        """Return upper bounds on delta [n], in the worse direction, at losses [n] up to the end."""
        a: Wide = np.exp(losses.astype(np.longdouble))
        added, removed = a * self._put(1 / a), 1 - a + self._put(a)
        return np.asarray(
            np.minimum(np.maximum(added, removed), 1) * (1 + 4 * ULP) + TINY, dtype=np.float64
        )

    def _put(self, a: Wide) -> Wide:
        """Return upper bounds on E max(0, a - X) [n]."""
        place = np.maximum((a * self.batches - self.lowest) / self.step, 0)
        at = np.minimum(place.astype(np.int64), len(self.puts) - 1)
        put = (self.puts[at] + (place - at) * self.below[at]) * self.step / self.batches
        return np.asarray(
            put * (1 + _SUM) + a * (self.error + 16 * _UNIT * self.below[at]), dtype=np.longdouble
        )
