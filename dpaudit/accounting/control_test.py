"""The exact test of whether released texts depend on who was shown: several statistics at once.

Texts and records give each statistic a guess and a score for every unit; the coins are not looked
at. If the texts know nothing of the coins, the coins' law is known exactly, whatever the texts are.
So all coins are drawn anew many times, and the observed ones are one draw among them: nothing has
to be paid for looking at several statistics and thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.coins import ABSTAIN, Coins, Flags, Integers
from dpaudit.accounting.laws import LEVEL, Floats, lower_tails, upper_tails

#: The numbers of units with the most shared 3-grams that are guessed.
TOP_UNITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128)
#: Tails that are this close, relatively, are equal.
_TOLERANCE = 1e-9
#: Coins that are drawn at a time.
_COINS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Statistic:
    """Guesses of coins, and how surely each is meant.

    Attributes:
        name: of the statistic.
        guesses: of all units, ABSTAIN if none [n].
        scores: of the guesses [n].
        thresholds: "at least": the smallest scores of guesses that count together. "top": how many
            guesses with the highest scores count together. Nested either way.
        by: how the thresholds are meant. Of equal scores the first unit counts as the highest, so
            the order of units must not depend on the coins.
    """

    name: str
    guesses: Integers
    scores: Integers
    thresholds: tuple[int, ...]
    by: Literal["at least", "top"] = "at least"

    def counted(self) -> Flags:
        """Return which guesses count for each threshold [thresholds, n]."""
        guessed, limits = self.guesses != ABSTAIN, np.array(self.thresholds)[:, None]
        if self.by == "at least":
            counted: Flags = guessed & (self.scores >= limits)
            return counted
        ranks = np.empty(len(self.scores), dtype=np.int64)
        ranks[np.lexsort((-self.scores, ~guessed))] = np.arange(len(self.scores))
        highest: Flags = guessed & (ranks < limits)
        return highest


@dataclass(frozen=True)
class Count:
    """The right guesses of one statistic at one threshold.

    Attributes:
        name: the statistic's.
        threshold: see `Statistic`.
        guesses: how many count.
        right: how many of them are right.
        expected: how many chance gives in the mean.
        p: probability of so many or more by chance, rounded up.
        p_lower: probability of so many or fewer by chance, rounded up.
    """

    name: str
    threshold: int
    guesses: int
    right: int
    expected: float
    p: float
    p_lower: float


@dataclass(frozen=True)
class ControlTest:
    """What the test found.

    Attributes:
        p: exact p-value of all statistics together: units are named with their coins too often.
        p_lower: the same for too rarely. Where both decide, each has half of the level.
        statistics: every count.
        least_records: the fewest units with which a count could reach the level, all guessed right;
            None if no number could.
        draws: how many times all coins were drawn anew.
        seed: of these draws.
    """

    p: float
    p_lower: float
    statistics: tuple[Count, ...]
    least_records: int | None
    draws: int
    seed: int


def control_test(
    coins: Coins,
    values: Integers,
    statistics: Sequence[Statistic],
    draws: int = 100_000,
    seed: int = 0,
    level: float = LEVEL,
) -> ControlTest:
    """Test whether the guesses are right more often, or more rarely, than chance gives.

    A statistic is the smallest of its thresholds' tails. Each is calibrated by the draws, and the
    smallest of the calibrated p-values by the same draws. The observed coins count among them, so
    the p-value is exact for any number of draws.

    Args:
        coins: of n units.
        values: the coins as they fell [n].
        statistics: settled beforehand, with guesses and scores that follow from texts and records.
        draws: how many times all coins are drawn anew.
        seed: of these draws.
        level: for `least_records`.

    Raises:
        ValueError: a guess that cannot be right.
    """
    counted = [statistic.counted() for statistic in statistics]
    laws = [
        [coins.null_law(np.where(row, statistic.guesses, ABSTAIN)) for row in rows]
        for statistic, rows in zip(statistics, counted, strict=True)
    ]
    found = [
        (rows & (statistic.guesses == values)).sum(axis=1)
        for statistic, rows in zip(statistics, counted, strict=True)
    ]
    drawn = _draw_counts(coins, statistics, counted, draws, np.random.default_rng(seed))
    pools = [np.vstack((own, more)) for own, more in zip(found, drawn, strict=True)]
    uppers, lowers = (
        [[tails(law) for law in own] for own in laws] for tails in (upper_tails, lower_tails)
    )
    counts = tuple(
        Count(
            statistic.name,
            threshold,
            len(law) - 1,
            int(right),
            float(law @ np.arange(len(law))),
            float(upper[right]),
            float(lower[right]),
        )
        for statistic, *parts in zip(statistics, found, laws, uppers, lowers, strict=True)
        for threshold, right, law, upper, lower in zip(statistic.thresholds, *parts, strict=True)
    )
    return ControlTest(
        _combined(pools, uppers),
        _combined(pools, lowers),
        counts,
        coins.least_right(level),
        draws,
        seed,
    )


def _draw_counts(
    coins: Coins,
    statistics: Sequence[Statistic],
    counted: Sequence[Flags],
    draws: int,
    random: np.random.Generator,
) -> list[Integers]:
    """Return the right guesses of coins that are drawn anew, per statistic [draws, thresholds]."""
    units = np.flatnonzero(np.any([rows.any(axis=0) for rows in counted], axis=0))
    # Counts are small whole numbers, exact as float32, whose products are fast.
    members = [rows[:, units].T.astype(np.float32) for rows in counted]
    found: list[list[Integers]] = [[] for _ in statistics]
    at_once = max(1, _COINS_AT_ONCE // max(1, len(units)))
    for start in range(0, draws, at_once):
        values = coins.draw(random, units, min(at_once, draws - start))
        for statistic, member, parts in zip(statistics, members, found, strict=True):
            right = (values == statistic.guesses[units]).astype(np.float32)
            parts.append((right @ member).astype(np.int64))
    return [np.concatenate(parts) for parts in found]


def _combined(pools: Sequence[Integers], tails: Sequence[Sequence[Floats]]) -> float:
    """Return the p-value of the observed counts of all statistics together.

    It is no smaller than that of any of them by itself, which few draws may say.

    Args:
        pools: of each statistic the observed counts, then those of all draws [1 + draws,
            thresholds].
        tails: of each statistic and threshold, the probability of each count or one beyond it.
    """
    calibrated, alone = [], 1.0
    for pool, own in zip(pools, tails, strict=True):
        smallest = np.min([tail[counts] for tail, counts in zip(own, pool.T, strict=True)], axis=0)
        calibrated.append(_shares_below(smallest))
        alone = min(alone, float(smallest[0]))
    return max(float(_shares_below(np.min(calibrated, axis=0))[0]), alone)


def _shares_below(values: Floats) -> NDArray[np.float64]:
    """Return the share of values that are no larger than each, itself included [rows]."""
    ordered = np.sort(values)
    return np.searchsorted(ordered, values * (1 + _TOLERANCE), side="right") / len(values)
