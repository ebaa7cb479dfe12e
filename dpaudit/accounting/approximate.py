"""The cost of a run beforehand.

(epsilon, delta) from public settings alone, for every possible text.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal

import numpy as np

from dpaudit.accounting.composition import (
    Composition,
    Method,
    exponential_mechanism_epsilon,
    privacy_profile,
    reached_epsilon,
    steps_within,
)
from dpaudit.accounting.gaussian import gaussian_epsilon, gaussian_profile, gaussian_table
from dpaudit.accounting.joint import Parts
from dpaudit.accounting.profiles import NOTHING, Profile, profile_of_both, pure_profile
from dpaudit.accounting.renyi import (
    LARGEST,
    ULP,
    rounded_sum,
    sum_up,
    zcdp_epsilon,
    zcdp_of_pure,
    zcdp_of_range,
)
from dpaudit.accounting.risk import AttackCurve, AttackLimit, Limit, Way
from dpaudit.accounting.zcdp import zcdp_profile
from dpaudit.mechanisms import ContextChange, GaussianDraws, Mechanism

MOST_TOKENS = 1 << 40
_TOO_MANY = "this affords more than 2^40 tokens under these settings: check them"
#: The search for a budget aims at this share of what attacks may gain, and is content with its
#: square. It ends where budgets are as close as this, relatively or in nats, and leaves out a part
#: at least.
_BELOW, _CLOSE, _LEAST_RHO, _LEAST_PART = 1 - 2.0**-20, 2.0**-30, 1e-18, 2.0**-8
#: How often a guess of tokens is corrected by the curve that it has.
_CORRECTIONS = 2
#: Optimal composition saves a tenth of epsilon or so; twice the rho costs two fifths more.
_FAR = 2.0
#: Clusters that cost more nats protect nobody: no profile is worked out beside them.
_MOST_CLUSTERS = 500.0


@dataclass(frozen=True)
class ApproximateAccountant:
    """The approximate guarantee of runs by their number of tokens.

    Noisy counts are composed jointly with the tokens; the centres' epsilon and delta are added to
    theirs.

    Attributes:
        eta: bounded range of one draw, in nats; infinite if nothing bounds it.
        laplace: epsilons of noisy counts, one each (`rebalancing_events`).
        centers: epsilon of noised centres, in nats.
        centers_delta: their delta.
        most_rho: zCDP of any number of tokens (`Mechanism.rho`), in one round; infinite if nothing
            bounds them together.
        gaussian: what draws by noise cost; None of those by softmax.
        rounds: how many batches a record is in, one after another; budgets are anew in each.

    Raises:
        ValueError: what the centres cost is negative or no number, or there is no round.
    """

    eta: float
    laplace: tuple[float, ...] = ()
    centers: float = 0.0
    centers_delta: float = 0.0
    most_rho: float = math.inf
    gaussian: GaussianDraws | None = None
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"there is at least one round, not {self.rounds}")
        if not (self.centers >= 0 and 0 <= self.centers_delta <= 1):
            raise ValueError(
                f"centres cost at least 0, with a delta from 0 to 1, not {self.centers}, "
                f"{self.centers_delta}"
            )

    @classmethod
    def of(
        cls,
        mechanism: Mechanism,
        change: ContextChange | None,
        *,
        laplace: tuple[float, ...] = (),
        centers: float = 0.0,
        centers_delta: float = 0.0,
        rounds: int = 1,
    ) -> ApproximateAccountant | None:
        """Return the accountant of a mechanism, or None if only the data shows its cost.

        If `change` is None, nothing is bounded.
        """
        if (gaussian := mechanism.gaussian(change)) is not None:
            return cls(math.inf, laplace, centers, centers_delta, gaussian=gaussian, rounds=rounds)
        eta = mechanism.eta(change or ContextChange("add_remove"))
        if eta is None:
            return None
        if change is None:
            return cls(math.inf, laplace, centers, centers_delta, rounds=rounds)
        most_rho = mechanism.rho(change)
        if most_rho is None:
            most_rho = math.inf
        return cls(eta, laplace, centers, centers_delta, most_rho, rounds=rounds)

    def without_clusters(self) -> ApproximateAccountant:
        """Return the accountant of the tokens alone."""
        return replace(self, laplace=(), centers=0.0, centers_delta=0.0)

    def parts(self, tokens: int) -> Parts:
        """Return the parts of a run of up to `tokens` tokens in every batch.

        They can be composed with other releases.
        """
        clusters = Parts(
            laplace=self.laplace,
            pure=self._pure,
            delta=self.centers_delta,
        )
        if self.gaussian is not None:
            return replace(clusters, renyi=(gaussian_table(self.gaussian, tokens * self.rounds),))
        if self.budgets_rho < zcdp_of_range(self.eta, tokens * self.rounds):
            return replace(clusters, rho=self.budgets_rho)
        return replace(clusters, segments=((self.eta, tokens * self.rounds),))

    @property
    def budgets_rho(self) -> float:
        """`most_rho` of all rounds together, rounded up."""
        return _all_rounds(self.most_rho, self.rounds)

    def rho(self, tokens: int) -> float:
        """Return rho of the zCDP guarantee of `tokens` tokens a round.

        It is eta^2 / 8 each, up to what budgets allow.
        """
        return min(zcdp_of_range(self.eta, tokens * self.rounds), self.budgets_rho)

    def rho_of_clusters(self) -> float:
        """Return rho of noisy counts and centres; infinite if the centres have a delta.

        No rho follows from a delta.
        """
        if self.centers_delta:
            return math.inf
        return sum_up(zcdp_of_pure(epsilon) for epsilon in (*self.laplace, self.centers) if epsilon)

    def rho_of_all(self, tokens: int) -> float:
        """Return rho of everything, clusters included, rounded up; infinite for draws without."""
        if self.gaussian is not None:
            return math.inf
        return rounded_sum(self.rho(tokens), self.rho_of_clusters())

    def delta_left(self, delta: float) -> float:
        """Return what the centres leave of a delta, rounded down; 0 if nothing."""
        if not self.centers_delta:
            return delta
        return max(0.0, math.nextafter(delta - self.centers_delta, 0.0))

    def profiles(self, tokens: int, delta: float) -> dict[Way, Profile]:
        """Return bounds on delta(e) of a run of up to `tokens` tokens in every batch, by their way.

        Clusters are included. There may be none.

        Args:
            tokens: as for `epsilon`.
            delta: in (0, 1), of everything, the least that matters.
        """
        left, draws = self.delta_left(delta), tokens * self.rounds
        if not left or self._clusters > _MOST_CLUSTERS:
            return {}
        whole: dict[Way, Profile] = {}
        alone: dict[Way, Profile] = {}
        if self.gaussian is not None:
            alone["pld"] = gaussian_profile(self.gaussian, draws, left)
        elif not (self.eta and draws):
            alone["ranges"] = NOTHING
        else:
            by_budgets, by_range = self.budgets_rho, zcdp_of_range(self.eta, draws)
            least, by_ranges = by_budgets, None
            if by_range <= _FAR * by_budgets:
                by_ranges = privacy_profile(
                    self.eta, draws, left, laplace=self.laplace, pure=self._pure
                )
            if by_ranges is not None:
                whole["ranges"] = self._beside_delta(by_ranges)
            else:
                least = min(least, by_range)
            if least < LARGEST:
                alone["zcdp"] = zcdp_profile(least, left)
        together = self.beside_clusters([*alone.values()], delta)
        return whole | dict(zip(alone, together, strict=True))

    def beside_clusters(self, texts: Sequence[Profile], delta: float) -> list[Profile]:
        """Return the profiles of texts, which have the given ones, and of clusters; perhaps none.

        Args:
            texts: as `without_clusters` has them.
            delta: as for `profiles`; the centres' own is less.
        """
        left, pure = self.delta_left(delta), self._clusters
        if pure > _MOST_CLUSTERS:
            return []
        if pure and texts:
            events = privacy_profile(0.0, 0, left, laplace=self.laplace, pure=self._pure)
            clusters = events or pure_profile(pure)
            texts = [profile_of_both(each, clusters, left) for each in texts]
        return [self._beside_delta(each) for each in texts]

    def attack_curve(self, tokens: int, delta: float) -> AttackCurve:
        """Bound what someone who knows a record's batches can tell about one unit.

        Args:
            tokens: as for `epsilon`.
            delta: in (0, 1), the least that matters. The bound holds at every false-positive rate.
        """
        draws = tokens * self.rounds
        most = sum_up([self.eta * draws if draws else 0.0, self._clusters])
        # No loss lies beyond the sum of all ranges and epsilons.
        whole = AttackCurve.of_epsilon(most * (1 + 4 * ULP), self.centers_delta)
        if not (found := self.profiles(tokens, delta)):
            return whole
        curves = [AttackCurve.of_profile(profile, way) for way, profile in found.items()]
        return replace(whole, ways=()).meet(*curves)

    @property
    def _pure(self) -> tuple[float, ...]:
        return (self.centers,) * bool(self.centers)

    @property
    def _clusters(self) -> float:
        """Pure epsilon of noisy counts and centres together, rounded up."""
        return sum_up([*self.laplace, *self._pure])

    def _beside_delta(self, profile: Profile) -> Profile:
        """Return a profile with the centres' delta added."""
        return Profile(profile.step, np.minimum(profile.deltas + self.centers_delta, 1.0))

    def epsilon(self, tokens: int, delta: float, method: Method = "optimal") -> Composition:
        """Return the cost of a run that may sample up to `tokens` tokens in every batch.

        Args:
            tokens: the most that a batch may have, not a realised number.
            delta: in (0, 1), of everything.
            method: how to compose (`exponential_mechanism_epsilon`).

        Raises:
            ValueError: an argument is out of its range.
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, not {delta}")
        left = self.delta_left(delta)
        if not left:  # the centres alone have spent it
            return Composition(math.inf, None, delta, method)
        found = self._epsilon_of_tokens(tokens, left, method)
        lower = None if self.centers_delta else found.epsilon_lower
        return Composition(rounded_sum(found.epsilon, self.centers), lower, delta, found.method)

    def _epsilon_of_tokens(self, tokens: int, delta: float, method: Method) -> Composition:
        """Return `epsilon` without the centres.

        It is by the ranges of all draws or, if that is less, by budgets.
        """
        if self.gaussian is not None:
            epsilon = gaussian_epsilon(
                self.gaussian, tokens * self.rounds, delta, method, self.laplace
            )
            return Composition(epsilon, None, delta, method)
        by_budgets = Composition(self._epsilon_by_budgets(delta), None, delta, "zcdp")
        # This far beyond the budgets the slow recursion cannot come below them.
        draws = tokens * self.rounds
        if zcdp_of_range(self.eta, draws) > _FAR * self.budgets_rho:
            return by_budgets
        by_ranges = exponential_mechanism_epsilon(
            self.eta, draws, delta, method=method, laplace=self.laplace
        )
        return min(by_ranges, by_budgets, key=lambda found: found.epsilon)

    def surely(self, tokens: int, delta: float) -> float:
        """Return a lower bound on `epsilon` by any method, in nats, rounded down; it is quick."""
        left = self.delta_left(delta)
        if not left or self.gaussian is not None or math.isinf(self.eta):
            return 0.0
        by_ranges = reached_epsilon(self.eta, tokens * self.rounds, left, laplace=self.laplace)
        return math.nextafter(min(by_ranges, self._epsilon_by_budgets(left)) + self.centers, 0.0)

    def budgets_epsilon(self, delta: float) -> float:
        """Return the cost of any number of tokens by contexts' budgets; infinite without them.

        Args:
            delta: in (0, 1), of everything.

        Raises:
            ValueError: delta is not in (0, 1).
        """
        left = self.delta_left(delta)
        if not left:
            return math.inf
        return rounded_sum(self._epsilon_by_budgets(left), self.centers)

    def _epsilon_by_budgets(self, delta: float) -> float:
        if math.isinf(self.most_rho):
            return math.inf
        return zcdp_epsilon(self.budgets_rho, delta, laplace=self.laplace)

    def most_rho_within(self, limit: Limit, delta: float) -> float:
        """Return the largest `most_rho` with which any number of tokens stays within a limit.

        It is rounded down to nine digits, so that a later recomputation does not come out above
        the limit.

        Args:
            limit: of everything.
            delta: in (0, 1), of everything; for a limit on attacks the least that matters.

        Raises:
            ValueError: an argument is out of its range, or clusters alone exceed the limit.
        """
        left = self._require_room(limit, delta)
        if isinstance(limit, AttackLimit):
            return self._most_rho_at_risk(limit, delta)

        def within(rho: float) -> bool:
            spent = zcdp_epsilon(_all_rounds(rho, self.rounds), left, laplace=self.laplace)
            return rounded_sum(spent, self.centers) <= limit

        low, high = 0.0, limit  # rho-zCDP costs more than rho
        while high - low > high * 2.0**-40:
            middle = (low + high) / 2
            if within(middle):
                low = middle
            else:
                high = middle
        return rounded_down(low)

    def _most_rho_at_risk(self, limit: AttackLimit, delta: float) -> float:
        def reached(rho: float) -> float:
            budgets = replace(self, eta=math.inf, gaussian=None, most_rho=rho)
            return limit.reached(budgets.attack_curve(1, delta))

        high = limit.deviations() ** 2 / (2 * self.rounds)
        if limit.at is None:
            # Randomised response attains 2 v atanh v; clusters leave less.
            high = 2 * limit.most * math.atanh(limit.most) * (1 - 4 * ULP) / self.rounds
            if reached(found := rounded_down(high)) <= limit.most:
                return found
        # Squares of deviations are about linear in rho.
        low, below = 0.0, limit.deviations(limit.reached(self.attack_curve(0, delta))) ** 2
        while (told := reached(high)) <= limit.most:
            low, below, high = high, limit.deviations(told) ** 2, 2 * high
        above, aimed = limit.deviations(told) ** 2, limit.deviations(limit.most * _BELOW) ** 2
        while high - low > max(high * _CLOSE, _LEAST_RHO):
            share = (aimed - below) / (above - below) if above > below else 0.5
            middle = low + (high - low) * min(max(share, _LEAST_PART), 1 - _LEAST_PART)
            told = reached(middle)
            if told > limit.most:
                high, above = middle, limit.deviations(told) ** 2
                continue
            low, below = middle, limit.deviations(told) ** 2
            if told >= limit.most * _BELOW**2:
                break
        return rounded_down(low)

    def _require_room(self, limit: Limit, delta: float) -> float:
        """Return what the centres leave of a delta.

        Raises:
            ValueError: the clusters leave nothing.
        """
        spent = "the rebalancing alone costs"
        if self.centers or self.centers_delta:
            spent = "the clusters alone cost"
        if isinstance(limit, AttackLimit):
            reached = limit.reached(self.attack_curve(0, delta))
            if reached <= limit.most or self == self.without_clusters():
                return self.delta_left(delta)
            raise ValueError(f"{limit} is less than {spent}: {math.ceil(reached * 1e4) / 1e4:g}")
        if not 0 < limit < math.inf:
            raise ValueError(f"epsilon must be positive and finite, not {limit}")
        if self.epsilon(0, delta, "rdp").epsilon > limit:
            raise ValueError(f"epsilon {limit:g} is less than {spent}")
        return self.delta_left(delta)

    def affordable_tokens(self, limit: Limit, delta: float, method: Method = "rdp") -> int:
        """Return the most tokens of a batch with which the run stays within a limit at `delta`.

        Raises:
            ValueError: an argument is out of its range, clusters alone exceed the limit, or the
                answer is beyond 2^40 tokens, as it is where budgets keep any number of them within
                the limit.
        """
        self._require_room(limit, delta)
        if isinstance(limit, AttackLimit):
            return self._tokens_at_risk(limit, delta)

        def within(tokens: int, by: Method = method) -> bool:
            return self.epsilon(tokens, delta, by).epsilon <= limit

        if within(MOST_TOKENS, "rdp"):
            raise ValueError(_TOO_MANY)
        if method == "rdp" or self.gaussian is not None:
            return largest(within, 0)
        by_rdp = 0
        if within(0, "rdp"):
            by_rdp = largest(lambda tokens: within(tokens, "rdp"), 0)
        # One pass over the recursion comes close; a few calls of the bound itself settle it.
        most, left = by_rdp + by_rdp // 4 + 16, limit - self.centers
        guess = steps_within(
            left, self.eta, most * self.rounds, self.delta_left(delta), laplace=self.laplace
        )
        return largest(within, max(by_rdp, guess // self.rounds))

    def _tokens_at_risk(self, limit: AttackLimit, delta: float) -> int:
        def reached(tokens: int) -> float:
            return limit.reached(self.attack_curve(tokens, delta))

        budgets = replace(self, eta=math.inf, gaussian=None)
        if not self.eta or (
            self.most_rho < math.inf and limit.allows(budgets.attack_curve(1, delta))
        ):
            raise ValueError(_TOO_MANY)
        # As many as lead equally likely normal laws as far apart; then by what these would reach.
        guess = (2 * limit.deviations() / self.eta) ** 2 / self.rounds
        for _ in range(_CORRECTIONS):
            if not 1 <= guess < MOST_TOKENS:
                break
            further = limit.deviations(reached(int(guess)))
            guess *= (limit.deviations() / further) ** 2 if further else 1.0
        if guess >= MOST_TOKENS:
            raise ValueError(_TOO_MANY)
        return largest(lambda tokens: not tokens or reached(tokens) <= limit.most, int(guess))


def _all_rounds(rho: float, rounds: int) -> float:
    return rho if rounds == 1 else math.nextafter(rho * rounds, math.inf)


def rounded_down(value: float) -> float:
    """Round down to nine digits."""
    if not value:
        return 0.0
    number = Decimal(value)
    last = Decimal(1).scaleb(number.adjusted() - 8)
    return float(number.quantize(last, rounding=ROUND_FLOOR))


def largest(within: Callable[[int], bool], guess: int) -> int:
    """Return the largest number that is within, near `guess`; 0 is within.

    Strides double, then they are bisected.
    """
    if within(guess):
        low, high = guess, guess + 1
        while within(high):
            low, high = high, 2 * high - guess
            if low > MOST_TOKENS:
                raise ValueError(_TOO_MANY)
    else:
        low, high = guess - 1, guess
        while not within(low):
            low, high = max(0, 2 * low - guess), low
    return low + bisect_left(range(low + 1, high), True, key=lambda tokens: not within(tokens))
