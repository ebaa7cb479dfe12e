"""Both levels of a run's guarantee: figures that settings fix, and what must hold between them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dpaudit.accounting import (
    ApproximateAccountant,
    Parts,
    ReleaseAccountant,
    SecretBatches,
    cost_of_texts,
    joint_epsilon,
    most_texts,
)
from dpaudit.accounting.allocation import allocated
from dpaudit.accounting.composition import privacy_profile
from dpaudit.accounting.profiles import (
    Profile,
    deltas_at,
    dominating,
    epsilon_of_profile,
    largest_of,
    least_of,
    profile_of_all,
    profile_of_rounds,
)
from dpaudit.accounting.release import costliest
from dpaudit.accounting.renyi import Doubles, most_variation
from dpaudit.accounting.zcdp import zcdp_profile
from dpaudit.mechanisms import GaussianDraws
from dpaudit.runs import NoGain

#: The paper's delta for AG News.
NEWS = 108_000**-1.1


def release(
    eta: float,
    *groups: tuple[int, int],
    rounds: int = 1,
    records: int = 1,
    rho: float = math.inf,
    laplace: tuple[float, ...] = (),
    shares: int = 1,
) -> ReleaseAccountant:
    """Of draws whose range one record moves by eta, and a unit of so many by as many times that."""
    one = ApproximateAccountant(eta, most_rho=rho)
    whole = ApproximateAccountant(records * eta, laplace, most_rho=records**2 * rho, rounds=rounds)
    return ReleaseAccountant(
        whole, one, SecretBatches(tuple(sorted(groups)), rounds), records, shares
    )


#: What the settings of the issue's table give: range, tokens, delta, (B, g), rounds, records,
#: rounded up to the digits.
TABLE = [
    (2 * 2 / (32 * 0.7), 48, 1e-5, (14, 2), 1, 1, 2.53, 0.48),
    (0.1875, 367, NEWS, (1687, 1687), 1, 1, 9.26, 1.98),
    pytest.param(0.1875, 367, NEWS, (421, 421), 1, 1, 9.26, 3.25, marks=pytest.mark.slow),
    pytest.param(0.046875, 689, NEWS, (421, 421), 1, 1, 2.70, 0.115, marks=pytest.mark.slow),
    (0.046875, 689, NEWS, (105, 105), 1, 1, 2.70, 0.245),
    (0.125, 64, 1e-5, (38, 38), 1, 1, 2.00, 0.2974),
    pytest.param(0.125, 64, 1e-5, (337, 337), 1, 1, 2.00, 0.09, marks=pytest.mark.slow),
    (0.125, 64, 1e-5, (38, 38), 33, 1, 15.78, 2.00),
    pytest.param(0.125, 64, 1e-5, (337, 337), 290, 1, 71.86, 1.99, marks=pytest.mark.slow),
    (0.125, 64, 1e-5, (38, 38), 1, 5, 13.09, 1.75),
    pytest.param(0.125, 64, 1e-5, (38, 38), 1, 2, 4.37, 0.64, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("eta", "tokens", "delta", "group", "rounds", "records", "batch", "readers"), TABLE
)
def test_settings_cost_what_the_issue_says(
    eta: float,
    tokens: int,
    delta: float,
    group: tuple[int, int],
    rounds: int,
    records: int,
    batch: float,
    readers: float,
) -> None:
    accountant = release(eta, group, rounds=rounds, records=records)
    digits = len(f"{readers:.10g}".partition(".")[2])
    assert math.ceil(accountant.epsilon(tokens, delta) * 10**digits) / 10**digits == readers
    assert math.ceil(accountant.batch_level(tokens, delta).epsilon * 100) / 100 == batch
    assert accountant.gains_nothing(tokens, delta) is None


def test_an_epsilon_of_two_buys_rounds_of_texts() -> None:
    few = release(0.125, (38, 38))
    found = most_texts(few, 2.0, 64, 1e-5, texts=38)
    assert (found.rounds, found.texts) == (33, 1254)
    assert 1.9 < found.epsilon <= 2.0 < found.batch_epsilon
    assert cost_of_texts(few, 1254, 64, 1e-5, texts=38).rounds == 33
    assert most_texts(few, 0.1, 64, 1e-5, texts=38).texts == 0
    assert (
        few.of_rounds(33).epsilon(64, 1e-5) == cost_of_texts(few, 1220, 64, 1e-5, texts=38).epsilon
    )


@pytest.mark.slow
def test_an_epsilon_of_two_buys_hundreds_of_rounds_of_many_batches() -> None:
    many = release(0.125, (337, 337))
    found = most_texts(many, 2.0, 64, 1e-5, texts=337)
    assert 97_000 < found.texts < 100_000
    assert found.epsilon <= 2.0 < many.of_rounds(found.rounds + 2).epsilon(64, 1e-5)


def test_rounds_by_squaring_are_those_of_plain_products_and_never_cost_less() -> None:
    batch = privacy_profile(0.125, 64, 1e-6)
    assert batch is not None
    one, found = allocated(batch, 8, 8, 1e-7), []
    for rounds in (1, 2, 3, 7, 12, 25):
        found.append(epsilon_of_profile(profile_of_rounds(one, rounds, 1e-5), 1e-5))
        plain = epsilon_of_profile(
            profile_of_all([dominating(one)] * rounds, 2.2 * found[-1]), 1e-5
        )
        assert found[-1] == pytest.approx(plain, rel=1e-3)
    assert all(fewer < more for fewer, more in pairwise(found))


def normal(mu: float, end: float) -> Profile:
    """Of a normal output that moves by mu standard deviations."""
    losses = np.linspace(0, end, 4000)
    cdf = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)))
    deltas = cdf(mu / 2 - losses / mu) - np.exp(losses) * cdf(-mu / 2 - losses / mu)
    return Profile(end / 3999, np.maximum(deltas, 0) + 1e-14)


def test_a_thousand_rounds_stay_just_above_the_truth() -> None:
    """Normal outputs compose to normal ones."""
    found = profile_of_rounds(normal(0.02, 0.2), 1000, 1e-6)
    at = np.linspace(0, 2.5, 200)
    truth = deltas_at(normal(0.02 * math.sqrt(1000), 4.0), at)
    assert (deltas_at(found, at) >= truth * (1 - 1e-5)).all()
    for delta in (1e-3, 1e-5):
        exact = epsilon_of_profile(normal(0.02 * math.sqrt(1000), 4.0), delta)
        assert exact <= epsilon_of_profile(found, delta) <= exact * (1 + 1e-4)


def test_one_batch_a_group_leaves_both_levels_equal() -> None:
    for groups in (((1, 1),), ((1, 1), (9, 9))):
        accountant = release(0.125, *groups)
        assert accountant.epsilon(64, 1e-5) == accountant.batch_level(64, 1e-5).epsilon
        assert accountant.gains_nothing(64, 1e-5) is NoGain.ONE_BATCH
    alone = ReleaseAccountant(ApproximateAccountant(0.125, rounds=3))
    assert alone.epsilon(64, 1e-5) == ApproximateAccountant(0.125).epsilon(192, 1e-5).epsilon
    assert alone.gains_nothing(64, 1e-5) is None
    assert alone.parts(64, 1e-5) == ApproximateAccountant(0.125).parts(192)


def test_more_batches_cost_less_more_texts_and_rounds_more() -> None:
    def costs(*accountants: ReleaseAccountant) -> list[float]:
        return [accountant.epsilon(48, 1e-5) for accountant in accountants]

    by_batches = costs(*(release(0.2, (batches, 2)) for batches in (2, 3, 5, 14, 60)))
    by_texts = costs(*(release(0.2, (14, generated)) for generated in (14, 7, 2, 1, 0)))
    by_rounds = costs(*(release(0.2, (14, 2), rounds=rounds) for rounds in (4, 2, 1)))
    for falling in (by_batches, by_texts, by_rounds):
        assert all(less < more for more, less in pairwise(falling))


def test_the_group_with_the_least_to_hide_in_counts() -> None:
    alone, both = release(0.2, (14, 2)), release(0.2, (14, 2), (60, 5), (30, 2))
    assert both.epsilon(48, 1e-5) == alone.epsilon(48, 1e-5)
    assert costliest(SecretBatches(((14, 2), (30, 2), (60, 5)))) == ((14, 2),)
    assert costliest(SecretBatches(((5, 5), (9, 9), (20, 1)))) == ((5, 5),)
    assert costliest(SecretBatches(((5, 1), (9, 9)))) == ((5, 1), (9, 9))
    either = release(0.2, (5, 1), (9, 9)).epsilon(48, 1e-5)
    assert either == pytest.approx(
        max(release(0.2, pair).epsilon(48, 1e-5) for pair in ((5, 1), (9, 9))), rel=1e-4
    )


@pytest.mark.parametrize(
    ("dear", "cheap"), [((4, 2), (9, 2)), ((4, 2), (4, 1)), ((4, 4), (6, 6)), ((4, 2), (12, 5))]
)
def test_pairs_that_are_left_out_cost_less_everywhere(
    dear: tuple[int, int], cheap: tuple[int, int]
) -> None:
    assert costliest(SecretBatches((dear, cheap))) == (dear,)
    batch, losses = privacy_profile(1.0, 2, 1e-6), np.linspace(0, 1.5, 50)
    assert batch is not None
    above, below = (deltas_at(allocated(batch, *pair, 1e-6), losses) for pair in (dear, cheap))
    assert (below <= above * (1 + 1e-3) + 1e-9).all()


def test_noisy_counts_are_composed_beside_the_texts_and_never_amplified() -> None:
    plain, counted = release(0.2, (14, 2)), release(0.2, (14, 2), laplace=(0.5,))
    alone = ApproximateAccountant(0.0, (0.5,)).epsilon(0, 1e-5).epsilon
    assert counted.epsilon(48, 1e-5) > max(plain.epsilon(48, 1e-5), alone)
    assert counted.epsilon(48, 1e-5) < plain.epsilon(48, 1e-5) + 0.5


def test_centres_are_added() -> None:
    plain, accountant = release(0.2, (14, 2)), release(0.2, (14, 2))
    centred = replace(accountant, batch=replace(accountant.batch, centers=0.3, centers_delta=2e-6))
    assert (
        plain.epsilon(48, 8e-6) < centred.epsilon(48, 1e-5) <= plain.epsilon(48, 8e-6) + 0.3 + 1e-3
    )
    spent = replace(accountant, batch=replace(accountant.batch, centers_delta=1e-4))
    assert math.isinf(spent.epsilon(48, 1e-5))
    # No loss lies beyond all ranges, but for the delta that the centres spent.
    assert spent.attack_curve(48, 1e-5).true_positives(0.0) == pytest.approx(1e-4)


def test_budgets_are_amplified_through_their_zcdp() -> None:
    """Exact region; the table of the specification, rounded up."""
    for rho, batches, most in ((0.0306, 4, 0.53), (0.1083, 38, 0.34), (0.2243, 421, 0.149)):
        accountant = release(1.0, (batches, batches), rho=rho)
        assert most - 0.01 < accountant.epsilon(500, 1e-5) <= most


@pytest.mark.parametrize(
    ("accountant", "epsilon"),
    [
        (release(1.0, (38, 38), rho=0.1), 1.0),
        pytest.param(release(1.0, (9, 9), rounds=4, records=2), 2.0, marks=pytest.mark.slow),
    ],
)
def test_a_budget_is_the_largest_that_stays_within_epsilon(
    accountant: ReleaseAccountant, epsilon: float
) -> None:
    rho = accountant.most_rho_within(epsilon, 1e-5)

    def cost(budget: float) -> float:
        one = accountant.one
        assert one is not None
        batch = replace(accountant.batch, most_rho=accountant.records**2 * budget)
        return replace(accountant, batch=batch, one=replace(one, most_rho=budget)).epsilon(
            400, 1e-5
        )

    assert cost(rho) <= epsilon < cost(rho * 1.001)
    assert rho > accountant.batch.most_rho_within(epsilon, 1e-5)


def test_draws_by_noise_are_amplified_through_their_profile() -> None:
    noise = GaussianDraws(20.0, 0.5)
    alone = ApproximateAccountant(math.inf, gaussian=noise)
    secret = SecretBatches(((10, 10),), 4)
    found = ReleaseAccountant(replace(alone, rounds=4), alone, secret)
    assert 0.2 < found.epsilon(48, 1e-5) < found.batch_level(48, 1e-5).epsilon / 2
    weak = ApproximateAccountant(math.inf, gaussian=GaussianDraws(0.01, 1.0))
    assert math.isinf(ReleaseAccountant(weak, weak, SecretBatches(((10, 10),))).epsilon(48, 1e-5))


def test_a_release_that_may_come_near_the_batch_level_is_held_against_it() -> None:
    """What is surely below it is not: an epsilon that an adversary reaches, without recursions."""
    for accountant in (
        ApproximateAccountant(0.2, rounds=2),
        ApproximateAccountant(3.0, most_rho=0.05),
        ApproximateAccountant(0.01, (0.5,), 0.3, 2e-6),
        ApproximateAccountant(0.125, centers_delta=1e-4),
        ApproximateAccountant(1e-9),
        ApproximateAccountant(math.inf, most_rho=0.05),
    ):
        for tokens, delta in ((0, 0.5), (1, 1e-5), (64, 1e-5), (64, 1e-12)):
            assert (
                0 <= accountant.surely(tokens, delta) <= accountant.epsilon(tokens, delta).epsilon
            )
    assert (
        ApproximateAccountant(0.2).surely(48, 1e-5)
        > 0.9 * ApproximateAccountant(0.2).epsilon(48, 1e-5).epsilon
    )
    for accountant in (
        release(0.2, (2, 2)),
        release(3.0, (2, 2)),
        release(0.5, (3, 3), rho=0.3, laplace=(0.2,)),
    ):
        assert accountant.epsilon(30, 1e-5) <= accountant.batch_level(30, 1e-5).epsilon
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta must lie"):
            release(0.2, (14, 2)).epsilon(48, delta)


EXTREME = [
    (0.0, 9, 1e-9),
    (1e-30, 9, 0.5),
    (1e-9, 9, 0.5),
    (3.0, 0, 0.5),
    pytest.param(3.0, 40, 1e-300, marks=pytest.mark.slow),
    pytest.param(40.0, 300, 0.5, marks=pytest.mark.slow),
    (40.0, 3, 0.5),
    (3.0, 2, 1e-300),
    (math.inf, 1, 0.5),
]


@pytest.mark.parametrize(("eta", "tokens", "delta"), EXTREME)
def test_no_legal_setting_fails_or_costs_readers_more(
    eta: float, tokens: int, delta: float
) -> None:
    accountant = release(eta, (7, 7), rounds=2, records=2)
    assert 0 <= accountant.epsilon(tokens, delta) <= accountant.batch_level(tokens, delta).epsilon
    rates = accountant.attack_curve(tokens, delta).at(np.array([0.0, 0.1, 1.0]))
    assert (rates >= np.array([0.0, 0.1, 1.0]) * (1 - 1e-9)).all()


def test_a_delta_beyond_precision_leaves_the_batch_level_and_says_so() -> None:
    accountant = release(0.125, (3125, 3125))
    assert accountant.epsilon(64, 1e-14) == accountant.batch_level(64, 1e-14).epsilon
    assert accountant.gains_nothing(64, 1e-14) is NoGain.BEYOND_PRECISION


def test_a_delta_that_is_split_is_worked_out_at_its_share() -> None:
    split, whole = release(0.2, (14, 2), rounds=3, shares=8), release(0.2, (14, 2), rounds=3)
    assert split.epsilon(48, 8e-5) == pytest.approx(whole.epsilon(48, 1e-5), rel=1e-9)
    assert split.batch_level(48, 8e-5).epsilon == pytest.approx(
        whole.batch_level(48, 1e-5).epsilon, rel=1e-9
    )
    assert split.batch_level(48, 8e-5).delta == 8e-5
    # Whoever stops by the texts is bounded by all rounds at every false-positive rate.
    rates = np.array([0.001, 0.01, 0.1])
    most = release(0.2, (14, 2), rounds=8).attack_curve(48, 8e-5).at(rates)
    assert split.attack_curve(48, 8e-5).at(rates) == pytest.approx(most)


def true_positives(accountant: ReleaseAccountant, rates: Doubles) -> Doubles:
    return accountant.attack_curve(48, 1e-5).at(rates)


def test_the_curve_is_of_the_release() -> None:
    """The demo's: an advantage of .026 where one batch gives .245."""
    rates, demo = np.linspace(0, 1, 2001), release(2 * 2 / (32 * 0.7), (14, 2))
    assert 0.0258 < (true_positives(demo, rates) - rates).max() <= 0.0259
    assert 0.2448 < (true_positives(ReleaseAccountant(demo.batch), rates) - rates).max() <= 0.2449
    # It says of epsilon what `epsilon` does.
    epsilon = demo.epsilon(48, 1e-5)
    assert (true_positives(demo, rates) <= 1e-5 + math.exp(epsilon) * rates + 1e-9).all()


