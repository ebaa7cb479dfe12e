"""Both levels of a run's guarantee: without, and with knowledge of a record's batch.

A record's batch is drawn uniformly, independently of all others and in secret. Readers of the
release do not know it, which amplifies (`allocation`). Whoever has the key, the assignment or the
run directory does: against them one batch's figure holds (`approximate`). Rounds under fresh keys
compose; several records of one unit are a chain of single changes (`risk`); noisy counts and
centres are composed beside the texts, never allocated. docs/mathematics.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from itertools import product
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpaudit.accounting.allocation import FINEST, allocated
from dpaudit.accounting.approximate import (
    ApproximateAccountant,
    largest,
    rounded_down,
)
from dpaudit.accounting.composition import Composition, Method
from dpaudit.accounting.joint import Parts, joint_epsilon
from dpaudit.accounting.profiles import (
    MOST_ROUNDS,
    POINTS,
    Profile,
    largest_of,
    least_of,
    most_rounds,
    profile_of_both,
    profile_of_rounds,
)
from dpaudit.accounting.renyi import TINY
from dpaudit.accounting.risk import AttackCurve, AttackLimit, Limit
from dpaudit.mechanisms import BatchingRule, Mechanism, context_change
from dpaudit.runs.secrecy import MOST_RECORDS, NoGain, SecretBatches

if TYPE_CHECKING:
    from dpaudit.runs.manifest import Privacy

#: How close a budget comes to what is allowed, the most tries, and the factor that lowers rounds.
_CLOSE, _MOST_TRIES, _CLOSER = 1e-4, 16, 1e-3
#: How often rounds are counted again by the profile that the last count needs.
_MOST_LOOKS = 3
#: A cost in nats at which next to no round is affordable.
_MUCH = 50.0
#: The profile that promises nothing.
_EVERYTHING = Profile(1.0, np.ones(2))


def costliest(secret: SecretBatches) -> tuple[tuple[int, int], ...]:
    """Return the pairs (B, g) that no other one covers.

    Source: docs/mathematics.md, "Secret batches".
    """
    distinct = sorted(set(secret.groups))
    return tuple(
        pair
        for pair in distinct
        if not any(_covers(other, pair) for other in distinct if other != pair)
    )


def _hides_nothing(secret: SecretBatches) -> bool:
    """Return whether a group has one batch, which is generated: then both levels are equal."""
    return (1, 1) in secret.groups


def _covers(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether a kernel takes the release-level pair of one (B, g) to that of another."""
    (batches, generated), (more, texts) = one, other
    if texts <= generated:
        return more >= batches
    return texts * batches <= generated * more


