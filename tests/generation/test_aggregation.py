"""What a step samples from, against definitions of one line each."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from dpaudit.accounting.mean import ROUNDING
from dpaudit.generation.rows import network, select
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dpaudit.generation import aggregation
from dpaudit.generation.aggregation import (
    Aggregated,
    Floats,
    Support,
    aggregated,
    aggregated_by_torch,
    clipped,
    top_tokens,
)
from dpaudit.mechanisms import Mechanism

CLIP = 3.0


def median_of_clip(clip: float = CLIP, grid: float | None = None) -> Mechanism:
    return Mechanism(aggregator="median", clip=clip, temperature=1.0, grid=grid)


def mean_of(divisor: float, clip: float = CLIP) -> Mechanism:
    return Mechanism(aggregator="mean", clip=clip, temperature=1.0, divisor=divisor)


def plainly_clipped(logits: Floats, support: Support, mechanism: Mechanism) -> Floats:
    """The definition, in float32 throughout."""
    c = np.float32(mechanism.clip)
    with np.errstate(over="ignore"):
        values = np.maximum(-c, (logits - logits.max(axis=1, keepdims=True)) + c) if len(logits) else logits
    if mechanism.grid is not None:
        values = np.rint(values / np.float32(mechanism.grid)) * np.float32(mechanism.grid)
    return values if support is None else values[:, support]


def plainly(logits: Floats, support: Support, mechanism: Mechanism, width: int) -> Aggregated:
    """Each column by itself: sorted between sentinels, and its contexts ranked with ties in their order."""
    values, c = plainly_clipped(logits, support, mechanism), np.float32(mechanism.clip)
    n, size = values.shape
    central = np.empty((2 * width + n % 2, size), dtype=np.float32)
    below, holder = np.zeros((n, size), dtype=np.bool_), np.zeros(size, dtype=np.uint32)
    for column in range(size):
        padded = [-c] * width + sorted(values[:, column]) + [c] * width
        central[:, column] = padded[n // 2 : n // 2 + 2 * width + n % 2]
        if central[width - 1, column] != central[width + n % 2, column]:
            ranked = np.argsort(values[:, column], kind="stable")
            below[ranked[: n // 2], column] = True
            holder[column] = ranked[n // 2] if n % 2 else 0
    middle = central[width] if n % 2 else (central[width - 1] + central[width]) * np.float32(0.5)
    return Aggregated(central, middle, np.packbits(below, axis=0), holder if n % 2 else None)


def identical(found: Aggregated, wanted: Aggregated) -> bool:
    """Down to the last bit, but for the sign of zeros."""
    pairs = zip(found, wanted, strict=True)
    return all(
        (one is None and other is None)
        or (one is not None and other is not None and one.dtype == other.dtype and np.array_equal(one, other))
        for one, other in pairs
    )


@st.composite
def batches(draw: st.DrawFn, least: int = 0) -> Floats:
    """[n, V] logits: few levels with many ties, or any floats, with tokens ruled out."""
    n = draw(st.one_of(st.integers(least, 9), st.integers(10, 70)))
    size = draw(st.integers(1, 12))
    levels = draw(st.integers(1, 40))
    if draw(st.booleans()):
        elements = st.integers(0, levels).map(lambda level: level * 0.25)
    else:
        elements = st.floats(-20, 20, width=32)
    logits = draw(arrays.arrays(np.float32, (n, size), elements=elements, fill=st.nothing() if n < 10 else elements))
    ruled_out = draw(arrays.arrays(np.bool_, (n, size), elements=st.booleans()))
    ruled_out[:, draw(st.integers(0, size - 1))] = False
    return np.where(ruled_out, np.float32(-np.inf), logits)


def supports(size: int) -> st.SearchStrategy[Support]:
    ids = st.lists(st.integers(0, size - 1), min_size=1, unique=True).map(lambda ids: np.array(sorted(ids), np.int32))
    return st.one_of(st.none(), ids)


@pytest.fixture(autouse=True, scope="module")
def blocks_of_three_columns() -> Iterator[None]:
    """Small inputs cross blocks' edges too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "LEAST_COLUMNS", 3)
        patch.setattr(aggregation, "MOST_COLUMNS", 3)
        yield


@given(batches(), st.sampled_from([None, 1.0, 0.5, 2.0**-10]), st.integers(2, 4), st.data())
@settings(max_examples=400, deadline=None)
def test_medians_and_sides_are_those_of_the_definition_bit_for_bit(
    logits: Floats, grid: float | None, width: int, data: st.DataObject
) -> None:
    support, mechanism = data.draw(supports(logits.shape[1])), median_of_clip(grid=grid)
    wanted = plainly(logits, support, mechanism, width)
    assert identical(aggregated(logits, support, mechanism, width), wanted)
    assert identical(aggregated(torch.from_numpy(logits), support, mechanism, width), wanted)
    if len(logits):
        assert identical(aggregated_by_torch(torch.from_numpy(logits), support, mechanism, width), wanted)


