"""What secret coins refute: against naive sums, and against all outcomes of randomised response."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog  # type: ignore[import-untyped]
from scipy.stats import binom  # type: ignore[import-untyped]

from dpaudit.accounting.coins import (
    ALARM_AT,
    LEAST_CANARIES,
    REFUTED_AT,
    GuessedCoins,
    ShownCoins,
    canary_guesses,
    chance_of,
    tail,
)



def settled(coins: int, guesses: int, delta: float = 0.0) -> GuessedCoins:
    """Fair coins, of which the first are guessed, settled beforehand."""
    fair = ShownCoins(np.full(coins, 0.5), both=True)
    guessed = np.where(np.arange(coins) < guesses, 1, -1)
    return GuessedCoins(fair, guessed, delta, settled=True)


def p_value(epsilon: float, delta: float, coins: int, guesses: int, right: int) -> float:
    return settled(coins, guesses, delta).p_value(right, epsilon)


def epsilon_refuted(
    coins: int, guesses: int, right: int, delta: float = 0.0, level: float = REFUTED_AT
) -> float:
    return settled(coins, guesses, delta).epsilon_refuted(right, level)


def most_refutable(coins: int, delta: float = 0.0, level: float = REFUTED_AT) -> float:
    return canary_guesses(coins, delta).most_refutable(level)


epsilons = st.floats(0, 8)
deltas = st.sampled_from([0.0, 1e-9, 1e-5, 1e-2, 0.3])


@st.composite
def games(draw: st.DrawFn) -> tuple[int, int, int]:
    coins = draw(st.integers(1, 60))
    guesses = draw(st.integers(1, coins))
    return coins, guesses, draw(st.integers(0, guesses))


def naive_p_value(epsilon: float, delta: float, m: int, r: int, v: int) -> float:
    """The formula as it is written in the paper, by another library's binomial."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    beta = float(binom.sf(v - 1, r, q))
    alpha = max((float(binom.sf(v - i - 1, r, q)) - beta) / i for i in range(1, m + 1))
    return min(1.0, beta + 2 * m * delta * alpha)


def right_by_randomised_response(epsilon: float, delta: float, m: int, r: int) -> list[float]:
    """P[k of the first r coins guessed right] for every k, over all coins and all answers.

    Every coin is answered truly with probability sigma(epsilon); with probability delta all are
    told as they are.
    """
    q, found = math.exp(epsilon) / (1 + math.exp(epsilon)), [0.0] * (r + 1)
    for coins in itertools.product((0, 1), repeat=m):
        for answers in itertools.product((0, 1), repeat=m):
            true = sum(coin == answer for coin, answer in zip(coins, answers, strict=True))
            mass = (1 - delta) * q**true * (1 - q) ** (m - true) + delta * (coins == answers)
            found[
                sum(coin == answer for coin, answer in zip(coins[:r], answers, strict=False))
            ] += mass / 2**m
    return found


@given(games(), epsilons, deltas)
def test_agrees_with_the_formula_and_is_never_below_it(game, epsilon, delta):
    coins, guesses, right = game
    naive = naive_p_value(epsilon, delta, coins, guesses, right)
    found = p_value(epsilon, delta, coins, guesses, right)
    if delta and naive > 0.5:
        assert found == 1
        return
    assert found == pytest.approx(naive, rel=1e-7, abs=1e-300)
    assert found >= naive * (1 - 1e-10)


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.2])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("m", [1, 3, 5])
def test_randomised_response_is_right_no_more_often(m, epsilon, delta):
    for r in range(1, m + 1):
        found = right_by_randomised_response(epsilon, delta, m, r)
        assert sum(found) == pytest.approx(1)
        for v in range(1, r + 1):
            often = sum(found[v:])
            bound = p_value(epsilon, delta, m, r, v)
            assert often <= bound * (1 + 1e-12)
            if not delta:
                assert often == pytest.approx(bound, rel=1e-8), (
                    "randomised response reaches the bound"
                )


def most_right(epsilon: float, delta: float, m: int) -> list[float]:
    """The most probability of v or more right guesses of m under any (epsilon, delta) mechanism.

    It is given for v from 0 to m. Averaging a mechanism over all permutations and exchanges of
    coins keeps its guarantee and its number of right guesses, so the probability a_k of one output
    with k right ones is all there is. A coin that turns takes an output with k right ones to k + 1
    or k - 1.
    """
    pairs = [(k, k + 1) for k in range(m)] + [(k + 1, k) for k in range(m)]
    counts = [math.comb(m, k) for k in range(m + 1)]
    # Of each pair, what the first has beyond exp(epsilon) times the other: all of it together is at
    # most delta.
    excess = np.zeros((2 * m + 1, m + 1 + 2 * m))
    for row, (one, other) in enumerate(pairs):
        excess[row, [one, other, m + 1 + row]] = 1, -math.exp(epsilon), -1
        excess[-1, m + 1 + row] = math.comb(m - 1, min(one, other))
    limits = np.append(np.zeros(2 * m), delta)
    total = np.array([[*counts, *[0] * (2 * m)]])
    goals = [
        [-count if k >= v else 0 for k, count in enumerate(counts)] + [0] * (2 * m)
        for v in range(m + 1)
    ]
    return [-linprog(goal, excess, limits, total, [1.0]).fun for goal in goals]


@pytest.mark.parametrize(
    "m", [1, 2, 4, 6, *(pytest.param(m, marks=pytest.mark.slow) for m in (3, 9, 14, 20, 30))]
)
def test_no_mechanism_at_all_is_right_more_often(m):
    for epsilon, delta in itertools.product(
        (0.1, 0.5, 1.0, 1.5, 2.5, 4.0), (1e-5, 1e-3, 0.01, 0.05, 0.2)
    ):
        most = most_right(epsilon, delta, m)
        for v in range(1, m + 1):
            assert most[v] <= p_value(epsilon, delta, m, m, v) * (1 + 1e-6) + 1e-9
            written = naive_p_value(epsilon, delta, m, m, v)
            assert most[v] <= written * (1 + 1e-6) + 1e-9 or written > 0.89


