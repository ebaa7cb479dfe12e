"""Bounds on attacks against exact laws of small decoders, closed forms and known attackers."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting import (
    ApproximateAccountant,
    Parts,
    ReleaseAccountant,
    SecretBatches,
    approximate,
    joint,
    joint_attacks,
)
from dpaudit.accounting.profiles import NOTHING, Profile, _hull, lower_hull, pure_profile
from dpaudit.accounting.renyi import Doubles, RenyiTable, most_variation
from dpaudit.accounting.risk import AttackCurve
from dpaudit.accounting.zcdp import renyi_attacks
from dpaudit.mechanisms import GaussianDraws
from tests.accounting.toys import ROUNDING, Laws, Toys, two_point, worst_pairs

DELTA = 1e-5
#: Today's demo: two records changed of 32, at temperature 0.7, 48 tokens.
ETA, TOKENS = 2 * 2 / (32 * 0.7), 48
PHI = NormalDist().cdf


@cache
def of_draws(eta: float, tokens: int = TOKENS, laplace: float = 0.0) -> AttackCurve:
    accountant = ApproximateAccountant(eta, (laplace,) * bool(laplace))
    return accountant.attack_curve(tokens, DELTA)


def rounded_up(value: float, digits: int) -> float:
    return math.ceil(value * 10**digits) / 10**digits


def normal(mu: float, step: float = 0.01) -> Profile:
    """The exact profile of two normal laws, mu apart."""
    e = np.arange(0, 8 * max(mu, 1), step)
    cdf = np.vectorize(PHI)
    deltas = cdf(mu / 2 - e / mu) - np.exp(e) * cdf(-mu / 2 - e / mu)
    return Profile(step, np.maximum(deltas, 0.0))


def best_tests(p: Doubles, q: Doubles) -> tuple[Doubles, Doubles]:
    """The rates [n, outputs] of false and true positives of the likeliest outputs, more and more.

    No other test has more true positives for its false ones.
    """
    order = np.argsort(q / p, axis=-1)
    false, true = (np.cumsum(np.take_along_axis(law, order, -1), -1) for law in (q, p))
    return np.minimum(false, 1.0), true


def closest(laws: Laws, curve: AttackCurve) -> float:
    """The largest rate beside its bound, either way; fails where one is above."""
    best = 0.0
    for p, q in (laws, laws[::-1]):
        false, true = best_tests(p, q)
        bound = curve.at(false.ravel()).reshape(false.shape)
        assert (true <= bound + ROUNDING).all(), (true - bound).max()
        gained = true - false
        best = max(best, float((gained.max(-1) / curve.advantage).max()))
    return best


#: Pairs of decoders that differ by one record, both ways: in every run of the tests, and at full
#: size.
SIZES = [20, pytest.param(1300, marks=pytest.mark.slow)]


@pytest.mark.parametrize("decoders", SIZES)
@pytest.mark.parametrize("steps", [3, 4])
@pytest.mark.parametrize("eta", [0.25, 1.0, 4.0])
def test_no_test_of_a_small_decoder_is_above(steps: int, eta: float, decoders: int) -> None:
    """All texts of a vocabulary of 3; of one record, and of persons with two and three."""
    found = []
    for size in (1, 2, 3):
        toys = Toys(np.random.default_rng(steps), decoders, steps, eta)
        base, records = toys.base(), [toys.records() for _ in range(size)]
        laws = toys.texts(base + sum(records)), toys.texts(base)
        found.append(closest(laws, of_draws(eta, steps).group(size)))
        closest(laws, of_draws(size * eta, steps))
    assert found[0] > 0.3, found


@pytest.mark.parametrize("steps", [3, 4])
def test_decoders_that_play_the_recursions_pairs_come_close(steps: int) -> None:
    eta, rng = 1.0, np.random.default_rng(1)
    choices = [rng.uniform(0.3, 0.7, (400, 2**draw)) for draw in range(steps)]
    laws = worst_pairs(eta, choices, 1, 1)
    assert closest(laws, of_draws(eta, steps)) > 0.97


@pytest.mark.parametrize("eta", [1e-3, ETA, 1.0, 4.0])
def test_one_draw_is_told_by_tanh(eta: float) -> None:
    curve, (p, q) = of_draws(eta, 1), two_point(np.array(eta), np.array(eta / 2))
    assert math.tanh(eta / 4) <= curve.advantage <= math.tanh(eta / 4) * (1 + 1e-4)
    closest((p[None], q[None]), curve)
    # No loss lies beyond the range.
    assert curve.true_positives(1e-9) <= 1e-9 * math.exp(eta) * (1 + 1e-9)


def test_the_demo_at_both_levels() -> None:
    demo, one = of_draws(ETA), ApproximateAccountant(ETA)
    assert rounded_up(demo.advantage, 4) == 0.2449
    rates = {0.1: 0.2553, 0.01: 0.0442, 0.001: 0.00677}
    assert {x: rounded_up(demo.true_positives(x), 4 + (x < 0.01)) for x in rates} == rates
    right = {0.5: 0.6225, 0.4: 0.6462, 0.3: 0.7111, 0.2: 0.8011, 0.1: 0.9001, 0.01: 0.9901}
    assert {prior: rounded_up(demo.accuracy(prior), 4) for prior in right} == right
    tails = {2: 0.443, 3: 0.1641, 5: 0.0269, 10: 0.00081}
    assert {
        k: rounded_up(demo.odds_tail(k), len(str(most)) - 2) for k, most in tails.items()
    } == tails
    guesses = {0.01: 0.0442, 0.1: 0.2553, 0.25: 0.4798, 0.5: 0.7336}
    assert {blind: rounded_up(demo.guess(blind), 4) for blind in guesses} == guesses
    assert rounded_up(demo.auc, 4) == 0.6704
    # Two and three records of one person.
    for size, advantage, at_one in ((2, 0.4670, 0.1398), (3, 0.6499, 0.3229)):
        person = of_draws(size * ETA)
        assert rounded_up(person.advantage, 4) == advantage
        assert rounded_up(person.true_positives(0.01), 4) == at_one
        iterated = demo.group(size)
        assert person.advantage < iterated.advantage < person.advantage * 1.001
    release = ReleaseAccountant(one, one, SecretBatches(((14, 2),)))
    found = release.attack_curve(TOKENS, DELTA)
    assert rounded_up(found.advantage, 4) == 0.0259
    assert rounded_up(found.accuracy(), 3) == 0.513
    known = release.batch_attack_curve(TOKENS, DELTA)
    assert known.advantage == demo.advantage


def test_a_yes_is_right_more_often_for_who_accuses_more_rarely() -> None:
    """Its bound holds for a rate of exactly x or more, where that on true positives wants less."""
    demo = of_draws(ETA)
    for prior, most in ((0.5, 0.816), (0.1, 0.330), (0.01, 0.0428)):
        assert rounded_up(demo.precision(prior, 0.01), 3 + (prior < 0.1)) == most
    found = [demo.precision(0.1, x) for x in (0.01, 0.001, 1e-6)]
    assert found == pytest.approx([0.3293, 0.4293, 0.6616], abs=1e-4)
    assert demo.precision(0.1, 0.0) == 1


@pytest.mark.parametrize("mu", [0.3, 0.6187, 1.0, 2.0])
def test_normal_laws_have_their_closed_forms(mu: float) -> None:
    curve = AttackCurve.of_profile(normal(mu))
    gained = 2 * PHI(mu / 2) - 1
    assert gained <= curve.advantage <= gained + 2e-5
    assert (1 + gained) / 2 <= curve.accuracy() <= (1 + gained) / 2 + 2e-5
    area = PHI(mu / math.sqrt(2))
    assert area <= curve.auc <= area + 2e-5
    for prior in (0.1, 0.4, 0.8):
        t = math.log((1 - prior) / prior)
        right = prior * PHI(mu / 2 - t / mu) + (1 - prior) * PHI(mu / 2 + t / mu)
        assert right - 1e-12 <= curve.accuracy(prior) <= right + 2e-5
    for x in (1e-4, 0.01, 0.5):
        exact = PHI(mu + NormalDist().inv_cdf(x))
        assert exact <= curve.true_positives(x) <= exact * 1.001
    for factor in (2.0, 5.0):
        assert curve.odds_tail(factor) >= PHI(mu / 2 - math.log(factor) / mu)


def divergences(x: float, y: float, orders: Doubles) -> Doubles:
    """Renyi divergences of coins, the larger way, at orders of which the first is 1 [orders]."""
    found, above = [], orders[1:]
    for p, q in ((x, y), (y, x)):
        heads = above * math.log(p) + (1 - above) * math.log(q)
        tails = above * math.log1p(-p) + (1 - above) * math.log1p(-q)
        first = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
        found.append(np.append(first, np.logaddexp(heads, tails) / (above - 1)))
    return np.max(found, axis=0)


@pytest.mark.parametrize(
    ("epsilon", "advantage", "rates"),
    [
        (1, 0.1233, (0.0206, 0.00244)),
        (2, 0.2306, (0.0368, 0.00506)),
        (3, 0.3286, (0.0607, 0.00963)),
    ],
)
def test_a_promise_of_zcdp_bounds_by_its_exact_region(
    epsilon: float, advantage: float, rates: tuple[float, float]
) -> None:
    rho = ApproximateAccountant(math.inf, most_rho=1.0).most_rho_within(epsilon, DELTA)
    budgets = ApproximateAccountant(math.inf, most_rho=rho).attack_curve(1000, DELTA)
    # At orders that are close to each other a table says nearly as much.
    orders = np.concatenate([np.linspace(1, 30, 20_000), np.geomspace(31, 2000, 2000)])
    few = np.concatenate([np.linspace(1.001, 5, 400), np.geomspace(5.1, 2000, 200)])
    table = RenyiTable(tuple((order, rho * order) for order in few.tolist()))
    exact = [budgets, renyi_attacks(rho, (), DELTA)]
    for curve in exact:
        assert rounded_up(curve.advantage, 4) == advantage
        assert curve.advantage == pytest.approx(most_variation(rho), rel=1e-5)
        assert rounded_up(curve.true_positives(0.01), 4) == rates[0]
        assert rounded_up(curve.true_positives(0.001), 5) == rates[1]
    for curve in (*exact, renyi_attacks(0.0, (table,), DELTA)):
        assert most_variation(rho) <= curve.advantage <= most_variation(rho * 1.0015)
        for x in (0.3, 0.01, 0.001):
            most = curve.true_positives(x)
            assert (divergences(x, most * (1 - 1e-3), orders) <= rho * orders).all()
            assert (divergences(x, most * (1 + 1e-6), orders) > rho * orders).any()


def test_fewer_orders_are_a_looser_bound_and_rho_is_beside_tables() -> None:
    rho, few = 0.1, RenyiTable(((1.02, 0.102), (8.0, 0.8)))
    whole, part = renyi_attacks(rho, (), DELTA), renyi_attacks(0.0, (few,), DELTA)
    both = renyi_attacks(0.05, (RenyiTable(((2.0, 0.1), (32.0, 1.6))),), DELTA)
    for x in (0.001, 0.01, 0.2):
        assert whole.true_positives(x) < part.true_positives(x)
        assert whole.true_positives(x) < both.true_positives(x)
    assert most_variation(0.1) <= part.advantage <= most_variation(0.102)
    # Divergences grow: the table's at 2 holds at 1, beside rho there.
    assert both.advantage <= most_variation(0.15) * (1 + 1e-6)
    with pytest.raises(ValueError, match="nothing"):
        renyi_attacks(0.0, (), DELTA)


def best_spender(eta: float, rho: float, parts: int) -> float:
    """The advantage of who splits a budget by what was drawn, each draw of a range up to eta.

    It plays randomised response with whole multiples of eta / parts as ranges, whichever is best
    for the loss so far and what is left.
    """
    step = eta / (2 * parts)
    budget, reach = int(rho / (step * step / 2)), int(6 * math.sqrt(2 * rho) / step)
    losses = np.arange(-reach, reach + 1) * step
    by_budget = [np.maximum(-np.expm1(-losses), 0.0)]
    for left in range(1, budget + 1):
        best = by_budget[0].copy()
        for size in range(1, min(parts, math.isqrt(left)) + 1):
            later, truth = by_budget[left - size**2], 1 / (1 + math.exp(-size * step))
            # Losses beyond the grid gain nothing.
            up = np.append(later[size:], np.zeros(size))
            down = np.append(np.zeros(size), later[:-size])
            np.maximum(best, truth * up + (1 - truth) * down, out=best)
        by_budget.append(best)
    return float(by_budget[-1][reach])


def test_who_splits_a_budget_is_above_a_normal_law_and_below_the_bound() -> None:
    """The Gaussian of the same rho is no bound, nor is the largest range in all draws."""
    eta, rho = 0.1786, 0.108
    reached = best_spender(eta, rho, 5)
    assert reached > 0.18596
    gaussian = 2 * PHI(math.sqrt(rho / 2)) - 1
    assert gaussian < 0.18377 < reached
    largest = of_draws(eta, int(rho / (eta**2 / 8)))
    assert largest.advantage < reached
    bound = ApproximateAccountant(eta, most_rho=rho).attack_curve(10_000, DELTA)
    assert reached < bound.advantage == pytest.approx(most_variation(rho), rel=1e-4)


def test_a_normal_law_of_the_same_rho_is_below_what_equal_draws_reach() -> None:
    """The shortcut at the demo: too small at every rate, and so for a single draw."""
    mu, demo = math.sqrt(TOKENS) * ETA / 2, of_draws(ETA)
    assert 2 * PHI(mu / 2) - 1 < 0.2430 < 0.2448 < demo.advantage
    assert PHI(mu + NormalDist().inv_cdf(0.01)) < 0.04385 < demo.true_positives(0.01)
    p, q = two_point(np.array(2.0), np.array(1.0))
    assert p[0] - q[0] > 2 * PHI(0.5) - 1
    assert p[0] - q[0] <= of_draws(2.0, 1).advantage


def test_a_persons_figure_is_not_one_records() -> None:
    """Two records of one person: the curve of one is below what tells her."""
    eta, rng = 1.0, np.random.default_rng(2)
    toys = Toys(rng, 200, 3, eta)
    base, record = toys.base(), toys.records()
    laws = toys.texts(base + 2 * record), toys.texts(base)
    false, true = best_tests(*laws)
    assert (true > of_draws(eta, 3).at(false.ravel()).reshape(false.shape) + 0.02).any()
    assert closest(laws, of_draws(2 * eta, 3)) > 0.6
    assert closest(laws, of_draws(eta, 3).group(2)) > 0.6


def test_noisy_counts_and_centres_are_counted() -> None:
    for laplace, advantage in ((0.1, 0.2478), (0.5, 0.3063), (1.0, 0.4297)):
        found = of_draws(ETA, TOKENS, laplace)
        assert rounded_up(found.advantage, 4) == advantage
        assert found.advantage > of_draws(ETA).advantage
    assert rounded_up(of_draws(ETA, TOKENS, 0.5).true_positives(0.01), 4) == 0.0576
    # A noised count beside a run by budgets, and next to nothing drawn: its own is left.
    for draws in (ApproximateAccountant(ETA, (0.5,), most_rho=1e-9), ApproximateAccountant(0.0)):
        counted = ApproximateAccountant(draws.eta, (0.5,), most_rho=draws.most_rho)
        alone = -math.expm1(-0.25)
        assert alone <= counted.attack_curve(TOKENS, DELTA).advantage <= alone + 1e-4
    # Noise that next to no one notices is no reason to know nothing.
    tiny = ApproximateAccountant(ETA, (1e-12,)).attack_curve(TOKENS, DELTA)
    assert tiny.advantage == pytest.approx(of_draws(ETA).advantage, rel=1e-3)
    # The centres' epsilon is an event before the texts, their delta is added.
    centred = ApproximateAccountant(ETA, centers=0.3, centers_delta=1e-6)
    assert rounded_up(centred.attack_curve(TOKENS, DELTA).advantage, 4) == 0.2715
    certain = ApproximateAccountant(ETA, centers_delta=1e-6).attack_curve(TOKENS, DELTA)
    assert certain.true_positives(0.0) >= 1e-6
    spent = ApproximateAccountant(ETA, centers_delta=1e-4).attack_curve(TOKENS, DELTA)
    assert spent.advantage >= math.tanh(TOKENS * ETA / 2)


def test_without_a_grid_noisy_counts_and_centres_are_counted_beside_zcdp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where draws or events are beyond optimal composition's grid, their zCDP or pure bound is in.

    Without them the advantage would be .025 where .2214 is due.
    """
    counted = ApproximateAccountant(0.01, (0.5,))
    exact = counted.attack_curve(100, DELTA)
    assert exact.advantage == pytest.approx(0.2214, abs=1e-4) and exact.ways == ("ranges",)
    known = approximate.privacy_profile

    def no_draws(eta: float, steps: int, delta: float, **events: Any) -> Profile | None:
        return None if steps else known(eta, steps, delta, **events)

    forgotten = ApproximateAccountant(0.01)
    centred = ApproximateAccountant(0.01, (0.5,), 0.8, 1e-6)
    with_centres = centred.attack_curve(100, DELTA).advantage
    for none in (no_draws, lambda *_, **__: None):
        monkeypatch.setattr(approximate, "privacy_profile", none)
        found = counted.attack_curve(100, DELTA)
        assert exact.advantage <= found.advantage < 0.3 and found.ways == ("zcdp",)
        assert forgotten.attack_curve(100, DELTA).advantage < 0.0251
        assert centred.attack_curve(100, DELTA).advantage >= with_centres > found.advantage + 0.05
        for x in (1e-3, 0.1):
            assert found.true_positives(x) >= exact.true_positives(x)


