"""(epsilon, delta) of adaptively composed exponential mechanisms, by Renyi accounting or optimally.

A draw has bounded range eta if its privacy losses lie in some interval [t - eta, t]. Losses at the two ends alone, at
the upper one with probability p_t = (e^eta - e^t) / (e^eta - 1), are the worst case, so the privacy profile of k draws,
each chosen after those before it, is a recursion over e with one maximum over t per draw:

    delta_0(e) = max(0, 1 - exp(e))
    delta_k(e) = max over t in [0, eta] of  p_t delta_{k-1}(e - t) + (1 - p_t) delta_{k-1}(e - t + eta)

It is computed on a grid of losses, once rounded up and once down. docs/budgets.md proves both ends, and says why the
closed form of Dong, Durfee and Rogers (https://arxiv.org/abs/1909.13830) is no bound for decoding, which is adaptive.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.renyi import RenyiTable

Method: TypeAlias = Literal["rdp", "optimal"]
Doubles: TypeAlias = NDArray[np.float64]

#: A bounded range in nats, and how many draws in a row have it.
Segment: TypeAlias = tuple[float, int]

#: Grid points per bounded range: as many as fit into QUICK evaluations of the recursion (a second or two), or, where
#: those are few, into SLOW ones. 16 are within 1% of the truth at the paper's settings, 64 within 0.1%.
MOST_PLACES, ENOUGH_PLACES, FEWEST_PLACES = 256, 16, 8
QUICK, SLOW = 2e8, 1e9
#: For a curve's every point at once: within some 0.3% of the truth at the paper's settings, in a tenth of a second.
CURVE_PLACES = 32
#: The grid ends where delta is at most this share of the one that is asked about.
REMOTE = 1e-4
#: Ranges beyond these leave float64 no room; Renyi accounting and the pure sum serve there.
SMALLEST, LARGEST = 1e-100, 1e100
#: Relative room for rounding: of the grid's step, and, much smaller, of places and losses on it.
GRID_ROOM, PLACE_ROOM = 2.0**-40, 2.0**-45
ULP, TINY = 2.0**-52, 2.0**-1000
#: dp-accounting computes the Renyi divergence of a pure event to some 2^-50.
RENYI_ROOM = 2.0**-46
#: Beside pure events, these orders too: the library's own, which reproduce the paper's counts, are 0.001 too coarse.
MORE_ORDERS = tuple(order / 50 for order in range(51, 500))
#: A lie less probable than e^-700 is none to float64.
MOST_RESPONSE = 700


@dataclass(frozen=True)
class Composition:
    """What a sequence of draws costs.

    Attributes:
        epsilon: a sound upper bound, in nats.
        epsilon_lower: no accountant can go below this, since an adaptive adversary within the same ranges reaches it;
            None where it is not worked out.
        delta: in (0, 1).
        method: how `epsilon` was computed; "zcdp" from what all tokens together may cost, whatever their number.
    """

    epsilon: float
    epsilon_lower: float | None
    delta: float
    method: Method | Literal["zcdp"]


def exponential_mechanism_epsilon(
    eta: float | Sequence[float],
    steps: int | Sequence[int],
    delta: float,
    *,
    method: Method = "optimal",
    laplace: Sequence[float] = (),
    pure: Sequence[float] = (),
    grid: int | None = None,
) -> Composition:
    """epsilon of exponential mechanisms composed adaptively, after pure-DP events that are chosen beforehand.

    Args:
        eta: the bounded range of a draw, in nats; or one for each segment of the sequence, in order.
        steps: how many draws; or one number for each segment.
        delta: in (0, 1).
        method: "rdp" composes (eta^2 / 8)-zCDP events in dp-accounting, as the paper does, and is never above the plain
            sum of the ranges. "optimal" is the least that holds for every adaptive sequence of such draws, but for the
            grid (docs/budgets.md).
        laplace: epsilons (shift / scale) of Laplace noise on one number each, such as rebalancing counts.
        pure: epsilons of other pure-DP events, in the worst case (randomised response).
        grid: grid points per largest eta; by default as many as a few seconds allow. Beyond some 10^4 draws that is
            none, and "optimal" gives what the other bounds give, with 0 below.

    Raises:
        ValueError: an argument is not a number, negative, or not in its range.
    """
    segments, shifts, responses = _segments(eta, steps), _epsilons("laplace", laplace), _epsilons("pure", pure)
    if method not in get_args(Method):
        raise ValueError(f"method must be rdp or optimal, not {method!r}")
    if grid is not None and _whole("grid", grid) == 0:
        raise ValueError("grid must be positive, not 0")
    problem = _Problem(tuple(segments), tuple(shifts), tuple(responses), delta)
    known = problem.bound(delta)
    if method == "rdp":
        return Composition(known, None, delta, method)
    if known == 0 or math.isinf(known):
        return Composition(known, 0.0, delta, method)
    places = problem.places() if grid is None else grid
    if places is None:
        return Composition(known, 0.0, delta, method)
    upper, lower = (_Recursion(problem, places, up) for up in (True, False))
    return Composition(min(known, upper.epsilon()), lower.epsilon(), delta, method)


def zcdp_epsilon(
    rho: float,
    delta: float,
    *,
    laplace: Sequence[float] = (),
    pure: Sequence[float] = (),
    renyi: Sequence[RenyiTable] = (),
) -> float:
    """epsilon of a rho-zCDP sequence beside pure-DP events, by Renyi accounting in dp-accounting.

    `rho` is of everything but the events and what `renyi` has, and all else is as for `exponential_mechanism_epsilon`.

    Raises:
        ValueError: delta is not in (0, 1), or another argument is negative or not a number.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta}")
    if math.isnan(rho) or rho < 0:
        raise ValueError(f"rho must be non-negative, not {rho}")
    shifts, responses = _epsilons("laplace", laplace), _epsilons("pure", pure)
    if not (rho or shifts or responses or renyi):
        return 0.0
    if max(rho, *shifts, *responses, 0.0) > LARGEST:
        return math.inf
    from dp_accounting import LaplaceDpEvent, NeighboringRelation, RandomizedResponseDpEvent, ZCDpEvent
    from dp_accounting.rdp import RdpAccountant
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS, compute_epsilon

    events, listed = len(shifts) + len(responses), (order for table in renyi for order in table.orders)
    orders = sorted({*DEFAULT_RDP_ORDERS, *MORE_ORDERS, *listed}) if events or renyi else DEFAULT_RDP_ORDERS
    # Only randomised response looks at the relation: between two answers, it is the worst event of its epsilon.
    accountant = RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
    accountant.compose(ZCDpEvent(rho, xi=RENYI_ROOM * events))
    for shift in shifts:
        accountant.compose(LaplaceDpEvent(1 / shift * (1 - RENYI_ROOM)))
    for response in responses:
        lie = 2 / (math.exp(response) + 1) if response < MOST_RESPONSE else 0.0
        accountant.compose(RandomizedResponseDpEvent(lie, 2))
    bounds = sum((table.at(np.array(orders)) for table in renyi), np.array(accountant.rdp))
    return float(compute_epsilon(orders, bounds.tolist(), delta)[0]) * (1 + RENYI_ROOM)