def test_a_mechanism_exceeds_the_papers_bound_where_that_is_large():
    """Randomised response on two coins that is wrong on both as rarely as delta lets it."""
    epsilon, delta = 1.5, 0.05
    odds = math.exp(epsilon)
    # probability of an output with one right guess
    one = (1 + delta / odds) / (2 + odds + 1 / odds)
    outputs = {0: (one - delta) / odds, 1: one, 2: odds * one}
    answers = list(itertools.product((0, 1), repeat=2))

    def chance(answer, coins):
        return outputs[sum(here == there for here, there in zip(answer, coins, strict=True))]

    assert sum(chance(answer, (0, 0)) for answer in answers) == pytest.approx(1)
    for coins in answers:
        for turned in ((1 - coins[0], coins[1]), (coins[0], 1 - coins[1])):
            excess = sum(
                max(0.0, chance(answer, coins) - odds * chance(answer, turned))
                for answer in answers
            )
            assert excess <= delta * (1 + 1e-12), "it keeps its guarantee"
    often = 1 - outputs[0]
    assert often == pytest.approx(0.97751, abs=5e-6) and often == pytest.approx(
        most_right(epsilon, delta, 2)[1]
    )
    assert naive_p_value(epsilon, delta, 2, 2, 1) == pytest.approx(0.97338, abs=5e-6)
    assert p_value(epsilon, delta, 2, 2, 1) == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(0, 9))
def test_the_tail_of_unequal_chances_is_that_of_all_outcomes(chances, right):
    right = min(right, len(chances))
    naive = 0.0
    for outcome in itertools.product((0, 1), repeat=len(chances)):
        mass = math.prod(
            chance if hit else 1 - chance for chance, hit in zip(chances, outcome, strict=True)
        )
        naive += mass * (sum(outcome) >= right)
    assert tail(chances, right) == pytest.approx(naive, rel=1e-8, abs=1e-300)
    assert tail(chances, right) >= min(naive, 1.0) * (1 - 1e-12)


@given(games(), deltas, st.sampled_from([REFUTED_AT, ALARM_AT]))
def test_what_is_refuted_is_refuted_and_the_next_is_not(game, delta, level):
    coins, guesses, right = game
    epsilon = epsilon_refuted(coins, guesses, right, delta, level)
    if epsilon:
        assert p_value(epsilon, delta, coins, guesses, right) <= level
        assert p_value(epsilon * (1 + 1e-6) + 1e-9, delta, coins, guesses, right) > level
        assert epsilon <= most_refutable(coins, delta, level) + 1e-9
    else:
        assert p_value(1e-6, delta, coins, guesses, right) > level


@given(games(), epsilons, deltas)
def test_more_right_guesses_and_smaller_promises_are_less_likely(game, epsilon, delta):
    coins, guesses, right = game
    found = p_value(epsilon, delta, coins, guesses, right)
    if right < guesses:
        assert p_value(epsilon, 0.0, coins, guesses, right + 1) <= p_value(
            epsilon, 0.0, coins, guesses, right
        )
    assert p_value(epsilon, min(1.0, 2 * delta), coins, guesses, right) >= found
    assert p_value(epsilon, 0.0, coins, guesses, right) <= p_value(
        epsilon + 0.1, 0.0, coins, guesses, right
    )


def test_equal_chances_are_the_theorem_without_delta():
    for right in range(25):
        equal = tail([chance_of(1.25)] * 24, right)
        assert equal == pytest.approx(p_value(1.25, 0.0, 24, 24, right), rel=1e-8)


def test_power_is_that_of_guesses_that_are_all_right():
    assert most_refutable(24) == pytest.approx(-math.log(0.05 ** (-1 / 24) - 1), rel=1e-6)
    assert most_refutable(200) > most_refutable(100) > most_refutable(24) > most_refutable(24, 1e-3)
    assert most_refutable(4) == 0


def test_the_fewest_canaries_are_the_fewest_whose_luck_is_below_an_alarm():
    assert 2 * p_value(0.0, 0.0, LEAST_CANARIES, LEAST_CANARIES, LEAST_CANARIES) <= ALARM_AT
    assert (
        2 * p_value(0.0, 0.0, LEAST_CANARIES - 1, LEAST_CANARIES - 1, LEAST_CANARIES - 1) > ALARM_AT
    )


def test_no_guess_that_is_right_refutes_nothing():
    assert p_value(0.0, 0.0, 24, 24, 0) == 1
    assert epsilon_refuted(24, 24, 0) == 0


@pytest.mark.parametrize(
    "numbers",
    [
        (0.0, 0.0, 5, 6, 1),
        (0.0, 0.0, 5, 4, 5),
        (-1.0, 0.0, 5, 5, 1),
        (math.nan, 0.0, 5, 5, 1),
        (0, 2, 5, 5, 1),
    ],
)
def test_numbers_that_do_not_fit_are_refused(numbers):
    with pytest.raises(ValueError, match="guesses of"):
        p_value(*numbers)


def test_thousands_of_canaries_are_counted_as_exactly():
    chances = np.full(4096, 0.6)
    assert tail(chances.tolist(), 2600) == pytest.approx(float(binom.sf(2599, 4096, 0.6)), rel=1e-8)
    epsilon = math.log(0.6 / 0.4)
    assert p_value(epsilon, 0.0, 4096, 4096, 2600) == pytest.approx(
        float(binom.sf(2599, 4096, 0.6)), rel=1e-8
    )
