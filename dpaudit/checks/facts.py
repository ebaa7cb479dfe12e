"""What one pass over a run gathers: a step as the checks and the sums see it, then a batch, then the run as a whole."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import ApproximateAccountant, Composition, Cost, ExPostAccountant, ReleaseAccountant
from dpaudit.accounting.ex_post_release import readers_cost
from dpaudit.checks.levels import (
    Levels,
    amplification_of,
    approximate_levels,
    not_ex_post,
    release_accountant,
)
from dpaudit.claims import CLAIM_KINDS, KindOfClaim
from dpaudit.mechanisms import ANCHOR, TELLING, ContextChange, ReducedStep
from dpaudit.results import ContextLoss, Finding, Place, Value, finding_of
from dpaudit.results.replay import PublicReplay, Replay, Rerun
from dpaudit.runs import (
    BatchHeader,
    BatchReader,
    Canaries,
    Claim,
    ClusterPlaces,
    Clusters,
    Held,
    InputError,
    Manifest,
    NotSecret,
    RunReader,
    SecretBatches,
    Step,
    UnfinishedError,
    secret_batches,
)
from dpaudit.runs.layout import steps_file
from dpaudit.runs.rules import Ids

if TYPE_CHECKING:
    from dpaudit.checks.committed_seed import SeededDraws
    from dpaudit.checks.noise import NoiseFacts
    from dpaudit.checks.partition import Placement
    from dpaudit.checks.randomness import Draw, IndependenceTest
    from dpaudit.checks.rebalancing import GroupingCost
    from dpaudit.checks.sampling import RunSampling, SamplingTest
    from dpaudit.checks.seeds import SeedTest
    from dpaudit.checks.subsets import SubsetFacts

INFINITE = Cost(math.inf, math.inf, math.inf)
#: What is public is held against other batches' after so many tokens at most: longer texts seldom agree.
LONGEST_PREFIX = 7
#: Of each of those tokens.
TOKEN_BYTES = 8
#: How many of the worst contexts are listed.
LISTED = 10


def input_problem(error: InputError, file: str = "") -> Finding:
    """Return an error over what was read as a finding.

    Args:
        error: what was raised.
        file: which file of the run it is about, relative to the run directory; empty where it is none of them.
    """
    values: dict[str, Value] = {"where": error.where, "problem": error.problem}
    if file:
        values["file"] = file
    if isinstance(error, UnfinishedError):
        return Finding(code="file.unfinished", values=values)
    return Finding(code="file.unusable", values=values | {"remedy": error.remedy})


class StepView:
    """A step, its batch's header, and what follows from them. Values are computed when they are first asked for."""

    def __init__(
        self, manifest: Manifest, header: BatchHeader, step: Step, forbidden: Mapping[str, Ids] | None = None
    ) -> None:
        """`forbidden`: what the decoding rules forbid (`ForbiddenTokens.after`); None where nobody can tell."""
        self.manifest, self.header, self.step, self.forbidden = manifest, header, step, forbidden
        self.mechanism, self.arrays = manifest.mechanism, dict(step.arrays)

    @cached_property
    def index(self) -> int | None:
        """Where the sampled token stands among the support's tokens, or None when it is not there."""
        step = self.step
        if step.support is None:
            return step.token if 0 <= step.token < self.manifest.record.vocabulary else None
        found = np.flatnonzero(step.support == step.token)
        return int(found[0]) if len(found) else None

    def places(self, tokens: NDArray[np.integer]) -> NDArray[np.int64]:
        """Where tokens stand among the support's, for those of them that are there."""
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
        return self.mechanism.aggregate(self.arrays)

    @cached_property
    def reduced(self) -> ReducedStep | None:
        """The step less the columns that no neighbour can move; None where the token has no place."""
        return None if self.index is None else self.mechanism.reduced(self.arrays, self.index, self.aggregate)

    @cached_property
    def log_probability(self) -> float | None:
        """Logarithm of the sampled token's probability by the record's aggregate; None where it has no place."""
        if self.reduced is None:
            return None
        aggregate = self.mechanism.aggregate(self.reduced.arrays)
        return self.mechanism.log_probability(aggregate, self.reduced.token, self.reduced.fixed)

    @cached_property
    def contributions(self) -> NDArray[np.floating] | None:
        """What every context gave to the aggregate, [n, S], where the record shows it: all, or there are none."""
        if self.step.contexts is not None or self.header.contexts:
            return self.step.given
        return np.zeros((0, len(self.aggregate)), dtype=self.manifest.record.dtype)

    @cached_property
    def budgets(self) -> NDArray[np.float64] | None:
        """What each context may spend in the run, [n]; None without budgets."""
        own, each = self.header.budgets, self.mechanism.budget
        if each is None:
            return None
        return np.full(self.header.contexts, each) if own is None else np.array(own, dtype=np.float64)

    @cached_property
    def range_problem(self) -> Finding | None:
        """Return why the recorded values cannot be of clipped contributions (record.range); None where they can."""
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


