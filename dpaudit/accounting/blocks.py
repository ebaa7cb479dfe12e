"""Compositions of more draws than one recursion takes, in blocks: upper and lower bounds.

A block's profile by the recursion holds whatever came before it. A pair of distributions that has
it dominates the block, and the product of such pairs all blocks one after another; the product is
formed by doubling, on a grid that grows with the losses. Below, an adversary plays randomised
response of epsilon eta / 2 in every draw, which has bounded range eta, and whose losses are
binomial. docs/budgets.md proves both, and says how far apart they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, reduce

import numpy as np

from dpaudit.accounting import profiles
from dpaudit.accounting.profiles import Losses, Profile, dominating, gains, grid_to, profile_of_all
from dpaudit.accounting.recursion import (
    ENOUGH_PLACES,
    QUICK,
    Problem,
    Recursion,
    event_losses,
    placed,
)
from dpaudit.accounting.renyi import ULP, Doubles

#: The most kinds of one sort, draws by their range or events by their epsilon; more are merged
#: upwards.
MOST_KINDS = 16
#: Grid points of a block's profile, twice as many at most.
_POINTS = 1 << 9
#: The most draws that the adversary uses.
_MOST_DRAWS = 1 << 40
#: The omitted tails of the adversary are within the square of exp(-_TAIL) delta.
_TAIL = 20.0
#: Relative room for sums of some 10^4 products.
_SUM_ROOM = 2.0**-36


def profile_in_blocks(problem: Problem, budget: float = QUICK) -> Profile:
    """Return upper bounds on delta(e) of a problem, until next to nothing is left of its delta.

    Args:
        problem: draws and events.
        budget: evaluations of the recursion that all blocks together may take; blocks are shorter
            if it is less.
    """
    kinds = [*_split_kinds(problem)]
    parts = [_repeated_losses(one, times, budget / len(kinds)) for one, times in kinds]
    return profile_of_all(parts, problem.reach())


def _split_kinds(problem: Problem) -> Iterator[tuple[Problem, int]]:
    """Yield the problem's parts, each alone, with the number of times it occurs."""
    nothing = replace(problem, segments=(), laplace=(), pure=())
    draws: Counter[float] = Counter()
    for eta, steps in problem.segments:
        draws[eta] += steps
    for eta, steps in _limit_kinds(draws):
        yield replace(nothing, segments=((eta, 1),)), steps
    for epsilon, times in _limit_kinds(Counter(problem.laplace)):
        yield replace(nothing, laplace=(epsilon,)), times
    for epsilon, times in _limit_kinds(Counter(problem.pure)):
        yield replace(nothing, pure=(epsilon,)), times


