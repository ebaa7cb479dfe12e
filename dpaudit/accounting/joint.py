"""The joint cost of several releases of the same records: one composition over all their parts.

docs/composition.md has the proofs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.composition import Method, exponential_mechanism_epsilon, privacy_profile
from dpaudit.accounting.profiles import (
    Profile,
    dominating,
    epsilon_of_profile,
    profile_of_all,
    profile_of_both,
    renyi_profile,
)
from dpaudit.accounting.recursion import Segment
from dpaudit.accounting.renyi import (
    LARGEST,
    TINY,
    ULP,
    RenyiTable,
    rounded_sum,
    sum_up,
    zcdp_epsilon,
    zcdp_of_pure,
    zcdp_of_range,
)
from dpaudit.accounting.risk import AttackCurve, Way
from dpaudit.accounting.zcdp import renyi_attacks

#: The grids of the optimal bound end at this share of delta. Beyond this many nats, which protect
#: nobody, they are not tried.
_REMOTE, _FURTHEST = 1e-8, 500.0


class Joint(NamedTuple):
    """epsilon of several releases together, in nats, and how it was found."""

    epsilon: float
    method: Method


@dataclass(frozen=True)
class Parts:
    """The parts of a release's guarantee for all outputs.

    Attributes:
        segments: its draws of bounded range, in order.
        laplace: epsilons (shift / scale) of Laplace noise on one number each.
        pure: epsilons of its (epsilon, delta) guarantees, in nats.
        delta: of all of these together.
        rho: of its zCDP guarantees together, in nats.
        renyi: parts known by Renyi divergences.
        profiles: parts known by their profile alone, as of texts whose readers do not know a
            record's batch.

    Raises:
        ValueError: delta is not in [0, 1], or a number of draws is negative.
    """

    segments: tuple[Segment, ...] = ()
    laplace: tuple[float, ...] = ()
    pure: tuple[float, ...] = ()
    delta: float = 0.0
    rho: float = 0.0
    renyi: tuple[RenyiTable, ...] = ()
    profiles: tuple[Profile, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.delta <= 1:
            raise ValueError(f"a release's delta lies between 0 and 1, not at {self.delta}")
        if any(steps < 0 for _, steps in self.segments):
            raise ValueError("a number of draws is not negative")


def joint_epsilon(releases: Sequence[Parts], delta: float) -> Joint:
    """Return epsilon of several releases of the same records together, in any order.

    It holds however they depend on each other's outputs, as long as their parts were fixed without
    looking.

    Args:
        releases: the parts of each of them.
        delta: in (0, 1), of everything: the parts' own are taken out of it.

    Returns:
        The least of Renyi accounting, the sum of all epsilons where every part has one, and the
            optimal bound. Infinite if the parts' deltas leave nothing.

    Raises:
        ValueError: a number is negative or none, or delta is not in (0, 1).
    """
    left = _delta_left(releases, delta)
    if left <= 0:
        return Joint(math.inf, "rdp")
    whole = _Whole.of(releases)
    if whole.profiles:
        return Joint(whole.with_profiles(left), "optimal")
    by_rdp = whole.by_rdp(left)
    optimal = math.inf
    if math.isfinite(by_rdp):
        optimal = whole.optimal(left)
    if by_rdp <= optimal:
        return Joint(by_rdp, "rdp")
    return Joint(optimal, "optimal")


def joint_attacks(releases: Sequence[Parts], delta: float) -> AttackCurve:
    """Bound what someone can tell of one unit who has several releases of the same records.

    Args:
        releases: as for `joint_epsilon`.
        delta: in (0, 1), the least that matters. The bound holds at every false-positive rate.

    Returns:
        The least of what their composed profile allows, of the exact region of their Renyi
            divergences, and of the sum of all epsilons, where there are such; else what their
            joint epsilon allows.

    Raises:
        ValueError: as `joint_epsilon`.
    """
    left, whole = _delta_left(releases, delta), _Whole.of(releases)
    spent = sum_up(release.delta for release in releases if release.delta)
    # No loss lies beyond the sum.
    by_sum = AttackCurve.of_epsilon(whole.pure_sum, 0.0).beside(spent)
    if left > 0 and (found := whole.attacks(left)):
        return replace(by_sum, ways=()).meet(*(curve.beside(spent) for curve in found))
    return by_sum.meet(AttackCurve.of_epsilon(joint_epsilon(releases, delta).epsilon, delta))


def _delta_left(releases: Sequence[Parts], delta: float) -> float:
    """Return what the releases' own deltas leave of a delta, rounded down; perhaps less than 0."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta}")
    left = delta
    for spent in (release.delta for release in releases if release.delta):
        left = math.nextafter(left - spent, -math.inf)
    return left


