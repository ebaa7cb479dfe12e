"""The component-wise median (the paper, section 4): its record, its bounds, and losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.mechanisms.claims import ClaimKind, ExPostClaim
from dpaudit.mechanisms.interfaces import (
    Aggregator,
    Arrays,
    Box,
    Contribution,
    Deviation,
    Doubles,
    Floats,
    Problem,
    Recomputed,
    ReducedSteps,
    StepArray,
    blocks,
    largest_absolute,
    log_probabilities,
)
from dpaudit.mechanisms.neighbors import ContextChange
from dpaudit.mechanisms.order_statistics import (
    are_central,
    bounds_from_central,
    central_order_statistics,
    fill_central,
    median_of,
    median_sides,
    median_sides_on_device,
    middle,
    movable,
    pack_bits,
)

if TYPE_CHECKING:
    from torch import Tensor

#: The columns that need sorting are gathered if they are a smaller share of all than this.
_GATHERED = 0.75
#: Which bits each byte sets, the highest first, as `numpy.packbits` packs them: float64 [256, 8].
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float64)


class Median(Aggregator):
    """The component-wise median, with sentinels at -clip and clip where contexts run out.

    A step records `central`, the central order statistics [2 width + n % 2, S]; `sides`, packed
    bits of the contexts that rank below the median [ceil(n / 8), S] (none for n = 0); and for odd n
    `holder` [S], the context that is it.
    """

    name: ClassVar[str] = "median"
    kinds: ClassVar[tuple[ClaimKind, ...]] = (ExPostClaim.id,)
    dtype: ClassVar[Literal["float32", "float64"]] = "float32"
    not_applicable: ClassVar[Mapping[str, str]] = {
        "mechanism.divisor": "mechanisms.median-undivided"
    }

    @override
    def arrays(self, contexts: int, width: int, clip: float) -> dict[str, StepArray]:
        found = {"central": StepArray("real", (2 * width + contexts % 2,), clip, ascending=True)}
        if contexts:
            found["sides"] = StepArray("|u1", (-(-contexts // 8),))
        if contexts % 2:
            found["holder"] = StepArray("<u4", largest=contexts - 1)
        return found

    @override
    def step(self, values: Floats, clip: float, width: int) -> Arrays:
        """Return the arrays. Columns whose central values all lie at the floor are not sorted."""
        n, columns = values.shape
        floor, described = values.dtype.type(-clip), self.arrays(n, width, clip)
        kept = described["central"].rows[0] // 2
        above = np.add.reduce((values > floor).view(np.uint8), axis=0, dtype=np.min_scalar_type(n))
        unsettled = np.flatnonzero(above > n // 2 - kept)
        if n and len(unsettled) >= _GATHERED * columns:
            return self._sorted(values, floor, kept)
        arrays: Arrays = {
            name: np.zeros(
                (*array.rows, columns), values.dtype if array.dtype == "real" else array.dtype
            )
            for name, array in described.items()
        }
        arrays["central"][:] = floor
        if not n:
            arrays["central"][kept:] = -floor
        elif len(unsettled):
            for name, array in self._sorted(values.take(unsettled, axis=1), floor, kept).items():
                arrays[name][..., unsettled] = array
        return arrays

    @override
    def step_on_device(self, values: Tensor, clip: float, width: int) -> Arrays:
        import torch

        n, columns = values.shape
        described = self.arrays(n, width, clip)["central"]
        central, spare = (
            values.new_empty((*described.rows, columns)),
            values.new_empty((n // 2, columns)),
        )
        fill_central(
            central, values.clone(), spare, -float(np.float32(clip)), torch.minimum, torch.maximum
        )
        sides, holder = self._sides_on_device(values, central)
        arrays: Arrays = {"central": central.cpu().numpy(), "sides": sides.cpu().numpy()}
        if holder is not None:
            arrays["holder"] = holder.cpu().numpy().astype(np.uint32)
        return arrays

    @override
    def aggregate(self, arrays: Arrays) -> Floats:
        return self._of(arrays["central"])

    @override
    def box(self, arrays: Arrays, change: ContextChange, clip: float) -> Box:
        return bounds_from_central(arrays["central"], change.relation, change.contexts)

    @override
    def movable(self, arrays: Arrays) -> NDArray[np.bool_]:
        """Return where central values differ: elsewhere every neighbour has the same median."""
        central = arrays["central"]
        # Whatever a corrupt record holds, other columns have one value each: NaN differs from
        # itself.
        moves: NDArray[np.bool_] = (central[1:] != central[:-1]).any(axis=0)
        return moves

    @override
    def width_for(self, change: ContextChange) -> int:
        return (change.half_steps + 2) // 2

    @override
    def losses(
        self, steps: ReducedSteps, contributions: Floats | None, contexts: int, temperature: float
    ) -> Doubles | None:
        """Return the losses, from the sides alone.

        A context that leaves takes its own row along, or else the lowest or the highest, as its
        side says (docs/mathematics.md, "Leave-one-out"). These are actual neighbours, and they
        bound no other.
        """
        central, holders, number = steps.arrays["central"], _holders(steps.arrays), len(steps.spans)
        if not contexts:
            return np.zeros((0, number))
        if (holders >= contexts).any():
            return None  # record.sides objects
        sides, tokens, spans, fixed = (
            steps.arrays["sides"],
            steps.tokens,
            steps.spans,
            steps.log_sums,
        )
        without_lower, without_upper = (
            steps.anchored(self._of(central[1:])),
            steps.anchored(self._of(central[:-1])),
        )
        largest = np.maximum(spans.largest(without_lower).astype(np.float64) / temperature, fixed)
        shift, of_step = spans.spread(largest), spans.spread(np.arange(number))
        base = np.exp(without_upper.astype(np.float64) / temperature - shift)
        # never negative
        gain = np.exp(without_lower.astype(np.float64) / temperature - shift) - base
        sums = (
            np.exp(fixed - largest)
            + spans.sums(base)
            + _sums_of_bits(sides, gain, of_step, number)[:contexts]
        )
        below = np.unpackbits(sides[:, tokens], axis=0, count=contexts).view(np.bool_)
        at_token = np.where(below, without_lower[tokens], without_upper[tokens]).astype(np.float64)
        for row, holder in enumerate(holders, middle(len(central), len(holders)).start):
            without_holder = steps.anchored(self._of(np.delete(central, row, axis=0)))
            held = np.exp(without_holder.astype(np.float64) / temperature - shift) - base
            place = holder.astype(np.intp) + of_step * contexts
            sums += (
                np.bincount(place, weights=held, minlength=number * contexts)
                .reshape(number, contexts)
                .T
            )
            at_token[holder[tokens], np.arange(number)] = without_holder[tokens]
        without: Doubles = at_token / temperature - largest - np.log(sums)
        return (
            log_probabilities(steps.anchored(self._of(central)), tokens, spans, temperature, fixed)
            - without
        )

    @override
    def range_problem(
        self, arrays: Arrays, contexts: int, contribution: Contribution
    ) -> Problem | None:
        central = arrays["central"]
        # A comparison with NaN is false, so this refuses NaN too.
        if (central[1:] >= central[:-1]).all():
            ends = central[:: len(central) - 1]  # in order, so all others lie between them
            return contribution.range_problem("central", ends)
        return contribution.range_problem("central", central) or Problem("mechanisms.not-ascending")

    @override
    def definition_problem(
        self, arrays: Arrays, contributions: Floats, width: int, contribution: Contribution
    ) -> Problem | None:
        if contribution.range_problem("contexts", contributions):
            return Problem("mechanisms.contexts-beyond-clip")
        kept = self.arrays(len(contributions), width, contribution.clip)["central"].rows[0] // 2
        central, clip = arrays["central"], contribution.clip
        if len(central) == 2 * kept + len(contributions) % 2 and all(
            are_central(central[:, columns], contributions[:, columns], clip)
            for columns in blocks(central.shape[1], len(contributions))
        ):
            return None
        return Problem("mechanisms.other-central-values")

    @override
    def sides_problem(
        self, arrays: Arrays, contributions: Floats | None, contexts: int, clip: float
    ) -> Problem | None:
        """Check the bits' counts, the holders of the middle, and the padding of small batches."""
        central, holders, n = arrays["central"], _holders(arrays), contexts
        padding = max(0, len(central) // 2 - n // 2)
        if padding and not (
            (central[:padding] == -clip).all() and (central[-padding:] == clip).all()
        ):
            return Problem("mechanisms.padding", {"contexts": n, "places": padding, "clip": clip})
        if not n:
            return None
        sides, moves, due = arrays["sides"], movable(central, len(holders)), (n - len(holders)) // 2
        # The smallest dtype that has all counts: numpy adds up bytes eight times as fast as words.
        counts = np.min_scalar_type(8 * len(sides))
        below = np.bitwise_count(sides).sum(axis=0, dtype=counts)
        if not (below == moves * counts.type(due)).all():
            return Problem("mechanisms.contexts-below", {"due": due})
        if n % 8 and (sides[-1] & (0xFF >> n % 8)).any():
            return Problem("mechanisms.mark-beyond-contexts", {"contexts": n})
        if (holders >= n).any() or holders[:, ~moves].any():
            return Problem("mechanisms.holder-out-of-place", {"last": n - 1})
        if any((_bits_at(sides, holder) & moves).any() for holder in holders):
            return Problem("mechanisms.holder-below")
        if len(holders) > 1:
            in_order = np.sort(holders[:, moves], axis=0)
            if (in_order[1:] == in_order[:-1]).any():
                return Problem("mechanisms.two-places")
        if contributions is not None and not all(
            _sides_fit(central[:, at], sides[:, at], holders[:, at], contributions[:, at])
            for at in blocks(central.shape[1], n)
        ):
            return Problem("mechanisms.sides-contradict-contexts")
        return None

    @override
    def with_context(self, arrays: Arrays, values: Doubles) -> Doubles:
        """Return the medians of the new order.

        The newcomer's value, clipped to each pair of neighbours.
        """
        central = arrays["central"]
        with_it: Floats = np.clip(values.astype(central.dtype), central[:-1], central[1:])
        return self._of(with_it).astype(np.float64)

    @override
    def deviation(self, arrays: Arrays, again: Recomputed) -> Deviation:
        """Compare the central values before they are rounded to a grid, and the sides.

        A value on a grid stands for all those that are rounded to it, so a coarse grid excuses no
        other.
        """
        central = arrays["central"]
        free = central_order_statistics(
            again.free, float(np.float32(again.contribution.clip)), len(central) // 2
        )
        gap = largest_absolute(central - free)  # NaN where a recorded value is
        difference = 0.0 if gap <= again.half else gap - again.half
        return Deviation(difference, _sides_deviation(arrays, again))

    @override
    def tolerance(self, again: Recomputed) -> float:
        """Return the values' own rounding: an order statistic is off by no more."""
        return again.rounding

    def _of(self, central: Floats) -> Floats:
        """Return the aggregate [S] of order statistics [rows, S] around the middle."""
        return median_of(central)

    def _sorted(self, values: Floats, floor: np.floating, kept: int) -> Arrays:
        """Return a step's arrays by sorting every column; n >= 1."""
        n, columns = values.shape
        central, spare = (
            np.empty((rows, columns), dtype=values.dtype) for rows in (2 * kept + n % 2, n // 2)
        )
        fill_central(central, values.copy(), spare, floor, np.minimum, np.maximum)
        sides, holder = self._sides(values, central)
        arrays: Arrays = {"central": central, "sides": sides}
        if holder is not None:
            arrays["holder"] = holder.astype(np.uint32, copy=False)
        return arrays

    def _sides(
        self, values: Floats, central: Floats
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint32] | None]:
        """Return which contexts rank below the middle, and which hold its places."""
        return median_sides(values, central)

    def _sides_on_device(self, values: Tensor, central: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the same from tensors."""
        return median_sides_on_device(values, central)


def _holders(arrays: Arrays) -> NDArray[np.integer]:
    """Return which context holds each place of the middle: [places, S], as many as recorded."""
    if "holder" in arrays:
        return np.atleast_2d(arrays["holder"])
    return np.zeros((0, arrays["central"].shape[1]), dtype=np.uint32)


def _sums_of_bits(
    packed: NDArray[np.uint8], weights: Doubles, of_step: NDArray[np.intp], number: int
) -> Doubles:
    """Return for each bit row of packed [r, columns] the sum of each step's weights at set bits.

    Weights [columns] are gathered by the bytes' values first, so that eight rows take one pass and
    no bit is unpacked. The sums do not go through BLAS, whose results may depend on the number of
    its threads.

    Args:
        packed: uint8 [r, columns].
        weights: float64 [columns].
        of_step: [columns] the step of each column.
        number: of steps.

    Returns:
        float64 [8 r, number].
    """
    places = (row.astype(np.intp) * number + of_step for row in packed)
    # Values first: their terms are added up one after another, for all rows and steps at once.
    terms = np.stack(
        [
            np.bincount(at, weights=weights, minlength=256 * number).reshape(256, number)
            for at in places
        ],
        axis=1,
    )
    sums: Doubles = np.einsum("vrs,vb->brs", terms, _BITS)
    return np.swapaxes(sums, 0, 1).reshape(-1, number)


def _sides_fit(
    central: Floats, sides: NDArray[np.uint8], holders: NDArray[np.integer], contributions: Floats
) -> bool:
    """Return whether the middle's places are their holders', and other contexts fit their sides."""
    inner, held = middle(len(central), len(holders)), holders.astype(np.intp)
    above = ~(contributions <= central[inner.start - 1])
    under = ~(contributions >= central[inner.stop])
    for flags in (above, under):
        np.put_along_axis(flags, held, False, axis=0)
    wrong = (sides & pack_bits(above)).any(axis=0) | (~sides & pack_bits(under)).any(axis=0)
    wrong |= (np.take_along_axis(contributions, held, axis=0) != central[inner]).any(axis=0)
    return not (wrong & movable(central, len(holders))).any()


def _sides_deviation(arrays: Arrays, again: Recomputed) -> Problem | None:
    """Return why holders or sides contradict the model's contributions, or None.

    A context that ranks below the median lies at or under the value below it, to within rounding;
    and so on.
    """
    if "sides" not in arrays:
        return None
    central, held, free = arrays["central"], _holders(arrays).astype(np.intp), again.free
    inner, rounding, moves = (
        middle(len(central), len(held)),
        again.rounding + again.half,
        movable(central, len(held)),
    )
    if (held >= len(free)).any():
        return Problem("mechanisms.holder-absent")
    if (
        not largest_absolute((np.take_along_axis(free, held, axis=0) - central[inner])[:, moves])
        <= rounding
    ):
        return Problem("mechanisms.other-holder")
    below = np.unpackbits(arrays["sides"], axis=0, count=len(free)).view(np.bool_)
    above = ~below
    np.put_along_axis(above, held, False, axis=0)
    wrong = below & ~(free <= central[inner.start - 1] + rounding)
    wrong |= above & ~(free >= central[inner.stop] - rounding)
    wrong &= moves
    if wrong.any():
        return Problem("mechanisms.other-sides", {"sides": int(np.count_nonzero(wrong))})
    return None


def _bits_at(packed: NDArray[np.uint8], rows: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return each column's bit at one row: uint8 [S] from packed [ceil(n / 8), S] and rows [S]."""
    octets = np.take_along_axis(packed, (rows >> 3)[None].astype(np.intp), axis=0)[0]
    bits: NDArray[np.uint8] = octets >> (7 - (rows & 7)).astype(np.uint8) & 1
    return bits