def zcdp_of_range(eta: float, steps: int) -> float:
    """rho of `steps` draws of bounded range eta, eta^2 / 8 each (https://arxiv.org/abs/2004.07223), rounded up."""
    return sum_up([math.nextafter(steps * eta * eta / 8 * (1 + 4 * ULP), math.inf)] if steps and eta else [])


def epsilons_by_steps(
    eta: float, steps: Sequence[int], delta: float, *, method: Method = "optimal", laplace: Sequence[float] = ()
) -> list[float | None]:
    """epsilon (a sound upper bound, in nats) after each number of draws of range eta; "optimal" in one pass over them.

    Args:
        eta, delta, laplace: as for `exponential_mechanism_epsilon`.
        steps: positive and ascending.
        method: "optimal" gives None from the first number on that its grid cannot take. All numbers share one coarse
            grid: each may come out a little above what it would get on its own.

    Raises:
        ValueError: an argument is not a number, negative, or not in its range.
    """
    if any(first >= second for first, second in pairwise((0, *steps))):
        raise ValueError("steps must be positive and ascending")
    by_rdp = [
        exponential_mechanism_epsilon(eta, count, delta, method="rdp", laplace=laplace).epsilon for count in steps
    ]
    if method == "rdp":
        return [*by_rdp]
    events = tuple(_epsilons("laplace", laplace))
    for taken in range(len(steps), 0, -1):
        problem = _Problem(((eta, steps[taken - 1]),), events, (), delta)
        places = problem.places()
        if places is not None:
            best = _Recursion(problem, min(places, CURVE_PLACES), upper=True).epsilons(steps[:taken])
            return [*map(min, by_rdp, best), *[None] * (len(steps) - taken)]
    return [None] * len(steps)


