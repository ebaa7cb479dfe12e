"""The audit's checks. Importing this package declares all of dpaudit's own."""

from dpaudit.auditing.checks import (  # noqa: F401
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
)
from dpaudit.auditing.checks.registry import registered

__all__ = ["registered"]
