"""Did private records decide clusters only through noise that was paid for?"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from dpaudit import accounting
from dpaudit.auditing.checks.evidence import AuditedRun
from dpaudit.auditing.checks.grouping import noised_centers_epsilon, rests_on_counts, unit_records
from dpaudit.auditing.checks.partition import Placement
from dpaudit.auditing.checks.registry import Outcome, RunCheck, inapplicable
from dpaudit.results import Finding, Place, Quantity, Value
from dpaudit.runs import Clustering, Clusters, Manifest

#: What two machines may differ by in working out the same cost.
_ROUNDING = 1e-9
#: How rarely the noise that is declared may be as small or as large as what is found, for a
#: failure.
_RARELY = 1e-6


def _unpaid_centers(run: AuditedRun) -> Outcome | None:
    """Return why the declared centres cannot be relied on, or None, as without centres."""
    return None if run.manifest.clustering.method == "none" else _centers_problem(run.manifest)


@RunCheck(id="rebalancing.noise", gathers=(Placement,), foresee=_unpaid_centers)
def clusters_are_noised(run: AuditedRun) -> Outcome:
    """Compare the noise with its cost, and the noisy counts with the records and with the choices.

    These are the kept centres and the numbers of batches.
    """
    clustering = run.manifest.clustering
    if clustering.method == "none":
        if named := [batch for batch, header in run.headers.items() if header.cluster is not None]:
            return Outcome(
                "fail", "undeclared", {"batches": len(named), "first": Place(batch=named[0])}
            )
        return inapplicable("rebalancing.none")
    problem = _centers_problem(run.manifest) or _counts_problem(run, clustering)
    if problem is not None:
        return problem
    if run.clusters is None:
        return Outcome("skip", "unreadable")
    problem = _reach_problem(run, run.clusters) or _choice_problem(run, clustering, run.clusters)
    if problem is not None:
        return problem
    values = _declared(clustering)
    if clustering.origin == "public" and clustering.counts is None:
        # that they are public is only said
        return Outcome("pass", "without-counts", values, evidence=0)
    noise = run.replay.noise if run.replay is not None else None
    if clustering.counts is None:
        return Outcome("pass", "without-counts", values)
    code = "with-counts" if rests_on_counts(run.manifest) else "with-spare-counts"
    if noise is None:
        return Outcome("pass", code, values)
    # With the data: is there as much noise on the counts as is declared?
    scale, counts = clustering.counts.scale, sum(map(len, run.clusters.noisy_counts))
    if accounting.noise_tail(noise, scale, counts) < math.log(_RARELY):
        return Outcome("fail", "too-little-noise", {"scale": scale}, evidence=3)
    return Outcome("pass", f"{code}-replayed", values, evidence=3)


def _centers_problem(manifest: Manifest) -> Outcome | None:
    """Return why the centres, as declared, cannot be relied on, or None if they can."""
    clustering, privacy = manifest.clustering, manifest.privacy
    if clustering.origin == "private":
        return Outcome("fail", "private-centers", {"method": clustering.method})
    if clustering.origin != accounting.CLUSTERINGS[clustering.method].origin:
        return Outcome(
            "fail",
            "other-origin",
            {"method": clustering.method, "origin": clustering.origin or "none"},
        )
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


def _counts_problem(run: AuditedRun, clustering: Clustering) -> Outcome | None:
    """Return why the counts, by their declared noise, cannot be relied on, or None if they can."""
    noise = clustering.counts
    if noise is None:
        listed = run.clusters is not None and run.clusters.noisy_counts
        if (
            listed
            or rests_on_counts(run.manifest)
            or clustering.method == "public-centers-rebalanced"
        ):
            return Outcome("fail", "counts-without-noise")
        return None
    if noise.noised == "after-selection":
        return Outcome("fail", "noised-after-selection")
    # For the neighbours that the run declares: a claim may be about others.
    privacy = run.manifest.privacy
    records = unit_records(run.manifest, privacy.unit)
    assert records is not None  # as the manifest's own validation has it
    if accounting.noise_covers(noise.scale, noise.epsilon, privacy.relation, records):
        return None
    values: dict[str, Value] = {
        "scale": noise.scale,
        "stated": Quantity(value=noise.epsilon, unit="nats"),
        "costs": Quantity(
            value=accounting.rebalancing_epsilon(noise.scale, privacy.relation, records),
            unit="nats",
        ),
        "unit": privacy.unit,
        "relation": privacy.relation,
    }
    return Outcome("fail", "counts-cost-more", values)


def _choice_problem(run: AuditedRun, clustering: Clustering, clusters: Clusters) -> Outcome | None:
    """Return a kept centre or number of batches that the noisy counts do not give, or None."""
    assert clustering.centers is not None  # as the manifest's own validation has it
    assert clustering.keep is not None
    kept = np.array(clusters.kept, dtype=np.int64)
    if not clusters.noisy_counts:
        return (
            None  # all centres are kept, and partition.public-parameters has the numbers of batches
        )
    noisy = np.array(clusters.noisy_counts, dtype=np.int64)
    if where := _differs(run, accounting.kept_by_counts(noisy, clustering.keep), kept):
        return Outcome("fail", "other-centers-kept", {"where": where, "keep": clustering.keep})
    batching = run.manifest.batching
    if batching.records_per_batch is None or batching.most_batches is None:
        return None
    least = batching.least_batches or 1
    batches = accounting.batches_by_counts(
        noisy, kept, batching.records_per_batch, batching.most_batches, least
    )
    if where := _differs(run, batches, np.array(clusters.batches, dtype=np.int64)):
        return Outcome("fail", "other-numbers-of-batches", {"where": where})
    return None


def _reach_problem(run: AuditedRun, clusters: Clusters) -> Outcome | None:
    """Return noisy counts further from the records than the declared noise takes them, or None.

    Any division of the data's records over the counts is allowed. Each record is in one count of
    its own label. So a label's counts add up to its records in generated batches at least, and at
    most to all records but those of other labels there; and all counts add up to the number of
    records. What is tried is paid for: one run in a million fails by chance, at most.
    """
    noise, records = run.manifest.clustering.counts, run.manifest.data.records
    if noise is None or not clusters.noisy_counts:
        return None
    rows, size, placed = clusters.noisy_counts, len(clusters.noisy_counts[0]), _placed(run)
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
        if accounting.noise_reach(distance, noise.scale, counts) < math.log(_RARELY / tried):
            values: dict[str, Value] = {
                "records": records,
                "scale": noise.scale,
                "distance": distance,
            }
            if placed:
                values["beside"] = Finding(code="rebalancing.and-the-assignment")
            return Outcome("fail", code, values)
    return None


def _placed(run: AuditedRun) -> Counter[int]:
    """Count the records of each label, by index, that the assignment surely has in its batches.

    They are surely there. It is empty if the assignment is not one of all records:
    partition.disjoint objects.
    """
    placement, found = run[Placement], Counter[int]()
    if (
        run.places is None
        or placement.records != run.manifest.data.records
        or placement.problem is not None
    ):
        return found
    for batch, records in placement.by_batch.items():
        if batch < run.places.per_round:  # each record is there again in the next round
            found[run.places[batch].label] += records
    return found


def _outside(count: int, least: int, most: int) -> int:
    """Return how far a noisy count lies from all that are possible without noise."""
    return max(least - count, count - most, 0)


def _differs(run: AuditedRun, due: NDArray[np.int64], found: NDArray[np.int64]) -> Finding | None:
    """Return the first label whose rows differ; None if none do."""
    rows = np.flatnonzero((due != found).any(axis=1))
    if not len(rows):
        return None
    labels = run.manifest.data.labels
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
