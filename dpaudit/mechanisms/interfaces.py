"""What a mechanism is made of: a contribution, which is what one context gives, and an aggregator of contributions.

A new one is a file with a class, and a line in `dpaudit.mechanisms.mechanism` or an entry point (`dpaudit.plugins`).
Nothing outside this package asks which one a run has: what differs between them is asked of the objects.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from dpaudit.claims import ClaimKind, ExPostClaim
from dpaudit.mechanisms.neighbors import ContextChange

if TYPE_CHECKING:
    from torch import Tensor


Floats: TypeAlias = NDArray[np.floating]
Doubles: TypeAlias = NDArray[np.float64]
#: A step's arrays by name, each [..., S] with a column for each token of the support.
Arrays: TypeAlias = dict[str, NDArray[Any]]
#: lower, center and upper: the box [..., S] of neighbouring aggregates, and the aggregate that was sampled from.
Box: TypeAlias = tuple[Floats, Floats, Floats]


@dataclass(frozen=True)
class FixedColumns:
    """Columns in which all neighbours agree, as one term of a sum.

    In a large vocabulary most columns lie at the floor of the clip in nearly all contexts, and a median stays there
    whatever one neighbour does. The sum of their exponentials is worked out once and stands for them in the log-sum-exp
    of the aggregate, of its bounds, and of every batch less one context.

    Attributes:
        log_sum: logarithm of the sum of exp(value / tau) over them; -inf where there are none.
        columns: how many they are.
        largest: the largest absolute value among them.
    """

    log_sum: float = -math.inf
    columns: int = 0
    largest: float = 0.0


#: No such columns.
NO_FIXED_COLUMNS = FixedColumns()


class Spans:
    """Where each of k steps has its columns, in arrays that hold those of all of them one behind another.

    Sums are of each step's columns by themselves: the same bits as if the step were looked at alone. Numpy adds up
    each run of contiguous values by halves, whatever stands beside it.

    Attributes:
        lengths: [k] how many columns each step has.
        starts, ends: [k] the first of them, and the first behind them.
        slices: the same, as slices.
    """

    def __init__(self, lengths: Iterable[int]) -> None:
        self.lengths = np.fromiter(lengths, dtype=np.intp)
        self.ends = np.cumsum(self.lengths)
        self.starts = self.ends - self.lengths
        self.slices = [slice(*ends) for ends in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]
        self._alike = len(self) > 1 and bool((self.lengths == self.lengths[0]).all())

    def __len__(self) -> int:
        return len(self.lengths)

    def sums(self, values: Doubles) -> Doubles:
        """[..., k] of values [..., columns]."""
        if self._alike:
            found: Doubles = self._apart(values).sum(axis=-1)
            return found
        found = np.empty((*values.shape[:-1], len(self)))
        for step, span in enumerate(self.slices):
            values[..., span].sum(axis=-1, out=found[..., step])
        return found

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        """[..., k] the largest of each step's values [..., columns], NaN where one is. No step may have none."""
        return self._reduced(np.maximum, values)

    def smallest(self, values: NDArray[Any]) -> NDArray[Any]:
        """[..., k] the smallest, likewise."""
        return self._reduced(np.minimum, values)

    def _reduced(self, extreme: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        alike = self._alike or len(self) == 1
        found: NDArray[Any]
        found = extreme.reduce(self._apart(values), -1) if alike else extreme.reduceat(values, self.starts, -1)
        return found

    def counts(self, flags: NDArray[np.bool_]) -> NDArray[np.intp]:
        """[k] in how many of its columns each step is flagged, of flags [columns]."""
        return np.fromiter((np.count_nonzero(flags[span]) for span in self.slices), np.intp, len(self))

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """[..., columns] each step's value, of [..., k], in all of its columns."""
        if len(self) == 1:
            return np.broadcast_to(values, (*values.shape[:-1], int(self.lengths[0])))
        return np.repeat(values, self.lengths, axis=-1)

    def totals(self, values: Doubles) -> Doubles:
        """[columns] the sums of each step's values up to each of them, of [columns]."""
        found = np.empty(len(values))
        for span in self.slices:
            np.cumsum(values[span], out=found[span])
        return found

    def _apart(self, values: NDArray[Any]) -> NDArray[Any]:
        """[..., k, S] of steps that have S columns each."""
        return values.reshape(*values.shape[:-1], len(self), int(self.lengths[0]))


@dataclass(frozen=True)
class ReducedSteps:
    """Steps less the columns that no neighbour can move, one behind another.

    Attributes:
        arrays: [..., M] the steps' arrays in the columns that are left: those that can move, and the tokens'.
        tokens: [k] the tokens' columns.
        spans: which columns each step has.
        log_sums, columns, largest: [k] of each step's other columns, as in `FixedColumns`.
    """

    arrays: Arrays
    tokens: NDArray[np.intp]
    spans: Spans
    log_sums: Doubles
    columns: NDArray[np.intp]
    largest: Doubles

    def anchored(self, aggregate: Floats) -> Floats:
        """What is sampled from, [M], with aggregated contributions [M] in these columns."""
        return with_anchor(self.arrays, aggregate)

    def one(self, step: int) -> ReducedStep:
        """Return one of the steps. Its arrays are of columns alone, or it is the only one."""
        fixed = FixedColumns(float(self.log_sums[step]), int(self.columns[step]), float(self.largest[step]))
        span = self.spans.slices[step]
        arrays = self.arrays if len(self.spans) == 1 else {name: a[..., span] for name, a in self.arrays.items()}
        return ReducedStep(arrays, int(self.tokens[step]) - span.start, fixed)


@dataclass(frozen=True)
class ReducedStep:
    """A step less the columns that no neighbour can move.

    Attributes:
        arrays: [..., M] the step's arrays in the M columns that are left: those that can move, and the token's.
        token: the token's place among them.
        fixed: all other columns.
    """

    arrays: Arrays
    token: int
    fixed: FixedColumns = NO_FIXED_COLUMNS

    def anchored(self, aggregate: Floats) -> Floats:
        """What is sampled from, [M], with aggregated contributions [M] in these columns."""
        return with_anchor(self.arrays, aggregate)

    def alone(self, columns: int) -> ReducedSteps:
        """Return it as the only one of some steps; it has so many columns."""
        fixed = self.fixed
        return ReducedSteps(
            self.arrays,
            np.array([self.token]),
            Spans([columns]),
            np.array([fixed.log_sum]),
            np.array([fixed.columns]),
            np.array([fixed.largest]),
        )


#: A step's array of what is added to its aggregated contributions, where they are anchored.
ANCHOR = "anchor"
#: Below this are the logits of tokens that a model or a rule rules out.
MASKED = -1e30


def with_anchor(arrays: Arrays, aggregate: Floats) -> Floats:
    """Aggregated contributions [S] and a step's anchor, in float64; without an anchor, as they are.

    Rounding is monotone, so bounds stay in order.
    """
    if ANCHOR not in arrays:
        return aggregate
    total: Floats = arrays[ANCHOR].astype(np.float64) + aggregate
    return total


def log_sum_exp(values: Floats, temperature: float) -> float:
    """Logarithm of the sum of exp(value / temperature) over values [S]; -inf where there are none."""
    if not len(values):
        return -math.inf
    scaled = values.astype(np.float64)
    scaled /= temperature
    largest = float(scaled.max())
    scaled -= largest
    return largest + math.log(float(np.exp(scaled, out=scaled).sum()))


def log_probability(values: Floats, token: int, temperature: float, fixed: FixedColumns = NO_FIXED_COLUMNS) -> float:
    """log softmax(values / temperature) at a token, in nats, of values [S] and further columns."""
    tokens, log_sums = np.array([token]), np.array([fixed.log_sum])
    return float(log_probabilities(values, tokens, Spans([len(values)]), temperature, log_sums)[0])


def log_probabilities(
    values: Floats, tokens: NDArray[np.intp], spans: Spans, temperature: float, log_sums: Doubles
) -> Doubles:
    """The same of k steps, [..., k], from values [..., columns].

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


#: Of any setting: far beyond all that mean anything, and small enough that no product of a few overflows float64.
MAX_NUMBER = 1e15
Positive = Annotated[float, Field(gt=0, le=MAX_NUMBER, allow_inf_nan=False)]

#: Multiples of a grid up to here, and midpoints between two, are exact in float32.
MAX_GRID_STEPS = 1 << 22
#: Of a step's contributions, what is looked at together.
BLOCK_VALUES = 1 << 20
#: So many equal logits of one row are no coincidence, in bfloat16 either.
TELLING = 8
#: What sums in float64 may differ by, in logit units.
FLOAT64_ROUNDING = 1e-9


class Fields(BaseModel):
    """Base of settings that are recorded: immutable, no coercion, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _no_bool(value: object) -> object:
    if isinstance(value, bool):  # True is 1, and no number
        raise PydanticCustomError("no_number", "Input should be 1")
    return value


#: A version of a format, whose first is its only one so far.
FirstVersion: TypeAlias = Annotated[Literal[1], BeforeValidator(_no_bool)]


def clash(field: str, given: object, allowed: str) -> PydanticCustomError:
    """The error of a value that does not go with other fields: what names the field is told where it is read."""
    return PydanticCustomError(
        "clash", "Input should be {allowed}", {"field": field, "given": given, "allowed": allowed}
    )


class StepArray(NamedTuple):
    """How one of a step's arrays [*rows, S] is recorded.

    Attributes:
        dtype: "real" for the precision of the record; else as numpy writes it.
        rows: its shape before the tokens.
        largest: the largest absolute value; of reals, before they are divided. Reals that nothing bounds are on no
            grid.
        divisor: with a grid, reals are multiples of it over this number.
        ascending: whether reals ascend along the rows. Then rows are recorded by their differences, and the columns
            whose values are all equal come last in every array of the step.
        columns: whether it has one for each token, S; else it is [*rows], numbers of the step as a whole.
    """

    dtype: str
    rows: tuple[int, ...] = ()
    largest: float = math.inf
    divisor: float = 1.0
    ascending: bool = False
    columns: bool = True


@dataclass(frozen=True)
class Problem:
    """What contradicts a step's record.

    Attributes:
        code: of a sentence of the catalogue (`dpaudit/catalogue/mechanisms.toml`, for those of this package).
        values: numbers and names that the sentence shows.
    """

    code: str
    values: Mapping[str, int | float | str] = field(default_factory=dict)


class Contribution(Fields, ABC):
    """What one context gives to a step: a number in [-clip, clip] for every token, by that context alone.

    It may take something public away first, the anchor. That is added again once contributions are aggregated: it
    shifts the aggregates of all neighbours alike, and so every bound on them.

    Attributes:
        name: as configs and run.json have it.
        anchored: whether there is an anchor. A step records it then, as `anchor`.
        over_support: whether rows of logits are looked at over the support alone; so they are where there is an anchor.
        row_numbers: how many numbers `row_constants` gives of each row.
        clip: c, in logit units.
        grid: contributions are rounded to multiples of this power of two; None where they are not. It looks at one
            context alone, so it costs nothing.
    """

    name: ClassVar[str]
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
                allowed = f"a power of two of which clip, {self.clip:g}, is a multiple, up to {MAX_GRID_STEPS} times"
                raise clash("grid", self.grid, allowed)
        return self

    def anchor(self, public: Floats) -> Floats | None:
        """What is public, float32 [S] from the public prompt's logits over the support [S]; None where nothing is.

        Raises:
            ValueError: these logits are no anchor.
        """
        return None

    @abstractmethod
    def row_constants(self, logits: Floats) -> Floats:
        """What every column needs to know of whole rows of raw logits: float32 [n, `row_numbers`].

        `logits`: [n, V], or [n, S] where they are looked at over the support alone.

        Raises:
            ValueError: a logit is NaN or +inf, or a row has no finite logit.
        """

    @abstractmethod
    def write(self, logits: Floats, row_constants: Floats, anchor: Floats | None, out: Floats) -> None:
        """Contributions from some columns of raw logits [n, columns], float32, into `out` of the same shape.

        `anchor`: of these columns, [columns].
        """

    def on_device(self, logits: Tensor, support: NDArray[np.integer] | None) -> Tensor | None:
        """Contributions float32 [n, S] from raw logits [n, V], n >= 1, on their device: bit for bit those of `write`.

        None where they are worked out on the CPU, as all are that look at the support alone.

        Raises:
            ValueError: as for `row_constants`.
        """
        return None

    def rounded(self, values: Floats | Tensor) -> None:
        """Round float32 values, an array or a tensor, to the grid in place, ties to the even multiples.

        Around `shift` float32 numbers are one grid step apart. It serves values up to 2^22 steps, and zeros come out
        positive.
        """
        if self.grid is not None:
            shift = 1.5 * 2.0**23 * self.grid
            values += shift
            values -= shift

    def range_problem(self, name: str, values: Floats) -> Problem | None:
        """Return why recorded contributions, or values taken from among them, cannot be such; None where they can."""
        # The extremes of values with a NaN are NaN, and a comparison with it is false.
        if not values.size or (-self.clip <= values.min() and values.max() <= self.clip):
            return None
        return Problem("mechanisms.beyond-clip", {"name": name, "clip": self.clip})

    def anchor_problem(self, arrays: Arrays) -> Problem | None:
        """Return why a step's recorded anchor cannot be one; None where it can, and where there is none."""
        return None

    def anchor_problem_of_steps(self, arrays: Arrays, spans: Spans) -> Problem | None:
        """Return likewise why one of k steps' anchors cannot be one.

        What has an anchor and does not say so itself is asked about one step at a time.
        """
        assert len(spans) == 1 or not self.anchored
        return self.anchor_problem(arrays)

    def clip_problem(self, arrays: Arrays, values: Floats) -> Problem | None:
        """Return why a step's recorded contributions [n, S] are not clipped as declared; None where they may be.

        Called for contributions over the whole vocabulary, and for those that look at the support alone.
        """
        return None

    def clip_problem_of_steps(self, arrays: Arrays, values: Floats, spans: Spans) -> Problem | None:
        """Return likewise why one of k steps' contributions [n, columns] are not clipped as declared.

        What does not say so itself is asked about one step at a time.
        """
        assert len(spans) == 1
        return self.clip_problem(arrays, values)

    def uniform(self, arrays: Arrays, values: Floats) -> NDArray[np.bool_]:
        """Which of a step's recorded contributions [n, S] are those of a row of equal logits, [n].

        With a grid, or where the clip leaves fewer than TELLING entries of a row to compare, nothing tells.
        """
        if self.grid is not None:
            return np.zeros(len(values), dtype=np.bool_)
        logits = values.astype(np.float64)
        inside = values > -self.clip  # of equal logits each is the largest, at the clip
        if ANCHOR in arrays:
            logits += arrays[ANCHOR]
            inside = np.abs(values) < self.clip
        highest = logits.max(axis=1, where=inside, initial=-np.inf)
        lowest = logits.min(axis=1, where=inside, initial=np.inf)
        equal: NDArray[np.bool_] = (highest - lowest <= FLOAT64_ROUNDING) & (inside.sum(axis=1) >= TELLING)
        return equal


@dataclass(frozen=True)
class Recomputed:
    """A step's contributions by the model, to hold a recorded step against. No anchor is added to any aggregate.

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
        """How far rounding to the grid moves a value."""
        return (self.contribution.grid or 0.0) / 2

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """The least and the greatest aggregate [S] that logits give which are off by rounding.

        Rounding to the grid and aggregating are monotone, so these are reached where all logits are off one way.
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
    """How far a recorded step lies from a recomputed one.

    Attributes:
        difference: the most that a recorded value is off, in logit units; NaN where one is no number.
        problem: what else contradicts the record; None where nothing does.
    """

    difference: float
    problem: Problem | None


class Aggregator(Fields, ABC):
    """How contributions become the one vector that a step samples from. Columns are aggregated one by one.

    A problem of dpaudit's own aggregators is one of some column by itself. So an audit asks about the columns of
    several steps at once, and where nothing is wrong with these nothing is wrong with any of the steps
    (`Mechanism.in_blocks`). Plug-ins are asked about one step at a time.

    Attributes:
        name: as configs and run.json have it.
        kinds: of claims that its runs support; the first is the one that a run states of itself.
        dtype: in which its runs are recorded, the least precision in which its bounds hold.
        sums: whether it adds all contexts up, so that only the contexts themselves show what it did.
        by_theorem1: whether comparisons state the bound of the paper's Theorem 1, too, worked out on its box.
        not_applicable: checks that are not about it, with the reason, a code of the catalogue.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[ClaimKind, ...]] = (ExPostClaim.id,)
    dtype: ClassVar[Literal["float32", "float64"]] = "float64"
    sums: ClassVar[bool] = False
    by_theorem1: ClassVar[bool] = False
    not_applicable: ClassVar[Mapping[str, str]] = {
        "record.sides": "mechanisms.no-sides",
        "neighbors.addition": "mechanisms.bound-by-settings",
        "mechanism.divisor": "mechanisms.nothing-divided",
    }

    @property
    def title(self) -> str:
        """What sentences call it."""
        return self.name

    # --- one step ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def arrays(self, contexts: int, width: int, clip: float) -> dict[str, StepArray]:
        """What a step of so many contexts, 0 or more, records, by name; with `width` central values on each side."""

    @abstractmethod
    def step(self, values: Floats, clip: float, width: int) -> Arrays:
        """A step's arrays, as `arrays` says, from contributions [n, S], which it leaves as they are."""

    def step_on_device(self, values: Tensor, clip: float, width: int) -> Arrays:
        """The same, bit for bit, from a tensor on any device, n >= 1."""
        return self.step(values.cpu().numpy(), clip, width)

    @abstractmethod
    def aggregate(self, arrays: Arrays) -> Floats:
        """The aggregated contributions [S]."""

    # --- its bounds -------------------------------------------------------------------------------------------------

    @abstractmethod
    def box(self, arrays: Arrays, change: ContextChange, clip: float) -> Box:
        """Where the aggregates [S] of all neighbours lie.

        Raises:
            ValueError: the arrays do not bound such a change.
        """

    def movable(self, arrays: Arrays) -> NDArray[np.bool_] | None:
        """Where a neighbour's aggregate can differ, [S]; None for everywhere. Elsewhere it is `aggregate`."""
        return None

    def width_for(self, change: ContextChange) -> int:
        """The least width of a record that bounds a change."""
        return 0

    def eta(self, change: ContextChange, clip: float, temperature: float) -> float | None:
        """Length of the interval that a draw's privacy losses lie in whatever the data, in nats; None without one."""
        return None

    def ranges(self, contributions: Floats, clip: float, temperature: float) -> Doubles:
        """The same for each context's coming or going alone, by its own contributions [n, S]: [n], above 0.

        Raises:
            NotImplementedError: it depends on other contexts, as it does but for sums.
        """
        raise NotImplementedError(f"what a context moves in a {self.name} depends on the others")

    def sensitivity(self, change: ContextChange) -> str:
        """How far a change moves the aggregate whatever the data, in words for reports; empty where nothing says."""
        return ""

    # --- its record -------------------------------------------------------------------------------------------------

    def losses(
        self, step: ReducedStep, contributions: Floats | None, contexts: int, temperature: float
    ) -> Doubles | None:
        """log p(token) - log p(token without context i), in nats, for every context; None where the record has none.

        Args:
            step: as `Mechanism.reduced` gives it. Its `anchor` is part of what was sampled from.
            contributions: [n, S] of every context, over the whole support; None where they are not recorded.
        """
        return None

    def losses_of_steps(
        self, steps: ReducedSteps, contributions: Floats | None, contexts: int, temperature: float
    ) -> Doubles | None:
        """The same of k steps, whose columns lie one behind another, [contexts, k]; None where any has none.

        What does not say so itself is asked about one step at a time.
        """
        assert len(steps.spans) == 1
        found = self.losses(steps.one(0), contributions, contexts, temperature)
        return None if found is None else np.asarray(found)[..., None]

    @abstractmethod
    def range_problem(self, arrays: Arrays, contexts: int, contribution: Contribution) -> Problem | None:
        """Return why recorded values cannot be of such contributions (record.range); None where they can."""

    @abstractmethod
    def definition_problem(
        self, arrays: Arrays, contributions: Floats, width: int, contribution: Contribution
    ) -> Problem | None:
        """Return why the arrays are not those of these contributions [n, S] (record.aggregate); None where they are."""

    def sides_problem(self, arrays: Arrays, contributions: Floats | None, contexts: int, clip: float) -> Problem | None:
        """Return why recorded sides contradict the rest of a step (record.sides); None where they do not."""
        return None

    def with_context(self, arrays: Arrays, values: Doubles) -> Doubles | None:
        """The aggregate [S] once a context with these contributions [S] joins (neighbors.addition); None: not known."""
        return None

    def divisor_problem(self, arrays: Arrays, contributions: Floats, contribution: Contribution) -> Problem | None:
        """Return why the arrays are not sums of these contributions [n, S] over the divisor (mechanism.divisor)."""
        return None

    def deviation(self, arrays: Arrays, again: Recomputed) -> Deviation:
        """Hold recorded arrays against the model's."""
        recorded = self.aggregate(arrays)
        difference = largest_absolute(recorded - again.aggregate)
        least, greatest = again.ends
        wrong = ~((recorded >= least - FLOAT64_ROUNDING) & (recorded <= greatest + FLOAT64_ROUNDING))
        count = int(np.count_nonzero(wrong))
        return Deviation(difference, Problem("mechanisms.other-aggregates", {"tokens": count}) if count else None)

    def tolerance(self, again: Recomputed) -> float:
        """How large a `deviation`'s difference rounding in the model can make, in logit units."""
        return max(largest_absolute(end - again.aggregate) for end in again.ends) + FLOAT64_ROUNDING


def blocks(length: int, width: int) -> Iterator[slice]:
    """Slices of a long axis beside one of `width`, so that what is worked out at a time takes some megabytes."""
    each = max(1, BLOCK_VALUES // max(1, width))
    return (slice(start, start + each) for start in range(0, length, each))


def largest_absolute(values: NDArray[np.floating[Any]]) -> float:
    """The largest absolute value, NaN where one is; 0 of none."""
    return float(np.abs(values).max(initial=0.0))
