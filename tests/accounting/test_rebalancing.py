"""Rebalancing: Laplace noise on counts of records, against actual changes of counts and loss distributions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.accounting import (
    exponential_mechanism_epsilon,
    rebalancing_epsilon,
    rebalancing_events,
    rebalancing_scale,
)
from dpaudit.accounting.medians import Relation


def test_noise_of_scale_one_over_epsilon_costs_epsilon() -> None:
    assert rebalancing_epsilon(10.0, "add_remove") == pytest.approx(0.1)
    assert rebalancing_epsilon(10.0, "replace") == pytest.approx(0.2)
    assert rebalancing_epsilon(10.0, "add_remove", records=3) == pytest.approx(0.3)
    assert rebalancing_scale(0.1, "replace", records=3) == pytest.approx(60)


@given(epsilon=st.floats(1e-6, 1e3), relation=st.sampled_from(["add_remove", "replace"]), records=st.integers(1, 50))
def test_epsilon_and_scale_are_inverse_and_rounded_up(epsilon: float, relation: Relation, records: int) -> None:
    scale = rebalancing_scale(epsilon, relation, records)
    assert epsilon == pytest.approx(rebalancing_epsilon(scale, relation, records), rel=1e-12)
    events = rebalancing_events(epsilon, relation)
    assert sum(events) == pytest.approx(epsilon, rel=1e-15)


@pytest.mark.parametrize("records", [1, 2])
@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_events_cover_every_change_of_the_counts(relation: Relation, records: int) -> None:
    """Whichever of three clusters the records leave and enter, exact loss distributions are below the events'."""
    scale, delta = 2.0, 0.01
    epsilon = rebalancing_epsilon(scale, relation, records)
    claimed = exponential_mechanism_epsilon([], [], delta, laplace=rebalancing_events(epsilon, relation)).epsilon
    costs = []
    for places in itertools.product(range(3), repeat=records * (2 if relation == "replace" else 1)):
        shifts = [0, 0, 0]
        for number, place in enumerate(places):
            shifts[place] += 1 if number < records else -1
        moved = [abs(shift) for shift in shifts if shift]
        losses = pld.identity(value_discretization_interval=1e-3)
        for shift in moved:
            losses = losses.compose(pld.from_laplace_mechanism(scale, shift, value_discretization_interval=1e-3))
        costs.append(losses.get_epsilon_for_delta(delta))
    assert max(costs) <= claimed + 1e-5  # theirs are rounded up too
    assert max(costs) == pytest.approx(claimed, abs=0.01)  # and one of them needs it all


def test_no_rebalancing_is_no_event() -> None:
    assert rebalancing_events(0.0, "replace") == ()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_refusals(bad: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        rebalancing_epsilon(bad, "add_remove")
    with pytest.raises(ValueError, match="epsilon"):
        rebalancing_scale(bad, "add_remove")
    with pytest.raises(ValueError, match="epsilon"):
        rebalancing_events(bad or -0.5, "add_remove")
    with pytest.raises(ValueError, match="records"):
        rebalancing_epsilon(1.0, "replace", 0)


def test_costs_are_never_below_the_exact_quotient() -> None:
    for scale in np.random.default_rng(0).uniform(0.01, 100, 500).tolist():
        for relation, sensitivity in (("add_remove", 1), ("replace", 2)):
            assert Fraction(rebalancing_epsilon(scale, relation, 3)) >= Fraction(3 * sensitivity) / Fraction(scale)  # type: ignore[arg-type]
