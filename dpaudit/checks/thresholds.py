"""Tests that choose between private and public tokens: is each of what it should be, and is the threshold kept?

Only a private token is paid for, and with it all tests before it: they share one noisy threshold. One that is drawn
anew at another moment is another mechanism, and so is a test that looks at something else.
"""

from __future__ import annotations

from dpaudit.catalogue import sentence
from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import UNREAD, RunCheck, StepCheck, Worded
from dpaudit.results import Finding, finding_of


def _needs_contexts(facts: Facts, shown: int) -> Worded:
    return Worded(
        "skip",
        f"{shown} of {facts.steps} steps",
        "the distance of recorded contexts",
        "Contexts are not on record: set record.contexts.",
    )


@StepCheck(id="sampling.test", shown=lambda view: view.contributions is not None, unshown=_needs_contexts)
def distance_is_of_the_contexts(view: StepView) -> Finding | None:
    """Each recorded distance against that of the recorded contexts from the anchor."""
    assert view.contributions is not None, "else nothing is shown"
    mechanism = view.mechanism
    return finding_of(mechanism.draw.test_problem(view.arrays, view.contributions, mechanism.aggregator))


@RunCheck(id="sampling.threshold")
def thresholds_are_kept(facts: Facts) -> Worded:
    """Each batch's tests in order: which threshold they have, and after how many private tokens."""
    expected = "one threshold up to each private token, a new one after it, and as many of them as declared"
    if found := facts.test_orders:
        return Worded("fail", f"{len(found)} batches; first {sentence(found[0])}", expected)
    if not facts.steps or facts.unreadable:
        return Worded("skip", "nothing", expected, UNREAD)
    return Worded("pass", f"{len(facts.headers):,} batches", expected)
