"""What a step samples from, against definitions of one line each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from dpaudit.generation import aggregation
from dpaudit.generation.aggregation import Floats, aggregated, contributions
from dpaudit.mechanisms import ROUNDING, Arrays, Mechanism, PublicPart
from dpaudit.mechanisms.order_statistics import network, select
from tests.nesting import mechanism_with

CLIP = 3.0
Support = NDArray[np.integer] | None


def mechanism_of(**fields: Any) -> Mechanism:
    return mechanism_with({"clip": CLIP, "temperature": 1.0, **fields})


def median_of_clip(clip: float = CLIP, grid: float | None = None) -> Mechanism:
    return mechanism_of(aggregator="median", clip=clip, grid=grid)


def mean_of(divisor: float, clip: float = CLIP) -> Mechanism:
    return mechanism_of(aggregator="mean", clip=clip, divisor=divisor)


def clipped(logits: Floats | torch.Tensor, support: Support, mechanism: Mechanism) -> Floats:
    return contributions(logits, PublicPart(support), mechanism.contribution)


def by_torch(
    logits: Floats | torch.Tensor, support: Support, mechanism: Mechanism, width: int
) -> Arrays:
    """What a GPU does, on the CPU."""
    values = mechanism.contribution.on_device(torch.as_tensor(logits), support)
    assert values is not None
    return mechanism.aggregator.step_on_device(values, mechanism.clip, width)


def vector(logits: Floats, support: Support, mechanism: Mechanism) -> Floats:
    return mechanism.aggregate(aggregated(logits, PublicPart(support), mechanism, 2))


def plainly_clipped(logits: Floats, support: Support, mechanism: Mechanism) -> Floats:
    """The definition, in float32 throughout."""
    c = np.float32(mechanism.clip)
    with np.errstate(over="ignore"):
        values = (
            np.maximum(-c, (logits - logits.max(axis=1, keepdims=True)) + c)
            if len(logits)
            else logits
        )
    if (grid := mechanism.contribution.grid) is not None:
        values = np.rint(values / np.float32(grid)) * np.float32(grid)
    return values if support is None else values[:, support]


def plainly(logits: Floats, support: Support, mechanism: Mechanism, width: int) -> Arrays:
    """Columns, each sorted between sentinels; the contexts' ranks have ties in their order."""
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
    found: Arrays = {"central": central}
    if n:
        found["sides"] = np.packbits(below, axis=0)
    return found | ({"holder": holder} if n % 2 else {})