def privacy_profile(
    eta: float, steps: int, delta: float, *, laplace: Sequence[float] = (), pure: Sequence[float] = ()
) -> tuple[float, Doubles] | None:
    """The optimal bound at every epsilon: delta of so many draws of range eta, behind pure-DP events.

    Args:
        eta, steps, laplace, pure: as for `exponential_mechanism_epsilon`; something of them is positive.
        delta: in (0, 1), the least that matters: where the profile has come down to a small part of it, it ends.

    Returns:
        The grid's step, in nats, and upper bounds [n] on delta(e) at e = 0, step, 2 step, ..., two at least; None
        where the grid cannot take so many draws, or where so little is lost that it would have no length.

    Raises:
        ValueError: an argument is not a number, negative, or not in its range.
    """
    segments, shifts, responses = _segments(eta, steps), _epsilons("laplace", laplace), _epsilons("pure", pure)
    problem = _Problem(tuple(segments), tuple(shifts), tuple(responses), delta)
    places = problem.places() if problem.reach() else None
    if places is None:
        return None
    recursion = _Recursion(problem, places, upper=True)
    (last,) = deque(recursion.profiles(), maxlen=1)
    return recursion.step, recursion.after_events(last)


def steps_within(epsilon: float, eta: float, most: int, delta: float, *, laplace: Sequence[float] = ()) -> int:
    """About how many draws of range eta the optimal bound affords, up to `most`: one pass over their number.

    The grid is that of `most` draws, so `exponential_mechanism_epsilon` can differ in the last one or two.
    """
    problem = _Problem(((eta, most),), tuple(e for e in laplace if e), (), delta)
    places = problem.places()
    if places is None:
        return 0
    recursion = _Recursion(problem, places, upper=True)
    place = min(math.floor(epsilon / recursion.step), recursion.points - 1)
    for steps, profile in enumerate(recursion.profiles()):
        if recursion.after_events(profile)[place] > delta:
            return max(0, steps - 1)
    return most


@dataclass(frozen=True)
class _Problem:
    """What is composed: segments and events, all positive, and the delta that is asked about."""

    segments: tuple[Segment, ...]
    laplace: tuple[float, ...]
    pure: tuple[float, ...]
    delta: float

    @property
    def largest(self) -> float:
        """What the grid is measured in: the largest range, or the largest event where nothing is drawn."""
        return max(eta for eta, _ in self.segments) if self.segments else max(self.laplace + self.pure)

    def bound(self, delta: float) -> float:
        """epsilon at a delta by Renyi accounting, or the pure epsilon of everything, beyond which no loss lies."""
        rho = sum_up(zcdp_of_range(*segment) for segment in self.segments)
        ranges = (math.nextafter(steps * eta, math.inf) for eta, steps in self.segments)
        total = sum_up(chain(ranges, self.laplace, self.pure))
        return min(zcdp_epsilon(rho, delta, laplace=self.laplace, pure=self.pure), total)

    def reach(self) -> float:
        """An epsilon beyond which delta is next to nothing: where the grid ends."""
        return self.bound(max(self.delta * REMOTE, TINY))

    def places(self) -> int | None:
        """Grid points per largest range that can be afforded; None where too few."""
        if not SMALLEST < self.largest < LARGEST:
            return None
        reach, width = self.reach() / self.largest, 2 * sum(self.laplace + self.pure) / self.largest
        work = sum(n * eta / self.largest for eta, n in self.segments) * reach + width * (reach + width)
        quick, slow = (int(min(math.sqrt(budget / work), MOST_PLACES)) for budget in (QUICK, SLOW))
        places = max(quick, min(slow, ENOUGH_PLACES))
        return places if places >= FEWEST_PLACES else None


