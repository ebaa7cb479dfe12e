"""The cost of grouping records by clusters for one unit of the claim, before any token."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from dpaudit import accounting
from dpaudit.accounting import rounded_sum
from dpaudit.mechanisms import ContextChange, Mechanism, Relation, Unit
from dpaudit.mechanisms.claims import ZcdpClaim
from dpaudit.results import Finding
from dpaudit.runs import Claim, Clustering, Manifest


class GroupingCost(NamedTuple):
    """The cost before any token is drawn; 0 throughout for a run without a clustering.

    Attributes:
        counts: pure epsilon of the noisy counts, in nats; infinite if counts were used without
            noise.
        centers: epsilon of the centres, in nats, from the scales of their noise; infinite if
            nothing bounds it.
        delta: of the centres.
        events: the counts' cost as events for joint composition (`rebalancing_events`); empty if
            it is infinite.
        unbounded: why one of them is infinite; empty if none is.
    """

    counts: float = 0.0
    centers: float = 0.0
    delta: float = 0.0
    events: tuple[float, ...] = ()
    unbounded: tuple[Finding, ...] = ()

    @property
    def epsilon(self) -> float:
        """Both together, rounded up."""
        return rounded_sum(self.counts, self.centers)

    def accountant(
        self, mechanism: Mechanism, change: ContextChange | None
    ) -> accounting.ApproximateAccountant | None:
        """Return the accountant of draws and clusters together.

        Return None for a mechanism whose cost only the data shows.
        """
        bounded = None if math.isinf(self.counts) else change
        return accounting.ApproximateAccountant.of(
            mechanism, bounded, laplace=self.events, centers=self.centers, centers_delta=self.delta
        )

    def rho_accountant(
        self, manifest: Manifest, change: ContextChange | None
    ) -> accounting.ApproximateAccountant | None:
        """Return what works rho of zCDP out, of all rounds; None for a mechanism that has no rho.

        Of a run that is stopped by what its texts say all rounds count.
        """
        if ZcdpClaim.id not in manifest.mechanism.kinds:
            return None
        accountant = self.accountant(manifest.mechanism, change)
        return None if accountant is None else replace(accountant, rounds=manifest.batching.rounds)


def rests_on_counts(manifest: Manifest) -> bool:
    """Return whether private counts decided on kept centres or on clusters' numbers of batches."""
    clustering = manifest.clustering
    return clustering.keep != clustering.centers or manifest.batching.records_per_batch is not None


def counts_are_noised(clustering: Clustering) -> bool:
    """Return whether every count is declared to be noised before anything was chosen by it."""
    return clustering.counts is not None and clustering.counts.noised == "before-selection"


def grouping_cost(manifest: Manifest, claim: Claim) -> GroupingCost:
    """Return the clustering's cost for one unit: counts and centres, by their noise's scales."""
    clustering = manifest.clustering
    if clustering.method == "none":
        return GroupingCost()
    records, noise, reasons = unit_records(manifest, claim.unit), clustering.counts, list[Finding]()
    counts = math.inf if noise is not None or rests_on_counts(manifest) else 0.0
    if noise is not None and records is not None and counts_are_noised(clustering):
        counts = accounting.rebalancing_epsilon(noise.scale, claim.relation, records)
        if accounting.noise_covers(noise.scale, noise.epsilon, claim.relation, records):
            # rounding up may pass the declared figure by its last bit
            counts = min(counts, noise.epsilon)
    if math.isinf(counts):
        reasons.append(Finding(code="rebalancing.counts-unbounded"))
    origin, centers = clustering.origin, math.inf
    if origin != accounting.CLUSTERINGS[clustering.method].origin or origin == "private":
        reasons.append(Finding(code="rebalancing.centers-unpaid"))
    elif origin == "public":
        centers = 0.0
    elif records != 1:
        reasons.append(Finding(code="rebalancing.one-record-hidden", values={"unit": claim.unit}))
    else:
        try:
            centers = noised_centers_epsilon(clustering, claim.relation)
        except ValueError as error:
            reasons.append(Finding(code="rebalancing.no-cost", values={"problem": str(error)}))
    events = accounting.rebalancing_events(counts, claim.relation) if math.isfinite(counts) else ()
    return GroupingCost(counts, centers, clustering.delta or 0.0, events, tuple(reasons))


def unit_records(manifest: Manifest, unit: Unit) -> int | None:
    """Return the most records of one unit of a claim; None if unbounded."""
    if unit == "user":
        return manifest.privacy.records_per_user
    return manifest.prompt.examples_per_context if unit == "context" else 1


@lru_cache(maxsize=8)
def _centers_epsilon(
    method: str, settings: tuple[tuple[str, Any], ...], delta: float, relation: Relation
) -> float:
    kind = accounting.CLUSTERINGS[method]
    try:
        found = kind.epsilon(dict(settings), delta, relation)
    except ValueError:
        raise
    except Exception as error:  # of a plug-in
        raise ValueError(f"the method {method} says none ({type(error).__name__})") from None
    if not found >= 0:
        raise ValueError(f"the method {method} says {found}")
    return found


def noised_centers_epsilon(clustering: Clustering, relation: Relation) -> float:
    """Return the cost of noised centres for one record, by the stated scales of noise, in nats.

    Raises:
        ValueError: the run states none that bound anything.
    """
    return _centers_epsilon(
        clustering.method, tuple(clustering.settings.items()), clustering.delta or 0.0, relation
    )
