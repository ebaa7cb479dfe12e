"""What secret coins refute: against naive sums, all outcomes of small games, and the paper."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog  # type: ignore[import-untyped]
from scipy.stats import binom, hypergeom  # type: ignore[import-untyped]

from dpaudit.accounting.coins import (
    ABSTAIN,
    HELD_OUT,
    BatchCoins,
    GroupCoins,
    ShownCoins,
    SplitCoins,
    ever_shown,
    split_check,
)
from dpaudit.accounting.guesses import (
    ALARM_AT,
    LEAST_CANARIES,
    REFUTED_AT,
    GuessedCoins,
    canary_guesses,
    caused,
    chance_of,
)
from dpaudit.accounting.laws import (
    binomial_law,
    hypergeometric_law,
    least_right,
    lower_tail,
    lower_tails,
    right_to_reject,
    tail,
    upper_tails,
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
            free = GuessedCoins(settled(m, m).coins, np.ones(m, dtype=np.int64), delta)
            assert most[v] <= free.p_value(v, epsilon) * (1 + 1e-6) + 1e-9, "a theorem, everywhere"
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
    if right:
        assert lower_tail(chances, right - 1) == pytest.approx(1 - naive, rel=1e-6, abs=1e-7)


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


def test_numbers_that_do_not_fit_are_refused():
    for right, epsilon in ((5, 0.0), (-1, 0.0), (1, -1.0), (1, math.nan)):
        with pytest.raises(ValueError, match="guesses right"):
            settled(5, 4).p_value(right, epsilon)
    with pytest.raises(ValueError, match="delta"):
        canary_guesses(5, 2.0)


def test_thousands_of_canaries_are_counted_as_exactly():
    chances = np.full(4096, 0.6)
    assert tail(chances.tolist(), 2600) == pytest.approx(float(binom.sf(2599, 4096, 0.6)), rel=1e-8)
    epsilon = math.log(0.6 / 0.4)
    assert p_value(epsilon, 0.0, 4096, 4096, 2600) == pytest.approx(
        float(binom.sf(2599, 4096, 0.6)), rel=1e-8
    )


def ones(number: int) -> np.ndarray:
    return np.ones(number, dtype=np.int64)


def most_by(coins, value: int, number: int) -> float:
    return GuessedCoins(coins, np.full(number, value)).most_refutable()


@pytest.mark.parametrize(
    ("share", "most"), [(1 / 2, 1.05), (1 / 7, 2.84), (1 / 14, 3.62), (1 / 100, 5.65)]
)
def test_ten_right_guesses_of_ten_refute_what_can_be_worked_out_by_hand(share, most):
    found = most_by(ShownCoins(np.full(10, share)), 1, 10)
    q = 0.05**0.1
    assert found == pytest.approx(math.log(q / (1 - q) * (1 - share) / share), abs=1e-7)
    assert found == pytest.approx(most, abs=0.005)


@pytest.mark.parametrize(
    ("batches", "generated", "named", "most"),
    [
        (14, 2, 5, 2.69),
        (14, 14, 5, 1.38),
        (100, 100, 5, 2.40),
        (14, 14, 10, 1.81),
        (14, 1, 5, 2.76),
    ],
)
def test_own_batch_guesses_refute_less_the_more_batches_are_generated(
    batches, generated, named, most
):
    coins = BatchCoins(np.full(named, batches), np.full(named, generated))
    assert most_by(coins, 0, named) == pytest.approx(most, abs=0.005)


def test_fewest_records_that_can_reject():
    shares = {1 / 2: 10, 1 / 7: 4, 1 / 14: 3, 1 / 32: 2, 0.9: 66}
    for share, least in shares.items():
        assert ShownCoins(np.full(99, share)).least_right(1e-3) == least
        assert BatchCoins(ones(99) * 99, ones(99)).least_right(1e-3) == 2
    assert least_right(np.full(9, 0.5), 1e-3) is None, "nine coins can all fall right"
    # Lots without replacement, in one stratum, or spread over two.
    assert SplitCoins(np.zeros(20, dtype=np.int64), np.array([10])).least_right(1e-3) == 8
    for stratum, shown in (([0] * 4 + [1] * 4, [2, 1]), ([0] * 6 + [1] * 3, [2, 2])):
        split = SplitCoins(np.array(stratum), np.array(shown))
        for level in (0.5, 0.2, 0.05, 0.02):
            enough = []
            for units in itertools.product((1, ABSTAIN), repeat=len(stratum)):
                all_right = split.null_law(np.array(units))[-1]
                if 0 < all_right <= level:
                    enough.append(units.count(1))
            assert split.least_right(level) == min(enough, default=None)


def test_of_82_named_records_23_have_to_be_shown():
    assert right_to_reject(binomial_law(82, 1 / 7), 1e-3) == 23
    assert right_to_reject(binomial_law(3, 0.5), 1e-3) is None


@given(
    st.integers(1, 60),
    st.integers(0, 60),
    st.integers(0, 60),
    st.just(0.0) | st.floats(1e-300, 1),  # the other library overflows below
)
def test_laws_are_those_of_another_library(units, shown, guessed, chance):
    shown, guessed = min(shown, units), min(guessed, units)
    law, k = hypergeometric_law(units, shown, guessed), np.arange(guessed + 1)
    assert law == pytest.approx(hypergeom.pmf(k, units, shown, guessed), rel=1e-8, abs=1e-290)
    k = np.arange(units + 1)
    assert binomial_law(units, chance) == pytest.approx(
        binom.pmf(k, units, chance), rel=1e-8, abs=1e-290
    )


def test_large_laws_keep_their_digits_and_are_rounded_up():
    """Against whole numbers, which Python has of any length."""
    units, shown, guessed, right = 20_000, 3_000, 700, 190
    ways = sum(
        math.comb(shown, k) * math.comb(units - shown, guessed - k)
        for k in range(right, guessed + 1)
    )
    exact = ways / math.comb(units, guessed)
    found = upper_tails(hypergeometric_law(units, shown, guessed))[right]
    assert exact <= found <= exact * (1 + 2e-9)
    # A fair coin: P[at least 2,400 of 4,000], and the mirror image.
    exact = sum(math.comb(4000, k) for k in range(2400, 4001)) / 2**4000
    for found in (
        upper_tails(binomial_law(4000, 0.5))[2400],
        lower_tails(binomial_law(4000, 0.5))[1600],
    ):
        assert exact <= found <= exact * (1 + 2e-9)
    assert upper_tails(binomial_law(100_000, 1e-3))[100_000] > 0


@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 1.0, 40.0, 700.0, 1e6, math.inf])
@pytest.mark.parametrize("share", [1e-300, 1e-9, 0.5, 1 - 1e-9, 1 - 2**-53])
def test_chances_stay_between_the_share_and_one(share, epsilon):
    for released in (False, True):
        coins = ShownCoins(np.full(3, share), released, both=True)
        found = coins.chances(np.array([1, 0, ABSTAIN]), epsilon)
        assert share <= found[0] <= 1 and 1 - share <= found[1] <= 1 and found[2] == 0
        spilt = coins.spill(epsilon)
        assert ((spilt >= 0) & (spilt <= 2.01)).all()
    for held_out in (0.0, 0.3, 0.999):
        batches = BatchCoins(np.array([1, 2, 10**9]), np.array([1, 1, 10**9]), held_out)
        found = batches.chances(np.zeros(3, dtype=np.int64), epsilon)
        assert ((found >= (1 - held_out) / batches.batches) & (found <= 1)).all()
        assert ((batches.spill(epsilon) >= 0) & (batches.spill(epsilon) <= 1.01)).all()


def test_impossible_coins_and_guesses_are_refused():
    for share in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(ValueError):
            ShownCoins(np.array([0.5, share]))
    for batches, generated, held_out in ((0, 0, 0.0), (2, 3, 0.0), (2, 1, 1.0), (2, 1, -0.1)):
        with pytest.raises(ValueError):
            BatchCoins(np.array([batches]), np.array([generated]), held_out)
    with pytest.raises(ValueError):
        SplitCoins(np.zeros(3, dtype=np.int64), np.array([4]))
    pairs = [
        (ShownCoins(np.full(1, 0.5)), 0),
        (ShownCoins(np.full(1, 0.5)), 2),
        (BatchCoins(ones(1) * 3, ones(1) * 2), 2),
        (BatchCoins(ones(1) * 3, ones(1) * 2), HELD_OUT),
    ]
    for coins, guess in pairs:
        with pytest.raises(ValueError):
            coins.chances(np.array([guess]), 0.0)
        with pytest.raises(ValueError):
            coins.null_law(np.array([guess]))
    with pytest.raises(ValueError):
        SplitCoins(np.zeros(3, dtype=np.int64), np.array([1])).null_law(np.zeros(3, dtype=np.int64))
    with pytest.raises(ValueError):
        GuessedCoins(ShownCoins(np.full(4, 0.4)), ones(4), 1e-5, settled=True)


def test_coins_that_are_sure_by_themselves_reject_nothing():
    sure = BatchCoins(ones(5), ones(5))
    assert sure.null_law(np.zeros(5, dtype=np.int64))[5] == 1 and sure.least_right(1e-3) is None
    split = SplitCoins(np.array([0, 0, 1, 1]), np.array([2, 0]))
    assert split.null_law(np.array([1, 1, 1, 1])).tolist() == [0, 0, 1, 0, 0]
    assert split.least_right(0.5) is None
    assert len(split.matched(np.array([1, 1, 0, 0]), 0).sizes) == 0


def test_a_record_is_held_out_of_all_rounds_or_of_none():
    # Two records, three rounds, B = g = 2: the first is named in all, the second in the last.
    coins = BatchCoins(ones(6) * 2, ones(6) * 2, 0.5, 3)
    guesses = np.array([0, ABSTAIN, 1, ABSTAIN, 0, 0])
    right = [0.5 + 0.5 / 8, 0.5 * 3 / 8, 0.5 * 3 / 8, 0.5 / 8]
    law = np.convolve(right, [0.75, 0.25])
    assert coins.null_law(guesses) == pytest.approx(law)
    named = np.array([4, 5, 2, 0])
    drawn = coins.draw(np.random.default_rng(1), named, 40_000)
    seen = np.bincount((drawn == guesses[named]).sum(axis=1), minlength=5) / 40_000
    assert seen == pytest.approx(law, abs=0.01)
    held_out = drawn == HELD_OUT
    assert (held_out[:, 0] == held_out[:, 2]).all() and (held_out[:, 0] == held_out[:, 3]).all()
    assert held_out[:, :2].mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.01)
    # 1/4 for each record, and 1/2 for it in each further round
    assert [coins.least_right(4.0**-2 * level) for level in (1.01, 0.51, 0.49)] == [2, 3, 4]
    # One round's epsilon bounds nothing of the shared coin.
    with pytest.raises(ValueError):
        coins.chances(guesses, 1.0)
    assert coins.of_taking_part().chances(guesses, 0.0).max() == pytest.approx(0.5)
    # Of the record that takes part all rounds are shown: that is sure, and no surprise.
    assert split_check(coins, np.array([0, HELD_OUT] * 3)) == 1.0


def test_a_split_is_counted_by_all_subsets_within_strata():
    stratum, shown = np.array([0, 0, 0, 0, 1, 1, 1]), np.array([1, 2])
    guesses = np.array([1, -1, 1, 1, 1, 1, -1])
    split, naive = SplitCoins(stratum, shown), np.zeros(6)
    outcomes = [
        np.isin(range(7), first + second)
        for first in itertools.combinations(range(4), 1)
        for second in itertools.combinations(range(4, 7), 2)
    ]
    for outcome in outcomes:
        naive[int(outcome[guesses == 1].sum())] += 1 / len(outcomes)
    assert split.null_law(guesses) == pytest.approx(naive)
    assert split.shares.tolist() == pytest.approx([0.25] * 4 + [2 / 3] * 3)
    assert split.expected_right(guesses) == pytest.approx(3 / 4 + 4 / 3)
    drawn = split.draw(np.random.default_rng(3), np.array([5, 0, 2, 3, 4]), 60_000)
    seen = np.bincount(drawn.sum(axis=1), minlength=6) / 60_000
    assert seen == pytest.approx(naive, abs=5 * 0.5 / 60_000**0.5)
    assert drawn.mean(axis=0) == pytest.approx([2 / 3, 0.25, 0.25, 0.25, 2 / 3], abs=0.01)
    everyone = split.draw(np.random.default_rng(3), np.arange(7), 50)
    assert (everyone[:, :4].sum(axis=1) == 1).all() and (everyone[:, 4:].sum(axis=1) == 2).all()


def test_draws_have_the_shares_of_their_coins():
    batches = BatchCoins(np.array([3, 3, 5]), np.array([2, 2, 5]), 0.25)
    drawn = batches.draw(np.random.default_rng(1), np.array([2, 0]), 40_000)
    for column, count in ((0, 5), (1, 3)):
        values, seen = np.unique(drawn[:, column], return_counts=True)
        assert values.tolist() == [HELD_OUT, *range(count)]
        assert seen / 40_000 == pytest.approx([0.25, *[0.75 / count] * count], abs=0.012)
    assert batches.shares == pytest.approx([0.5, 0.5, 0.75])
    assert batches.is_shown(np.array([1, 2, HELD_OUT])).tolist() == [True, False, False]
    shown = ShownCoins(np.array([0.1, 0.9])).draw(
        np.random.default_rng(1), np.array([1, 0]), 40_000
    )
    assert shown.mean(axis=0) == pytest.approx([0.9, 0.1], abs=0.01)


@pytest.mark.parametrize(("shown", "held_out"), [(3, 8), (8, 3), (4, 4), (2, 9)])
def test_matched_groups_hide_who_was_shown(shown, held_out):
    """Every member of a group was the odd one equally often, whatever the order of the units."""
    number, single = shown + held_out, min(shown, held_out)
    many = max(shown, held_out) // single
    split = SplitCoins(np.zeros(number, dtype=np.int64), np.array([shown]))
    random, seen = np.random.default_rng(5), np.zeros(many + 1)
    for seed in range(600):
        values = split.draw(random, np.arange(number), 1)[0]
        groups = split.matched(values, seed)
        assert groups.sizes.tolist() == [many + 1] * single
        assert groups.swapped.tolist() == [shown > held_out] * single
        for group in range(single):
            own = values[groups.group == group]
            assert groups.place[groups.group == group].tolist() == list(range(many + 1))
            assert own.sum() == (many if shown > held_out else 1)
            seen[int((own != (shown > held_out)).argmax())] += 1
    total = 600 * single
    assert seen / total == pytest.approx(
        np.full(many + 1, 1 / (many + 1)), abs=4 * 0.5 / total**0.5
    )


def test_a_group_guesses_its_member_with_the_highest_score():
    values = np.array([1, 0, 0, 1, 0, 1, 1, 1])
    split = SplitCoins(np.array([0, 0, 0, 0, 0, 1, 1, 1]), np.array([2, 3]))
    groups = split.matched(values, 7)
    assert groups.sizes.tolist() == [2, 2], "one held-out unit is left over, and a sure stratum"
    guesses, scores = np.where(groups.group == 0, 1, ABSTAIN), np.array([9, 5, 5, 9, 5, 5, 5, 5])
    found = groups.guess(guesses, scores)
    assert found[1] == ABSTAIN and groups.right(found, values) == 1
    assert groups.right(groups.guess(guesses, -scores), values) == 0
    tied = groups.guess(guesses, np.zeros(8, dtype=np.int64))
    assert tied[0] == 0, "the first of equals"


def test_roles_are_swapped_where_more_are_shown():
    """One of three was held out: a guess that a member was shown is right in two of three cases."""
    groups = GroupCoins(np.zeros(3, dtype=np.int64), np.arange(3), ones(1) * 3, np.array([True]))
    assert groups.chances(np.array([0]), 0.0)[0] == pytest.approx(2 / 3)
    x = math.exp(1.0)
    assert groups.chances(np.array([0]), 1.0)[0] == pytest.approx(2 * x / (2 * x + 1))
    assert groups.right(np.array([1]), np.array([1, 1, 0])) == 1
    assert groups.right(np.array([2]), np.array([1, 1, 0])) == 0
    normal = GroupCoins(np.zeros(3, dtype=np.int64), np.arange(3), ones(1) * 3, np.array([False]))
    assert normal.chances(np.array([0]), 1.0)[0] == pytest.approx(x / (x + 2))


def test_split_check_is_two_sided():
    values = np.where(np.arange(2122) < 342, 1, 5)
    assert split_check(BatchCoins(ones(2122) * 14, ones(2122) * 2), values) == pytest.approx(
        0.0189, abs=1e-4
    )
    shown = ShownCoins(np.full(2122, 1 / 7))
    few = np.where(np.arange(2122) < 264, 1, 0)
    assert split_check(shown, few) == pytest.approx(2 * binom.cdf(264, 2122, 1 / 7), rel=1e-6)
    assert split_check(SplitCoins(np.zeros(4, dtype=np.int64), np.array([2])), few) is None


@pytest.mark.parametrize("share", [0.5, 1 / 7, 0.9])
def test_limits_of_what_was_caused_miss_it_once_in_twenty_times(share):
    for by_cause, by_chance in itertools.product((0, 1, 5, 20), (0, 1, 4, 20, 60)):
        law, held = binomial_law(by_chance, share), 0.0
        for lucky, probability in enumerate(law.tolist()):
            shown = np.arange(by_cause + by_chance) < by_cause + lucky
            found = caused(np.full(by_cause + by_chance, share), shown)
            held += probability * (found.low <= by_cause <= found.high)
        assert held >= 0.95 - 1e-9


def test_what_was_caused_by_unequal_shares_and_by_hand():
    found = caused(np.full(31, 1 / 7), np.arange(31) < 30)
    assert (found.expected, found.low, found.high) == (pytest.approx(1 / 6), 28, 30)
    assert caused(np.zeros(0), np.zeros(0, dtype=bool)).high == 0
    shares, shown = np.array([0.1, 0.5, 0.9, 0.5]), np.array([True, False, False, False])
    assert caused(shares, shown).expected == pytest.approx(1 + 9 + 1)
    # Whatever units the c are, the limits hold those c that equal shares would allow.
    narrow = [caused(np.full(12, share), np.arange(12) < 9) for share in (0.2, 0.4)]
    wide = caused(np.array([0.2, 0.4] * 6), np.arange(12) < 9)
    assert wide.low <= min(each.low for each in narrow) + 2 and wide.high >= narrow[0].high - 1


def test_a_record_is_ever_shown_unless_it_never_is():
    naive = sum(
        (1 / 7) ** sum(rounds) * (6 / 7) ** (3 - sum(rounds))
        for rounds in itertools.product((0, 1), repeat=3)
        if any(rounds)
    )
    assert ever_shown(14, 2, 3) == pytest.approx(naive)
    assert ever_shown(14, 14, 3) == 1 and 0 < ever_shown(10**15, 1, 1) < 1.1e-15


def test_records_of_a_user_cost_their_number():
    """k records of one unit at epsilon are one record at k times epsilon."""
    coins, guesses = ShownCoins(np.array([0.3, 0.5, 0.5])), np.array([1, 1, ABSTAIN])
    users = GuessedCoins(coins, guesses, records=np.array([2, 3, 9]))
    apart = tail([*coins.chances(guesses, 0.8)[:1], *coins.chances(guesses, 1.2)[1:2]], 2)
    assert users.p_value(2, 0.4) == pytest.approx(apart)
    deltas = GuessedCoins(coins, guesses, 1e-3, np.array([2, 1, 1])).p_value(2, 0.4)
    spilt = coins.spill(np.array([0.8, 0.4, 0.4])) @ np.array([1 + math.exp(0.4), 1, 1]) * 1e-3
    apart = tail([*coins.chances(guesses, 0.8)[:1], *coins.chances(guesses, 0.4)[1:2]], 2)
    assert deltas == pytest.approx(apart + spilt)
    assert GuessedCoins(coins, guesses, 0.5, np.array([900, 1, 1])).p_value(2, 5.0) <= 1


@given(st.integers(1, 40), st.floats(0, 1), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_every_epsilon_below_the_refuted_one_is_refuted(named, share, delta):
    """With a delta the p-value may fall as epsilon grows: no island beyond the first gap counts."""
    coins = BatchCoins(np.full(60, 14), np.full(60, 14))
    guesses = np.where(np.arange(60) < named, 0, ABSTAIN)
    right = round(share * named)
    guessed = GuessedCoins(coins, guesses, delta)
    found = guessed.epsilon_refuted(right)
    if found:
        for part in (0.0, 0.3, 0.7, 1.0):
            assert guessed.p_value(right, part * found) <= 0.05
        assert found <= guessed.most_refutable()
    beyond = guessed.p_value(right, found * (1 + 1e-7) + 1e-9)
    assert beyond > 0.05 - (1e-6 if delta else 0.0)
