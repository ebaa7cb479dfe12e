"""Tests that choose between private and public tokens: is each of what it should be, and is the threshold kept?

Only a private token is paid for, and with it all tests before it: they share one noisy threshold. One that is drawn
anew at another moment is another mechanism, and so is a test that looks at something else.
"""

from __future__ import annotations

from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import UNREAD, Outcome, RunCheck, StepCheck

_REFERENCE = "docs/amin-et-al.md"


def _needs_contexts(facts: Facts, shown: str) -> Outcome:
    return Outcome(
        "skip", shown, "the distance of recorded contexts", "Contexts are not on record: set record.contexts."
    )


@StepCheck(
    id="sampling.test",
    title="What is tested is how far contexts are from the public prompt",
    fails="What is tested is not how far contexts are from the public prompt",
    evidence=1,
    expected="the distance of the contexts' mean probabilities, over the declared divisor, from the public ones",
    why="Noise hides one context in this distance alone. Something else may move by more, and then tells more.",
    remedy="Test the l1 distance of softmax(anchor + contribution), added up over the divisor, from softmax(anchor).",
    reference=_REFERENCE,
    shown=lambda view: view.contributions is not None,
    unshown=_needs_contexts,
)
def distance_is_of_the_contexts(view: StepView) -> str | None:
    """Each recorded distance against that of the recorded contexts from the anchor."""
    assert view.contributions is not None, "else nothing is shown"
    mechanism = view.mechanism
    return mechanism.draw.test_problem(view.arrays, view.contributions, mechanism.aggregator)


@RunCheck(
    id="sampling.threshold",
    title="Thresholds are noised anew after private tokens alone, and these are no more than declared",
    fails="Thresholds are not those of the declared private tokens",
    evidence=1,
    why=(
        "A private token pays for all tests since the one before it, for they share a threshold. Nothing pays for one "
        "that is drawn anew in between, or kept, nor for a token too many."
    ),
    remedy=(
        "Draw a threshold's noise at a batch's beginning and after each private token, at no other time; after the "
        "last one draw public tokens without a test. Generate again."
    ),
    reference=_REFERENCE,
)
def thresholds_are_kept(facts: Facts) -> Outcome:
    """Each batch's tests in order: which threshold they have, and after how many private tokens."""
    expected = "one threshold up to each private token, a new one after it, and as many of them as declared"
    if facts.tests:
        return Outcome("fail", f"{len(facts.tests)} batches; first {facts.tests[0]}", expected)
    if not facts.steps or facts.unreadable:
        return Outcome("skip", "nothing", expected, UNREAD)
    return Outcome("pass", f"{len(facts.headers):,} batches", expected)
