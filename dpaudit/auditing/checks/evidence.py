"""Knowledge of a run: its declarations, the question, and the evidence that one pass gathers.

A check owns its evidence: a class beside it, derived from `Evidence`. The audit makes one of each
class for the run. Each batch is read once, perhaps in another process: the result of
`Evidence.open` looks at its steps in order, and its findings are merged into the run's evidence,
batches in ascending order. So a run's figures are the same to the last bit wherever its batches
were read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.steps import BatchView, StepsView, StepView
from dpaudit.mechanisms import ContextChange
from dpaudit.mechanisms.claims import KindOfClaim
from dpaudit.results import Finding, Value
from dpaudit.runs import (
    BatchHeader,
    Canaries,
    Claim,
    ClusterPlaces,
    Clusters,
    CommittedSeed,
    InputError,
    KnownDigests,
    Manifest,
    NotSecret,
    RunReader,
    SecretBatches,
    UnfinishedError,
    secret_batches,
)

if TYPE_CHECKING:
    from dpaudit.results.disclosed_texts import DisclosedTexts
    from dpaudit.results.replay import PublicReplay, Replay, Rerun


Content = TypeVar("Content")


class ByBatch(Mapping[int, Content]):
    """A value for each of some batches, which are added in ascending order, in little memory.

    Numbers in an array take eight bytes each, where a dict's take four times as much and more.
    """

    def __init__(self, values: MutableSequence[Content]) -> None:
        """Start with no batch; `values` is the empty list or array to keep values in."""
        self._batches, self._values = array("q"), values

    def add(self, batch: int, value: Content) -> None:
        """Add the value of the next batch.

        Raises:
            ValueError: it is not after the last one.
        """
        if len(self) and batch <= self._batches[-1]:
            raise ValueError(f"batch {batch} comes after batch {self._batches[-1]}")
        self._batches.append(batch)
        self._values.append(value)

    @override
    def __getitem__(self, batch: int) -> Content:
        place = bisect_left(self._batches, batch)
        if place == len(self) or self._batches[place] != batch:
            raise KeyError(batch)
        return self._values[place]

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self._batches)

    @override
    def __len__(self) -> int:
        return len(self._batches)


class Headers(ByBatch[BatchHeader]):
    """Batches' headers; of those that are alike but for their id, one is kept."""

    def __init__(self) -> None:
        """Start with no batch."""
        super().__init__([])
        self._alike: dict[BatchHeader, BatchHeader] = {}

    @override
    def add(self, batch: int, value: BatchHeader) -> None:
        of_all = replace(value, id=0)
        super().add(batch, self._alike.setdefault(of_all, of_all))

    @override
    def __getitem__(self, batch: int) -> BatchHeader:
        return replace(super().__getitem__(batch), id=batch)


class BatchEvidence:
    """The evidence of one batch. Its memory grows with the batch's tokens and contexts at most."""

    def look(self, view: StepsView) -> None:
        """Look at some steps of the batch. Steps come in order, as many at a time as is worth it.

        What does not look at them together has a `step`.
        """
        for one in view.each:
            self.step(one)

    def step(self, view: StepView) -> None:
        """Look at one step."""

    def result(self) -> Any:
        """Return what was found, or None for nothing.

        It can be pickled and is small whatever the vocabulary.
        """
        return self


class Evidence:
    """Evidence of one kind, of a whole run: each batch's finding, or a subclass's merged ones.

    Attributes:
        by_batch: what was found, by batch.
        partial: whether it takes in what was found in a batch that could not be read to its end.
    """

    partial: ClassVar[bool] = False

    def __init__(self) -> None:
        self.by_batch: dict[int, Any] = {}

    @classmethod
    def begin(cls, run: AuditedRun) -> Self:
        """Return the evidence of a run of which no batch was read."""
        return cls()

    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        """Return what looks at a batch; None if there is nothing to look at."""
        return None

    def merge(self, batch: int, found: Any) -> None:
        """Take in a batch's finding (`BatchEvidence.result`).

        Batches come in ascending order.
        """
        self.by_batch[batch] = found

    def end(self) -> None:
        """Forget what only further batches would need: all of them are merged."""


Kind = TypeVar("Kind", bound=Evidence)


