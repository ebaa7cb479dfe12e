"""The views of an audit: a batch that is open for reading, and its steps, together or alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import Cost, ExPostAccountant
from dpaudit.accounting.ex_post import StepCosts, step_costs
from dpaudit.auditing.checks.draws import NO_TOKENS, Draw, DrawnSteps
from dpaudit.mechanisms import ANCHOR, ContextChange, ReducedSteps, Spans, log_probabilities
from dpaudit.results import Finding, finding_of
from dpaudit.runs import (
    BatchHeader,
    BatchReader,
    InputError,
    Manifest,
    RecordedSteps,
    RunReader,
    Sample,
    Step,
    recorded_together,
)
from dpaudit.runs.manifest import MAX_WIDTH
from dpaudit.runs.rules import ForbiddenTokens, Ids
from dpaudit.runs.text import Decode
from dpaudit.runs.vacuity import PublicText

#: The largest group whose ex-post cost is worked out: as many contexts as the widest record of a
#: median run bounds.
MOST_CONTEXTS = 2 * MAX_WIDTH - 1
#: So many values between a row's extremes agree by no chance; fewer may, where clipping takes the
#: rest.
TELLING_VALUES = 16
#: Of steps that are looked at together, those of several batches included: of so many columns that
#: numpy's calls do not count for much. An audit of 100 batches of 16 steps over 100 tokens takes
#: 1.03 to 1.06 s CPU, and 1.01 to 1.2 s with 2, 4 or 8 times as many bytes, but more memory
#: (2026-11-28, two shared cores).
BLOCK_BYTES = 1 << 22
#: What is worked out for each earlier token of a step's text, and for each column.
_BYTES_BEFORE, _BYTES_COLUMN = 256, 256
_Found = TypeVar("_Found")


def _freeze(*arrays: NDArray[Any] | None) -> None:
    for array in arrays:
        if array is not None:
            array.setflags(write=False)


class Additions(NamedTuple):
    """The effect of the worst contexts that could join k steps: rise and fall of costs, in nats.

    Attributes:
        bounds, reached: both float64 [2, k].
        eps: of the precision that they rest on.
    """

    bounds: NDArray[np.float64]
    reached: NDArray[np.float64]
    eps: float


class StepsView:
    """Some steps of a batch in a row, and what follows from them.

    Values are computed when they are first asked for.

    The columns of k steps lie one behind another (`spans`), as if they were those of one step.

    Attributes:
        manifest: the run's.
        header: the batch's.
        recorded: what is recorded of them.
        positions: their places in the batch.
        earlier: of each, ids of the tokens that its text has before it.
        mechanism: the run's.
        arrays: the mechanism's arrays, [..., columns].
        contexts, support, canary: [n, columns], [columns] and [columns]; None where they are not
            recorded.
        tokens: [k] ids of the sampled tokens.
    """

    def __init__(
        self,
        manifest: Manifest,
        header: BatchHeader,
        recorded: RecordedSteps,
        positions: range,
        earlier: Sequence[NDArray[np.integer]],
        accountant: ExPostAccountant | None = None,
        apart: Callable[[], Sequence[StepView]] = tuple,
        among: tuple[StepsView, slice] | None = None,
    ) -> None:
        """Look at steps.

        Costs are charged to the accountant; it is None where nothing bounds them. `apart` makes
        views of each step. `among` are regular steps of several batches, and which of them these
        are.
        """
        self._among = among
        self._shared = dict[Callable[[StepsView], NDArray[Any]], NDArray[Any]]()
        self._held = dict[str, bool]()
        self._by_change = dict[ContextChange, StepCosts]()
        self.manifest, self.header, self.recorded = manifest, header, recorded
        self.apart, self._accountant = apart, accountant
        self.positions, self.earlier, self.mechanism = positions, earlier, manifest.mechanism
        self.arrays, self.contexts = recorded.arrays, recorded.contexts
        self.support, self.canary, self.tokens = recorded.support, recorded.canary, recorded.tokens
        # Whatever looks at a step, others look at the same values after it.
        _freeze(*self.arrays.values(), self.contexts, self.support, self.canary, recorded.spent)
        _freeze(*earlier)

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def spans(self) -> Spans:
        """The columns of each step."""
        return Spans(self.recorded.lengths)

    @cached_property
    def columns(self) -> NDArray[np.intp]:
        """[k] the columns of the sampled tokens; -1 where a token has none."""
        if self._among is not None:
            whole, steps = self._among
            among: NDArray[np.intp] = whole.columns[steps] - whole.spans.starts[steps.start]
            return among
        if self.support is None:
            there = (self.tokens >= 0) & (self.tokens < self.manifest.record.vocabulary)
            return np.where(there, self.tokens + self.spans.starts, -1)
        found = np.full(len(self), -1)
        at = np.flatnonzero(self.support == self.spans.spread(self.tokens))[::-1]
        found[np.searchsorted(self.spans.ends, at, side="right")] = (
            at  # the first column of a token that has two
        )
        return found

    @cached_property
    def placed(self) -> bool:
        """Whether all sampled tokens have columns."""
        return bool((self.columns >= 0).all())

    @cached_property
    def aggregate(self) -> NDArray[np.floating]:
        """The vectors [columns] that the record says were sampled from."""
        if self._among is not None:
            whole, at = self._among
            return whole.aggregate[whole.spans.starts[at.start] : whole.spans.ends[at.stop - 1]]
        found = self.mechanism.aggregate(self.arrays)
        _freeze(found)
        return found

    @cached_property
    def reduced(self) -> ReducedSteps | None:
        """The steps without columns that no neighbour can move; None if a token has no column."""
        if not self.placed:
            return None
        found = self.mechanism.reduced(self.arrays, self.columns, self.spans, self.aggregate)
        _freeze(*found.arrays.values())
        return found

    @cached_property
    def log_probabilities(self) -> NDArray[np.float64] | None:
        """[k] of the sampled tokens by the aggregates; None where a token has no column."""
        if self._among is not None:
            whole, at = self._among
            found = whole.log_probabilities
            return None if found is None else found[at]
        return None if self.reduced is None else self.mechanism.log_probabilities(self.reduced)

    @cached_property
    def contributions(self) -> NDArray[np.floating] | None:
        """All contexts' contributions to aggregates, [n, columns]; None unless all are recorded.

        They are 0 where a context took no part in a step.
        """
        if self.contexts is None and not self.header.contexts:
            return np.zeros((0, len(self.aggregate)), dtype=self.manifest.record.dtype)
        spent = self.recorded.spent
        if self.contexts is None or spent is None:
            return self.contexts
        active = spent[:, 1] > spent[:, 0]
        return np.where(self.spans.spread(active.T), self.contexts, 0)

    @cached_property
    def range_problem(self) -> Finding | None:
        """The reason why recorded values cannot be of clipped contributions, or None.

        It is a failure of record.range.
        """
        if self._among is not None:
            return None
        contribution = self.mechanism.contribution
        if problem := self.mechanism.aggregator.range_problem(
            self.arrays, self.header.contexts, contribution
        ):
            return finding_of(problem)
        for name, values in (("contexts", self.contexts), ("canary", self.canary)):
            if values is not None and (problem := contribution.range_problem(name, values)):
                return finding_of(problem)
        if problem := contribution.anchor_problem(self.arrays, self.spans):
            return finding_of(problem)
        if self.support is not None and (found := self._support_problem(self.support)):
            return found
        if not contribution.anchored:
            return None
        anchors = (self.arrays[ANCHOR][span] for span in self.spans.slices)
        problems = (self.mechanism.support.anchor_problem(anchor) for anchor in anchors)
        return finding_of(next(filter(None, problems), None))

    def _support_problem(self, support: NDArray[np.integer]) -> Finding | None:
        ids = support.astype(np.int64)
        gaps = np.diff(ids, prepend=-1)
        gaps[self.spans.starts] = 1
        if ids.min() < 0 or ids.max() >= self.manifest.record.vocabulary or not (gaps > 0).all():
            return Finding(code="record.support-ids")
        fewest, least = int(self.spans.lengths.min()), self.manifest.least_support
        least = 1 if self.manifest.decoding.any else least  # mechanism.support-rules
        return (
            Finding(code="record.small-support", values={"tokens": fewest, "least": least})
            if fewest < least
            else None
        )

    @cached_property
    def costs(self) -> NDArray[np.float64]:
        """[k, 3] what each step costs, as in `Cost`; charged to its batch at first use.

        NaN where nothing bounds it.
        """
        nothing = np.full((len(self), 3), np.nan)
        if self._accountant is None or not self.placed:
            return nothing
        if self._uncharged is not None:
            return self._accountant.add(self.header.id, self._uncharged)
        return nothing if len(self) == 1 else np.concatenate([one.costs for one in self.apart()])

    @cached_property
    def _uncharged(self) -> NDArray[np.float64] | None:
        """`ExPostAccountant.costs` of the steps; None if nothing follows from such a record.

        The objections say what is wrong with it.
        """
        if self._among is not None:
            whole, at = self._among
            if whole._uncharged is not None:
                return whole._uncharged[at]
        if self._accountant is None or self.reduced is None:
            return None
        try:
            return self._accountant.costs(self.reduced, self._step_costs)
        except ValueError:
            return None

    def _step_costs(self, change: ContextChange) -> StepCosts:
        """Return `step_costs` of the steps, all of whose tokens have columns; worked out once."""
        assert self.reduced is not None, "its callers have looked"
        if change not in self._by_change:
            self._by_change[change] = step_costs(self.mechanism, change, self.reduced)
        return self._by_change[change]

    @cached_property
    def additions(self) -> Additions | None:
        """The effect of the worst contexts that could join.

        It is None if the mechanism gives no bound, or does not say what is sampled from with a
        context more.
        """
        steps, here, mechanism = self.reduced, self.log_probabilities, self.mechanism
        if steps is None or here is None:
            return None
        try:
            found = self._step_costs(ContextChange("add_remove"))
        except ValueError:  # no bound follows from such a record
            return None
        towards = np.full(int(steps.spans.lengths.sum()), -mechanism.clip)
        towards[steps.tokens] = mechanism.clip
        reached = np.empty((2, len(self)))
        for sign, moved in zip((1, -1), reached, strict=True):
            more = mechanism.with_context(steps.arrays, sign * towards)
            if more is None:
                return None
            there = log_probabilities(
                more, steps.tokens, steps.spans, mechanism.temperature, steps.log_sums
            )
            moved[:] = sign * (there - here)
        return Additions(found.costs[:, 1:].T, reached, found.eps)

    @cached_property
    def drawn(self) -> DrawnSteps | None:
        """The draws; None where a token has no column, or a score is no number."""
        if not self.placed:
            return None
        odds = self.aggregate if self.mechanism.draw.likely else self.mechanism.odds(self.arrays)
        return DrawnSteps.of(
            odds, self.spans, self.mechanism.temperature, self.columns, self._columns_before()
        )

    @cached_property
    def draws(self) -> NDArray[np.float64] | None:
        """[k, 5] the places of the random numbers behind tokens (`Draw`); None without draws."""
        if self._among is not None:
            whole, at = self._among
            return None if whole.draws is None else whole.draws[at]
        return None if self.drawn is None else self.drawn.draws(self.tokens)

    def _columns_before(self) -> NDArray[np.int64]:
        """Return the columns of the tokens before each step, of those tokens that are there."""
        columns: NDArray[np.int64]
        ids = np.concatenate(self.earlier).astype(np.int64)
        lengths = Spans(map(len, self.earlier))
        of_step = np.repeat(np.arange(len(self)), lengths.lengths)
        if self.support is None:
            there = (ids >= 0) & (ids < self.manifest.record.vocabulary)
            columns = (ids + self.spans.starts[of_step])[there]
            return columns
        if not len(ids):
            return ids
        support = self.support.astype(np.int64)
        # Numbers that no two steps have in common.
        least = min(support.min(), ids.min())
        size = max(support.max(), ids.max()) - least + 1
        keys = support - least + size * np.repeat(np.arange(len(self)), self.spans.lengths)
        wanted, order = ids - least + size * of_step, np.argsort(keys, kind="stable")
        at = np.searchsorted(keys, wanted, sorter=order)
        at = order[np.minimum(at, len(order) - 1)]
        columns = at.compress(keys[at] == wanted)
        return columns

    @cached_property
    def regular(self) -> bool:
        """Whether nothing is wrong with the values of any step.

        Other steps are looked at one by one.
        """
        if self._among is not None:
            return True
        return self.placed and self.range_problem is None and self.drawn is not None

    def shared(self, function: Callable[[StepsView], NDArray[Any]]) -> NDArray[Any]:
        """Return what a function gives of the steps, [..., k].

        It is worked out once for steps of several batches that were read together, so it must say
        the same of a step whichever others stand beside it, and nothing of its batch.
        """
        if self._among is None:
            return function(self)
        whole, at = self._among
        if function not in whole._shared:
            whole._shared[function] = function(whole)
        found: NDArray[Any] = whole._shared[function][..., at]
        return found

    def holds(self, name: str, function: Callable[[StepsView], bool]) -> bool:
        """Return whether something, of this name, holds of all the steps.

        It must hold of some steps where it holds of more.
        """
        if self._among is not None:
            whole, _ = self._among
            if name not in whole._held:
                whole._held[name] = function(whole)
            if whole._held[name]:
                return True
        return function(self)

    @cached_property
    def each(self) -> Sequence[StepView]:
        """The steps one by one."""
        found = self.apart()
        for place, one in enumerate(found):
            one.costs = self.costs[place : place + 1]
        return found


class StepView(StepsView):
    """A single step."""

    def __init__(
        self,
        manifest: Manifest,
        header: BatchHeader,
        step: Step,
        forbidden: Mapping[str, Ids] | InputError | None = None,
        *,
        position: int = 0,
        before: NDArray[np.integer] = NO_TOKENS,
        accountant: ExPostAccountant | None = None,
    ) -> None:
        """Look at a step.

        Args:
            manifest: the run's.
            header: the batch's.
            step: what is recorded of it.
            forbidden: what the decoding rules forbid (`ForbiddenTokens.after`), or why nobody can
                tell; None without rules.
            position: its place in the batch.
            before: ids of the tokens that its text has before it.
            accountant: what the step's cost is charged to; None if nothing bounds it.
        """
        columns = manifest.most_support if step.support is None else len(step.support)
        recorded = RecordedSteps.alone(step, columns)
        super().__init__(
            manifest, header, recorded, range(position, position + 1), [before], accountant
        )
        self.step, self.forbidden, self.position, self.before = step, forbidden, position, before
        _freeze(step.spent)

    @property
    def each(self) -> Sequence[StepView]:
        """The step itself."""
        return (self,)

    @property
    def index(self) -> int | None:
        """The place of the sampled token among the support's tokens, or None if it has none."""
        return int(self.columns[0]) if self.placed else None

    @property
    def cost(self) -> Cost | None:
        """The step's cost, charged to its batch when first asked for; None if nothing bounds it."""
        theorem1, rise, fall = self.costs[0].tolist()
        return None if math.isnan(theorem1) else Cost(theorem1, rise, fall)

    @property
    def budgets(self) -> NDArray[np.float64] | None:
        """The budget of each context in the run, [n]; None without budgets."""
        own, each = self.header.budgets, self.mechanism.budget
        if each is None:
            return None
        return (
            np.full(self.header.contexts, each) if own is None else np.array(own, dtype=np.float64)
        )

    @property
    def draw(self) -> Draw | None:
        """The place of the random number behind the token; None if the aggregate has no numbers."""
        return None if self.draws is None else Draw(*self.draws[0].tolist())