@pytest.mark.parametrize("clusters", [{"centers": math.inf}, {"laplace": (1e6,)}])
@pytest.mark.parametrize("rho", [0.1, math.inf])
def test_clusters_that_bound_nothing_leave_no_bound(clusters: dict[str, Any], rho: float) -> None:
    known = ApproximateAccountant(ETA, most_rho=rho, **clusters)
    secret = ReleaseAccountant(known, ApproximateAccountant(ETA), SecretBatches(((14, 2),)))
    for curve in secret.attack_curves(TOKENS, DELTA):
        assert (curve.advantage, curve.ways) == (1, ("epsilon-delta",))


def test_a_bound_says_how_it_was_found() -> None:
    noise = ApproximateAccountant(math.inf, gaussian=GaussianDraws(1.0, 0.1))
    spent = ApproximateAccountant(ETA, centers=0.1, centers_delta=1e-3)
    both = ApproximateAccountant(ETA, most_rho=0.15)
    assert noise.attack_curve(TOKENS, DELTA).ways == ("pld",)
    assert spent.attack_curve(TOKENS, DELTA).ways == ("epsilon-delta",)
    assert both.attack_curve(TOKENS, DELTA).ways == ("ranges", "zcdp")
    one = ApproximateAccountant(ETA)
    release, batch = ReleaseAccountant(one, one, SecretBatches(((14, 2),))).attack_curves(
        TOKENS, DELTA
    )
    assert release.ways == ("ranges", "secret-batches") and batch.ways == ("ranges",)
    assert release.few().ways == release.ways and batch.group(2).ways == batch.ways


