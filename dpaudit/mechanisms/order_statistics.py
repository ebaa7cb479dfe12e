"""Component-wise medians, the values around them, and bounds on a neighbour's median.

Every component is treated as sorted between infinitely many values -clip below and +clip above, so
any number of contexts n >= 0 has a median (0 for n = 0) and two neighbours, and no minimum batch
size is needed.

Midpoints are computed in the values' own dtype, as the mechanism does. Rounding is monotone, so the
bounds hold for the rounded medians of actual neighbours too, not only for real numbers.

Many columns are sorted at once by a network (Batcher's merge exchange; Knuth, The Art of Computer
Programming 3, 5.2.2, algorithm M): it compares the same rows whatever they hold, so one call
compares them in thousands of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.interfaces import Floats
from dpaudit.mechanisms.neighbors import HALF_STEPS, Relation

if TYPE_CHECKING:
    from torch import Tensor

#: Which bounds on a neighbouring median: the tight ones, or those of the paper's Theorem 1.
Definition: TypeAlias = Literal["tight", "theorem1"]
#: Numpy's arrays or torch's tensors, [n, columns].
Rows: TypeAlias = Any

#: The bits of a byte, the first row's highest, as `numpy.packbits` packs them: [8, 1].
_WEIGHTS = (1 << np.arange(7, -1, -1)).astype(np.uint8)[:, None]


def central_order_statistics(values: Floats, clip: float, width: int = 2) -> Floats:
    """Return the order statistics around each component's median.

    Args:
        values: [..., n, S] clipped logits in [-clip, clip], n >= 0; leading axes are steps.
        clip: the clip c, which also pads where there are too few contexts.
        width: how many values to keep on each side of the median.

    Returns:
        [..., 2 * width + n % 2, S] ascending along the last axis but one, in the dtype of `values`.

    Raises:
        ValueError: a value is NaN or outside [-clip, clip], or clip is not positive.
    """
    *steps, n, size = values.shape
    if not clip > 0:
        raise ValueError(f"clip must be positive, not {clip}")
    # Written so that a NaN, which both extremes pass on, is refused.
    if values.size and not (-clip <= values.min() and values.max() <= clip):
        raise ValueError(f"values must be numbers in [-{clip:g}, {clip:g}]: clip them first")
    # Sorting contiguous rows lets numpy use its vectorised sort; along the contexts' axis it would
    # not.
    ordered = np.sort(np.ascontiguousarray(np.swapaxes(values, -1, -2)), axis=-1)
    padding = np.full((*steps, size, width), clip, dtype=values.dtype)
    padded = np.concatenate([-padding, ordered, padding], axis=-1)
    start = n // 2
    return np.ascontiguousarray(np.swapaxes(padded[..., start : start + 2 * width + n % 2], -1, -2))


def are_central(central: Floats, values: Floats, clip: float) -> bool:
    """Return whether rows are the `central_order_statistics` of values, without sorting these.

    A number has a rank, counted from 0, where no more values than the rank are below it, and more
    than the rank are not above it. NaN has none.

    Args:
        central: [2 * width + n % 2, S].
        values: [n, S] clipped logits, none of them NaN.
        clip: the clip c.
    """
    n = len(values)
    kind = np.min_scalar_type(n)

    def count(flags: NDArray[np.bool_]) -> NDArray[np.unsignedinteger]:
        # numpy adds up bytes many times as fast as words
        counts: NDArray[np.unsignedinteger] = np.add.reduce(flags.view(np.uint8), dtype=kind)
        return counts

    for rank, row in enumerate(central, start=n // 2 - len(central) // 2):
        if 0 <= rank < n:
            right = (count(values < row) <= rank) & (count(values <= row) > rank)
        else:
            right = row == (-clip if rank < 0 else clip)
        if not right.all():
            return False
    return True


def median_of(central: Floats) -> Floats:
    """Return the median [..., S] of central order statistics [..., 2w + n % 2, S].

    A step samples from it.
    """
    return _value_at(central, central.shape[-2] + 1)


def bounds_from_central(
    central: Floats, relation: Relation, group: int = 1, *, definition: Definition = "tight"
) -> tuple[Floats, Floats, Floats]:
    """Return bounds on the median of every neighbouring batch.

    Source: docs/mathematics.md, "Neighbouring medians".

    Args:
        central: [..., 2w + n % 2, S] central order statistics, ascending.
        relation: whether `group` contexts are added or removed, or replaced.
        group: number of contexts that differ.
        definition: "theorem1" gives the paper's left and right median, to reproduce its figures:
            never tighter than the others, and no bound at all for a replaced context when n is
            even.

    Returns:
        (lower, center, upper), each [..., S] in the dtype of `central`.

    Raises:
        ValueError: `central` keeps too few values for this group, or the paper's definition does
            not hold.
    """
    rows = central.shape[-2]
    place = rows + 1
    reach = (
        _paper_reach(rows, relation, group)
        if definition == "theorem1"
        else HALF_STEPS[relation] * group
    )
    if group < 1 or place - reach < 2:
        raise ValueError(
            f"{rows} central values do not bound a {relation} of {group} context(s): record a "
            "larger width"
        )
    return (
        _value_at(central, place - reach),
        _value_at(central, place),
        _value_at(central, place + reach),
    )


def _paper_reach(rows: int, relation: Relation, group: int) -> int:
    """Return the half places from the median to the paper's left and right median.

    Those are the values next to it, for odd and even n.
    """
    if group != 1:
        raise ValueError(f"the paper's Theorem 1 covers one context, not {group}")
    if rows % 2 == 0 and relation == "replace":
        raise ValueError(
            "the paper's Theorem 1 does not hold for a replaced context when the number of "
            "contexts is even: "
            "the neighbour's median can lie beyond the two middle values"
        )
    return 1 + rows % 2


def median_bounds(
    values: Floats,
    relation: Relation = "add_remove",
    *,
    clip: float,
    group: int = 1,
    definition: Definition = "tight",
) -> tuple[Floats, Floats, Floats]:
    """Return bounds on the median of every batch that neighbours `values` [..., n, V].

    Args:
        values: clipped logits; leading axes are steps.
        relation: as for `bounds_from_central`, like group and definition.
        clip: the clip c.
        group: see there.
        definition: see there.

    Returns:
        (lower, center, upper), each [..., V].

    Raises:
        ValueError: a value is NaN or outside [-clip, clip], `group` is below 1, or the paper's
            definition does not hold here.
    """
    width = max(1, (HALF_STEPS[relation] * group + 2) // 2)
    return bounds_from_central(
        central_order_statistics(values, clip, width), relation, group, definition=definition
    )


def middle(rows: int, held: int) -> slice:
    """Return the slice of the `held` rows in the middle of `rows`; both are even, or both odd."""
    half = rows // 2
    return slice(half - held // 2, half + (held + 1) // 2)


def movable(central: Floats, held: int | None = None) -> NDArray[np.bool_]:
    """Return the columns in which removing one context can move the aggregate: bool [S].

    Elsewhere the values beside the middle are equal, and it stays whichever context goes.

    Args:
        central: [2w + n % 2, S] central values, ascending.
        held: how many places in the middle matter one by one; for a median, and by default, n % 2.
    """
    inner = middle(len(central), len(central) % 2 if held is None else held)
    moves: NDArray[np.bool_] = central[inner.start - 1] != central[inner.stop]
    return moves


def median_sides(
    values: Floats, central: Floats
) -> tuple[NDArray[np.uint8], NDArray[np.uint32] | None]:
    """Return the side of the median on which each context lies.

    Leave-one-out needs this beside the central values.

    Args:
        values: [n, S] clipped logits.
        central: [2w + n % 2, S] their central order statistics.

    Returns:
        sides: uint8 [ceil(n / 8), S], a bit for each context as `numpy.packbits(axis=0)` packs
            them: set for the floor(n / 2) contexts that rank below the median. Ties go to lower
            indices.
        holder: for odd n the index [S] of the context that is the median, else None.
        Both are 0 where no removal moves the median (`movable`).
    """
    n, half, moves = len(values), central.shape[0] // 2, movable(central)
    if n % 2 == 0:
        below, holder = values <= central[half - 1], None
    else:
        below, holder = _rank_at_median(values, central[half], moves)
        holder = np.where(moves, holder, np.uint32(0))
    packed = pack_bits(below)
    packed *= moves.view(np.uint8)
    return packed, holder


def held_places(
    values: Floats, central: Floats, held: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Return the contexts that rank below the middle places, and those that hold the places.

    It is `median_sides` for more than one place in the middle.

    Args:
        values: [n, S] contributions, n >= 1.
        central: [2w + n % 2, S] their central order statistics.
        held: number of places, as even or odd as n, and at most n.

    Returns:
        sides: uint8 [ceil(n / 8), S], bits of the (n - held) / 2 contexts that rank below. Ties go
            to lower indices.
        holders: [held, S] indices of the contexts that hold the places, by their ranks.
        Both are 0 where no removal moves the aggregate (`movable`).
    """
    (n, size), first = values.shape, (len(values) - held) // 2
    columns = np.flatnonzero(movable(central, held))
    ranked = np.argsort(values.T[columns], axis=1, kind="stable").T
    below, holders = np.zeros((n, size), dtype=np.bool_), np.zeros((held, size), dtype=np.uint32)
    below[ranked[:first], columns] = True
    holders[:, columns] = ranked[first : first + held]
    return pack_bits(below), holders


