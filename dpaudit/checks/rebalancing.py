"""Did private records decide clusters only through noise that was paid for? And what did that noise cost?"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import (
    CLUSTERINGS,
    ApproximateAccountant,
    batches_by_counts,
    kept_by_counts,
    noise_covers,
    noise_reach,
    noise_tail,
    rebalancing_epsilon,
    rebalancing_events,
    rounded_sum,
)
from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, RunCheck, inapplicable
from dpaudit.claims import ZcdpClaim
from dpaudit.mechanisms import ContextChange, Mechanism, Relation, Unit
from dpaudit.results import Finding, Place, Quantity, Value
from dpaudit.runs import Claim, Clustering, Clusters, Manifest

#: What two machines may differ by in working out the same cost.
_ROUNDING = 1e-9
#: How rarely the noise that is declared may be as small or as large as what is found, for a failure.
_RARELY = 1e-6


@dataclass(frozen=True)
class GroupingCost:
    """What is spent before any token is drawn; 0 throughout for a run without a clustering.

    Attributes:
        counts: pure epsilon of the noisy counts, in nats; infinite where counts were used without noise.
        centers: epsilon of the centres, in nats, from the scales of their noise; infinite where nothing bounds it.
        delta: of the centres.
        events: the counts' cost as events for joint composition (`rebalancing_events`); empty where it is infinite.
        unbounded: why one of them is infinite; empty where none is.
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

    def accountant(self, mechanism: Mechanism, change: ContextChange | None) -> ApproximateAccountant | None:
        """Of a run's draws and its clusters together; None for a mechanism whose cost only the data shows."""
        bounded = None if math.isinf(self.counts) else change
        return ApproximateAccountant.of(
            mechanism, bounded, laplace=self.events, centers=self.centers, centers_delta=self.delta
        )

    def rho_accountant(self, manifest: Manifest, change: ContextChange | None) -> ApproximateAccountant | None:
        """Return what works rho of zCDP out, of all rounds; None for a mechanism that has no rho.

        Of a run that is stopped by what its texts say all rounds count.
        """
        if ZcdpClaim.id not in manifest.mechanism.kinds:
            return None
        accountant = self.accountant(manifest.mechanism, change)
        return None if accountant is None else replace(accountant, rounds=manifest.batching.rounds)


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
    records, noise, reasons = unit_records(manifest, claim.unit), clustering.counts, list[Finding]()
    counts = math.inf if noise is not None or rests_on_counts(clustering) else 0.0
    if noise is not None and records is not None and counts_are_noised(clustering):
        counts = rebalancing_epsilon(noise.scale, claim.relation, records)
        if noise_covers(noise.scale, noise.epsilon, claim.relation, records):
            counts = min(counts, noise.epsilon)  # rounding up may pass the declared figure by its last bit
    if math.isinf(counts):
        reasons.append(Finding(code="rebalancing.counts-unbounded"))
    origin, centers = clustering.origin, math.inf
    if origin != CLUSTERINGS[clustering.method].origin or origin == "private":
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
    events = rebalancing_events(counts, claim.relation) if math.isfinite(counts) else ()
    return GroupingCost(counts, centers, clustering.delta or 0.0, events, tuple(reasons))


def unit_records(manifest: Manifest, unit: Unit) -> int | None:
    """How many records one unit of a claim has at most; None where nothing bounds it."""
    if unit == "user":
        return manifest.privacy.records_per_user
    return manifest.batching.examples_per_context if unit == "context" else 1


@lru_cache(maxsize=8)
def _centers_epsilon(method: str, settings: tuple[tuple[str, Any], ...], delta: float, relation: Relation) -> float:
    kind = CLUSTERINGS[method]
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
    """What noised centres cost one record, from the scales of noise that the run states, in nats.

    Raises:
        ValueError: it states none that bound anything.
    """
    return _centers_epsilon(clustering.method, tuple(clustering.settings.items()), clustering.delta or 0.0, relation)