def test_releases_together_are_composed_and_not_added() -> None:
    """Three runs like the demo: three times its advantage is more than they have."""
    one = Parts(segments=((ETA, TOKENS),))
    demo, three = of_draws(ETA), joint_attacks([one] * 3, DELTA)
    assert rounded_up(three.advantage, 4) == 0.4090
    assert rounded_up(three.true_positives(0.01), 4) == 0.1053
    assert demo.advantage < three.advantage < 3 * demo.advantage
    # Whatever their order and kind, as one accountant has them.
    counted = joint_attacks([Parts(laplace=(0.5,)), one], DELTA)
    assert counted.advantage == pytest.approx(of_draws(ETA, TOKENS, 0.5).advantage, rel=1e-3)
    assert counted.advantage >= of_draws(ETA, TOKENS, 0.5).advantage * (1 - 1e-9)
    rho = joint_attacks([Parts(rho=0.03), Parts(rho=0.07)], DELTA)
    assert most_variation(0.1) <= rho.advantage <= most_variation(0.1) * (1 + 1e-5)
    assert rho.ways == ("zcdp",)
    # Deltas of their own are in every line.
    spent = joint_attacks([one, Parts(delta=1e-6)], DELTA)
    assert spent.true_positives(0.0) >= 1e-6
    assert spent.true_positives(0.01) >= of_draws(ETA).true_positives(0.01) + 1e-6 * (1 - 1e-9)
    # More than is left for a profile: no more than the sum of all epsilons is known.
    beyond = joint_attacks([one, Parts(pure=(0.1,), delta=2 * DELTA)], DELTA)
    alone = AttackCurve.of_epsilon(ETA * TOKENS + 0.1, 2 * DELTA)
    assert beyond.ways == ("epsilon-delta",) and beyond.advantage >= alone.advantage
    assert joint_attacks([Parts()], DELTA).advantage < 1e-11


