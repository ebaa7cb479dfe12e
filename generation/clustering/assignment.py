"""The nearest centre of each vector, exactly, in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.generation.threads import share_out

#: Scores that a core has around at a time.
_SCORES = 2**20
#: Coordinates that are compared in float64 at a time.
_COORDINATES = 2**18
#: Unit roundoffs, and what is lost at most to numbers that are too small to be written down.
_SINGLE, _DOUBLE, _UNDERFLOW = 2.0**-24, 2.0**-53, 2.0**-100
#: Products beyond it could leave float32.
_LARGEST = 2.0**126


def nearest(vectors: Vectors, centers: Vectors) -> NDArray[np.int32]:
    """Return the index of each vector's nearest centre, by Euclidean distance.

    Of equally near centres it is the lowest. Nearest means: by squared distances that are summed up
    in float64, in an order that the number of dimensions fixes. A matrix product in float32 only
    rules out centres that rounding cannot have made look far. So a vector's centre is a function of
    that vector and the centres, bit for bit: no record's arrival moves another one to another
    cluster, which is what the sensitivity of counts rests on. Centres whose squared distances
    differ by less than (d + 2) 2^-52 of their size may change places.

    Args:
        vectors: float32 [n, d], a memory-mapped array too.
        centers: float32 [k, d].

    Returns:
        int32 [n].

    Raises:
        ValueError: there is no centre, dimensions differ, a number is not finite, or vectors are
            longer than 2^62.
    """
    return _Search(centers).nearest(vectors)


def nearest_of(
    vectors: Vectors, centers: Vectors, allowed: NDArray[np.integer]
) -> NDArray[np.int32]:
    """Return the nearest of the centres at `allowed`, in any order, as indices into `centers` [n].

    See `nearest`.
    """
    kept = np.unique(allowed).astype(np.int32)
    return kept[nearest(vectors, centers[kept])]


class _Search:
    """A search for nearest centres.

    A score is half of a squared distance, less half of the vector's own square.
    """

    def __init__(self, centers: Vectors) -> None:
        if centers.ndim != 2 or not len(centers):
            raise ValueError(
                f"centres must be [k, d] with k of at least 1, not {list(centers.shape)}"
            )
        self._centers = np.ascontiguousarray(centers, dtype=np.float32)
        half_squares = 0.5 * _squares(self._centers)
        self._longest = float(np.sqrt(2 * half_squares.max()))
        with np.errstate(over="ignore"):  # found by `_margins`
            self._weights = np.vstack([-self._centers.T, half_squares.astype(np.float32)])

    def nearest(self, vectors: Vectors) -> NDArray[np.int32]:
        """Return the index of each vector's nearest centre, int32 [n]."""
        count, dimensions = self._centers.shape
        if vectors.ndim != 2 or vectors.shape[1] != dimensions:
            raise ValueError(f"vectors must be [n, {dimensions}], not {list(vectors.shape)}")
        found = np.empty(len(vectors), dtype=np.int32)
        rows = max(1, min(_SCORES // max(count, dimensions + 1), len(vectors)))

        def work(blocks: Iterator[slice]) -> None:
            points = np.ones((rows, dimensions + 1), dtype=np.float32)
            scores = np.empty((rows, count), dtype=np.float32)
            for block in blocks:
                size = block.stop - block.start
                points[:size, :-1] = vectors[block]
                found[block] = self._nearest(points[:size], scores[:size])

        # A block a core is faster than a product that all cores share.
        with _thread_pools().limit(limits=1, user_api="blas"):
            share_out(len(vectors), rows, work)
        return found

    def _nearest(self, points: Vectors, scores: Vectors) -> NDArray[np.int64]:
        """Return nearest centres of points [m, d + 1], each ending in a 1.

        `scores` [m, k] is room to compute in.
        """
        margins = self._margins(points[:, :-1])
        np.matmul(points, self._weights, out=scores)
        limits = np.nextafter((scores.min(axis=1) + margins).astype(np.float32), np.float32(np.inf))
        rows, columns = np.divmod(np.flatnonzero(scores <= limits[:, None]), scores.shape[1])
        # every row has its lowest score at least
        starts = np.flatnonzero(np.diff(rows, prepend=-1))
        found: NDArray[np.int64] = columns[starts]
        close = (np.diff(starts, append=len(rows)) > 1)[rows]
        if close.any():
            near, at = self._nearest_of_close(points, rows[close], columns[close])
            found[near] = at
        return found

    def _margins(self, points: Vectors) -> NDArray[np.float64]:
        """Return how far above the lowest score the nearest centre's may lie.

        A dot product of m terms in float32, in whatever order and with or without fused steps, is
        wrong by at most m u / (1 - m u) of the product of the lengths (Higham: Accuracy and
        Stability of Numerical Algorithms, section 3.1). Two scores may be wrong; and a squared
        distance in float64 is wrong in the same way.
        """
        lengths = np.sqrt(_squares(points))
        farthest = (lengths + self._longest) ** 2
        if not bool((farthest < _LARGEST).all()):
            raise ValueError("vectors and centres must be finite, and shorter than 2^62")
        sizes = lengths * self._longest + 0.5 * self._longest**2
        terms = points.shape[1] + 4
        single, double = (terms * unit / (1 - terms * unit) for unit in (_SINGLE, _DOUBLE))
        margins: NDArray[np.float64] = 2 * single * sizes + double * farthest + _UNDERFLOW
        return margins

    def _nearest_of_close(
        self, points: Vectors, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the points of ascending pairs (point, centre), and the nearest centre of each."""
        distances = np.empty(len(rows), dtype=np.float64)
        step = max(1, _COORDINATES // self._centers.shape[1])
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            apart = (
                points[rows[part], :-1].astype(np.float64, order="C") - self._centers[columns[part]]
            )
            distances[part] = np.square(apart, out=apart).sum(axis=1)
        starts = np.flatnonzero(np.diff(rows, prepend=-1))
        least = np.repeat(np.minimum.reduceat(distances, starts), np.diff(starts, append=len(rows)))
        nearest_pairs = np.flatnonzero(distances == least)
        near, first = np.unique(rows[nearest_pairs], return_index=True)
        return near, columns[nearest_pairs[first]]


@cache
def _thread_pools() -> ThreadpoolController:
    """Return the thread pools of numpy's libraries.

    Looking for them takes longer than a small search.
    """
    return ThreadpoolController()


def _squares(vectors: Vectors) -> NDArray[np.float64]:
    """Return squared lengths: float64 [n]."""
    squares: NDArray[np.float64] = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    return squares
