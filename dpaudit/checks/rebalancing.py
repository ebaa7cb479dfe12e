"""Did private records decide clusters only through noise that was paid for?"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import batches_by_counts, kept_by_counts, noise_covers, noise_tail, rebalancing_epsilon
from dpaudit.checks.facts import Facts
from dpaudit.checks.grouping import ORIGINS, noised_centers_epsilon, rests_on_counts, unit_records
from dpaudit.checks.registry import Outcome, not_applicable, run_check
from dpaudit.results.rounding import rounded_up
from dpaudit.runs import Clustering, Clusters, CountsNoise, Manifest

_DOCS = "docs/mathematics.md#rebalancing"
#: What two machines may differ by in working out the same cost.
_ROUNDING = 1e-9
#: How rarely the noise that is declared may be as small as what is found, for a failure.
_RARELY = 1e-6


@run_check(
    check_id="rebalancing.noise",
    title="Clusters follow from public data, or from noise that is paid for",
    failed="Clusters follow from private records without noise that is paid for",
    evidence=1,
    why=(
        "Sizes and centres of clusters describe the records. Without noise that is paid for they give single "
        "records away."
    ),
    remedy="Take public centres, noise all counts before any is used, and declare both; or generate without clusters.",
    reference=_DOCS,
)
def clusters_are_noised(facts: Facts) -> Outcome:
    """The declared noise against its cost, and the kept centres and numbers of batches against the noisy counts."""
    clustering = facts.manifest.clustering
    if clustering.method == "none":
        return _without_clustering(facts)
    expected = "centres that are public or noised, Laplace noise on all counts, and choices that follow from it"
    problem = _centers_problem(facts.manifest) or _counts_problem(facts, clustering)
    if problem:
        return Outcome("fail", problem, expected)
    if facts.clusters is None:
        return Outcome("skip", "nothing", expected, "The file clusters cannot be read: restore it.")
    problem = _choice_problem(facts, clustering, facts.clusters)
    if problem:
        return Outcome("fail", problem, expected)
    return _against_the_data(facts, clustering, expected)


def _against_the_data(facts: Facts, clustering: Clustering, expected: str) -> Outcome:
    """With the data, whether there is as much noise on the counts as is declared."""
    noise = facts.replay.noise if facts.replay is not None else None
    if clustering.origin == "public" and clustering.counts is None:
        return Outcome("pass", _measured(clustering), expected, evidence=0)  # that they are public is only said
    if noise is None or clustering.counts is None or facts.clusters is None:
        return Outcome("pass", _measured(clustering), expected)
    scale, counts = clustering.counts.scale, sum(map(len, facts.clusters.noisy_counts))
    if noise_tail(noise, scale, counts) < math.log(_RARELY):
        found = f"noisy counts lie closer to the data's than noise of scale {scale:g} leaves one run in a million"
        return Outcome("fail", found, expected, evidence=3)
    return Outcome("pass", f"{_measured(clustering)}, held against the data", expected, evidence=3)


def _without_clustering(facts: Facts) -> Outcome:
    expected = "no cluster without declared noise"
    named = [batch for batch, header in facts.headers.items() if header.cluster is not None]
    if named:
        return Outcome("fail", f"{len(named)} batches name a cluster; first batch {named[0]}", expected)
    return not_applicable(expected, "The run declares no clustering, and no batch names a cluster.")


def _centers_problem(manifest: Manifest) -> str | None:
    """Why the centres cannot be relied on, by what is declared of them."""
    clustering, privacy = manifest.clustering, manifest.privacy
    if clustering.origin == "private":
        return f"{clustering.method} on private records has epsilon infinite: for reference only"
    if clustering.origin != ORIGINS[clustering.method]:
        return f"centres of {clustering.method} are declared {clustering.origin}"
    if clustering.origin != "noised":
        return None
    if unit_records(manifest, privacy.unit) != 1:
        return f"the noise on the centres hides one record, and a {privacy.unit} may have more"
    try:
        costs = noised_centers_epsilon(clustering, privacy.relation)
    except ValueError as error:
        return f"no cost of the centres follows from clustering.settings: {error}"
    if costs <= (clustering.epsilon or 0.0) * (1 + _ROUNDING):
        return None
    said = f"centres with their noise are said to cost epsilon {clustering.epsilon!r} at delta {clustering.delta!r}"
    return f"{said}, and cost one record ({privacy.relation}) {rounded_up(costs)}"


def _counts_problem(facts: Facts, clustering: Clustering) -> str | None:
    """Why the counts cannot be relied on, by what is declared of their noise."""
    noise = clustering.counts
    if noise is None:
        listed = facts.clusters is not None and facts.clusters.noisy_counts
        if listed or rests_on_counts(clustering) or clustering.method == "public-centers-rebalanced":
            return "counts of private records decide clusters, and no noise is declared for them"
        return None
    if noise.noised == "after-selection":
        return "centres were chosen by counts that had no noise yet"
    return _scale_problem(facts.manifest, noise)


def _scale_problem(manifest: Manifest, noise: CountsNoise) -> str | None:
    """The declared cost against the noise, for the neighbours that the run declares: a claim may be about others."""
    privacy, records = manifest.privacy, unit_records(manifest, manifest.privacy.unit)
    assert records is not None  # as the manifest's own validation has it
    if noise_covers(noise.scale, noise.epsilon, privacy.relation, records):
        return None
    costs = rounded_up(rebalancing_epsilon(noise.scale, privacy.relation, records))
    return (
        f"counts with noise of scale {noise.scale:g} are said to cost epsilon {noise.epsilon!r}, and cost one "
        f"{privacy.unit} ({privacy.relation}) {costs}"
    )


def _choice_problem(facts: Facts, clustering: Clustering, clusters: Clusters) -> str | None:
    """Where kept centres or numbers of batches are not those that the noisy counts give."""
    assert clustering.centers is not None  # as the manifest's own validation has it
    assert clustering.keep is not None
    kept = np.array(clusters.kept, dtype=np.int64)
    if not clusters.noisy_counts:
        return None  # all centres are kept, and partition.public-parameters has the numbers of batches
    noisy = np.array(clusters.noisy_counts, dtype=np.int64)
    if where := _differs(facts, kept_by_counts(noisy, clustering.keep), kept):
        return f"{where} keeps other centres than the {clustering.keep} of its highest noisy counts"
    if clustering.records_per_batch is None or clustering.most_batches is None:
        return None
    batches = batches_by_counts(noisy, kept, clustering.records_per_batch, clustering.most_batches)
    if where := _differs(facts, batches, np.array(clusters.batches, dtype=np.int64)):
        return f"{where} has clusters of other numbers of batches than its noisy counts give"
    return None


def _differs(facts: Facts, due: NDArray[np.int64], found: NDArray[np.int64]) -> str | None:
    """The first label whose rows differ, as messages name it; None where none do."""
    rows = np.flatnonzero((due != found).any(axis=1))
    if not len(rows):
        return None
    labels = facts.manifest.batching.labels
    return f"label {labels[rows[0]]!r}" if labels else "the run"


def _measured(clustering: Clustering) -> str:
    kept = f"{clustering.method}: {clustering.keep} of {clustering.centers} centres, declared {clustering.origin}"
    if clustering.counts is None:
        return f"{kept}, and no counts"
    spare = "" if rests_on_counts(clustering) else ", on which nothing rests"
    return f"{kept}, by counts with Laplace noise of scale {clustering.counts.scale:g}{spare}"