class StepViews:
    """The steps of one run's batches.

    Attributes:
        unruled: why nobody can tell what the run's decoding rules forbid; None where it can be told.
    """

    def __init__(self, reader: RunReader) -> None:
        """The run's tokenizer is read here, where its rules are about what tokens say."""
        self._manifest, self._rules = reader.manifest, None
        self.unruled: InputError | None = None
        try:
            self._rules = reader.forbidden_tokens()
        except InputError as error:
            self.unruled = error.alone()

    def of(self, batch: BatchReader, position: int) -> StepView:
        """One step. Raises InputError when it cannot be decoded."""
        forbidden = None
        if self._rules is not None:
            prompt = self._manifest.public_prompt(batch.header.label)
            forbidden = self._rules.after(prompt, batch.before(position).tolist())
        return StepView(self._manifest, batch.header, batch.step(position), forbidden)


#: What a step's public part must follow from: the label, and the tokens of the text so far as int64.
AfterPublic: TypeAlias = tuple[str | None, bytes]


@dataclass(frozen=True)
class SeenPublic:
    """What a step took from the public prompt: its place in the batch, what it must follow from, and its SHA-256."""

    position: int
    after: AfterPublic
    digest: bytes

    @classmethod
    def of(cls, header: BatchHeader, position: int, tokens: NDArray[np.integer], step: Step) -> SeenPublic:
        """The support and the anchor of a step, after these tokens of its text."""
        support, anchor = step.support, step.arrays.get(ANCHOR)
        taken = [] if support is None else [support.astype("<i8")]
        taken += [] if anchor is None else [anchor.astype("<f4")]
        digest = hashlib.sha256(b"".join(array.tobytes() for array in taken)).digest()
        return cls(position, (header.label, tokens.astype("<i8").tobytes()), digest)


class EqualRows:
    """Which contexts of a batch had the same contributions at every step, bit for bit.

    Attributes:
        groups: slots that were alike so far, for each set of two or more.
    """

    #: So many values between a row's extremes agree by no chance; fewer may, where clipping takes the rest.
    TELLING_VALUES = 16

    def __init__(self, contexts: int) -> None:
        """For a batch of so many contexts."""
        self.groups = [list(range(contexts))] if contexts > 1 else []
        self._values = np.zeros(contexts, dtype=np.int64)

    def add(self, contexts: NDArray[np.floating] | None) -> None:
        """Take in one step's contributions [n, S]; None, where they are not recorded, tells nothing apart."""
        if contexts is None:
            self.groups = []
            return
        parted: list[list[int]] = []
        for group in self.groups:
            alike: dict[bytes, list[int]] = {}
            for slot in group:
                alike.setdefault(contexts[slot].tobytes(), []).append(slot)
            parted += [slots for slots in alike.values() if len(slots) > 1]
        self.groups = parted
        for slots in parted:
            row = contexts[slots[0]]
            self._values[slots] += int(((row > row.min()) & (row < row.max())).sum())

    def result(self) -> list[list[int]]:
        """The sets whose likeness is no chance."""
        return [slots for slots in self.groups if self._values[slots[0]] >= self.TELLING_VALUES]