def identical(found: Arrays, wanted: Arrays) -> bool:
    """Down to the last bit, but for the sign of zeros."""
    return found.keys() == wanted.keys() and all(
        found[name].dtype == wanted[name].dtype and np.array_equal(found[name], wanted[name])
        for name in wanted
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
    logits = draw(
        arrays.arrays(
            np.float32, (n, size), elements=elements, fill=st.nothing() if n < 10 else elements
        )
    )
    ruled_out = draw(arrays.arrays(np.bool_, (n, size), elements=st.booleans()))
    ruled_out[:, draw(st.integers(0, size - 1))] = False
    return np.where(ruled_out, np.float32(-np.inf), logits)


def supports(size: int) -> st.SearchStrategy[Support]:
    ids = st.lists(st.integers(0, size - 1), min_size=1, unique=True).map(
        lambda ids: np.array(sorted(ids), np.int32)
    )
    return st.one_of(st.none(), ids)


@pytest.fixture(autouse=True, scope="module")
def blocks_of_three_columns() -> Iterator[None]:
    """Small inputs cross blocks' edges too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "LEAST_COLUMNS", 3)
        patch.setattr(aggregation, "MOST_COLUMNS", 3)
        yield


@given(batches(), st.sampled_from([None, 1.0, 0.5, 2.0**-10]), st.integers(2, 4), st.data())
@settings(max_examples=200, deadline=None)
def test_a_step_is_that_of_the_definition_bit_for_bit(
    logits: Floats, grid: float | None, width: int, data: st.DataObject
) -> None:
    support, mechanism = data.draw(supports(logits.shape[1])), median_of_clip(grid=grid)
    values = clipped(logits, support, mechanism)
    assert values.dtype == np.float32
    assert np.array_equal(values, plainly_clipped(logits, support, mechanism))
    if grid is not None:
        assert not np.signbit(values[values == 0]).any()
        assert (values / grid % 1 == 0).all()
    wanted = plainly(logits, support, mechanism, width)
    found = aggregated(logits, PublicPart(support), mechanism, width)
    assert identical(found, wanted)
    assert identical(
        aggregated(torch.from_numpy(logits), PublicPart(support), mechanism, width), wanted
    )
    if len(logits):
        assert identical(by_torch(logits, support, mechanism, width), wanted)
    n, middle = len(logits), wanted["central"][width - (1 - len(logits) % 2) : width + 1]
    assert np.array_equal(
        mechanism.aggregator.aggregate(found), middle.sum(axis=0) / np.float32(2 - n % 2)
    )


@given(batches(least=1), st.data())
@settings(max_examples=60, deadline=None)
def test_means_are_the_same_by_numpy_and_by_torch_and_near_the_exact_sums(
    logits: Floats, data: st.DataObject
) -> None:
    support, mechanism = data.draw(supports(logits.shape[1])), mean_of(7.0)
    found = aggregated(logits, PublicPart(support), mechanism, 2)
    assert identical(found, by_torch(logits, support, mechanism, 2))
    assert found["aggregate"].dtype == np.float64
    exact = [
        math.fsum(column) / 7 for column in plainly_clipped(logits, support, mechanism).T.tolist()
    ]
    assert np.abs(found["aggregate"] - exact).max() <= CLIP / 7 * ROUNDING


def test_many_contexts_with_ties_are_ranked_alike() -> None:
    for n in (255, 256, 300):
        logits = np.random.default_rng(n).integers(0, 5, (n, 40)).astype(np.float32)
        wanted = plainly(logits, None, median_of_clip(), 2)
        assert identical(aggregated(logits, PublicPart(), median_of_clip(), 2), wanted)
        assert identical(by_torch(logits, None, median_of_clip(), 2), wanted)


def test_blocks_of_their_usual_size_give_what_the_definition_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A common row puts most columns at the floor, so blocks are gathered; the last two are not."""
    monkeypatch.setattr(aggregation, "MOST_COLUMNS", 1000)
    for n in (63, 64):
        random = np.random.default_rng(n)
        logits = (random.normal(size=3001) * 3 + random.normal(size=(n, 3001)) * 0.7).astype(
            np.float32
        )
        logits[:, 2000:] = random.uniform(8, 16, (n, 1001))
        mechanism = median_of_clip(6.0, 2.0**-12)
        wanted = plainly(logits, None, mechanism, 2)
        assert identical(aggregated(logits, PublicPart(), mechanism, 2), wanted)
        assert identical(by_torch(logits, None, mechanism, 2), wanted)


def test_tensors_are_taken_as_the_numbers_they_are_where_they_lie_and_left_so() -> None:
    random = torch.Generator().manual_seed(0)
    narrow = torch.randn((9, 50), generator=random).to(torch.bfloat16)
    last = torch.randn((5, 3, 20), generator=random)[:, -1]  # rows of a larger tensor
    for logits in (narrow, last):
        before, numbers = logits.clone(), logits.float().numpy()
        for mechanism in (median_of_clip(grid=0.5), mean_of(8.0), median_of_clip()):
            found = aggregated(logits, PublicPart(), mechanism, 2)
            assert identical(found, by_torch(logits, None, mechanism, 2))
            assert np.array_equal(
                clipped(logits, None, mechanism), plainly_clipped(numbers, None, mechanism)
            )
        assert identical(found, plainly(numbers, None, median_of_clip(), 2))
        assert torch.equal(logits, before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_numbers() -> None:
    support = np.arange(0, 5000, 3, dtype=np.int32)
    for n in (0, 1, 63, 64):
        logits = torch.randn((n, 5000), generator=torch.Generator().manual_seed(n)) * 3
        for mechanism in (median_of_clip(), median_of_clip(grid=0.25), mean_of(8.0)):
            for chosen in (None, support):
                found = aggregated(logits.cuda(), PublicPart(chosen), mechanism, 3)
                assert identical(found, aggregated(logits, PublicPart(chosen), mechanism, 3))
                assert np.array_equal(
                    clipped(logits.cuda(), chosen, mechanism), clipped(logits, chosen, mechanism)
                )


def test_the_network_puts_the_rows_that_are_asked_for_into_place() -> None:
    """Zeros and ones suffice for a network (Knuth, theorem Z).

    All columns of few rows are tried, and some of many.
    """
    random = np.random.default_rng(0)
    for n in (*range(1, 10), 23, 40, 64):
        columns = (
            np.arange(1 << n) >> np.arange(n)[:, None] & 1
            if n < 10
            else random.integers(0, 2, (n, 500))
        )
        wanted = np.sort(columns, axis=0)
        for first in range(n) if n < 10 else (0, n // 3, n // 2 - 2):
            for last in range(first + 1, n + 1) if n < 10 else (first + 1, n // 2 + 2, n):
                rows = columns.astype(np.int8)
                spare = np.empty((n // 2, rows.shape[1]), np.int8)
                select(rows, spare, network(n, first, last), np.minimum, np.maximum)
                assert np.array_equal(rows[first:last], wanted[first:last])


@given(batches(least=1), st.floats(0.125, 100, width=32))
@settings(max_examples=50, deadline=None)
def test_clipped_logits_lie_in_the_clip_and_reach_it(logits: Floats, clip: float) -> None:
    grids = [None, *(grid for grid in (1.0, 2.0**-20) if clip % grid == 0 and clip / grid < 2**22)]
    for grid in grids:
        values = clipped(logits, None, median_of_clip(clip, grid))
        assert (values.max(axis=1) == np.float32(clip)).all()
        assert (values >= -np.float32(clip)).all()


def test_clipping_by_hand() -> None:
    for row, support, clip, grid, wanted in (
        ([10.0, 9.0, 1.0, -np.inf], None, 3.0, None, [3.0, 2.0, -3.0, -3.0]),
        # Ties go to the even multiples.
        ([0.0, -0.25, -0.75, -1.25, -3.6, -9.0], None, 2.0, 0.5, [2.0, 2.0, 1.0, 1.0, -1.5, -2.0]),
        # The maximum is over the whole vocabulary where the support is not.
        ([10.0, 9.0, 8.0], np.array([1, 2]), 3.0, None, [2.0, 1.0]),
    ):
        logits = np.array([row], dtype=np.float32)
        assert clipped(logits, support, median_of_clip(clip, grid)).tolist() == [wanted]


def test_logits_that_are_no_numbers_are_refused() -> None:
    for row in ([0.0, np.nan], [0.0, np.inf], [-np.inf, -np.inf], [np.inf, np.nan]):
        logits = np.array([[0.0, 1.0], row], dtype=np.float32)
        for use in (
            lambda: clipped(logits, None, median_of_clip()),
            lambda: aggregated(logits, PublicPart(np.array([0])), median_of_clip(), 2),
            lambda: by_torch(logits, np.array([0]), median_of_clip(), 2),
        ):
            with pytest.raises(ValueError, match="NaN or infinite"):
                use()


def test_no_contexts_have_mean_and_median_zero() -> None:
    nothing = np.zeros((0, 4), dtype=np.float32)
    for support, size in ((None, 4), (np.array([1, 3]), 2)):
        assert clipped(nothing, support, median_of_clip()).shape == (0, size)
        for mechanism in (mean_of(8.0), median_of_clip()):
            assert vector(nothing, support, mechanism).tolist() == [0.0] * size


def test_the_mean_divides_by_the_public_number() -> None:
    logits = np.array([[0.0, -2.0], [0.0, -1.0]], dtype=np.float32)
    assert vector(logits, None, mean_of(4.0, 1.0)).tolist() == [0.5, -0.25]


def test_the_room_for_rounding_covers_sums_of_many_contexts() -> None:
    """One context less moves the recorded mean by no more than its sensitivity, with any logits."""
    for total in (1, 2**10, 2**16):
        logits = np.random.default_rng(total).uniform(-18, 0, (total, 4)).astype(np.float32)
        logits[:, 0] = 0
        whole, less = (vector(rows, None, mean_of(8.0, 9.0)) for rows in (logits, logits[1:]))
        assert (np.abs(whole - less) <= 9 / 8 * (1 + ROUNDING)).all()