@dataclass(frozen=True)
class ReleaseAccountant:
    """Both levels of a run's (epsilon, delta), from public settings alone.

    Attributes:
        batch: the batch level, of the claim's change, of all rounds, with clusters.
        one: of one record that comes or goes, in one batch of one round, without clusters. None if
            levels are equal.
        secret: how many batches readers cannot tell apart. None if levels are equal.
        records: how many records one unit changes, one after another: 1 where a record comes or
            goes, 2 where it is replaced, as many as a user has, or twice as many where the user is
            replaced.
        shares: over how many stopping points delta is split.

    Raises:
        ValueError: `records` or `shares` is below 1, or `one` is of several rounds or has clusters.
    """

    batch: ApproximateAccountant
    one: ApproximateAccountant | None = None
    secret: SecretBatches | None = None
    records: int = 1
    shares: int = 1

    @classmethod
    def of(
        cls,
        batch: ApproximateAccountant,
        mechanism: Mechanism,
        privacy: Privacy,
        rule: BatchingRule,
        secret: SecretBatches | None,
        shares: int = 1,
    ) -> ReleaseAccountant:
        """Return the accountant of a run's mechanism, unit, relation and batching rule.

        Both levels are equal if nothing is secret.

        Args:
            batch: the batch level of that unit and relation.
            mechanism: as run.json has it.
            privacy: as run.json has it.
            rule: as run.json has it.
            secret: how many batches readers cannot tell apart.
            shares: see the class.
        """
        change, own = privacy.change(rule), context_change("record", "add_remove", rule)
        one = ApproximateAccountant.of(mechanism, own)
        if secret is None or change is None or own is None or one is None:
            records = 1 if change is None else change.budgets
            return cls(batch, records=records, shares=shares)
        records = 1
        if privacy.unit == "user":
            records = privacy.records_per_user or 1
        if privacy.relation == "replace":
            records *= 2
        return cls(batch, one, secret, records, shares)

    def __post_init__(self) -> None:
        if self.records < 1 or self.shares < 1:
            raise ValueError(
                f"a unit has {self.records} records and delta {self.shares} shares: at least one "
                "each"
            )
        if self.one is not None and (
            self.one.rounds != 1 or self.one != self.one.without_clusters()
        ):
            raise ValueError("what one record costs in one round has neither rounds nor clusters")

    def batch_level(self, tokens: int, delta: float, method: Method = "optimal") -> Composition:
        """Return the cost to someone who knows the record's batches.

        Args:
            tokens: the most of every batch.
            delta: of everything, stated unchanged; the cost is worked out at one share of it.
            method: how to compose.

        Raises:
            ValueError: an argument is out of its range.
        """
        return self.batch.epsilon(tokens, self._share(delta), method)._replace(delta=delta)

    def epsilon(self, tokens: int, delta: float) -> float:
        """Return the cost to readers who do not know the batches: never above the batch level.

        Raises:
            ValueError: as for `batch_level`.
        """
        share = self._share(delta)
        texts = self._texts(tokens, share)
        found = min(
            (joint_epsilon([self._parts_with_clusters(each)], share).epsilon for each in texts),
            default=math.inf,
        )
        # The batch level needs recursions of its own, and is seldom this near.
        if found <= self.batch.surely(tokens, share):
            return found
        return min(found, self.batch_level(tokens, delta).epsilon)

    def gains_nothing(self, tokens: int, delta: float) -> NoGain | None:
        """Return why secret batches gain nothing; None if they gain, or none are secret."""
        known = self.batch_level(tokens, delta).epsilon
        if not known < math.inf:
            return NoGain.UNBOUNDED
        if self.one is None or self.secret is None:
            return None
        if not known:
            return NoGain.NOTHING_TOLD
        if _hides_nothing(self.secret):
            return NoGain.ONE_BATCH
        if self.epsilon(tokens, delta) < known:
            return None
        return NoGain.BEYOND_PRECISION

    def attack_curve(self, tokens: int, delta: float) -> AttackCurve:
        """Bound what readers who do not know the batches can tell about one unit.

        Args:
            tokens: as for `batch_level`.
            delta: as for `batch_level`, the least that matters. The bound holds at every
                false-positive rate.
        """
        if self.shares > 1:
            return self._all_possible_rounds.attack_curve(tokens, delta)
        curve = self.batch.attack_curve(tokens, delta)
        if not self.batch.delta_left(delta) or not (texts := self._texts(tokens, delta)):
            return curve
        found = self.batch.beside_clusters(texts, delta)
        return curve.meet(*(AttackCurve.of_profile(each, "secret-batches") for each in found))

    def attack_curves(self, tokens: int, delta: float) -> tuple[AttackCurve, AttackCurve]:
        """Bound attacks at the release and at the batch level."""
        batch = self.batch_attack_curve(tokens, delta)
        return (batch if self.secret is None else self.attack_curve(tokens, delta)), batch

    def batch_attack_curve(self, tokens: int, delta: float) -> AttackCurve:
        """Bound what someone who knows a record's batches can tell, as `attack_curve` has it."""
        if self.shares > 1:
            return self._all_possible_rounds.batch_attack_curve(tokens, delta)
        return self.batch.attack_curve(tokens, delta)

    def parts(self, tokens: int, delta: float) -> Parts:
        """Return the release's parts, to compose with other releases of the same records.

        Args:
            tokens: as for `batch_level`.
            delta: as for `batch_level`, the least that matters.
        """
        if self.shares > 1:
            return self._all_possible_rounds.parts(tokens, delta)
        if not self.epsilon(tokens, delta) < self.batch_level(tokens, delta).epsilon:
            return self.batch.parts(tokens)
        texts = self._texts(tokens, delta)
        return self._parts_with_clusters(
            least_of([*texts, *self.batch.without_clusters().profiles(tokens, delta).values()])
        )

    def spent(self, limit: Limit, tokens: int, delta: float) -> float:
        """Return the figure of readers that a limit is about: epsilon, or what attacks gain."""
        if isinstance(limit, AttackLimit):
            return limit.reached(self.attack_curve(tokens, delta))
        return self.epsilon(tokens, delta)

    def most_rho_within(self, limit: Limit, delta: float) -> float:
        """Return the largest budget of a record and round with which a run stays within a limit.

        The run may have any number of tokens. The budget is rounded down to nine digits, so that a
        later recomputation does not come out above the limit.

        Raises:
            ValueError: an argument is out of its range, or clusters alone exceed the limit.
        """
        if isinstance(limit, AttackLimit) and self.shares > 1:
            return self._all_possible_rounds.most_rho_within(limit, delta)
        share, allowed = self._share(delta), amount_of(limit)
        most = self.batch.most_rho_within(limit, share) / self._budgets
        low, high = rounded_down(most * (1 - 2.0**-40)), math.inf
        if self.one is None or self.secret is None or _hides_nothing(self.secret):
            return low
        # What is spent is about a power of rho: by the last two tries, aimed a little low.
        guess, power, last = self._normal_rho(limit, share), 0.75, None
        for _ in range(_MOST_TRIES):
            if not low < guess < high:
                guess = math.sqrt(low * min(high, 4 * low))
            guess = rounded_down(guess)
            spent = self.of_budget(guess).spent(limit, 1, delta)
            if spent <= allowed:
                low = max(low, guess)
            else:
                high = min(high, guess)
            if (
                allowed * (1 - _CLOSE) <= spent <= allowed
                or high - low <= low * _CLOSE
                or not spent < math.inf
            ):
                break
            if last is not None and spent and last[1] and last[0] != guess:
                power = math.log(spent / last[1]) / math.log(guess / last[0])
            last = guess, spent
            if spent:
                guess *= (allowed * (1 - _CLOSE / 2) / spent) ** (1 / min(max(power, 0.25), 4.0))
            else:
                guess *= 4
        return low

    def most_rounds_within(self, limit: Limit, tokens: int, delta: float) -> int:
        """Return the most rounds with which readers are within a limit; 0 if none.

        Each has up to `tokens` tokens in every batch.

        Raises:
            ValueError: an argument is out of its range.
        """
        if not 0 < amount_of(limit) < math.inf:
            raise ValueError(f"epsilon must be positive and finite, not {limit}")

        def within(rounds: int) -> bool:
            spent = self.of_rounds(rounds).spent(limit, tokens, delta) if rounds else 0.0
            return spent <= amount_of(limit)

        if self.one is None or self.secret is None or _hides_nothing(self.secret):
            return largest(within, 1)
        share = self._share(delta)
        rounds, tried = self._normal_rounds(limit, tokens, share), None
        for _ in range(_MOST_LOOKS):
            if (least := _least_delta(share, rounds, self.records)) == tried:
                break
            rounds, tried = self._most_rounds(limit, tokens, share, rounds), least
        while not within(rounds):
            rounds = min(rounds - 1, math.floor(rounds * (1 - _CLOSER)))
        return rounds

    def of_rounds(self, rounds: int) -> ReleaseAccountant:
        """Return the same accountant with another number of rounds."""
        secret = None if self.secret is None else replace(self.secret, rounds=rounds)
        return replace(self, batch=replace(self.batch, rounds=rounds), secret=secret)

    def of_budget(self, rho: float) -> ReleaseAccountant:
        """Return the same accountant of any number of tokens: rho is one record's in one round."""
        assert self.one is not None  # or the levels are equal
        most = math.nextafter(rho * self._budgets, math.inf)
        batch = replace(self.batch, eta=math.inf, most_rho=most)
        return replace(self, batch=batch, one=replace(self.one, eta=math.inf, most_rho=rho))

    def _most_rounds(self, limit: Limit, tokens: int, delta: float, rounds: int) -> int:
        """Return the most rounds within a limit, one at least.

        Each has the profile that it has among `rounds`.
        """
        one, secret = self.one, self.secret
        assert one is not None and secret is not None  # or the levels are equal

        def within(texts: Profile) -> bool:
            unit = _unit_profile(texts, self.records)
            if isinstance(limit, AttackLimit):
                beside = self.batch.beside_clusters([unit], delta)
                return any(limit.allows(AttackCurve.of_profile(each)) for each in beside)
            return joint_epsilon([self._parts_with_clusters(unit)], delta).epsilon <= limit

        least = _least_delta(delta, rounds, self.records)
        by_group = (
            [
                most_rounds(each, delta / self.records**2, within)
                for each in _round_profiles(((one, tokens),), pair, least)
            ]
            for pair in costliest(secret)
        )
        return max(1, int(np.array([*by_group]).min(axis=0).max()))

    def _normal_rounds(self, limit: Limit, tokens: int, delta: float) -> int:
        """Estimate how many rounds are within a limit, if what they tell were normal."""
        assert self.one is not None  # or the levels are equal
        spread = math.expm1(min(2 * self.one.rho(tokens), _MUCH)) * self._spread
        if not spread:
            return 1
        return max(1, int(min(_normal_deviations(limit, delta) ** 2 / spread, MOST_ROUNDS)))

    def _normal_rho(self, limit: Limit, delta: float) -> float:
        """Estimate the budget within a limit, if what all rounds tell were normal."""
        spread = self._spread * self.batch.rounds
        if not spread:
            return _MUCH
        return math.log1p(_normal_deviations(limit, delta) ** 2 / spread) / 2

    @property
    def _spread(self) -> float:
        """The variance of a release's likelihood ratio for each of a batch's, and its records."""
        assert self.secret is not None  # or the levels are equal
        return (
            max(generated / batches**2 for batches, generated in self.secret.groups)
            * self.records**2
        )

    @property
    def _budgets(self) -> float:
        """The batch level's rho in units of one record's in one round.

        Chains of records add up by the roots.
        """
        if (
            self.one is not None
            and 0 < self.one.most_rho < math.inf
            and self.batch.most_rho < math.inf
        ):
            return self.batch.most_rho / self.one.most_rho
        return float(self.records**2)

    @property
    def _all_possible_rounds(self) -> ReleaseAccountant:
        """The accountant of all possible rounds: it holds wherever the run stops, at any delta."""
        return replace(self.of_rounds(max(self.shares, self.batch.rounds)), shares=1)

    def _share(self, delta: float) -> float:
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, not {delta}")
        return delta_share(delta, self.shares)

    def _parts_with_clusters(self, texts: Profile) -> Parts:
        """Return the parts of texts of that profile, and of the clusters."""
        batch = self.batch
        pure = (batch.centers,) * bool(batch.centers)
        return Parts(laplace=batch.laplace, pure=pure, delta=batch.centers_delta, profiles=(texts,))

    def _texts(self, tokens: int, delta: float) -> tuple[Profile, ...]:
        """Return the release-level profiles of one unit's texts, all of which hold.

        There are none if the theorem does not apply.
        """
        if self.one is None or self.secret is None or _hides_nothing(self.secret):
            return ()
        return _texts(
            ((self.one, tokens),), self.secret, self.records, self.batch.delta_left(delta)
        )