def test_releases_compose_as_curves() -> None:
    one = release(0.2, (14, 2))
    parts, alone = one.parts(48, 1e-5), one.epsilon(48, 1e-5)
    assert joint_epsilon([parts], 1e-5).epsilon == pytest.approx(alone, rel=1e-4)
    twice = joint_epsilon([parts, parts], 1e-5).epsilon
    assert alone < twice < 2 * alone
    # Two runs of one round each under keys of their own are what two rounds are.
    assert twice == pytest.approx(release(0.2, (14, 2), rounds=2).epsilon(48, 1e-5), rel=2e-3)
    others = [
        Parts(segments=((0.1, 20),)),
        Parts(rho=0.01),
        Parts(laplace=(0.1,)),
        Parts(pure=(0.1,), delta=1e-6),
    ]
    for other in others:
        both = joint_epsilon([parts, other], 1e-5).epsilon
        assert max(alone, joint_epsilon([other], 1e-5).epsilon) < both < 3
    assert math.isfinite(joint_epsilon([parts, Parts(pure=(800.0,))], 1e-5).epsilon)


def test_the_smallest_and_the_largest_of_profiles_hold_between_their_grids() -> None:
    one, other = normal(0.5, 2.0), normal(0.4, 3.0)
    at = np.linspace(0, 2, 77)
    assert (deltas_at(largest_of([one, other]), at) >= deltas_at(one, at) * (1 - 1e-6)).all()
    assert (deltas_at(least_of([one, other]), at) >= deltas_at(other, at) * (1 - 1e-6)).all()
    assert (deltas_at(least_of([one, other]), at) <= deltas_at(other, at) * (1 + 1e-3) + 1e-9).all()


