"""Do actual neighbours stay within the bounds? Removals from the recorded sides, additions of the worst contexts."""

from __future__ import annotations

import numpy as np

from dpaudit.accounting import exact_cost
from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, run_check, step_check
from dpaudit.checks.replay import COMMAND, FINE
from dpaudit.checks.view import StepView
from dpaudit.mechanisms import ContextChange, log_probability
from dpaudit.results.replay import LeftOut

_DOCS = "docs/mathematics.md"
_UNSOUND = (
    "Do not release. A bound that an actual neighbour exceeds is no bound: where all other checks pass, report this as "
    "a defect of dpaudit."
)
#: Rounding of two logarithms of sums, in nats.
_SLACK = 1e-9


@run_check(
    check_id="neighbors.removal",
    title="No context's removal costs more than its batch's bound",
    failed="Removing a context costs more than its batch's bound",
    evidence=4,
    why=(
        "A real neighbour shows a larger loss than the bound allows. The bound or the record is wrong, and the claim "
        "rests on both."
    ),
    remedy=_UNSOUND,
    reference=_DOCS,
)
def removals_stay_within_bounds(facts: Facts) -> Outcome:
    """The realised loss of every context, left out of its batch, against the exact cost of that batch."""
    expected = "every leave-one-out loss at most the exact cost of its batch"
    if facts.ex_post is None:
        return Outcome("skip", "nothing", expected, "No ex-post cost is known that a loss could be held against.")
    losses = [(batch, loss, _SLACK) for batch, loss in facts.losses.items()]
    if facts.replay is not None:
        losses += [
            (left.batch, abs(left.regenerated), left.tolerance) for left in facts.replay.left_out if _tells(facts, left)
        ]
    if not losses:
        lacking = "The record gives no losses. Generate with record.contexts, or replay."
        return Outcome("skip", "nothing", expected, f"{lacking} {COMMAND}")
    beyond = [
        f"batch {batch}: {loss:.6g} where at most {facts.batch_cost(batch).exact:.6g}"
        for batch, loss, slack in losses
        if not loss <= facts.batch_cost(batch).exact + slack
    ]
    if beyond:
        return Outcome("fail", f"{len(beyond)} losses; first {beyond[0]}", expected)
    batches = len({batch for batch, _, _ in losses})
    return Outcome("pass", f"{batches} batches, the largest loss {max(loss for _, loss, _ in losses):.4g}", expected)


def _tells(facts: Facts, left: LeftOut) -> bool:
    """Whether a regenerated loss says anything: one that only a coarse rounding excuses does not."""
    bound, loss = facts.batch_cost(left.batch).exact, abs(left.regenerated)
    return left.tolerance <= FINE * bound or not bound < loss <= bound + left.tolerance


@step_check(
    check_id="neighbors.addition",
    title="Adding the worst contexts costs exactly the bound, and never more",
    failed="Adding a context costs more than the bound, or the bound is not reached",
    evidence=4,
    expected="the worst added contexts cost rise and fall exactly",
    why="The bound must hold for any record that could have been there, also one that was made to do harm.",
    remedy=_UNSOUND,
    reference=_DOCS,
)
def additions_reach_the_bound(view: StepView) -> str | None:
    """Aggregates with a context added, towards the sampled token and against it, against rise and fall."""
    mechanism, step, here = view.mechanism, view.reduced, view.log_probability
    if step is None or here is None or view.range_problem:
        return None  # sampling.support or record.range objects
    temperature, aggregator = mechanism.temperature, mechanism.aggregator
    try:
        box = mechanism.box(step.arrays, ContextChange("add_remove"))
        rise, fall = exact_cost(*box, step.token, temperature, step.fixed)
    except ValueError:
        return None  # claim.epsilon objects to a step that has no bound
    towards = np.full(len(box[1]), -mechanism.clip)
    towards[step.token] = mechanism.clip
    # Aggregates are rounded in the record's precision.
    slack = _SLACK + 8 * mechanism.clip / temperature * float(np.finfo(box[1].dtype).eps)
    for name, bound, values, sign in (("rise", rise, towards, 1), ("fall", fall, -towards, -1)):
        joined = aggregator.joined(step.arrays, values)
        if joined is None:
            return None
        found = sign * (log_probability(joined, step.token, temperature, step.fixed) - here)
        if not abs(bound - found) <= slack:
            return f"an added context reaches {found:.6g} nats, and the {name} is {bound:.6g}"
    return None
