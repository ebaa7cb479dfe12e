"""The middle values of many columns at once, by a sorting network, for numpy's arrays and torch's tensors alike.

A sorting network (Batcher's merge exchange; Knuth, The Art of Computer Programming 3, 5.2.2, algorithm M) compares the
same rows whatever they hold, so that one call compares them in thousands of columns. Comparisons that cannot reach the
rows that are asked for are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Numpy's arrays or torch's tensors, [n, columns].
Rows: TypeAlias = Any


class Exchange(NamedTuple):
    """Rows, as many rows further on that each of them is compared with, and which of the two results are needed."""

    lower: slice
    upper: slice
    smaller: bool
    larger: bool


@cache
def network(n: int, first: int, last: int) -> tuple[Exchange, ...]:
    """The exchanges that put rows first .. last - 1 of n sorted rows into place; others end up in no order."""
    wanted = set(range(first, last))
    stages: list[list[Exchange]] = []
    for bit, parity, distance in reversed(list(_stages(n))):
        rows = [row for row in range(n - distance) if row & bit == parity]
        stage, touched = list[Exchange](), list[int]()
        for needed in ((True, True), (True, False), (False, True)):
            alike = [row for row in rows if (row in wanted, row + distance in wanted) == needed]
            # They come in runs of `bit`, twice as far apart: take runs, or all first rows of runs, all second ones ...
            for low in min((_progressions(alike, step) for step in (1, 2 * bit)), key=len):
                stage.append(Exchange(low, slice(low.start + distance, low.stop + distance, low.step), *needed))
            touched += alike
        wanted.update(touched, (row + distance for row in touched))
        stages.append(stage)
    return tuple(exchange for stage in reversed(stages) for exchange in stage)


def select(
    rows: Rows,
    spare: Rows,
    exchanges: Iterable[Exchange],
    minimum: Callable[..., object],
    maximum: Callable[..., object],
) -> None:
    """Sort the columns of rows [n, columns] in place, as far as `exchanges` go.

    Args:
        rows: what to sort.
        spare: [at least n // 2, columns], of the same kind, for what lies between; its contents are lost.
        exchanges: of `network`.
        minimum, maximum: numpy's or torch's.
    """
    for lower, upper, smaller, larger in exchanges:
        low, high = rows[lower], rows[upper]
        if not larger:
            minimum(low, high, out=low)
        elif not smaller:
            maximum(low, high, out=high)
        else:
            kept = spare[: len(low)]
            minimum(low, high, out=kept)
            maximum(low, high, out=high)
            low[...] = kept


def central_rows(rows: NDArray[np.floating], floor: np.floating, width: int) -> NDArray[np.floating]:
    """Central order statistics [2 width + n % 2, columns] of rows [n, columns], n >= 1, which are left in no order.

    Where rows run out, sentinels at the floor and at its negative take their places.
    """
    n, columns = rows.shape
    first, last = n // 2 - width, n // 2 + width + n % 2
    spare = np.empty((n // 2, columns), dtype=rows.dtype)
    select(rows, spare, network(n, max(first, 0), min(last, n)), np.minimum, np.maximum)
    central = np.empty((last - first, columns), dtype=rows.dtype)
    central[: max(-first, 0)] = floor
    central[max(-first, 0) : n - first] = rows[max(first, 0) : min(last, n)]
    central[n - first :] = -floor
    return central


def _stages(n: int) -> Iterator[tuple[int, int, int]]:
    """(p, r, d): row i is compared with row i + d where i & p == r. Within a stage no row occurs twice."""
    top = 1 << (n - 1).bit_length() >> 1 if n > 1 else 0
    bit = top
    while bit:
        merged, parity, distance = top, 0, bit
        while True:
            yield bit, parity, distance
            if merged == bit:
                break
            merged, parity, distance = merged // 2, bit, merged - bit
        bit //= 2


def _progressions(rows: list[int], step: int) -> list[slice]:
    """Ascending rows as slices of this step, as long as they go."""
    left, found = set(rows), []
    for row in rows:
        if row in left:
            stop = row
            while stop in left:
                left.remove(stop)
                stop += step
            found.append(slice(row, stop - step + 1, step))
    return found
