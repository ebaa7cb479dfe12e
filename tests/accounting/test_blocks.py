"""Many draws in blocks: against the recursion over all of them, adversaries, and normal noise."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from scipy.stats import binom  # type: ignore[import-untyped]

from dpaudit.accounting import ApproximateAccountant, Parts, blocks, joint_epsilon, profiles
from dpaudit.accounting import exponential_mechanism_epsilon as epsilon_of
from dpaudit.accounting.blocks import profile_in_blocks, reached
from dpaudit.accounting.composition import privacy_profile
from dpaudit.accounting.profiles import epsilon_of_profile
from dpaudit.accounting.recursion import Problem, Recursion
from tests.accounting.test_composition import AG_NEWS, brute_force, brute_force_joint

#: So little that a block is a single draw, and so much as makes blocks of a few.
SINGLE, FEW = 1.0, 3e4


def normal_noise(eta: float, steps: int, delta: float) -> float:
    """dp-accounting's epsilon of Gaussian noise with the zCDP of so many draws."""
    return float(
        pld.from_gaussian_mechanism(2 / (eta * math.sqrt(steps))).get_epsilon_for_delta(delta)
    )


def in_blocks(problem: Problem, budget: float) -> float:
    return epsilon_of_profile(profile_in_blocks(problem, budget), problem.delta)


# --- the figures to expect ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eta", "steps"), [(0.004, 100_000), (0.01, 10_000), (0.001, 10**7), (2e-5, 10**9)]
)
def test_many_draws_cost_what_normal_noise_does(eta: float, steps: int) -> None:
    found, noise = epsilon_of(eta, steps, AG_NEWS), normal_noise(eta, steps, AG_NEWS)
    assert found.epsilon_lower is not None and found.method == "optimal"
    assert 0.999 * noise < found.epsilon_lower < found.epsilon < 1.005 * noise
    assert found.epsilon < 1.005 * found.epsilon_lower
    assert found.epsilon < 0.96 * epsilon_of(eta, steps, AG_NEWS, method="rdp").epsilon


def test_the_figure_that_was_given_up() -> None:
    """100,000 draws: Renyi accounting says 2.9884, and normal noise of that zCDP costs 2.7746."""
    eta, steps, delta = 0.004, 100_000, 2.9e-6
    assert epsilon_of(eta, steps, delta, method="rdp").epsilon == pytest.approx(2.9884, abs=1e-4)
    assert normal_noise(eta, steps, delta) == pytest.approx(2.7746, abs=5e-4)
    found = epsilon_of(eta, steps, delta)
    assert 2.773 < (found.epsilon_lower or 0) < found.epsilon < 2.7746 * 1.005


def test_where_both_can_be_had_they_agree() -> None:
    for eta, steps in ((0.1875, 367), (0.05, 1000), (1.0, 100)):
        whole = epsilon_of(eta, steps, AG_NEWS, grid=40)
        blocks = in_blocks(Problem(((eta, steps),), (), (), AG_NEWS), 5e6)
        assert whole.epsilon_lower is not None
        assert whole.epsilon_lower < blocks < 1.02 * whole.epsilon


def test_a_large_range_is_not_given_up_either() -> None:
    found = epsilon_of(0.1, 100_000, 1e-6)
    assert found.epsilon_lower is not None
    assert found.epsilon_lower < found.epsilon < 1.005 * found.epsilon_lower
    assert found.epsilon < 0.98 * epsilon_of(0.1, 100_000, 1e-6, method="rdp").epsilon


# --- upper >= exact >= lower ----------------------------------------------------------------------


def both_sides(problem: Problem) -> tuple[float, float]:
    """The epsilon an adversary surely reaches, and one that surely bounds it, by full recursion."""
    places = 12
    lower, upper = (Recursion(problem, places, up).epsilon() for up in (False, True))
    return lower, upper


