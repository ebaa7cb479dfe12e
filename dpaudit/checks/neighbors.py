"""Do actual neighbours stay within the bounds, and does the model, on the data, give what was recorded?

Neighbours by removals from the recorded sides, and by additions of the worst contexts. What needs the model is judged
by what `dpaudit replay` found.
"""

from __future__ import annotations

import numpy as np

from dpaudit.accounting import exact_cost
from dpaudit.checks.claim import batch_claim
from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import RunCheck, StepCheck, Worded, not_applicable, replayed_by
from dpaudit.mechanisms import ContextChange, log_probability
from dpaudit.results.replay import LeftOut
from dpaudit.results.rounding import rounded_up

#: Why a replay on another machine may show nothing.
ROUNDED = "Rounding may hide as much as that. Replay where the run was made: there the difference must be 0."
#: Rounding of two logarithms of sums, in nats.
_SLACK = 1e-9
#: A difference shows nothing, even if it may be rounding, where it is a larger share of the claim, or of the clip for
#: logits.
FINE, _FINE_LOGITS = 0.1, 1e-3
#: That there is none the record says, and with the data partition.stable.
_NONE_TO_LEAVE_OUT = "No batch has a context to leave out."
#: The probability that stated coverage is for.
_POWER = 0.99


@RunCheck(id="neighbors.removal")
def removals_stay_within_bounds(facts: Facts) -> Worded:
    """The realised loss of every context, left out of its batch, against the exact cost of that batch."""
    expected = "every leave-one-out loss at most the exact cost of its batch"
    if facts.ex_post is None:
        return Worded("skip", "nothing", expected, "No ex-post cost is known that a loss could be held against.")
    losses = [(batch, loss, _SLACK) for batch, loss in facts.losses.items()]
    if facts.replay is not None:
        losses += [
            (left.batch, abs(left.regenerated), left.tolerance) for left in facts.replay.left_out if _tells(facts, left)
        ]
    if not losses:
        lacking = "The record gives no losses. Generate with record.contexts, or replay."
        if facts.no_contexts:
            return not_applicable(expected, _NONE_TO_LEAVE_OUT)
        return Worded("skip", "nothing", expected, f"{lacking} {replayed_by(facts.manifest)}")
    beyond = [
        f"batch {batch}: {loss:.6g} where at most {facts.batch_cost(batch).exact:.6g}"
        for batch, loss, slack in losses
        if not loss <= facts.batch_cost(batch).exact + slack
    ]
    if beyond:
        return Worded("fail", f"{len(beyond)} losses; first {beyond[0]}", expected)
    tried, filled = {batch for batch, _, _ in losses}, {b for b, header in facts.headers.items() if header.contexts}
    batches = f"{len(tried)} batches" if tried >= filled else f"{len(tried)} of {len(filled)} batches"
    said = f"{batches}, the largest loss {max(loss for _, loss, _ in losses):.4g}"
    if not tried >= filled and facts.replay is None:  # which draws the contexts that it leaves out from all batches
        return Worded(
            "skip", said, expected, f"The record gives no losses of the others. {replayed_by(facts.manifest)}"
        )
    return Worded("pass", said, expected)


def _tells(facts: Facts, left: LeftOut) -> bool:
    """Whether a regenerated loss says anything: one that only a coarse rounding excuses does not."""
    bound, loss = facts.batch_cost(left.batch).exact, abs(left.regenerated)
    return left.tolerance <= FINE * bound or not bound < loss <= bound + left.tolerance


@StepCheck(id="neighbors.addition")
def additions_reach_the_bound(view: StepView) -> str | None:
    """Aggregates with a context added, towards the sampled token and against it, against rise and fall."""
    mechanism, step, here = view.mechanism, view.reduced, view.log_probability
    if step is None or here is None or view.range_problem:
        return None  # sampling.support or record.range objects
    temperature = mechanism.temperature
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
        more = mechanism.with_context(step.arrays, values)
        if more is None:
            return None
        found = sign * (log_probability(more, step.token, temperature, step.fixed) - here)
        if not abs(bound - found) <= slack:
            return f"an added context reaches {found:.6g} nats, and the {name} is {bound:.6g}"
    return None


@RunCheck(id="neighbors.regenerated")
def regeneration_agrees(facts: Facts) -> Worded:
    """Log-ratios of regenerating with a record left out against those that the record gives without the model."""
    expected = "log-ratios equal within the rounding of the model's dtype"
    if facts.replay is None:
        return Worded("skip", "not run", expected, replayed_by(facts.manifest))
    left_out = facts.replay.left_out
    if not left_out and facts.no_contexts:
        return not_applicable(expected, _NONE_TO_LEAVE_OUT)
    if not left_out:
        lacking = "The replay left no context out: --left-out is 0, or it was stopped."
        return Worded("skip", "nothing", expected, lacking)
    apart = [found for found in left_out if not abs(found.recorded - found.regenerated) <= found.tolerance]
    if apart:
        worst = max(apart, key=lambda found: abs(found.recorded - found.regenerated))
        said = (
            f"{len(apart)} of {len(left_out)} contexts; worst batch {worst.batch}, slot {worst.slot}: "
            f"{worst.regenerated:.6g} where the record gives {worst.recorded:.6g}"
        )
        return Worded("fail", said, expected)
    largest = max(abs(found.recorded - found.regenerated) for found in left_out)
    said = f"{len(left_out)} context{'s' * (len(left_out) != 1)} left out; differences up to {largest:.2g} nats"
    if largest > FINE * batch_claim(facts):
        lacking = "Rounding may be as much as that, which is too much beside the claim for the comparison to tell."
        return Worded("skip", said, expected, lacking)
    return Worded("pass", said, expected)


