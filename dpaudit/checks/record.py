"""Does each step's record agree with itself and with the mechanism's definition?"""

from __future__ import annotations

import math

from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import Outcome, RunCheck, StepCheck, inapplicable
from dpaudit.results import Finding, Value, finding_of
from dpaudit.runs import aggregate_digest

#: Agreement of float64 log-probabilities that were computed in different orders of summation.
_LOG_TOLERANCE = 1e-9


@StepCheck(id="record.range")
def values_in_range(view: StepView) -> Finding | None:
    """Hold every array of the step against the range that clipping gives it."""
    return view.range_problem


@StepCheck(id="record.aggregate")
def aggregate_is_defined(view: StepView) -> Finding | None:
    """Hold the recorded digest and log-probability against the aggregate recomputed from the record."""
    step, mechanism = view.step, view.mechanism
    if view.contributions is not None:
        problem = mechanism.aggregator.definition_problem(
            view.arrays, view.contributions, view.manifest.record.width, mechanism.contribution
        )
        if problem:
            return finding_of(problem)
    if aggregate_digest(view.aggregate) != step.aggregate_digest:
        return Finding(code="record.other-vector")
    right = view.log_probability
    if right is None or view.index is None:
        return None  # sampling.support objects
    if _agree(right, step.log_probability):
        return None
    # Of the reduced step, scores beyond 10^7 have lost digits that all of them at once keep.
    right = mechanism.log_probability(view.aggregate, view.index)
    if _agree(right, step.log_probability):
        return None
    values: dict[str, Value] = {"recorded": step.log_probability, "recomputed": right}
    return Finding(code="record.other-probability" if mechanism.draw.likely else "record.other-maximum", values=values)


def _agree(right: float, recorded: float) -> bool:
    return math.isfinite(right) and abs(right - recorded) <= _LOG_TOLERANCE * max(1.0, abs(right))


@StepCheck(id="record.sides")
def sides_are_consistent(view: StepView) -> Finding | None:
    """Hold side bits and holders of medians against the number of contexts and the central values."""
    aggregator, clip = view.mechanism.aggregator, view.mechanism.clip
    return finding_of(aggregator.sides_problem(view.arrays, view.step.contexts, view.header.contexts, clip))


@RunCheck(id="record.rows")
def rows_are_scored(facts: Facts) -> Outcome:
    """Hold the logits of each recorded context, and of the anchor, against equal ones at every step."""
    if not facts.manifest.record.contexts:
        return inapplicable("record.no-contexts")
    if facts.unscored:
        return Outcome("fail", "unscored", {"batches": len(facts.unscored), "first": facts.unscored[0]})
    if not facts.steps:
        return Outcome("skip", "no-step")
    return Outcome("pass", "scored", {"contexts": sum(header.contexts for header in facts.headers.values())})


@StepCheck(id="sampling.support")
def token_in_support(view: StepView) -> Finding | None:
    """Hold the sampled token against the recorded support."""
    if view.index is None:
        return Finding(code="record.token-outside-support", values={"token": view.step.token})
    if not math.isfinite(view.step.log_probability):
        return Finding(code="record.token-impossible", values={"token": view.step.token})
    return None
