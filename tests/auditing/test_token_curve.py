"""Costs of tokens by position, against all of them at once."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dpaudit.accounting import Cost
from dpaudit.auditing.guarantees import CurveSums
from dpaudit.results import TokenCurve

costs = st.one_of(st.floats(0, 5000), st.sampled_from([0.0, 1e-12, 1e300, math.inf, math.nan]))


def curve_of(batches: list[list[float]], positions: int) -> TokenCurve | None:
    sums = CurveSums(positions)
    for batch in batches:
        sums.merge(0, batch)
    return sums.result([Cost(1.0, 1.0, 1.0)] * (positions + 1))


@given(st.lists(st.lists(costs, max_size=6), max_size=40))
def test_positions_that_batches_reached_have_their_costs(batches: list[list[float]]) -> None:
    curve = curve_of(batches, positions=6)
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
    for mean, found in zip(curve.mean, reached.values(), strict=True):
        assert math.isclose(mean, sum(found) / len(found), rel_tol=1e-12)


def test_tokens_that_nothing_bounds_are_counted() -> None:
    curve = curve_of([[1.0, math.nan], [math.nan, math.nan, 2.0]], positions=4)
    assert curve is not None
    assert (curve.unbounded, curve.position, curve.batches) == (3, (1, 3), (1, 1))
