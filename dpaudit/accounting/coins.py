"""What secret coins refute: canaries in or out, batches drawn by a hash, lists split at random.

A coin says, for one unit (a record, a record in one round, a user), what a secret draw decided: in
the data or out of it, or which batch. Somebody sees the texts and all records, guesses some of the
coins, and abstains from the others. A guarantee bounds the chance of each guess, whatever was
guessed before, so the number of right guesses is at most that of independent guesses of these
chances. More right ones refute the guarantee; at epsilon 0 that is an exact test of whether the
texts depend on the coins at all.

docs/mathematics.md has the proofs ("Secret coins"). For fair coins of canaries the method is that
of Steinke, Nasr, Jagielski (arXiv 2305.08846).

A unit costs `epsilon`, in nats, at the batch level (the ratio of the texts' probabilities with the
unit in one given batch and in none, all else given) unless a class says otherwise. A guarantee
about a *replaced* record bounds none of that, but for `GroupCoins`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import override

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

#: A guess that is none.
ABSTAIN = -1
#: The coin of a unit that its hash holds out of all batches.
HELD_OUT = -2
#: The probability of refuting a mechanism that keeps its epsilon, in figures that are shown.
REFUTED_AT = 0.05
#: The same in a check of canaries, which would fail by it: for either of its two tests.
ALARM_AT = 1e-4 / 2
#: The fewest canaries that refute anything at that level: with fewer, all guesses may be right or
#: wrong by luck.
LEAST_CANARIES = 16
#: Above this the bound for a settled number of guesses with a delta is not relied on.
_MOST_WITH_DELTA = 0.5
#: Relative errors of sums over a million coins are below this in float64.
_ROUNDING = 1e-9
#: What far tails can lose to underflow.
_UNDERFLOW = 1e-305
#: Room for the dozen operations of one chance.
_UP = 1 + 2.0**-48
#: exp(-700) is still a normal double.
_MOST_EPSILON = 700.0
#: Epsilons are found to this, in nats.
_RESOLUTION = 2.0**-44


# Laws of the number of right guesses


def binomial_law(n: int, chance: float) -> Floats:
    """Return P[Bin(n, chance) = k] for k from 0 to n."""
    if chance in (0.0, 1.0):
        sure: Floats = (np.arange(n + 1) == n * chance).astype(np.float64)
        return sure
    k = np.arange(n, dtype=np.float64)
    return _law_of_ratios((n - k) / (k + 1) * (chance / (1 - chance)))


def hypergeometric_law(units: int, shown: int, guessed: int) -> Floats:
    """Return the law of how many of `guessed` units are among `shown` of `units`, from 0 up.

    Returns:
        Probabilities [guessed + 1].
    """
    law = np.zeros(guessed + 1)
    least, most = max(0, guessed - (units - shown)), min(guessed, shown)
    k = np.arange(least, most, dtype=np.float64)
    ratios = (shown - k) * (guessed - k) / ((k + 1) * (units - shown - guessed + k + 1))
    law[least : most + 1] = _law_of_ratios(ratios)
    return law


def poisson_binomial_law(chances: ArrayLike) -> Floats:
    """Return the law of the number of independent right guesses with these chances [n].

    Returns:
        Probabilities of 0 to n [n + 1].
    """
    values, counts = np.unique(np.asarray(chances, dtype=np.float64), return_counts=True)
    laws = [
        binomial_law(int(count), float(value)) for value, count in zip(values, counts, strict=True)
    ]
    return _sum_law(laws)


def _law_of_ratios(ratios: Floats) -> Floats:
    """Return the unimodal law whose neighbouring probabilities have these falling ratios [n].

    It is built from its mode outwards: small probabilities keep their digits, and nothing
    overflows.
    """
    mode = int(np.count_nonzero(ratios >= 1))
    below = np.cumprod(1 / ratios[:mode][::-1])[::-1]
    weights = np.concatenate((below, [1.0], np.cumprod(ratios[mode:])))
    law: Floats = weights / weights.sum()
    return law


def _sum_law(laws: Sequence[Floats]) -> Floats:
    """Return the law of a sum of independent numbers, each with its law from 0 up."""
    rest = list(laws) or [np.ones(1)]
    while len(rest) > 1:
        odd = rest[2 * (len(rest) // 2) :]
        rest = [np.convolve(*pair) for pair in zip(rest[::2], rest[1::2], strict=False)] + odd
    return rest[0]


def upper_tails(law: Floats) -> Floats:
    """Return the probability of k or more for every k of a law [n + 1], rounded up."""
    # From the small end, so that small tails keep their digits.
    tails = np.cumsum(law[::-1])[::-1] * (1 + _ROUNDING) + _UNDERFLOW
    tails[0] = 1.0
    return np.minimum(tails, 1.0)


def lower_tails(law: Floats) -> Floats:
    """Return the probability of k or fewer for every k of a law [n + 1], rounded up."""
    return upper_tails(law[::-1])[::-1]


def tail(chances: ArrayLike, right: int) -> float:
    """Return the probability that at least `right` independent guesses are right, rounded up.

    Args:
        chances: of each guess to be right, in [0, 1] [n].
        right: 0 to n.
    """
    return float(upper_tails(poisson_binomial_law(chances))[right])


def lower_tail(chances: ArrayLike, right: int) -> float:
    """Return the probability that at most `right` independent guesses are right, rounded up."""
    return float(lower_tails(poisson_binomial_law(chances))[right])


def chance_of(epsilon: float) -> float:
    """Return sigma(epsilon): the chance of a right guess of a fair coin whose log-odds it is."""
    return 1 / (1 + math.exp(-min(epsilon, _MOST_EPSILON)))


# Coins


class Coins(ABC):
    """The joint law of the coins of n units, and what a guess of one is.

    A guess is a value that a coin can have, or ABSTAIN.
    """

    @property
    @abstractmethod
    def shares(self) -> Floats:
        """With which probability each unit is shown [n]."""

    @abstractmethod
    def is_shown(self, values: Integers) -> Flags:
        """Return whether the coins' values [n] say that their units were shown."""

    @abstractmethod
    def null_law(self, guesses: Integers) -> Floats:
        """Return the law of the number of right guesses if the texts know nothing of the coins.

        Args:
            guesses: of all units [n].

        Returns:
            Probabilities of 0 to r, of r units that are guessed.

        Raises:
            ValueError: a guess that cannot be right.
        """

    @abstractmethod
    def draw(self, random: np.random.Generator, units: Integers, draws: int) -> Integers:
        """Draw the coins of some units from their joint law.

        Args:
            random: source of the draws.
            units: which ones, each once [m].
            draws: how many times.

        Returns:
            Values [draws, m].
        """

    @abstractmethod
    def least_right(self, level: float) -> int | None:
        """Return how many right guesses, and no wrong one, the null needs to be rejected.

        Return None if no number does.
        """

    @property
    def expected_shown(self) -> float:
        """How many units are shown in the mean."""
        return float(self.shares.sum())

    def expected_right(self, guesses: Integers) -> float:
        """Return the mean of `null_law`."""
        law = self.null_law(guesses)
        return float(law @ np.arange(len(law)))


