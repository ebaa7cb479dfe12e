"""Vectors in whole numbers of a fine step, so that rounding betrays nothing.

A matrix product of floats rounds each row in a way that may depend on how many rows there are, and
a sum of floats in a way that depends on all of them. A record that comes or goes would then move
others by an ulp or across a hyperplane, which no sensitivity covers. Here every number is whole and
every product, sum and partial sum stays below 2^53 in size, so floats hold all of them exactly, in
whatever order a library adds them up. What is left is rounded element by element, hence depends on
one record alone.

What is published lies on the same grid, whose step is coarse beside the last bits of a double.
Noise that is rounded to a grid, on a sum that lies on it, is the rounded noisy sum: post-processing
of the Gaussian mechanism. So the known leak through the last bits of floating-point noise (Mironov,
2012) is closed; that noise is made of doubles, not of reals, remains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Whole numbers, or points in radii.
Doubles: TypeAlias = NDArray[np.float64]

#: Steps of the grid per radius.
RADIUS = 2.0**18
#: Steps per unit of a projection's entries.
UNIT = 2.0**15
#: So many squares of RADIUS add up to 2^52.
MOST_DIMENSIONS = 1 << 16


def on_grid(vectors: NDArray[np.floating], radius: float) -> Doubles:
    """Put vectors of at most `radius` on a grid of steps radius / RADIUS: whole numbers [n, d].

    Longer vectors are pulled back to the radius. The squares of a row's numbers sum up to at most
    RADIUS^2, exactly.

    Args:
        vectors: [n, d].
        radius: positive.

    Raises:
        ValueError: a number is not finite, or there are more than MOST_DIMENSIONS in a row.
    """
    if not np.isfinite(vectors).all():
        raise ValueError("a vector holds a number that is not finite")
    if vectors.shape[1] > MOST_DIMENSIONS:
        raise ValueError(f"vectors have {vectors.shape[1]} dimensions, more than {MOST_DIMENSIONS}")
    wide = vectors.astype(np.float64)
    # The largest component at most the radius, so that no square overflows what is exact.
    wide /= np.maximum(np.abs(wide).max(axis=1, keepdims=True, initial=0.0), radius)
    return within_radius(wide * RADIUS)


def within_radius(points: Doubles) -> Doubles:
    """Cut to whole numbers, and shorten longer rows to RADIUS [n, d].

    Both only ever shorten a row.
    """
    whole = np.trunc(points)
    squares = np.einsum("ij,ij->i", whole, whole)[:, None]
    # A little less than RADIUS, by more than the roundings here.
    shorter = RADIUS * (1 - 2.0**-40) / np.sqrt(np.maximum(squares, 1.0))
    return np.trunc(np.where(squares > RADIUS**2, whole * shorter, whole))


@dataclass(frozen=True)
class Projection:
    """Onto a random subspace, stretched so that lengths stay what they are on average; or nowhere.

    Attributes:
        rows: whole numbers [p, d] in steps of 1 / UNIT; None if vectors stay as they are.
    """

    rows: Doubles | None

    @classmethod
    def random(cls, dimensions: int, into: int, generator: np.random.Generator) -> Projection:
        """Draw a projection onto `into` dimensions without data; none unless that is fewer."""
        if into >= dimensions:
            return cls(None)
        basis = np.linalg.qr(generator.standard_normal((dimensions, into)))[0].T
        return cls(np.rint(basis * np.sqrt(dimensions / into) * UNIT))

    def apply(self, whole: Doubles) -> Doubles:
        """Project rows of `on_grid` [n, d] to such rows [n, p]."""
        if self.rows is None:
            return whole
        return within_radius(whole @ self.rows.T / UNIT)

    def lift(self, points: Doubles) -> Doubles:
        """Return points [k, p] back in the embeddings' space [k, d], in the subspace.

        A vector's part orthogonal to the subspace lies equally far from all of them, so a vector is
        nearest to the lifted point whose original is nearest to the vector's projection.
        """
        if self.rows is None:
            return points
        into, dimensions = self.rows.shape
        return np.asarray(points @ self.rows * (into / dimensions / UNIT))
