"""Tests that choose between private and public tokens: is each of what it should be, and is the threshold kept?

Only a private token is paid for, and with it all tests before it: they share one noisy threshold. One that is drawn
anew at another moment is another mechanism, and so is a test that looks at something else.
"""

from __future__ import annotations

from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import UNREAD, Outcome, RunCheck, StepCheck
from dpaudit.mechanisms import ANCHOR, DISTANCE_ROOM, NO_TEST, AboveThreshold, Mean, SparseVector

_REFERENCE = "docs/amin-et-al.md"


class ThresholdSums:
    """Follows the tests of one batch, a step at a time.

    Attributes:
        problem: the first step that is not as the mechanism has it, and why, in words; empty where none.
    """

    def __init__(self, draw: SparseVector) -> None:
        """Of a batch whose tokens are drawn so."""
        self.problem, self._draw = "", draw
        self._steps = self._private = 0
        # Of the steps since the last private token, and of that one.
        self._threshold: float | None = None
        self._used: float | None = None

    def add(self, view: StepView) -> None:
        """Take in one step."""
        tested = AboveThreshold.of(view.arrays)
        if (problem := self._objection(tested)) and not self.problem:
            self.problem = f"step {self._steps}: {problem}"
        self._threshold = tested.threshold_noise
        if self._draw.is_private(tested):
            self._private, self._used = self._private + 1, self._threshold
            self._threshold = None
        self._steps += 1

    def _objection(self, tested: AboveThreshold) -> str:
        most = self._draw.private_tokens
        if self._private >= most:
            return "" if tested == NO_TEST else f"a test after {most} private tokens, which are all that there are"
        if tested.query_noise == NO_TEST.query_noise:
            return f"no test, after {self._private} of {most} private tokens"
        if self._threshold is not None and tested.threshold_noise != self._threshold:
            return "a new threshold, and no private token before it"
        if self._threshold is None and tested.threshold_noise == self._used:
            return "the threshold of the private token before"
        return ""


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
    tested, aggregator, draw = AboveThreshold.of(view.arrays), view.mechanism.aggregator, view.mechanism.draw
    if tested == NO_TEST or view.contributions is None:
        return None
    assert isinstance(draw, SparseVector) and isinstance(aggregator, Mean)
    right = draw.distance(view.contributions, view.arrays[ANCHOR], aggregator.divisor)
    # A comparison with NaN is false.
    if abs(tested.distance - right) <= DISTANCE_ROOM / aggregator.divisor:
        return None
    return f"the test was of {tested.distance:.6g}, and the distance is {right:.6g}"


@RunCheck(
    id="sampling.threshold",
    title="Thresholds are noised anew after private tokens alone, and these are no more than declared",
    fails="Thresholds are not those of the declared private tokens",
    evidence=1,
    why=(
        "A private token pays for all tests since the one before it, for they share one threshold. A threshold that is "
        "drawn anew for free, or kept, and a token beyond the declared number are paid for by nothing."
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
