"""What became of a table's rows, as types: table.json is one TableResult."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dpaudit.quality import PRIVATE
from dpaudit.results import AuditResult, ClaimResult, Number, Result, Verdict

#: The worst thing that happened to a row decides the command's exit code.
FailureKind = Literal["unusable", "internal"]


class Failure(Result):
    """Why a row has no (more) figures. No text of a record is in it.

    Attributes:
        kind: unusable where the row's input is at fault, internal for a defect in dpaudit.
        stage: what was being done.
    """

    kind: FailureKind
    stage: Literal["generate", "audit", "evaluate"]
    message: str


class Published(Result):
    """What the paper says of a row, or of real texts, which have no epsilon."""

    epsilon: Number | None = None
    clustering_epsilon: Number = 0.0
    clusters: int | None = None
    mauve: Number
    mauve_std: Number
    accuracy: Number
    accuracy_std: Number


class Audited(Result):
    """What an audit found of a row's run.

    Attributes:
        failed: ids of the checks that failed or could not be made.
        claim: that was tested, clusters' cost included.
        theorem1: what the paper's Theorem 1 gives for an ex-post claim, in nats, clusters' cost included.
        texts, tokens: that were generated.
    """

    verdict: Verdict
    failed: tuple[str, ...]
    claim: ClaimResult | None
    theorem1: Number | None
    texts: int
    tokens: int

    @classmethod
    def of(cls, result: AuditResult) -> Audited:
        """The part of an audit that a table shows."""
        ex_post = result.guarantees.ex_post
        return cls(
            verdict=result.verdict,
            failed=tuple(check.id for check in result.checks if check.status in ("fail", "error")),
            claim=result.claim,
            theorem1=None if ex_post is None else ex_post.theorem1 + ex_post.rebalancing,
            texts=len(result.batches),
            tokens=sum(batch.steps for batch in result.batches),
        )


class Measured(Result):
    """One figure over seeds. `std`: None for a single seed."""

    mean: Number
    std: Number | None


class Evaluated(Result):
    """How good a row's texts are, and real ones by the same measure.

    Attributes:
        n: texts on each side of MAUVE; figures of different n are not comparable.
        method: how accuracy was measured.
        real_accuracy: trained on as many real texts.
        warnings: what a reader of the figures must know.
    """

    n: int | None
    mauve: Measured | None
    real_mauve: Measured | None
    method: str | None
    accuracy: Measured | None
    real_accuracy: Measured | None
    warnings: tuple[str, ...]


class RowResult(Result):
    """One row: what was made of it, and what the paper says.

    Attributes:
        key: SHA-256 over all that the row's figures follow from; empty where they are not whole.
        config: the row's name.
        kind: of the epsilon that its run claims.
    """

    config: str
    dataset: str
    method: str
    kind: Literal["approximate", "ex-post"]
    clusters: int
    key: str = ""
    audited: Audited | None = None
    evaluated: Evaluated | None = None
    failure: Failure | None = None
    paper: Published | None = None


class TableResult(Result):
    """A table. `notice`: that its figures are private."""

    schema_version: Literal["1"] = "1"
    audience: Literal["internal"] = "internal"
    notice: str = f"Internal. Ex-post epsilons, MAUVE and accuracy are {PRIVATE}."
    title: str
    versions: dict[str, str]
    real: dict[str, Published | None]
    rows: tuple[RowResult, ...]

    @property
    def exit_code(self) -> Annotated[int, Field(ge=0, le=3)]:
        """3 for a defect, 2 for a row that could not be run, 1 for an audit that did not pass, else 0."""
        return max(map(_exit_code, self.rows), default=0)


def published(values: dict[str, Any] | None) -> Published | None:
    """A paper's figures, from a table's file."""
    return None if values is None else Published.model_validate(values)


def _exit_code(row: RowResult) -> int:
    if row.failure is not None:
        return 3 if row.failure.kind == "internal" else 2
    codes: dict[Verdict, int] = {"pass": 0, "fail": 1, "error": 2}
    return 2 if row.audited is None else codes[row.audited.verdict]