@dataclass(frozen=True)
class FoundCanary:
    """What a batch's record says of its canary.

    Attributes:
        number: in the file `canaries`.
        among: whether a recorded context contributed what the canary does, at every step.
        telling: whether that is no chance (`EqualRows`).
        removed: log p(tokens) - log p(tokens without it), in nats, where it is among the contexts.
        added: log p(tokens with it as one more context) - log p(tokens).
    """

    number: int
    among: bool
    telling: bool
    removed: float
    added: float


class CanarySums:
    """Adds up the exact log-ratios of one batch's tokens with its canary and without it, a step at a time."""

    def __init__(self, header: BatchHeader) -> None:
        self._header = header
        self._among = np.ones(header.contexts, dtype=np.bool_)
        self._spent, self._values = np.zeros(1), 0
        self._removed = self._added = 0.0

    def add(self, view: StepView) -> None:
        """Take in one step; one without what it needs leaves no number."""
        if self._header.canary is None:
            return
        row, contexts, given = view.step.canary, view.step.contexts, view.contributions
        if row is None or given is None or view.index is None or view.range_problem:
            self._removed = self._added = math.nan
            return
        if contexts is not None:
            self._among &= (contexts == row).all(axis=1)
        self._values += int(((row > row.min()) & (row < row.max())).sum())
        own, here = self._paid(view, row), _log_probability_of(view, given)
        self._added += _log_probability_of(view, np.concatenate((given, own[None]))) - here
        if self._among.any():
            self._removed += here - _log_probability_of(view, np.delete(given, int(self._among.argmax()), axis=0))

    def _paid(self, view: StepView, row: NDArray[np.floating]) -> NDArray[np.floating]:
        """What the canary would give, [S]: nothing once its budget, if it has one, does not pay for the draw."""
        if view.mechanism.budget is None:
            return row
        after = view.mechanism.spend(row[None], self._spent)
        paying, self._spent = bool(after[0] > self._spent[0]), after
        return row if paying else np.zeros_like(row)

    def result(self) -> FoundCanary | None:
        """Of a batch that has no more steps; None where it has no canary."""
        number, among = self._header.canary, bool(self._among.any())
        if number is None:
            return None
        telling = self._values >= EqualRows.TELLING_VALUES
        return FoundCanary(number, among, telling, self._removed if among else math.nan, self._added)


def _log_probability_of(view: StepView, contributions: NDArray[np.floating]) -> float:
    """Logarithm of the sampled token's probability, had these contexts [n, S] been aggregated."""
    mechanism, index = view.mechanism, view.index
    assert index is not None
    arrays = mechanism.aggregator.step(contributions, mechanism.clip, view.manifest.record.width)
    arrays |= {name: view.arrays[name] for name in (ANCHOR, *mechanism.draw.arrays()) if name in view.arrays}
    return mechanism.log_probability(mechanism.aggregate(arrays), index)


class UniformRows:
    """Which rows of a batch, its contexts' and the public prompt's, held equal logits at every step: none was scored.

    Attributes:
        contexts: which of them, [n].
        public: whether the anchor's row did.
    """

    def __init__(self, contexts: int) -> None:
        """For a batch of so many contexts."""
        self.contexts, self.public, self._steps = np.ones(contexts, dtype=np.bool_), True, 0

    def add(self, view: StepView) -> None:
        """Take in one step; what it does not record tells nothing."""
        contexts, anchor = view.step.contexts, view.arrays.get(ANCHOR)
        self.public &= anchor is not None and len(anchor) >= TELLING and bool(np.ptp(anchor) == 0)
        if contexts is None:
            self.contexts[:] = False
        else:
            self.contexts &= view.mechanism.contribution.uniform(view.arrays, contexts)
        self._steps += 1

    def problem(self, batch: int) -> Finding | None:
        """Return which rows of a batch without further steps nobody scored; None where all were scored."""
        count = int(self.contexts.sum())
        if not self._steps or not (count or self.public):
            return None
        values: dict[str, Value] = {"place": Place(batch=batch)}
        if not count:
            return Finding(code="record.unscored-public", values=values)
        values |= {"unscored": count, "contexts": len(self.contexts)}
        return Finding(code="record.unscored-both" if self.public else "record.unscored-contexts", values=values)


