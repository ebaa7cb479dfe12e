"""What audits, comparisons, inspections, evaluations and replays give: types only, which reports render."""

from dpaudit.mechanisms import Kind, Relation, Unit
from dpaudit.results.audit import (
    SAMPLE_LENGTH,
    Approximate,
    Asked,
    Attack,
    AuditResult,
    BatchResult,
    CheckResult,
    Chosen,
    ClaimResult,
    ContextLoss,
    CurvePoint,
    Empirical,
    ExPost,
    Guarantees,
    LedgerEntry,
    Number,
    Result,
    SampleText,
    Status,
    TokenBand,
    TokenCurve,
    Verdict,
    finite_or_text,
    report_schema,
)
from dpaudit.results.clusters import ClusterComparison, ClusteredBy
from dpaudit.results.comparison import (
    Affordable,
    Afforded,
    BudgetCurve,
    BudgetPanel,
    ComparedRun,
    Comparison,
    LeftOut,
    QualityColumn,
    RunEpsilon,
    RunScore,
    SameLength,
    Spread,
)
