"""The audit's checks. Importing this package registers all of them."""

from dpaudit.checks import claim, composition, integrity, mechanism, neighbors, partition, record, release, sampling
from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import CATALOGUE, RUN_CHECKS, STEP_CHECKS

__all__ = [
    "CATALOGUE",
    "RUN_CHECKS",
    "STEP_CHECKS",
    "Facts",
    "claim",
    "composition",
    "integrity",
    "mechanism",
    "neighbors",
    "partition",
    "record",
    "release",
    "sampling",
]
