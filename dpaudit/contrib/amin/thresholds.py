"""Tests that choose between private and public tokens: is each of what it should be, and is the threshold kept?

Only a private token is paid for, and with it all tests before it: they share one noisy threshold. One that is drawn
anew at another moment is another mechanism, and so is a test that looks at something else.
"""

from __future__ import annotations

from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import Outcome, RunCheck, StepCheck, inapplicable
from dpaudit.contrib.amin.sparse_vector import Rounds, SparseVector
from dpaudit.results import Finding, Place, finding_of
from dpaudit.runs import BatchHeader, Manifest

_NO_TESTS = "mechanisms.no-tests"


def _has_tests(manifest: Manifest) -> bool:
    return isinstance(manifest.mechanism.draw, SparseVector)


def _needs_contexts(facts: Facts, shown: int) -> Outcome:
    return Outcome("skip", "contexts-unrecorded", {"shown": shown, "steps": facts.steps})


@StepCheck(
    id="sampling.test",
    applies=_has_tests,
    otherwise=_NO_TESTS,
    shown=lambda view: view.contributions is not None,
    unshown=_needs_contexts,
)
def distance_is_of_the_contexts(view: StepView) -> Finding | None:
    """Hold each recorded distance against that of the recorded contexts from the anchor."""
    assert view.contributions is not None, "else nothing is shown"
    mechanism = view.mechanism
    return finding_of(mechanism.draw.test_problem(view.arrays, view.contributions, mechanism.aggregator))


class _Tests:
    """One batch's tests, and what contradicts their order first."""

    def __init__(self, draw: SparseVector, batch: int) -> None:
        self._rounds, self._batch = Rounds(draw), batch
        self._first: Finding | None = None

    def add(self, position: int, view: StepView) -> None:
        problem = finding_of(self._rounds.objection(view.arrays))
        if problem is not None and self._first is None:
            place = Place(batch=self._batch, step=position)
            self._first = Finding(code="step.problem", values={"place": place, "problem": problem})

    def result(self) -> Finding | None:
        return self._first


def _tests(manifest: Manifest, header: BatchHeader) -> _Tests | None:
    draw = manifest.mechanism.draw
    return _Tests(draw, header.id) if isinstance(draw, SparseVector) else None


@RunCheck(id="sampling.threshold", gather=_tests)
def thresholds_are_kept(facts: Facts) -> Outcome:
    """Hold each batch's tests, in order, against the thresholds and private tokens that the mechanism allows."""
    if not _has_tests(facts.manifest):
        return inapplicable(_NO_TESTS)
    if found := facts.gathered.get("sampling.threshold"):
        return Outcome("fail", "misplaced", {"batches": len(found), "first": found[0]})
    if not facts.steps or facts.unreadable:
        return Outcome("skip", "unread")
    return Outcome("pass", "kept", {"batches": len(facts.headers)})
