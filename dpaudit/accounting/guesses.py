"""What right guesses of secret coins refute, and what can be said of their number.

For fair coins of canaries the method is that of Steinke, Nasr, Jagielski (arXiv 2305.08846).
docs/mathematics.md has the proofs ("Secret coins").
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from dpaudit.accounting.coins import (
    ABSTAIN,
    MOST_EPSILON,
    Flags,
    Integers,
    RefutingCoins,
    ShownCoins,
)
from dpaudit.accounting.laws import (
    ROUNDING,
    Floats,
    lower_tail,
    poisson_binomial_law,
    tail,
    upper_tails,
)

#: The probability of refuting a mechanism that keeps its epsilon, in figures that are shown.
REFUTED_AT = 0.05
#: The same in a check of canaries, which would fail by it: for either of its two tests.
ALARM_AT = 1e-4 / 2
#: The fewest canaries that refute anything at that level: with fewer, all guesses may be right or
#: wrong by luck.
LEAST_CANARIES = 16
#: Above this the bound for a settled number of guesses with a delta is not relied on.
_MOST_WITH_DELTA = 0.5
#: Epsilons are found to this, in nats.
_RESOLUTION = 2.0**-44


@dataclass(frozen=True)
class GuessedCoins:
    """Guesses of coins, held against the guarantee of a mechanism.

    Attributes:
        coins: of n units.
        guesses: of all units, ABSTAIN if none [n]. Who is guessed, how many, and how may follow
            from the texts.
        delta: of the guarantee, in [0, 1]: for one record.
        records: how many records each unit has [n]; one each if None.
        settled: whether the coins are fair, and number and kind of guesses were settled beforehand.
    """

    coins: RefutingCoins
    guesses: Integers
    delta: float = 0.0
    records: Integers | None = None
    settled: bool = False

    def __post_init__(self) -> None:
        fair = isinstance(self.coins, ShownCoins) and not self.coins.released
        if self.settled and not (fair and (self.coins.shares == 0.5).all()):  # type: ignore[attr-defined]
            raise ValueError("a settled number of guesses needs fair coins")
        if not 0 <= self.delta <= 1:
            raise ValueError(f"delta {self.delta}")

    @property
    def number(self) -> int:
        """How many coins are guessed."""
        return int(np.count_nonzero(self.guesses != ABSTAIN))

    def p_value(self, right: int, epsilon: float) -> float:
        """Return a p-value of the guarantee if so many guesses are right; rounded up.

        It is P[at least `right`] of independent guesses at their largest chances, plus, with a
        delta, delta times the sum of the coins' `spill`. It holds given the texts if delta is 0,
        and over all texts if not.

        For m coins that are fair and r guesses that are settled beforehand, with a delta, it is the
        bound of Steinke, Nasr, Jagielski,

            beta + 2 m delta max over 1 <= i <= right of (P[Bin(r, q) >= right - i] - beta) / i,

        beta = P[Bin(r, q) >= right], q = sigma(epsilon). It is no theorem: some mechanisms exceed
        it where it is close to 1 (docs/canaries.md). It is taken up to 1/2, where linear programs
        up to 100 coins find none that does, and 1 stands for all beyond.

        Args:
            right: how many guesses are right.
            epsilon: of one record, in nats, 0 or more.

        Raises:
            ValueError: the numbers do not fit each other.
        """
        return self._bound(right, epsilon, epsilon)

    def epsilon_refuted(self, right: int, level: float = REFUTED_AT) -> float:
        """Return the largest epsilon that so many right guesses refute, in nats, rounded down.

        All smaller ones are refuted, too; 0 if none is.
        """
        if self._bound(right, 0.0, 0.0) > level:
            return 0.0
        refuted, step = 0.0, 512.0
        # With a delta a p-value may fall as epsilon grows, and only an unbroken range of refuted
        # epsilons from 0 on keeps the level.
        while step > _RESOLUTION:
            end = refuted + step
            if end <= MOST_EPSILON and self._bound(right, refuted, end) <= level:
                refuted = end
            else:
                step /= 2
        return refuted

    def most_refutable(self, level: float = REFUTED_AT) -> float:
        """Return the epsilon that is refuted if all guesses are right, in nats, rounded down."""
        return self.epsilon_refuted(self.number, level)

    def _bound(self, right: int, low: float, high: float) -> float:
        """Return a bound on the p-values of all epsilons from `low` to `high`, rounded up.

        The tail grows with epsilon, and the spill falls.
        """
        if not (0 <= right <= self.number and 0 <= low <= high):
            raise ValueError(f"{right} of {self.number} guesses right, at epsilon {low}")
        if not right:
            return 1.0
        each = np.ones(len(self.guesses)) if self.records is None else self.records.astype(float)
        chances = self.coins.chances(self.guesses, high * each)[self.guesses != ABSTAIN]
        tails = upper_tails(poisson_binomial_law(chances))
        bound = float(tails[right])
        if not self.delta:
            return bound
        if self.settled:
            return _settled_bound(tails, len(self.guesses), right, self.delta)
        # k records cost delta (1 + exp(epsilon) + ... + exp((k - 1) epsilon)), and 1 at most.
        with np.errstate(over="ignore"):
            times = np.expm1(each * high) / np.expm1(high) if high else each
        deltas = np.minimum(self.delta * times, 1.0)
        return min(1.0, (bound + float(self.coins.spill(low * each) @ deltas)) * (1 + ROUNDING))


def _settled_bound(tails: Floats, coins: int, right: int, delta: float) -> float:
    """Return the bound of Steinke, Nasr, Jagielski, or 1 where it is not relied on."""
    beta, steps = float(tails[right]), np.arange(1, right + 1)
    more = float(((tails[right - steps] - beta) / steps).max())
    found = (beta + 2 * coins * delta * more) * (1 + ROUNDING)
    return found if found <= _MOST_WITH_DELTA else 1.0


def canary_guesses(number: int, delta: float = 0.0) -> GuessedCoins:
    """Return the guesses of canaries that were in or out by fair coins: all are guessed."""
    guesses = np.ones(number, dtype=np.int64)
    return GuessedCoins(ShownCoins(np.full(number, 0.5), both=True), guesses, delta, settled=True)


def chance_of(epsilon: float) -> float:
    """Return sigma(epsilon): the chance of a right guess of a fair coin whose log-odds it is."""
    return 1 / (1 + math.exp(-min(epsilon, MOST_EPSILON)))


@dataclass(frozen=True)
class Caused:
    """How many of the named units were named because they were shown.

    Attributes:
        expected: how many shown units chance would have named, by the held-out ones.
        estimate: how many beyond that were named, and may be negative.
        low: limit of 95%.
        high: limit of 95%.
    """

    expected: float
    estimate: float
    low: int
    high: int


def caused(shares: Floats, shown: Flags, level: float = REFUTED_AT) -> Caused:
    """Estimate how many of the named units were named because they were shown.

    The model: c units were named because of their coins, and all of these are shown; coins say
    nothing of why the others were named. The limits are those c that neither tail rejects. Which
    units the c are is unknown, so those are taken off that let c pass.

    Args:
        shares: with which probability each named unit is shown [n].
        shown: which of them are [n].
        level: the probability that the limits miss c.
    """
    number, ordered = int(shown.sum()), np.sort(shares)
    expected = float((shares[~shown] / (1 - shares[~shown])).sum())

    # One named unit fewer, and a shown one: the upper tail grows with c, and the lower one falls.
    low = bisect_left(range(number), True, key=lambda c: tail(ordered[c:], number - c) > level / 2)
    above = bisect_left(
        range(number + 1),
        True,
        key=lambda c: lower_tail(ordered[: len(ordered) - c], number - c) <= level / 2,
    )
    return Caused(expected, number - expected, low, max(low, above - 1))