@RunCheck(id="rebalancing.noise")
def clusters_are_noised(facts: Facts) -> Outcome:
    """Hold the declared noise against its cost, the noisy counts against the records, and the choices against them.

    These are the kept centres and the numbers of batches.
    """
    clustering = facts.manifest.clustering
    if clustering.method == "none":
        if named := [batch for batch, header in facts.headers.items() if header.cluster is not None]:
            return Outcome("fail", "undeclared", {"batches": len(named), "first": Place(batch=named[0])})
        return inapplicable("rebalancing.none")
    problem = _centers_problem(facts.manifest) or _counts_problem(facts, clustering)
    if problem is not None:
        return problem
    if facts.clusters is None:
        return Outcome("skip", "unreadable")
    problem = _reach_problem(facts, facts.clusters) or _choice_problem(facts, clustering, facts.clusters)
    if problem is not None:
        return problem
    values = _declared(clustering)
    if clustering.origin == "public" and clustering.counts is None:
        return Outcome("pass", "without-counts", values, evidence=0)  # that they are public is only said
    noise = facts.replay.noise if facts.replay is not None else None
    if clustering.counts is None:
        return Outcome("pass", "without-counts", values)
    code = "with-counts" if rests_on_counts(clustering) else "with-spare-counts"
    if noise is None:
        return Outcome("pass", code, values)
    # With the data: is there as much noise on the counts as is declared?
    scale, counts = clustering.counts.scale, sum(map(len, facts.clusters.noisy_counts))
    if noise_tail(noise, scale, counts) < math.log(_RARELY):
        return Outcome("fail", "too-little-noise", {"scale": scale}, evidence=3)
    return Outcome("pass", f"{code}-replayed", values, evidence=3)


def _centers_problem(manifest: Manifest) -> Outcome | None:
    """Return why the centres cannot be relied on, by what is declared of them; None where they can."""
    clustering, privacy = manifest.clustering, manifest.privacy
    if clustering.origin == "private":
        return Outcome("fail", "private-centers", {"method": clustering.method})
    if clustering.origin != CLUSTERINGS[clustering.method].origin:
        return Outcome("fail", "other-origin", {"method": clustering.method, "origin": clustering.origin or "none"})
    if clustering.origin != "noised":
        return None
    if unit_records(manifest, privacy.unit) != 1:
        return Outcome("fail", "one-record-hidden", {"unit": privacy.unit})
    try:
        costs = noised_centers_epsilon(clustering, privacy.relation)
    except ValueError as error:
        return Outcome("fail", "no-cost", {"problem": str(error)})
    stated = clustering.epsilon or 0.0
    if costs <= stated * (1 + _ROUNDING):
        return None
    values: dict[str, Value] = {
        "stated": Quantity(value=stated, unit="nats"),
        "costs": Quantity(value=costs, unit="nats"),
        "delta": clustering.delta or 0.0,
        "relation": privacy.relation,
    }
    return Outcome("fail", "centers-cost-more", values)


def _counts_problem(facts: Facts, clustering: Clustering) -> Outcome | None:
    """Return why the counts cannot be relied on, by what is declared of their noise; None where they can."""
    noise = clustering.counts
    if noise is None:
        listed = facts.clusters is not None and facts.clusters.noisy_counts
        if listed or rests_on_counts(clustering) or clustering.method == "public-centers-rebalanced":
            return Outcome("fail", "counts-without-noise")
        return None
    if noise.noised == "after-selection":
        return Outcome("fail", "noised-after-selection")
    # For the neighbours that the run declares: a claim may be about others.
    privacy = facts.manifest.privacy
    records = unit_records(facts.manifest, privacy.unit)
    assert records is not None  # as the manifest's own validation has it
    if noise_covers(noise.scale, noise.epsilon, privacy.relation, records):
        return None
    values: dict[str, Value] = {
        "scale": noise.scale,
        "stated": Quantity(value=noise.epsilon, unit="nats"),
        "costs": Quantity(value=rebalancing_epsilon(noise.scale, privacy.relation, records), unit="nats"),
        "unit": privacy.unit,
        "relation": privacy.relation,
    }
    return Outcome("fail", "counts-cost-more", values)


