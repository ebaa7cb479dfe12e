"""(epsilon, delta) of adaptively composed exponential mechanisms, by Renyi accounting or optimally.

The optimal bound is a recursion over draws (`recursion`); more draws than it can take are put
together of blocks (`blocks`). docs/budgets.md has the proofs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias, get_args

from dpaudit.accounting.blocks import profile_in_blocks, reached
from dpaudit.accounting.profiles import Profile, epsilon_of_profile
from dpaudit.accounting.recursion import Problem, Recursion, Segment
from dpaudit.accounting.renyi import epsilons_of_events

Method: TypeAlias = Literal["rdp", "optimal"]


class Composition(NamedTuple):
    """The cost of a sequence of draws.

    Attributes:
        epsilon: a sound upper bound, in nats.
        epsilon_lower: no accountant can go below this, since an adaptive adversary within the same
            ranges reaches it; positive, and None if none is known.
        delta: in (0, 1).
        method: how `epsilon` was computed: "rdp" too where numbers are too large or too small for
            the optimal bound, and "zcdp" from what all tokens together may cost, whatever their
            number.
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
    """Return epsilon of exponential mechanisms composed adaptively, after pure-DP events.

    The events are chosen beforehand.

    Args:
        eta: the bounded range of a draw, in nats; or one for each segment of the sequence, in
            order.
        steps: number of draws; or one number for each segment.
        delta: in (0, 1).
        method: "rdp" composes (eta^2 / 8)-zCDP events in dp-accounting, as the paper does, and is
            never above the plain sum of the ranges. "optimal" is the least that holds for every
            adaptive sequence of such draws, but for the grid (docs/budgets.md).
        laplace: epsilons (shift / scale) of Laplace noise on one number each, such as rebalancing
            counts.
        pure: epsilons of other pure-DP events, in the worst case (randomised response).
        grid: grid points per largest eta, of one recursion over all draws, however long that takes;
            by default as many as a second or two allow, and, where these are few, blocks of draws.

    Raises:
        ValueError: an argument is not a number, negative, or not in its range.
    """
    segments, shifts, responses = (
        _segments(eta, steps),
        epsilons_of_events("laplace", laplace),
        epsilons_of_events("pure", pure),
    )
    if method not in get_args(Method):
        raise ValueError(f"method must be rdp or optimal, not {method!r}")
    if grid is not None and _whole("grid", grid) == 0:
        raise ValueError("grid must be positive, not 0")
    problem = Problem(tuple(segments), tuple(shifts), tuple(responses), delta)
    known = problem.bound(delta)
    if method == "rdp":
        return Composition(known, None, delta, method)
    if known == 0 or math.isinf(known):
        return Composition(known, None, delta, method)
    places = problem.places() if grid is None else grid
    if places is not None:
        upper, lower = (_by_recursion(problem, places, up).epsilon() for up in (True, False))
        return Composition(min(known, upper), lower or None, delta, method)
    if not problem.measurable:
        return Composition(known, None, delta, "rdp")
    upper = epsilon_of_profile(profile_in_blocks(problem), delta)
    if not upper < known:
        method = "rdp"
    return Composition(min(known, upper), reached(problem), delta, method)


def reached_epsilon(
    eta: float, steps: int, delta: float, *, laplace: Sequence[float] = ()
) -> float:
    """Return a sure lower bound on `exponential_mechanism_epsilon`, in nats; it is quick.

    An adversary who plays randomised response in every draw reaches it.
    """
    problem = Problem(
        tuple(_segments(eta, steps)), tuple(epsilon for epsilon in laplace if epsilon), (), delta
    )
    if not (problem.bound(delta) and problem.measurable):
        return 0.0
    return reached(problem) or 0.0


def privacy_profile(
    eta: float,
    steps: int,
    delta: float,
    *,
    laplace: Sequence[float] = (),
    pure: Sequence[float] = (),
) -> Profile | None:
    """Return the optimal bound on delta at every epsilon.

    It is of `steps` draws of range eta, after pure-DP events.

    Args:
        eta, steps, laplace, pure: as for `exponential_mechanism_epsilon`; something of them is
            positive.
        delta: in (0, 1), the least that matters: where the profile has come down to a small part of
            it, it ends.

    Returns:
        Upper bounds; None if so little is lost that they would have no length, or where numbers
            are too large or too small for float64.

    Raises:
        ValueError: an argument is not a number, negative, or not in its range.
    """
    segments = _segments(eta, steps)
    shifts, responses = epsilons_of_events("laplace", laplace), epsilons_of_events("pure", pure)
    return _profile(Problem(tuple(segments), tuple(shifts), tuple(responses), delta))


# Recursions take a second or two, and both levels of a run ask for the same ones again.
# All arguments by position: else the cache holds a call by name beside them.
@lru_cache(maxsize=64)
def _by_recursion(problem: Problem, places: int, upper: bool, /) -> Recursion:
    return Recursion(problem, places, upper)


@lru_cache(maxsize=16)
def _profile(problem: Problem) -> Profile | None:
    if not (problem.reach() and problem.measurable):
        return None
    places = problem.places()
    if places is None:
        return profile_in_blocks(problem)
    recursion = _by_recursion(problem, places, True)
    return Profile(recursion.step, recursion.deltas)


def steps_within(
    epsilon: float, eta: float, most: int, delta: float, *, laplace: Sequence[float] = ()
) -> int:
    """Estimate the number of draws of range eta that the optimal bound affords, up to `most`.

    One pass over their number is made, on the grid of `most` draws, or, where these are too many
    for one recursion, the shape of the bound is used: `exponential_mechanism_epsilon` can differ in
    the last one or two, or in a thousandth.
    """
    problem = Problem(((eta, most),), tuple(e for e in laplace if e), (), delta)
    places = problem.places()
    if places is None:
        return _steps_by_shape(epsilon, eta, most, delta, laplace)
    recursion = Recursion(problem, places, upper=True)
    place = min(math.floor(epsilon / recursion.step), recursion.points - 1)
    for steps, profile in enumerate(recursion.profiles()):
        if recursion.after_events(profile)[place] > delta:
            return max(0, steps - 1)
    return most


def _steps_by_shape(
    epsilon: float, eta: float, most: int, delta: float, laplace: Sequence[float]
) -> int:
    """Estimate `steps_within` from the shape of normal noise.

    epsilon is about mu^2 / 2 + z mu, where mu^2 = steps eta^2 / 4.
    """
    steps = most
    for _ in range(2):
        mu, found = (
            eta * math.sqrt(steps) / 2,
            exponential_mechanism_epsilon(eta, steps, delta, laplace=laplace),
        )
        if not (mu and math.isfinite(found.epsilon)):
            return 0
        z = found.epsilon / mu - mu / 2
        steps = min(most, max(1, int((2 * (math.hypot(z, math.sqrt(2 * epsilon)) - z) / eta) ** 2)))
    return steps


def _segments(eta: float | Sequence[float], steps: int | Sequence[int]) -> list[Segment]:
    """Return checked segments, without those that cost nothing."""
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
