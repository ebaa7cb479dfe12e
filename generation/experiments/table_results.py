"""Tables of runs, as types: what their rows are estimated to take, and what became of them.

`dpaudit lab table --json` prints an `Estimates` or a `TableResult`; table.json is one TableResult.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dpaudit.generation.experiments.table import PublishedQuality, PublishedRow
from dpaudit.mechanisms.claims import ClaimKind
from dpaudit.results import (
    EXIT_CODES,
    AuditResult,
    ClaimResult,
    Finding,
    Number,
    Relation,
    Result,
    Unit,
    Verdict,
)
from dpaudit.results.quality import PRIVATE

#: The worst thing that happened to a row decides the command's exit code.
FailureKind = Literal["unusable", "internal"]
#: What is done with a row: its run is made, or, where it is whole, compared with the row's config
#: and data.
Stage = Literal["generate", "resume", "audit", "evaluate"]


# --- estimates ------------------------------------------------------------------------------------


class Throughput(Result):
    """Contexts that the rows' model continues by a token in a second, and the figure's source."""

    context_tokens_per_second: Number
    source: str


class Estimate(Result):
    """The size and cost of one row, from public settings alone.

    Attributes:
        config: the row's name.
        clusters: groups of records that share batches: labels, or clusters within them.
        batches: of which each gives a text, or as many as its tokens take.
        counted: noisy counts decide on batches, and `batches` is about their number.
        contexts: of a batch: its slots, or about the number of its records.
        tokens: of a batch at most; a single text that ends early takes fewer.
        context_tokens: batches x contexts x tokens.
        epsilon_as_paper: of a mean's tokens for one context that comes or goes, at records ** -1.1:
            the paper's figure, of the batch level and of one round. Noised centres are in it, noisy
            counts are not. Infinite if records without noise decide on centres, else None for
            medians.
        counts_epsilon: of the noisy counts, which the paper adds to it.
        affordable_tokens: how many tokens the paper's epsilon buys by the same accounting; None
            without one.
        epsilon: of all that, accounted for jointly, at the release level, for the unit and relation
            of the config's own claim; infinite if nothing bounds it, None for medians, whose
            ex-post epsilon is known afterwards.
        batch_epsilon: the same at the batch level.
        equal: why both levels are equal, None if they are not.
        delta: that goes with `epsilon`.
        hours: None without a throughput.
    """

    config: str
    dataset: str
    method: str
    clusters: int
    batches: int
    counted: bool
    contexts: Number
    tokens: int
    context_tokens: int
    epsilon_as_paper: Number | None
    counts_epsilon: Number
    affordable_tokens: int | None
    epsilon: Number | None
    batch_epsilon: Number | None
    equal: Finding | None
    delta: Number | None
    unit: Unit
    relation: Relation
    hours: Number | None
    paper: PublishedRow | None


class Estimates(Result):
    """A table's rows in its order."""

    title: str
    throughput: Throughput | None
    rows: tuple[Estimate, ...]


# --- results --------------------------------------------------------------------------------------


class Failure(Result):
    """Why a row has no (more) figures. No text of a record is in it.

    Attributes:
        kind: unusable where the row's input is at fault, internal for a defect in dpaudit.
        stage: what was being done.
    """

    kind: FailureKind
    stage: Stage
    message: str


class Audited(Result):
    """The results of a row's audit.

    Attributes:
        failed: ids of the checks that failed or could not be made; where none did, of those that a
            pass lacks.
        claim: that was tested, clusters' cost included.
        theorem1: by the paper's Theorem 1 for an ex-post claim, in nats, clusters' cost included.
        equal: why both levels of the claim are equal, None if they are not.
        texts, tokens: that were generated.
    """

    verdict: Verdict
    failed: tuple[str, ...]
    claim: ClaimResult | None
    theorem1: Number | None
    equal: Finding | None
    texts: int
    tokens: int

    @classmethod
    def of(cls, result: AuditResult) -> Audited:
        """Return the part of an audit that a table shows."""
        ex_post, claim = result.guarantees.ex_post, result.claim
        found = None if claim is None else result.guarantees.epsilons(claim.kind)
        return cls(
            verdict=result.verdict,
            failed=tuple(
                check.id
                for check in result.checks
                if check.status in ("fail", "error")
                or (result.verdict == "not_verified" and check.required(result.evidence))
            ),
            claim=result.claim,
            theorem1=None if ex_post is None else ex_post.theorem1 + ex_post.rebalancing,
            equal=None if found is None else found.amplification.reason,
            texts=sum(batch.texts for batch in result.batches),
            tokens=sum(batch.steps for batch in result.batches),
        )


class Measured(Result):
    """One figure over seeds. `std`: None for a single seed."""

    mean: Number
    std: Number | None


class Evaluated(Result):
    """The quality of a row's texts, and of as many real ones by the same measure.

    Attributes:
        n: texts on each side of MAUVE; figures of different n are not comparable.
        method: how accuracy was measured.
        trained: texts that the classifier was trained on.
        real_accuracy, real_trained: of as many real texts, or fewer if there are no more.
        public_mauve, public_accuracy, public_trained: of the row's public baseline; None if it has
            none.
        warnings: those for readers of the figures.
    """

    n: int | None
    mauve: Measured | None
    real_mauve: Measured | None
    method: str | None
    accuracy: Measured | None
    trained: int | None
    real_accuracy: Measured | None
    real_trained: int | None
    public_mauve: Measured | None = None
    public_accuracy: Measured | None = None
    public_trained: int | None = None
    warnings: tuple[str, ...]


class RowResult(Result):
    """One row: its results, and the paper's.

    Attributes:
        config: the row's name.
        kind: of the epsilon that its run claims.
        unbounded: its centres come from the records without noise, so nothing bounds its epsilon,
            whatever it claims.
    """

    config: str
    dataset: str
    method: str
    kind: ClaimKind
    clusters: int
    unbounded: bool
    audited: Audited | None = None
    evaluated: Evaluated | None = None
    failure: Failure | None = None
    paper: PublishedRow | None = None


class TableResult(Result):
    """A table. `notice`: that its figures are private."""

    schema_version: Literal["1"] = "1"
    audience: Literal["internal"] = "internal"
    notice: str = f"Internal. Ex-post epsilons, MAUVE and accuracy are {PRIVATE}."
    title: str
    versions: dict[str, str]
    real: dict[str, PublishedQuality | None]
    rows: tuple[RowResult, ...]

    @property
    def exit_code(self) -> Annotated[int, Field(ge=0, le=3)]:
        """Return the largest code of all rows.

        A defect is 3, a row that could not be run 2, a failed audit 1, all else 0.
        """
        return max(map(_exit_code, self.rows), default=0)


def _exit_code(row: RowResult) -> int:
    if row.failure is not None:
        return 3 if row.failure.kind == "internal" else 2
    return 2 if row.audited is None else EXIT_CODES[row.audited.verdict]
