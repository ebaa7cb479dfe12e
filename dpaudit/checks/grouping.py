"""What it cost to group records by clusters, for a claim's relation and unit: noisy counts, and centres."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dpaudit.accounting import (
    CentersMethod,
    centers_epsilon,
    noise_covers,
    rebalancing_epsilon,
    rebalancing_events,
    rounded_sum,
)
from dpaudit.mechanisms import Relation, Unit
from dpaudit.runs import Claim, Clustering, Manifest

#: Who has a say in a method's centres, counts apart.
ORIGINS = {
    "k-means": "private",
    "chang": "noised",
    "dpm": "noised",
    "public-centers": "public",
    "public-centers-rebalanced": "public",
}


@dataclass(frozen=True)
class GroupingCost:
    """What is spent before any token is drawn; 0 throughout for a run without a clustering.

    Attributes:
        counts: pure epsilon of the noisy counts, in nats; infinite where counts were used without noise.
        centers: epsilon of the centres, in nats, from the scales of their noise; infinite where nothing bounds it.
        delta: of the centres.
        events: the counts' cost as events for joint composition (`rebalancing_events`); empty where it is infinite.
        unbounded: why one of them is infinite, as a sentence; empty where none is.
    """

    counts: float = 0.0
    centers: float = 0.0
    delta: float = 0.0
    events: tuple[float, ...] = ()
    unbounded: str = ""

    @property
    def epsilon(self) -> float:
        """Both together, rounded up."""
        return rounded_sum(self.counts, self.centers)


def rests_on_counts(clustering: Clustering) -> bool:
    """Whether counts of private records decided which centres are kept, or how many batches a cluster has."""
    return clustering.keep != clustering.centers or clustering.records_per_batch is not None


def counts_are_noised(clustering: Clustering) -> bool:
    """Whether every count is declared to have had its noise before anything was chosen by it."""
    return clustering.counts is not None and clustering.counts.noised == "before-selection"


def grouping_cost(manifest: Manifest, claim: Claim) -> GroupingCost:
    """What the manifest's clustering costs one unit of the claim: counts and centres by the scales of their noise."""
    clustering = manifest.clustering
    if clustering.method == "none":
        return GroupingCost()
    records, reasons = unit_records(manifest, claim.unit), []
    counts = _counts_cost(clustering, claim, records)
    if math.isinf(counts):
        reasons.append("Counts of private records were used without noise, or nothing bounds how many one unit moves.")
    centers, reason = _centers_cost(manifest, claim)
    reasons += [reason] * bool(reason)
    events = rebalancing_events(counts, claim.relation) if math.isfinite(counts) else ()
    return GroupingCost(counts, centers, clustering.delta or 0.0, events, " ".join(reasons))


def unit_records(manifest: Manifest, unit: Unit) -> int | None:
    """How many records one unit of a claim has at most; None where nothing bounds it."""
    if unit == "user":
        return manifest.privacy.records_per_user
    return manifest.batching.examples_per_context if unit == "context" else 1


def _counts_cost(clustering: Clustering, claim: Claim, records: int | None) -> float:
    noise = clustering.counts
    if noise is None:
        return math.inf if rests_on_counts(clustering) else 0.0
    if records is None or not counts_are_noised(clustering):
        return math.inf
    cost = rebalancing_epsilon(noise.scale, claim.relation, records)
    # Rounding up may pass the declared figure by its last bit where that figure is enough.
    return min(cost, noise.epsilon) if noise_covers(noise.scale, noise.epsilon, claim.relation, records) else cost


def _centers_cost(manifest: Manifest, claim: Claim) -> tuple[float, str]:
    """Epsilon, and why it is infinite."""
    clustering = manifest.clustering
    origin = clustering.origin if clustering.origin == ORIGINS[clustering.method] else "private"
    if origin == "public":
        return 0.0, ""
    if origin == "private":
        return math.inf, "The centres follow from private records without noise that is paid for."
    if unit_records(manifest, claim.unit) != 1:
        return math.inf, f"The noise on the centres hides one record, and a {claim.unit} may have more."
    try:
        return noised_centers_epsilon(clustering, claim.relation), ""
    except ValueError as error:
        return math.inf, f"No cost follows from clustering.settings: {error}."


@lru_cache(maxsize=8)
def _centers_epsilon(
    method: CentersMethod, settings: tuple[tuple[str, Any], ...], delta: float, relation: Relation
) -> float:
    return centers_epsilon(method, dict(settings), delta, relation)


def noised_centers_epsilon(clustering: Clustering, relation: Relation) -> float:
    """What noised centres cost one record, from the scales of noise that the run states, in nats.

    Raises:
        ValueError: it states none that bound anything.
    """
    assert clustering.method in ("chang", "dpm")
    return _centers_epsilon(clustering.method, tuple(clustering.settings.items()), clustering.delta or 0.0, relation)
