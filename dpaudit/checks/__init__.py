"""The audit's checks. Importing this package registers all of them."""

from dpaudit.checks import (  # noqa: F401
    amplification,
    budgets,
    canaries,
    claim,
    committed_seed,
    disclosure,
    integrity,
    mechanism,
    neighbors,
    noise,
    partition,
    randomness,
    rebalancing,
    record,
    release,
    sampling,
    seeds,
    subsets,
    thresholds,
)
from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import CATALOGUE, CHECKS

__all__ = ["CATALOGUE", "CHECKS", "Facts"]
