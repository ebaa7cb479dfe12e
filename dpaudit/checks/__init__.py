"""The audit's checks. Importing this package registers all of them."""

from dpaudit.checks import (
    claim,
    composition,
    disclosure,
    integrity,
    mechanism,
    neighbors,
    partition,
    rebalancing,
    record,
    release,
    replay,
    sampling,
)
from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import CATALOGUE, RUN_CHECKS, STEP_CHECKS

__all__ = [
    "CATALOGUE",
    "RUN_CHECKS",
    "STEP_CHECKS",
    "Facts",
    "claim",
    "composition",
    "disclosure",
    "integrity",
    "mechanism",
    "neighbors",
    "partition",
    "rebalancing",
    "record",
    "release",
    "replay",
    "sampling",
]