class _Recursion:
    """The recursion on losses 0, h, 2h, ..., every figure rounded up or every figure rounded down.

    Rounded up, a loss between two grid points is covered by convexity, and delta beyond the grid is its last value.
    Rounded down, the adversary plays grid points only, and delta beyond the grid is 0.
    """

    def __init__(self, problem: _Problem, places: int, upper: bool) -> None:
        self._problem, self._upper = problem, upper
        self.step = problem.largest / places * (1 + GRID_ROOM if upper else 1 - GRID_ROOM)
        self.points = math.ceil(problem.reach() / self.step) + 1

    def epsilon(self) -> float:
        """The smallest grid point with a delta within the problem's, or else the largest with a delta beyond it."""
        (last,) = deque(self.profiles(), maxlen=1)
        return self._epsilon_of(last)

    def epsilons(self, steps: Collection[int]) -> list[float]:
        """`epsilon` after some numbers of draws only, ascending."""
        return [self._epsilon_of(profile) for count, profile in enumerate(self.profiles()) if count in steps]

    def _epsilon_of(self, profile: Doubles) -> float:
        beyond = self.after_events(profile) > self._problem.delta
        if not self._upper:
            largest = int(np.flatnonzero(beyond)[-1]) if beyond.any() else 0
            return math.nextafter(largest * self.step, 0.0)
        smallest = int(np.argmin(beyond))
        if beyond[smallest]:  # none is within
            return math.inf
        return math.nextafter(smallest * self.step, math.inf) if smallest else 0.0

    def profiles(self) -> Iterator[Doubles]:
        """delta at every grid point [points] after 0, 1, 2, ... draws, the last ones first."""
        profile = np.zeros(self.points)
        yield profile
        for eta, steps in reversed(self._problem.segments):
            exact = eta / self.step
            places = math.ceil(exact * (1 + PLACE_ROOM)) if self._upper else math.floor(exact * (1 - PLACE_ROOM))
            if places == 0:  # rounded down to nothing
                continue
            pairs = _Pairs(places, self.step)
            for _ in range(steps):
                profile = self._rounded(pairs.worst(self._extended(profile, places), self._upper), pairs.room)
                yield profile

    def after_events(self, profile: Doubles) -> Doubles:
        """delta [points] with the pure events in front: the mean over their losses L of delta at e - L."""
        weights = np.ones(1)
        for epsilon in self._problem.laplace:
            weights = np.convolve(weights, self._placed(*_laplace_losses(epsilon, self.step, self._upper)))
        for epsilon in self._problem.pure:
            truth = 1 / (1 + math.exp(-epsilon))
            ends = np.array([-epsilon, epsilon]), np.array([math.exp(-epsilon) * truth, truth])
            weights = np.convolve(weights, self._placed(*ends))
        if len(weights) == 1:
            return profile
        mean = np.convolve(self._extended(profile, len(weights) // 2), weights, mode="valid")
        return self._rounded(mean, (256 + 4 * len(weights)) * ULP)

    def _extended(self, profile: Doubles, places: int) -> Doubles:
        """delta with `places` points more on either side [points + 2 places]; below 0 by symmetry."""
        end = profile[-1] if self._upper else 0.0
        right = np.concatenate([profile, np.full(places, end)])
        below = -np.arange(places, 0, -1) * self.step
        return np.concatenate([np.exp(below) * right[places:0:-1] - np.expm1(below), right])

    def _placed(self, losses: Doubles, masses: Doubles) -> Doubles:
        return placed(losses, masses, self.step, upper=self._upper)

    def _rounded(self, profile: Doubles, room: float) -> Doubles:
        if self._upper:
            return profile * (1 + room) + TINY
        return np.maximum(profile * (1 - room) - TINY, 0.0)


def placed(losses: Doubles, masses: Doubles, step: float, *, upper: bool) -> Doubles:
    """Probabilities of the grid points -r .. r [2r + 1] instead of those of losses between them."""
    room = abs(losses).max() * PLACE_ROOM
    scaled = (losses + room if upper else losses - room) / step
    floor = np.floor(scaled)
    # Up: split between its two neighbours with the mean likelihood ratio kept. Down: all to the lower one.
    above = np.expm1((floor - scaled) * step) / math.expm1(-step) * upper
    radius = int(abs(floor).max()) + 1
    place = floor.astype(np.int64) + radius
    lower, higher = (
        np.bincount(at, share * masses, 2 * radius + 1) for at, share in ((place, 1 - above), (place + 1, above))
    )
    return np.asarray(lower + higher)


class _Pairs:
    """The two-point pairs of bounded range `places` * step whose losses are grid points: t = 0, 1, ..., places."""

    def __init__(self, places: int, step: float) -> None:
        t = np.arange(places + 1)
        whole = math.expm1(-places * step)
        self._places = places
        self._high = np.expm1((t - places) * step) / whole
        self._low = np.exp((t - places) * step) * np.expm1(-t * step) / whole
        # Between t and t + 1 the maximum exceeds both ends by at most this times d_{t+1} - d_t / e^step.
        self._fall = math.exp(-step)
        bulge = 1 / (1 + math.exp(-step / 2)) ** 2
        self._between = np.exp((t[1:] - places) * step) * math.expm1(-step) / whole * bulge
        #: Relative rounding of one step: a dozen operations, and exponents of up to the range itself.
        self.room = (64 + 2 * places * step) * ULP

    def worst(self, future: Doubles, between: bool) -> Doubles:
        """The maximum over t [n] of the mean delta after a draw; `between`: bounded for real t, not for grid points.

        Args:
            future: [n + 2 places] delta after it, from `places` below the first result to as many above the last.
        """
        n = len(future) - 2 * self._places
        worst = np.zeros(n)
        before = gap_before = worst
        for t in range(self._places + 1):
            high, low = future[self._places - t :][:n], future[2 * self._places - t :][:n]
            mean = self._high[t] * high + self._low[t] * low
            np.maximum(worst, mean, out=worst)
            if not between:
                continue
            gap = high - low
            if t:
                excess = np.maximum(gap - self._fall * gap_before, 0.0)
                excess *= self._between[t - 1]
                np.maximum(worst, np.maximum(before, mean) + excess, out=worst)
            before, gap_before = mean, gap
        return worst


def _laplace_losses(epsilon: float, step: float, upper: bool) -> tuple[Doubles, Doubles]:
    """Losses of Laplace noise and their probabilities: half of it at epsilon, the rest in cells below a grid step."""
    cells = 16 * math.ceil(2 * epsilon / step)
    losses = np.linspace(-epsilon, epsilon, cells + 1)
    # P(loss <= x) = exp((x - epsilon) / 2) / 2 for -epsilon <= x < epsilon; a cell counts at its end on the safe side.
    inside = np.exp((losses[1:] - epsilon) / 2) / 2 * -math.expm1(-epsilon / cells)
    masses = np.concatenate([[0.0], inside] if upper else [inside, [0.0]])
    masses[0] += math.exp(-epsilon) / 2
    masses[-1] += 0.5
    return losses, masses


def _segments(eta: float | Sequence[float], steps: int | Sequence[int]) -> list[Segment]:
    """Checked segments, without those that cost nothing."""
    etas = list(eta) if isinstance(eta, Iterable) else [eta]
    counts = list(steps) if isinstance(steps, Iterable) else [steps]
    if len(etas) != len(counts):
        raise ValueError(f"eta has {len(etas)} segments and steps {len(counts)}")
    for each in etas:
        if math.isnan(each) or each < 0:
            raise ValueError(f"eta must be non-negative, not {each}")
    pairs = zip(etas, [_whole("steps", count) for count in counts], strict=True)
    return [(float(each), count) for each, count in pairs if each and count]


def _whole(name: str, value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None
    if number < 0:
        raise ValueError(f"{name} must not be negative, not {number}")
    return number


def _epsilons(name: str, epsilons: Sequence[float]) -> list[float]:
    for epsilon in epsilons:
        if math.isnan(epsilon) or epsilon < 0:
            raise ValueError(f"{name} must hold non-negative epsilons, not {epsilon}")
    return [float(epsilon) for epsilon in epsilons if epsilon]


def sum_up(terms: Iterable[float]) -> float:
    """The sum, rounded up where it has more than one term."""
    try:
        values = list(terms)
        return math.nextafter(math.fsum(values), math.inf) if len(values) > 1 else math.fsum(values)
    except OverflowError:  # too many steps, or too large a sum, for the floats
        return math.inf


def rounded_sum(left: float, right: float) -> float:
    """The sum of two costs, rounded up; exact where one of them is 0."""
    return left + right if 0 in (left, right) else math.nextafter(left + right, math.inf)
