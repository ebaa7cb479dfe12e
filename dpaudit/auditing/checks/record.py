"""Does each step's record agree with itself and with the mechanism's definition?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.registry import Outcome, RunCheck, StepCheck, inapplicable
from dpaudit.auditing.checks.steps import BatchView, StepsView
from dpaudit.mechanisms import ANCHOR, TELLING, Doubles
from dpaudit.results import Finding, Place, Value, finding_of
from dpaudit.runs import aggregate_digest

#: Agreement of float64 log-probabilities that were computed in different orders of summation.
_LOG_TOLERANCE = 1e-9


@StepCheck(id="record.range", together=True)
def values_in_range(view: StepsView) -> Finding | None:
    """Hold every array of a step against the range that clipping gives it."""
    return view.range_problem


@StepCheck(id="record.aggregate", together=True)
def aggregate_is_defined(view: StepsView) -> Finding | None:
    """Compare recorded digest and log-probability with the aggregate recomputed from the record."""
    mechanism = view.mechanism
    if view.contributions is not None:
        problem = mechanism.aggregator.definition_problem(
            view.arrays, view.contributions, view.manifest.record.width, mechanism.contribution
        )
        if problem:
            return finding_of(problem)
    digests = b"".join(aggregate_digest(view.aggregate[span]) for span in view.spans.slices)
    if digests != view.recorded.digests.tobytes():
        return Finding(code="record.other-vector")
    if view.log_probabilities is None:
        return None  # sampling.support objects
    code = "record.other-probability" if mechanism.draw.likely else "record.other-maximum"
    recorded = view.recorded.log_probabilities
    for place in np.flatnonzero(~_agree(view.log_probabilities, recorded)).tolist():
        # Of the reduced step, scores beyond 10^7 have lost digits that all of them at once keep.
        span = view.spans.slices[place]
        right = mechanism.log_probability(
            view.aggregate[span], int(view.columns[place]) - span.start
        )
        found = float(recorded[place])
        if not _agree(np.array(right), recorded[place]):
            return Finding(code=code, values={"recorded": found, "recomputed": right})
    return None


def _agree(right: Doubles, recorded: Doubles) -> NDArray[np.bool_]:
    near = np.abs(right - recorded) <= _LOG_TOLERANCE * np.maximum(1.0, np.abs(right))
    return np.isfinite(right) & near


@StepCheck(id="record.sides", together=True)
def sides_are_consistent(view: StepsView) -> Finding | None:
    """Compare medians' side bits and holders with the number of contexts and the central values."""
    aggregator, clip = view.mechanism.aggregator, view.mechanism.clip
    return finding_of(
        aggregator.sides_problem(view.arrays, view.contexts, view.header.contexts, clip)
    )


class UniformRows(BatchEvidence):
    """Rows of a batch, contexts' and public prompt's, with equal logits at every step: not scored.

    Attributes:
        contexts: which of them, [n].
        public: whether the anchor's row did.
    """

    def __init__(self, batch: int, contexts: int) -> None:
        """`contexts`: how many contexts the batch has."""
        self._batch, self._looked = batch, False
        self.contexts, self.public = np.ones(contexts, dtype=np.bool_), True

    @override
    def look(self, view: StepsView) -> None:
        self._looked = True
        # What a step does not record tells nothing.
        self.public &= ANCHOR in view.arrays
        if view.contexts is None:
            self.contexts[:] = False
        for span in view.spans.slices:
            if not (self.public or self.contexts.any()):
                return
            anchor = {ANCHOR: view.arrays[ANCHOR][span]} if ANCHOR in view.arrays else {}
            if self.public:
                row = anchor[ANCHOR]
                self.public = len(row) >= TELLING and bool(np.ptp(row) == 0)
            if view.contexts is not None:
                contexts = view.contexts[:, span]
                self.contexts &= view.mechanism.contribution.uniform(anchor, contexts)

    @override
    def result(self) -> Finding | None:
        """Return which rows of the finished batch nobody scored; None if all were scored."""
        count = int(self.contexts.sum())
        if not self._looked or not (count or self.public):
            return None
        values: dict[str, Value] = {"place": Place(batch=self._batch)}
        if not count:
            return Finding(code="record.unscored-public", values=values)
        values |= {"unscored": count, "contexts": len(self.contexts)}
        return Finding(
            code="record.unscored-both" if self.public else "record.unscored-contexts",
            values=values,
        )


class Unscored(Evidence):
    """The rows that no model scored, by batch, of those batches that have some."""

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        header = batch.header
        return UniformRows(header.id, header.contexts) if batch.manifest.record.contexts else None


@RunCheck(id="record.rows", gathers=(Unscored,))
def rows_are_scored(run: AuditedRun) -> Outcome:
    """Look for recorded contexts, or an anchor, with equal logits at every step: none is scored."""
    if not run.manifest.record.contexts:
        return inapplicable("record.no-contexts")
    if problems := list(run[Unscored].by_batch.values()):
        return Outcome("fail", "unscored", {"batches": len(problems), "first": problems[0]})
    if not run.steps:
        return Outcome("skip", "no-step")
    return Outcome(
        "pass", "scored", {"contexts": sum(header.contexts for header in run.headers.values())}
    )


@StepCheck(id="sampling.support", together=True)
def token_in_support(view: StepsView) -> Finding | None:
    """Hold the sampled token against the recorded support."""
    for code, wrong in (
        ("record.token-outside-support", view.columns < 0),
        ("record.token-impossible", ~np.isfinite(view.recorded.log_probabilities)),
    ):
        if wrong.any():
            return Finding(code=code, values={"token": int(view.tokens[wrong.argmax()])})
    return None
