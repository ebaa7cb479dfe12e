"""Optimal composition against brute force, a naive recursion, other accountants and adversaries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting import (
    LaplaceDpEvent,
    NeighboringRelation,
    RandomizedResponseDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpaudit.accounting import composition, recursion, zcdp_epsilon
from dpaudit.accounting import exponential_mechanism_epsilon as epsilon_of

AG_NEWS = 108_000**-1.1
Doubles = NDArray[np.float64]


# --- the figures to expect ------------------------------------------------------------------------


def test_at_the_papers_settings() -> None:
    for eta, tokens, rdp, optimal in [(0.1875, 367, 9.889, 9.25), (0.046875, 689, 2.898, 2.69)]:
        found = epsilon_of(eta, tokens, AG_NEWS)
        assert found.epsilon == pytest.approx(optimal, abs=0.005)
        assert found.epsilon_lower is not None
        assert found.epsilon_lower < found.epsilon <= 1.002 * found.epsilon_lower
        assert (found.delta, found.method) == (AG_NEWS, "optimal")
        assert epsilon_of(eta, tokens, AG_NEWS, method="rdp").epsilon == pytest.approx(
            rdp, abs=0.0005
        )


def test_rebalancing_costs_less_jointly_than_added() -> None:
    alone, joint = (
        epsilon_of(0.1875, 367, AG_NEWS, method="rdp", laplace=e).epsilon for e in ((), [0.1])
    )
    assert joint == pytest.approx(9.906, abs=0.0005)
    assert joint < alone + 0.1 - 0.08
    alone, joint = (
        epsilon_of(0.1875, 367, AG_NEWS, laplace=e, grid=32).epsilon for e in ((), [0.1])
    )
    assert joint < alone + 0.1 - 0.08


def test_a_finer_grid_comes_closer() -> None:
    found = [
        epsilon_of(0.1875, 50, 1e-6, laplace=[0.3], grid=places) for places in (4, 8, 16, 32, 64)
    ]
    uppers = [bound.epsilon for bound in found]
    lowers = [bound.epsilon_lower or 0.0 for bound in found]
    assert uppers == sorted(uppers, reverse=True)
    assert max(lowers) < min(uppers)
    gaps = [upper - lower for upper, lower in zip(uppers, lowers, strict=True)]
    assert gaps[-1] < 0.005 * uppers[-1]
    assert all(fine < coarse for coarse, fine in pairwise(gaps))


def test_no_real_number_between_distant_grid_points_exceeds_the_bound() -> None:
    """Which one of them reaches: between t = 0 and eta, where a draw's delta after it is all."""
    for eta in (0.1, 1.0, 6.0):
        places = 100
        pairs = recursion._Pairs(places, eta / places, 1)
        gaps = np.array([-math.expm1(-t) for t in (0.0, eta)])  # of one draw with m = 1, at e = 0
        share = pairs._share_between(np.array([0]), np.array([places]))[0]
        assert share * (gaps[1] - gaps[0] * math.exp(-eta)) == pytest.approx(math.tanh(eta / 4))


