"""What a mechanism is: contributions, aggregators, their record, their bounds and what their claims can say."""

from dpaudit.mechanisms.central import Central
from dpaudit.mechanisms.columns import (
    NO_FIXED_COLUMNS,
    Arrays,
    Box,
    FixedColumns,
    ReducedStep,
    log_probability,
)
from dpaudit.mechanisms.interfaces import (
    FLOAT64_ROUNDING,
    Aggregator,
    ClaimKind,
    Contribution,
    Deviation,
    Fields,
    Kind,
    Positive,
    Recomputed,
    StepArray,
    clash,
    largest_absolute,
)
from dpaudit.mechanisms.logits import TopClippedLogits
from dpaudit.mechanisms.mean import ROUNDING, DivisorKind, Mean, bounded_range, mean_box, mean_sensitivity
from dpaudit.mechanisms.mechanism import AGGREGATORS, CONTRIBUTIONS, MAX_VOCABULARY, Mechanism, Support
from dpaudit.mechanisms.median import Median
from dpaudit.mechanisms.neighbors import BatchingRule, ContextChange, Relation, Unit, context_change
from dpaudit.mechanisms.order_statistics import (
    bounds_from_central,
    central_order_statistics,
    median_bounds,
    median_of,
    median_sides,
    movable,
)

__all__ = [
    "AGGREGATORS",
    "CONTRIBUTIONS",
    "FLOAT64_ROUNDING",
    "MAX_VOCABULARY",
    "NO_FIXED_COLUMNS",
    "ROUNDING",
    "Aggregator",
    "Arrays",
    "BatchingRule",
    "Box",
    "Central",
    "ClaimKind",
    "ContextChange",
    "Contribution",
    "Deviation",
    "DivisorKind",
    "Fields",
    "FixedColumns",
    "Kind",
    "Mean",
    "Mechanism",
    "Median",
    "Positive",
    "Recomputed",
    "ReducedStep",
    "Relation",
    "StepArray",
    "Support",
    "TopClippedLogits",
    "Unit",
    "bounded_range",
    "bounds_from_central",
    "central_order_statistics",
    "clash",
    "context_change",
    "largest_absolute",
    "log_probability",
    "mean_box",
    "mean_sensitivity",
    "median_bounds",
    "median_of",
    "median_sides",
    "movable",
]
