"""What an audit found, as types. report.json is one AuditResult; reports only render it."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainSerializer, model_validator

from dpaudit.quality import PRIVATE, Digest, Quality, Scores

Status = Literal["pass", "fail", "warn", "skip", "error"]
Verdict = Literal["pass", "fail", "error"]
Relation = Literal["add_remove", "replace"]
Unit = Literal["record", "context", "user"]
Kind = Literal["ex-post", "approximate", "empirical"]
Chosen = Literal["costliest", "median", "cheapest", "first", "last"]
Asked = Literal["epsilon", "delta", "relation", "unit"]


def finite_or_text(value: float) -> float | Literal["inf", "-inf", "nan"]:
    """JSON has no infinities: they travel as strings."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


#: How much of a released text a result holds.
SAMPLE_LENGTH = 600

Number = Annotated[float, PlainSerializer(finite_or_text, when_used="json")]


class Result(BaseModel):
    """Base of every part of a result: immutable, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> str:
        """This as strict JSON text: no bare NaN or Infinity."""
        return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


class ClaimResult(Result):
    """The claim that was tested, with epsilon in nats. `records_per_user`: the most that the unit "user" stands for."""

    epsilon: Number
    delta: Number
    kind: Literal["ex-post", "approximate"]
    relation: Relation
    unit: Unit
    records_per_user: int | None = None


class ExPost(Result):
    """Data-dependent ex-post epsilon, in nats, recomputed from the record. Itself private.

    Attributes:
        theorem1: the paper's Theorem 1, summed over tokens, worst batch.
        exact: the larger of `rise` and `fall`, suprema over all aggregates that a neighbour can have; never above
            `theorem1`.
        rise: how much more probable a neighbour can have made the texts.
        fall: how much less probable.
        rebalancing: epsilon of what decided how records were grouped: noisy counts, and centres.
        total: exact + rebalancing, which a claim must cover.
        delta: of noised centres; where it is not 0, the claim is about sets of outcomes (docs/mathematics.md).
    """

    relation: Relation
    unit: Unit
    records_per_user: int | None = None
    theorem1: Number
    exact: Number
    rise: Number
    fall: Number
    rebalancing: Number
    total: Number
    delta: Number = 0.0


class Approximate(Result):
    """(epsilon, delta)-DP of the mean mechanism, from public settings alone.

    Attributes:
        epsilon: the smallest sound figure, by `method`; rebalancing is inside, accounted for jointly.
        epsilon_lower: no accountant can do better than this for an exponential mechanism of this range.
        rdp: what Renyi accounting (the paper's method) gives for the same run.
        tokens: the public maximum length that was accounted for.
        sensitivity: what moves a logit how far, in words.
        rebalancing: pure epsilon of the noisy counts, already in `epsilon`.
        centers, centers_delta: of the cluster centres, already in `epsilon` and `delta`.
    """

    epsilon: Number
    epsilon_lower: Number | None
    rdp: Number
    delta: Number
    method: str
    relation: Relation
    unit: Unit
    records_per_user: int | None = None
    tokens: int
    sensitivity: str
    rebalancing: Number
    centers: Number = 0.0
    centers_delta: Number = 0.0


class ContextLoss(Result):
    """log p(text) - log p(text without this context), in nats, summed over the batch's tokens."""

    batch: int
    slot: int
    loss: Number


class CurvePoint(Result):
    """The smallest delta that goes with an epsilon: as the sampled texts suggest, and from below with confidence."""

    epsilon: Number
    delta: Number
    delta_lower: Number


class Attack(Result):
    """What telling a run from its neighbour by its texts showed. A lower bound: the mechanism is no more private.

    Attributes:
        epsilon: no (epsilon', delta) guarantee with a smaller epsilon' holds, with probability `confidence`.
        estimate: the same without allowing for chance.
        trials: texts that were generated on either side.
        beyond: texts whose log-ratio exceeds the ex-post bound that the accounting gives for that very text.
    """

    epsilon: Number
    estimate: Number
    delta: Number
    confidence: float
    trials: int
    beyond: int
    curve: tuple[CurvePoint, ...]


class Empirical(Result):
    """Losses that were realised on actual neighbours. They prove nothing about the others.

    Attributes:
        leave_one_out_max: the largest absolute loss of a left-out context; None where the record gives none.
        contexts: how many contexts were left out, one at a time.
        worst: the contexts with the largest absolute losses, largest first.
        attack: None where no replay made one.
    """

    leave_one_out_max: Number | None
    contexts: int
    worst: tuple[ContextLoss, ...]
    attack: Attack | None = None


class Guarantees(Result):
    """Three kinds of epsilon, never added up and never in one column."""

    ex_post: ExPost | None
    approximate: Approximate | None
    empirical: Empirical


class LedgerEntry(Result):
    """One node of the composition: what it costs, of which kind, and how its children make it up.

    Attributes:
        rule: "leaf", "sum" of the children, "maximum" over them, or "joint" composition by an accountant.
        delta: None where the kind has none.
        reference: the theorem or the documentation's place that justifies the rule.
        omitted: children that are not listed (the cheaper batches of a long run).
    """

    name: str
    kind: Kind
    relation: Relation
    unit: Unit
    value: Number
    delta: Number | None
    rule: Literal["leaf", "sum", "maximum", "joint"]
    reference: str
    children: tuple[LedgerEntry, ...]
    omitted: int


class BatchResult(Result):
    """One batch's ex-post costs in nats, as in ExPost; None where the record gives no such figure."""

    id: int
    label: str | None
    contexts: int
    steps: int
    theorem1: Number | None
    exact: Number | None
    rise: Number | None
    fall: Number | None
    leave_one_out_max: Number | None


class TokenBand(Result):
    """How the exact costs of tokens, in nats, are spread over the batches, at each position or group of positions.

    Quantiles are rounded outward: a tenth of the costs at most lie below `low`, a tenth at most above `high`, and
    `median` is at least the upper middle one. None lies beyond the least and the largest cost there.

    Attributes:
        first, last: the positions of each group, 1-based, ascending; equal where every position has its own.
        tokens: how many tokens the group's quantiles are of.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]
    tokens: tuple[int, ...]
    low: tuple[Number, ...]
    median: tuple[Number, ...]
    high: tuple[Number, ...]


class TokenCurve(Result):
    """Ex-post cost by token position, in nats, over the batches that reached it (the paper's appendix figures).

    Attributes:
        position: 1-based, ascending.
        batches: how many batches reached it.
        mean, maximum: of the exact cost of the token there, max(rise, fall).
        theorem1, exact: ex-post epsilon of generation had every batch ended here.
        band: how far batches differ at a position; None in results that were written without it.
        unbounded: how many tokens nothing bounds. None of the other figures counts them.
    """

    position: tuple[int, ...]
    batches: tuple[int, ...]
    mean: tuple[Number, ...]
    maximum: tuple[Number, ...]
    theorem1: tuple[Number, ...]
    exact: tuple[Number, ...]
    band: TokenBand | None = None
    unbounded: int = 0


class SampleText(Result):
    """The beginning of one released text, from samples.jsonl.

    Attributes:
        batch: which one.
        chosen: why it is shown: its place among the batches by exact ex-post cost, or in order where none has a cost.
        text: at most SAMPLE_LENGTH characters; None where the run releases token ids alone.
        characters: of the whole text.
        tokens: of the batch, its end included.
    """

    batch: int
    chosen: Chosen
    label: str | None
    text: str | None
    characters: int
    tokens: int


class CheckResult(Result):
    """One check's outcome.

    Attributes:
        title: states the outcome, good or bad.
        evidence: 0 declared in the manifest, 1 arithmetic on the record, 2 record against release,
            3 recomputed with model and data, 4 tested against actual neighbours.
        measured, expected: what was found and what would have been right, in words or figures.
        detail: where, and what to do; for "skip" what is missing, and the command that would run it.
        applicable: False for a skip that hides nothing, since the run has no part that the check is about.
        why: what harm comes where the check fails. The same for every run.
        remedy: how to mend it where it fails, in general; `detail` may know more of this run.
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
    applicable: bool = True
    why: str = ""
    remedy: str = ""


class AuditResult(Result):
    """The result of one audit.

    Attributes:
        audience: "public" for the form that `dpaudit.disclosure.public_form` makes for readers outside.
        verdict: "pass" when no check failed and none up to the level `evidence` that is about the run was skipped,
            "fail" otherwise, "error" when the run cannot be read.
        evidence: the level that was asked for.
        guarantee: the guarantee (or its absence) in one plain sentence.
        caveats: what a reader of that sentence must know beside it.
        ledger: how the figures come about: a tree for each kind, since kinds are never added up.
        not_checked: ids of the checks that are about the run and were not made, at any level.
        run: summary of the manifest, software versions and digests.
        quality: how good the texts are, where that was evaluated. No part of the audit, and never public.
        asked: fields of the claim that were given to the audit, in place of the run's own.
        samples: a few of the released texts. Never public: the verdict does not say that they may be.
    """

    schema_version: Literal["1"] = "1"
    audience: Literal["internal", "public"] = "internal"
    verdict: Verdict
    evidence: int
    guarantee: str
    caveats: tuple[str, ...]
    claim: ClaimResult | None
    guarantees: Guarantees
    ledger: tuple[LedgerEntry, ...]
    batches: tuple[BatchResult, ...]
    tokens: TokenCurve | None
    checks: tuple[CheckResult, ...]
    not_checked: tuple[str, ...]
    run: dict[str, Any]
    quality: Quality | None = None
    asked: tuple[Asked, ...] = ()
    samples: tuple[SampleText, ...] = ()


def report_schema() -> dict[str, Any]:
    """The JSON Schema of report.json. dpaudit/schemas/report.schema.json is this, as text."""
    return AuditResult.model_json_schema(mode="serialization")


class RunEpsilon(Result):
    """One run's epsilon, in nats, with what it cannot be read without.

    Attributes:
        epsilon: of everything, rebalancing and centres included; for ex-post by the exact cost of generation.
        theorem1: the same by the paper's bound, beside an exact one; None for mean runs, and where the kind has none.
        delta: None where the kind has none.
    """

    run: str
    kind: Literal["ex-post", "approximate"]
    relation: Relation
    unit: Unit
    records_per_user: int | None = None
    epsilon: Number
    theorem1: Number | None
    delta: Number | None

    @property
    def neighbours(self) -> tuple[Relation, Unit, int | None]:
        """What neighbouring data sets differ by; users with different numbers of records are different units."""
        return (self.relation, self.unit, self.records_per_user)


class OneKind(Result):
    """Figures that may stand in one column: all of one kind.

    Raises:
        ValidationError: a figure is of another kind.
    """

    kind: Literal["ex-post", "approximate"]
    figures: tuple[RunEpsilon, ...]

    @model_validator(mode="after")
    def _kinds_agree(self) -> OneKind:
        if any(figure.kind != self.kind for figure in self.figures):
            raise ValueError(f"a column of {self.kind} figures holds nothing of another kind")
        return self


class SameLength(OneKind):
    """Epsilon of runs with the same neighbours, had all their batches had the same number of tokens.

    Raises:
        ValidationError: a figure is of another kind, or holds for other neighbours.
    """

    tokens: int

    @model_validator(mode="after")
    def _neighbours_agree(self) -> SameLength:
        if any(figure.neighbours != self.figures[0].neighbours for figure in self.figures):
            raise ValueError("figures for different neighbours are not set side by side at one length")
        return self


class Afforded(Result):
    """How many tokens a batch of one run can have within another run's epsilon.

    Attributes:
        tokens: None where there is no answer.
        all_generated: the run's longest batch ends here still within that epsilon; what more would cost is unknown.
        reason: why there is no answer; empty where there is one.
    """

    tokens: int | None
    all_generated: bool
    reason: str


class Affordable(OneKind):
    """Tokens of each run at the epsilon of each: `cells[i][j]` is the run of figure i at the epsilon of figure j.

    Raises:
        ValidationError: a figure is of another kind, the cells are no square of the figures, or one has tokens where
            the neighbours differ.
    """

    cells: tuple[tuple[Afforded, ...], ...]

    @model_validator(mode="after")
    def _cells_fit(self) -> Affordable:
        if [len(row) for row in self.cells] != [len(self.figures)] * len(self.figures):
            raise ValueError("there is a row and a column for each figure")
        for figure, row in zip(self.figures, self.cells, strict=True):
            for other, cell in zip(self.figures, row, strict=True):
                if cell.tokens is not None and figure.neighbours != other.neighbours:
                    raise ValueError("an epsilon for other neighbours buys no tokens")
        return self


class BudgetCurve(Result):
    """One run's epsilon, in nats, by the number of tokens that a batch may have.

    Attributes:
        accountant: "exact" and "theorem1" are of the ex-post kind, "rdp" and "optimal" of the approximate one.
        batches: how many batches an ex-post epsilon is the maximum over; None for what settings alone give.
        delta: None where the kind has none.
        tokens: ascending.
        epsilon: upper bounds, of everything, had no batch gone beyond as many tokens. It holds for all lengths from
            the one before on: read between two points, take the later.

    Raises:
        ValidationError: lengths differ, or `tokens` do not ascend.
    """

    run: str
    accountant: Literal["exact", "theorem1", "rdp", "optimal"]
    batches: int | None
    delta: Number | None
    tokens: tuple[int, ...]
    epsilon: tuple[Number, ...]

    @property
    def kind(self) -> Literal["ex-post", "approximate"]:
        """What sort of statement the curve's figures make."""
        return "ex-post" if self.accountant in ("exact", "theorem1") else "approximate"

    @model_validator(mode="after")
    def _points_fit(self) -> BudgetCurve:
        if len(self.tokens) != len(self.epsilon) or list(self.tokens) != sorted(set(self.tokens)):
            raise ValueError("a curve has an epsilon for each of its lengths, which ascend")
        return self


class BudgetPanel(Result):
    """Curves that may share an axis: of one kind of epsilon, for one kind of neighbours.

    Raises:
        ValidationError: a curve is of another kind.
    """

    kind: Literal["ex-post", "approximate"]
    relation: Relation
    unit: Unit
    records_per_user: int | None = None
    curves: tuple[BudgetCurve, ...]

    @model_validator(mode="after")
    def _kinds_agree(self) -> BudgetPanel:
        if any(curve.kind != self.kind for curve in self.curves):
            raise ValueError(f"an axis of {self.kind} figures holds nothing of another kind")
        return self


class Spread(Result):
    """How a run's exact ex-post cost, in nats, is spread over its batches; quartiles are costs of actual batches."""

    run: str
    relation: Relation
    unit: Unit
    records_per_user: int | None = None
    batches: int
    minimum: Number
    lower_quartile: Number
    median: Number
    upper_quartile: Number
    maximum: Number


class LeftOut(Result):
    """A run that a comparison at one length leaves out, and why.

    An ex-post figure that does not cover the whole run is left out of every comparison of its kind.
    """

    run: str
    kind: Literal["ex-post", "approximate"]
    reason: str


class RunScore(Result):
    """How good one run's texts are, by one measure. Computed from private records.

    Attributes:
        score: of the run's texts.
        ceiling: of real texts in their place, as many as there are synthetic ones; None where there is none.
        conditions: a digest of all that must agree for two figures to be compared.
    """

    run: str
    score: Scores
    ceiling: Scores | None
    conditions: Digest


class QualityColumn(Result):
    """Figures of one measure that may stand in one column.

    Attributes:
        n: texts on every side of MAUVE; test texts of an accuracy.
        features: name of the model that MAUVE or the classifier rests on.
        private: the mark of every figure here, wherever it goes.

    Raises:
        ValidationError: a figure was measured under other conditions.
    """

    measure: Literal["mauve", "linear-probe", "fine-tuned"]
    n: int
    features: str
    private: Literal["computed from private records, and no epsilon pays for publishing it"] = PRIVATE
    figures: tuple[RunScore, ...]

    @model_validator(mode="after")
    def _conditions_agree(self) -> QualityColumn:
        if len({figure.conditions for figure in self.figures}) != 1:
            raise ValueError("figures that were measured under other conditions are not set side by side")
        return self


class ComparedRun(Result):
    """One run of a comparison, as its audit found it; one that cannot be read as a whole has no figures.

    Attributes:
        caveats: what a reader of the guarantee must know beside it.
        caution: why its epsilons cannot be relied on, as what is said of the run; empty where they can.
        aggregator, clip, temperature, divisor: as the run states them; None where it states none.
        contexts, tokens: summed over the batches.
        longest_batch: in tokens.
    """

    name: str
    verdict: Verdict
    guarantee: str
    caveats: tuple[str, ...]
    caution: str = ""
    aggregator: str | None
    clip: Number | None
    temperature: Number | None
    divisor: Number | None
    batches: int
    contexts: int
    tokens: int
    longest_batch: int
    claim: ClaimResult | None
    guarantees: Guarantees


class Comparison(Result):
    """Two or more audited runs side by side. Every column of figures is of one kind, by the types that hold it."""

    schema_version: Literal["1"] = "1"
    runs: tuple[ComparedRun, ...]
    same_length: tuple[SameLength, ...]
    affordable: tuple[Affordable, ...]
    spreads: tuple[Spread, ...]
    left_out: tuple[LeftOut, ...]
    budgets: tuple[BudgetPanel, ...] = ()
    quality: tuple[QualityColumn, ...] = ()


class ClusteredBy(Result):
    """What one clustering method makes of the private records.

    Attributes:
        method: as configs name it.
        origin: who had a say in its centres: public data, private records through noise, or private records.
        centers: how many centres records may go to.
        epsilon, delta: what centres and counts cost for one record that comes or goes, epsilon in nats.
        clusters: how many hold two records or more.
        large: how many hold at least `ClusterComparison.large` records.
        v_measure: against the reference, between 0 and 1.
        sizes: records of each cluster that has any, descending.
        settings: what else decides it, by name.
    """

    method: str
    origin: Literal["public", "noised", "private"]
    centers: int
    epsilon: Number
    delta: Number
    clusters: int
    large: int
    v_measure: float
    sizes: tuple[int, ...]
    settings: dict[str, int | float | str]


class ClusterComparison(Result):
    """Clustering methods side by side on the same private records. Every figure below `methods` is a private one.

    Attributes:
        embedding: name of the embedding model.
        dimension: of its vectors.
        normalized: whether they were made unit vectors.
        records, public_records: distinct texts.
        reference: the method that V-measures compare with.
        large: from how many records on a cluster counts as large.
    """

    schema_version: Literal["1"] = "1"
    audience: Literal["internal"] = "internal"
    embedding: str
    dimension: int
    normalized: bool
    records: int
    public_records: int
    reference: str
    large: int
    methods: tuple[ClusteredBy, ...]