def test_cells_leave_no_maximum_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of profiles with corners anywhere, whose maxima lie anywhere; every t on its own agrees."""
    random = np.random.default_rng(0)
    points = 400
    for places, step in ((64, 0.01), (144, 0.02), (225, 0.002)):
        at = np.exp(np.arange(-places, points + places) * step)
        by_cells = recursion._Pairs(places, step, points)
        with monkeypatch.context() as patch:
            patch.setattr(recursion, "_FEW", math.inf)
            one_by_one = recursion._Pairs(places, step, points)
        for _ in range(20):
            corners = np.exp(random.uniform(-places, points, size=(3, 1)) * step)
            future = (random.random((3, 1)) * np.maximum(0.0, 1 - at / corners)).max(axis=0)
            found = by_cells.at_real_numbers(future).copy()
            np.testing.assert_allclose(found, one_by_one.at_real_numbers(future), rtol=1e-15)
            assert (found >= by_cells.at_grid_points(future) * (1 - 1e-15)).all()


# --- against brute force --------------------------------------------------------------------------


def brute_force(e: Doubles, etas: Sequence[float], trials: int = 61) -> Doubles:
    """delta of adaptive draws at e [...], t over real numbers, written as the definition reads."""
    if not etas:
        return np.maximum(0.0, 1 - np.exp(e))
    eta = etas[0]
    t = np.linspace(0, eta, trials)
    p = (np.exp(eta) - np.exp(t)) / (np.exp(eta) - 1)
    after = brute_force(np.stack([e[..., None] - t, e[..., None] - t + eta]), etas[1:], trials)
    return (p * after[0] + (1 - p) * after[1]).max(axis=-1)


def brute_force_joint(e: float, etas: Sequence[float], laplace: float, pure: float) -> float:
    """The same after Laplace noise and randomised response, by quadrature over the noise."""
    quantiles = (np.arange(400) + 0.5) / 400
    # Laplace(1) at 0
    noise = np.where(quantiles < 0.5, np.log(2 * quantiles), -np.log(2 - 2 * quantiles))
    losses = np.abs(noise - laplace) - np.abs(noise)
    truth = np.exp(pure) / (1 + np.exp(pure))
    each = brute_force(e - losses[:, None] - np.array([pure, -pure]), etas, 31)
    return float((each @ np.array([truth, 1 - truth])).mean())


def test_bounds_hold_for_every_real_t() -> None:
    for grid, seed in itertools.product([2, 3, 12], range(5)):
        rng = np.random.default_rng(seed)
        etas = rng.uniform(0.2, 3.0, rng.integers(1, 4)).tolist()
        delta = float(10 ** rng.uniform(-4, -0.5))
        found = epsilon_of(etas, [1] * len(etas), delta, grid=grid)
        step, low = max(etas) / grid, found.epsilon_lower
        at_upper, below, at_lower = brute_force(
            np.array([found.epsilon, found.epsilon - 3 * step, (low or 0.0) - 0.02 * max(etas)]),
            etas,
        )
        assert at_upper <= delta
        if grid == 12:
            assert below > delta or found.epsilon < 3 * step  # the test could have failed
        assert at_lower > delta or low is None


def test_joint_bounds_hold_for_every_real_t() -> None:
    for seed in range(4):
        rng = np.random.default_rng(100 + seed)
        etas = rng.uniform(0.2, 2.0, 2).tolist()
        laplace, pure = rng.uniform(0.1, 1.5, 2).tolist()
        delta = float(10 ** rng.uniform(-3, -1))
        found = epsilon_of(etas, [1, 1], delta, laplace=[laplace], pure=[pure], grid=24)
        assert found.epsilon_lower is not None
        assert brute_force_joint(found.epsilon, etas, laplace, pure) <= delta * (1 + 1e-3)
        assert brute_force_joint(found.epsilon_lower - 0.03, etas, laplace, pure) > delta
        assert found.epsilon - found.epsilon_lower < 0.25


def test_the_order_of_segments_is_kept() -> None:
    """Large ranges first leave an adversary less to adapt with: here, 10% less delta."""
    lowers = []
    for etas in ([0.5, 0.5, 2.0], [2.0, 0.5, 0.5]):
        found = epsilon_of(etas, [1, 1, 1], 0.05, grid=256)
        assert found.epsilon_lower is not None
        below, at_upper = brute_force(np.array([found.epsilon_lower - 0.004, found.epsilon]), etas)
        assert at_upper <= 0.05 < below
        lowers.append(found.epsilon_lower)
    assert lowers[0] > lowers[1] + 0.02


def test_a_single_draw_has_its_closed_form() -> None:
    """The maximum over real t, (e^(eta/2) - e^(e/2))^2 / (e^eta - 1), to delta's last digit."""
    for grid, eta in itertools.product([1, 2, 3, 7], [0.1, 1.0, 4.0]):
        for place in range(grid):
            e = place * eta / grid
            exact = (math.exp(eta / 2) - math.exp(e / 2)) ** 2 / math.expm1(eta)
            found = epsilon_of(eta, 1, exact * (1 - 1e-9), grid=grid)
            assert found.epsilon > e + 1e-6
            assert (found.epsilon_lower or 0.0) <= e * (1 + 1e-9)


