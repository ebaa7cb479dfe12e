"""Joint releases of the same records, against dp-accounting and every adversary on small cases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import permutations
from statistics import NormalDist

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    RandomizedResponseDpEvent,
    ZCDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq  # type: ignore[import-untyped]

from dpaudit.accounting import (
    Parts,
    RenyiTable,
    exponential_mechanism_epsilon,
    joint_epsilon,
    profiles,
    zcdp_epsilon,
)
from dpaudit.accounting.composition import privacy_profile
from dpaudit.accounting.renyi import LARGEST, RENYI_ROOM, Doubles
from tests.accounting.test_composition import brute_force_joint

DELTA = 1e-5
ORDERS = (*(1 + order / 20 for order in range(1, 200)), *range(11, 64), 128, 256, 512)


def test_two_halves_of_a_run_are_the_run() -> None:
    whole = exponential_mechanism_epsilon(0.2, 90, DELTA)
    halves = joint_epsilon([Parts(segments=((0.2, 30),)), Parts(segments=((0.2, 60),))], DELTA)
    assert (halves.epsilon, halves.method) == (whole.epsilon, "optimal")
    alone = [exponential_mechanism_epsilon(0.2, steps, DELTA / 2).epsilon for steps in (30, 60)]
    assert halves.epsilon < 0.8 * sum(alone)


def test_zcdp_and_other_events_are_dp_accountings() -> None:
    """Compositions that both support cost the same.

    They cost less where draws or noise stand behind what Renyi accounting has.
    """
    table = RenyiTable(tuple((order, 0.01 * order) for order in ORDERS))
    gaussians = [Parts(rho=0.05), Parts(renyi=(table,))]
    more = [*gaussians, Parts(segments=((0.1, 40),), laplace=(0.3,))]
    for parts, events in (
        (gaussians, [ZCDpEvent(0.06)]),
        (more, [ZCDpEvent(0.06), ZCDpEvent(40 * 0.1**2 / 8), LaplaceDpEvent(1 / 0.3)]),
    ):
        accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
        accountant.compose(ComposedDpEvent(events))
        theirs, found = accountant.get_epsilon(DELTA), joint_epsilon(parts, DELTA)
        assert found.method == ("rdp" if parts is gaussians else "optimal")
        assert (
            theirs * (0.95 if parts is more else 1 - 2e-3) <= found.epsilon <= theirs * (1 + 2e-3)
        )


def test_a_gaussian_by_its_orders_costs_no_less_than_it_does() -> None:
    for sigma in (0.7, 2.0, 9.0):
        table = RenyiTable(
            tuple((order, order / (2 * sigma**2)) for order in (1.1, 1.7, 3.0, 9.0, 33.0, 200.0))
        )
        truth = PLDAccountant()
        truth.compose(GaussianDpEvent(sigma), 2)
        found = joint_epsilon([Parts(renyi=(table,))] * 2, DELTA).epsilon
        assert truth.get_epsilon(DELTA) < found < 1.5 * zcdp_epsilon(1 / sigma**2, DELTA)


def test_epsilons_with_deltas_are_randomised_responses_that_may_fail() -> None:
    for stated in ([(0.3, 1e-6), (0.5, 2e-6)], [(1.0, 0.0), (0.2, 4e-6), (0.1, 1e-6)]):
        truth = PLDAccountant(NeighboringRelation.REPLACE_ONE)
        for epsilon, _ in stated:
            truth.compose(RandomizedResponseDpEvent(2 / (math.exp(epsilon) + 1), 2))
        left = DELTA - sum(delta for _, delta in stated)
        found = joint_epsilon(
            [Parts(pure=(epsilon,), delta=delta) for epsilon, delta in stated], DELTA
        ).epsilon
        assert (
            truth.get_epsilon(left) * (1 - 1e-3)
            <= found
            <= sum(epsilon for epsilon, _ in stated) * (1 + 1e-9)
        )


def test_deltas_that_leave_nothing_bound_nothing() -> None:
    for deltas in ((DELTA,), (6e-6, 6e-6), (1.0,)):
        parts = [Parts(pure=(0.1,), delta=delta) for delta in deltas]
        assert math.isinf(joint_epsilon([*parts, Parts(rho=0.1)], DELTA).epsilon)


def interleaved(e: Doubles, left: Mapping[float, int], trials: int) -> Doubles:
    """delta at e [...] of an adversary who chooses the range and interval before every draw."""
    best = np.maximum(0.0, 1 - np.exp(e))
    for eta, steps in left.items():
        if steps:
            t, p = two_points(eta, trials)
            ends = np.stack([e[..., None] - t, e[..., None] - t + eta])
            after = interleaved(ends, {**left, eta: steps - 1}, trials)
            best = np.maximum(best, (p * after[0] + (1 - p) * after[1]).max(axis=-1))
    return best


def two_points(eta: float, trials: int) -> tuple[Doubles, Doubles]:
    """The upper ends that are tried, and their probabilities [trials]."""
    t = np.linspace(0, eta, trials)
    return t, (np.exp(eta) - np.exp(t)) / (np.exp(eta) - 1)


@pytest.mark.parametrize(
    ("coarse", "fine"), [(250, 5), pytest.param(1500, 12, marks=pytest.mark.slow)]
)
def test_no_adversary_who_interleaves_releases_exceeds_the_bound(
    monkeypatch: pytest.MonkeyPatch, coarse: int, fine: int
) -> None:
    """Who draws next, and how, may follow from everything before (docs/composition.md).

    Coarse grids hold too.
    """
    random = np.random.default_rng(31)
    close = []
    for points, trials, cases in ((64, 9, coarse), (1 << 12, 31, fine)):
        monkeypatch.setattr(profiles, "POINTS", points)
        for _ in range(cases):
            left = {
                float(random.uniform(0.05, 2.0)): int(steps)
                for steps in random.choice([[1, 1], [2, 1], [1, 2]])
            }
            delta = float(10 ** random.uniform(-4, -0.7))
            parts = [
                Parts(segments=((eta, 1),)) for eta, steps in left.items() for _ in range(steps)
            ]
            found = joint_epsilon(parts, delta).epsilon
            reached = float(interleaved(np.array([found]), left, trials)[0])
            assert reached <= delta * (1 + 1e-9), (left, delta)
            close.append(reached / delta)
    assert max(close) > 0.95 and np.mean(close[-fine:]) > 0.5, "the bound could have failed"


@pytest.mark.parametrize("cases", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_no_adversary_beside_a_gaussian_exceeds_the_bound(cases: int) -> None:
    """The Gaussian comes first or last, and of it the bound knows zCDP, or orders, alone."""
    random = np.random.default_rng(33)
    normal = np.array([NormalDist().inv_cdf((place + 0.5) / 2000) for place in range(2000)])
    close = 0.0
    for _ in range(cases):
        eta, rho, steps = (
            float(random.uniform(0.2, 1.5)),
            float(random.uniform(0.005, 0.5)),
            int(random.integers(1, 3)),
        )
        delta = float(10 ** random.uniform(-3, -1))
        table = RenyiTable(tuple((order, rho * order) for order in ORDERS))
        for other in (Parts(rho=rho), Parts(renyi=(table,))):
            found = joint_epsilon([other, Parts(segments=((eta, steps),))], delta).epsilon
            losses = rho + math.sqrt(2 * rho) * normal
            first = float(interleaved(found - losses, {eta: steps}, 31).mean())
            t, p = two_points(eta, 31)
            ends = np.stack([found - t, found - t + eta])[..., None] - losses
            after = interleaved(ends, {eta: steps - 1}, 31).mean(axis=-1)
            last = float((p * after[0] + (1 - p) * after[1]).max())
            assert max(first, last) <= delta * (1 + 1e-3), "but for the quadrature"
            close = max(close, first / delta, last / delta)
    assert close > 0.5


def test_whole_releases_in_either_order_stay_within_the_bound() -> None:
    """The epsilon surely reached when one release follows the other, at lengths of real runs."""
    for first, second in (
        ((0.18, 150), (0.09, 80)),
        ((0.3, 10), (0.05, 300)),
        ((1.0, 3), (0.2, 40)),
    ):
        found = joint_epsilon([Parts(segments=(first,)), Parts(segments=(second,))], DELTA)
        assert found.method == "optimal"
        for way in permutations((first, second)):
            ranges, steps = zip(*way, strict=True)
            reached = exponential_mechanism_epsilon(ranges, steps, DELTA, grid=60).epsilon_lower
            assert reached is not None and reached < found.epsilon < 1.03 * reached


def test_zcdp_in_front_of_draws_costs_less_than_renyi_accounting() -> None:
    for eta, steps, rho in ((0.1875, 367, 0.1), (0.046875, 689, 0.02), (0.5, 20, 0.3)):
        draws, noise = Parts(segments=((eta, steps),)), Parts(rho=rho)
        found = joint_epsilon([draws, noise], DELTA)
        by_rdp = zcdp_epsilon(rho + steps * eta**2 / 8, DELTA)
        assert found.method == "optimal" and 0.85 * by_rdp < found.epsilon < 0.99 * by_rdp
        assert found.epsilon > joint_epsilon([draws], DELTA).epsilon


def test_noise_and_gaussians_against_privacy_loss_distributions() -> None:
    for sigma, scale, other in ((2.0, 4.0, 2.0), (10.0, 1.0, 10.0), (1.0, 10.0, 1.0)):
        truth = PLDAccountant()
        truth.compose(
            ComposedDpEvent([GaussianDpEvent(sigma), LaplaceDpEvent(scale), LaplaceDpEvent(other)])
        )
        parts = [
            Parts(rho=1 / (2 * sigma**2)),
            Parts(laplace=(1 / scale,)),
            Parts(laplace=(1 / other,)),
        ]
        found = joint_epsilon(parts, DELTA)
        assert truth.get_epsilon(DELTA) < found.epsilon < 1.12 * truth.get_epsilon(DELTA)


def test_zcdp_is_converted_as_dp_accounting_does() -> None:
    random = np.random.default_rng(47)
    cases = 10.0 ** random.uniform([-14, -14], [3, -0.01], (400, 2))
    for rho, delta in [*cases.tolist(), (1e-20, 1e-3), (1e-6, 0.999), (LARGEST, 1e-9)]:
        accountant = RdpAccountant()
        accountant.compose(ZCDpEvent(rho))
        assert zcdp_epsilon(rho, delta) == accountant.get_epsilon(delta) * (1 + RENYI_ROOM)


def test_renyi_divergences_are_converted_as_dp_accounting_does() -> None:
    """dp-accounting's conversion, except for delta(0), which both directions' divergences bound.

    The bound is closer than by one direction, at what randomised response reaches. Its epsilon e
    has divergences of e tanh(e / 2) in both directions, and a total variation distance of tanh(e /
    2).
    """
    for rho, table in ((0.3, ()), (0.0, tuple((order, 0.02 * order**1.5) for order in ORDERS))):
        found = profiles.renyi_profile(rho, [RenyiTable(table)] if table else [], 6.0)
        epsilons = [rho * order for order in ORDERS] if rho else [epsilon for _, epsilon in table]
        closest = rho or min(epsilons)
        reached = math.tanh(
            brentq(lambda e, most=closest: e * math.tanh(e / 2) - most, 0, 10, xtol=1e-13) / 2
        )
        assert found.deltas[0] == pytest.approx(reached, rel=1e-5) and found.deltas[0] >= reached
        for place in range(0, profiles.POINTS, 500):
            theirs = compute_delta(ORDERS, epsilons, place * found.step)[0]
            assert found.deltas[place] <= theirs * 1.01 + 1e-300, "but for other orders"
            assert found.deltas[place] >= 0.99 * min(theirs, reached)


def test_losses_beyond_the_grid_are_not_forgotten() -> None:
    """Wherever the grid ends, the answer is an upper bound: infinite where too much lies beyond."""
    known = privacy_profile(0.3, 20, DELTA)
    truth = exponential_mechanism_epsilon(0.3, 40, DELTA).epsilon_lower
    assert known is not None and truth is not None
    for share in (0.3, 0.6, 0.8, 0.9, 1.0, 1.5):
        together = profiles.profile_of_all([profiles.dominating(known)] * 2, truth * share)
        assert profiles.epsilon_of_profile(together, DELTA) > truth


def test_parts_that_lose_next_to_nothing_have_no_grid() -> None:
    """Renyi accounting of them alone finds epsilon 0, at less than the asked delta too."""
    noise = Parts(rho=0.2)
    for little in (
        Parts(segments=((1e-6, 3),)),
        Parts(laplace=(1e-9,)),
        Parts(pure=(1e-9,)),
        Parts(rho=1e-18),
    ):
        found = joint_epsilon([noise, little, Parts(segments=((0.3, 20),))], 0.2).epsilon
        assert found == pytest.approx(
            joint_epsilon([noise, Parts(segments=((0.3, 20),))], 0.2).epsilon, rel=1e-2
        )
        assert joint_epsilon([noise, little], 0.2).epsilon == pytest.approx(
            joint_epsilon([noise], 0.2).epsilon, rel=1e-2
        )


def test_a_profile_has_a_pair() -> None:
    """Randomised response comes back as it is.

    Above a profile that no pair has lies the convex one below it.
    """
    step, at = 0.125, np.arange(17)
    truth = np.maximum(0.0, -np.expm1(at * step - 1)) * math.exp(1) / (1 + math.exp(1))
    for bounds in (truth, truth + 0.05 * (at == 3)):
        pair = profiles.dominating(profiles.Profile(step, bounds))
        found = profiles.epsilon_of_profile(profiles.profile_of_all([pair], 1.2), float(truth[4]))
        assert 4 * step <= found < 4 * step + 0.01


def test_every_adversary_beside_noise_and_stated_guarantees() -> None:
    random = np.random.default_rng(32)
    for _ in range(4):
        eta, laplace, pure, lost = random.uniform(0.1, 1.0, 4).tolist()
        steps, lost = int(random.integers(1, 3)), lost / 1000
        parts = [
            Parts(segments=((eta, steps),), laplace=(laplace,)),
            Parts(pure=(pure,), delta=lost),
        ]
        delta = lost + 1e-2
        found = joint_epsilon(parts, delta).epsilon
        assert lost + brute_force_joint(found, [eta] * steps, laplace, pure) <= delta * (1 + 1e-9)


_EPSILONS = st.floats(0.01, 1.5)
_PARTS = st.one_of(
    st.builds(lambda eta, steps: Parts(segments=((eta, steps),)), _EPSILONS, st.integers(1, 30)),
    st.builds(lambda rho: Parts(rho=rho), _EPSILONS),
    st.builds(
        lambda epsilon, delta: Parts(pure=(epsilon,), delta=delta), _EPSILONS, st.floats(0, 1e-7)
    ),
    st.builds(
        lambda epsilon: Parts(renyi=(RenyiTable(((2.0, epsilon), (20.0, 3 * epsilon))),)), _EPSILONS
    ),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(_PARTS, min_size=1, max_size=3), _PARTS)
def test_one_release_more_costs_more_and_order_nothing(parts: list[Parts], more: Parts) -> None:
    alone, together = joint_epsilon(parts, DELTA), joint_epsilon([*parts, more], DELTA)
    assert alone.epsilon <= together.epsilon * (1 + 1e-3)
    assert joint_epsilon([more, *parts], DELTA).epsilon == pytest.approx(together.epsilon, rel=1e-9)


def test_orders_of_a_table_that_say_nothing() -> None:
    table = RenyiTable(((2.0, 0.4), (4.0, 0.9)))
    assert table.at(np.array([1.5, 2.0, 3.0, 4.0])) == pytest.approx(
        [0.4, 0.4, (0.4 + 2.7) / 2 / 2, 0.9]
    )
    assert np.isinf(table.at(np.array([4.001]))).all()
    for wrong in (
        (),
        ((1.0, 0.1),),
        ((2.0, -0.1),),
        ((2.0, math.inf),),
        ((3.0, 0.1), (2.0, 0.1)),
        ((2.0, math.nan),),
    ):
        with pytest.raises(ValueError, match="Renyi"):
            RenyiTable(wrong)
    assert (
        math.isfinite(joint_epsilon([Parts(renyi=(RenyiTable(((1.005, 0.1),)),))], DELTA).epsilon)
        is False
    )