@RunCheck(id="replay.logits")
def logits_agree(facts: Facts) -> Worded:
    """Central values, sides, aggregates and supports of replayed steps against the recorded ones."""
    expected = "recorded and recomputed values equal within the rounding of the model's dtype"
    if facts.replay is None:
        return Worded("skip", "not run", expected, replayed_by(facts.manifest))
    steps = facts.replay.steps
    if not steps:
        return Worded("skip", "nothing", expected, "The replay recomputed no step: --steps is 0, or it was stopped.")
    wrong = [step for step in steps if step.problem or not step.difference <= step.tolerance]
    if wrong:
        first = wrong[0]
        problem = first.problem or f"{first.difference:.3g} apart where at most {first.tolerance:.3g} is rounding"
        place = f"batch {first.batch}, step {first.position}"
        return Worded("fail", f"{len(wrong)} of {len(steps)} steps; first {place}: {problem}", expected)
    largest = max(step.difference for step in steps)
    coarsest = max(step.tolerance for step in steps)
    said = f"{len(steps)} of {facts.steps} steps; differences up to {largest:.2g} ({coarsest:.2g} may be rounding)"
    if rounding_hides(largest, facts):
        return Worded("skip", said, expected, ROUNDED)
    share = 1 - (1 - _POWER) ** (1 / len(steps))
    more = f"If drawn at random, they would have shown with {_POWER:.0%} probability that {share:.0%} of all are wrong."
    return Worded("pass", said, expected, more)


def rounding_hides(difference: float, facts: Facts) -> bool:
    """Whether values that differ by so many logit units, perhaps by rounding, are too far apart to show anything."""
    return difference > _FINE_LOGITS * facts.manifest.mechanism.clip


@RunCheck(id="replay.lower-bound")
def attack_stays_below(facts: Facts) -> Worded:
    """The log-ratios of texts that dpaudit's mechanism gives under the run's settings, against their ex-post bounds.

    An approximate claim, at the batch level, is also held against the confidence bound on epsilon that follows from all
    of them: an attack on one batch says nothing of the release level.
    """
    claim = facts.claim
    expected = "every text within its own ex-post bound"
    if claim.kind == "approximate":
        expected += f", and epsilon at least no more than {batch_claim(facts)!r}, at the batch level"
    if facts.replay is None:
        return Worded("skip", "not run", expected, replayed_by(facts.manifest))
    found = facts.replay.attack
    if found is None:
        return Worded("skip", "nothing", expected, "The replay made no attack: --trials is 0, or it was stopped.")
    if found.beyond:
        beyond = f"{found.beyond} of {2 * found.trials} texts exceed their bound; {found.worst}"
        return Worded("fail", beyond, expected)
    sure = "with certainty" if found.bound.delta == 0 else f"with {found.bound.confidence:.0%} confidence"
    shown = f"epsilon at least {found.bound.epsilon:.4g} at delta {found.bound.delta:.3g} {sure}"
    if claim.kind == "approximate" and not found.bound.epsilon <= (most := batch_claim(facts)):
        return Worded("fail", f"{shown}, where {rounded_up(most)} is due at the batch level", expected)
    return Worded("pass", f"dpaudit's mechanism under the run's settings: {2 * found.trials} texts; {shown}", expected)


@RunCheck(id="neighbors.rows")
def other_rows_stay(facts: Facts) -> Worded:
    """The other rows' logits before and after a private text was lengthened, as a recorder saw them."""
    expected = "the logits of all other rows as before, bit for bit"
    recorded = facts.manifest.recorded
    if recorded is None:
        return not_applicable(expected, "No recorder tried it; replay.logits and neighbors.regenerated replay rows.")
    if recorded.rows is None:
        return Worded("skip", "nothing", expected, "The recorder did not try it.")
    logit, support = recorded.rows.logit, recorded.rows.support
    if not logit and not support:
        return Worded("pass", "a text twice as long moved none", expected)
    tokens = f"the support by {support} token{'s' * (support != 1)}" if support else "the support by no token"
    return Worded("fail", f"a text twice as long moved logits of others by up to {logit:.3g}, and {tokens}", expected)


@RunCheck(id="replay.frozen")
def frozen_reruns_agree(facts: Facts) -> Worded:
    """Settings, batches, supports, anchors, others' rows and draws of a script that was run again without a record."""
    expected = "without a record all as it was, but for its own contribution"
    if not facts.reruns:
        if facts.manifest.recorded is None:
            return not_applicable(expected, "Nobody ran a recorded generator's script again.")
        again = (
            "Run `dpaudit replay RUN_DIR --data FILE --without ROW -- PYTHON SCRIPT`, as the run was made. "
            "That command alone says what it finds: no report holds it."
        )
        return Worded("skip", "not run", expected, again)
    moved = [(rerun.row, found) for rerun in facts.reruns for found in rerun.differences]
    unstable = next((rerun.unstable for rerun in facts.reruns if rerun.unstable), "")
    if moved:
        said = "; ".join(
            f"without row {row}: {found.kind} in {found.places} place{'s' * (found.places != 1)}, first {found.first}"
            for row, found in moved
        )
        said += f"; on the same data, {unstable}" * bool(unstable)
        return Worded("fail", said, expected)
    if unstable:
        lacking = (
            f"The script does not do the same twice, so this cannot be told: on the same data, {unstable}. "
            "Run it where the run was made, and have it do the same on the same data."
        )
        # Who runs the script again asks for this, whatever the level of evidence.
        return Worded("skip", "not told", expected, lacking, evidence=0)
    rows = " and ".join(f"without row {rerun.row}" for rerun in facts.reruns)
    return Worded("pass", f"{facts.steps} steps made again, {rows}", expected)
