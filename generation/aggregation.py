"""One step from raw logits to what it samples from: clipping, truncation, mean or median, and the public support.

A batch is worked off in blocks of columns, on all cores: clipped, aggregated, forgotten. Logits on another device stay
there (`devices`) until the results, which are small, are moved. Every number is the plain definition's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.accounting import median_of, median_sides
from dpaudit.engines import cores
from dpaudit.generation import devices
from dpaudit.generation.cores import even_blocks, share_out
from dpaudit.generation.rows import column_sums, grid_shift, network, select
from dpaudit.runs import Mechanism

Floats: TypeAlias = NDArray[np.float32]
#: Raw logits [n, V]: an array or a tensor in float32, or a tensor in bfloat16; tensors on any device.
Logits: TypeAlias = Floats | torch.Tensor
#: Ids of the tokens to sample from, ascending: int [S]; None for the whole vocabulary.
Support: TypeAlias = NDArray[np.integer] | None

#: Values of a block. Small enough for a processor's cache; many enough that numpy's calls cost less than they do.
BLOCK = 1 << 20
LEAST_COLUMNS, MOST_COLUMNS = 4096, 16384
#: The columns of a block that need sorting are gathered where they are a smaller share of it than this.
GATHERED = 0.75


class Aggregated(NamedTuple):
    """A step before its draw.

    Attributes:
        central: float32 [2 width + n % 2, S], the central order statistics; None for the mean.
        aggregate: [S], what the step samples from: medians in float32, or means in float64.
        sides: uint8 [ceil(n / 8), S], on which side of the median each context lies (`median_sides`); None for means.
        holder: uint32 [S], for odd n the context that is the median; None for even n and for means.
    """

    central: Floats | None
    aggregate: NDArray[np.floating]
    sides: NDArray[np.uint8] | None = None
    holder: NDArray[np.uint32] | None = None


def aggregated(logits: Logits, support: Support, mechanism: Mechanism, width: int) -> Aggregated:
    """Clip, truncate, aggregate (Algorithm 1, lines 6 and 7). Generation, replay and attack all do it here.

    Args:
        logits: [n, V], n >= 0.
        support: the tokens to sample from. Columns are aggregated one by one, so this equals truncating the aggregate.
        mechanism: aggregator, clip, grid and divisor.
        width: central order statistics to keep on each side of the median.

    Raises:
        ValueError: see `clipped`.
    """
    if isinstance(logits, torch.Tensor) and logits.device.type != "cpu" and len(logits):
        return aggregated_by_torch(logits, support, mechanism, width)
    clipping = _clipping(logits, support, mechanism)
    if mechanism.divisor is not None:
        return Aggregated(None, _means(clipping, mechanism.divisor))
    medians = _Medians.empty(clipping, width)
    if len(clipping.logits):
        share_out(clipping.size, clipping.columns, medians.work)
    return Aggregated(medians.central, medians.aggregate, medians.sides, medians.holder)


def aggregated_by_torch(logits: torch.Tensor, support: Support, mechanism: Mechanism, width: int) -> Aggregated:
    """The same by torch on the tensor's own device, n >= 1."""
    clip = float(np.float32(mechanism.clip))
    values = devices.clip(logits, support, clip, mechanism.grid)
    if mechanism.divisor is not None:
        return Aggregated(None, devices.means(values, mechanism.divisor).cpu().numpy())
    there = devices.central_values(values, clip, width)
    sides, holder = devices.sides(values, there)
    central: Floats = there.cpu().numpy()
    held = None if holder is None else holder.cpu().numpy().astype(np.uint32)
    return Aggregated(central, median_of(central), sides.cpu().numpy(), held)


def clipped(logits: Logits, support: Support, mechanism: Mechanism) -> Floats:
    """Move each row's maximum to the clip c and cut at -c: max(-c, (l - max l) + c) (paper, section 3).

    Where the mechanism has a grid, the result is then rounded to its multiples, ties to the even ones.

    Args:
        logits: [n, V]; -inf marks tokens that a model rules out.
        support: the tokens to keep. Maxima are over all V.
        mechanism: clip, in logit units, and grid.

    Returns:
        float32 [n, S] in [-c, c]; over the whole vocabulary each row's maximum is exactly c.

    Raises:
        ValueError: a logit is NaN or +inf, or a row has no finite logit.
    """
    if isinstance(logits, torch.Tensor) and logits.device.type != "cpu" and len(logits):
        there = devices.clip(logits, support, float(np.float32(mechanism.clip)), mechanism.grid)
        values: Floats = there.cpu().numpy()
        return values
    clipping = _clipping(logits, support, mechanism)
    result = np.empty((len(clipping.logits), clipping.size), dtype=np.float32)

    def work(blocks: Iterator[slice]) -> None:
        for block in blocks:
            clipping.write(block, result[:, block])

    share_out(clipping.size, clipping.columns, work)
    return result


def top_tokens(logits: Floats, size: int) -> NDArray[np.int32]:
    """Ids of the `size` largest logits of a public prompt, ascending: int32 [size] from float32 [V]."""
    largest = np.argsort(-logits, kind="stable")[:size]
    return np.sort(largest).astype(np.int32)


