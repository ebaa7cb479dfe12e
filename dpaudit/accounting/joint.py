"""What several releases of the same records cost together: one composition over the parts of all of them.

docs/composition.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby, permutations

from dpaudit.accounting.composition import (
    Method,
    Segment,
    exponential_mechanism_epsilon,
    sum_up,
    zcdp_epsilon,
    zcdp_of_range,
)
from dpaudit.accounting.renyi import RenyiTable

#: Releases whose draws have different ranges, beyond which the optimal bound is not tried: their every order is a
#: recursion of its own.
MOST_ORDERED = 3


@dataclass(frozen=True)
class Joint:
    """epsilon of several releases together, in nats, and how it was found."""

    epsilon: float
    method: Method


@dataclass(frozen=True)
class Parts:
    """What a release's guarantee for all outputs is made of.

    Attributes:
        segments: its draws of bounded range, in order.
        laplace: epsilons (shift / scale) of Laplace noise on one number each.
        pure: epsilons of its (epsilon, delta) guarantees, in nats.
        delta: of all of these together.
        rho: of its zCDP guarantees together, in nats.
        renyi: what else is known by Renyi divergences.

    Raises:
        ValueError: delta is not in [0, 1].
    """

    segments: tuple[Segment, ...] = ()
    laplace: tuple[float, ...] = ()
    pure: tuple[float, ...] = ()
    delta: float = 0.0
    rho: float = 0.0
    renyi: tuple[RenyiTable, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.delta <= 1:
            raise ValueError(f"a release's delta lies between 0 and 1, not at {self.delta}")


def joint_epsilon(releases: Sequence[Parts], delta: float) -> Joint:
    """epsilon of several releases of the same records together, whichever of them came first.

    It holds however later ones depend on what earlier ones gave, as long as their parts were fixed without looking.

    Args:
        releases: what each of them is made of.
        delta: in (0, 1), of everything: the parts' own are taken out of it.

    Returns:
        Renyi accounting of all parts; or, where that is less and all of them are draws, noise and (epsilon, delta), the
        optimal bound for the worst order of the releases. Infinite where the parts' deltas leave nothing.

    Raises:
        ValueError: a number is negative or none, or delta is not in (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta}")
    left = delta
    for spent in (release.delta for release in releases if release.delta):
        left = math.nextafter(left - spent, -math.inf)
    if left <= 0:
        return Joint(math.inf, "rdp")
    drawn = [release.segments for release in releases if release.segments]
    laplace = [epsilon for release in releases for epsilon in release.laplace]
    pure = [epsilon for release in releases for epsilon in release.pure]
    renyi = [table for release in releases for table in release.renyi]
    of_draws = (zcdp_of_range(*segment) for segment in chain.from_iterable(drawn))
    rho = sum_up(filter(None, chain(of_draws, (release.rho for release in releases))))
    by_rdp = zcdp_epsilon(rho, left, laplace=laplace, pure=pure, renyi=renyi)
    orders = None if renyi or any(release.rho for release in releases) else _orders(drawn)
    if orders is None:
        return Joint(by_rdp, "rdp")
    optimal = max(_optimal(order, left, laplace, pure) for order in orders)
    return Joint(by_rdp, "rdp") if by_rdp <= optimal else Joint(optimal, "optimal")


def _optimal(segments: Sequence[Segment], delta: float, laplace: Sequence[float], pure: Sequence[float]) -> float:
    ranges, steps = [eta for eta, _ in segments], [number for _, number in segments]
    return exponential_mechanism_epsilon(ranges, steps, delta, laplace=laplace, pure=pure).epsilon


def _orders(drawn: Sequence[tuple[Segment, ...]]) -> set[tuple[Segment, ...]] | None:
    """The segments of releases in every order of these that makes a difference; None where there are too many.

    Neighbouring segments of one range are one.
    """
    if len({eta for segments in drawn for eta, _ in segments}) == 1:
        ways = iter([tuple(drawn)])
    elif len(drawn) <= MOST_ORDERED:
        ways = permutations(drawn)
    else:
        return None
    found = set()
    for way in ways:
        merged = groupby(chain.from_iterable(way), key=lambda segment: segment[0])
        found.add(tuple((eta, sum(steps for _, steps in run)) for eta, run in merged))
    return found
