"""Is the mechanism that the manifest declares one that a guarantee can rest on?"""

from __future__ import annotations

import numpy as np

from dpaudit.checks.claim import recomputed_levels
from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.neighbors import ROUNDED, logits_agree, rounding_hides
from dpaudit.checks.registry import NOT_LOADED, RunCheck, StepCheck, Worded, not_applicable, replayed_by
from dpaudit.mechanisms import COME_AND_GO
from dpaudit.results.rounding import rounded_up
from dpaudit.results.shell import argument
from dpaudit.runs.manifest import Rows

#: The level of what rests on the model, too.
_REPLAYED = 3
_SEEDED = "Who knows the seed can replay the sampler, so no guarantee holds. Generate again without a seed."
_SUMS = "sums of all recorded contexts, over the declared divisor"


@RunCheck(id="mechanism.randomness")
def randomness_is_secret(facts: Facts) -> Worded:
    """The declared generator: the operating system's entropy, a secret seed that the run commits to, or any other."""
    sampling = facts.manifest.sampling
    expected = "the operating system's entropy, or a secret seed that the run commits to"
    if sampling.generator == "os-entropy":
        return Worded("pass", sampling.generator, expected)
    if sampling.committed:
        replayed = "Whoever has the whole seed can replay every draw: it is as secret as the records."
        return Worded("pass", sampling.generator, expected, replayed)
    if sampling.generator == "test-seed":
        return Worded("fail", "a fixed test seed", expected)
    tries = "A secret seed is one of 2^32 at most: whoever tries all of them finds it."
    return Worded("fail", f"numpy's Mersenne Twister, from the seed {sampling.seed}", expected, f"{_SEEDED} {tries}")


@StepCheck(
    id="mechanism.clip",
    applies=lambda manifest: (
        manifest.record.contexts and (not manifest.truncated or manifest.mechanism.contribution.over_support)
    ),
    otherwise="Contexts are not recorded over the whole vocabulary; record.range checks what is recorded.",
)
def contexts_are_clipped(view: StepView) -> str | None:
    """Logits: each context's largest against the clip. Differences: what they make of the anchor adds up to 1."""
    contexts = view.step.contexts  # None of a batch without contexts
    return None if contexts is None else view.mechanism.contribution.clip_problem(view.arrays, contexts)


def _needs_contexts(facts: Facts, seen: int) -> Worded:
    """Sums whose terms are not all recorded: what replayed steps say of them."""
    lacking = "The contexts of the others are not recorded: what a mean is the sum of cannot be seen without them."
    return _from_replayed_steps(
        facts, f"{seen} of {facts.steps} steps", _SUMS, f"{lacking} Generate with record.contexts, or replay."
    )


@StepCheck(id="mechanism.divisor", shown=lambda view: view.contributions is not None, unshown=_needs_contexts)
def divisor_is_the_declared_one(view: StepView) -> str | None:
    """Each aggregate against the sum of the recorded contexts, over the divisor that the run declares."""
    mechanism, contributions = view.mechanism, view.contributions
    assert contributions is not None, "else nothing is shown"
    return mechanism.aggregator.divisor_problem(view.arrays, contributions, mechanism.contribution)


@RunCheck(id="mechanism.unit")
def bounds_are_of_the_unit(facts: Facts) -> Worded:
    """A claim per record or user against the batching rule: a slot outlives its record and is replaced."""
    claim, rule = facts.claim, facts.manifest.batching.rule
    expected = "bounds for what one unit does to the contexts under the batching rule"
    if claim.unit == "context":
        return not_applicable(expected, "The claim is per context.")
    recomputed = recomputed_levels(facts)
    if rule in COME_AND_GO or recomputed is None or recomputed.release <= claim.epsilon:
        return Worded("pass", f"{claim.unit}, {claim.relation}, under {rule}", expected)
    found = f"{claim.unit}, {claim.relation}, under {rule}, and epsilon {claim.epsilon!r}"
    holds = (
        f"Under {rule} the epsilon that holds is {rounded_up(recomputed.release)}. "
        if facts.change is not None
        else f"Under {rule} no epsilon holds for a {claim.unit}. "
    )
    mend = "Claim that, claim per context, or generate without slots: one record in each context, or with cells."
    return Worded("fail", found, expected, holds + mend)


