"""The ex-post cost for somebody who does not know which batch a record was in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from dpaudit.accounting.allocation import release_cost
from dpaudit.accounting.ex_post import Cost
from dpaudit.mechanisms import ContextChange, Relation
from dpaudit.runs import ClusterPlaces, Manifest, SecretBatches


def amplifies(relation: Relation, change: ContextChange | None) -> bool:
    """Return whether secret batches make a unit's ex-post figure smaller.

    They do for one context that comes or goes. A second record's bounds would have to be those
    around the data without the first (docs/mathematics.md).
    """
    return relation == "add_remove" and change is not None and change.contexts == 1


def readers_cost(
    manifest: Manifest,
    secrecy: SecretBatches | str | None,
    relation: Relation,
    change: ContextChange | None,
    places: ClusterPlaces | None,
    exact: float,
    cost: Callable[[int], Cost],
) -> float:
    """Return the cost of generation at the release level, in nats.

    It is `exact` if secret batches make it no smaller.

    Args:
        manifest: the run's, all of whose batches were read.
        secrecy: of the run's batches; a reason, or None, where readers may know them.
        relation: of the claim.
        change: of contexts, that the claim's unit makes; None if nothing bounds it.
        places: where batches stand among clusters; None without a clustering.
        exact: the batch level, in nats.
        cost: of one batch.
    """
    if (
        not isinstance(secrecy, SecretBatches)
        or not amplifies(relation, change)
        or not math.isfinite(exact)
    ):
        return exact
    return min(exact, ex_post_release(manifest, secrecy, places, cost))


def ex_post_release(
    manifest: Manifest,
    secret: SecretBatches,
    places: ClusterPlaces | None,
    cost: Callable[[int], Cost],
    rounds: Iterable[int] | None = None,
) -> float:
    """Return the cost of generation to readers who know all but a record's batches, in nats.

    They know all other records and their batches. In each round it is the log-mean-exp over the
    batches of the record's group, added up over rounds; of the costliest group.

    Args:
        manifest: the run's, all of whose batches were read.
        secret: of this run.
        places: where batches stand among clusters; None without a clustering.
        cost: of one batch, for one context that comes or goes.
        rounds: of these alone; by default of all that were generated.
    """
    per_round = manifest.batching.per_round
    if places is not None and places.per_round != per_round:
        return math.inf  # release.selection objects
    if places is None:
        (count, generated), *_ = secret.groups
        groups = [
            (range(first, min(first + generated, per_round)), count)
            for first in range(0, per_round, generated)
        ]
    else:
        groups = places.groups
    costs = {}
    for number in range(manifest.rounds) if rounds is None else rounds:
        for group, (ids, _) in enumerate(groups):
            found = [cost(number * per_round + batch) for batch in ids]
            costs[number, group] = np.array([(each.rise, each.fall) for each in found]).reshape(
                -1, 2
            )
    return release_cost(costs, {group: count for group, (_, count) in enumerate(groups)})
