"""The few released texts that a report for readers inside shows, with why it shows these."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpaudit.results import SAMPLE_LENGTH, BatchResult, Chosen, SampleText
from dpaudit.runs import InputError, RunReader

#: Which batches are shown: how far down a ranking, and why.
_BY_COST: tuple[tuple[float, Chosen], ...] = ((0.0, "costliest"), (0.5, "median"), (1.0, "cheapest"))
_IN_ORDER: tuple[tuple[float, Chosen], ...] = ((0.0, "first"), (1.0, "last"))


def bound(batch: BatchResult) -> float:
    """A batch's exact cost, in nats; without one, or where it is no number, nothing bounds it."""
    return math.inf if batch.exact is None or math.isnan(batch.exact) else batch.exact


def shown_samples(reader: RunReader, batches: Sequence[BatchResult]) -> tuple[SampleText, ...]:
    """The first texts of the costliest, the middle and the cheapest batch, or of the first and the last without costs.

    They are what samples.jsonl says, whether or not it is what was sampled: release.text says that. Empty where the
    file cannot be read.
    """
    ranked, places = list(batches), _IN_ORDER
    if any(batch.exact is not None for batch in batches):
        ranked, places = sorted(batches, key=lambda batch: (-bound(batch), batch.id)), _BY_COST
    chosen: dict[int, Chosen] = {}
    for share, why in places if ranked else ():
        chosen.setdefault(ranked[int(share * (len(ranked) - 1))].id, why)  # of several reasons the first
    found: dict[int, SampleText] = {}
    try:
        for sample in reader.samples() if chosen else ():
            if sample.id in chosen and sample.id not in found:
                found[sample.id] = SampleText(
                    batch=sample.id,
                    chosen=chosen[sample.id],
                    label=sample.label,
                    text=None if sample.text is None else sample.text[:SAMPLE_LENGTH],
                    characters=len(sample.text or ""),
                    tokens=len(sample.tokens),
                )
            if len(found) == len(chosen):
                break
    except InputError:  # integrity.format and release.text say what is wrong with the file
        return ()
    return tuple(found[batch] for batch in chosen if batch in found)