def test_releases_together_for_readers_and_without_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    one = ApproximateAccountant(ETA)
    release = ReleaseAccountant(one, one, SecretBatches(((14, 2),)))
    parts, direct = release.parts(TOKENS, DELTA), release.attack_curve(TOKENS, DELTA)
    alone, twice = joint_attacks([parts], DELTA), joint_attacks([parts] * 2, DELTA)
    assert direct.advantage <= alone.advantage * (1 + 1e-9) <= direct.advantage * 1.001
    assert direct.advantage < twice.advantage < 2 * direct.advantage
    assert twice.ways == ("secret-batches",)
    draws = Parts(segments=((ETA, TOKENS),), laplace=(0.5,))
    exact = joint_attacks([draws], DELTA)
    monkeypatch.setattr(joint, "privacy_profile", lambda *_, **__: None)
    by_zcdp = joint_attacks([draws], DELTA)
    assert by_zcdp.ways == ("zcdp",) and exact.advantage <= by_zcdp.advantage < 0.5
    mixed = joint_attacks([draws, parts], DELTA)
    assert mixed.ways == ("epsilon-delta",)
    assert mixed.advantage > by_zcdp.advantage


def test_a_secrets_blind_success_is_the_same_attacks() -> None:
    """Others' records tell of two cities: who guesses right blind gains less than he seems to."""
    demo = of_draws(ETA)
    assert demo.guess(0.5) < 0.826
    assert demo.guess(0.9499) > 0.95