def _choice_problem(facts: Facts, clustering: Clustering, clusters: Clusters) -> Outcome | None:
    """Return where kept centres or numbers of batches are not those that the noisy counts give; None where they are."""
    assert clustering.centers is not None  # as the manifest's own validation has it
    assert clustering.keep is not None
    kept = np.array(clusters.kept, dtype=np.int64)
    if not clusters.noisy_counts:
        return None  # all centres are kept, and partition.public-parameters has the numbers of batches
    noisy = np.array(clusters.noisy_counts, dtype=np.int64)
    if where := _differs(facts, kept_by_counts(noisy, clustering.keep), kept):
        return Outcome("fail", "other-centers-kept", {"where": where, "keep": clustering.keep})
    if clustering.records_per_batch is None or clustering.most_batches is None:
        return None
    least = clustering.least_batches or 1
    batches = batches_by_counts(noisy, kept, clustering.records_per_batch, clustering.most_batches, least)
    if where := _differs(facts, batches, np.array(clusters.batches, dtype=np.int64)):
        return Outcome("fail", "other-numbers-of-batches", {"where": where})
    return None


def _reach_problem(facts: Facts, clusters: Clusters) -> Outcome | None:
    """Return where noisy counts lie further from any division of the data's records than the declared noise takes them.

    Each record is in one count of its own label. So a label's counts add up to its records in generated batches at
    least, and at most to all records but those of other labels there; and all counts add up to the number of records.
    What is tried is paid for: one run in a million fails by chance, at most.
    """
    noise, records = facts.manifest.clustering.counts, facts.manifest.data.records
    if noise is None or not clusters.noisy_counts:
        return None
    rows, size, placed = clusters.noisy_counts, len(clusters.noisy_counts[0]), _placed(facts)
    most = [records - placed.total() + placed[label] for label in range(len(rows))]
    singles = [_outside(count, 0, most[label]) for label, row in enumerate(rows) for count in row]
    sums = [_outside(sum(row), placed[label], most[label]) for label, row in enumerate(rows)]
    beyond = [
        ("count-beyond-noise", 1, max(singles)),
        ("label-beyond-noise", size, max(sums)),
        ("total-beyond-noise", size * len(rows), abs(sum(map(sum, rows)) - records)),
    ]
    tried = (size + 1) * len(rows) + 1
    for code, counts, distance in beyond:
        if noise_reach(distance, noise.scale, counts) < math.log(_RARELY / tried):
            values: dict[str, Value] = {"records": records, "scale": noise.scale, "distance": distance}
            if placed:
                values["beside"] = Finding(code="rebalancing.and-the-assignment")
            return Outcome("fail", code, values)
    return None


def _placed(facts: Facts) -> Counter[int]:
    """How many records of each label, by its index, are surely there: those that the assignment has in its batches.

    Nothing where the assignment is not one of all records: partition.disjoint objects.
    """
    placement, found = facts.placement, Counter[int]()
    if facts.places is None or placement.records != facts.manifest.data.records or placement.problem is not None:
        return found
    for batch, records in placement.by_batch.items():
        if batch < facts.places.per_round:  # each record is there again in the next round
            found[facts.places[batch].label] += records
    return found


def _outside(count: int, least: int, most: int) -> int:
    """How far a noisy count lies from any that there can be without noise."""
    return max(least - count, count - most, 0)


def _differs(facts: Facts, due: NDArray[np.int64], found: NDArray[np.int64]) -> Finding | None:
    """Return the first label whose rows differ; None where none do."""
    rows = np.flatnonzero((due != found).any(axis=1))
    if not len(rows):
        return None
    labels = facts.manifest.batching.labels
    return (
        Finding(code="rebalancing.label", values={"label": labels[rows[0]]})
        if labels
        else Finding(code="rebalancing.run")
    )


def _declared(clustering: Clustering) -> dict[str, Value]:
    """Return what is declared of the clusters, as outcomes show it."""
    found: dict[str, Value] = {"method": clustering.method, "origin": str(clustering.origin)}
    found |= {"keep": clustering.keep or 0, "centers": clustering.centers or 0}
    return found if clustering.counts is None else found | {"scale": clustering.counts.scale}