@dataclass(frozen=True)
class _Clipping:
    """Raw logits and what clipping them takes.

    Attributes:
        logits: float32 [n, V].
        tops: float32 [n, 1], each row's maximum.
        support: the columns to keep.
        clip: c.
        shift: `grid_shift` of the mechanism's grid; None without one.
        columns: of a block; the same for all threads.
    """

    logits: Floats
    tops: Floats
    support: Support
    clip: np.float32
    shift: np.float32 | None
    columns: int

    @property
    def size(self) -> int:
        """S."""
        return self.logits.shape[1] if self.support is None else len(self.support)

    def write(self, block: slice, out: Floats) -> None:
        """Clipped values of some of the S columns, into `out` [n, columns]."""
        with np.errstate(over="ignore"):  # -inf is cut like any other low value
            if self.support is None:
                np.subtract(self.logits[:, block], self.tops, out=out)
            else:
                np.subtract(self.logits.take(self.support[block], axis=1), self.tops, out=out)
        out += self.clip
        # Numpy compares two rows faster than a row and a number.
        np.maximum(out, np.full(out.shape[1], -self.clip), out=out)
        if self.shift is not None:
            out += self.shift
            out -= self.shift


def _clipping(logits: Logits, support: Support, mechanism: Mechanism) -> _Clipping:
    """Raises ValueError where logits are no numbers."""
    array: Floats = logits.detach().to("cpu", torch.float32).numpy() if isinstance(logits, torch.Tensor) else logits
    tops = np.empty((len(array), 1), dtype=np.float32)

    def work(blocks: Iterator[slice]) -> None:
        for block in blocks:
            array[block].max(axis=1, keepdims=True, out=tops[block])  # NaN wins over every number

    share_out(len(array), max(len(array) // (4 * cores()), BLOCK // 16 // max(array.shape[1], 1), 1), work)
    if not np.isfinite(tops).all():
        raise ValueError(devices.NOT_FINITE)
    shift = None if mechanism.grid is None else np.float32(grid_shift(mechanism.grid))
    most = min(max(BLOCK // max(len(array), 1), LEAST_COLUMNS), MOST_COLUMNS)
    columns = even_blocks(array.shape[1] if support is None else len(support), LEAST_COLUMNS, most)
    return _Clipping(array, tops, support, np.float32(mechanism.clip), shift, columns)


@dataclass(frozen=True)
class _Medians:
    """Where blocks of columns leave their results; the arrays are those of `Aggregated`.

    Columns in which all central values lie at the floor keep what `empty` puts there.
    """

    clipping: _Clipping
    width: int
    central: Floats
    aggregate: Floats
    sides: NDArray[np.uint8]
    holder: NDArray[np.uint32] | None

    @classmethod
    def empty(cls, clipping: _Clipping, width: int) -> _Medians:
        """All central values at the floor; or, of no contexts, half of them there and half at the ceiling."""
        n, size, floor = len(clipping.logits), clipping.size, -clipping.clip
        central = np.full((2 * width + n % 2, size), floor)
        if not n:
            central[width:] = clipping.clip
        holder = np.zeros(size, dtype=np.uint32) if n % 2 else None
        return cls(clipping, width, central, median_of(central), np.zeros((-(-n // 8), size), np.uint8), holder)

    def work(self, blocks: Iterator[slice]) -> None:
        """Clip and sort, column by column."""
        n, most = len(self.clipping.logits), self.clipping.columns
        clipped, ordered, spare = (np.empty(rows * most, dtype=np.float32) for rows in (n, n, n // 2))
        for block in blocks:
            columns = block.stop - block.start
            values = clipped[: n * columns].reshape(n, columns)
            self.clipping.write(block, values)
            places: slice | NDArray[np.intp] = block
            moving = self._moving(values)
            if len(moving) < GATHERED * columns:
                columns, places = len(moving), block.start + moving
                values = values.take(moving, axis=1)
            if columns:
                rows = ordered[: n * columns].reshape(n, columns)
                np.copyto(rows, values)
                self._sort(rows, spare[: n // 2 * columns].reshape(n // 2, columns), values, places)

    def _moving(self, values: Floats) -> NDArray[np.intp]:
        """Columns with so many values above the floor that not all central ones lie there."""
        n = len(values)
        flags = (values > -self.clipping.clip).view(np.uint8)
        above = np.add.reduce(flags, axis=0, dtype=np.min_scalar_type(n))
        return np.flatnonzero(above > n // 2 - self.width)

    def _sort(self, rows: Floats, spare: Floats, values: Floats, places: slice | NDArray[np.intp]) -> None:
        """Put a block's results in their places: `rows`, a copy of `values`, are sorted."""
        n, clip = len(rows), self.clipping.clip
        first, last = n // 2 - self.width, n // 2 + self.width + n % 2
        select(rows, spare, network(n, max(first, 0), min(last, n)), np.minimum, np.maximum)
        central = np.empty((last - first, rows.shape[1]), dtype=np.float32)
        central[: max(-first, 0)] = -clip
        central[max(-first, 0) : n - first] = rows[max(first, 0) : min(last, n)]
        central[n - first :] = clip
        self.central[:, places] = central
        self.aggregate[places] = median_of(central)
        self.sides[:, places], holder = median_sides(values, central)
        if self.holder is not None:
            assert holder is not None, "an odd number of contexts has a median among them"
            self.holder[places] = holder


def _means(clipping: _Clipping, divisor: float) -> NDArray[np.float64]:
    """Sums over contexts over a fixed public divisor: float64 [S].

    In float32, or added up one by one, rounding could move a mean of many contexts by more than its guarantee allows
    for (`dpaudit.accounting.mean.ROUNDING`).
    """
    n, sums = len(clipping.logits), np.zeros(clipping.size)

    def work(blocks: Iterator[slice]) -> None:
        for block in blocks:
            values = np.empty((n, block.stop - block.start), dtype=np.float32)
            clipping.write(block, values)
            sums[block] = column_sums(values.astype(np.float64))

    if n:
        share_out(len(sums), clipping.columns, work)
    result: NDArray[np.float64] = sums / divisor
    return result
