"""Columns that no neighbour can move, as one term: the same figures as with each of them in every sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dpaudit.accounting.columns import Still
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dpaudit.accounting import MeanAccountant, MedianAccountant, exact_cost, log_sum_exp, moving_columns
from dpaudit.accounting.ex_post import rounding_allowance
from dpaudit.mechanisms import (
    ContextChange,
    bounds_from_central,
    central_order_statistics,
    log_probability,
    median_losses,
    median_of,
    median_sides,
)

CLIP = 3.0
Floats = NDArray[np.floating]

# Small whole numbers make many columns agree; half of all columns are at the floor in every context.
batches = st.tuples(st.integers(0, 9), st.integers(1, 12), st.integers(0, 2**32 - 1)).map(
    lambda drawn: agreeing(*drawn),
)


def agreeing(contexts: int, size: int, seed: int) -> Floats:
    random = np.random.default_rng(seed)
    values = np.where(random.random(size) < 0.5, -CLIP, random.integers(-3, 4, (contexts, size)))
    return np.where(random.random(size) < 0.2, random.uniform(-CLIP, CLIP, (contexts, size)), values)


@given(batches, st.sampled_from([0.02, 1.0, 2.0]), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=300)
def test_parted_columns_cost_what_all_columns_cost(values: Floats, temperature: float, dtype: type) -> None:
    central = central_order_statistics(values.astype(dtype), CLIP)
    for token in range(central.shape[1]):
        moving = moving_columns(central, token, temperature)
        assert len(moving.columns) + moving.still.columns == central.shape[1]
        assert moving.columns[moving.token] == token
        for relation in ("add_remove", "replace"):
            parted = exact_cost(*bounds_from_central(moving.central, relation), moving.token, temperature, moving.still)
            whole = exact_cost(*bounds_from_central(central, relation), token, temperature)
            assert parted == pytest.approx(whole, rel=1e-12, abs=1e-12)
        here = log_probability(median_of(moving.central), moving.token, temperature, moving.still)
        assert here == pytest.approx(log_probability(median_of(central), token, temperature), rel=1e-12, abs=1e-12)


@given(batches, st.sampled_from([0.02, 1.0, 2.0]))
@settings(max_examples=300)
def test_parted_columns_lose_what_all_columns_lose(values: Floats, temperature: float) -> None:
    central = central_order_statistics(values, CLIP)
    sides, holder = median_sides(values, central)
    for token in range(central.shape[1]):
        moving = moving_columns(central, token, temperature)
        parted = median_losses(
            moving.central,
            sides.take(moving.columns, axis=1),
            None if holder is None else holder.take(moving.columns),
            len(values),
            moving.token,
            temperature,
            moving.still,
        )
        whole = median_losses(central, sides, holder, len(values), token, temperature)
        np.testing.assert_allclose(parted, whole, rtol=1e-12, atol=1e-12)


@given(batches, st.integers(1, 3))
@settings(max_examples=100)
def test_charging_parts_the_columns_by_itself_to_the_last_bit(values: Floats, contexts: int) -> None:
    central = central_order_statistics(values, CLIP, width=4)
    first, second = (MedianAccountant(ContextChange("add_remove", contexts), 1.5) for _ in range(2))
    for token in range(central.shape[1]):
        moving = moving_columns(central, token, 1.5)
        assert first.charge(0, central, token) == second.charge(0, moving.central, moving.token, moving.still)
    assert first.cost == second.cost


@given(
    st.lists(st.tuples(st.integers(0, 3), batches), max_size=8),
    st.sampled_from([ContextChange("add_remove"), ContextChange("replace"), ContextChange("add_remove", 3)]),
)
@settings(max_examples=100)
def test_batches_that_other_accountants_summed_give_the_same_run(
    steps: list[tuple[int, Floats]], change: ContextChange
) -> None:
    alone, driver = MedianAccountant(change, 1.0), MedianAccountant(change, 1.0)
    workers = {batch: MedianAccountant(change, 1.0) for batch in range(4)}
    for batch, values in steps:
        central = central_order_statistics(values, CLIP, width=4)
        alone.charge(batch, central, 0)
        workers[batch].charge(batch, central, 0)
    for batch, worker in workers.items():
        alone.close(batch)
        sums = worker.detach(batch)
        assert worker.epsilon == 0
        if sums is not None:
            driver.attach(batch, sums)
            assert driver.batch_cost(batch) == alone.batch_cost(batch)
    assert driver.cost == alone.cost
    assert driver.by_tokens() == alone.by_tokens()


def test_sums_of_another_change_or_of_a_known_batch_are_refused() -> None:
    central = central_order_statistics(np.zeros((2, 3)), CLIP, width=4)
    worker, driver = (MedianAccountant(ContextChange("add_remove"), 1.0) for _ in range(2))
    assert worker.detach(0) is None
    worker.charge(0, central, 0)
    sums = worker.detach(0)
    assert sums is not None
    with pytest.raises(ValueError, match="2 contexts"):
        MeanAccountant(ContextChange("add_remove", 2), 1.0, CLIP, 4.0).attach(0, sums)
    driver.attach(0, sums)
    with pytest.raises(ValueError, match="already"):
        driver.attach(0, sums)
    with pytest.raises(ValueError, match="closed"):
        driver.charge(0, central, 0)


def test_others_far_below_the_token_still_bound_its_cost() -> None:
    """Beside the token, the sum of all others is 1e-348: no float64, but its logarithm is one."""
    columns = [[0.0, 0.0, 0.0, 0.0], [-400.0, -400.0, 0.0, 0.0], [-400.0, -400.0, -400.0, -400.0]]
    central = np.array(columns).T
    rise, fall = exact_cost(*bounds_from_central(central, "add_remove"), 1, 0.5)
    moving = moving_columns(central, 1, 0.5)
    assert moving.still.columns == 2
    found = exact_cost(*bounds_from_central(moving.central, "add_remove"), moving.token, 0.5, moving.still)
    assert found == pytest.approx((rise, fall), rel=1e-14)
    lone = np.array([[0.0] * 4, [-400.0] * 4]).T
    cost = MedianAccountant(ContextChange("add_remove"), 0.5).charge(0, lone, 0)
    assert 0 <= cost.exact < 1e-10


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [slice(None), slice(1, 2)])
def test_values_that_are_no_numbers_bound_nothing(value: float, rows: slice) -> None:
    central = np.zeros((4, 5))
    central[rows, 3] = value
    accountant = MedianAccountant(ContextChange("add_remove"), 1.0)
    try:
        assert accountant.charge(0, central, 0).exact == math.inf
    except ValueError:
        assert accountant.cost.exact == 0


def test_columns_with_equal_ends_and_another_value_between_are_kept() -> None:
    central = np.zeros((4, 3))
    central[1, 2] = 1.0
    moving = moving_columns(central, 0, 1.0)
    assert moving.columns.tolist() == [0, 2]


@given(hnp.arrays(np.float64, st.integers(1, 50), elements=st.floats(-700, 700)), st.sampled_from([0.5, 1.0, 3.0]))
def test_log_sum_exp_is_that_of_the_definition(values: Floats, temperature: float) -> None:
    right = float(np.logaddexp.reduce(values / temperature))
    assert log_sum_exp(values, temperature) == pytest.approx(right, rel=1e-13, abs=1e-13)
    assert log_sum_exp(values[:0], temperature) == -math.inf


def test_what_is_left_out_counts_for_rounding() -> None:
    """The sum runs over all columns, and may be as large as the largest of them makes it."""
    low, high = np.array([-1.0, 0.5]), np.array([0.0, 2.0])
    still = Still(columns=50_000, largest=40.0, log_sum=3.0)
    everywhere = rounding_allowance(np.concatenate([low, np.full(50_000, 40.0)]), np.append(high, 40.0), 0.7)
    assert rounding_allowance(low, high, 0.7, still) >= everywhere
