"""The audit's checks. Importing this package registers all of them."""

from dpaudit.checks import claim, integrity, mechanism, partition, record, release
from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import CATALOGUE, RUN_CHECKS, STEP_CHECKS

__all__ = [
    "CATALOGUE",
    "RUN_CHECKS",
    "STEP_CHECKS",
    "Facts",
    "claim",
    "integrity",
    "mechanism",
    "partition",
    "record",
    "release",
]
