"""Quantiles of token costs, from histograms of fixed size, against sorting all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.accounting import Cost
from dpaudit.auditing import guarantees
from dpaudit.auditing.guarantees import MOST_GROUPS, CurveSums
from dpaudit.results import TokenBand, TokenCurve

#: A bin is a sixteenth of a doubling wide.
WIDTH = 2 ** (1 / 16) * (1 + 1e-12)

costs = st.one_of(
    st.floats(0, 5000),
    st.sampled_from(
        [
            0.0,
            1e-12,
            2.0**-30,
            2.0**12,
            1e300,
            math.inf,
            math.nan,
            *(2 ** (k / 16) for k in range(-40, 9)),
        ]
    ),
)


def curve_of(batches: list[list[float]], positions: int = 4096) -> TokenCurve | None:
    sums = CurveSums(positions)
    for batch in batches:
        sums.merge(0, batch)
    return sums.result([Cost(1.0, 1.0, 1.0)] * (positions + 1))


def band_of(batches: list[list[float]]) -> TokenBand:
    curve = curve_of(batches)
    assert curve is not None
    assert curve.band is not None
    return curve.band


def at_or_below(bound: float, value: float) -> bool:
    """Return whether a bound is at most the value, and at most one bin (if wide) away from it."""
    return bound <= value and (bound >= value / WIDTH or value > 2.0**12 or value <= 2.0**-30)


@given(st.lists(st.lists(costs, max_size=6), max_size=40))
def test_quantiles_are_those_of_all_costs_rounded_outward(batches: list[list[float]]) -> None:
    curve = curve_of(batches)
    by_position = {
        place + 1: sorted(
            batch[place] for batch in batches if len(batch) > place and not math.isnan(batch[place])
        )
        for place in range(6)
    }
    reached = {position: found for position, found in by_position.items() if found}
    assert (curve is None) == (not reached)
    if curve is None:
        return
    band = curve.band
    assert band is not None
    assert band.first == band.last == curve.position == tuple(reached)
    assert band.tokens == curve.batches == tuple(map(len, reached.values()))
    assert curve.maximum == tuple(map(max, reached.values()))
    for found, low, median, high in zip(
        reached.values(), band.low, band.median, band.high, strict=True
    ):
        outside = int(0.1 * (len(found) - 1))
        assert sum(value < low for value in found) <= outside
        assert sum(value > high for value in found) <= outside
        assert sum(value > median for value in found) <= (len(found) - 1) // 2
        assert found[0] <= low <= median <= high <= found[-1]
        assert at_or_below(low, found[outside])
        assert at_or_below(found[len(found) // 2], median)
        assert at_or_below(found[-1 - outside], high)


@given(
    st.lists(st.lists(st.floats(0, 10), min_size=1, max_size=40), min_size=1, max_size=8),
    st.randoms(),
)
def test_groups_add_up_exactly_in_any_order(batches: list[list[float]], random) -> None:
    shuffled = list(batches)
    random.shuffle(shuffled)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(guarantees, "MOST_GROUPS", 8)
        one, other = band_of(batches), band_of(shuffled)
    assert one == other
    longest = max(map(len, batches))
    width = one.last[0] - one.first[0] + 1
    assert width * 8 >= longest > width * 4 or width == 1
    assert sum(one.tokens) == sum(map(len, batches))
    for first, last, tokens, low, high in zip(
        one.first, one.last, one.tokens, one.low, one.high, strict=True
    ):
        found = [value for batch in batches for value in batch[first - 1 : last]]
        assert tokens == len(found)
        assert min(found) <= low <= high <= max(found)


def test_what_is_kept_for_quantiles_does_not_grow_with_the_run() -> None:
    sums = CurveSums(1 << 17)
    size = sums._histograms.nbytes
    for length in (10, MOST_GROUPS, 100_000):
        sums.merge(0, np.full(length, 0.25))
    curve = sums.result([Cost(1.0, 1.0, 1.0)] * (sums.positions + 1))
    assert curve is not None
    assert curve.band is not None
    assert sums._histograms.nbytes == size < 4 << 20
    assert len(curve.position) == 100_000
    assert len(curve.band.first) <= MOST_GROUPS
    assert set(curve.band.median) == {0.25}


def test_the_last_group_ends_where_texts_do() -> None:
    band = curve_of([[1.0] * (MOST_GROUPS + 1)], positions=MOST_GROUPS + 1)
    assert band is not None and band.band is not None
    assert (band.band.first[-1], band.band.last[-1]) == (MOST_GROUPS + 1, MOST_GROUPS + 1)


def test_tokens_that_nothing_bounds_are_counted() -> None:
    curve = curve_of([[1.0, math.nan], [math.nan, math.nan, 2.0]], positions=4)
    assert curve is not None
    assert (curve.unbounded, curve.position, curve.batches) == (3, (1, 3), (1, 1))