@dataclass
class TakenPublic:
    """What steps after the same label and tokens took from the public prompt.

    Attributes:
        batch, digest: of the first of them.
        steps: how many there are.
        compared: whether they are of two batches at least.
    """

    batch: int
    digest: bytes
    steps: int = 0
    compared: bool = False


@dataclass(frozen=True)
class BatchLosses:
    """What one batch's tokens cost its contexts.

    Attributes:
        contexts: how many contexts have a loss.
        worst: the largest losses in absolute value, and in order of slots where they are equal.
    """

    contexts: int
    worst: tuple[ContextLoss, ...]


class ContextSums:
    """Adds up the losses of one batch's contexts, a step at a time. A step without exact losses leaves it none."""

    def __init__(self, contexts: int) -> None:
        self._losses: NDArray[np.float64] | None = np.zeros(contexts)

    def add(self, view: StepView) -> None:
        """Take in one step."""
        losses = None
        if self._losses is not None and view.reduced is not None:
            losses = view.mechanism.losses(view.reduced, view.contributions, len(self._losses))
        if self._losses is None or losses is None or not np.isfinite(losses).all():
            self._losses = None
        else:
            self._losses += losses

    def result(self, batch: int) -> BatchLosses | None:
        """The losses of a batch that has no more steps; None where its record gives none."""
        if self._losses is None or not len(self._losses):
            return None
        order = np.argsort(-np.abs(self._losses), kind="stable")[:LISTED]
        worst = tuple(ContextLoss(batch=batch, slot=int(slot), loss=float(self._losses[slot])) for slot in order)
        return BatchLosses(len(self._losses), worst)


#: How many others of a step's most probable tokens are noted.
ALTERNATIVES = 3


class TokenFacts:
    """What each token of a batch cost and what else could have been drawn, a row for each of its T steps.

    Attributes:
        tokens: int32 [T] ids.
        costs: float64 [T, 3] exact cost, rise and fall, in nats; infinite where nothing bounds them.
        probabilities: float64 [T] of the sampled token, by the record; NaN where it has none.
        others: int32 [T, ALTERNATIVES] the most probable other tokens, likeliest first.
        likely: float64 [T, ALTERNATIVES] their probabilities; NaN where there is no such token.
    """

    def __init__(self, tokens: NDArray[np.int32]) -> None:
        """For a batch of these tokens, of which none was read."""
        self.tokens = tokens
        self.costs = np.full((len(tokens), 3), math.inf)
        self.probabilities = np.full(len(tokens), math.nan)
        self.others = np.zeros((len(tokens), ALTERNATIVES), dtype=np.int32)
        self.likely = np.full((len(tokens), ALTERNATIVES), math.nan)

    def add(self, position: int, view: StepView, cost: Cost) -> None:
        """Take in one step."""
        self.costs[position] = cost.exact, cost.rise, cost.fall
        logarithm, at = view.log_probability, view.index
        if logarithm is None or at is None:
            return
        self.probabilities[position] = math.exp(min(logarithm, 0.0))
        scores, support = view.aggregate, view.step.support
        most = min(ALTERNATIVES + 1, len(scores))
        likely = np.flatnonzero(scores >= np.partition(scores, len(scores) - most)[-most])  # most need no order
        likely = likely[np.argsort(-scores[likely], kind="stable")]
        likely = likely[likely != at][:ALTERNATIVES]
        beyond = (scores[likely].astype(np.float64) - float(scores[at])) / view.mechanism.temperature
        self.others[position, : len(likely)] = likely if support is None else support[likely]
        self.likely[position, : len(likely)] = np.minimum(np.exp(logarithm + beyond), 1.0)


