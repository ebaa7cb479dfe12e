"""Bounds and sides against naive references and against actual neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dpaudit.accounting import median_bounds
from dpaudit.mechanisms import bounds_from_central, central_order_statistics, median_of, median_sides, movable

CLIP = 3.0
Floats = NDArray[np.float64]


def batches(most: int = 7) -> st.SearchStrategy[Floats]:
    """[n, V] logits with many ties and floors: whole numbers from -clip to clip."""
    shapes = st.tuples(st.integers(0, most), st.integers(1, 4))
    return shapes.flatmap(lambda shape: hnp.arrays(np.float64, shape, elements=st.integers(-3, 3).map(float)))


def naive_median(values: Floats) -> Floats:
    """Median of each column between sentinels: 0 for none."""
    return np.array([np.median(column) if len(column) else 0.0 for column in values.T])


def removals(values: Floats) -> list[Floats]:
    return [np.delete(values, i, axis=0) for i in range(len(values))]


def additions(values: Floats) -> list[Floats]:
    """The extreme contexts: all at the floor, all at the ceiling, one-hot and anti-one-hot."""
    size = values.shape[1]
    eye = np.eye(size)
    added = [np.full(size, -CLIP), np.full(size, CLIP), *(CLIP * (2 * eye - 1)), *(CLIP * (1 - 2 * eye))]
    return [np.vstack([values, row]) for row in added]


def replacements(values: Floats) -> list[Floats]:
    return [changed for less in removals(values) for changed in additions(less)]


@given(batches())
@settings(max_examples=300)
def test_center_is_the_median_and_lies_between_the_bounds(values: Floats) -> None:
    for relation in ("add_remove", "replace"):
        lower, center, upper = median_bounds(values, relation, clip=CLIP)
        assert np.array_equal(center, naive_median(values))
        assert (lower <= center).all()
        assert (center <= upper).all()


@given(batches())
@settings(max_examples=1000)
def test_every_added_or_removed_context_stays_within_the_bounds_and_reaches_them(values: Floats) -> None:
    lower, _, upper = median_bounds(values, "add_remove", clip=CLIP)
    medians = np.array([naive_median(neighbour) for neighbour in removals(values) + additions(values)])
    assert (medians >= lower).all()
    assert (medians <= upper).all()
    assert np.array_equal(medians.min(axis=0), lower)
    assert np.array_equal(medians.max(axis=0), upper)


@given(batches(most=5))
@settings(max_examples=500)
def test_every_replaced_context_stays_within_the_bounds_and_reaches_them(values: Floats) -> None:
    lower, center, upper = median_bounds(values, "replace", clip=CLIP)
    medians = np.array([center, *map(naive_median, replacements(values))])
    assert (medians >= lower).all()
    assert (medians <= upper).all()
    if len(values):
        assert np.array_equal(medians.min(axis=0), lower)
        assert np.array_equal(medians.max(axis=0), upper)


@given(batches(most=5))
@settings(max_examples=300)
def test_two_added_or_removed_contexts_stay_within_the_bounds_of_a_group(values: Floats) -> None:
    lower, _, upper = median_bounds(values, "add_remove", clip=CLIP, group=2)
    once = removals(values) + additions(values)
    medians = np.array([naive_median(twice) for one in once for twice in removals(one) + additions(one)])
    assert (medians >= lower).all()
    assert (medians <= upper).all()


def test_bounds_of_add_remove_do_not_hold_for_replace() -> None:
    """The test above can fail: the narrower bounds are violated by an actual replacement."""
    values = np.array([[-3.0], [-1.0], [1.0], [3.0]])
    lower, _, _ = median_bounds(values, "add_remove", clip=CLIP)
    assert naive_median(np.array([[-3.0], [-1.0], [-3.0], [3.0]]))[0] < lower[0]


@given(batches(), st.integers(2, 4))
def test_central_values_are_the_sorted_middle_between_sentinels(values: Floats, width: int) -> None:
    central = central_order_statistics(values, CLIP, width)
    n = len(values)
    for column, kept in zip(values.T, central.T, strict=True):
        padded = [-CLIP] * width + sorted(column) + [CLIP] * width
        assert kept.tolist() == padded[n // 2 : n // 2 + 2 * width + n % 2]


@given(batches())
@settings(max_examples=500)
def test_sides_give_every_leave_one_out_median(values: Floats) -> None:
    """Section by section: what the record keeps is enough to remove any context, without its logits."""
    n, size = values.shape
    central = central_order_statistics(values, CLIP)
    packed, holder = median_sides(values, central)
    assert packed.shape == ((n + 7) // 8, size)
    assert not packed[:, ~movable(central)].any()
    sides = np.unpackbits(packed, axis=0, count=n).view(np.bool_)
    assert (sides.sum(axis=0) == np.where(movable(central), n // 2, 0)).all()
    assert (holder is None) == (n % 2 == 0)
    half = central.shape[0] // 2
    for i in range(n):
        if holder is None:
            left_out = np.where(sides[i], central[half], central[half - 1])
        else:
            below, middle, above = central[half - 1 : half + 2]
            other = np.where(sides[i], (middle + above) / 2, (below + middle) / 2)
            left_out = np.where(holder == i, (below + above) / 2, other)
        assert np.array_equal(left_out, naive_median(np.delete(values, i, axis=0)))


def test_midpoints_are_rounded_as_the_mechanism_rounds_them() -> None:
    """In float32 the bound is the very number that a neighbour samples from, not its float64 value."""
    values = np.array([[-0.1], [0.7], [1.3]], dtype=np.float32)
    lower, center, upper = median_bounds(values, "add_remove", clip=CLIP)
    assert {lower.dtype, center.dtype, upper.dtype} == {np.dtype(np.float32)}
    for neighbour in removals(values):
        assert median_of(central_order_statistics(neighbour, CLIP))[0] in (
            lower[0],
            upper[0],
            (values[0] + values[2]) / 2,
        )


@pytest.mark.parametrize("value", [np.nan, np.inf, CLIP * 1.01, -CLIP * 1.01])
def test_values_that_are_not_clipped_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="clip them first"):
        median_bounds(np.array([[0.0, value], [0.0, 0.0]]), clip=CLIP)


@pytest.mark.parametrize(("relation", "group"), [("replace", 2), ("add_remove", 4), ("add_remove", 0)])
def test_too_few_central_values_are_refused(relation: str, group: int) -> None:
    with pytest.raises(ValueError, match="record a larger width"):
        bounds_from_central(np.zeros((4, 2)), relation, group)  # type: ignore[arg-type]
