"""Leave-one-out losses from sides against recomputing the median without each context."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dpaudit.accounting import exact_cost, mean_losses, median_bounds
from dpaudit.mechanisms import central_order_statistics, median_losses, median_sides

CLIP = 3.0
Floats = NDArray[np.floating]


def log_probability(aggregate: Floats, token: int, temperature: float) -> float:
    scaled = aggregate.astype(np.float64) / temperature
    return float(scaled[token] - np.logaddexp.reduce(scaled))


def recomputed(values: Floats, token: int, temperature: float) -> Floats:
    """The definition: the median of all contexts against the median of all but one, in the values' own precision."""

    def median(rows: Floats) -> Floats:
        ordered = np.sort(rows, axis=0)
        n = len(rows)
        if n == 0:
            return np.zeros(rows.shape[1])
        return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2 if n % 2 == 0 else ordered[n // 2]

    here = log_probability(median(values), token, temperature)
    left_out = (median(np.delete(values, i, axis=0)) for i in range(len(values)))
    return np.array([here - log_probability(without, token, temperature) for without in left_out])


def from_record(values: Floats, token: int, temperature: float, width: int = 2) -> Floats:
    central = central_order_statistics(values, CLIP, width)
    sides, holder = median_sides(values, central)
    return median_losses(central, sides, holder, len(values), token, temperature)


batches = st.tuples(st.integers(1, 9), st.integers(1, 6)).flatmap(
    lambda shape: hnp.arrays(np.float64, shape, elements=st.one_of(st.integers(-3, 3).map(float), st.floats(-3, 3)))
)


@given(batches, st.sampled_from([0.3, 1.0, 2.0]), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=1500)
def test_losses_are_those_of_the_definition(values: Floats, temperature: float, dtype: type) -> None:
    values = values.astype(dtype)
    for token in range(values.shape[1]):
        found = from_record(values, token, temperature)
        np.testing.assert_allclose(found, recomputed(values, token, temperature), rtol=0, atol=1e-12)


@given(batches, st.sampled_from([0.3, 1.0, 2.0]))
@settings(max_examples=500)
def test_no_loss_exceeds_the_exact_cost(values: Floats, temperature: float) -> None:
    for token in range(values.shape[1]):
        rise, fall = exact_cost(*median_bounds(values, clip=CLIP), token, temperature)
        losses = from_record(values, token, temperature)
        assert (-rise - 1e-12 <= losses).all()
        assert (losses <= fall + 1e-12).all()


@pytest.mark.parametrize("n", [63, 64, 65, 200])
def test_many_contexts_are_taken_in_blocks(n: int) -> None:
    values = np.random.default_rng(n).uniform(-CLIP, CLIP, (n, 20)).astype(np.float32)
    np.testing.assert_allclose(from_record(values, 7, 0.8), recomputed(values, 7, 0.8), rtol=0, atol=1e-12)


def test_a_wider_record_gives_the_same() -> None:
    values = np.random.default_rng(1).uniform(-CLIP, CLIP, (7, 5))
    assert np.array_equal(from_record(values, 2, 1.0), from_record(values, 2, 1.0, width=6))


def test_no_contexts_have_no_losses() -> None:
    assert from_record(np.zeros((0, 4)), 1, 1.0).shape == (0,)


def test_losses_of_a_mean_are_those_of_the_definition() -> None:
    values = np.random.default_rng(2).uniform(-CLIP, CLIP, (6, 9))
    aggregate = values.sum(axis=0) / 5.0
    here = log_probability(aggregate, 3, 0.7)
    right = [here - log_probability(np.delete(values, i, axis=0).sum(axis=0) / 5.0, 3, 0.7) for i in range(6)]
    np.testing.assert_allclose(mean_losses(aggregate, values, 5.0, 3, 0.7), right, rtol=0, atol=1e-12)