def median_sides_on_device(values: Tensor, central: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return `median_sides` by torch, bit for bit, with the holder as int64."""
    import torch

    n, half, odd = len(values), len(central) // 2, len(central) % 2
    moves = central[half - 1] != central[half + odd]
    below, holder = values <= central[half - 1], None
    if odd:
        below, tied = values < central[half], values == central[half]
        wanted = n // 2 - below.sum(dim=0)
        rank = tied.cumsum(dim=0, dtype=torch.int32)
        below |= tied & (rank <= wanted)
        holder = (tied & (rank == wanted + 1)).to(torch.uint8).argmax(dim=0) * moves
    return _pack_bits_on_device(below & moves), holder


def held_places_on_device(values: Tensor, central: Tensor, held: int) -> tuple[Tensor, Tensor]:
    """Return `held_places` by torch, with the holders as int64."""
    import torch

    inner, first = middle(len(central), held), (len(values) - held) // 2
    moves = central[inner.start - 1] != central[inner.stop]
    # Devices may order -0.0 before 0.0, which are equal to numpy; the sum is 0.0 for both.
    ranked = torch.argsort(values + 0.0, dim=0, stable=True)
    below = torch.zeros_like(values, dtype=torch.bool).scatter_(0, ranked[:first], True)
    return _pack_bits_on_device(below & moves), ranked[first : first + held] * moves


def _pack_bits_on_device(flags: Tensor) -> Tensor:
    import torch

    n, columns = flags.shape
    bits = flags.new_zeros((-(-n // 8) * 8, columns), dtype=torch.uint8)
    bits[:n] = flags
    weights = torch.as_tensor(_WEIGHTS, device=flags.device)
    return (bits.view(-1, 8, columns) * weights).sum(dim=1, dtype=torch.uint8)


def _rank_at_median(
    values: Floats, median: Floats, moves: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.unsignedinteger]]:
    """Return which values [n, S] rank below the median [S], and which one is it, for odd n.

    It is right where `moves` is set.
    """
    n = len(values)
    kind = np.min_scalar_type(n)
    below, tied = values < median, values == median
    if ((np.add.reduce(tied.view(np.uint8), axis=0, dtype=kind) > 1) & moves).any():
        wanted = (n // 2 - np.add.reduce(below.view(np.uint8), axis=0, dtype=kind)).astype(kind)
        rank = tied.astype(kind)
        for row in range(1, n):
            rank[row] += rank[row - 1]
        below |= tied & (rank <= wanted)
        tied &= rank == wanted + 1
    holder = np.maximum.reduce(tied.view(np.uint8) * np.arange(n, dtype=kind)[:, None], axis=0)
    return below, holder


def pack_bits(flags: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return `numpy.packbits(flags, axis=0)`, in less time: it sums whole rows."""
    n, size = flags.shape
    rows = -(-n // 8)
    bits = np.zeros((rows, 8, size), dtype=np.uint8)
    np.copyto(bits.reshape(8 * rows, size)[:n], flags)
    bits *= _WEIGHTS
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(bits, axis=1)
    return packed


def _value_at(central: Floats, position: int) -> Floats:
    """Return the value at a position counted in half places.

    2 is the first row, 3 the midpoint of the first two rows.
    """
    row = position // 2 - 1
    value: Floats = central[..., row, :]
    if position % 2:
        value = (central[..., row, :] + central[..., row + 1, :]) * central.dtype.type(0.5)
    return value


class Exchange(NamedTuple):
    """One comparison of a sorting network.

    Rows `lower` are compared with as many rows `upper`; `smaller` and `larger` say which results
    are needed.
    """

    lower: slice
    upper: slice
    smaller: bool
    larger: bool


@cache
def network(n: int, first: int, last: int) -> tuple[Exchange, ...]:
    """Return the exchanges that put rows first .. last - 1 of n sorted rows into place.

    Other rows end up in no order.
    """
    wanted = set(range(first, last))
    stages: list[list[Exchange]] = []
    for bit, parity, distance in reversed(list(_stages(n))):
        rows = [row for row in range(n - distance) if row & bit == parity]
        stage, touched = list[Exchange](), list[int]()
        for needed in ((True, True), (True, False), (False, True)):
            alike = [row for row in rows if (row in wanted, row + distance in wanted) == needed]
            # They come in runs of `bit`, twice as far apart: take runs, or all first rows of runs,
            # all second ones ...
            for low in min((_progressions(alike, step) for step in (1, 2 * bit)), key=len):
                stage.append(
                    Exchange(
                        low, slice(low.start + distance, low.stop + distance, low.step), *needed
                    )
                )
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
        spare: [at least n // 2, columns], of the same kind, for what lies between; its contents are
            lost.
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


def fill_central(
    central: Rows,
    rows: Rows,
    spare: Rows,
    floor: Any,
    minimum: Callable[..., object],
    maximum: Callable[..., object],
) -> None:
    """Write central order statistics [2 width + n % 2, columns] of rows [n, columns], n >= 1.

    The rows end up in no order. Where rows run out, sentinels at the floor and at its negative take
    their places. The rest is as for `select`.
    """
    n = len(rows)
    first = n // 2 - len(central) // 2
    start, stop = max(first, 0), min(first + len(central), n)
    select(rows, spare, network(n, start, stop), minimum, maximum)
    central[: start - first] = floor
    central[start - first : n - first] = rows[start:stop]
    central[n - first :] = -floor


def _stages(n: int) -> Iterator[tuple[int, int, int]]:
    """Yield (p, r, d): row i is compared with row i + d where i & p == r.

    Within a stage no row occurs twice.
    """
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
    """Return ascending rows as slices of this step, as long as they go."""
    left, found = set(rows), []
    for row in rows:
        if row in left:
            stop = row
            while stop in left:
                left.remove(stop)
                stop += step
            found.append(slice(row, stop - step + 1, step))
    return found