@given(batches(), st.sampled_from([None, 0.5]), st.data())
@settings(max_examples=100, deadline=None)
def test_clipped_logits_are_those_of_the_definition_bit_for_bit(
    logits: Floats, grid: float | None, data: st.DataObject
) -> None:
    support, mechanism = data.draw(supports(logits.shape[1])), median_of_clip(grid=grid)
    found = clipped(logits, support, mechanism)
    assert found.dtype == np.float32
    assert np.array_equal(found, plainly_clipped(logits, support, mechanism))


@given(batches(least=1), st.data())
@settings(max_examples=100, deadline=None)
def test_means_are_the_same_by_numpy_and_by_torch_and_near_the_exact_sums(logits: Floats, data: st.DataObject) -> None:
    support, mechanism = data.draw(supports(logits.shape[1])), mean_of(7.0)
    found = aggregated(logits, support, mechanism, 2)
    assert identical(found, aggregated_by_torch(torch.from_numpy(logits), support, mechanism, 2))
    assert found.aggregate.dtype == np.float64
    exact = [math.fsum(column) / 7 for column in plainly_clipped(logits, support, mechanism).T.tolist()]
    assert np.abs(found.aggregate - exact).max() <= CLIP / 7 * ROUNDING


@pytest.mark.parametrize("n", [255, 256, 300])
def test_many_contexts_with_ties_are_ranked_alike(n: int) -> None:
    logits = np.random.default_rng(n).integers(0, 5, (n, 40)).astype(np.float32)
    assert identical(aggregated(logits, None, median_of_clip(), 2), plainly(logits, None, median_of_clip(), 2))
    assert identical(
        aggregated_by_torch(torch.from_numpy(logits), None, median_of_clip(), 2),
        plainly(logits, None, median_of_clip(), 2),
    )


