"""Budgets across runs: what earlier runs spent of the same records' budgets."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dpaudit.errors import InputError
from dpaudit.mechanisms import MAX_NUMBER
from dpaudit.runs import layout
from dpaudit.runs.commitment import SETTLED, commitment_of
from dpaudit.runs.manifest import Manifest
from dpaudit.runs.reader import RESUME, RunReader
from dpaudit.runs.storage import RESTORE

#: The settings by which earlier runs recognise a payer: the same rows have the same digests.
_IDENTITY = {
    "batching": ("key", "rule"),
    "privacy": ("unit", "shared_budgets"),
    "data": ("text", "label", "labels", "user", "label_values"),
}


def spent_by(reader: RunReader) -> dict[str, float]:
    """Return what each payer had spent by the end of a run, in earlier runs too.

    It is by `Assigned.payer`, in nats of rho, rounded up. A payer's m contexts of one batch have
    spent m times the sum of theirs, as `allowances` has it.

    Raises:
        InputError: the run is not finished, or is not as it was then; or its sums are none.
    """
    _require_as_finished(reader)
    places: defaultdict[int, list[str]] = defaultdict(list)
    total: dict[str, float] = {}
    for assigned in reader.assignment():
        if total.setdefault(assigned.payer, assigned.spent) != assigned.spent:
            where = reader.where(layout.ASSIGNMENT)
            raise InputError(where, "its lines disagree about what one user had spent.", RESTORE)
        if assigned.batch is not None:
            places[assigned.batch].append(assigned.payer)
    for batch, payers in places.items():
        with reader.batch(batch) as opened:
            spent = opened.step(len(opened.tokens) - 1).spent
        if spent is None or len(payers) != spent.shape[1]:
            raise InputError(
                opened.where, "its contexts differ from those in the assignment.", RESTORE
            )
        if not ((spent[1] >= 0) & (spent[1] <= MAX_NUMBER)).all():
            raise InputError(opened.where, "what its contexts spent is not a valid sum.", RESTORE)
        parts = Counter(payers)
        for payer, own in zip(payers, spent[1].tolist(), strict=True):
            if not own:
                continue
            cost = own
            if parts[payer] > 1:
                cost = _round_up(parts[payer] * own)
            total[payer] = _round_up(total[payer] + cost)
    return total


def most_spent(runs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the most that each payer spent by runs that went on from each other (`spent_by`).

    A later run may lack records.
    """
    found: dict[str, float] = {}
    for spent in runs:
        found |= {payer: max(found.get(payer, 0.0), own) for payer, own in spent.items()}
    return found


def _require_as_finished(reader: RunReader) -> None:
    """Refuse a run that is not finished, or whose statement of spending was changed since.

    Raises:
        InputError: it is such a run.
    """
    if not reader.has(layout.HASHES):
        raise InputError(reader.name, "this run is not finished.", RESUME)
    recorded = reader.hashes().digests
    digests = reader.digests((layout.MANIFEST, *SETTLED, *map(layout.steps_file, reader.batches)))
    for name, digest in digests.items():
        if recorded.get(name) != digest:
            raise InputError(
                reader.where(name), "this file was changed after the run was finished.", RESTORE
            )
    if reader.manifest.commitment != commitment_of(reader.manifest, digests):
        raise InputError(reader.name, "data or settings were changed after the run began.", RESTORE)
    missing = set(range(reader.manifest.batches)) - set(reader.batches)
    if missing:
        raise InputError(reader.name, f"{len(missing)} of its batches are missing.", RESTORE)


def continuation_problem(later: Manifest, earlier: Sequence[Manifest]) -> str | None:
    """Return why a run cannot go on from what earlier ones spent, or None.

    Each has to go on from all those before it, and all of them have to know records, or users, by
    the same digests.

    Args:
        later: the run, as it is to be.
        earlier: in their order.
    """
    for number, run in enumerate((*earlier, later)):
        if run.mechanism.budget is None or run.batching.rule != "hashed-records":
            return "its contexts have no budgets of their own, or are not a record each"
        if run.batching.rounds > 1:
            return "it has several rounds, each with budgets of its own"
        if run.privacy.unit != "record" and not run.privacy.shared_budgets:
            return (
                f"nothing says which records are one {run.privacy.unit}'s, who would pay in "
                "each run anew"
            )
        if run.clustering.method != "none" and (
            run.clustering.origin != "public" or run.clustering.counts is not None
        ):
            return "its clusters cost something beside the budgets"
        for section, names in _IDENTITY.items():
            for name in names:
                if getattr(getattr(run, section), name) != getattr(getattr(later, section), name):
                    return (
                        f"its {section}.{name} is another, by which nobody's spending is "
                        "known again"
                    )
        if run.privacy.earlier != tuple(each.commitment for each in earlier[:number]):
            return "the runs that it went on from are not just those named before it"
    return None


def _round_up(value: float) -> float:
    return math.nextafter(value, math.inf)