@dataclass(frozen=True)
class _Whole:
    """The parts of all releases.

    `steps` are numbers of draws by their range: it makes no difference whose they are.
    """

    steps: Counter[float]
    laplace: tuple[float, ...]
    pure: tuple[float, ...]
    rho: float
    renyi: tuple[RenyiTable, ...]
    profiles: tuple[Profile, ...]

    @classmethod
    def of(cls, releases: Sequence[Parts]) -> _Whole:
        steps: Counter[float] = Counter()
        for release in releases:
            for eta, number in release.segments:
                steps[eta] += number
        return cls(
            Counter({eta: number for eta, number in steps.items() if eta and number}),
            tuple(epsilon for release in releases for epsilon in release.laplace if epsilon),
            tuple(epsilon for release in releases for epsilon in release.pure if epsilon),
            sum_up(release.rho for release in releases if release.rho),
            tuple(table for release in releases for table in release.renyi),
            tuple(profile for release in releases for profile in release.profiles),
        )

    @property
    def has_renyi(self) -> bool:
        """Whether some part is known by Renyi divergences alone."""
        return bool(self.rho or self.renyi)

    @property
    def pure_sum(self) -> float:
        """The sum of all epsilons, rounded up; infinite if a part has none."""
        if self.has_renyi or self.profiles:
            return math.inf
        ranges = (eta * number for eta, number in self.steps.items())
        return sum_up([*ranges, *self.laplace, *self.pure]) * (1 + 4 * ULP)

    @property
    def rho_of_draws(self) -> float:
        """zCDP of all draws, and of what has a rho itself, rounded up."""
        costs = self.rho, *(zcdp_of_range(eta, number) for eta, number in self.steps.items())
        return sum_up(filter(None, costs))

    def attacks(self, delta: float) -> list[AttackCurve]:
        """Return bounds on what tests tell, by each way that there is; perhaps none."""
        found = []
        ways: dict[Way, bool] = {
            "ranges": bool(self.steps or self.laplace or self.pure),
            "zcdp": self.has_renyi,
            "secret-batches": bool(self.profiles),
        }
        if (profile := self._profile(delta)) is not None:
            found.append(AttackCurve.of_profile(profile, *(way for way in ways if ways[way])))
        if not self.profiles:
            pure = (zcdp_of_pure(epsilon) for epsilon in (*self.laplace, *self.pure))
            rho = sum_up(filter(None, [self.rho_of_draws, *pure]))
            if 0 < rho < LARGEST or (self.renyi and not rho):
                found.append(renyi_attacks(rho, self.renyi, delta))
        return found

    def _profile(self, delta: float) -> Profile | None:
        """Return delta(e) of everything, to where little is left of `delta`; None beyond a grid."""
        rest, least = replace(self, profiles=()), max(delta * _REMOTE, TINY)
        end = rest.by_rdp(least)
        found: list[Profile] | None = []
        if end:
            found = rest._each(delta, end) if end < _FURTHEST else None
        elif rest.steps or rest.laplace or rest.pure or rest.has_renyi:  # at a delta of that little
            found = [Profile(1.0, np.full(2, least))]
        if found is None or not (found or self.profiles):
            return None
        if len(found) > 1:
            found = [profile_of_all([*map(dominating, found)], end)]
        return reduce(partial(profile_of_both, delta=delta), [*found, *self.profiles])

    def by_rdp(self, delta: float) -> float:
        """Return epsilon by Renyi accounting, or the sum of all epsilons if that is less.

        No loss lies beyond that sum.
        """
        if not self.has_renyi:
            return self._without_renyi(delta, "rdp")
        return zcdp_epsilon(
            self.rho_of_draws, delta, laplace=self.laplace, pure=self.pure, renyi=self.renyi
        )

    def optimal(self, delta: float) -> float:
        """Return epsilon by the optimal profiles of draws of each range, and of the rest.

        It is infinite if that is not tried.
        """
        if len(self.steps) <= 1 and not self.has_renyi:
            return self._without_renyi(delta, "optimal")
        end = self.by_rdp(max(delta * _REMOTE, TINY))
        if not (self.steps or self.laplace or self.pure) or not 0 < end < _FURTHEST:
            return math.inf  # Renyi divergences alone are converted best together
        profiles = self._each(delta, end)
        if profiles is None:
            return math.inf
        return epsilon_of_profile(profile_of_all([*map(dominating, profiles)], end), delta)

    def with_profiles(self, delta: float) -> float:
        """Return epsilon by the given profiles and those of all else.

        Where the rest has no profile, it is the sum of two epsilons.
        """
        rest, known = (
            replace(self, profiles=()),
            reduce(partial(profile_of_both, delta=delta), self.profiles),
        )
        least = max(delta * _REMOTE, TINY)
        end = rest.by_rdp(least)
        if not end:  # at a delta of that little
            return epsilon_of_profile(known, math.nextafter(delta - least, 0.0))
        found = rest._each(delta, end) if end < _FURTHEST else None
        if found is None:
            half = delta / 2
            return rounded_sum(
                min(rest.by_rdp(half), rest.optimal(half)), epsilon_of_profile(known, half)
            )
        return epsilon_of_profile(
            reduce(partial(profile_of_both, delta=delta), found, known), delta
        )

    def _each(self, delta: float, end: float) -> list[Profile] | None:
        """Return the profiles of draws of each range and of the rest; None if there are none."""
        profiles, rho, laplace, pure = [], self.rho, self.laplace, self.pure
        for eta in sorted(self.steps, reverse=True) or [0.0]:
            found = privacy_profile(eta, self.steps[eta], delta, laplace=laplace, pure=pure)
            if found is None:
                rho = rounded_sum(rho, zcdp_of_range(eta, self.steps[eta]))
            else:
                profiles.append(found)
                laplace = pure = ()  # the first profile has them
        if laplace or pure:
            return None
        if rho or self.renyi:
            profiles.append(renyi_profile(rho, self.renyi, end))
        return profiles

    def _without_renyi(self, delta: float, method: Method) -> float:
        ranges, numbers = [*self.steps], [*self.steps.values()]
        return exponential_mechanism_epsilon(
            ranges, numbers, delta, method=method, laplace=self.laplace, pure=self.pure
        ).epsilon
