"""The expected size of batches, by a config and a number of records.

Nobody tells how large they were drawn: anyone who saw it could draw another key until it pleased,
and then the texts would tell which key that was.
"""

from __future__ import annotations

import math

from dpaudit.generation.config import Config

#: Of a run's end: at most so many records are measured, each by a batch of its own.
_MOST_MEASURED = 16


def clusters(config: Config) -> int:
    """Return the number of groups of records that share batches.

    For centres whose number is not public (dpm), labels alone count.
    """
    clustering, labels = config.clustering, len(config.data.groups)
    if clustering is None:
        return labels
    return labels * (clustering.keep or clustering.centers or 1)


def batches(config: Config, records: int) -> int:
    """Return the number of batches of all rounds."""
    batching, groups = config.batching, clusters(config)
    if config.clustering is None:
        return batching.rounds * groups * batching.generate_per_label
    most = groups * batching.generate_per_cluster
    if batching.records_per_batch is not None:
        # By noisy counts: together about as many as records fill, and one for each cluster at
        # least.
        filled = max(
            groups * (batching.least_batches or 1), round(records / batching.records_per_batch)
        )
        most = min(filled, most)
    return batching.rounds * most


def contexts(config: Config, records: int) -> float:
    """Return the mean number of a batch's contexts that show a record.

    Groups of records are taken to be of one size.
    """
    batching, shown = config.batching, config.prompt.examples_per_context
    if batching.rule == "paper-slices":
        sliced = batching.generate_per_label * clusters(config) * shown
        return min(batching.slots or 1, records / sliced)
    of_group = (
        batching.batches_per_cluster
        if config.clustering is not None
        else batching.batches_per_label
    )
    held = batching.records_per_batch or records / clusters(config) / (of_group or 1)
    held *= 1 - batching.held_out
    if batching.slots is not None:
        # slots that any record is hashed to
        return -batching.slots * math.expm1(-held / batching.slots)
    if batching.cells is None or not held:
        return held
    rate = held / batching.cells  # of the Poisson number of records in a cell
    return batching.cells * math.exp(shown * math.log(rate) - rate - math.lgamma(shown + 1))


def measured(per_round: int) -> range:
    """Return the batches in which held-out records' gain is measured at a run's end.

    They are spread evenly over a round's. Each takes as long as a text that is as long as its
    record.
    """
    return range(0, per_round, -(-per_round // _MOST_MEASURED))