@RunCheck(id="mechanism.support-public")
def public_parts_are_public(facts: Facts) -> Worded:
    """Supports and anchors against other batches' after the same label and tokens, and against the model's.

    Where texts have parted nothing is left to compare: whether those steps' are public only the model shows. Without it
    steps after a text's first token must be among those that agree: who takes private supports may begin there.
    """
    what = " and ".join(facts.manifest.public_parts)
    if not what:
        expected = "one support after the same label and tokens, or the whole vocabulary"
        return Worded("pass", "the whole vocabulary", expected)
    expected = f"the public prompt's {what}, one after the same label and tokens"
    if private := facts.private_parts:
        found = f"{len(private)} steps differ from others after the same tokens; first {private[0]}"
        return Worded("fail", found, expected, f"Generate again with {what} from a public prompt, on one machine.")
    recomputed = facts.replayed.public if facts.replayed is not None else None
    if recomputed is not None and recomputed.wrong:
        found = f"{recomputed.wrong} of {recomputed.steps} steps; first {recomputed.first}"
        return Worded("fail", found, expected, evidence=_REPLAYED)
    compared, steps = facts.compared_parts, facts.steps
    found = f"{compared.total()} of {steps} steps agree with another batch's"
    if compared:
        found += f", of up to {max(compared)} tokens before"
    if compared.total() == steps:
        return Worded("pass", found, expected)
    if recomputed is not None:
        apart = f"differences up to {recomputed.difference:.2g} ({recomputed.tolerance:.2g} may be rounding)"
        if rounding_hides(recomputed.difference, facts):
            return Worded("skip", f"{recomputed.steps} steps; {apart}", expected, ROUNDED, evidence=_REPLAYED)
        return Worded("pass", f"all {recomputed.steps} steps recomputed; {apart}", expected, evidence=_REPLAYED)
    alone = f"The other {steps - compared.total()} steps follow tokens that no other batch has."
    recorded = facts.manifest.recorded
    if recorded is not None and "rows" in recorded.mended and recorded.rows == Rows(logit=0.0, support=0):
        alone_in = f"{found}; the recorder had the model score the public prompt by itself at every step"
        return Worded("pass", alone_in, expected, "Whoever has the generator can repeat it.", evidence=0)
    by_model = f"dpaudit verify RUN_DIR --model {argument(facts.manifest.model.name, 'NAME')}"
    shown = NOT_LOADED if facts.manifest.foreign else f"The model shows all of them, without the data: {by_model}"
    open_ones = f"{alone} {shown}"
    if max(compared, default=0) == 0:
        return Worded("skip", found, expected, open_ones)
    # What is left open is between the model and the record, as all that replay.logits is about.
    return Worded("skip", found, expected, open_ones, evidence=_REPLAYED)


@RunCheck(id="mechanism.model")
def model_never_saw_the_records(facts: Facts) -> Worded:
    """What the run says of where its model's weights come from; nothing else is looked at."""
    said, expected = facts.manifest.model.trained_on_records, "model.trained_on_records: no, or unknown"
    return Worded(
        "fail" if said == "yes" else "pass", said if said == "unknown" else f"{said}, by the run's word", expected
    )


@StepCheck(
    id="mechanism.support-rules",
    applies=lambda manifest: manifest.decoding.any,
    otherwise="The run declares no decoding rules.",
)
def supports_keep_the_rules(view: StepView) -> str | None:
    """Each support and its token against what the rules forbid after the public prompt and the text so far."""
    if view.forbidden is None:
        return None  # facts.unmade says why
    allowed = np.ones(view.manifest.record.vocabulary, dtype=np.bool_)
    support = np.arange(len(allowed)) if view.step.support is None else view.step.support
    drawn = np.append(support, view.step.token)
    drawn = drawn[(drawn >= 0) & (drawn < len(allowed))]  # record.range objects to others
    for rule, ids in view.forbidden.items():
        allowed[ids] = False
        if len(held := drawn[~allowed[drawn]]):
            return f"token {held[0]} could be drawn, and decoding.{rule} forbids it there"
    least, most = (min(due, int(allowed.sum())) for due in (view.manifest.least_support, view.manifest.most_support))
    return None if least <= len(support) <= most else f"the support has {len(support)} tokens where {most} are due"


def _from_replayed_steps(facts: Facts, seen: str, expected: str, lacking: str) -> Worded:
    """Where the record shows something of some steps only, `seen`, what replayed steps do; a skip without any."""
    replayed = logits_agree(facts)
    assert isinstance(replayed, Worded)
    if replayed.status == "pass":
        said = f"{replayed.measured} were recomputed (replay.logits)"
        return Worded("pass", said, expected, replayed.detail, evidence=_REPLAYED)
    return Worded("skip", seen, expected, f"{lacking} {replayed_by(facts.manifest)}")