@pytest.mark.parametrize("n", [63, 64])
def test_blocks_of_their_usual_size_give_what_the_definition_gives(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A common row makes most columns lie at the floor, so that blocks are gathered; the last two are not."""
    monkeypatch.setattr(aggregation, "MOST_COLUMNS", 1000)
    random = np.random.default_rng(n)
    logits = (random.normal(size=3001) * 3 + random.normal(size=(n, 3001)) * 0.7).astype(np.float32)
    logits[:, 2000:] = random.uniform(8, 16, (n, 1001))
    mechanism = median_of_clip(6.0, 2.0**-12)
    assert identical(aggregated(logits, None, mechanism, 2), plainly(logits, None, mechanism, 2))
    assert identical(
        aggregated_by_torch(torch.from_numpy(logits), None, mechanism, 2), plainly(logits, None, mechanism, 2)
    )


def test_bfloat16_logits_are_taken_as_the_numbers_they_are() -> None:
    logits = torch.randn((9, 50), generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    wanted = plainly(logits.float().numpy(), None, median_of_clip(), 2)
    assert identical(aggregated(logits, None, median_of_clip(), 2), wanted)
    assert identical(aggregated_by_torch(logits, None, median_of_clip(), 2), wanted)
    assert np.array_equal(
        clipped(logits, None, median_of_clip()), plainly_clipped(logits.float().numpy(), None, median_of_clip())
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mechanism", [median_of_clip(), median_of_clip(grid=0.25), mean_of(8.0)], ids=str)
@pytest.mark.parametrize("n", [0, 1, 63, 64])
def test_a_gpu_gives_the_same_numbers(n: int, mechanism: Mechanism) -> None:
    logits = torch.randn((n, 5000), generator=torch.Generator().manual_seed(n)) * 3
    support = np.arange(0, 5000, 3, dtype=np.int32)
    for chosen in (None, support):
        found = aggregated(logits.cuda(), chosen, mechanism, 3)
        assert identical(found, aggregated(logits, chosen, mechanism, 3))
        assert np.array_equal(clipped(logits.cuda(), chosen, mechanism), clipped(logits, chosen, mechanism))


def test_rows_of_a_larger_tensor_are_read_where_they_lie() -> None:
    whole = torch.randn((5, 3, 20), generator=torch.Generator().manual_seed(0))
    last = whole[:, -1]
    found = aggregated(last, None, median_of_clip(), 2)
    assert identical(found, plainly(last.numpy(), None, median_of_clip(), 2))


def test_logits_are_left_as_they_were() -> None:
    logits = torch.randn((5, 20), generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    for mechanism in (median_of_clip(grid=0.5), mean_of(8.0)):
        aggregated(logits, None, mechanism, 2)
        aggregated_by_torch(logits, None, mechanism, 2)
        clipped(logits, None, mechanism)
    assert torch.equal(logits, before)


@given(st.integers(1, 40), st.data())
@settings(max_examples=200, deadline=None)
def test_the_network_puts_the_rows_that_are_asked_for_into_place(n: int, data: st.DataObject) -> None:
    """Of zeros and ones, which suffices for a network (Knuth, theorem Z)."""
    first = data.draw(st.integers(0, n - 1))
    last = data.draw(st.integers(first + 1, n))
    rows = data.draw(arrays.arrays(np.int8, (n, 64), elements=st.integers(0, 1), fill=st.nothing()))
    wanted = np.sort(rows, axis=0)[first:last]
    select(rows, np.empty((n // 2, 64), np.int8), network(n, first, last), np.minimum, np.maximum)
    assert np.array_equal(rows[first:last], wanted)


@given(batches(least=1), st.floats(0.125, 100, width=32))
@settings(deadline=None)
def test_clipped_logits_lie_in_the_clip_and_reach_it(logits: Floats, clip: float) -> None:
    values = clipped(logits, None, median_of_clip(clip))
    assert values.dtype == np.float32
    assert (values.max(axis=1) == np.float32(clip)).all()
    assert (values >= -np.float32(clip)).all()


@given(batches(least=1), st.sampled_from([4.0, 1.0, 0.5, 2.0**-20]))
@settings(deadline=None)
def test_a_grid_keeps_the_maximum_and_the_clip_and_rounds_ties_to_even(logits: Floats, grid: float) -> None:
    values = clipped(logits, None, median_of_clip(4.0, grid))
    assert (values.max(axis=1) == 4).all()
    assert (values >= -4).all()
    assert not np.signbit(values[values == 0]).any()
    steps = values / grid
    assert np.array_equal(steps, np.rint(steps))


def test_rounding_to_a_grid_by_hand() -> None:
    logits = np.array([[0.0, -0.25, -0.75, -1.25, -3.6, -9.0]], dtype=np.float32)
    assert clipped(logits, None, median_of_clip(2.0, 0.5)).tolist() == [[2.0, 2.0, 1.0, 1.0, -1.5, -2.0]]


def test_clipping_by_hand() -> None:
    logits = np.array([[10.0, 9.0, 1.0, -np.inf]], dtype=np.float32)
    assert clipped(logits, None, median_of_clip(3.0)).tolist() == [[3.0, 2.0, -3.0, -3.0]]


def test_maxima_are_over_the_whole_vocabulary_where_the_support_is_not() -> None:
    logits = np.array([[10.0, 9.0, 8.0]], dtype=np.float32)
    assert clipped(logits, np.array([1, 2]), median_of_clip(3.0)).tolist() == [[2.0, 1.0]]


@pytest.mark.parametrize("row", [[0.0, np.nan], [0.0, np.inf], [-np.inf, -np.inf], [np.inf, np.nan]])
def test_logits_that_are_no_numbers_are_refused(row: list[float]) -> None:
    logits = np.array([[0.0, 1.0], row], dtype=np.float32)
    with pytest.raises(ValueError, match="NaN or infinite"):
        clipped(logits, None, median_of_clip())
    with pytest.raises(ValueError, match="NaN or infinite"):
        aggregated(logits, np.array([0]), median_of_clip(), 2)
    with pytest.raises(ValueError, match="NaN or infinite"):
        aggregated_by_torch(torch.from_numpy(logits), np.array([0]), median_of_clip(), 2)


@pytest.mark.parametrize("support", [None, np.array([1, 3])])
def test_no_contexts_have_mean_and_median_zero(support: Support) -> None:
    nothing = np.zeros((0, 4), dtype=np.float32)
    size = 4 if support is None else 2
    assert clipped(nothing, support, median_of_clip()).shape == (0, size)
    assert aggregated(nothing, support, mean_of(8.0), 2).aggregate.tolist() == [0.0] * size
    assert aggregated(nothing, support, median_of_clip(), 2).aggregate.tolist() == [0.0] * size


def test_the_mean_divides_by_the_public_number() -> None:
    logits = np.array([[0.0, -2.0], [0.0, -1.0]], dtype=np.float32)
    assert aggregated(logits, None, mean_of(4.0, 1.0), 2).aggregate.tolist() == [0.5, -0.25]


def test_top_tokens_ascend_and_ties_go_to_lower_ids() -> None:
    assert top_tokens(np.array([1.0, 5.0, 1.0, 7.0], dtype=np.float32), 3).tolist() == [0, 1, 3]


@pytest.mark.parametrize("total", [1, 2**10, 2**16])
def test_the_room_for_rounding_covers_sums_of_many_contexts(total: int) -> None:
    """One context less moves the recorded mean by no more than its sensitivity, with any logits."""
    logits = np.random.default_rng(total).uniform(-18, 0, (total, 4)).astype(np.float32)
    logits[:, 0] = 0
    mechanism = mean_of(8.0, 9.0)
    whole, less = (aggregated(rows, None, mechanism, 2).aggregate for rows in (logits, logits[1:]))
    assert (np.abs(whole - less) <= 9 / 8 * (1 + ROUNDING)).all()
