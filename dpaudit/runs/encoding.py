"""Codes of a step's clipped logits: integers that compress well, and decode bit for bit.

Codes are in the order of the values. Central order statistics ascend, so all rows but the first
keep what they add to the row above. Tokens whose central values are all equal, as at the floor of
the clip, are moved behind the others in every array, where they are long runs of equal numbers.

Arithmetic is modulo the integers' range: values out of order, beyond the clip or no numbers at all
are decoded unchanged, for the audit to object to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]
AnyArray = NDArray[Any]


@dataclass(frozen=True)
class IntegerCode:
    """Integers in a smaller dtype.

    Attributes:
        dtype: of the values.
        largest: of the values, of which none is negative then; infinite if it is not known.
    """

    dtype: str
    largest: float

    @property
    def stored(self) -> str:
        """The dtype of the codes."""
        if math.isinf(self.largest):
            return self.dtype
        return _smallest_dtype(int(self.largest))

    def encode(self, values: NDArray[np.integer]) -> Codes:
        """Return the codes.

        Raises:
            ValueError: one does not fit.
        """
        return integers(values, self.stored)

    def decode(self, codes: Codes) -> Codes:
        """Undo `encode`."""
        return codes.astype(self.dtype, copy=False)


@dataclass(frozen=True)
class FloatCode:
    """Codes of any floats: their ranks. Every bit pattern has its own, -0.0 and NaN included.

    A rank is the bits of IEEE 754 with the sign bit inverted, or all bits of a negative number: an
    unsigned integer.

    Attributes:
        dtype: of the values, "<f4" or "<f8".
    """

    dtype: str

    @property
    def stored(self) -> str:
        """The dtype of the codes."""
        return self.dtype.replace("f", "u")

    def encode(self, values: Floats) -> Codes:
        """Return the codes, of the values' shape."""
        bits = values.view(self._signed)
        ranks = self._inverted_bits(bits)
        ranks ^= bits
        return ranks.view(self.stored)

    def decode(self, codes: Codes) -> Floats:
        """Undo `encode`, in the memory of `codes`."""
        bits = codes.view(self._signed)
        bits ^= self._inverted_bits(~bits)
        return bits.view(self.dtype)

    @property
    def _signed(self) -> str:
        return self.dtype.replace("f", "i")

    def _inverted_bits(
        self, bits: NDArray[np.signedinteger[Any]]
    ) -> NDArray[np.signedinteger[Any]]:
        """Return the bits to invert: all ones for a negative number, else the top bit alone.

        The shift copies the top bit into every bit.
        """
        inverted: NDArray[np.signedinteger[Any]] = bits >> (8 * bits.dtype.itemsize - 1)
        inverted |= np.iinfo(self._signed).min
        return inverted


@dataclass(frozen=True)
class GridCode:
    """Codes of multiples of a grid, or of such sums over a divisor: the multiple, a signed integer.

    Attributes:
        dtype: of the values, "<f4" or "<f8".
        grid: a power of two, in logit units.
        largest: the multiple, in logit units, up to which there is a code at least.
        divisor: what each value's multiple is divided by.
    """

    dtype: str
    grid: float
    largest: float
    divisor: float = 1.0

    @property
    def stored(self) -> str:
        """The dtype of the codes: the smallest that has one for `largest`."""
        return _smallest_dtype(-int(self.largest / self.grid) - 1)

    def encode(self, values: Floats) -> Codes:
        """Return the codes, of the values' shape.

        Raises:
            ValueError: a value is no such multiple, or is -0.0.
        """
        real = values.dtype.type
        with np.errstate(all="ignore"):  # what has no code is found below
            codes: Codes = np.rint(values * real(self.divisor) / real(self.grid)).astype(
                self.stored
            )
        bits = self.dtype.replace("f", "i")
        if not np.array_equal(self.decode(codes).view(bits), values.view(bits)):
            shares = f", divided by {self.divisor:g}" if self.divisor != 1 else ""
            raise ValueError(
                f"multiples of mechanism.contribution.grid = {self.grid:g}{shares}, within the "
                "clip, and no -0.0"
            )
        return codes

    def decode(self, codes: Codes) -> Floats:
        """Undo `encode`."""
        values: Floats = codes.astype(self.dtype)
        with np.errstate(over="ignore"):  # a foreign manifest may declare any grid
            values *= self.grid
            values /= self.divisor
        return values


Code: TypeAlias = FloatCode | GridCode | IntegerCode


def integers(values: NDArray[np.integer], dtype: str) -> Codes:
    """Convert integers to another dtype.

    Raises:
        ValueError: they are no integers, or one does not fit.
    """
    limits = np.iinfo(dtype)
    if values.dtype.kind not in "iu" or (
        values.size and not limits.min <= values.min() <= values.max() <= limits.max
    ):
        raise ValueError(f"integers that fit {dtype}, not {values.dtype.str}")
    return values.astype(dtype)


def _smallest_dtype(number: int) -> str:
    """Return the smallest little-endian integer dtype that has this number.

    It is unsigned if the number is not negative.
    """
    return np.min_scalar_type(number).newbyteorder("<").str


def differences(codes: Codes) -> Codes:
    """Return all rows but the first as what they add to the row above."""
    result = codes.copy()
    result[1:] -= codes[:-1]
    return result


def totals(increments: Codes) -> Codes:
    """Undo `differences`, in place."""
    for above, row in pairwise(increments):
        row += above
    return increments


def constant_columns(codes: Codes) -> NDArray[np.bool_]:
    """Return where all rows are equal: bool [S]."""
    constant: NDArray[np.bool_] = (codes[1:] == codes[0]).all(axis=0)
    return constant


def stored_order(constant: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the tokens [S] in stored order: those that are not constant, then those that are."""
    return np.concatenate((np.flatnonzero(~constant), np.flatnonzero(constant)))


def stored_places(constant: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the stored column [..., S] of each token."""
    earlier = np.cumsum(constant, axis=-1)
    varying = np.arange(constant.shape[-1]) - earlier
    first = constant.shape[-1] - earlier[..., -1:]
    return np.where(constant, first + earlier - 1, varying)


def columns(array: AnyArray, wanted: NDArray[np.intp]) -> AnyArray:
    """Return these columns of an array [..., S]."""
    result = np.empty_like(array)
    # The mode spares numpy a buffer: all indices are in range.
    np.take(array, wanted, axis=-1, out=result, mode="clip")
    return result