@dataclass
class AuditedRun:
    """A run as checks and guarantees see it. `run[Losses]` is the run's evidence of that class.

    Attributes:
        reader: the run.
        claim: the statement to test: the run's own, or what the caller asks about.
        replayed: what recomputing with the model found, and with the data where they were given;
            None without a replay.
        reruns: what running a recorded generator's script again without records found; none where
            nobody did.
        held: the run's commitment and head, where somebody was given them in time.
        tokenizers: digests of tokenizers that the caller vouches for (`Vocabulary.digest`).
        seed: the secret seed that the run commits to; None if none was given.
        disclosed: the texts on trial against the data, or why they cannot be tried; None without
            data.
        headers: those of the batches that could be opened, by id.
        lengths: their numbers of steps.
        cut_short: batches that could not be read to their end.
        steps: how many steps were read.
        digests: SHA-256 in hexadecimal of files that were read, by name: see `digest`.
        unreadable: problems with files that are not what their names say, by name. Such a file is
            not looked at again, not even for its digest.
        unmade: why evidence could not be gathered.
        absent: why checks did not look at some batches, by id: the process that read these could
            not load them.
    """

    reader: RunReader
    claim: Claim
    replayed: PublicReplay | None = None
    reruns: Sequence[Rerun] = ()
    known_digests: KnownDigests = field(default_factory=KnownDigests)
    tokenizers: frozenset[str] = frozenset()
    seed: CommittedSeed | None = None
    disclosed: DisclosedTexts | InputError | None = None
    headers: Headers = field(default_factory=Headers)
    lengths: ByBatch[int] = field(default_factory=lambda: ByBatch(array("q")))
    cut_short: set[int] = field(default_factory=set)
    steps: int = 0
    digests: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, Finding] = field(default_factory=dict)
    unmade: dict[type[Evidence], InputError] = field(default_factory=dict)
    absent: dict[str, InputError] = field(default_factory=dict)
    _evidence: dict[type[Evidence], Evidence] = field(default_factory=dict)

    def __getitem__(self, kind: type[Kind]) -> Kind:
        """Return the run's evidence of a class. Raises KeyError where it is not gathered."""
        found = self._evidence[kind]
        assert isinstance(found, kind)
        return found

    def begin(self, kind: type[Evidence]) -> None:
        """Gather evidence of a class from now on."""
        self._evidence[kind] = kind.begin(self)

    @property
    def manifest(self) -> Manifest:
        """The run's declarations."""
        return self.reader.manifest

    @cached_property
    def change(self) -> ContextChange | None:
        """The change of contexts by one unit.

        None if nothing bounds it, or it is beyond the record.
        """
        manifest, claim = self.manifest, self.claim
        change = manifest.privacy.change(manifest.batching.rule, claim.unit, claim.relation)
        return (
            change
            if change is None or manifest.mechanism.bounds(change, manifest.record.width)
            else None
        )

    @cached_property
    def clusters(self) -> Clusters | None:
        """The file `clusters`; None if unreadable, as integrity.format or .complete explains."""
        with suppress(InputError):
            return self.reader.clusters()
        return None

    @cached_property
    def canaries(self) -> Canaries | None:
        """The file `canaries`; None if the run has none, or it cannot be read."""
        with suppress(InputError):
            return None if self.manifest.canaries is None else self.reader.canaries()
        return None

    @property
    def replay(self) -> Replay | None:
        """The result of recomputing with the model and the data; None if that was not done."""
        return None if self.replayed is None else self.replayed.with_data

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file, in hexadecimal.

        Raises:
            InputError: it cannot be read.
        """
        if name not in self.digests:
            self.digests[name] = self.reader.digest(name)
        return self.digests[name]

    @property
    def no_contexts(self) -> bool:
        """Whether all batches of the run were read and none of them has a context."""
        whole = len(self.headers) == self.manifest.batches
        return whole and not any(header.contexts for header in self.headers.values())

    @property
    def kind(self) -> type[KindOfClaim]:
        """The kind of claim to test."""
        return self.claim.terms

    @cached_property
    def places(self) -> ClusterPlaces | None:
        """The batches' places among clusters.

        None without a clustering, and where the run does not say.
        """
        each = self.manifest.batching.generate_per_cluster
        if self.clusters is None or each is None or self.clusters.method == "none":
            return None
        return ClusterPlaces(self.clusters, each, self.manifest.rounds)

    @cached_property
    def secrecy(self) -> SecretBatches | NotSecret:
        """Readers' ignorance of a record's batch, or the reason why both levels are equal."""
        return secret_batches(self.manifest, self.claim.unit, self.clusters)


def first_alike(keys: NDArray[np.void]) -> NDArray[np.intp]:
    """Return of each key [n] the place of the first one that equals it.

    numpy.unique says the same, and loads what audits need for nothing else.
    """
    order = np.argsort(keys, kind="stable")
    begins = np.ones(len(keys), dtype=np.bool_)
    begins[1:] = keys[order[1:]] != keys[order[:-1]]
    first = np.empty(len(keys), dtype=np.intp)
    first[order] = order[begins][np.cumsum(begins) - 1]
    return first


def input_problem(error: InputError, file: str = "") -> Finding:
    """Return an error over what was read as a finding.

    Args:
        error: what was raised.
        file: which file of the run it is about, relative to the run directory; empty if it is none
            of them.
    """
    values: dict[str, Value] = {"where": error.where, "problem": error.problem}
    if file:
        values["file"] = file
    if isinstance(error, UnfinishedError):
        return Finding(code="file.unfinished", values=values)
    return Finding(code="file.unusable", values=values | {"remedy": error.remedy})