class BatchBudgets:
    """Which contexts of one batch took part in its draws, and what they have spent by its last.

    Attributes:
        active: how many contexts took part in each draw.
        left_out: whether a context was left out of any, [n].
        budgets: what each may spend, [n], in nats of rho.
        spent: by each context after the last draw, likewise.
    """

    def __init__(self, contexts: int) -> None:
        self.active: list[int] = []
        self.left_out = np.zeros(contexts, dtype=np.bool_)
        self.budgets = self.spent = np.zeros(contexts)

    def add(self, view: StepView) -> None:
        """Take in one step, where contexts have budgets."""
        step = view.step
        if step.spent is not None and step.active is not None and view.budgets is not None:
            self.budgets = view.budgets
            self.active.append(int(np.count_nonzero(step.active)))
            self.left_out |= ~step.active
            self.spent = step.spent[1]


@dataclass
class BatchFacts:
    """Everything that is learnt from one batch's file. Its size does not grow with the vocabulary.

    It is filled where the file is read, which may be another process, and then only taken in by `Facts`: sums start
    anew with each batch, so that a run's figures are the same to the last bit wherever its batches were read.

    Attributes:
        id: the batch.
        sampling: the evidence of its steps.
        draws: where the random numbers behind them lie.
        intervals: of each step's token (`DrawnStep.interval`), NaN where it has none; empty without a committed seed.
        text_lengths: how many of its tokens each text has.
        empty, very_short: how many of its texts are, as in TextCounts.
        unreadable: why it could not be read to its end; None where it could.
        header: None where it could not be opened.
        digest: SHA-256 of its file, in hexadecimal.
        length: how many tokens it has.
        steps: how many of its steps were read.
        public: what its texts' first steps took from the public prompt, where they took anything.
        sample_digests: SHA-256 of its lines of samples.jsonl, as the steps imply them.
        texts, stops, unmade, problems, first_problems, unshown: as in Facts.
        likenesses: SHA-256 of texts' aggregates and tokens, with their places; without those that another text could
            have by chance.
        unbounded: whether a step could not be read, or has a cost that the record does not give.
        costs: the exact cost of each step, in nats; NaN where the record bounds nothing.
        spent: what `ExPostAccountant.attach` takes; None where there is nothing to account for.
        losses: what its tokens cost its contexts; None where the record does not say.
        equal: sets of its contexts whose recorded contributions are the same at every step.
        unscored: which of its rows no model scored; None where all were.
        gathered: what checks of the run learnt from its steps, by their ids (`RunCheck.gather`).
        tokens: what each of its tokens cost; None where there is nothing to account for.
        budgets: how its contexts used theirs; None where they have none.
        canary: what its record says of its canary; None where it has none.
        noise, subsets: what its draws by noise show, and of who was in them; None of those by softmax.
    """

    id: int
    sampling: SamplingTest
    unreadable: Finding | None = None
    header: BatchHeader | None = None
    digest: str = ""
    length: int = 0
    steps: int = 0
    draws: list[Draw] = field(default_factory=list)
    intervals: list[tuple[float, float]] = field(default_factory=list)
    text_lengths: list[int] = field(default_factory=list)
    empty: int = 0
    very_short: int = 0
    sample_digests: list[bytes] = field(default_factory=list)
    texts: list[Finding] = field(default_factory=list)
    said: set[bool] = field(default_factory=set)
    stops: list[Finding] = field(default_factory=list)
    unmade: dict[str, InputError] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)
    first_problems: dict[str, tuple[Place, Finding]] = field(default_factory=dict)
    public: list[SeenPublic] = field(default_factory=list)
    unshown: Counter[str] = field(default_factory=Counter)
    likenesses: list[tuple[Place, bytes]] = field(default_factory=list)
    unbounded: bool = False
    costs: list[float] = field(default_factory=list)
    spent: NDArray[np.float64] | None = None
    losses: BatchLosses | None = None
    equal: list[list[int]] = field(default_factory=list)
    unscored: Finding | None = None
    tokens: TokenFacts | None = None
    budgets: BatchBudgets | None = None
    canary: FoundCanary | None = None
    noise: NoiseFacts | None = None
    subsets: SubsetFacts | None = None
    gathered: dict[str, Any] = field(default_factory=dict)

    def note(self, check: str, position: int, problem: Finding) -> None:
        """Count a step check's objection and keep the first."""
        self.problems[check] += 1
        self.first_problems.setdefault(check, (Place(batch=self.id, step=position), problem))


