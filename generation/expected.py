"""The expected size of batches and of a run's record, by a config and a number of records.

Nobody tells how large they were drawn: anyone who saw it could draw another key until it pleased,
and then the texts would tell which key that was.
"""

from __future__ import annotations

import math

from dpaudit.generation.config import Config
from dpaudit.results.plan import Menu, Offer
from dpaudit.runs import Manifest
from dpaudit.runs.batches import BatchArrays

#: Of a run's end: at most so many records are measured, each by a batch of its own.
_MOST_MEASURED = 16
#: Seconds that one core takes to audit a step; more for each token that can be drawn, and for each
#: context's contribution to one. Audits of 32 contexts take .4 ms a step over 100 tokens in batches
#: of 64 steps, and .9 in batches of 16; 19 over 49,152 tokens, and 97 there with all contributions
#: (docs/reference/benchmarks.md, 2026-11-28).
_AUDIT_STEP, _AUDIT_TOKEN, _AUDIT_CONTRIBUTION = 7e-4, 3.8e-7, 5e-8
#: Bytes of one contribution in memory, by the record's dtype.
_BYTES = {"float32": 4, "float64": 8}
#: Bytes of contributions over the whole vocabulary from which on a run is warned about.
_LARGE = 10**9


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


def audit_seconds(manifest: Manifest, contexts: float, steps: int) -> float:
    """Return about how many seconds one core takes to audit a run.

    Args:
        manifest: the run's; what it records decides.
        contexts: of a batch on average.
        steps: of all batches.
    """
    each = _AUDIT_CONTRIBUTION * contexts if manifest.record.contexts else 0.0
    return steps * (_AUDIT_STEP + manifest.least_support * (_AUDIT_TOKEN + each))


def with_sizes(menu: Menu, manifest: Manifest) -> Menu:
    """Return a menu with the size of each plan's record and the time of its audit.

    Args:
        menu: the plans.
        manifest: of a run of one of them, with or without what its model tells.

    Raises:
        InputError: a step would be too large.
    """

    def sized(offer: Offer) -> Offer:
        arrays, steps = BatchArrays(manifest, round(offer.contexts)), menu.tokens * offer.texts
        # a margin lets a step have some tokens more than it begins with, and room for many more
        share = manifest.least_support / manifest.most_support
        stored = round(arrays.step_bytes * share * steps)
        audit = audit_seconds(manifest, offer.contexts, steps)
        return offer.model_copy(update={"stored": stored, "audit": audit})

    return menu.model_copy(update={"offers": tuple(map(sized, menu.offers))})


def large_record(manifest: Manifest, contexts: float) -> tuple[int, float] | None:
    """Return the bytes of recorded contributions, and the seconds of `audit_seconds`.

    None unless they are recorded over the whole vocabulary, and many.
    """
    if not manifest.record.contexts or manifest.mechanism.support.size is not None:
        return None
    steps = manifest.decoding.most_tokens * manifest.batches
    stored = round(steps * contexts * manifest.most_support * _BYTES[manifest.record.dtype])
    return (stored, audit_seconds(manifest, contexts, steps)) if stored >= _LARGE else None
