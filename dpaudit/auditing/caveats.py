"""The caveats that readers of a pass must know, and those that readers outside may be told."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.claim import recomputed_levels
from dpaudit.auditing.checks.disclosure import in_common
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.steps import (
    TELLING_VALUES,
    BatchView,
    StepsView,
    values_between_extremes,
)
from dpaudit.results import CheckResult, ClaimResult, Finding, Place, Quantity, Value
from dpaudit.runs import Claim

#: Beyond this epsilon, in nats, a factor has five digits and more, and rules out next to nothing.
_MOST_TELLING = 10


class EqualRows(BatchEvidence):
    """The contexts of a batch that had the same contributions at every step, bit for bit.

    Attributes:
        groups: slots that were alike so far, for each set of two or more.
    """

    def __init__(self, contexts: int) -> None:
        """`contexts`: how many contexts the batch has."""
        self.groups = [list(range(contexts))] if contexts > 1 else []
        self._values = np.zeros(contexts, dtype=np.int64)

    @override
    def look(self, view: StepsView) -> None:
        if view.contexts is None:  # where contributions are not recorded, nothing tells them apart
            self.groups = []
            return
        for span in view.spans.slices:
            if not self.groups:
                return
            self._part(view.contexts[:, span])

    def _part(self, contexts: NDArray[np.floating]) -> None:
        """Part what a step tells apart, for good."""
        parted: list[list[int]] = []
        for group in self.groups:
            alike: dict[bytes, list[int]] = {}
            for slot in group:
                alike.setdefault(contexts[slot].tobytes(), []).append(slot)
            parted += [slots for slots in alike.values() if len(slots) > 1]
        self.groups = parted
        for slots in parted:
            self._values[slots] += values_between_extremes(contexts[slots[0]])

    @override
    def result(self) -> list[list[int]] | None:
        """Return the sets whose likeness is no chance; None if there are none."""
        found = [slots for slots in self.groups if self._values[slots[0]] >= TELLING_VALUES]
        return found or None


class EqualContexts(Evidence):
    """Sets of a batch's contexts with the same recorded contributions at every step, by batch."""

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence:
        return EqualRows(batch.header.contexts)


def caveats(run: AuditedRun, checks: Iterable[CheckResult]) -> Iterator[Finding]:
    """Yield all caveats, for readers inside."""
    claim, manifest = run.claim, run.manifest
    privacy, model = manifest.privacy, manifest.model
    levels = recomputed_levels(run)
    yield from empty_bound(promised_epsilon(claim, None if levels is None else levels.release))
    empty = [batch for batch, header in sorted(run.headers.items()) if not header.contexts]
    if empty and not run.kind.beforehand and len(empty) == 1:
        yield Finding(code="empty-bound.empty-batch", values={"batch": Place(batch=empty[0])})
    elif empty and not run.kind.beforehand:
        yield Finding(code="empty-bound.empty-batches", values={"batches": len(empty)})
    if levels is not None and levels.amplified:
        assert levels.amplification.assumption is not None
        yield Finding(
            code="caveat.assumption", values={"assumption": levels.amplification.assumption}
        )
        yield Finding(code="caveat.counted-together")
        yield Finding(code="caveat.weak-channels")
    # With "yes" there is no pass.
    yield Finding(
        code=f"of-model.{'not-trained' if model.trained_on_records == 'no' else 'trained-unknown'}"
    )
    if manifest.recorded is not None and (cells := manifest.batching.cells) is not None:
        yield rows_held(
            sum(header.contexts for header in run.headers.values()), cells * len(run.headers)
        )
    groups = [
        (len(slots), batch)
        for batch, found in run[EqualContexts].by_batch.items()
        for slots in found
    ]
    if groups:
        contexts, batch = groups[0]
        values: dict[str, Value] = {"contexts": contexts, "batch": Place(batch=batch)}
        more: dict[str, Value] = {"more": len(groups) - 1} if len(groups) > 1 else {}
        yield Finding(code="caveat.equal-contexts", values=values | more)
    for shared in (run.replay.shared or ()) if run.replay is not None else ():
        yield Finding(code="caveat.text-in-common", values={"found": in_common(shared)})
    public = next((check for check in checks if check.id == "mechanism.support-public"), None)
    if public is not None and (public.status == "skip" or not public.evidence):
        yield Finding(code="caveat.public-parts")
    yield Finding(code="caveat.declared")
    if others := sorted(
        {f"{each.package} {each.version}" for each in manifest.plug_ins if not each.is_own}
    ):
        yield Finding(code="caveat.others-parts", values={"packages": tuple(others)})
    if model.isolation == "batch":
        yield Finding(code="of-model.coupled")
    if privacy.earlier:
        yield Finding(code="caveat.earlier-spending")
    if run.known_digests.commitment is None:
        yield Finding(code="caveat.no-commitment")
    elif run.known_digests.head is None:
        yield Finding(code="caveat.no-head")
    if run.known_digests.head not in (None, run.reader.head()):
        yield Finding(code="caveat.early-head")
    if manifest.sampling.committed and run.seed is None:
        yield Finding(code="caveat.no-seed")
    if manifest.claim_stated == "afterwards" and claim == manifest.claim:
        yield Finding(code="of-claim.stated-afterwards")
    if claim.unit == "user":
        yield _about_users(run)
    yield Finding(code="caveat.number-alone")


def promised_epsilon(claim: Claim | ClaimResult, recomputed: float | None) -> float:
    """Return the epsilon that a claim promises readers, in nats.

    Of zCDP it is the recomputed one, or rho, which is less.
    """
    return claim.stated if claim.rho is None or recomputed is None else recomputed


def empty_bound(epsilon: float) -> Iterator[Finding]:
    """Yield a caveat where an epsilon, in nats, is too large to rule anything out."""
    if epsilon > _MOST_TELLING:
        values: dict[str, Value] = {"epsilon": Quantity(value=epsilon, unit="nats")}
        if math.isinf(epsilon):
            values["endless"] = Finding(code="empty-bound.endless")
        else:
            values["digits"] = math.floor(epsilon / math.log(10)) + 1
        yield Finding(code="empty-bound.factor", values=values)


def rows_held(held: int, rows: int) -> Finding:
    """Return how many of a recorded generator's rows show a record.

    Each row is a cell of one record or empty.
    """
    if not held:
        return Finding(code="caveat.rows-empty", values={"rows": rows})
    return Finding(code="caveat.rows-held", values={"held": held, "rows": rows})


def _about_users(run: AuditedRun) -> Finding:
    privacy = run.manifest.privacy
    most: dict[str, Value] = (
        {} if privacy.records_per_user is None else {"most": privacy.records_per_user}
    )
    if privacy.records_per_user_from != "declared":
        return Finding(code="caveat.users-counted", values=most)
    counted = run.replay is not None and run.replay.most_per_user is not None
    return (
        Finding(code="caveat.users-by-column")
        if counted
        else Finding(code="caveat.users-declared", values=most)
    )
