"""Secret coins: canaries in or out, batches drawn by a hash, lists split at random.

A coin says, for one unit (a record, a record in one round, a user), what a secret draw decided: in
the data or out of it, or which batch. Somebody sees the texts and all records, guesses some of the
coins, and abstains from the others. A guarantee bounds the chance of each guess, whatever was
guessed before, so the number of right guesses is at most that of independent guesses of these
chances. More right ones refute the guarantee (`guesses.py`); at epsilon 0 that is an exact test of
whether the texts depend on the coins at all (`control_test.py`).

docs/mathematics.md has the proofs ("Secret coins").

A unit costs `epsilon`, in nats, at the batch level (the ratio of the texts' probabilities with the
unit in one given batch and in none, all else given) unless a class says otherwise. A guarantee
about a *replaced* record bounds none of that, but for `GroupCoins`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.accounting.laws import (
    ROUNDING,
    Floats,
    hypergeometric_law,
    least_right,
    lower_tails,
    poisson_binomial_law,
    sum_law,
    upper_tails,
)

Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

#: A guess that is none.
ABSTAIN = -1
#: The coin of a unit that its hash holds out of all batches.
HELD_OUT = -2
#: Room for the dozen operations of one chance.
_UP = 1 + 2.0**-48
#: exp(-700) is still a normal double.
MOST_EPSILON = 700.0


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
        return sum_law(laws)

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
        return sum_law(
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
        reached = smallest[-1] * (1 + ROUNDING) <= level
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


def _bounded(epsilon: float | Floats) -> Floats:
    values = np.asarray(epsilon, dtype=np.float64)
    if not (values >= 0).all():
        raise ValueError(f"epsilon {epsilon}")
    return np.minimum(values, MOST_EPSILON)


def _refuse_other(guesses: Integers, allowed: Flags) -> None:
    if not allowed.all():
        raise ValueError(f"a guess of {guesses[~allowed][0]}")


def _rounded_up(bounds: Floats, guesses: Integers) -> Floats:
    return np.where(guesses == ABSTAIN, 0.0, np.minimum(bounds * _UP, 1.0))
