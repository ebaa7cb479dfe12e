"""What one pass over a run gathers, for the checks of the run as a whole."""

from __future__ import annotations

import hashlib
import heapq
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import ApproximateAccountant, Composition, Cost, ExPostAccountant, rounded_sum
from dpaudit.checks.grouping import GroupingCost, grouping_cost
from dpaudit.checks.placement import Placement
from dpaudit.checks.sampling_test import SamplingTest
from dpaudit.checks.view import StepView
from dpaudit.mechanisms import ContextChange
from dpaudit.results import ContextLoss, Empirical
from dpaudit.results.replay import Replay
from dpaudit.runs import BatchHeader, Claim, ClusterPlaces, Clusters, InputError, Manifest, RunReader
from dpaudit.runs.layout import steps_file

INFINITE = Cost(math.inf, math.inf, math.inf)


@dataclass
class Problems:
    """How many steps a check objected to, and the first objection."""

    count: int
    first: str

    def merge(self, later: Problems) -> None:
        """Take in objections to later steps."""
        self.count += later.count


#: So many steps do not look divided by the number of their contexts by chance.
FEWEST_DIVIDED = 3


@dataclass
class Divided:
    """Steps that show what their sums of contexts were divided by (`Aggregator.divided_by`).

    Attributes:
        by_divisor: by the declared divisor.
        by_number: by the number of contexts, which is another number.
    """

    by_divisor: int = 0
    by_number: int = 0

    def add(self, shown: Literal["divisor", "number"] | None) -> None:
        """Take in a step."""
        self.by_divisor += shown == "divisor"
        self.by_number += shown == "number"

    def merge(self, other: Divided) -> None:
        """Take in other steps."""
        self.by_divisor += other.by_divisor
        self.by_number += other.by_number


#: A public support is held against others after so many tokens at most: longer texts seldom agree.
LONGEST_PREFIX = 7


@dataclass(frozen=True)
class SeenSupport:
    """The support after some tokens: its place, what it must follow from, and its SHA-256."""

    place: str
    label: str | None
    tokens: bytes
    digest: bytes

    @classmethod
    def of(cls, header: BatchHeader, tokens: NDArray[np.integer], support: NDArray[np.integer]) -> SeenSupport:
        """The support [S] after these tokens."""
        digest = hashlib.sha256(support.astype("<i8").tobytes()).digest()
        place = f"batch {header.id}, step {len(tokens)}"
        return cls(place, header.label, tokens.astype("<i8").tobytes(), digest)


@dataclass
class Supports:
    """Supports after the same label and tokens, which are the same where they follow from public prompts.

    Attributes:
        compared: steps whose support had another to agree with.
        private: those that did not agree.
    """

    compared: int = 0
    private: list[str] = field(default_factory=list)
    _known: dict[tuple[str | None, bytes], bytes] = field(default_factory=dict)

    def add(self, seen: SeenSupport) -> None:
        """Hold one support against the first of its kind."""
        known = self._known.setdefault((seen.label, seen.tokens), seen.digest)
        if known is seen.digest:  # it is the first
            return
        self.compared += 1
        if known != seen.digest:
            self.private.append(seen.place)


#: How many of the worst contexts are listed.
LISTED = 10


@dataclass(frozen=True)
class BatchLosses:
    """What one batch's tokens cost its contexts.

    Attributes:
        contexts: how many contexts have a loss.
        worst: the largest losses in absolute value, and in order of slots where they are equal.
    """

    contexts: int
    worst: tuple[ContextLoss, ...]

    @property
    def largest(self) -> float:
        """The largest absolute loss, in nats."""
        return abs(self.worst[0].loss)


class ContextSums:
    """Adds up the losses of one batch's contexts, a step at a time. A step without exact losses leaves it none."""

    def __init__(self, contexts: int) -> None:
        self._losses: NDArray[np.float64] | None = np.zeros(contexts)

    def add(self, view: StepView) -> None:
        """Take in one step."""
        losses = None
        if self._losses is not None and view.reduced is not None:
            losses = view.mechanism.losses(view.reduced, view.step.contexts, len(self._losses))
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


