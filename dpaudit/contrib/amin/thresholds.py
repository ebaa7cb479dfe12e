"""Checks of noisy tests that choose between private and public tokens.

Only a private token is paid for, and with it all tests before it: they share one noisy threshold. A
threshold drawn anew at another moment is another mechanism, and so is a test that reads something
else.
"""

from __future__ import annotations

from typing_extensions import override

from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.registry import (
    Finding,
    Outcome,
    Place,
    RunCheck,
    StepCheck,
    finding_of,
    inapplicable,
)
from dpaudit.auditing.checks.steps import BatchView, StepView
from dpaudit.contrib.amin.sparse_vector import Rounds, SparseVector
from dpaudit.runs import Manifest

_NO_TESTS = "mechanisms.no-tests"


def _has_tests(manifest: Manifest) -> bool:
    return isinstance(manifest.mechanism.draw, SparseVector)


def _needs_contexts(run: AuditedRun, shown: int) -> Outcome:
    return Outcome("skip", "contexts-unrecorded", {"shown": shown, "steps": run.steps})


@StepCheck(
    id="sampling.test",
    applies=_has_tests,
    otherwise=_NO_TESTS,
    shown=lambda view: view.contributions is not None,
    unshown=_needs_contexts,
)
def distance_is_of_the_contexts(view: StepView) -> Finding | None:
    """Compare each recorded distance with that of the recorded contexts from the anchor."""
    assert view.contributions is not None, "else nothing is shown"
    mechanism = view.mechanism
    return finding_of(
        mechanism.draw.test_problem(view.arrays, view.contributions, mechanism.aggregator)
    )


class _BatchTests(BatchEvidence):
    """One batch's tests, and the first contradiction in their order."""

    def __init__(self, draw: SparseVector) -> None:
        self._rounds = Rounds(draw)
        self._first: Finding | None = None

    @override
    def step(self, view: StepView) -> None:
        problem = finding_of(self._rounds.objection(view.arrays))
        if problem is not None and self._first is None:
            place = Place(batch=view.header.id, step=view.position)
            self._first = Finding(code="step.problem", values={"place": place, "problem": problem})

    @override
    def result(self) -> Finding | None:
        return self._first


class Thresholds(Evidence):
    """The first contradiction in the order of a batch's tests, by batch."""

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        draw = batch.manifest.mechanism.draw
        return _BatchTests(draw) if isinstance(draw, SparseVector) else None


@RunCheck(id="sampling.threshold", gathers=(Thresholds,))
def thresholds_are_kept(run: AuditedRun) -> Outcome:
    """Compare each batch's tests with the thresholds and private tokens of the mechanism."""
    if not _has_tests(run.manifest):
        return inapplicable(_NO_TESTS)
    if misplaced := list(run[Thresholds].by_batch.values()):
        return Outcome("fail", "misplaced", {"batches": len(misplaced), "first": misplaced[0]})
    if not run.steps or run.unreadable:
        return Outcome("skip", "unread")
    return Outcome("pass", "kept", {"batches": len(run.headers)})