def delta_share(delta: float, shares: int) -> float:
    """Return one stopping point's share of a delta, rounded down."""
    return delta if shares == 1 else math.nextafter(delta / shares, 0.0)


def amount_of(limit: Limit) -> float:
    """Return the largest figure that a limit allows."""
    return limit.most if isinstance(limit, AttackLimit) else limit


def _normal_deviations(limit: Limit, delta: float) -> float:
    """Return how many standard deviations a normal output may move within a limit at delta."""
    if isinstance(limit, AttackLimit):
        return limit.deviations()
    epsilon = limit
    low, high, normal = 0.0, min(1 + 2 * epsilon, 80 + 2 * math.sqrt(epsilon)), NormalDist()
    # Above some 700 nats the second term is negligible, and its factor overflows.
    factor = math.exp(epsilon) if epsilon < 700 else 0.0
    for _ in range(40):
        mu = (low + high) / 2
        found = normal.cdf(mu / 2 - epsilon / mu) - factor * normal.cdf(-mu / 2 - epsilon / mu)
        low, high = (mu, high) if found <= delta else (low, mu)
    return low


class Plan(NamedTuple):
    """A number of rounds, its texts and its cost.

    Attributes:
        rounds: how many.
        texts: of all of them.
        epsilon: of all of them, for readers, in nats.
        batch_epsilon: for someone who knows a record's batches, in nats.
    """

    rounds: int
    texts: int
    epsilon: float
    batch_epsilon: float