def test_one_epsilon_and_its_delta_alone_are_far_too_gloomy() -> None:
    alone, demo = AttackCurve.of_epsilon(2.5265, DELTA), of_draws(ETA)
    assert rounded_up(alone.advantage, 3) == 0.852
    assert rounded_up(alone.true_positives(0.01), 4) == 0.1252
    assert alone.advantage > 3.4 * demo.advantage
    for x in (0.0, 1e-6, 0.01, 0.5):
        assert demo.true_positives(x) <= alone.true_positives(x) + 1e-9
    assert AttackCurve.of_epsilon(0.0, 0.0).true_positives(0.25) == pytest.approx(0.25)
    assert AttackCurve.of_epsilon(math.inf, DELTA).true_positives(0.0) == 1
    assert AttackCurve.of_epsilon(700.0, DELTA).advantage == 1


def test_every_rounding_is_upwards() -> None:
    """Lines that are known to the last digit are not undercut, at corners above all."""
    rng = np.random.default_rng(3)
    for epsilon in (1e-12, 1e-3, 0.3, 2.0, 30.0, 400.0):
        curve = AttackCurve.of_profile(pure_profile(epsilon))
        told = math.tanh(epsilon / 2)
        corner = 1 / (math.exp(epsilon) + 1)
        assert curve.advantage >= told
        assert curve.true_positives(corner) >= min(1.0, corner * math.exp(epsilon))
        assert curve.accuracy() >= (1 + told) / 2
        assert curve.auc >= (1 + told) / 2
        for x in rng.uniform(0, 1, 50).tolist():
            exact = min(x * math.exp(epsilon), 1 - math.exp(-epsilon) * (1 - x))
            assert curve.true_positives(x) >= exact
            assert curve.at(np.array([x]))[0] >= exact
            assert curve.accuracy(x) >= max(x, 1 - x)
    # The bounds at grid points are reached, so none of their lines may be lowered.
    exact = normal(1.0)
    curve = AttackCurve.of_profile(exact)
    at = np.arange(len(exact.deltas)) * exact.step
    for x in (0.0, 0.01, 0.3):
        lines = np.concatenate(
            [
                exact.deltas + np.exp(at) * x,
                1 - np.exp(-at) * (1 - exact.deltas - x),
            ]
        )
        assert curve.true_positives(x) >= min(1.0, lines.min())