def test_a_grid_that_ends_early_costs_accuracy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    uncached = composition._by_recursion.__wrapped__
    monkeypatch.setattr(composition, "_by_recursion", uncached)  # it knows nothing of another end
    far = epsilon_of(0.5, 30, 1e-4, grid=16)
    for remote in [1, 2, 4, 8, 16, 1000]:
        monkeypatch.setattr("dpaudit.accounting.recursion.REMOTE", remote)
        near = epsilon_of(0.5, 30, 1e-4, grid=16)
        assert near.epsilon >= far.epsilon
        assert (near.epsilon_lower or 0.0) <= (far.epsilon_lower or 0.0)


def test_profile_and_epsilon_of_the_same_draws_share_their_recursion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, recursion = [], composition.Recursion
    monkeypatch.setattr(composition, "Recursion", lambda *a: made.append(a) or recursion(*a))
    epsilon_of(0.371, 5, 1e-3)
    assert composition.privacy_profile(0.371, 5, 1e-3) is not None
    assert len(made) == 2, "rounded up and rounded down"


def test_one_segment_in_two_parts() -> None:
    assert epsilon_of([0.4, 0.4], [3, 7], 1e-4, grid=16) == epsilon_of(0.4, 10, 1e-4, grid=16)
    assert epsilon_of([0.4, 0.2, 0.0], [10, 0, 5], 1e-4, grid=16) == epsilon_of(
        0.4, 10, 1e-4, grid=16
    )


# --- against a naive recursion that shares no code and no idea with ours --------------------------


def naive_profile(eta: float, places: int, inflated: bool) -> Callable[[int, int], float]:
    """delta(k, j) at j steps of h = eta / places, on all integers.

    Where inflated, the range is (places + 1) h.
    """
    h, m = eta / places, places + inflated
    p = [(math.exp(m * h) - math.exp(i * h)) / (math.exp(m * h) - 1) for i in range(m + 1)]

    @cache
    def delta(k: int, j: int) -> float:
        if k == 0:
            return max(0.0, 1 - math.exp(j * h))
        return max(
            p[i] * delta(k - 1, j - i) + (1 - p[i]) * delta(k - 1, j - i + m) for i in range(m + 1)
        )

    return delta


def test_naive_recursions_enclose_ours() -> None:
    for (eta, steps, places), delta in itertools.product(
        [(0.5, 6, 8), (0.1, 12, 5), (2.0, 4, 10)], [1e-2, 1e-5]
    ):
        found = epsilon_of(eta, steps, delta, grid=places)
        assert found.epsilon_lower is not None
        h = eta / places
        upper, lower = (naive_profile(eta, places, inflated) for inflated in (True, False))
        inflated = h * next(j for j in range(10_000) if upper(steps, j) <= delta)
        attained = h * next(j for j in range(10_000) if lower(steps, j) <= delta) - h
        assert found.epsilon <= inflated + 1e-9
        assert found.epsilon_lower == pytest.approx(attained, abs=1e-6 * h + 1e-9)
        # Far finer, the spec's recursion and ours must come together.
        fine = epsilon_of(eta, steps, delta, grid=64)
        assert found.epsilon_lower <= fine.epsilon <= found.epsilon + h


# --- against adversaries --------------------------------------------------------------------------

ETA, STEPS, DELTA, PLACES = 0.4, 25, 5e-3, 20