class RealisedLosses:
    """The worst losses of a run, gathered a batch at a time."""

    def __init__(self) -> None:
        self._worst: list[tuple[float, int, int, ContextLoss]] = []
        self._contexts = 0

    def take(self, batch: BatchLosses) -> None:
        """Take in one batch."""
        self._contexts += batch.contexts
        # Equal losses are listed in order of batch and slot.
        found = [(abs(each.loss), -each.batch, -each.slot, each) for each in batch.worst]
        self._worst = heapq.nlargest(LISTED, self._worst + found, key=lambda entry: entry[:3])

    def result(self) -> Empirical:
        """What is known after all batches."""
        return Empirical(
            leave_one_out_max=self._worst[0][0] if self._worst else None,
            contexts=self._contexts,
            worst=tuple(loss for *_, loss in self._worst),
        )


@dataclass
class BatchFacts:
    """Everything that is learnt from one batch's file. Its size does not grow with the vocabulary.

    It is filled where the file is read, which may be another process, and then only taken in by `Facts`: sums start
    anew with each batch, so that a run's figures are the same to the last bit wherever its batches were read.

    Attributes:
        id: the batch.
        sampling: the evidence of its steps.
        error: why it could not be read to its end; None where it could.
        digest: SHA-256 of its file, in hexadecimal; None where it could not be opened.
        header: None where it could not be opened.
        length: how many tokens it has.
        steps: how many of its steps were read.
        sample_digest, texts, stops, problems, supports, divided: as in Facts.
        likeness: SHA-256 of its aggregates and tokens; None where another batch could have the same by chance.
        unbounded: whether a step could not be read, or has a cost that the record does not give.
        costs: the exact cost of each step, in nats; NaN where the record bounds nothing.
        spent: what `ExPostAccountant.attach` takes; None where there is nothing to account for.
        losses: what its tokens cost its contexts; None where the record does not say.
    """

    id: int
    sampling: SamplingTest
    error: InputError | None = None
    digest: str | None = None
    header: BatchHeader | None = None
    length: int = 0
    steps: int = 0
    sample_digest: bytes = b""
    texts: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    problems: dict[str, Problems] = field(default_factory=dict)
    supports: list[SeenSupport] = field(default_factory=list)
    divided: Divided = field(default_factory=Divided)
    likeness: bytes | None = None
    unbounded: bool = False
    costs: list[float] = field(default_factory=list)
    spent: NDArray[np.float64] | None = None
    losses: BatchLosses | None = None

    def note(self, check: str, position: int, problem: str) -> None:
        """Count a step check's objection and keep the first."""
        _add(self.problems, check, Problems(1, f"batch {self.id}, step {position}: {problem}"))


