"""Does each step's record agree with itself and with the mechanism's definition?"""

from __future__ import annotations

import math

from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import RunCheck, StepCheck, Worded, not_applicable
from dpaudit.runs import aggregate_digest

#: Agreement of float64 log-probabilities that were computed in different orders of summation.
_LOG_TOLERANCE = 1e-9


@StepCheck(id="record.range")
def values_in_range(view: StepView) -> str | None:
    """Every array of the step against the range that clipping gives it."""
    return view.range_problem


@StepCheck(id="record.aggregate")
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


@StepCheck(id="record.sides")
def sides_are_consistent(view: StepView) -> str | None:
    """Counts of the side bits, the holder of an odd median, and the padding of small batches."""
    aggregator, clip = view.mechanism.aggregator, view.mechanism.clip
    return aggregator.sides_problem(view.arrays, view.step.contexts, view.header.contexts, clip)


@RunCheck(id="record.rows")
def rows_are_scored(facts: Facts) -> Worded:
    """The logits that each recorded context, and the anchor, is of: whether they are all equal at every step."""
    expected = "logits that differ between tokens at some step, in every context and in the public prompt"
    if not facts.manifest.record.contexts:
        return not_applicable(expected, "Contexts are not recorded.")
    if facts.unscored:
        return Worded("fail", f"{len(facts.unscored)} batches; first {facts.unscored[0]}", expected)
    if not facts.steps:
        return Worded("skip", "nothing", expected, "No step could be read.")
    return Worded("pass", f"{sum(header.contexts for header in facts.headers.values())} contexts", expected)


@StepCheck(id="sampling.support")
def token_in_support(view: StepView) -> str | None:
    """The sampled token against the recorded support."""
    if view.index is None:
        return f"token {view.step.token} is outside the support"
    if not math.isfinite(view.step.log_probability):
        return f"token {view.step.token} has probability 0"
    return None
