"""Were records counted by cluster with noise that was paid for?"""

from __future__ import annotations

from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, not_applicable, run_check


@run_check(
    check_id="rebalancing.noise",
    title="Clusters rest on noisy counts that are paid for",
    failed="Clusters rest on counts that no noise is declared for",
    evidence=1,
    remedy="Noise all counts before any is used, and declare it; or generate without clusters.",
    reference="docs/mathematics.md#rebalancing",
)
def clusters_are_noised(facts: Facts) -> Outcome:
    """The clusters that batches name against the noise that the run declares; this version knows no clustering."""
    expected = "no cluster without declared noise"
    named = [batch for batch, header in facts.headers.items() if header.cluster is not None]
    if named:
        return Outcome("fail", f"{len(named)} batches name a cluster; first batch {named[0]}", expected)
    return not_applicable(expected, "The run declares no clustering, and no batch names a cluster.")