@pytest.mark.parametrize("end", [1.0, 40.0, 2000.0])
def test_hulls_are_the_largest_convex_functions_below(end: float) -> None:
    """By all chords there are, in exp(e) also where its differences would overflow."""
    rng = np.random.default_rng(4)
    x = np.sort(rng.uniform(0, 1, 40))
    y = (x - 0.5) ** 2 + rng.uniform(0, 0.05, 40)
    corners = lower_hull(x, y)
    i, j = np.triu_indices(40, 1)
    chords = y[i] + (y[j] - y[i]) / (x[j] - x[i]) * (x[:, None] - x[i])
    inside = (x[i] <= x[:, None]) & (x[:, None] <= x[j])
    expected = np.where(inside, chords, np.inf).min(1)
    assert np.interp(x, x[corners], y[corners]) == pytest.approx(expected, rel=1e-12)
    step = end / 39
    values = np.exp(-np.arange(40) * step / end * 8) * rng.uniform(0.7, 1.0, 40)
    hull = _hull(values, step)
    assert (hull <= values).all()
    # In units of the place in the middle, slopes ascend.
    before, behind = np.diff(hull)[:-1] / -math.expm1(-step), np.diff(hull)[1:] / math.expm1(step)
    assert (before <= behind + 1e-9).all()
    assert hull[0] == values[0] and hull[-1] == values[-1]