def deltas_of(
    choose: Callable[[int, Doubles], Doubles], epsilon: float, seed: int
) -> tuple[float, float]:
    """(delta, standard error) of an adversary who picks t by the draws and the epsilon left."""
    rng = np.random.default_rng(seed)
    left = np.full(400_000, epsilon)
    for draws_left in range(STEPS, 0, -1):
        t = choose(draws_left, left)
        high = rng.random(len(left)) < np.expm1(t - ETA) / np.expm1(-ETA)
        left -= np.where(high, t, t - ETA)
    excess = np.maximum(0.0, 1 - np.exp(left))
    return float(excess.mean()), float(excess.std() / math.sqrt(len(excess)))


def greedy() -> Callable[[int, Doubles], Doubles]:
    """Plays the t that the naive recursion maximises at the nearest grid point."""
    delta, h = naive_profile(ETA, PLACES, inflated=False), ETA / PLACES
    t = np.arange(PLACES + 1)
    p = np.expm1((t - PLACES) * h) / np.expm1(-ETA)
    span = range(-3 * PLACES, STEPS * PLACES + 1)

    @cache
    def best(k: int) -> Doubles:
        after = np.array([delta(k - 1, j) for j in range(span.start - PLACES, span.stop + PLACES)])
        at = np.arange(len(span))[:, None] + PLACES - t
        return h * (
            p * after[at] + (1 - p) * after[np.minimum(at + PLACES, len(after) - 1)]
        ).argmax(axis=1)

    def choose(k: int, left: Doubles) -> Doubles:
        return best(k)[np.clip(np.rint(left / h).astype(int) - span.start, 0, len(span) - 1)]

    return choose


def test_no_adversary_exceeds_the_bound_and_the_best_one_almost_reaches_it() -> None:
    found = epsilon_of(ETA, STEPS, DELTA)
    play = greedy()
    delta, error = deltas_of(play, found.epsilon, 1)
    assert delta <= DELTA + 4 * error
    # The test has power: an epsilon 10% too small does not pass it.
    delta, error = deltas_of(play, 0.9 * found.epsilon, 2)
    assert delta > DELTA + 4 * error
    rng = np.random.default_rng(3)
    for choose in (
        lambda _, left: rng.uniform(0, ETA, len(left)),
        lambda k, left: np.where(left > k * ETA / 2, ETA / 4, ETA / 2),
        lambda _, left: np.full(len(left), ETA / 2),
    ):
        delta, error = deltas_of(choose, found.epsilon, 4)
        assert delta <= DELTA + 4 * error


def test_the_formula_for_draws_fixed_beforehand_is_no_bound() -> None:
    """An adaptive adversary exceeds the formula of Dong, Durfee and Rogers.

    It holds for one t for all draws, known beforehand.
    """
    i = np.arange(STEPS + 1)
    choices = np.array([math.comb(STEPS, n) for n in i], dtype=float)

    def delta(e: float) -> float:
        t = np.linspace(1e-9, ETA - 1e-9, 401)[:, None]
        p = np.expm1(t - ETA) / np.expm1(-ETA)
        losses = STEPS * t - i * ETA
        return float(
            (choices * p ** (STEPS - i) * (1 - p) ** i * np.maximum(0, 1 - np.exp(e - losses)))
            .sum(1)
            .max()
        )

    lower = epsilon_of(ETA, STEPS, DELTA).epsilon_lower
    assert lower is not None
    assert delta(lower) < DELTA


# --- pure events ----------------------------------------------------------------------------------


def test_single_pure_events_have_their_closed_forms() -> None:
    for delta, epsilon in itertools.product([1e-6, 1e-2, 0.2], [0.01, 1.0, 8.0]):
        noise = epsilon_of([], [], delta, laplace=[epsilon])
        exact = max(0.0, epsilon + 2 * math.log1p(-delta))
        assert (noise.epsilon_lower or 0.0) <= exact <= noise.epsilon <= exact + epsilon / 100
        answer = epsilon_of(0.5, 0, delta, pure=[epsilon])
        truth = 1 / (1 + math.exp(-epsilon))
        exact = max(0.0, math.log((truth - delta) / (1 - truth)))
        assert (answer.epsilon_lower or 0.0) <= exact <= answer.epsilon <= exact + epsilon / 100