@dataclass
class Facts:
    """Everything that is known after all batches were read once. Nothing here grows with the number of steps.

    Attributes:
        reader, manifest: the run.
        claim: the statement to test: the run's own, or what the caller asks about.
        change: how one unit's difference changes contexts; None when no bound is known.
        ex_post: what the record says of the ex-post cost; None where nothing bounds it.
        sampling: the evidence on how tokens were sampled.
        independence: that on whether they were drawn independently.
        seeds, coins: that on whether a seed tells them, and who was in a draw.
        placement: where the records went.
        grouping: what grouping records by clusters cost one unit of the claim.
        replayed: what recomputing with the model found, and with the data where they were given; None where nobody did.
        reruns: what running a recorded generator's script again without records found; none where nobody did.
        held: the run's commitment and head, where somebody was given them in time.
        tokenizers: digests of tokenizers that the caller vouches for (`Vocabulary.digest`).
        seeded: what a committed seed says of the tokens; None where none was given.
        clusters: what the file `clusters` says; None where it cannot be read.
        places: where batches stand among clusters; None without a clustering, and where the run does not say.
        unbounded: batches with a step that could not be read, or whose cost the record does not give.
        headers: the batches that could be read.
        lengths: their numbers of steps.
        digests: SHA-256 of files that were read, by name: see `digest`.
        sample_digests: SHA-256 of each batch's lines of samples.jsonl, as the steps imply them.
        texts: problems with texts, noted while their batches were open.
        said: whether texts are recorded as such: all are, or none, or some.
        stops: problems with the ends of texts and of batches, noted likewise.
        copies: texts that repeat another one, noted likewise.
        unreadable: problems with files that are not what their names say, by name. Such a file is not looked at again,
            not even for its digest.
        unmade: why a check could not be made, by its id.
        problems: how many steps each step check objected to, by its id.
        first_problems: the first of these objections, and where.
        private_parts: steps that took something else from the public prompt than another did after the same label and
            tokens.
        unshown: how many steps' records do not hold what a step check looks at, by its id.
        losses: the largest absolute leave-one-out loss of each batch that has one, in nats.
        worst: the largest of all contexts; equal ones in order of batch and slot.
        left_out: how many contexts have a loss.
        equal: sets of contexts of one batch whose recorded contributions are the same at every step: how many contexts,
            and the batch.
        unscored: which rows no model scored, for each batch that has some.
        gathered: what checks of the run learnt from batches, for each batch where that is anything, by their ids.
        steps: how many steps were read.
        empty, very_short: how many texts are, as in TextCounts.
        canaries: what the file `canaries` says; None where the run has none, or it cannot be read.
        found_canaries: what batches' records say of theirs, by batch.
        noise, subsets: what draws by noise show, and of who was in them; None of those by softmax.
    """

    reader: RunReader
    manifest: Manifest
    claim: Claim
    change: ContextChange | None
    ex_post: ExPostAccountant | None
    sampling: RunSampling
    independence: IndependenceTest
    seeds: SeedTest
    coins: SeedTest
    placement: Placement
    grouping: GroupingCost
    replayed: PublicReplay | None = None
    reruns: Sequence[Rerun] = ()
    held: Held = field(default_factory=Held)
    tokenizers: frozenset[str] = frozenset()
    seeded: SeededDraws | None = None
    clusters: Clusters | None = None
    places: ClusterPlaces | None = None
    unbounded: set[int] = field(default_factory=set)
    headers: dict[int, BatchHeader] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    sample_digests: dict[int, list[bytes]] = field(default_factory=dict)
    texts: list[Finding] = field(default_factory=list)
    said: set[bool] = field(default_factory=set)
    stops: list[Finding] = field(default_factory=list)
    copies: list[Finding] = field(default_factory=list)
    unreadable: dict[str, Finding] = field(default_factory=dict)
    unmade: dict[str, InputError] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)
    first_problems: dict[str, tuple[Place, Finding]] = field(default_factory=dict)
    private_parts: list[Place] = field(default_factory=list)
    unshown: Counter[str] = field(default_factory=Counter)
    losses: dict[int, float] = field(default_factory=dict)
    worst: list[ContextLoss] = field(default_factory=list)
    left_out: int = 0
    equal: list[tuple[int, int]] = field(default_factory=list)
    unscored: list[Finding] = field(default_factory=list)
    steps: int = 0
    empty: int = 0
    very_short: int = 0
    canaries: Canaries | None = None
    found_canaries: dict[int, FoundCanary] = field(default_factory=dict)
    noise: NoiseFacts | None = None
    subsets: SubsetFacts | None = None
    gathered: dict[str, list[Any]] = field(default_factory=dict)
    _public: dict[AfterPublic, TakenPublic] = field(default_factory=dict)
    _likenesses: dict[bytes, Place] = field(default_factory=dict)

    def take(self, batch: BatchFacts) -> None:
        """Take in what one batch says. Batches come in ascending order."""
        if batch.unreadable is not None:
            self.unreadable[steps_file(batch.id)] = batch.unreadable
        if batch.unbounded:
            self.unbounded.add(batch.id)
        if batch.header is None:
            return
        self.headers[batch.id], self.lengths[batch.id] = batch.header, batch.length
        self.sample_digests[batch.id] = batch.sample_digests
        self.digests[steps_file(batch.id)] = batch.digest
        self.texts += batch.texts
        self.said |= batch.said
        self.stops += batch.stops
        self.steps += batch.steps
        self.empty += batch.empty
        self.very_short += batch.very_short
        self.sampling.take(batch.id, batch.sampling)
        self.independence.take(batch.id, batch.draws, batch.text_lengths)
        self.seeds.take(batch.id, batch.draws)
        if self.seeded is not None:
            self.seeded.take(batch.id, batch.intervals)
        if batch.subsets is not None:
            self.coins.take(batch.id, batch.subsets.coins)
        self.noise = _together(self.noise, batch.noise)
        self.subsets = _together(self.subsets, batch.subsets)
        self.unshown.update(batch.unshown)
        self.unmade |= batch.unmade
        self.problems.update(batch.problems)
        self.first_problems = batch.first_problems | self.first_problems
        for seen in batch.public:
            taken = self._public.setdefault(seen.after, TakenPublic(batch.id, seen.digest))
            taken.steps += 1
            taken.compared |= taken.batch != batch.id  # texts of one batch have their records in common
            if taken.digest != seen.digest:
                self.private_parts.append(Place(batch=batch.id, step=seen.position))
        if self.ex_post is not None and batch.spent is not None:
            self.ex_post.attach(batch.id, batch.spent)
        if batch.losses is not None:
            self.losses[batch.id] = abs(batch.losses.worst[0].loss)
            self.worst = heapq.nlargest(LISTED, [*self.worst, *batch.losses.worst], key=lambda each: abs(each.loss))
            self.left_out += batch.losses.contexts
        if batch.canary is not None:
            self.found_canaries[batch.id] = batch.canary
        for check, found in batch.gathered.items():
            self.gathered.setdefault(check, []).append(found)
        self.unscored += [batch.unscored] if batch.unscored else []
        self.equal += [(len(slots), batch.id) for slots in batch.equal]
        for place, likeness in batch.likenesses:
            first = self._likenesses.setdefault(likeness, place)
            if first != place:
                self.copies.append(Finding(code="integrity.copied", values={"text": place, "original": first}))

    @property
    def replay(self) -> Replay | None:
        """What recomputing with the model and the data found; None where nobody did."""
        return self.replayed if isinstance(self.replayed, Replay) else None

    def digest(self, name: str) -> str:
        """SHA-256 of a file that can be read, in hexadecimal. Raises InputError where it cannot."""
        if name not in self.digests:
            self.digests[name] = self.reader.digest(name)
        return self.digests[name]

    @property
    def no_contexts(self) -> bool:
        """Whether all batches of the run were read and none of them has a context."""
        whole = len(self.headers) == self.manifest.batches
        return whole and not any(header.contexts for header in self.headers.values())

    @property
    def compared_parts(self) -> Counter[int]:
        """By how many tokens of their text stand before them: steps that another batch's could be held against."""
        found: Counter[int] = Counter()
        for (_, tokens), taken in self._public.items():
            if taken.compared:
                found[len(tokens) // TOKEN_BYTES] += taken.steps
        return found

    def batch_cost(self, batch: int) -> Cost:
        """Ex-post cost of one batch in nats when the whole change falls on it; infinite where a step has no bound."""
        if self.ex_post is None or batch in self.unbounded:
            return INFINITE
        return self.ex_post.batch_cost(batch)

    @property
    def kind(self) -> type[KindOfClaim]:
        """The kind of claim to test."""
        return CLAIM_KINDS[self.claim.kind]

    @property
    def ex_post_cost(self) -> Cost:
        """Ex-post cost of generation in nats: infinite where a step has no bound or a batch was not read."""
        unread = len(self.headers) != self.manifest.batches
        if self.ex_post is None or self.unbounded or unread:
            return INFINITE
        return self.ex_post.cost

    @cached_property
    def secrecy(self) -> SecretBatches | NotSecret:
        """What readers of the texts cannot know of a record's batch; or why both levels are equal."""
        return secret_batches(self.manifest, self.claim.unit, self.clusters)

    @cached_property
    def generation_levels(self) -> Levels:
        """Ex-post epsilon of generation at both levels; infinite where a step has no bound or a batch was not read."""
        secrecy, exact = self.secrecy, self.ex_post_cost.exact
        reason, relation, places = not_ex_post(self.claim, self.change), self.claim.relation, self.places
        release = readers_cost(self.manifest, secrecy, relation, self.change, places, exact, self.batch_cost)
        return Levels(release, exact, amplification_of(self.manifest, secrecy, reason, self.manifest.rounds))

    @property
    def ex_post_levels(self) -> Levels:
        """Epsilon that an ex-post claim must cover at either level: of generation, and of the clusters before it."""
        return self.generation_levels.beside(self.grouping.epsilon)

    @cached_property
    def release(self) -> ReleaseAccountant | None:
        """Both levels of what public settings alone bound: the most tokens of a batch, not realised ones, and clusters.

        None for a mechanism whose cost only the data shows, and where the claim has no delta to work it out at.
        """
        secret = self.secrecy if isinstance(self.secrecy, SecretBatches) else None
        return release_accountant(self.manifest, self.claim, self.grouping, self.change, secret)

    @cached_property
    def approximate(self) -> Composition | None:
        """The approximate guarantee of the batch level at the claim's delta; None where there is none."""
        tokens = self.manifest.stopping.most_tokens
        return None if self.release is None else self.release.batch_level(tokens, self.claim.delta)

    @cached_property
    def rho(self) -> float | None:
        """rho of zCDP of everything at the batch level, rounded up; None for a mechanism that has none."""
        accountant = self.of_rho
        return None if accountant is None else accountant.rho_of_all(self.manifest.stopping.most_tokens)

    @cached_property
    def of_rho(self) -> ApproximateAccountant | None:
        """What works rho out; None for a mechanism that has none."""
        return self.grouping.rho_accountant(self.manifest, self.change)

    @cached_property
    def approximate_levels(self) -> Levels | None:
        """It at both levels; None likewise."""
        if self.release is None:
            return None
        return approximate_levels(self.release, self.manifest, self.claim.delta, self.secrecy)


class _Mergeable(Protocol):
    def merge(self, other: Any) -> None: ...


_Shown = TypeVar("_Shown", bound=_Mergeable)


def _together(before: _Shown | None, batch: _Shown | None) -> _Shown | None:
    """What some batches show, and one more does."""
    if before is None or batch is None:
        return before or batch
    before.merge(batch)
    return before


def known_places(manifest: Manifest, clusters: Clusters | None) -> ClusterPlaces | None:
    """Where batches stand among clusters; None without a clustering, and where the run does not say."""
    each = manifest.batching.generate_per_cluster
    if clusters is None or each is None or clusters.method == "none":
        return None
    return ClusterPlaces(clusters, each, manifest.rounds)
