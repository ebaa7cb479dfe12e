"""Releases of the same records together: against dp-accounting, and against every adversary on small cases."""

from __future__ import annotations

import math
from itertools import permutations

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
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.accounting import Parts, RenyiTable, exponential_mechanism_epsilon, joint_epsilon, zcdp_epsilon
from tests.accounting.test_composition import brute_force, brute_force_joint

DELTA = 1e-5
ORDERS = (*(1 + order / 20 for order in range(1, 200)), *range(11, 64), 128, 256, 512)


def test_two_halves_of_a_run_are_the_run() -> None:
    whole = exponential_mechanism_epsilon(0.2, 90, DELTA)
    halves = joint_epsilon([Parts(segments=((0.2, 30),)), Parts(segments=((0.2, 60),))], DELTA)
    assert (halves.epsilon, halves.method) == (whole.epsilon, "optimal")
    alone = [exponential_mechanism_epsilon(0.2, steps, DELTA / 2).epsilon for steps in (30, 60)]
    assert halves.epsilon < 0.8 * sum(alone)


def test_zcdp_and_other_events_are_dp_accountings() -> None:
    """What both can compose costs the same."""
    parts = [
        Parts(rho=0.05),
        Parts(segments=((0.1, 40),), laplace=(0.3,)),
        Parts(renyi=(RenyiTable(tuple((order, 0.01 * order) for order in ORDERS)),)),
    ]
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    events = [ZCDpEvent(0.05), ZCDpEvent(40 * 0.1**2 / 8), LaplaceDpEvent(1 / 0.3), ZCDpEvent(0.01)]
    accountant.compose(ComposedDpEvent(events))
    theirs = accountant.get_epsilon(DELTA)
    found = joint_epsilon(parts, DELTA)
    assert found.method == "rdp"
    assert theirs * (1 - 2e-3) <= found.epsilon <= theirs * (1 + 2e-3)


def test_a_gaussian_by_its_orders_costs_no_less_than_it_does() -> None:
    for sigma in (0.7, 2.0, 9.0):
        table = RenyiTable(tuple((order, order / (2 * sigma**2)) for order in (1.1, 1.7, 3.0, 9.0, 33.0, 200.0)))
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
        found = joint_epsilon([Parts(pure=(epsilon,), delta=delta) for epsilon, delta in stated], DELTA).epsilon
        assert truth.get_epsilon(left) * (1 - 1e-3) <= found <= sum(epsilon for epsilon, _ in stated) * (1 + 1e-9)


def test_deltas_that_leave_nothing_bound_nothing() -> None:
    for deltas in ((DELTA,), (6e-6, 6e-6), (1.0,)):
        parts = [Parts(pure=(0.1,), delta=delta) for delta in deltas]
        assert math.isinf(joint_epsilon([*parts, Parts(rho=0.1)], DELTA).epsilon)


def test_every_adversary_stays_within_the_bound_whatever_came_first() -> None:
    """Each draw's interval may follow from everything before it, in the other release too (docs/composition.md)."""
    random = np.random.default_rng(31)
    close = 0.0
    for _ in range(12):
        releases = [(float(random.uniform(0.1, 1.5)), steps) for steps in (int(random.integers(1, 3)), 1)]
        delta = float(random.choice([1e-3, 1e-2, 0.05]))
        found = joint_epsilon([Parts(segments=(release,)) for release in releases], delta)
        for way in permutations(releases):
            etas = [eta for eta, steps in way for _ in range(steps)]
            reached = float(brute_force(np.array([found.epsilon]), etas)[0])
            assert reached <= delta * (1 + 1e-9)
            close = max(close, reached / delta)
    assert close > 0.9


def test_every_adversary_beside_noise_and_stated_guarantees() -> None:
    random = np.random.default_rng(32)
    for _ in range(4):
        eta, laplace, pure, lost = random.uniform(0.1, 1.0, 4).tolist()
        steps, lost = int(random.integers(1, 3)), lost / 1000
        parts = [Parts(segments=((eta, steps),), laplace=(laplace,)), Parts(pure=(pure,), delta=lost)]
        delta = lost + 1e-2
        found = joint_epsilon(parts, delta).epsilon
        assert lost + brute_force_joint(found, [eta] * steps, laplace, pure) <= delta * (1 + 1e-9)


_EPSILONS = st.floats(0.01, 1.5)
_PARTS = st.one_of(
    st.builds(lambda eta, steps: Parts(segments=((eta, steps),)), _EPSILONS, st.integers(1, 30)),
    st.builds(lambda rho: Parts(rho=rho), _EPSILONS),
    st.builds(lambda epsilon, delta: Parts(pure=(epsilon,), delta=delta), _EPSILONS, st.floats(0, 1e-7)),
    st.builds(lambda epsilon: Parts(renyi=(RenyiTable(((2.0, epsilon), (20.0, 3 * epsilon))),)), _EPSILONS),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(_PARTS, min_size=1, max_size=3), _PARTS)
def test_one_release_more_costs_more_and_order_nothing(parts: list[Parts], more: Parts) -> None:
    alone, together = joint_epsilon(parts, DELTA), joint_epsilon([*parts, more], DELTA)
    assert alone.epsilon <= together.epsilon * (1 + 1e-3)
    assert joint_epsilon([more, *parts], DELTA).epsilon == pytest.approx(together.epsilon, rel=1e-9)


def test_orders_of_a_table_that_say_nothing() -> None:
    table = RenyiTable(((2.0, 0.4), (4.0, 0.9)))
    assert table.at(np.array([1.5, 2.0, 3.0, 4.0])) == pytest.approx([0.4, 0.4, (0.4 + 2.7) / 2 / 2, 0.9])
    assert np.isinf(table.at(np.array([4.001]))).all()
    for wrong in ((), ((1.0, 0.1),), ((2.0, -0.1),), ((2.0, math.inf),), ((3.0, 0.1), (2.0, 0.1)), ((2.0, math.nan),)):
        with pytest.raises(ValueError, match="Renyi"):
            RenyiTable(wrong)
    assert math.isfinite(joint_epsilon([Parts(renyi=(RenyiTable(((1.005, 0.1),)),))], DELTA).epsilon) is False