def test_laplace_noise_is_never_rounded_down() -> None:
    for grid in [1, 3, 10]:
        for place in range(grid):
            e = 0.7 * place / grid
            found = epsilon_of(
                [], [], -math.expm1((e - 0.7) / 2) * (1 - 1e-9), laplace=[0.7], grid=grid
            )
            assert found.epsilon > e + 1e-6
            assert (found.epsilon_lower or 0.0) <= e * (1 + 1e-9)


def test_two_counts_cost_what_the_librarys_loss_distributions_say() -> None:
    ours = epsilon_of([], [], 1e-4, laplace=[0.5, 0.5])
    two = pld.from_laplace_mechanism(2.0, value_discretization_interval=1e-4).self_compose(2)
    assert ours.epsilon_lower is not None
    assert ours.epsilon_lower - 1e-3 <= two.get_epsilon_for_delta(1e-4) <= ours.epsilon + 1e-3
    assert ours.epsilon - ours.epsilon_lower < 0.01


def test_noise_on_one_count_is_the_worst_and_any_pure_event_worse() -> None:
    for method in ["rdp", "optimal"]:

        def cost(method: str = method, **events: list[float]) -> float:
            return epsilon_of(0.2, 40, 1e-5, method=method, **events).epsilon  # type: ignore[arg-type]

        split, whole, response, added = (
            cost(laplace=[0.4, 0.4]),
            cost(laplace=[0.8]),
            cost(pure=[0.8]),
            cost() + 0.8,
        )
        assert split < whole < response < added


def test_the_librarys_events_count() -> None:
    for event in [ZCDpEvent(0.01, 1e-6), LaplaceDpEvent(10.0), RandomizedResponseDpEvent(0.9, 2)]:

        def accountant() -> RdpAccountant:
            return RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)

        once, nested, counted = (accountant() for _ in range(3))
        for _ in range(30):
            once.compose(event)
        nested.compose(SelfComposedDpEvent(event, 30))
        counted.compose(event, 30)
        expected = once.get_epsilon(1e-5)
        assert nested.get_epsilon(1e-5) == pytest.approx(expected, rel=1e-12)
        assert counted.get_epsilon(1e-5) == pytest.approx(expected, rel=1e-12)
        assert accountant().compose(event).get_epsilon(1e-5) < expected