class RefutingCoins(ABC):
    """Coins of which a guarantee bounds every guess, so that guesses can refute it."""

    @abstractmethod
    def chances(self, guesses: Integers, epsilon: float | Floats) -> Floats:
        """Return the largest chance of each guess to be right, rounded up [n]; 0 of an abstention.

        Args:
            guesses: of all units [n].
            epsilon: what each unit costs, in nats [n], or all of them.

        Raises:
            ValueError: a guess that cannot be right.
        """

    @abstractmethod
    def spill(self, epsilon: float | Floats) -> Floats:
        """Return what a delta adds at most to the chance of more right guesses, for each delta [n].

        It covers all guesses that might have been made, and falls as epsilon grows. Rounded up.
        """


class IndependentCoins(Coins, RefutingCoins):
    """Coins that are independent of each other."""

    @abstractmethod
    def _null_chances(self, guesses: Integers) -> Floats:
        """Return the chance of each guess to be right if the texts know nothing of the coins."""

    @override
    def null_law(self, guesses: Integers) -> Floats:
        return poisson_binomial_law(self._null_chances(guesses)[guesses != ABSTAIN])


@dataclass(frozen=True)
class ShownCoins(IndependentCoins):
    """Coins that say whether a unit was shown (1) or held out (0).

    Attributes:
        shown: the probability of each to be shown, strictly between 0 and 1 [n].
        released: whether a cost is what *readers of the release* learn: the ratio of the texts'
            probabilities with the unit in the data and without it, for somebody who knows all other
            units' coins, where "shown" is part of what the release draws (one of the generated
            batches, say). If not, it is the ratio of "shown" and "held out".
        both: whether "held out" may be guessed, too.
    """

    shown: Floats
    released: bool = False
    both: bool = False

    def __post_init__(self) -> None:
        if not ((self.shown > 0) & (self.shown < 1)).all():
            raise ValueError("a coin that is sure tells nothing: shares are between 0 and 1")

    @property
    @override
    def shares(self) -> Floats:
        return self.shown

    @override
    def is_shown(self, values: Integers) -> Flags:
        shown: Flags = values == 1
        return shown

    @override
    def draw(self, random: np.random.Generator, units: Integers, draws: int) -> Integers:
        return (random.random((draws, len(units))) < self.shown[units]).astype(np.int64)

    @override
    def least_right(self, level: float) -> int | None:
        shares = np.minimum(self.shown, 1 - self.shown) if self.both else self.shown
        return least_right(shares, level)

    @override
    def chances(self, guesses: Integers, epsilon: float | Floats) -> Floats:
        own, cost = self._null_chances(guesses), _bounded(epsilon)
        if self.released:
            bounds = np.where(guesses == 1, own - (1 - own) * np.expm1(-cost), own * np.exp(cost))
        else:
            bounds = 1 / (1 + (1 - own) / own * np.exp(-cost))
        return _rounded_up(bounds, guesses)

    @override
    def spill(self, epsilon: float | Floats) -> Floats:
        factor, share = np.exp(-_bounded(epsilon)), self.shown
        if self.released:
            released: Floats = (1 - share) * (factor + self.both) * _UP
            return released
        shown = share * (1 - share) * factor / (share + (1 - share) * factor)
        held_out = share * (1 - share) * factor / (1 - share + share * factor)
        spilt: Floats = (shown + held_out * self.both) * _UP
        return spilt

    @override
    def _null_chances(self, guesses: Integers) -> Floats:
        _refuse_other(guesses, (guesses == ABSTAIN) | (guesses == 1) | (self.both & (guesses == 0)))
        return np.where(guesses == 1, self.shown, 1 - self.shown)


