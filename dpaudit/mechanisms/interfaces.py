"""The parts of a mechanism: contributions of contexts, and aggregators of contributions.

A new part is a file with a class, and a line in `dpaudit.mechanisms.mechanism` or an entry point
(`dpaudit.plugins`). Nothing outside this package asks which part a run has: the objects answer
where they differ.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dpaudit.mechanisms.claims import ClaimKind, ExPostClaim
from dpaudit.mechanisms.neighbors import ContextChange

if TYPE_CHECKING:
    from torch import Tensor


Floats: TypeAlias = NDArray[np.floating]
Doubles: TypeAlias = NDArray[np.float64]
Real = TypeVar("Real", bound=np.floating[Any])
#: A step's arrays by name, each [..., S] with a column for each token of the support.
Arrays: TypeAlias = dict[str, NDArray[Any]]
#: lower, center and upper: the box [..., S] of neighbouring aggregates, and the aggregate that was
#: sampled from.
Box: TypeAlias = tuple[Floats, Floats, Floats]


class Spans:
    """The columns of each of k steps, in arrays that hold all steps' columns one after another.

    What is worked out of a step's columns is the same bits as if the step were looked at alone.

    Attributes:
        lengths: [k] how many columns each step has; perhaps none.
        starts, ends: [k] the first of them, and the first behind them.
    """

    def __init__(self, lengths: Iterable[int]) -> None:
        self.lengths = np.array(
            lengths if isinstance(lengths, np.ndarray) else list(lengths), dtype=np.intp
        )
        self.ends = np.cumsum(self.lengths)
        self.starts = self.ends - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def slices(self) -> list[slice]:
        """The columns of each step, as slices."""
        return [slice(*ends) for ends in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]

    def sums(self, values: NDArray[Real]) -> NDArray[Real]:
        """Return [..., k] of values [..., columns], in their dtype; 0 of a step without columns.

        Numpy adds up each step's contiguous values by halves, whatever stands beside them.
        """
        return self._reduced(np.add, values)

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return [..., k] the largest of each step's values [..., columns], NaN where one is.

        It is 0 of a step without columns, as is the smallest.
        """
        return self._reduced(np.maximum, values)

    def smallest(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return [..., k] the smallest, likewise."""
        return self._reduced(np.minimum, values)

    def _reduced(self, operation: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any]
        if self._filled.all():
            found = operation.reduceat(values, self.starts, -1)
            return found
        found = np.zeros((*values.shape[:-1], len(self)), dtype=values.dtype)
        if self._filled.any():  # steps without columns have none to take from others
            found[..., self._filled] = operation.reduceat(values, self.starts[self._filled], -1)
        return found

    def counts(self, flags: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return [..., k] in how many columns each step is flagged, of flags [..., columns]."""
        return self._reduced(np.add, flags.astype(np.intp))

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return [..., columns] each step's value, of [..., k], in all of its columns."""
        if len(self) == 1:
            return np.broadcast_to(values, (*values.shape[:-1], int(self.lengths[0])))
        return np.repeat(values, self.lengths, axis=-1)

    def padded(self, values: NDArray[Real], filling: float) -> NDArray[Real]:
        """Return [k, S] of values [columns]: a row for each step, filled up to the longest."""
        found = np.full(self._there.shape, filling, dtype=values.dtype)
        found[self._there] = values
        return found

    def unpadded(self, rows: NDArray[Real]) -> NDArray[Real]:
        """Undo `padded`."""
        found: NDArray[Real] = rows[self._there]
        return found

    def totals(self, values: Doubles) -> Doubles:
        """Return [columns] the sums of each step's values up to each of them, of [columns]."""
        return self.unpadded(np.cumsum(self.padded(values, 0.0), axis=-1))

    @cached_property
    def _filled(self) -> NDArray[np.bool_]:
        """[k] which steps have columns."""
        return self.lengths > 0

    @cached_property
    def _there(self) -> NDArray[np.bool_]:
        """[k, S] which places of each step's padded row are columns."""
        return np.arange(self.lengths.max()) < self.lengths[:, None]


class ReducedSteps(NamedTuple):
    """Steps less the columns that no neighbour can move, one behind another.

    In a large vocabulary most columns lie at the floor of the clip in nearly all contexts, and a
    median stays there whatever one neighbour does. The sum of their exponentials is worked out once
    and stands for them in the log-sum-exp of the aggregate, of its bounds, and of every batch less
    one context.

    Attributes:
        arrays: [..., M] the steps' arrays in the columns that are left: those that can move, and
            the tokens'.
        tokens: [k] the tokens' columns.
        spans: which columns each step has.
        log_sums: [k] logarithm of the sum of exp(value / tau) over each step's other columns; -inf
            if there are none.
        columns: [k] how many these are.
        largest: [k] the largest absolute value among them.
    """

    arrays: Arrays
    tokens: NDArray[np.intp]
    spans: Spans
    log_sums: Doubles
    columns: NDArray[np.intp]
    largest: Doubles

    @classmethod
    def whole(cls, arrays: Arrays, tokens: NDArray[np.intp], spans: Spans) -> ReducedSteps:
        """Return steps with all their columns."""
        nothing = np.zeros(len(spans))
        none = np.full(len(spans), -np.inf)
        return cls(arrays, tokens, spans, none, nothing.astype(np.intp), nothing)

    def anchored(self, aggregate: Floats) -> Floats:
        """Return what is sampled from, [M], with aggregated contributions [M] in these columns."""
        return with_anchor(self.arrays, aggregate)


#: The name of a step's anchor, which is added to its aggregated contributions.
ANCHOR = "anchor"
#: Logits at or below this belong to tokens that a model or a rule excludes.
MASKED = -1e30


def with_anchor(arrays: Arrays, aggregate: Floats) -> Floats:
    """Return aggregated contributions [S] plus a step's anchor, in float64.

    Without an anchor they are returned unchanged. Rounding is monotone, so bounds stay in order.
    """
    if ANCHOR not in arrays:
        return aggregate
    total: Floats = arrays[ANCHOR].astype(np.float64) + aggregate
    return total


def log_sums_exp(values: Floats, spans: Spans, temperature: float) -> Doubles:
    """Return [k] the logarithms of each step's sum of exp(value / temperature), of [columns].

    It is -inf for a step without columns.
    """
    scaled = values.astype(np.float64)
    scaled /= temperature
    largest = spans.largest(scaled)
    scaled -= spans.spread(largest)
    with np.errstate(divide="ignore"):
        found: Doubles = largest + np.log(spans.sums(np.exp(scaled, out=scaled)))
    return found


def log_probability(values: Floats, token: int, temperature: float) -> float:
    """Return log softmax(values / temperature) at a token, in nats, of values [S]."""
    tokens, nothing = np.array([token]), np.array([-np.inf])
    return float(log_probabilities(values, tokens, Spans([len(values)]), temperature, nothing)[0])


def log_probabilities(
    values: Floats, tokens: NDArray[np.intp], spans: Spans, temperature: float, log_sums: Doubles
) -> Doubles:
    """Return the same of k steps, [..., k], from values [..., columns].

    `tokens` are their columns, [k], and `log_sums` are of each step's further columns, [k].
    """
    scaled = values.astype(np.float64)
    scaled /= temperature
    here = scaled[..., tokens]
    largest = np.maximum(spans.largest(scaled), log_sums)
    scaled -= spans.spread(largest)
    totals = spans.sums(np.exp(scaled, out=scaled)) + np.exp(log_sums - largest)
    found: Doubles = here - largest - np.log(totals)
    return found


#: The largest setting: far beyond every sensible one, and no product of a few overflows float64.
MAX_NUMBER = 1e15
Positive = Annotated[float, Field(gt=0, le=MAX_NUMBER, allow_inf_nan=False)]

#: Multiples of a grid up to this one, and midpoints between two, are exact in float32.
MAX_GRID_STEPS = 1 << 22
#: How many values of a step's contributions one block has.
BLOCK_VALUES = 1 << 20
#: This many equal logits of one row are no coincidence, not even in bfloat16.
TELLING = 8
#: The largest difference between sums in float64, in logit units.
FLOAT64_ROUNDING = 1e-9


class Fields(BaseModel):
    """Base of settings that are recorded: immutable, no coercion, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def _no_bool(value: object) -> object:
    if isinstance(value, bool):  # True is 1, and no number
        raise PydanticCustomError("no_number", "Input should be 1")
    return value


#: The version of a format that has only its first.
FirstVersion: TypeAlias = Annotated[Literal[1], BeforeValidator(_no_bool)]


def clash(field: str, given: object, allowed: str) -> PydanticCustomError:
    """Return the error of a value that contradicts other fields.

    The reader of the settings names the field.
    """
    return PydanticCustomError(
        "clash", "Input should be {allowed}", {"field": field, "given": given, "allowed": allowed}
    )


class Part(Fields, ABC):
    """A part of a mechanism: one of several kinds, each with settings of its own.

    Attributes:
        name: the kind, as `kind` in configs and run.json.
    """

    name: ClassVar[str]

    @model_serializer(mode="wrap")
    def _with_its_kind(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": self.name, **written(self)}


class StepArray(NamedTuple):
    """The recorded form of one of a step's arrays, [*rows, S].

    Attributes:
        dtype: "real" for the precision of the record; else as numpy writes it.
        rows: its shape before the tokens.
        largest: the largest absolute value; of reals, before they are divided. Unbounded reals are
            on no grid.
        divisor: with a grid, reals are multiples of the grid over this number.
        ascending: whether reals ascend along the rows. Then rows are recorded by their differences,
            and the columns whose values are all equal come last in every array of the step.
        columns: whether it has one column for each token, S. Otherwise it is [*rows], numbers of
            the step as a whole.
    """

    dtype: str
    rows: tuple[int, ...] = ()
    largest: float = math.inf
    divisor: float = 1.0
    ascending: bool = False
    columns: bool = True


@dataclass(frozen=True)
class Problem:
    """A contradiction in a step's record.

    Attributes:
        code: of a sentence of the catalogue (`dpaudit/results/catalogue/mechanisms.toml`, for those
            of this package).
        values: numbers and names that the sentence shows.
    """

    code: str
    values: Mapping[str, int | float | str] = field(default_factory=dict)


class Contribution(Part):
    """One context's part of a step: a number in [-clip, clip] for every token.

    It is computed from that context alone. It may first subtract something public, the anchor. The
    anchor is added again once contributions are aggregated: it shifts the aggregates of all
    neighbours alike, and so every bound on them.

    Attributes:
        anchored: whether there is an anchor. A step then records it, as `anchor`.
        over_support: whether rows of logits are read over the support alone, as they are with an
            anchor.
        row_numbers: how many numbers `row_constants` gives of each row.
        clip: c, in logit units.
        grid: contributions are rounded to multiples of this power of two; None for no rounding.
            Rounding reads one context alone, so it costs nothing.
    """

    anchored: ClassVar[bool] = False
    over_support: ClassVar[bool] = False
    row_numbers: ClassVar[int] = 1

    clip: Positive
    grid: Positive | None = None

    @model_validator(mode="after")
    def _clip_lies_on_the_grid(self) -> Contribution:
        if self.grid is not None:
            if math.frexp(self.grid)[0] != 0.5:
                raise clash("grid", self.grid, "a power of two, such as 0.015625 (1/64), or null")
            steps = self.clip / self.grid
            if not steps.is_integer() or steps > MAX_GRID_STEPS:
                allowed = (
                    f"a power of two of which clip, {self.clip:g}, is a multiple, up to "
                    f"{MAX_GRID_STEPS} times"
                )
                raise clash("grid", self.grid, allowed)
        return self

    def anchor(self, public: Floats) -> Floats | None:
        """Return the anchor, float32 [S], from the public prompt's logits over the support [S].

        It is None for a contribution without an anchor.

        Raises:
            ValueError: these logits are no anchor.
        """
        return None

    @abstractmethod
    def row_constants(self, logits: Floats) -> Floats:
        """Return the numbers of whole rows that every column needs: float32 [n, `row_numbers`].

        Args:
            logits: raw logits [n, V], or [n, S] if they are read over the support alone.

        Raises:
            ValueError: a logit is NaN or +inf, or a row has no finite logit.
        """

    @abstractmethod
    def write(
        self, logits: Floats, row_constants: Floats, anchor: Floats | None, out: Floats
    ) -> None:
        """Write contributions, float32, into `out`, from some columns of raw logits.

        Args:
            logits: raw logits of these columns, [n, columns].
            row_constants: [n, `row_numbers`] of the whole rows.
            anchor: of these columns, [columns]; None without an anchor.
            out: [n, columns], receives the contributions.
        """

    def on_device(self, logits: Tensor, support: NDArray[np.integer] | None) -> Tensor | None:
        """Return contributions float32 [n, S] from raw logits [n, V], n >= 1, on their device.

        They equal those of `write` bit for bit. It is None for contributions that are worked out on
        the CPU, as all are that read the support alone.

        Raises:
            ValueError: as for `row_constants`.
        """
        return None

    def rounded(self, values: Floats | Tensor) -> None:
        """Round float32 values, an array or a tensor, to the grid in place, ties to even multiples.

        Around `shift` float32 numbers are one grid step apart. This holds for values up to 2^22
        steps. Zeros become positive.
        """
        if self.grid is not None:
            shift = 1.5 * 2.0**23 * self.grid
            values += shift
            values -= shift

    def range_problem(self, name: str, values: Floats) -> Problem | None:
        """Return why recorded contributions, or values from among them, cannot be such, or None."""
        # The extremes of values with a NaN are NaN, and a comparison with it is false.
        if not values.size or (-self.clip <= values.min() and values.max() <= self.clip):
            return None
        return Problem("mechanisms.beyond-clip", {"name": name, "clip": self.clip})

    def anchor_problem(self, arrays: Arrays, spans: Spans) -> Problem | None:
        """Return why a recorded anchor of some steps cannot be one, or None."""
        return None

    def clip_problem(self, arrays: Arrays, values: Floats, spans: Spans) -> Problem | None:
        """Return why recorded contributions [n, columns] of steps are not clipped as declared.

        It is None where they are. Called for contributions over the whole vocabulary, and for those
        that read the support alone.
        """
        return None

    def uniform(self, arrays: Arrays, values: Floats) -> NDArray[np.bool_]:
        """Return which recorded contributions [n, S] come from a row of equal logits: bool [n].

        With a grid, or if the clip leaves fewer than TELLING entries of a row to compare, the
        answer is False.
        """
        if self.grid is not None:
            return np.zeros(len(values), dtype=np.bool_)
        logits = values.astype(np.float64)
        inside = values > -self.clip  # of equal logits each is the largest, at the clip
        if ANCHOR in arrays:
            logits += arrays[ANCHOR]
            inside = np.abs(values) < self.clip
        # quicker than reductions that are told where
        highest = np.where(inside, logits, -np.inf).max(axis=1, initial=-np.inf)
        lowest = np.where(inside, logits, np.inf).min(axis=1, initial=np.inf)
        equal: NDArray[np.bool_] = (highest - lowest <= FLOAT64_ROUNDING) & (
            inside.sum(axis=1) >= TELLING
        )
        return equal


@dataclass(frozen=True)
class Recomputed:
    """A step's contributions recomputed by the model, to compare a recorded step with.

    No anchor is added to any aggregate.

    Attributes:
        free: [n, S] before they are rounded to the grid.
        rounding: how far each may be off by rounding in the model, in logit units.
        contribution: says clip and grid.
        aggregate_of: aggregates contributions [n, S].
        aggregate: of the model's contributions, [S], rounded to the grid.
    """

    free: Floats
    rounding: float
    contribution: Contribution
    aggregate_of: Callable[[Floats], Floats]
    aggregate: Floats

    @property
    def half(self) -> float:
        """The largest distance by which rounding to the grid moves a value."""
        return (self.contribution.grid or 0.0) / 2

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """The least and the greatest aggregate [S] that rounding in the model can lead to.

        Rounding to the grid and aggregating are monotone, so both are reached when all logits are
        off one way.
        """
        clip, grid = np.float32(self.contribution.clip), self.contribution.grid
        found: list[Floats] = []
        for shift in (-self.rounding, self.rounding):
            values = self.free + np.float32(shift)
            if grid is not None:
                values = np.rint(values / np.float32(grid)) * np.float32(grid)
            found.append(self.aggregate_of(np.clip(values, -clip, clip)))
        return found[0], found[1]


class Deviation(NamedTuple):
    """The distance between a recorded step and a recomputed one.

    Attributes:
        difference: the most that a recorded value is off, in logit units; NaN if one is no number.
        problem: another contradiction in the record; None without one.
    """

    difference: float
    problem: Problem | None


class Aggregator(Part):
    """The rule that makes one vector of a step's contributions, column by column.

    What it makes of a column hangs on that column alone, and so does each problem. So an audit asks
    about the columns of several steps at once, as if they were those of one: where nothing is wrong
    with these nothing is wrong with any of the steps. Otherwise it asks about each step.

    Attributes:
        kinds: of claims that its runs support; the first is the one that a run states of itself.
        dtype: in which its runs are recorded, the least precision in which its bounds hold.
        sums: whether it adds all contexts up, so that only the contexts themselves show what it
            did.
        not_applicable: checks that are not about it, with the reason, a code of the catalogue.
    """

    kinds: ClassVar[tuple[ClaimKind, ...]] = (ExPostClaim.id,)
    dtype: ClassVar[Literal["float32", "float64"]] = "float64"
    sums: ClassVar[bool] = False
    not_applicable: ClassVar[Mapping[str, str]] = {
        "record.sides": "mechanisms.no-sides",
        "neighbors.addition": "mechanisms.bound-by-settings",
        "mechanism.divisor": "mechanisms.nothing-divided",
    }

    @property
    def title(self) -> str:
        """The name that sentences call it by."""
        return self.name

    # --- one step ---------------------------------------------------------------------------------

    @abstractmethod
    def arrays(self, contexts: int, width: int, clip: float) -> dict[str, StepArray]:
        """Return the arrays that a step of `contexts` contexts records, by name.

        Args:
            contexts: number of contexts in the batch, 0 or more.
            width: number of central values on each side.
            clip: c, in logit units.
        """

    @abstractmethod
    def step(self, values: Floats, clip: float, width: int) -> Arrays:
        """Return a step's arrays, as `arrays` describes them, from contributions [n, S].

        The contributions stay unchanged.
        """

    def step_on_device(self, values: Tensor, clip: float, width: int) -> Arrays:
        """Return the arrays of `step`, bit for bit, from a tensor on any device, n >= 1."""
        return self.step(values.cpu().numpy(), clip, width)

    @abstractmethod
    def aggregate(self, arrays: Arrays) -> Floats:
        """Return the aggregated contributions [S]."""

    # --- its bounds -------------------------------------------------------------------------------

    @abstractmethod
    def box(self, arrays: Arrays, change: ContextChange, clip: float) -> Box:
        """Return bounds on the aggregates [S] of all neighbours.

        Raises:
            ValueError: the arrays do not bound such a change.
        """

    def movable(self, arrays: Arrays) -> NDArray[np.bool_] | None:
        """Return the columns in which a neighbour's aggregate can differ, [S]; None for all.

        Elsewhere every neighbour has the aggregate of `aggregate`.
        """
        return None

    def width_for(self, change: ContextChange) -> int:
        """Return the least width of a record that bounds a change."""
        return 0

    def eta(self, change: ContextChange, clip: float, temperature: float) -> float | None:
        """Return the bounded range of a draw, in nats; None if nothing but the data bounds it.

        A draw's privacy losses lie in an interval of this length whatever the data.
        """
        return None

    def ranges(self, contributions: Floats, clip: float, temperature: float) -> Doubles:
        """Return each context's bounded range of a draw, by its own contributions [n, S].

        Returns:
            [n], in nats, above 0.

        Raises:
            NotImplementedError: it depends on other contexts, as it does for all but sums.
        """
        raise NotImplementedError(f"what a context moves in a {self.name} depends on the others")

    def sensitivity(self, change: ContextChange) -> str:
        """Say for reports how far a change moves the aggregate at most; "" if unbounded."""
        return ""

    # --- its record -------------------------------------------------------------------------------

    def losses(
        self, steps: ReducedSteps, contributions: Floats | None, contexts: int, temperature: float
    ) -> Doubles | None:
        """Return every context's log p(token) - log p(token without the context), in nats.

        Args:
            steps: as `Mechanism.reduced` gives them. An `anchor` is part of what was sampled from.
            contributions: [n, columns] of every context, in all columns of the supports; None if
                they are not recorded.
            contexts: n.
            temperature: the mechanism's.

        Returns:
            float64 [n, k] at each of k steps; None if the record of any has none.
        """
        return None

    @abstractmethod
    def range_problem(
        self, arrays: Arrays, contexts: int, contribution: Contribution
    ) -> Problem | None:
        """Return why recorded values cannot be of such contributions (record.range), or None."""

    @abstractmethod
    def definition_problem(
        self, arrays: Arrays, contributions: Floats, width: int, contribution: Contribution
    ) -> Problem | None:
        """Return why the arrays are not those of these contributions [n, S], or None.

        It is the check record.aggregate.
        """

    def sides_problem(
        self, arrays: Arrays, contributions: Floats | None, contexts: int, clip: float
    ) -> Problem | None:
        """Return why recorded sides contradict the rest of a step (record.sides), or None."""
        return None

    def with_context(self, arrays: Arrays, values: Doubles) -> Doubles | None:
        """Return the aggregate [S] after a context with contributions [S] joins; None if unknown.

        The check neighbors.addition needs it.
        """
        return None

    def divisor_problem(
        self, arrays: Arrays, contributions: Floats, contribution: Contribution
    ) -> Problem | None:
        """Return why the arrays are not sums of contributions [n, S] over the divisor, or None.

        It is the check mechanism.divisor, which `not_applicable` switches off by default. Without
        recorded contributions that check is no pass, as record.aggregate may be.
        """
        return None

    def deviation(self, arrays: Arrays, again: Recomputed) -> Deviation:
        """Compare recorded arrays with the model's."""
        recorded = self.aggregate(arrays)
        difference = largest_absolute(recorded - again.aggregate)
        least, greatest = again.ends
        wrong = ~(
            (recorded >= least - FLOAT64_ROUNDING) & (recorded <= greatest + FLOAT64_ROUNDING)
        )
        count = int(np.count_nonzero(wrong))
        if count:
            return Deviation(difference, Problem("mechanisms.other-aggregates", {"tokens": count}))
        return Deviation(difference, None)

    def tolerance(self, again: Recomputed) -> float:
        """Return how much rounding in the model adds to a `deviation`, in logit units."""
        return max(largest_absolute(end - again.aggregate) for end in again.ends) + FLOAT64_ROUNDING


def blocks(length: int, width: int) -> Iterator[slice]:
    """Return slices of a long axis that take some megabytes each beside an axis of `width`."""
    each = max(1, BLOCK_VALUES // max(1, width))
    return (slice(start, start + each) for start in range(0, length, each))


def largest_absolute(values: NDArray[np.floating[Any]]) -> float:
    """Return the largest absolute value; NaN if one is NaN, 0 for an empty array."""
    return float(np.abs(values).max(initial=0.0))
