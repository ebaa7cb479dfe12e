"""The recursion over draws of bounded range: the optimal bound, on a grid of losses.

Each draw is chosen after those before it.

A draw has bounded range eta if its privacy losses lie in some interval [t - eta, t]. Losses at the
two ends alone, at the upper one with probability p_t = (e^eta - e^t) / (e^eta - 1), are the worst
case, so the privacy profile of k draws is a recursion over e with one maximum over t per draw:

    delta_0(e) = max(0, 1 - exp(e))
    delta_k(e) = max over t in [0, eta] of
                 p_t delta_{k-1}(e - t) + (1 - p_t) delta_{k-1}(e - t + eta)

It is computed on a grid of losses, once rounded up and once down. docs/budgets.md proves both ends,
and says why the closed form of Dong, Durfee and Rogers (https://arxiv.org/abs/1909.13830) is no
bound for decoding, which is adaptive.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.renyi import (
    LARGEST,
    TINY,
    ULP,
    Doubles,
    sum_up,
    zcdp_epsilon,
    zcdp_of_range,
)

#: A bounded range in nats, and how many draws in a row have it.
Segment: TypeAlias = tuple[float, int]

#: Grid points per bounded range: as many as fit into QUICK evaluations of the recursion (a second
#: or two). 16 are within 1% of the truth at the paper's settings, 32 within 0.2%, 64 within 0.1%.
#: Draws of which QUICK affords no ENOUGH_PLACES are put together of blocks.
MOST_PLACES, ENOUGH_PLACES = 256, 32
QUICK = 2e8
#: The grid ends where delta is at most this share of the one that is asked about.
REMOTE = 1e-4
#: A smaller range leaves float64 no room; Renyi accounting and the pure sum serve there.
SMALLEST = 1e-100
#: Nats beyond which no grid goes: they protect nobody, and exponentials of its steps would overflow
#: further on.
FURTHEST = 1e5
#: Relative room for rounding: of the grid's step, and, much smaller, of places and losses on it.
GRID_ROOM, PLACE_ROOM = 2.0**-40, 2.0**-45
#: Grid points per range below which no cells of several are looked at first.
_FEW = 64


@dataclass(frozen=True)
class Problem:
    """A composition to work out.

    Segments and events, all positive, and the delta that is asked about.
    """

    segments: tuple[Segment, ...]
    laplace: tuple[float, ...]
    pure: tuple[float, ...]
    delta: float

    @property
    def largest(self) -> float:
        """The unit of the grid: the largest range, or the largest event if nothing is drawn."""
        if self.segments:
            return max(eta for eta, _ in self.segments)
        return max(self.laplace + self.pure)

    def bound(self, delta: float) -> float:
        """Return epsilon at a delta by Renyi accounting, or the pure epsilon of everything.

        No loss lies beyond the latter.
        """
        rho = sum_up(zcdp_of_range(*segment) for segment in self.segments)
        ranges = (math.nextafter(steps * eta, math.inf) for eta, steps in self.segments)
        total = sum_up(chain(ranges, self.laplace, self.pure))
        return min(zcdp_epsilon(rho, delta, laplace=self.laplace, pure=self.pure), total)

    @property
    def remote(self) -> float:
        """A delta that is next to nothing beside the one that is asked about."""
        return max(self.delta * REMOTE, TINY)

    def reach(self) -> float:
        """Return an epsilon beyond which delta is next to nothing: the grid ends there."""
        delta = self.remote
        # Orders that dp-accounting does not have are those of many draws of little range.
        rho = sum_up(zcdp_of_range(*segment) for segment in self.segments)
        by_any_order = rho + 2 * math.sqrt(-rho * math.log(delta)) + sum(self.laplace + self.pure)
        return min(self.bound(delta), by_any_order)

    @property
    def measurable(self) -> bool:
        """Whether float64 has room for a grid."""
        return SMALLEST < self.largest < LARGEST and self.reach() < FURTHEST

    def places(self, budget: float = QUICK) -> int | None:
        """Return the grid points per largest range that `budget` evaluations afford.

        It is None if these are too few, or not measurable.
        """
        if not self.measurable:
            return None
        reach, width = self.reach() / self.largest, 2 * sum(self.laplace + self.pure) / self.largest
        work = sum(n * eta / self.largest for eta, n in self.segments) * reach + width * (
            reach + width
        )
        places = MOST_PLACES
        if work:
            places = int(min(math.sqrt(budget / work), MOST_PLACES))
        return places if places >= ENOUGH_PLACES else None


class Recursion:
    """The recursion on losses 0, h, 2h, ..., every figure rounded up or every figure rounded down.

    Rounded up, a loss between two grid points is covered by convexity, and delta beyond the grid is
    its last value. Rounded down, the adversary plays grid points only, and delta beyond the grid is
    0.
    """

    def __init__(self, problem: Problem, places: int, upper: bool) -> None:
        self._problem, self._upper = problem, upper
        self.step = problem.largest / places * (1 + GRID_ROOM if upper else 1 - GRID_ROOM)
        self.points = math.ceil(problem.reach() / self.step) + 1

    @cached_property
    def deltas(self) -> Doubles:
        """Delta at every grid point [points] after all draws, events in front."""
        (last,) = deque(self.profiles(), maxlen=1)
        return self.after_events(last)

    def epsilon(self) -> float:
        """Return the smallest grid point with a delta within the problem's.

        For lower bounds, return the largest with a delta beyond it.
        """
        beyond = self.deltas > self._problem.delta
        if not self._upper:
            largest = int(np.flatnonzero(beyond)[-1]) if beyond.any() else 0
            return math.nextafter(largest * self.step, 0.0)
        smallest = int(np.argmin(beyond))
        if beyond[smallest]:  # none is within
            return math.inf
        if not smallest:
            return 0.0
        return math.nextafter(smallest * self.step, math.inf)

    def profiles(self) -> Iterator[Doubles]:
        """Yield delta at every grid point [points] after 0, 1, 2, ... draws, last ones first."""
        profile = np.zeros(self.points)
        yield profile
        for eta, steps in reversed(self._problem.segments):
            exact = eta / self.step
            places = math.floor(exact * (1 - PLACE_ROOM))
            if self._upper:
                places = math.ceil(exact * (1 + PLACE_ROOM))
            if places == 0:  # rounded down to nothing
                continue
            pairs = _Pairs(places, self.step, self.points)
            for _ in range(steps):
                worst = pairs.at_real_numbers if self._upper else pairs.at_grid_points
                profile = self._rounded(worst(self._extended(profile, places)), pairs.room)
                yield profile

    def after_events(self, profile: Doubles) -> Doubles:
        """Return delta [points] with the pure events in front.

        It is the mean over their losses L of delta at e - L.
        """
        weights = np.ones(1)
        for losses, masses in event_losses(self._problem, self.step, upper=self._upper):
            weights = np.convolve(weights, placed(losses, masses, self.step, upper=self._upper))
        if len(weights) == 1:
            return profile
        mean = np.convolve(self._extended(profile, len(weights) // 2), weights, mode="valid")
        return self._rounded(mean, (256 + 4 * len(weights)) * ULP)

    def _extended(self, profile: Doubles, places: int) -> Doubles:
        """Return delta with `places` points more on either side [points + 2 places].

        Below 0 it is by symmetry.
        """
        end = profile[-1] if self._upper else 0.0
        right = np.concatenate([profile, np.full(places, end)])
        below = -np.arange(places, 0, -1) * self.step
        return np.concatenate([np.exp(below) * right[places:0:-1] - np.expm1(below), right])

    def _rounded(self, profile: Doubles, room: float) -> Doubles:
        if self._upper:
            return profile * (1 + room) + TINY
        return np.maximum(profile * (1 - room) - TINY, 0.0)


def placed(losses: Doubles, masses: Doubles, step: float, *, upper: bool) -> Doubles:
    """Return probabilities of the grid points -r .. r [2r + 1] in place of losses between them."""
    room = abs(losses).max() * PLACE_ROOM
    scaled = (losses + room if upper else losses - room) / step
    floor = np.floor(scaled)
    # Up: split between its two neighbours with the mean likelihood ratio kept. Down: all to the
    # lower one.
    above = np.expm1((floor - scaled) * step) / math.expm1(-step) * upper
    radius = int(abs(floor).max()) + 1
    place = floor.astype(np.int64) + radius
    lower, higher = (
        np.bincount(at, share * masses, 2 * radius + 1)
        for at, share in ((place, 1 - above), (place + 1, above))
    )
    return np.asarray(lower + higher)


class _Pairs:
    """The two-point pairs of bounded range `places` * step whose losses are grid points.

    t = 0, 1, ..., places. Maxima are at `points` losses.
    """

    def __init__(self, places: int, step: float, points: int) -> None:
        t = np.arange(places + 1)
        whole = math.expm1(-places * step)
        self._places, self._step, self._whole = places, step, whole
        self._high = np.expm1((t - places) * step) / whole
        self._low = np.exp((t - places) * step) * np.expm1(-t * step) / whole
        self._between = self._share_between(t[:-1], t[1:])
        # As many cells as steps of a cell, about; of few steps next to none would be left out.
        cell = places if places < _FEW else math.isqrt(places)
        self._ends = np.append(np.arange(0, places, cell), places)
        self._between_ends = self._share_between(self._ends[:-1], self._ends[1:])
        # Buffers: the accountants spend their time in this class.
        self._means = np.empty((len(self._ends), points))
        self._parts = tuple(np.empty(points) for _ in range(4))
        #: Relative rounding of one step: a dozen operations, and exponents of up to the range
        #: itself.
        self.room = (64 + 2 * places * step) * ULP

    def _share_between(self, t: NDArray[np.int64], after: NDArray[np.int64]) -> Doubles:
        """Return by how much real numbers between two grid points exceed both ends [n].

        It is at most this times d_after - d_t / exp((after - t) step), however far apart they are.
        """
        apart = (t - after) * self._step
        bulge = 1 / (1 + np.exp(apart / 2)) ** 2
        return np.asarray(
            np.exp((after - self._places) * self._step) * np.expm1(apart) / self._whole * bulge
        )

    def at_grid_points(self, future: Doubles) -> Doubles:
        """Return the maximum over t on the grid [n] of the mean delta after a draw.

        Args:
            future: [n + 2 places] delta after it, from `places` below the first of the n points to
                as many above the last.
        """
        mean, part, *_ = self._parts
        worst = np.zeros(len(part))
        for t in range(self._places + 1):
            np.maximum(worst, self._mean(future, t, 0, mean, part), out=worst)
        return worst

    def at_real_numbers(self, future: Doubles) -> Doubles:
        """Bound the same maximum over real t.

        Cells of many grid points come first, for the bound between two of them holds of any two. A
        cell whose bound is nowhere above what its ends and others' reach is left out, as it cannot
        hold the maximum.
        """
        places, means, (before, mean, excess, part) = self._places, self._means, self._parts
        n = len(part)
        gaps = future[:-places] - future[places:]
        falls = np.maximum(gaps[:-1] - gaps[1:] * math.exp(-self._step), 0.0)
        for end, t in enumerate(self._ends.tolist()):
            self._mean(future, t, 0, means[end], part)
        worst: Doubles = means.max(axis=0)
        for cell, (left, right) in enumerate(pairwise(self._ends.tolist())):
            fall = math.exp((left - right) * self._step)
            np.multiply(gaps[places - left :][:n], fall, out=part)
            np.subtract(gaps[places - right :][:n], part, out=excess)
            np.maximum(excess, 0.0, out=excess)
            excess *= self._between_ends[cell]
            excess += np.maximum(means[cell], means[cell + 1], out=part)
            beyond = excess > worst
            first = int(beyond.argmax())
            if not beyond[first]:
                continue
            last = n - int(beyond[::-1].argmax())
            own = slice(last - first)
            reached = worst[first:last]
            before[own] = means[cell, first:last]
            for t in range(left + 1, right + 1):
                self._mean(future, t, first, mean[own], part[own])
                np.multiply(falls[places - t + first :][own], self._between[t - 1], out=excess[own])
                excess[own] += np.maximum(before[own], mean[own], out=before[own])
                np.maximum(reached, excess[own], out=reached)
                before, mean = mean, before
        return worst

    def _mean(self, future: Doubles, t: int, first: int, out: Doubles, part: Doubles) -> Doubles:
        """Put the mean delta after the pair of t into `out` [m], from the result `first` on."""
        m = len(out)
        np.multiply(future[self._places - t + first :][:m], self._high[t], out=out)
        out += np.multiply(future[2 * self._places - t + first :][:m], self._low[t], out=part)
        return out


def event_losses(
    problem: Problem, step: float, *, upper: bool
) -> Iterator[tuple[Doubles, Doubles]]:
    """Yield the losses of each pure event and their probabilities.

    They are rounded to the safe side by less than a step.
    """
    for epsilon in problem.laplace:
        yield _laplace_losses(epsilon, step, upper)
    for epsilon in problem.pure:
        truth = 1 / (1 + math.exp(-epsilon))
        yield np.array([-epsilon, epsilon]), np.array([math.exp(-epsilon) * truth, truth])


def _laplace_losses(epsilon: float, step: float, upper: bool) -> tuple[Doubles, Doubles]:
    """Return the losses of Laplace noise and their probabilities.

    Half of it lies at epsilon, the rest in cells below a grid step.
    """
    cells = 16 * math.ceil(2 * epsilon / step)
    losses = np.linspace(-epsilon, epsilon, cells + 1)
    # P(loss <= x) = exp((x - epsilon) / 2) / 2 for -epsilon <= x < epsilon; a cell counts at its
    # end on the safe side.
    inside = np.exp((losses[1:] - epsilon) / 2) / 2 * -math.expm1(-epsilon / cells)
    masses = np.concatenate([[0.0], inside] if upper else [inside, [0.0]])
    masses[0] += math.exp(-epsilon) / 2
    masses[-1] += 0.5
    return losses, masses
