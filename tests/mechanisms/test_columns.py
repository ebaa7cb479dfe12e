"""Columns that no neighbour can move, as one term of a sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dpaudit.accounting import exact_cost
from dpaudit.accounting.ex_post import step_costs
from dpaudit.mechanisms import ContextChange, Mechanism, log_probability
from dpaudit.mechanisms.interfaces import Spans, log_sums_exp
from tests.nesting import mechanism_with

Floats = NDArray[np.floating]


def mechanism(temperature: float, clip: float = 400.0) -> Mechanism:
    return mechanism_with({"aggregator": "median", "clip": clip, "temperature": temperature})


def test_others_far_below_the_token_still_bound_its_cost() -> None:
    """Beside the token, the sum of all others is 1e-348: no float64, but its logarithm is one."""
    columns = [[0.0, 0.0, 0.0, 0.0], [-400.0, -400.0, 0.0, 0.0], [-400.0, -400.0, -400.0, -400.0]]
    central, change = np.array(columns).T, ContextChange("add_remove")
    wide = mechanism(0.5)
    rise, fall = exact_cost(*wide.box({"central": central}, change), 1, 0.5)
    reduced = wide.reduced({"central": central}, 1)
    assert (reduced.columns.tolist(), reduced.largest.tolist()) == ([2], [400.0])
    found = step_costs(wide, change, reduced).costs[0, 1:]
    assert found.tolist() == pytest.approx((rise, fall), rel=1e-14)
    lone = wide.reduced({"central": np.array([[0.0] * 4, [-400.0] * 4]).T}, 0)
    assert 0 <= step_costs(wide, change, lone).costs[0, 1:].max() < 1e-10


def test_columns_with_equal_ends_and_another_value_between_are_kept() -> None:
    central = np.zeros((4, 3))
    central[1, 2] = 1.0
    reduced = mechanism(1.0).reduced(
        {"central": central, "sides": np.array([[1, 2, 3]], np.uint8)}, 0
    )
    assert reduced.arrays["central"].tolist() == central[:, [0, 2]].tolist()
    assert reduced.arrays["sides"].tolist() == [[1, 3]]
    assert (reduced.tokens.tolist(), reduced.columns.tolist()) == ([0], [1])


@given(
    hnp.arrays(np.float64, st.integers(1, 50), elements=st.floats(-700, 700)),
    st.sampled_from([0.5, 1.0, 3.0]),
)
@settings(max_examples=60)
def test_logarithms_of_sums_are_those_of_the_definition(values: Floats, temperature: float) -> None:
    right = float(np.logaddexp.reduce(values / temperature))
    found = log_sums_exp(values, Spans([0, len(values), 0]), temperature)
    assert found == pytest.approx([-math.inf, right, -math.inf], rel=1e-13, abs=1e-13)
    here = float(values[0]) / temperature - right
    assert log_probability(values, 0, temperature) == pytest.approx(here, rel=1e-12, abs=1e-12)
