"""The views of an audit: a batch that is open for reading, and each of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import Cost, ExPostAccountant, exact_cost
from dpaudit.checks.draws import NO_TOKENS, Draw, DrawnStep
from dpaudit.mechanisms import ANCHOR, ContextChange, ReducedStep, log_probability
from dpaudit.results import Finding, finding_of
from dpaudit.runs import BatchHeader, BatchReader, InputError, Manifest, RunReader, Sample, Step
from dpaudit.runs.manifest import MAX_WIDTH
from dpaudit.runs.rules import ForbiddenTokens, Ids
from dpaudit.runs.text import Decode

#: The largest group whose ex-post cost is worked out: as many contexts as the widest record of a median run bounds.
MOST_CONTEXTS = 2 * MAX_WIDTH - 1
#: So many values between a row's extremes agree by no chance; fewer may, where clipping takes the rest.
TELLING_VALUES = 16


def _freeze(*arrays: NDArray[Any] | None) -> None:
    for array in arrays:
        if array is not None:
            array.setflags(write=False)


class Additions(NamedTuple):
    """A step's rise and fall in nats, as bounded and as reached.

    `eps` is of the precision that they rest on.
    """

    bounds: tuple[float, float]
    reached: tuple[float, float]
    eps: float


class StepView:
    """A step, its batch's header, and what follows from them.

    Values are computed when they are first asked for.
    """

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
            forbidden: what the decoding rules forbid (`ForbiddenTokens.after`), or why nobody can tell; None without
                rules.
            position: its place in the batch.
            before: ids of the tokens that its text has before it.
            accountant: what the step's cost is charged to; None where nothing bounds it.
        """
        self.manifest, self.header, self.step, self.forbidden = manifest, header, step, forbidden
        self.position, self.before, self._accountant = position, before, accountant
        self.mechanism, self.arrays = manifest.mechanism, dict(step.arrays)
        # Whatever looks at a step, others look at the same values after it.
        _freeze(*self.arrays.values(), step.support, step.contexts, step.canary, step.spent, before)

    @cached_property
    def index(self) -> int | None:
        """The place of the sampled token among the support's tokens, or None if it has none."""
        step = self.step
        if step.support is None:
            return step.token if 0 <= step.token < self.manifest.record.vocabulary else None
        found = np.flatnonzero(step.support == step.token)
        return int(found[0]) if len(found) else None

    def places(self, tokens: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the places among the support's tokens of those tokens that are there."""
        ids = tokens.astype(np.int64)
        if self.step.support is None:
            return ids[(ids >= 0) & (ids < self.manifest.record.vocabulary)]
        order = np.argsort(self.step.support, kind="stable")
        at = np.searchsorted(self.step.support, ids, sorter=order)
        at = order[np.minimum(at, len(order) - 1)]
        return at.compress(self.step.support[at] == ids)

    @cached_property
    def aggregate(self) -> NDArray[np.floating]:
        """The vector [S] that the record says was sampled from."""
        found = self.mechanism.aggregate(self.arrays)
        _freeze(found)
        return found

    @cached_property
    def reduced(self) -> ReducedStep | None:
        """The step without the columns that no neighbour moves; None if the token has no place."""
        if self.index is None:
            return None
        found = self.mechanism.reduced(self.arrays, self.index, self.aggregate)
        _freeze(*found.arrays.values())
        return found

    @cached_property
    def log_probability(self) -> float | None:
        """The sampled token's log-probability by the record's aggregate; None without a place."""
        if self.reduced is None:
            return None
        aggregate = self.mechanism.aggregate(self.reduced.arrays)
        return self.mechanism.log_probability(aggregate, self.reduced.token, self.reduced.fixed)

    @cached_property
    def contributions(self) -> NDArray[np.floating] | None:
        """Every context's contribution to the aggregate, [n, S]; None unless all are recorded."""
        if self.step.contexts is not None or self.header.contexts:
            return self.step.given
        return np.zeros((0, len(self.aggregate)), dtype=self.manifest.record.dtype)

    @cached_property
    def budgets(self) -> NDArray[np.float64] | None:
        """The budget of each context in the run, [n]; None without budgets."""
        own, each = self.header.budgets, self.mechanism.budget
        if each is None:
            return None
        return np.full(self.header.contexts, each) if own is None else np.array(own, dtype=np.float64)

    @cached_property
    def range_problem(self) -> Finding | None:
        """The reason why recorded values cannot be of clipped contributions, or None.

        It is a failure of record.range.
        """
        contribution, step = self.mechanism.contribution, self.step
        if problem := self.mechanism.aggregator.range_problem(self.arrays, self.header.contexts, contribution):
            return finding_of(problem)
        for name, values in (("contexts", step.contexts), ("canary", step.canary)):
            if values is not None and (problem := contribution.range_problem(name, values)):
                return finding_of(problem)
        if problem := contribution.anchor_problem(self.arrays):
            return finding_of(problem)
        if step.support is not None:
            ids = step.support.astype(np.int64)
            if ids[0] < 0 or ids[-1] >= self.manifest.record.vocabulary or not (np.diff(ids) > 0).all():
                return Finding(code="record.support-ids")
            least = 1 if self.manifest.decoding.any else self.manifest.least_support  # mechanism.support-rules
            if len(ids) < least:
                return Finding(code="record.small-support", values={"tokens": len(ids), "least": least})
        return finding_of(self.mechanism.support.anchor_problem(self.arrays[ANCHOR])) if contribution.anchored else None

    @cached_property
    def cost(self) -> Cost | None:
        """The step's cost, charged to its batch when first asked for; None if nothing bounds it."""
        if self._accountant is None or self.reduced is None:
            return None
        try:
            return self._accountant.charge(self.header.id, self.reduced)
        except ValueError:  # no bound follows from such a record; the objections say what is wrong with it
            return None

    @cached_property
    def additions(self) -> Additions | None:
        """The effect of the worst contexts that could join.

        It is None if the mechanism gives no bound, or does not say what is sampled from with a
        context more.
        """
        step, here, mechanism = self.reduced, self.log_probability, self.mechanism
        if step is None or here is None:
            return None
        try:
            box = mechanism.box(step.arrays, ContextChange("add_remove"))
            bounds = exact_cost(*box, step.token, mechanism.temperature, step.fixed)
        except ValueError:  # no bound follows from such a record
            return None
        towards = np.full(len(box[1]), -mechanism.clip)
        towards[step.token] = mechanism.clip
        reached = []
        for values in (towards, -towards):
            more = mechanism.with_context(step.arrays, values)
            if more is None:
                return None
            reached.append(log_probability(more, step.token, mechanism.temperature, step.fixed) - here)
        return Additions(bounds, (reached[0], -reached[1]), float(np.finfo(box[1].dtype).eps))

    @cached_property
    def drawn(self) -> DrawnStep | None:
        """The declared distribution and the drawn token; None if the aggregate has no numbers."""
        if self.index is None:
            return None
        odds = self.aggregate if self.mechanism.draw.likely else self.mechanism.odds(self.arrays)
        return DrawnStep.of(odds, self.mechanism.temperature, self.index, self.places(self.before))

    @cached_property
    def draw(self) -> Draw | None:
        """The place of the random number behind the token; None likewise."""
        return None if self.drawn is None else Draw.of(self.drawn, self.step.token)


class BatchView:
    """A batch that is open for reading.

    Attributes:
        run: the run that it is of.
        record: its file.
        header: what was known before its first step.
        accountant: what its steps are charged to; None where nothing bounds their costs.
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
        before = self.record.before(position)
        forbidden: Mapping[str, Ids] | InputError | None = self.run.unruled
        if self.run.rules is not None:
            prompt = self.manifest.public_prompt(self.header.label)
            forbidden = self.run.rules.after(prompt, before.tolist())
        step = self.record.step(position)
        return StepView(
            self.manifest,
            self.header,
            step,
            forbidden,
            position=position,
            before=before,
            accountant=self.accountant,
        )


class RunView:
    """The common data for reading all batches of a run.

    Attributes:
        manifest: the run's.
        change: how one unit's difference changes contexts; None where nothing bounds it.
        rules: the run's decoding rules; None without them, and where they cannot be read.
        unruled: why nobody can tell what the run's decoding rules forbid; None where it can be
            told.
    """

    def __init__(self, reader: RunReader, change: ContextChange | None) -> None:
        """Read the run's tokenizer, if its rules are about the text of tokens."""
        self.manifest, self.change, self._reader = reader.manifest, change, reader
        self.rules: ForbiddenTokens | None = None
        self.unruled: InputError | None = None
        try:
            self.rules = reader.forbidden_tokens()
        except InputError as error:
            self.unruled = error.alone()

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


def values_between_extremes(row: NDArray[np.floating]) -> int:
    """Return how many values of a row [S] lie between its smallest and its largest."""
    return int(((row > row.min()) & (row < row.max())).sum())