problems = st.builds(
    Problem,
    st.lists(st.tuples(st.floats(0.02, 2.0), st.integers(1, 7)), min_size=1, max_size=2).map(tuple),
    st.lists(st.floats(0.02, 1.0), max_size=1).map(tuple),
    st.lists(st.floats(0.02, 1.0), max_size=1).map(tuple),
    st.floats(-9, -0.7).map(lambda power: float(10**power)),
)


@given(problems, st.sampled_from([SINGLE, FEW]), st.sampled_from([32, 200]))
@examples(max_examples=60)
def test_blocks_are_never_below_the_recursion_and_the_adversary_never_above(
    problem: Problem, budget: float, points: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(profiles, "POINTS", points)
        if not problem.bound(problem.delta):
            return
        lower, upper = both_sides(problem)
        assert lower <= in_blocks(problem, budget) * (1 + 1e-9)
        assert (reached(problem) or 0.0) <= upper * (1 + 1e-9)


def test_no_adversary_of_real_t_exceeds_blocks() -> None:
    random = np.random.default_rng(5)
    close = 0.0
    for _ in range(40):
        etas = random.uniform(0.1, 2.0, random.integers(1, 4)).tolist()
        problem = Problem(
            tuple((eta, 1) for eta in etas), (), (), float(10 ** random.uniform(-4, -0.7))
        )
        if not problem.bound(problem.delta):
            continue
        at_upper, at_lower = brute_force(
            np.array([in_blocks(problem, SINGLE), reached(problem) or -1.0]), etas
        )
        assert at_upper <= problem.delta * (1 + 1e-9)
        assert at_lower >= problem.delta * (1 - 1e-3)  # but for t that brute force does not try
        close = max(close, at_upper / problem.delta)
    assert close > 0.9, "the bound could have failed"


def test_events_in_front_count() -> None:
    for laplace, pure in ((0.4, 0.7), (1.2, 0.1)):
        problem = Problem(((0.8, 1), (0.3, 1)), (laplace,), (pure,), 0.02)
        found = in_blocks(problem, SINGLE)
        assert brute_force_joint(found, [0.8, 0.3], laplace, pure) <= 0.02 * (1 + 1e-3)
        assert brute_force_joint((reached(problem) or 0.0) - 0.02, [0.8, 0.3], laplace, pure) > 0.02
        for fewer in (
            Problem(problem.segments, (), (pure,), 0.02),
            Problem(problem.segments, (laplace,), (), 0.02),
        ):
            assert in_blocks(fewer, SINGLE) < found


def reached_by_answers(eta: float, steps: int, delta: float) -> float:
    """epsilon of randomised response of epsilon eta / 2, by another library's binomial."""
    lies, chance = np.arange(steps + 1), 1 / (1 + math.exp(eta / 2))
    losses, masses = (steps - 2 * lies) * eta / 2, binom.pmf(lies, steps, chance)
    low, high = 0.0, steps * eta
    for _ in range(60):
        middle = (low + high) / 2
        beyond = float((masses * np.maximum(0.0, -np.expm1(middle - losses))).sum()) > delta
        low, high = (middle, high) if beyond else (low, middle)
    return low


def test_what_is_reached_is_what_randomised_response_has() -> None:
    for eta, steps, delta in (
        (0.3, 40, 1e-3),
        (0.02, 3000, 1e-6),
        (0.5, 200, 1e-40),
        (1.5, 6, 0.1),
    ):
        found, truth = (
            reached(Problem(((eta, steps),), (), (), delta)),
            reached_by_answers(eta, steps, delta),
        )
        assert found is not None and truth * 0.998 < found <= truth * (1 + 1e-9)


# --- edges ----------------------------------------------------------------------------------------


def test_nothing_is_said_to_be_reached_where_nothing_is() -> None:
    for eta, steps, delta in ((1e-3, 2, 0.2), (1e-320, 3, 1e-9), (1e120, 3, 1e-9), (0.1, 0, 1e-5)):
        assert epsilon_of(eta, steps, delta).epsilon_lower is None
    assert epsilon_of(1e120, 3, 1e-9).method == "rdp"


def test_beyond_all_use_it_says_that_the_figure_is_renyis() -> None:
    """Rounding grows with the number of blocks.

    A bound that comes out larger is not called optimal.
    """
    found = epsilon_of(1e-6, 1 << 40, 1e-9)
    known = epsilon_of(1e-6, 1 << 40, 1e-9, method="rdp").epsilon
    assert (found.epsilon, found.method) == (known, "rdp") or found.epsilon < known
    assert 0.9 * known < (found.epsilon_lower or 0) < found.epsilon


@pytest.mark.parametrize(
    ("eta", "steps"),
    [(400.0, 10**6), (0.5, 2**31), (3.0, [10**7, 10**7]), ([1e-200, 0.5], [1, 10**8])],
)
def test_more_nats_than_any_grid_has_are_renyis_figure(eta, steps) -> None:
    """Exponentials of a grid's step overflowed there."""
    ranges = [eta] * len(steps) if isinstance(steps, list) and not isinstance(eta, list) else eta
    found, by_rdp = (
        epsilon_of(ranges, steps, 1e-6, method=method) for method in ("optimal", "rdp")
    )
    assert found == by_rdp and found.epsilon > 1e6 and found.epsilon_lower is None
    assert privacy_profile(400.0, 10**6, 1e-6) is None


def test_many_ranges_are_raised_to_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MOST_KINDS", 4)
    etas = np.linspace(0.0017, 0.002, 2 * 4 + 3).tolist()
    found = epsilon_of(etas, [4000] * len(etas), 1e-5)
    assert found.epsilon_lower is not None and found.method == "optimal"
    assert found.epsilon_lower < found.epsilon < 1.05 * found.epsilon_lower
    assert found.epsilon < epsilon_of(0.002, 4000 * len(etas), 1e-5).epsilon


def test_what_loses_next_to_nothing_beside_many_draws_has_no_grid() -> None:
    alone = epsilon_of(0.004, 100_000, AG_NEWS).epsilon
    for little, times in ((1e-200, 3), (1e-90, 10**6), (1e-12, 1000), (1e-9, 1)):
        found = epsilon_of([0.004, little], [100_000, times], AG_NEWS)
        assert found.epsilon == pytest.approx(alone, rel=1e-3)
        assert found.epsilon_lower is not None and found.method == "optimal"


def test_parts_of_other_releases_are_not_given_up() -> None:
    """Of many draws beside noise the optimal profile is known, not only their zCDP."""
    many, noise = Parts(segments=((0.004, 100_000),)), Parts(rho=0.02)
    found = joint_epsilon([many, noise], AG_NEWS)
    assert found.method == "optimal"
    assert normal_noise(0.004, 100_000, AG_NEWS) < found.epsilon < 2.9884 * 1.03
    beside = joint_epsilon([many, Parts(segments=((0.002, 50_000),))], AG_NEWS)
    assert beside.method == "optimal"
    together = normal_noise(0.004, 112_500, AG_NEWS)
    assert 0.999 * together < beside.epsilon < 1.005 * together


def test_a_profile_of_many_draws_is_that_of_the_figure() -> None:
    found = privacy_profile(0.004, 100_000, AG_NEWS)
    assert found is not None
    assert epsilon_of_profile(found, AG_NEWS) == epsilon_of(0.004, 100_000, AG_NEWS).epsilon
    assert all(np.diff(found.deltas) <= 0)


@pytest.mark.slow
def test_how_many_tokens_an_epsilon_affords_is_found_in_a_few_calls() -> None:
    accountant, started = ApproximateAccountant(0.004), time.perf_counter()
    tokens = accountant.affordable_tokens(2.9, AG_NEWS, "optimal")
    assert time.perf_counter() - started < 300
    assert (
        accountant.epsilon(tokens, AG_NEWS).epsilon
        <= 2.9
        < accountant.epsilon(tokens + 1, AG_NEWS).epsilon
    )
    assert tokens > 1.1 * accountant.affordable_tokens(2.9, AG_NEWS, "rdp")
