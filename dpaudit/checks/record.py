"""Does each step's record agree with itself and with the mechanism's definition?"""

from __future__ import annotations

import math

from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import Outcome, RunCheck, StepCheck, not_applicable
from dpaudit.runs import aggregate_digest

_REGENERATE = "The record is not what a correct generator writes. Generate the run again; do not release this one."
_DOCS = "docs/run-directory.md"
#: Agreement of float64 log-probabilities that were computed in different orders of summation.
_LOG_TOLERANCE = 1e-9


@StepCheck(
    id="record.range",
    title="Recorded values are finite, within the clip and in order",
    fails="Recorded values are not finite, beyond the clip or out of order",
    evidence=1,
    expected="finite values in [-clip, clip], central values ascending, support ids ascending",
    why=(
        "Every bound assumes clipped values in order. Beyond the clip, one record can move a score further "
        "than is charged."
    ),
    remedy=_REGENERATE,
    reference=_DOCS,
)
def values_in_range(view: StepView) -> str | None:
    """Every array of the step against the range that clipping gives it."""
    return view.range_problem


@StepCheck(
    id="record.aggregate",
    title="Tokens were sampled from the aggregate that the record defines",
    fails="Tokens were not sampled from the aggregate that the record defines",
    evidence=1,
    expected="digest and log-probability of the sampled vector equal those of the recorded aggregate",
    why=(
        "Costs are worked out from the record. If tokens were drawn from something else, no figure here is "
        "about these texts."
    ),
    remedy=_REGENERATE,
    reference=_DOCS,
)
def aggregate_is_defined(view: StepView) -> str | None:
    """The recorded digest and log-probability against the aggregate recomputed from the record."""
    step, mechanism = view.step, view.mechanism
    if view.contributions is not None:
        problem = mechanism.aggregator.definition_problem(
            view.arrays, view.contributions, view.manifest.record.width, mechanism.contribution
        )
        if problem:
            return problem
    if aggregate_digest(view.aggregate) != step.aggregate_digest:
        return "the vector that was sampled from differs from the recorded one"
    right = view.log_probability
    if right is None or view.index is None:
        return None  # sampling.support objects
    if _agree(right, step.log_probability):
        return None
    # Of the reduced step, scores beyond 10^7 have lost digits that all of them at once keep.
    right = mechanism.log_probability(view.aggregate, view.index)
    if _agree(right, step.log_probability):
        return None
    return (
        f"the sampler gave its token log-probability {step.log_probability:.6g}, "
        f"{'softmax(aggregate / temperature)' if mechanism.draw.likely else 'the noisy maximum'} gives {right:.6g}"
    )


def _agree(right: float, said: float) -> bool:
    return math.isfinite(right) and abs(right - said) <= _LOG_TOLERANCE * max(1.0, abs(right))


@StepCheck(
    id="record.sides",
    title="Leave-one-out sides agree with the number of contexts and the central values",
    fails="Leave-one-out sides contradict the number of contexts or the central values",
    evidence=1,
    expected="half of the others below the middle, one holder for each place in it, clips where contexts run out",
    why="Leave-one-out losses follow from these bits. Where they are wrong, so is the evidence that the bounds hold.",
    remedy=_REGENERATE,
    reference=_DOCS,
)
def sides_are_consistent(view: StepView) -> str | None:
    """Counts of the side bits, the holder of an odd median, and the padding of small batches."""
    aggregator, clip = view.mechanism.aggregator, view.mechanism.clip
    return aggregator.sides_problem(view.arrays, view.step.contexts, view.header.contexts, clip)


@RunCheck(
    id="record.rows",
    title="Every recorded row was scored by a model",
    fails="A row holds equal logits at every step: no model scored it",
    evidence=1,
    why=(
        "A row that was left at its initial value says nothing of its record, and where it is the public prompt's, the "
        "support and the anchor are made up."
    ),
    remedy=(
        "Have the model score every row: minibatches that leave a rest over, and failed passes, leave rows empty. "
        "Generate again."
    ),
    reference=_DOCS,
)
def rows_are_scored(facts: Facts) -> Outcome:
    """The logits that each recorded context, and the anchor, is of: whether they are all equal at every step."""
    expected = "logits that differ between tokens at some step, in every context and in the public prompt"
    if not facts.manifest.record.contexts:
        return not_applicable(expected, "Contexts are not recorded.")
    if facts.unscored:
        return Outcome("fail", f"{len(facts.unscored)} batches; first {facts.unscored[0]}", expected)
    if not facts.steps:
        return Outcome("skip", "nothing", expected, "No step could be read.")
    return Outcome("pass", f"{sum(header.contexts for header in facts.headers.values())} contexts", expected)


@StepCheck(
    id="sampling.support",
    title="Every sampled token lies in the support it was sampled from",
    fails="A sampled token lies outside the support it was sampled from",
    evidence=1,
    expected="sampled tokens in the recorded support, with positive probability",
    why="A token that could not have been drawn came from somewhere else, and its cost has no bound.",
    remedy=_REGENERATE,
    reference=_DOCS,
)
def token_in_support(view: StepView) -> str | None:
    """The sampled token against the recorded support."""
    if view.index is None:
        return f"token {view.step.token} is outside the support"
    if not math.isfinite(view.step.log_probability):
        return f"token {view.step.token} has probability 0"
    return None