@dataclass(frozen=True)
class BatchCoins(IndependentCoins):
    """Coins that say which batch of its group a unit's hash drew, or HELD_OUT.

    A guess is a batch that was generated. What it refutes is what *one batch* promises, and nothing
    of an epsilon that counts on the batches' secrecy.

    Attributes:
        batches: how many batches each unit's group has [n].
        generated: how many of them are generated, the first ones [n].
        held_out: the probability of being held out of all batches.
        rounds: how many rounds the units are of: all records in the first one, then all in the
            second, and so on. A record that is held out is so in all of them, and draws a batch
            in each if it is not.
    """

    batches: Integers
    generated: Integers
    held_out: float = 0.0
    rounds: int = 1

    def __post_init__(self) -> None:
        fits = (self.batches >= 1) & (self.generated >= 0) & (self.generated <= self.batches)
        if not (fits.all() and 0 <= self.held_out < 1):
            raise ValueError("a group has 1 batch or more, generates some, and holds out some")
        if self.rounds < 1 or len(self.batches) % self.rounds:
            raise ValueError("each round has all records")

    @property
    def linked(self) -> bool:
        """Whether units share a coin: a record's in several rounds, of being held out or not."""
        return self.rounds > 1 and self.held_out > 0

    def of_taking_part(self) -> BatchCoins:
        """Return the coins' law given who is held out, whose coins then say nothing.

        Where units share that coin this alone makes them independent, and an epsilon of one round
        bounds no more: held out or not is a difference in all rounds.
        """
        return replace(self, held_out=0.0) if self.linked else self

    @property
    @override
    def shares(self) -> Floats:
        return self._each * self.generated

    @override
    def is_shown(self, values: Integers) -> Flags:
        return (values >= 0) & (values < self.generated)

    @override
    def null_law(self, guesses: Integers) -> Floats:
        if not self.linked:
            return super().null_law(guesses)
        self._null_chances(guesses)
        counted = (guesses != ABSTAIN).reshape(self.rounds, -1).T
        laws = []
        for batches, own in zip(self.batches.reshape(self.rounds, -1).T, counted, strict=True):
            if own.any():
                law = (1 - self.held_out) * poisson_binomial_law(1 / batches[own])
                law[0] += self.held_out
                laws.append(law)
        return _sum_law(laws)

    @override
    def draw(self, random: np.random.Generator, units: Integers, draws: int) -> Integers:
        if self.linked:
            records, place = np.unique(
                units % (len(self.batches) // self.rounds), return_inverse=True
            )
            held_out = random.random((draws, len(records))) < self.held_out
            values = (random.random((draws, len(units))) * self.batches[units]).astype(np.int64)
            values[held_out[:, place]] = HELD_OUT
            return values
        wide = self.batches[units] / (1 - self.held_out)
        values = (random.random((draws, len(units))) * wide).astype(np.int64)
        if self.held_out:
            values[values >= self.batches[units]] = HELD_OUT
        return values

    @override
    def least_right(self, level: float) -> int | None:
        each = self._each.copy()
        if self.linked:  # a record that took part in one round does in all
            later = len(each) // self.rounds
            each[later:] = 1 / self.batches[later:]
        return least_right(each[self.generated > 0], level)

    @override
    def chances(self, guesses: Integers, epsilon: float | Floats) -> Floats:
        if self.linked:
            raise ValueError("units share coins: see of_taking_part")
        self._null_chances(guesses)
        return _rounded_up(1 / (1 + self._odds_against(epsilon)), guesses)

    @override
    def spill(self, epsilon: float | Floats) -> Floats:
        against = self._odds_against(epsilon)
        others = np.where(self.generated > 1, np.exp(-_bounded(epsilon)), 0.0)
        spilt: Floats = self.shares * ((against + others) / (1 + against)) * _UP
        return spilt

    @cached_property
    def _each(self) -> Floats:
        """The probability of each batch of a unit's group [n]."""
        return (1 - self.held_out) / self.batches

    def _odds_against(self, epsilon: float | Floats) -> Floats:
        """Return the least odds that a guess is wrong."""
        factor, nowhere = np.exp(-_bounded(epsilon)), (1 - self.shares) / self._each
        odds: Floats = np.maximum(self.generated - 1, 0) * factor**2 + nowhere * factor
        return odds

    @override
    def _null_chances(self, guesses: Integers) -> Floats:
        _refuse_other(guesses, (guesses == ABSTAIN) | self.is_shown(guesses))
        return self._each


@dataclass(frozen=True)
class SplitCoins(Coins):
    """Coins of lists that were split at random, so many to be shown (1), the rest held out (0).

    The sizes were fixed, so coins depend on each other: `matched` gives independent ones.

    Attributes:
        stratum: the number of each unit's stratum, within which lots were drawn [n].
        shown: how many units of each stratum were shown [strata].
    """

    stratum: Integers
    shown: Integers

    def __post_init__(self) -> None:
        if not ((self.shown >= 0) & (self.shown <= self.units)).all():
            raise ValueError("no more units are shown than a stratum has")

    @cached_property
    def units(self) -> Integers:
        """How many units each stratum has [strata]."""
        return np.bincount(self.stratum, minlength=len(self.shown)).astype(np.int64)

    @property
    @override
    def shares(self) -> Floats:
        return (self.shown / np.maximum(self.units, 1))[self.stratum]

    @override
    def is_shown(self, values: Integers) -> Flags:
        shown: Flags = values == 1
        return shown

    @override
    def null_law(self, guesses: Integers) -> Floats:
        _refuse_other(guesses, (guesses == ABSTAIN) | (guesses == 1))
        guessed = np.bincount(self.stratum[guesses == 1], minlength=len(self.shown))
        return _sum_law(
            [
                hypergeometric_law(int(units), int(shown), int(count))
                for units, shown, count in zip(self.units, self.shown, guessed, strict=True)
                if count
            ]
        )

    @override
    def draw(self, random: np.random.Generator, units: Integers, draws: int) -> Integers:
        values = np.zeros((draws, len(units)), dtype=np.int64)
        for number in np.unique(self.stratum[units]):
            shown = np.full(draws, self.shown[number])
            for drawn, unit in enumerate(np.flatnonzero(self.stratum[units] == number)):
                own = random.random(draws) * (self.units[number] - drawn) < shown
                values[:, unit] = own
                shown = shown - own
        return values

    @override
    def least_right(self, level: float) -> int | None:
        # The smallest probability of j right guesses, over all ways to spread them over strata.
        smallest = np.ones(1)
        for units, shown in zip(self.units.tolist(), self.shown.tolist(), strict=True):
            k = np.arange(shown)
            own = np.concatenate(([1.0], np.cumprod((shown - k) / (units - k))))
            own = own[: 1 + np.count_nonzero(own > level)]
            together = np.full(len(smallest) + len(own) - 1, np.inf)
            for j, probability in enumerate(own):
                part = together[j : j + len(smallest)]
                np.minimum(part, smallest * probability, out=part)
            smallest = together[: 1 + np.count_nonzero(together > level)]
        reached = smallest[-1] * (1 + _ROUNDING) <= level
        return len(smallest) - 1 if reached else None

    def matched(self, values: Integers, seed: int) -> GroupCoins:
        """Match the units at random in groups whose coins are independent.

        Every shown unit is put together with as many held-out ones as there are for each, in its
        stratum; where more are shown than held out, the other way round. Who is left over stays out
        of it.

        Args:
            values: the coins [n].
            seed: of the lots, chosen without a look at the texts.
        """
        random = np.random.default_rng(seed)
        members = []
        for number in range(len(self.shown)):
            (shown,) = np.nonzero((self.stratum == number) & (values == 1))
            (held_out,) = np.nonzero((self.stratum == number) & (values == 0))
            single, several = sorted((shown, held_out), key=len)
            if not len(single):
                continue
            many = len(several) // len(single)
            others = random.permutation(several)[: many * len(single)].reshape(len(single), many)
            groups = np.column_stack((random.permutation(single), others))
            swapped = len(shown) > len(held_out)
            members += [(np.sort(group), swapped) for group in groups]
        place = np.full(len(self.stratum), -1, dtype=np.int64)
        group = place.copy()
        for number, (own, _) in enumerate(members):
            group[own], place[own] = number, np.arange(len(own))
        return GroupCoins(
            group,
            place,
            np.array([len(own) for own, _ in members], dtype=np.int64),
            np.array([swapped for _, swapped in members], dtype=np.bool_),
        )


@dataclass(frozen=True)
class GroupCoins(RefutingCoins):
    """Coins of matched groups: which one member was shown (or held out, if roles are swapped).

    A guess names, for each group, the place of a member that was shown. A cost is that of
    *replacing* one record: at most twice what one that comes or goes costs.

    Attributes:
        group: the group of each unit, or -1 [n].
        place: its place in the group, or -1 [n].
        sizes: how many members each group has [groups].
        swapped: whether all but one of a group's members were shown [groups].
    """

    group: Integers
    place: Integers
    sizes: Integers
    swapped: Flags

    def guess(self, guesses: Integers, scores: Integers) -> Integers:
        """Return a guess for every group: the member that was guessed with the highest score.

        The first one if scores are equal.

        Args:
            guesses: of units, 1 or ABSTAIN [n].
            scores: of units [n].

        Returns:
            Places or ABSTAIN [groups].
        """
        found = np.full(len(self.sizes), ABSTAIN, dtype=np.int64)
        (named,) = np.nonzero((guesses == 1) & (self.group >= 0))
        # The best is written last.
        for unit in named[np.lexsort((-named, scores[named]))]:
            found[self.group[unit]] = self.place[unit]
        return found

    def right(self, guesses: Integers, values: Integers) -> int:
        """Return how many guesses of groups [groups] are right, by the units' coins [n]."""
        table = np.zeros((len(self.sizes), int(self.sizes.max(initial=0))), dtype=np.bool_)
        inside = self.group >= 0
        table[self.group[inside], self.place[inside]] = values[inside] == 1
        (guessed,) = np.nonzero(guesses != ABSTAIN)
        return int(table[guessed, guesses[guessed]].sum())

    @override
    def chances(self, guesses: Integers, epsilon: float | Floats) -> Floats:
        _refuse_other(guesses, (guesses >= ABSTAIN) & (guesses < self.sizes))
        return _rounded_up(1 / (1 + self._odds_against(epsilon)), guesses)

    @override
    def spill(self, epsilon: float | Floats) -> Floats:
        against = self._odds_against(epsilon)
        times = np.where(self.swapped, self.sizes - 1, 1)
        spilt: Floats = times * (against / (1 + against)) * _UP
        return spilt

    def _odds_against(self, epsilon: float | Floats) -> Floats:
        """Return the least odds that a guess is wrong."""
        others = (self.sizes - 1).astype(np.float64)
        odds: Floats = np.where(self.swapped, 1 / others, others) * np.exp(-_bounded(epsilon))
        return odds


def ever_shown(batches: int, generated: int, rounds: int) -> float:
    """Return the probability that a record is in a generated batch of any of several rounds.

    Each round has a fresh key. Under `ShownCoins(..., released=True)` the epsilon is the pure
    release-level one of all rounds together.
    """
    return -math.expm1(rounds * math.log1p(-generated / batches)) if generated < batches else 1.0


def _bounded(epsilon: float | Floats) -> Floats:
    values = np.asarray(epsilon, dtype=np.float64)
    if not (values >= 0).all():
        raise ValueError(f"epsilon {epsilon}")
    return np.minimum(values, _MOST_EPSILON)


def _refuse_other(guesses: Integers, allowed: Flags) -> None:
    if not allowed.all():
        raise ValueError(f"a guess of {guesses[~allowed][0]}")


def _rounded_up(bounds: Floats, guesses: Integers) -> Floats:
    return np.where(guesses == ABSTAIN, 0.0, np.minimum(bounds * _UP, 1.0))


# What guesses refute


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
            if end <= _MOST_EPSILON and self._bound(right, refuted, end) <= level:
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
        return min(1.0, (bound + float(self.coins.spill(low * each) @ deltas)) * (1 + _ROUNDING))


def _settled_bound(tails: Floats, coins: int, right: int, delta: float) -> float:
    """Return the bound of Steinke, Nasr, Jagielski, or 1 where it is not relied on."""
    beta, steps = float(tails[right]), np.arange(1, right + 1)
    more = float(((tails[right - steps] - beta) / steps).max())
    found = (beta + 2 * coins * delta * more) * (1 + _ROUNDING)
    return found if found <= _MOST_WITH_DELTA else 1.0


def canary_guesses(number: int, delta: float = 0.0) -> GuessedCoins:
    """Return the guesses of canaries that were in or out by fair coins: all are guessed."""
    guesses = np.ones(number, dtype=np.int64)
    return GuessedCoins(ShownCoins(np.full(number, 0.5), both=True), guesses, delta, settled=True)


# Power, and what can be said of counts


def least_right(chances: ArrayLike, level: float) -> int | None:
    """Return how many right guesses, and no wrong one, reach a level; None if no number does.

    Args:
        chances: of the guesses that may be made; the smallest count first [n].
        level: in (0, 1).
    """
    (enough,) = np.nonzero(np.cumprod(np.sort(chances)) * (1 + _ROUNDING) <= level)
    return int(enough[0]) + 1 if len(enough) else None


def right_to_reject(law: Floats, level: float) -> int | None:
    """Return the fewest right guesses whose tail in a law reaches a level; None if none does."""
    (enough,) = np.nonzero(upper_tails(law) <= level)
    return int(enough[0]) if len(enough) else None


def split_check(coins: Coins, values: Integers) -> float | None:
    """Return the two-sided p-value of how many units were shown, rounded up.

    Return None if that number was settled (`SplitCoins`). Where units share the coin of being held
    out, it is of those that are not.
    """
    if not isinstance(coins, IndependentCoins):
        return None
    shares = coins.shares
    if isinstance(coins, BatchCoins) and coins.linked:
        shares = coins.of_taking_part().shares[values != HELD_OUT]
    shown, law = int(coins.is_shown(values).sum()), poisson_binomial_law(shares)
    return min(1.0, 2 * float(min(upper_tails(law)[shown], lower_tails(law)[shown])))


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