def test_the_smaller_of_two_bounds_is_one_everywhere() -> None:
    one, other = AttackCurve.of_epsilon(0.5, 0.1), AttackCurve.of_epsilon(2.0, 1e-4)
    both = one.meet(other)
    x = np.linspace(0, 1, 1001)
    expected = np.minimum(one.at(x), other.at(x))
    assert both.at(x) == pytest.approx(expected, rel=1e-9)
    assert both.advantage == pytest.approx((expected - x).max(), abs=1e-3)
    assert both.advantage <= min(one.advantage, other.advantage)
    assert max(both.at(x) - x) <= both.advantage
    assert both.auc >= float(np.trapezoid(expected, x))


def test_where_nothing_is_told_an_attacker_gains_nothing() -> None:
    for curve in (
        ApproximateAccountant(0.0).attack_curve(TOKENS, DELTA),
        ApproximateAccountant(1.0).attack_curve(0, DELTA),
        AttackCurve.of_profile(NOTHING),
    ):
        assert curve.advantage < 1e-11
        assert curve.accuracy() == pytest.approx(0.5)
        assert curve.auc == pytest.approx(0.5)
        assert curve.odds_tail(2.0) < 1e-11


def test_rejects_what_is_no_rate() -> None:
    curve = of_draws(ETA)
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="false-positive rate"):
            curve.true_positives(wrong)
        with pytest.raises(ValueError, match="base rate"):
            curve.accuracy(wrong)
        with pytest.raises(ValueError, match="base rate"):
            curve.precision(wrong, 0.1)
    for wrong in (1.0, 0.5, math.nan):
        with pytest.raises(ValueError, match="factor"):
            curve.odds_tail(wrong)


def test_profiles_of_groups_reach_beyond_floats() -> None:
    """Losses whose exponentials overflow have the deltas of the steepest line, and no warning."""
    found = AttackCurve.of_epsilon(1.0, 1e-6).group(2).profile(1.0, 800)
    assert found.deltas[-1] == pytest.approx((1 + math.e) * 1e-6)