def most_texts(
    accountant: ReleaseAccountant, limit: Limit, tokens: int, delta: float, texts: int
) -> Plan:
    """Return the most texts that readers may have within a limit.

    Args:
        accountant: of any number of rounds.
        limit: for readers.
        tokens: as for `ReleaseAccountant.batch_level`.
        delta: as for it.
        texts: of one round, all its groups together; positive.

    Returns:
        A plan of no rounds if one costs too much.

    Raises:
        ValueError: an argument is out of its range.
    """
    rounds = accountant.most_rounds_within(limit, tokens, delta)
    if not rounds:
        return Plan(0, 0, 0.0, 0.0)
    return _plan(accountant, rounds, tokens, delta, texts)


def cost_of_texts(
    accountant: ReleaseAccountant, wanted: int, tokens: int, delta: float, texts: int
) -> Plan:
    """Return the cost of `wanted` texts, in as many whole rounds as they take.

    Args, Raises:
        As for `most_texts`; `wanted` is positive.
    """
    return _plan(accountant, -(-wanted // texts), tokens, delta, texts)


def _plan(
    accountant: ReleaseAccountant, rounds: int, tokens: int, delta: float, texts: int
) -> Plan:
    whole = accountant.of_rounds(rounds)
    return Plan(
        rounds,
        rounds * texts,
        whole.epsilon(tokens, delta),
        whole.batch_level(tokens, delta).epsilon,
    )


def of_one_key(
    releases: Sequence[tuple[ReleaseAccountant, int]], delta: float
) -> tuple[Parts, ...]:
    """Return the parts of releases whose batches are drawn by one key.

    They have as many batches, and the same groups. A record is in the same batch in all of them. So
    that batch's texts, of all releases, are composed first, and secrecy amplifies them once; round
    by round (docs/composition.md).

    Args:
        releases: without clusters, of the same unit; and the most tokens of a batch of each.
        delta: in (0, 1), the least that matters.

    Returns:
        As one release, or each at the batch level if that costs less or nothing is known beyond it.
    """
    apart = tuple(release.batch.parts(tokens) for release, tokens in releases)
    first = releases[0][0]
    batch = tuple((release.one, tokens) for release, tokens in releases if release.one is not None)
    alike = all(
        (each.secret, each.records, each.shares) == (first.secret, first.records, 1)
        for each, _ in releases
    )
    if (
        not alike
        or first.secret is None
        or len(batch) < len(releases)
        or _hides_nothing(first.secret)
    ):
        return apart
    candidates = [
        (Parts(profiles=(profile,)),)
        for profile in _texts(batch, first.secret, first.records, delta)
    ]
    return min((apart, *candidates), key=lambda parts: joint_epsilon(parts, delta).epsilon)


#: Draws of one record's batch in one round, of one release or several: the cost of each, and its
#: number of tokens.
_Batch = tuple[tuple[ApproximateAccountant, int], ...]


@lru_cache(maxsize=32)
def _texts(batch: _Batch, secret: SecretBatches, records: int, delta: float) -> tuple[Profile, ...]:
    """Return the release-level profiles of one unit's texts.

    Rounds are composed first, then records.
    """
    if not delta:
        return ()
    least = _least_delta(delta, secret.rounds, records)
    groups = [_round_profiles(batch, pair, least) for pair in costliest(secret)]
    return tuple(
        _unit_profile(
            largest_of(
                [profile_of_rounds(each, secret.rounds, delta / records**2) for each in profiles]
            ),
            records,
        )
        for profiles in zip(*groups, strict=True)
    )


@lru_cache(maxsize=32)
def _round_profiles(batch: _Batch, pair: tuple[int, int], least: float) -> tuple[Profile, ...]:
    """Return the release-level profiles of one record's texts of one round.

    They end where `least` is all that is left of delta.
    """
    batches, generated = pair
    each = product(*(one.profiles(tokens, least).values() for one, tokens in batch))
    together = (reduce(partial(profile_of_both, delta=least), profiles) for profiles in each)
    return tuple(allocated(profile, batches, generated, least) for profile in together)


def _least_delta(delta: float, rounds: int, records: int) -> float:
    """Return the delta that still matters for one of the rounds and records.

    It is a power of 4, so that others may share the result.
    """
    return float(4.0 ** math.floor(math.log(max(delta / (rounds * records**2), TINY), 4)))


def _unit_profile(profile: Profile, records: int) -> Profile:
    """Return the profile of `records` records, one after another."""
    if records == 1:
        return profile
    if records > MOST_RECORDS or profile.step < FINEST:
        return _EVERYTHING
    end, points = records * (len(profile.deltas) - 1) * profile.step, 2 * POINTS
    return AttackCurve.of_profile(profile).group(records).profile(end / (points - 1), points)