class BatchView:
    """A batch that is open for reading.

    Attributes:
        run: the run that it is of.
        record: its file.
        header: what was known before its first step.
        accountant: what its steps are charged to; None if nothing bounds their costs.
    """

    def __init__(self, run: RunView, record: BatchReader) -> None:
        self.run, self.record, self.header = run, record, record.header
        self.manifest = run.manifest
        self.accountant = accountant_for(run.manifest, run.change)

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        """Its texts: the lines of samples.jsonl that release it."""
        return tuple(self.record.samples())

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The ids of its tokens, [T]."""
        return self.record.tokens

    def step(self, position: int) -> StepView:
        """Return one step. Raises InputError when it cannot be decoded."""
        return self._alone(self.record.step(position), position)

    def blocks(self) -> Iterator[StepsView]:
        """Yield all steps in order, in blocks of at most BLOCK_BYTES of steps without a problem.

        Raises InputError when one cannot be decoded, after those before it.
        """
        start, steps = 0, len(self.tokens)
        while start < steps:
            stop = self._end_of_block(start)
            yield from self._looked_at(range(start, stop))
            start = stop

    def _end_of_block(self, start: int) -> int:
        """Return the first step that is not looked at together with the one at `start`."""
        if not self.manifest.mechanism.in_blocks:
            return start + 1
        each = self.record.step_bytes + _BYTES_COLUMN * self.manifest.most_support
        held, stop = 0, start
        while stop < len(self.tokens) and held <= BLOCK_BYTES - each:
            held += each + _BYTES_BEFORE * len(self.record.before(stop))
            stop += 1
        return max(stop, start + 1)

    def _looked_at(self, positions: range) -> Iterator[StepsView]:
        """Yield some steps, one by one where something is wrong with any."""
        if len(positions) > 1:
            try:
                recorded = self.record.recorded(positions)
            except InputError:  # those before the one that cannot be decoded can
                yield from map(self.step, positions)
                return
            view = self._together(recorded, positions, self._before(positions))
            with np.errstate(all="ignore"):
                regular = view.regular
            if regular:
                yield view
            else:
                yield from view.apart()
        else:
            yield self.step(positions.start)

    def _together(
        self,
        recorded: RecordedSteps,
        positions: range,
        earlier: Sequence[NDArray[np.integer]],
        among: tuple[StepsView, slice] | None = None,
    ) -> StepsView:
        def apart() -> Sequence[StepView]:
            return [
                self._alone(recorded.one(place), position)
                for place, position in enumerate(positions)
            ]

        return StepsView(
            self.manifest, self.header, recorded, positions, earlier, self.accountant, apart, among
        )

    def _before(self, positions: range) -> list[NDArray[np.integer]]:
        """Return the tokens before each of some steps in its text."""
        return [self.record.before(position) for position in positions]

    @property
    def bytes(self) -> int:
        """What is held of its steps that are looked at together, and worked out of them, about."""
        each = self.record.step_bytes + _BYTES_COLUMN * self.manifest.most_support
        return each * len(self.tokens) + _BYTES_BEFORE * sum(
            len(span) * (len(span) - 1) // 2 for span in self.record.spans
        )

    def _alone(self, step: Step, position: int) -> StepView:
        before = self.record.before(position)
        forbidden: Mapping[str, Ids] | InputError | None = self.run.unruled
        if self.run.rules is not None:
            prompt = self.manifest.public_prompt(self.header.label)
            forbidden = self.run.rules.after(prompt, before.tolist())
        return StepView(
            self.manifest,
            self.header,
            step,
            forbidden,
            position=position,
            before=before,
            accountant=self.accountant,
        )


def looked_at_together(batches: Sequence[BatchView]) -> list[StepsView] | None:
    """Return the views of whole batches, each among all of their steps.

    All have as many contexts. None if something is wrong with the values of any step, and of a
    mechanism or a canary whose steps hang together.

    Raises:
        InputError: a step cannot be decoded.
    """
    first, mechanism = batches[0], batches[0].manifest.mechanism
    if not mechanism.in_blocks or mechanism.budget is not None or first.header.canary is not None:
        return None
    steps = [range(len(batch.tokens)) for batch in batches]
    recorded = recorded_together([batch.record for batch in batches])
    earlier = [
        before
        for batch, positions in zip(batches, steps, strict=True)
        for before in batch._before(positions)
    ]
    whole = StepsView(
        first.manifest,
        first.header,
        recorded,
        range(len(earlier)),
        earlier,
        first.accountant,
    )
    with np.errstate(all="ignore"):
        if not whole.regular:
            return None
    ends = accumulate(map(len, steps), initial=0)
    spans = [slice(*span) for span in pairwise(ends)]
    return [
        batch._together(recorded.part(span), positions, earlier[span], (whole, span))
        for batch, positions, span in zip(batches, steps, spans, strict=True)
    ]


class RunView:
    """The common data for reading all batches of a run.

    Attributes:
        manifest: the run's.
        change: how one unit's difference changes contexts; None if nothing bounds it.
        rules: the run's decoding rules; None without them, and where they cannot be read.
        unruled: why nobody can tell what the run's decoding rules forbid; None if it can be
            told.
    """

    def __init__(self, reader: RunReader, change: ContextChange | None) -> None:
        """Read the run's tokenizer, if its rules are about the text of tokens."""
        self.manifest, self.change, self._reader = reader.manifest, change, reader
        self._once = dict[Callable[[RunView], Any], Any]()
        self.rules: ForbiddenTokens | None = None
        self.unruled: InputError | None = None
        try:
            self.rules = reader.forbidden_tokens()
        except InputError as error:
            self.unruled = error.alone()

    def once(self, function: Callable[[RunView], _Found]) -> _Found:
        """Return what a function gives of the run, worked out for its first batch."""
        if function not in self._once:
            self._once[function] = function(self)
        found: _Found = self._once[function]
        return found

    @cached_property
    def public_text(self) -> PublicText:
        """The run's public text, as the rules about texts that say nothing need it."""
        return PublicText.of(self.manifest)

    @cached_property
    def decode(self) -> Decode | None:
        """The decoder of the run's texts; None without a readable tokenizer."""
        return self._reader.decoder(special=False)


def accountant_for(manifest: Manifest, change: ContextChange | None) -> ExPostAccountant | None:
    """Return the accountant of a run's ex-post cost, or None.

    There is none where nothing bounds the change, or it is too large.
    """
    if change is None or change.contexts > MOST_CONTEXTS or not manifest.mechanism.draw.ex_post:
        return None
    return ExPostAccountant(manifest.mechanism, change, manifest.batching.per_round)


def added(total: NDArray[np.float64], steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a total [...] with values of steps [..., k] added one after another, in that order."""
    found: NDArray[np.float64] = np.cumsum(
        np.concatenate([total[..., None], steps], axis=-1), axis=-1
    )[..., -1]
    return found


def values_between_extremes(row: NDArray[np.floating]) -> int:
    """Return how many values of a row [S] lie between its smallest and its largest."""
    return int(((row > row.min()) & (row < row.max())).sum())
