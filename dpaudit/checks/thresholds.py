"""Tests that choose between private and public tokens: is each of what it should be, and is the threshold kept?

Only a private token is paid for, and with it all tests before it: they share one noisy threshold. One that is drawn
anew at another moment is another mechanism, and so is a test that looks at something else.
"""

from __future__ import annotations

from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import Outcome, RunCheck, StepCheck
from dpaudit.results import Finding, finding_of


def _needs_contexts(facts: Facts, shown: int) -> Outcome:
    return Outcome("skip", "contexts-unrecorded", {"shown": shown, "steps": facts.steps})


@StepCheck(id="sampling.test", shown=lambda view: view.contributions is not None, unshown=_needs_contexts)
def distance_is_of_the_contexts(view: StepView) -> Finding | None:
    """Hold each recorded distance against that of the recorded contexts from the anchor."""
    assert view.contributions is not None, "else nothing is shown"
    mechanism = view.mechanism
    return finding_of(mechanism.draw.test_problem(view.arrays, view.contributions, mechanism.aggregator))


@RunCheck(id="sampling.threshold")
def thresholds_are_kept(facts: Facts) -> Outcome:
    """Hold each batch's tests, in order, against the thresholds and private tokens that the mechanism allows."""
    if facts.test_orders:
        return Outcome("fail", "misplaced", {"batches": len(facts.test_orders), "first": facts.test_orders[0]})
    if not facts.steps or facts.unreadable:
        return Outcome("skip", "unread")
    return Outcome("pass", "kept", {"batches": len(facts.headers)})
