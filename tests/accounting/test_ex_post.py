"""Theorem 1 by hand, against brute force over neighbours, and summed over runs."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpaudit.accounting import (
    ContextChange,
    ExPostAccountant,
    central_order_statistics,
    context_changes,
    median_bounds,
    theorem1_cost,
)

# Logits in units of log 2 and temperature 1, so that exp(logit) is a power of 2; clip 2 log 2.
LOG2 = math.log(2)
CLIP = 2 * LOG2
FOUR = np.array([[2, 0, -2], [2, -2, 0], [0, 2, -2], [2, 2, -2]]) * LOG2
FIVE = np.vstack([FOUR, np.array([[-2, 2, 0]]) * LOG2])


def gamma(values: np.ndarray, token: int) -> float:  # type: ignore[type-arg]
    return theorem1_cost(*median_bounds(values, "add_remove", clip=CLIP), token, 1.0)


def test_four_contexts_by_hand() -> None:
    """Sorted columns, n = 4: (0 2 2 2), (-2 0 2 2), (-2 -2 -2 0), in units of log 2.

    lower = (2, 0, -2), center = (2, 1, -2), upper = (2, 2, -2);
    sums of exponentials: 4 + 1 + 1/4 = 21/4, 4 + 2 + 1/4 = 25/4, 4 + 4 + 1/4 = 33/4.
    Token 1: log 1/alpha = log(2 * 25/21) = log(50/21), log beta = log(2 * 33/25) = log(66/25), the larger.
    Token 0: log 1/alpha = log(25/21), log beta = log(33/25), the larger.
    """
    assert gamma(FOUR, 1) == pytest.approx(0.970778917158225, rel=1e-14)  # log(66/25)
    assert gamma(FOUR, 0) == pytest.approx(0.277631736598280, rel=1e-14)  # log(33/25)


def test_five_contexts_by_hand() -> None:
    """Sorted columns, n = 5: (-2 0 2 2 2), (-2 0 2 2 2), (-2 -2 -2 0 0), in units of log 2.

    lower = (1, 1, -2), center = (2, 2, -2), upper = (2, 2, -1), bounds half-way to the next value;
    sums of exponentials: 2 + 2 + 1/4 = 17/4, 4 + 4 + 1/4 = 33/4, 4 + 4 + 1/2 = 34/4.
    Token 2: log 1/alpha = log(2 * 33/17) = log(66/17), the larger; log beta = log(34/33).
    Token 0: log 1/alpha = log(33/17), log beta = log(2 * 34/33) = log(68/33), the larger.
    """
    assert gamma(FIVE, 2) == pytest.approx(1.3564413979702095, rel=1e-14, abs=0)  # log(66/17)
    assert gamma(FIVE, 0) == pytest.approx(0.7230001437096262, rel=1e-14, abs=0)  # log(68/33)


def test_two_steps_add_up_and_the_worst_batch_counts() -> None:
    accountant = ExPostAccountant(context_changes("record", "add_remove", "hashed-records"), 1.0)
    for batch, values, tokens in ((0, FOUR, (1, 0)), (1, FIVE, (2, 0))):
        for token in tokens:
            accountant.charge(batch, central_order_statistics(values, CLIP), token)
    # log(66/25 * 33/25) = 1.2484106537565043 and log(66/17 * 68/33) = log 8, and never less for rounding.
    assert 1.2484106537565043 < accountant.batch_epsilon(0) < 1.2484106537565043 + 1e-12
    assert 3 * LOG2 < accountant.batch_epsilon(1) < 3 * LOG2 + 1e-12
    assert accountant.epsilon == accountant.batch_epsilon(1)


def test_a_difference_that_reaches_two_batches_costs_both() -> None:
    accountant = ExPostAccountant([ContextChange("add_remove", batches=2)], 1.0)
    for batch, values in enumerate((FOUR, FIVE, FOUR)):
        accountant.charge(batch, central_order_statistics(values, CLIP), 0)
    assert accountant.epsilon == pytest.approx(math.log(33 / 25 * 68 / 33), rel=1e-12)


logits = hnp.arrays(np.float64, st.tuples(st.integers(0, 6), st.integers(1, 4)), elements=st.floats(-3, 3))


def log_softmax(values: np.ndarray, temperature: float) -> np.ndarray:  # type: ignore[type-arg]
    scaled = values / temperature
    return scaled - np.logaddexp.reduce(scaled)  # type: ignore[no-any-return]


@given(logits, logits, st.sampled_from(["add_remove", "replace"]), st.sampled_from([0.5, 1.0, 2.0]))
@settings(max_examples=2000)
def test_no_actual_neighbour_exceeds_gamma(values, others, relation, temperature) -> None:  # type: ignore[no-untyped-def]
    lower, center, upper = median_bounds(values, relation, clip=3.0)
    rows = [row for row in others if len(row) == values.shape[1]]
    removed = [np.delete(values, i, axis=0) for i in range(len(values))]
    neighbours = [np.vstack([less, row]) for less in removed for row in rows]
    if relation == "add_remove":
        neighbours = removed + [np.vstack([values, row]) for row in rows]
    here = log_softmax(center, temperature)
    costs = [theorem1_cost(lower, center, upper, token, temperature) for token in range(len(center))]
    for neighbour in neighbours:
        _, median, _ = median_bounds(neighbour, relation, clip=3.0)
        loss = np.abs(here - log_softmax(median, temperature))
        assert (loss <= np.array(costs) + 1e-12).all()


def test_agreement_costs_nothing_and_no_contexts_cost_the_whole_clip() -> None:
    agreed = np.tile([3.0, -1.0, 0.0], (4, 1))
    assert theorem1_cost(*median_bounds(agreed, "add_remove", clip=3.0), 0, 1.0) == 0.0
    nobody = np.zeros((0, 2))
    assert theorem1_cost(*median_bounds(nobody, "add_remove", clip=3.0), 0, 1.0) == pytest.approx(6.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_values_that_are_not_finite_are_refused(bad: float, place: int) -> None:
    bounds = [np.zeros(3) for _ in range(3)]
    bounds[place][1] = bad
    with pytest.raises(ValueError, match="not a finite number"):
        theorem1_cost(*bounds, 0, 1.0)


@pytest.mark.parametrize("token", [-1, 3])
def test_a_token_that_is_not_there_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match="not among the 3 tokens"):
        theorem1_cost(np.zeros(3), np.zeros(3), np.zeros(3), token, 1.0)


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="between its bounds"):
        theorem1_cost(np.ones(3), np.zeros(3), np.ones(3), 0, 1.0)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        theorem1_cost(np.zeros(2), np.zeros(2), np.zeros(2), 0, temperature)


def test_nothing_is_added_up_without_a_bound() -> None:
    with pytest.raises(ValueError, match="nothing bounds"):
        ExPostAccountant(context_changes("record", "add_remove", "paper-slices"), 1.0)


def exact_gamma(bounds: list[list[float]], token: int, temperature: float) -> Decimal:
    """Theorem 1's formula with 60 digits."""
    with localcontext() as context:
        context.prec = 60
        low, mid, high = ([Decimal(value) / Decimal(temperature) for value in row] for row in bounds)
        log_sum = [sum((v.exp() for v in row), Decimal(0)).ln() for row in (low, mid, high)]
        return max(
            high[token] - mid[token] + log_sum[1] - log_sum[0], mid[token] - low[token] + log_sum[2] - log_sum[1]
        )


@given(logits.filter(len), st.sampled_from([0.3, 1.0, 1.7]))
@settings(max_examples=300)
def test_rounding_never_lowers_a_cost(values: np.ndarray, temperature: float) -> None:  # type: ignore[type-arg]
    central = central_order_statistics(values, 3.0)
    bounds = [row.tolist() for row in median_bounds(values, "add_remove", clip=3.0)]
    accountant = ExPostAccountant([ContextChange("add_remove")], temperature)
    total = Decimal(0)
    for token in range(values.shape[1]):
        accountant.charge(0, central, token)
        total += exact_gamma(bounds, token, temperature)
    assert total <= Decimal(accountant.epsilon) <= total + Decimal("1e-10")
