"""Costs of tokens by position, added up batch by batch."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.accounting import Cost
from dpaudit.auditing.guarantees import CurveSums
from dpaudit.results import TokenCurve

costs = st.one_of(
    st.floats(0, 5000), st.sampled_from([0.0, 1e-12, 2.0**12, 1e300, math.inf, math.nan])
)


def curve_of(batches: list[list[float]], positions: int = 4096) -> TokenCurve | None:
    sums = CurveSums(positions)
    for batch in batches:
        sums.merge(0, batch)
    return sums.result([Cost(1.0, 1.0, 1.0)] * (positions + 1))


@given(st.lists(st.lists(costs, max_size=6), max_size=40))
def test_means_and_maxima_are_those_of_all_known_costs(batches: list[list[float]]) -> None:
    curve = curve_of(batches)
    by_position = {
        place + 1: [
            batch[place] for batch in batches if len(batch) > place and not math.isnan(batch[place])
        ]
        for place in range(6)
    }
    reached = {position: found for position, found in by_position.items() if found}
    assert (curve is None) == (not reached)
    if curve is None:
        return
    assert curve.position == tuple(reached)
    assert curve.batches == tuple(map(len, reached.values()))
    assert curve.maximum == tuple(map(max, reached.values()))
    for found, mean in zip(reached.values(), curve.mean, strict=True):
        assert mean == pytest.approx(math.fsum(found) / len(found))


def test_tokens_that_nothing_bounds_are_counted() -> None:
    curve = curve_of([[1.0, math.nan], [math.nan, math.nan, 2.0]], positions=4)
    assert curve is not None
    assert (curve.unbounded, curve.position, curve.batches) == (3, (1, 3), (1, 1))
