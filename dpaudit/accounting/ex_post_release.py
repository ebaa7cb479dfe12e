"""What an ex-post cost comes to for whoever does not know which batch a record was in."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from dpaudit.accounting.allocation import allocated_cost
from dpaudit.accounting.ex_post import Cost
from dpaudit.accounting.renyi import rounded_sum
from dpaudit.mechanisms import ContextChange, Relation
from dpaudit.runs import ClusterPlaces, Manifest, SecretBatches


def amplifies(relation: Relation, change: ContextChange | None) -> bool:
    """Whether secret batches make a unit's ex-post figure smaller: of one context that comes or goes.

    A second record's bounds would have to be those around the data without the first (docs/mathematics.md).
    """
    return relation == "add_remove" and change is not None and change.contexts == 1


def ex_post_release(
    manifest: Manifest,
    secret: SecretBatches,
    places: ClusterPlaces | None,
    cost: Callable[[int], Cost],
    rounds: Iterable[int] | None = None,
) -> float:
    """What generation cost for someone who knows all other records and their batches, but not hers, in nats.

    In each round the log-mean-exp over the batches of her group, added up over rounds; of the costliest group.

    Args:
        manifest: the run's, all of whose batches were read.
        secret: of this run.
        places: where batches stand among clusters; None without a clustering.
        cost: of one batch, for one context that comes or goes.
        rounds: of these alone; by default of all that were generated.
    """
    total: defaultdict[int | tuple[int, int], float] = defaultdict(float)
    per_round = manifest.batching.per_round
    if places is not None and places.per_round != per_round:
        return math.inf  # release.selection objects
    for round_ in range(manifest.rounds) if rounds is None else rounds:
        found: defaultdict[int | tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
        counts: dict[int | tuple[int, int], int] = {}
        for number in range(per_round):
            group: int | tuple[int, int]
            if places is None:
                (count, generated), *_ = secret.groups
                group = number // generated
            else:
                place = places[number]  # the same in every round
                group, count = (place.label, place.position), place.count
            here = cost(round_ * per_round + number)
            found[group].append((here.rise, here.fall))
            counts[group] = count
        for group, costs in found.items():
            total[group] = rounded_sum(total[group], allocated_cost(np.array(costs), counts[group]))
    return max(total.values(), default=0.0)