def test_rejects_what_no_release_is() -> None:
    one = ApproximateAccountant(0.2)
    for groups in ((), ((3, 4),), ((0, 0),)):
        with pytest.raises(ValueError, match=r"group|generated"):
            SecretBatches(groups)
    with pytest.raises(ValueError, match="round"):
        SecretBatches(((3, 3),), 0)
    with pytest.raises(ValueError, match="neither rounds"):
        ReleaseAccountant(one, replace(one, rounds=2), SecretBatches(((3, 3),)))
    with pytest.raises(ValueError, match="one each"):
        ReleaseAccountant(one, records=0)
    with pytest.raises(ValueError, match="least one round"):
        ApproximateAccountant(0.2, rounds=0)


@pytest.mark.parametrize("rho", [1e-40, 1e-19, 1e-9, 1e-4, 0.03, 1.0, 9.0])
def test_the_region_of_zcdp_is_no_smaller_than_what_its_mechanisms_reach(rho: float) -> None:
    """Randomised response that is rho-zCDP attains delta(0).

    Normal noise and single draws lie below everywhere.
    """
    found, losses = zcdp_profile(rho, 1e-6), np.linspace(0, 2 * math.sqrt(rho), 9)
    assert found.deltas[0] == pytest.approx(most_variation(rho), rel=1e-3)
    epsilon = 2 * math.atanh(most_variation(rho) * (1 - 1e-9))
    assert epsilon * math.tanh(epsilon / 2) == pytest.approx(rho, rel=1e-4)
    reached = np.maximum(1 - np.exp(losses - epsilon), 0) / (1 + math.exp(-epsilon))
    if rho > 1e-13:
        reached = np.maximum(
            reached, deltas_at(normal(math.sqrt(2 * rho), 4 * math.sqrt(rho)), losses) - 2e-14
        )
    assert (deltas_at(found, losses) >= reached * (1 - 1e-5)).all()