def _limit_kinds(kinds: Counter[float]) -> Iterable[tuple[float, int]]:
    """Return at most MOST_KINDS kinds: those in between count as the next larger one."""
    descending = sorted(kinds, reverse=True)
    few: Counter[float] = Counter()
    together = -(-len(descending) // MOST_KINDS)
    for place, kind in enumerate(descending):
        few[descending[place // together * together]] += kinds[kind]
    return few.items()


def _repeat_problem(one: Problem, times: int) -> Problem:
    """Return a problem of one kind, repeated."""
    segments = tuple((eta, times) for eta, _ in one.segments)
    return replace(one, segments=segments, laplace=one.laplace * times, pure=one.pure * times)


def _repeated_losses(one: Problem, times: int, budget: float) -> Losses:
    """Return what dominates `times` draws or events of one kind.

    It is that of a block of them, doubled until they are all.
    """
    left_over, block = [], times
    while block > 1 and _block(one, block, times).places(budget) is None:
        left_over.append(block % 2)
        block //= 2
    found, single = _dominated(_block(one, block, times), budget), None
    for odd in reversed(left_over):
        block = 2 * block + odd
        problem = _block(one, block, times)
        if not (reach := problem.reach()):
            found = _negligible(problem)
            continue
        step = grid_to(reach)
        found = found.on(step)
        found = found.times(found)
        if odd:
            single = single or _dominated(_block(one, 1, times), budget)
            found = found.times(single.on(step))
    return found


def _block(one: Problem, block: int, times: int) -> Problem:
    """Return a problem of `block` draws or events, at the share of delta that it has."""
    return replace(_repeat_problem(one, block), delta=one.delta * block / times)


def _negligible(problem: Problem) -> Losses:
    """Return losses that Renyi accounting finds epsilon 0 for, at the delta where grids end."""
    return Losses(1.0, np.ones(1), problem.remote)


@lru_cache(maxsize=32)  # both levels of a run, and a run and others beside it, have the same blocks
def _dominated(problem: Problem, budget: float) -> Losses:
    if not problem.reach():
        return _negligible(problem)
    recursion = Recursion(problem, problem.places(budget) or ENOUGH_PLACES, upper=True)
    deltas = recursion.deltas
    # On a fine grid differences lose digits, and their rounding is multiplied by the number of
    # blocks.
    stride = max(1, len(deltas) // _POINTS)
    return dominating(Profile(stride * recursion.step, deltas[::stride]))


def reached(problem: Problem) -> float | None:
    """Return an epsilon that an adversary surely reaches at the problem's delta, in nats.

    It is None if none above 0 is found.
    """
    step, points = grid_to(problem.reach()), profiles.POINTS
    draws = [_response_losses(eta, steps, problem.delta) for eta, steps in problem.segments]
    parts = [
        _keep_points(placed(losses, masses, step, upper=False), points)
        for losses, masses in (*draws, *event_losses(problem, step, upper=False))
    ]
    masses = reduce(lambda one, other: _keep_points(np.convolve(one, other), points), parts)
    deltas = np.convolve(masses[points:], gains(step, points))[points:] * (
        1 - (len(parts) + 1) * _SUM_ROOM
    )
    if not (beyond := np.flatnonzero(deltas > problem.delta)).size:
        return None
    # Between grid points these losses have a delta that is linear in exp(e), and beyond the last
    # one none.
    place = int(beyond[-1])
    above, below = float(deltas[place]), float(deltas[place + 1])
    share = (above - problem.delta) / (above - below)
    return (place * step + math.log1p(share * math.expm1(step))) * (1 - _SUM_ROOM) or None


def _response_losses(eta: float, steps: int, delta: float) -> tuple[Doubles, Doubles]:
    """Return the losses of repeated randomised response of epsilon eta / 2, with chances.

    The probabilities are rounded down.
    """
    steps = min(steps, _MOST_DRAWS)
    odds = math.exp(-eta / 2)  # of a lie over the truth
    likeliest = int((steps + 1) * (odds / (1 + odds)))
    # Further off lies exp(-2 (20 + log(1 / delta))) at most, by Hoeffding.
    reach = math.ceil(math.sqrt(steps * (_TAIL - math.log(delta)))) + 1
    lies = np.arange(max(0, likeliest - reach), min(steps, likeliest + reach) + 1, dtype=np.float64)
    ratios = (steps - lies[:-1]) / lies[1:] * odds
    place = likeliest - int(lies[0])
    masses = np.concatenate(
        [np.cumprod(1 / ratios[:place][::-1])[::-1], [1.0], np.cumprod(ratios[place:])]
    )
    return (steps - 2 * lies) * (eta / 2), masses * (
        (1 - _SUM_ROOM - 16 * ULP * len(lies)) / masses.sum()
    )


def _keep_points(masses: Doubles, points: int) -> Doubles:
    """Return the probabilities of losses on `points` grid points to either side.

    Larger losses become the largest, smaller ones are dropped.
    """
    radius = len(masses) // 2
    if radius <= points:
        return np.pad(masses, points - radius)
    cut = radius - points
    kept = masses[cut:-cut].copy()
    kept[-1] += masses[-cut:].sum()
    return kept
