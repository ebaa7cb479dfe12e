"""Runs that go on from what earlier ones spent of the same records' budgets."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from dpaudit.runs.errors import InputError
from dpaudit.runs.manifest import Manifest
from dpaudit.runs.reader import RunReader
from dpaudit.runs.storage import RESTORE

#: By what earlier runs know a payer again: the same rows have the same digests.
_IDENTITY = {
    "batching": ("key", "rule", "labels"),
    "privacy": ("unit", "shared_budgets"),
    "data": ("text", "label", "user", "label_values"),
}


def spent_by(reader: RunReader) -> dict[str, float]:
    """What each payer had spent by the end of a run, in earlier runs too: by `Assigned.payer`, in nats of rho.

    Rounded up. A payer's m contexts of one batch have spent m times the sum of theirs, as `allowances` has it.

    Raises:
        InputError: assignment or batches cannot be read, or have other contexts.
    """
    places: defaultdict[int, list[str]] = defaultdict(list)
    total: dict[str, float] = {}
    for assigned in reader.assignment():
        total[assigned.payer] = assigned.spent
        if assigned.batch is not None:
            places[assigned.batch].append(assigned.payer)
    for batch, payers in places.items():
        with reader.batch(batch) as opened:
            spent = opened.step(len(opened.tokens) - 1).spent
        if spent is None or len(payers) != spent.shape[1]:
            raise InputError(opened.where, "its contexts are not those of the assignment.", RESTORE)
        parts = Counter(payers)
        for payer, own in zip(payers, spent[1].tolist(), strict=True):
            if own:
                total[payer] = _up(total[payer] + (_up(parts[payer] * own) if parts[payer] > 1 else own))
    return total


def continuation_problem(later: Manifest, earlier: Sequence[Manifest]) -> str | None:
    """Why a run cannot go on from what earlier ones spent; None where it can.

    Each has to go on from all those before it, and all of them have to know records, or users, by the same digests.

    Args:
        later: the run, as it is to be.
        earlier: in their order.
    """
    for number, run in enumerate((*earlier, later)):
        if run.mechanism.budget is None or run.batching.rule != "hashed-records":
            return "its contexts have no budgets of their own, or are not a record each"
        if run.clustering.method != "none" and (run.clustering.origin != "public" or run.clustering.counts is not None):
            return "its clusters cost something beside the budgets"
        for section, names in _IDENTITY.items():
            for name in names:
                if getattr(getattr(run, section), name) != getattr(getattr(later, section), name):
                    return f"its {section}.{name} is another, by which nobody's spending is known again"
        if run.privacy.earlier != tuple(each.commitment for each in earlier[:number]):
            return "it does not go on from just those before it"
    return None


def _up(value: float) -> float:
    return math.nextafter(value, math.inf)
