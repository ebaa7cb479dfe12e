"""What an audit found, as types. report.json is one AuditResult; reports only render it."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainSerializer

Status = Literal["pass", "fail", "warn", "skip", "error"]
Verdict = Literal["pass", "fail", "error"]
Relation = Literal["add_remove", "replace"]
Unit = Literal["record", "context"]


def finite_or_text(value: float) -> float | Literal["inf", "-inf", "nan"]:
    """JSON has no infinities: they travel as strings."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


Number = Annotated[float, PlainSerializer(finite_or_text, when_used="json")]


class Result(BaseModel):
    """Base of every part of a result: immutable, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ClaimResult(Result):
    """The claim that was tested, with epsilon in nats."""

    epsilon: Number
    delta: Number
    kind: Literal["ex-post", "approximate"]
    relation: Relation
    unit: Unit


class ExPost(Result):
    """Data-dependent ex-post epsilon, in nats, recomputed from the record. Itself private.

    `total` is what a claim must cover: the smallest valid generation cost plus `rebalancing`.
    `exact` is None while only Theorem 1 is computed.
    """

    relation: Relation
    unit: Unit
    theorem1: Number
    exact: Number | None
    rebalancing: Number
    total: Number


class Approximate(Result):
    """(epsilon, delta)-DP of the mean mechanism, from public settings alone."""

    epsilon: Number
    delta: Number
    method: str
    relation: Relation
    unit: Unit
    tokens: int
    rebalancing: Number


class Empirical(Result):
    """Losses that were realised on actual neighbours. They prove nothing about the others."""

    leave_one_out_max: Number | None


class Guarantees(Result):
    """Three kinds of epsilon, never added up and never in one column."""

    ex_post: ExPost | None
    approximate: Approximate | None
    empirical: Empirical


class BatchResult(Result):
    """One batch's costs in nats; None where the aggregator has no such figure."""

    id: int
    label: str | None
    contexts: int
    steps: int
    theorem1: Number | None
    exact: Number | None
    leave_one_out_max: Number | None


class TokenCurve(Result):
    """Cost per token position over the batches that reached it, in nats (the paper's appendix figures)."""

    position: tuple[int, ...]
    batches: tuple[int, ...]
    mean: tuple[Number, ...]
    maximum: tuple[Number, ...]


class CheckResult(Result):
    """One check's outcome.

    Attributes:
        title: states the outcome, good or bad.
        evidence: 0 declared in the manifest, 1 arithmetic on the record, 2 record against release,
            3 recomputed with model and data, 4 tested against actual neighbours.
        measured, expected: what was found and what would have been right, in words or figures.
        detail: where, and what to do; for "skip" what is missing.
        reference: the paper's or the documentation's place.
    """

    id: str
    title: str
    status: Status
    evidence: int
    measured: str
    expected: str
    detail: str
    reference: str


class AuditResult(Result):
    """The result of one audit.

    Attributes:
        verdict: "pass" when every check passed, "fail" when one did not, "error" when the run cannot be read.
        guarantee: the guarantee (or its absence) in one plain sentence.
        caveats: what a reader of that sentence must know beside it.
        not_checked: ids of the catalogue's checks that this version does not have.
        run: summary of the manifest, software versions and digests.
    """

    schema_version: Literal["1"] = "1"
    verdict: Verdict
    guarantee: str
    caveats: tuple[str, ...]
    claim: ClaimResult | None
    guarantees: Guarantees
    batches: tuple[BatchResult, ...]
    tokens: TokenCurve | None
    checks: tuple[CheckResult, ...]
    not_checked: tuple[str, ...]
    run: dict[str, Any]

    def to_json(self) -> str:
        """The result as strict JSON text: no bare NaN or Infinity."""
        return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def report_schema() -> dict[str, Any]:
    """The JSON Schema of report.json. dpaudit/schemas/report.schema.json is this, as text."""
    return AuditResult.model_json_schema(mode="serialization")
