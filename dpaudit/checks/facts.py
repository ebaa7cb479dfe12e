"""What one pass over a run gathers, for the checks of the run as a whole."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import ContextChange, Cost, ExPostAccountant
from dpaudit.checks.replayed import Replay
from dpaudit.checks.sampling_test import SamplingTest
from dpaudit.results import Approximate
from dpaudit.runs import BatchHeader, Claim, InputError, Manifest, RunReader

#: Relative rounding of sums of contexts.
_EQUAL = 1e-6

INFINITE = Cost(math.inf, math.inf, math.inf)


@dataclass
class Problems:
    """How many steps a check objected to, and the first objection."""

    count: int
    first: str


#: So many steps do not have -clip for their smallest mean by chance.
FEWEST_FLOORS = 3


@dataclass
class Floors:
    """Steps of mean runs whose smallest mean tells what the sums were divided by.

    Attributes:
        by_divisor: steps where it is that of n contexts at -clip, over the declared divisor.
        by_number: steps where it is -clip itself, as over n, and the two differ.
    """

    by_divisor: int = 0
    by_number: int = 0

    def add(self, smallest: float, contexts: int, clip: float, divisor: float) -> None:
        """Take in a step's smallest mean."""
        if not contexts or math.isclose(contexts, divisor, rel_tol=_EQUAL):
            return
        self.by_divisor += math.isclose(smallest, -clip * contexts / divisor, rel_tol=_EQUAL)
        self.by_number += math.isclose(smallest, -clip, rel_tol=_EQUAL)


#: A public support is held against others after so many tokens at most: longer texts seldom agree.
_LONGEST_PREFIX = 7


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

    def add(self, header: BatchHeader, tokens: NDArray[np.integer], support: NDArray[np.integer]) -> None:
        """Take in the support [S] after these tokens."""
        if len(tokens) > _LONGEST_PREFIX:
            return
        digest = hashlib.sha256(support.astype("<i8").tobytes()).digest()
        known = self._known.setdefault((header.label, tokens.astype("<i8").tobytes()), digest)
        if known is digest:  # the first of its kind
            return
        self.compared += 1
        if known != digest:
            self.private.append(f"batch {header.id}, step {len(tokens)}")


@dataclass
class Facts:
    """Everything that is known after all batches were read once. Nothing here grows with the number of steps.

    Attributes:
        reader, manifest: the run.
        claim: the statement to test: the run's own, or what the caller asks about.
        change: how one unit's difference changes contexts; None when no bound is known.
        ex_post: what the record says of the ex-post cost; None where nothing bounds it.
        approximate: what the public settings say of the approximate guarantee; None where there is none.
        sampling: the evidence on how tokens were sampled.
        replay: what recomputing with the model and the data found; None where nobody did.
        unbounded: batches with a step that could not be read, or whose cost the record does not give.
        headers: the batches that could be read.
        lengths: their numbers of steps.
        sample_digests: SHA-256 of each batch's line of samples.jsonl, as the steps imply it.
        texts: problems with released texts, noted while their batches were open.
        stops: problems with the ends of sequences, noted likewise.
        copies: batches that repeat another one, noted likewise.
        unreadable: problems with files that are not what their names say.
        refused: the names of these files.
        problems: objections of step checks, by check id.
        supports: what truncated supports say of where they come from.
        floors: what the smallest means say of the divisor.
        losses: the largest leave-one-out loss of each batch that has one, in nats.
        steps: how many steps were read.
    """

    reader: RunReader
    manifest: Manifest
    claim: Claim
    change: ContextChange | None
    ex_post: ExPostAccountant | None
    approximate: Approximate | None
    sampling: SamplingTest
    replay: Replay | None = None
    unbounded: set[int] = field(default_factory=set)
    headers: dict[int, BatchHeader] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    sample_digests: dict[int, bytes] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    unreadable: list[InputError] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    problems: dict[str, Problems] = field(default_factory=dict)
    supports: Supports = field(default_factory=Supports)
    floors: Floors = field(default_factory=Floors)
    losses: dict[int, float] = field(default_factory=dict)
    steps: int = 0

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

    def note(self, check: str, place: str, problem: str) -> None:
        """Count a step check's objection and keep the first."""
        if check in self.problems:
            self.problems[check].count += 1
        else:
            self.problems[check] = Problems(1, f"{place}: {problem}")

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
