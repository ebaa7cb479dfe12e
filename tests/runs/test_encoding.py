"""Codes of clipped logits: all bit patterns come back, and honest values become small integers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpaudit.runs.encoding import (
    FloatCode,
    GridCode,
    IntegerCode,
    columns,
    constant_columns,
    differences,
    stored_order,
    stored_places,
    totals,
)

DTYPES = st.sampled_from(["<f4", "<f8"])


@st.composite
def any_floats(draw):
    """Arrays [rows, S] of any bit patterns: NaN payloads, infinities and both zeros among them."""
    dtype = draw(DTYPES)
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 9)))
    integers = dtype.replace("f", "u")
    special = (
        np.array([0.0, -0.0, 6.0, -6.0, np.inf, -np.inf, np.nan, -np.nan], dtype=dtype)
        .view(integers)
        .tolist()
    )
    bits = st.one_of(st.integers(0, np.iinfo(integers).max), st.sampled_from(special))
    return draw(arrays(integers, shape, elements=bits)).view(dtype)


def same_bits(one, other):
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


@given(values=any_floats())
def test_every_bit_pattern_has_a_code_of_its_own(values):
    code = FloatCode(values.dtype.str)
    before = values.copy()
    codes = code.encode(values)
    assert (codes.dtype, codes.shape) == (np.dtype(code.stored), values.shape)
    assert same_bits(code.decode(totals(differences(codes))), values)
    assert same_bits(values, before)


@given(dtype=DTYPES, data=st.data())
def test_codes_are_in_the_order_of_the_values(dtype, data):
    numbers = st.floats(allow_nan=False, width=32 if dtype == "<f4" else 64)
    values = np.sort(
        np.array([data.draw(st.lists(numbers, min_size=1, max_size=20))], dtype=dtype), axis=1
    )
    codes = FloatCode(dtype).encode(values)[0]
    # -0.0 and 0.0 are equal in value, and are told apart.
    assert ((codes[1:] >= codes[:-1]) | (values[0, 1:] == values[0, :-1])).all()
    assert ((codes[1:] == codes[:-1]) <= (values[0, 1:] == values[0, :-1])).all()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_next_float_has_the_next_code(value):
    codes = FloatCode("<f4").encode(
        np.array([[value, np.nextafter(np.float32(value), np.float32(np.inf))]], dtype="<f4")
    )
    across_zero = value <= 0 and np.nextafter(np.float32(value), np.float32(np.inf)) >= 0
    assert int(codes[0, 1]) - int(codes[0, 0]) in ((1, 2) if across_zero else (1,))


def test_multiples_of_a_grid_become_small_integers():
    for dtype, (clip, grid, stored) in itertools.product(
        ["<f4", "<f8"],
        [
            (6.0, 0.125, "|i1"),
            (127.0, 1.0, "|i1"),
            (128.0, 1.0, "<i2"),
            (12.0, 2.0**-6, "<i2"),
            (4.0, 2.0**-20, "<i4"),
        ],
    ):
        code = GridCode(dtype, grid, clip)
        assert code.stored == stored
        steps = int(clip / grid)
        numbers = np.unique(np.linspace(-steps, steps, 999).astype(np.int64))
        values = (numbers * grid).astype(dtype)[None]
        codes = code.encode(values)
        assert np.array_equal(codes[0], numbers)
        assert same_bits(code.decode(codes), values)
        middle = (values[0, 1:] + values[0, :-1]) / values.dtype.type(2)
        # Midpoints of two multiples are exact, so a median has no rounding error.
        assert (middle.astype(np.float64) == (numbers[1:] + numbers[:-1]) * grid / 2).all()


@given(values=any_floats(), grid=st.sampled_from([0.125, 2.0**-6, 2.0**-18]))
def test_what_is_off_the_grid_is_refused_not_changed(values, grid):
    code = GridCode(values.dtype.str, grid, 6.0)
    try:
        codes = code.encode(values)
    except ValueError as error:
        assert "multiples of mechanism.contribution.grid" in str(error)
        assert not all(within_and_on_grid(value, grid) for value in values.flat)
    else:
        assert same_bits(code.decode(codes), values)


def within_and_on_grid(value, grid):
    return (
        abs(value) <= 6
        and (value / grid) % 1 == 0
        and not (value == 0 and math.copysign(1, value) < 0)
    )


@given(
    n=st.integers(0, 40),
    divisor=st.one_of(st.integers(1, 64).map(float), st.floats(0.1, 100)),
    grid=st.sampled_from([0.125, 2.0**-6, 2.0**-18]),
    seed=st.integers(0, 2**32 - 1),
)
def test_means_of_values_on_a_grid_become_their_sums(n, divisor, grid, seed):
    steps = np.random.default_rng(seed).integers(-6 / grid, 6 / grid + 1, (n, 30))
    means = (steps * grid).sum(axis=0) / divisor
    code = GridCode("<f8", grid, 6.0 * n, divisor)
    codes = code.encode(means)
    assert codes.tolist() == steps.sum(axis=0).tolist()
    assert same_bits(code.decode(codes), means)
    if n:
        with pytest.raises(ValueError, match="multiples of"):
            code.encode(np.nextafter(means, 1e9))


def test_minus_zero_is_off_the_grid():
    code = GridCode("<f4", 0.125, 6.0)
    with pytest.raises(ValueError, match=r"no -0\.0"):
        code.encode(np.array([[-0.0]], dtype="<f4"))
    assert code.encode(np.array([[0.0, -6.0]], dtype="<f4")).tolist() == [[0, -48]]


@given(
    arrays(
        "<i2",
        st.tuples(st.integers(1, 4), st.integers(1, 20)),
        elements=st.integers(-(2**15), 2**15 - 1),
    )
)
def test_any_codes_decode_and_those_beyond_the_clip_to_values_beyond_it(codes):
    values = GridCode("<f4", 2.0**-6, 12.0).decode(totals(differences(codes)))
    assert np.isfinite(values).all()
    assert (values == codes / 64).all()


@given(arrays("<u4", st.tuples(st.integers(2, 5), st.integers(1, 40)), elements=st.integers(0, 3)))
def test_constant_columns_go_last_and_come_back(codes):
    constant = constant_columns(codes)
    assert constant.tolist() == [len(set(column)) == 1 for column in codes.T.tolist()]
    moved = columns(differences(codes), stored_order(constant))
    kept = int((~constant).sum())
    assert not moved[1:, kept:].any()
    assert same_bits(columns(totals(moved), stored_places(constant)), codes)


def test_smallest_integers():
    largest = (0, 255, 256, 65535, 65536, math.inf)
    assert [IntegerCode("<i8", n).stored for n in largest] == [
        "|u1",
        "|u1",
        "<u2",
        "<u2",
        "<u4",
        "<i8",
    ]