def test_renyi_divergences_of_pure_events() -> None:
    """Against the divergence's definition, at the order the accountant chose, never below it."""
    for epsilon in [1e-9, 1e-3, 0.3, 5.0, 40.0]:
        delta = 1e-7
        half = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))

        def renyi(order: float, half: tuple[float, float] = half) -> float:
            p, q = np.log(half)
            return float(np.logaddexp(order * p + (1 - order) * q, order * q + (1 - order) * p)) / (
                order - 1
            )

        orders = np.concatenate([np.arange(51, 500) / 50, np.arange(10, 64), [128, 256, 512, 1024]])
        best = min(renyi(a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders)
        found = zcdp_epsilon(0.0, delta, pure=[epsilon])
        assert found == pytest.approx(max(best, 0.0), rel=1e-6, abs=1e-6)


def test_answers_that_hardly_ever_lie() -> None:
    assert zcdp_epsilon(0.0, 1e-5, pure=[800.0]) == math.inf
    found = epsilon_of(0.1, 3, 1e-5, pure=[800.0])
    assert 800 <= found.epsilon <= 800.31
    assert zcdp_epsilon(0.0, 1e-5, laplace=[1e200]) == math.inf


# --- edges ----------------------------------------------------------------------------------------


def test_nothing_costs_nothing_and_an_unbounded_range_everything() -> None:
    for method in ["rdp", "optimal"]:
        for eta, steps in ((0.5, 0), (0.0, 100), (math.inf, 0), ([], []), ([1.0, 0.0], [0, 9])):
            assert epsilon_of(eta, steps, 1e-5, method=method, laplace=[0.0]).epsilon == 0  # type: ignore[arg-type]
        for eta, steps in ((math.inf, 1), (1.0, 10**400), ([0.1, math.inf], [1, 1])):
            assert epsilon_of(eta, steps, 1e-5, method=method).epsilon == math.inf  # type: ignore[arg-type]
        assert epsilon_of(0.1, 5, 1e-5, method=method, laplace=[math.inf]).epsilon == math.inf  # type: ignore[arg-type]


def test_settings_beyond_all_use_stay_sound() -> None:
    for eta, delta in itertools.product(
        [1e-320, 1e-200, 1e-30, 1e30, 1e120], [5e-324, 1e-200, 1e-9, 0.99]
    ):
        found = epsilon_of(eta, 3, delta)
        assert 0 <= (found.epsilon_lower or 0.0) <= found.epsilon <= 3 * eta * (1 + 1e-9) + 5e-324
        assert found.epsilon > 0 or eta < 4 * delta


def test_a_tiny_delta_is_not_lost_in_rounding() -> None:
    found = epsilon_of(0.1875, 100, 1e-60, grid=24)
    assert found.epsilon_lower is not None
    assert found.epsilon_lower < found.epsilon < min(1.03 * found.epsilon_lower, 100 * 0.1875)


BAD = [
    ("eta", {"eta": math.nan}),
    ("eta", {"eta": -0.1}),
    ("eta", {"eta": [0.1, 0.1]}),
    ("steps", {"steps": -1}),
    ("steps", {"steps": 3.0}),
    ("steps", {"steps": math.nan}),
    ("delta", {"delta": 0.0}),
    ("delta", {"delta": 1.0}),
    ("delta", {"delta": math.nan}),
    ("method", {"method": "guess"}),
    ("laplace", {"laplace": [math.nan]}),
    ("laplace", {"laplace": [-1.0]}),
    ("pure", {"pure": [math.nan]}),
    ("pure", {"pure": [-1.0]}),
    ("grid", {"grid": 0}),
    ("grid", {"grid": -2}),
    ("grid", {"grid": 1.5}),
]


def test_refusals_name_the_argument() -> None:
    for method, (name, wrong) in itertools.product(["rdp", "optimal"], BAD):
        arguments: dict[str, object] = {
            "eta": 0.1,
            "steps": 3,
            "delta": 1e-5,
            "method": method,
        } | wrong
        with pytest.raises(ValueError, match=name):
            epsilon_of(**arguments)  # type: ignore[arg-type]


@given(
    eta=st.floats(0.01, 2.0),
    steps=st.integers(1, 30),
    delta=st.floats(1e-9, 0.3),
    more=st.floats(1.0, 2.0),
    extra=st.integers(0, 5),
)
@examples(max_examples=40)
def test_more_costs_more(eta: float, steps: int, delta: float, more: float, extra: int) -> None:
    base = epsilon_of(eta, steps, delta, grid=16)
    assert base.epsilon <= epsilon_of(eta, steps, delta, method="rdp").epsilon
    for other in (
        epsilon_of(eta * more, steps, delta, grid=16),
        epsilon_of(eta, steps + extra, delta, grid=16),
        epsilon_of(eta, steps, delta / more, grid=16),
        epsilon_of(eta, steps, delta, laplace=[more - 1], grid=16),
    ):
        assert base.epsilon_lower != 0, "nothing known is None"
        assert (base.epsilon_lower or 0.0) <= min(base.epsilon, other.epsilon)
        assert base.epsilon <= other.epsilon + eta * more / 16