@dataclass
class Facts:
    """Everything that is known after all batches were read once. Nothing here grows with the number of steps.

    Attributes:
        reader, manifest: the run.
        claim: the statement to test: the run's own, or what the caller asks about.
        change: how one unit's difference changes contexts; None when no bound is known.
        ex_post: what the record says of the ex-post cost; None where nothing bounds it.
        sampling: the evidence on how tokens were sampled.
        placement: where the records went.
        replay: what recomputing with the model and the data found; None where nobody did.
        clusters: what the file `clusters` says; None where it cannot be read.
        unbounded: batches with a step that could not be read, or whose cost the record does not give.
        headers: the batches that could be read.
        lengths: their numbers of steps.
        digests: SHA-256 of the batches' files, by name, as they were read.
        sample_digests: SHA-256 of each batch's line of samples.jsonl, as the steps imply it.
        texts: problems with released texts, noted while their batches were open.
        stops: problems with the ends of sequences, noted likewise.
        copies: batches that repeat another one, noted likewise.
        unreadable: problems with files that are not what their names say.
        refused: the names of these files.
        problems: objections of step checks, by check id.
        supports: what truncated supports say of where they come from.
        divided: what steps show of the divisor.
        losses: the largest leave-one-out loss of each batch that has one, in nats.
        steps: how many steps were read.
    """

    reader: RunReader
    manifest: Manifest
    claim: Claim
    change: ContextChange | None
    ex_post: ExPostAccountant | None
    sampling: SamplingTest
    placement: Placement
    replay: Replay | None = None
    clusters: Clusters | None = None
    unbounded: set[int] = field(default_factory=set)
    headers: dict[int, BatchHeader] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    sample_digests: dict[int, bytes] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    unreadable: list[InputError] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    problems: dict[str, Problems] = field(default_factory=dict)
    supports: Supports = field(default_factory=Supports)
    divided: Divided = field(default_factory=Divided)
    losses: dict[int, float] = field(default_factory=dict)
    steps: int = 0
    _likenesses: dict[bytes, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """The number of private records that the record bears out: no fewer than its contexts show.

        A fixed slot may be empty, so it counts for one only where the claim is per context.
        """
        filled = self.manifest.batching.rule != "hashed-slots" or self.claim.unit == "context"
        shown = sum(header.contexts for header in self.headers.values()) if filled else 0
        return max(self.manifest.data.records, shown)

    def refuse(self, name: str, error: InputError) -> None:
        """A file cannot be read: it is not looked at again, not even for its digest."""
        self.unreadable.append(error)
        self.refused.add(name)

    def take(self, batch: BatchFacts) -> None:
        """Take in what one batch says. Batches come in ascending order."""
        if batch.error is not None:
            self.refuse(steps_file(batch.id), batch.error)
        if batch.unbounded:
            self.unbounded.add(batch.id)
        if batch.header is None:
            return
        self.headers[batch.id], self.lengths[batch.id] = batch.header, batch.length
        self.sample_digests[batch.id] = batch.sample_digest
        if batch.digest is not None:
            self.digests[steps_file(batch.id)] = batch.digest
        self.texts += batch.texts
        self.stops += batch.stops
        self.steps += batch.steps
        self.sampling.merge(batch.sampling)
        self.divided.merge(batch.divided)
        for check, problems in batch.problems.items():
            _add(self.problems, check, problems)
        for seen in batch.supports:
            self.supports.add(seen)
        if self.ex_post is not None and batch.spent is not None:
            self.ex_post.attach(batch.id, batch.spent)
        if batch.losses is not None:
            self.losses[batch.id] = batch.losses.largest
        if batch.likeness is not None:
            first = self._likenesses.setdefault(batch.likeness, batch.id)
            if first != batch.id:
                self.copies.append(f"batch {batch.id} repeats batch {first}, aggregates and tokens alike")

    def batch_cost(self, batch: int) -> Cost:
        """Ex-post cost of one batch in nats when the whole change falls on it; infinite where a step has no bound."""
        if self.ex_post is None or batch in self.unbounded:
            return INFINITE
        return self.ex_post.batch_cost(batch)

    @property
    def ex_post_cost(self) -> Cost:
        """Ex-post cost of generation in nats: infinite where a step has no bound or a batch was not read."""
        unread = len(self.headers) != self.manifest.batching.batches
        if self.ex_post is None or self.unbounded or unread:
            return INFINITE
        return self.ex_post.cost

    @property
    def ex_post_total(self) -> float:
        """Epsilon that an ex-post claim must cover, in nats: of generation, and of the clusters before it."""
        return rounded_sum(self.ex_post_cost.exact, self.grouping.epsilon)

    @cached_property
    def grouping(self) -> GroupingCost:
        """What grouping records by clusters cost one unit of the claim."""
        return grouping_cost(self.manifest, self.claim)

    @cached_property
    def beforehand(self) -> ApproximateAccountant | None:
        """What public settings alone bound: maximum length, not realised ones, and clusters.

        None for a mechanism whose cost only the data shows, and where the claim has no delta to work it out at.
        """
        grouping, change = self.grouping, None if math.isinf(self.grouping.counts) else self.change
        found = ApproximateAccountant.of(
            self.manifest.mechanism,
            change,
            laplace=grouping.events,
            centers=grouping.centers,
            centers_delta=grouping.delta,
        )
        return found if 0 < self.claim.delta < 1 else None

    @cached_property
    def approximate(self) -> Composition | None:
        """The approximate guarantee at the claim's delta; None where there is none."""
        tokens = self.manifest.stopping.max_tokens
        return None if self.beforehand is None else self.beforehand.epsilon(tokens, self.claim.delta)

    @cached_property
    def places(self) -> ClusterPlaces | None:
        """Where batches stand among clusters; None without a clustering, and where the run does not say."""
        return known_places(self.manifest, self.clusters)


def known_places(manifest: Manifest, clusters: Clusters | None) -> ClusterPlaces | None:
    """Where batches stand among clusters; None without a clustering, and where the run does not say."""
    each = manifest.batching.generate_per_cluster
    if clusters is None or each is None or clusters.method == "none":
        return None
    return ClusterPlaces(clusters, each)


def _add(known: dict[str, Problems], check: str, problems: Problems) -> None:
    """Add a check's objections to those that are known of it."""
    if check in known:
        known[check].merge(problems)
    else:
        known[check] = problems
