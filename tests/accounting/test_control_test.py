"""The test of shown against held-out units: exact at every level, with power, and both tails."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binom  # type: ignore[import-untyped]

from dpaudit.accounting.coins import ABSTAIN, BatchCoins, ShownCoins, SplitCoins
from dpaudit.accounting.control_test import TOP_UNITS, Statistic, control_test
from dpaudit.disclosing.words import WORDS


def fair(number: int, share: float = 0.5) -> ShownCoins:
    return ShownCoins(np.full(number, share))


def test_counts_are_of_nested_guesses():
    guesses, scores = np.array([1, 1, ABSTAIN, 1, 1]), np.array([7, 16, 30, 10, 5])
    values = np.array([1, 0, 1, 1, 1])
    found = control_test(
        fair(5, 0.2),
        values,
        [
            Statistic("runs", guesses, scores, (6, 10)),
            Statistic("grams", guesses, np.array([3, 9, 9, 3, 3]), (1, 2, 9), "top"),
        ],
        draws=99,
    )
    rows = [(each.name, each.threshold, each.guesses, each.right) for each in found.statistics]
    assert rows == [
        ("runs", 6, 3, 2),
        ("runs", 10, 2, 1),
        ("grams", 1, 1, 0),
        ("grams", 2, 2, 1),  # the first of equals
        ("grams", 9, 4, 3),
    ]
    for each in found.statistics:
        assert each.p == pytest.approx(binom.sf(each.right - 1, each.guesses, 0.2))
        assert each.p_lower == pytest.approx(binom.cdf(each.right, each.guesses, 0.2))
        assert each.expected == pytest.approx(0.2 * each.guesses)


@pytest.mark.parametrize("draws", [1, 99, 1000])
def test_texts_that_name_nobody_show_nothing(draws):
    nobody = Statistic("runs", np.full(9, ABSTAIN), np.zeros(9, dtype=np.int64), WORDS.runs)
    found = control_test(fair(9), np.ones(9, dtype=np.int64), [nobody], draws)
    assert (found.p, found.p_lower) == (1.0, 1.0)


def test_the_smallest_p_value_is_that_of_the_observed_coins_alone():
    everybody = Statistic("runs", np.ones(60, dtype=np.int64), np.full(60, 20), WORDS.runs)
    found = control_test(fair(60), np.ones(60, dtype=np.int64), [everybody], draws=999)
    assert found.p == 1 / 1000 and found.p_lower == 1.0
    found = control_test(fair(60), np.zeros(60, dtype=np.int64), [everybody], draws=999)
    assert found.p == 1.0 and found.p_lower == 1 / 1000


def test_no_seed_makes_all_counts_together_less_probable_than_one_of_them():
    everybody = Statistic("runs", np.ones(5, dtype=np.int64), np.full(5, 20), WORDS.runs)
    for seed in range(20):
        found = control_test(fair(5), np.ones(5, dtype=np.int64), [everybody], 99, seed)
        assert found.p >= found.statistics[0].p == pytest.approx(2**-5)


def test_the_same_seed_gives_the_same_p_value():
    random = np.random.default_rng(2)
    guesses, scores = np.ones(30, dtype=np.int64), random.integers(5, 20, 30)
    values = (random.random(30) < 0.7).astype(np.int64)
    statistic = Statistic("runs", guesses, scores, WORDS.runs)
    found = [control_test(fair(30), values, [statistic], 500, seed).p for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def naive_p(values, guesses, thresholds, scores, coins_of):
    """The exact p-value of both statistics together, over all coins, without any draws."""
    outcomes = list(coins_of)

    def smallest(counted):
        tails = []
        for row in counted:
            counts = np.array([((outcome == guesses) & row).sum() for outcome in outcomes])
            tails.append([np.mean(counts >= count) for count in counts])
        return np.min(tails, axis=0)

    runs = [scores >= threshold for threshold in thresholds]
    top = [scores == scores.max()]
    pair = [smallest(runs), smallest(top)]
    calibrated = [np.array([np.mean(own <= each + 1e-12) for each in own]) for own in pair]
    least = np.min(calibrated, axis=0)
    at = next(number for number, outcome in enumerate(outcomes) if (outcome == values).all())
    return np.mean(least <= least[at] + 1e-12)


@pytest.mark.parametrize("split", [False, True])
def test_redraws_come_to_the_p_value_of_all_coins(split):
    """Few units, where all coins can be counted, and draws whose error is known."""
    scores, guesses = np.array([12, 12, 8, 8, 6, 9, 20, 6]), np.ones(8, dtype=np.int64)
    values = np.array([1, 1, 1, 0, 0, 1, 1, 0])
    coins = SplitCoins(np.zeros(8, dtype=np.int64), np.array([5])) if split else fair(8)
    all_coins = [np.array(each) for each in itertools.product((0, 1), repeat=8)]
    outcomes = [each for each in all_coins if each.sum() == 5 or not split]
    exact = naive_p(values, guesses, (6, 8, 10), scores, outcomes)
    statistics = [
        Statistic("runs", guesses, scores, (6, 8, 10)),
        Statistic("grams", guesses, scores, (1,), "top"),
    ]
    found = control_test(coins, values, statistics, draws=20_000)
    assert found.p == pytest.approx(exact, abs=4 * 0.5 / 20_000**0.5)


def honest(random: np.random.Generator, kind: int):
    """Draw coins, and guesses and scores that know nothing of them."""
    number = 40
    if kind == 0:
        coins = BatchCoins(random.choice([7, 14], number), np.full(number, 7))
        guesses = random.integers(0, 7, (2, number))
    elif kind == 1:
        coins = ShownCoins(random.choice([1 / 7, 1 / 2], number))
        guesses = np.ones((2, number), dtype=np.int64)
    else:
        coins = SplitCoins(np.arange(number) % 3, np.array([2, 6, 11]))
        guesses = np.ones((2, number), dtype=np.int64)
    guesses = np.where(random.random((2, number)) < 0.4, guesses, ABSTAIN)
    values = coins.draw(random, np.arange(number), 1)[0]
    statistics = [
        Statistic("runs", guesses[0], random.integers(4, 20, number), WORDS.runs),
        Statistic("grams", guesses[1], random.integers(1, 9, number), TOP_UNITS[:8], "top"),
    ]
    return coins, values, statistics


@pytest.mark.slow
def test_honest_coins_raise_an_alarm_once_in_a_thousand_tests():
    """10,000 tests at the level 1e-3 with 999 draws each: ten alarms are the mean."""
    random, upper, lower = np.random.default_rng(21), 0, 0
    for number in range(10_000):
        found = control_test(*honest(random, number % 3), draws=999, seed=number)
        upper += found.p <= 1e-3
        lower += found.p_lower <= 1e-3
    assert upper <= 20 and lower <= 20


def test_honest_coins_have_p_values_that_are_no_smaller_than_chance_gives():
    random = np.random.default_rng(22)
    found = [
        control_test(*honest(random, number % 3), draws=99, seed=number) for number in range(300)
    ]
    for values in ([each.p for each in found], [each.p_lower for each in found]):
        for level in (0.05, 0.2, 0.5):
            alarms = sum(value <= level for value in values)
            assert alarms <= 300 * level + 3 * (300 * level * (1 - level)) ** 0.5


def test_a_split_pools_nothing_over_strata():
    """Texts that name records of a stratum of which .9 is shown, and of one of which .1 is.

    One pooled share would take it for dependence.
    """
    random, alarms = np.random.default_rng(23), 0
    stratum = np.repeat([0, 1], 100)
    for _ in range(60):
        coins = SplitCoins(stratum, np.array([90, 10]))
        values = coins.draw(random, np.arange(200), 1)[0]
        guesses = np.where((stratum == 0) & (random.random(200) < 0.4), 1, ABSTAIN)
        statistic = Statistic("runs", guesses, np.full(200, 9), (8,))
        alarms += control_test(coins, values, [statistic], draws=99).p <= 0.05
    assert alarms <= 9


def test_a_batch_is_right_only_where_it_is_the_units_own():
    """All batches are generated and the texts name records at random: no dependence."""
    random = np.random.default_rng(24)
    coins = BatchCoins(np.full(80, 14), np.full(80, 14))
    values = coins.draw(random, np.arange(80), 1)[0]
    statistic = Statistic("runs", random.integers(0, 14, 80), np.full(80, 9), (8,))
    found = control_test(coins, values, [statistic], draws=999)
    assert found.p > 1e-3 and found.statistics[0].expected == pytest.approx(80 / 14)
    assert found.least_records == 3


def test_copies_of_three_records_in_their_own_batch_are_found():
    random = np.random.default_rng(25)
    coins = BatchCoins(np.full(500, 32), np.full(500, 32))
    values = coins.draw(random, np.arange(500), 1)[0]
    guesses = np.where(np.arange(500) < 3, values, ABSTAIN)
    statistic = Statistic("runs", guesses, np.full(500, 12), WORDS.runs)
    found = control_test(coins, values, [statistic], draws=20_000)
    assert found.p <= 1e-3 and found.least_records == 2
