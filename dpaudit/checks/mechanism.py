"""Is the mechanism that the manifest declares one that a guarantee can rest on?"""

from __future__ import annotations

import numpy as np

from dpaudit.checks.claim import recomputed_levels
from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.neighbors import ROUNDED, logits_agree, rounding_hides
from dpaudit.checks.registry import NOT_LOADED, Outcome, RunCheck, StepCheck, not_applicable, replayed_by
from dpaudit.mechanisms import COME_AND_GO
from dpaudit.results.rounding import rounded_up
from dpaudit.results.shell import argument
from dpaudit.runs.manifest import Rows

#: The level of what rests on the model, too.
_REPLAYED = 3
_SEEDED = "Who knows the seed can replay the sampler, so no guarantee holds. Generate again without a seed."
_SUMS = "sums of all recorded contexts, over the declared divisor"


@RunCheck(
    id="mechanism.randomness",
    title="Tokens were drawn with randomness that nobody can predict",
    fails="Tokens were drawn with randomness that can be replayed",
    evidence=0,
    why="Whoever knows the seed can repeat every draw. Nothing is random to them, so nothing is private.",
    remedy=_SEEDED,
    reference="docs/sharp-edges.md",
)
def randomness_is_secret(facts: Facts) -> Outcome:
    """The declared generator: the operating system's entropy, a secret seed that the run commits to, or any other."""
    sampling = facts.manifest.sampling
    expected = "the operating system's entropy, or a secret seed that the run commits to"
    if sampling.generator == "os-entropy":
        return Outcome("pass", sampling.generator, expected)
    if sampling.committed:
        replayed = "Whoever has the whole seed can replay every draw: it is as secret as the records."
        return Outcome("pass", sampling.generator, expected, replayed)
    if sampling.generator == "test-seed":
        return Outcome("fail", "a fixed test seed", expected)
    tries = "A secret seed is one of 2^32 at most: whoever tries all of them finds it."
    return Outcome("fail", f"numpy's Mersenne Twister, from the seed {sampling.seed}", expected, f"{_SEEDED} {tries}")


@StepCheck(
    id="mechanism.clip",
    title="Every recorded context is clipped as declared",
    fails="A recorded context is not clipped as declared",
    evidence=1,
    expected="the largest logit at the clip itself, or clipped differences of log-probabilities",
    why="The clip bounds what one record can do to a score. Without it one record can decide every token.",
    remedy=(
        "Clip in float32, before aggregating: logits as max(-c, logit - max + c), differences of log-probabilities to "
        "[-c, c]. Generate again."
    ),
    reference="docs/mathematics.md",
    applies=lambda manifest: (
        manifest.record.contexts and (not manifest.truncated or manifest.mechanism.contribution.over_support)
    ),
    otherwise="Contexts are not recorded over the whole vocabulary; record.range checks what is recorded.",
)
def contexts_are_clipped(view: StepView) -> str | None:
    """Logits: each context's largest against the clip. Differences: what they make of the anchor adds up to 1."""
    contexts = view.step.contexts  # None of a batch without contexts
    return None if contexts is None else view.mechanism.contribution.clip_problem(view.arrays, contexts)


def _needs_contexts(facts: Facts, seen: str) -> Outcome:
    """Sums whose terms are not all recorded: what replayed steps say of them."""
    lacking = "The contexts of the others are not recorded: what a mean is the sum of cannot be seen without them."
    return _from_replayed_steps(facts, seen, _SUMS, f"{lacking} Generate with record.contexts, or replay.")


@StepCheck(
    id="mechanism.divisor",
    title="Every mean is the sum of its recorded contexts over the declared divisor",
    fails="A mean is not the sum of its recorded contexts over the declared divisor",
    evidence=1,
    expected=_SUMS,
    why=(
        "A record that counts several times moves the mean further than is charged: over the actual number of contexts "
        "up to twice as far, and by more where a batch is smaller than the divisor."
    ),
    remedy=(
        "Clip each context by itself, add all up, each once, and divide by the fixed divisor in every batch. Generate "
        "again."
    ),
    reference="docs/mathematics.md",
    shown=lambda view: view.contributions is not None,
    unshown=_needs_contexts,
)
def divisor_is_the_declared_one(view: StepView) -> str | None:
    """Each aggregate against the sum of the recorded contexts, over the divisor that the run declares."""
    mechanism, contributions = view.mechanism, view.contributions
    assert contributions is not None, "else nothing is shown"
    return mechanism.aggregator.divisor_problem(view.arrays, contributions, mechanism.contribution)


@RunCheck(
    id="mechanism.unit",
    title="The bounds are those of the unit that the claim names",
    fails="The claim is about records, and its bounds are about contexts",
    evidence=0,
    why="One record may then touch contexts that the bound does not count, so it costs more than is claimed.",
    remedy="Claim the epsilon that holds, claim per context, or generate without slots.",
    reference="docs/claims.md",
)
def bounds_are_of_the_unit(facts: Facts) -> Outcome:
    """A claim per record or user against the batching rule: a slot outlives its record and is replaced."""
    claim, rule = facts.claim, facts.manifest.batching.rule
    expected = "bounds for what one unit does to the contexts under the batching rule"
    if claim.unit == "context":
        return not_applicable(expected, "The claim is per context.")
    recomputed = recomputed_levels(facts)
    if rule in COME_AND_GO or recomputed is None or recomputed.release <= claim.epsilon:
        return Outcome("pass", f"{claim.unit}, {claim.relation}, under {rule}", expected)
    found = f"{claim.unit}, {claim.relation}, under {rule}, and epsilon {claim.epsilon!r}"
    holds = (
        f"Under {rule} the epsilon that holds is {rounded_up(recomputed.release)}. "
        if facts.change is not None
        else f"Under {rule} no epsilon holds for a {claim.unit}. "
    )
    mend = "Claim that, claim per context, or generate without slots: one record in each context, or with cells."
    return Outcome("fail", found, expected, holds + mend)


@RunCheck(
    id="mechanism.support-public",
    title="Supports and anchors follow from public prompts",
    fails="Supports or anchors differ where only private records do",
    evidence=1,
    why="What is taken from private logits, and not paid for, shows what the records favour. No cost bounds that.",
    remedy=(
        "Take support and anchor from a prompt without private records, apart from the private rows. Taken from "
        "private logits, they cost everything."
    ),
    reference="docs/sharp-edges.md",
)
def public_parts_are_public(facts: Facts) -> Outcome:
    """Supports and anchors against other batches' after the same label and tokens, and against the model's.

    Where texts have parted nothing is left to compare: whether those steps' are public only the model shows. Without it
    steps after a text's first token must be among those that agree: who takes private supports may begin there.
    """
    what = " and ".join(facts.manifest.public_parts)
    if not what:
        expected = "one support after the same label and tokens, or the whole vocabulary"
        return Outcome("pass", "the whole vocabulary", expected)
    expected = f"the public prompt's {what}, one after the same label and tokens"
    if private := facts.private_parts:
        found = f"{len(private)} steps differ from others after the same tokens; first {private[0]}"
        return Outcome("fail", found, expected, f"Generate again with {what} from a public prompt, on one machine.")
    recomputed = facts.replayed.public if facts.replayed is not None else None
    if recomputed is not None and recomputed.wrong:
        found = f"{recomputed.wrong} of {recomputed.steps} steps; first {recomputed.first}"
        return Outcome("fail", found, expected, evidence=_REPLAYED)
    compared, steps = facts.compared_parts, facts.steps
    found = f"{compared.total()} of {steps} steps agree with another batch's"
    if compared:
        found += f", of up to {max(compared)} tokens before"
    if compared.total() == steps:
        return Outcome("pass", found, expected)
    if recomputed is not None:
        apart = f"differences up to {recomputed.difference:.2g} ({recomputed.tolerance:.2g} may be rounding)"
        if rounding_hides(recomputed.difference, facts):
            return Outcome("skip", f"{recomputed.steps} steps; {apart}", expected, ROUNDED, evidence=_REPLAYED)
        return Outcome("pass", f"all {recomputed.steps} steps recomputed; {apart}", expected, evidence=_REPLAYED)
    alone = f"The other {steps - compared.total()} steps follow tokens that no other batch has."
    recorded = facts.manifest.recorded
    if recorded is not None and "rows" in recorded.mended and recorded.rows == Rows(logit=0.0, support=0):
        alone_in = f"{found}; the recorder had the model score the public prompt by itself at every step"
        return Outcome("pass", alone_in, expected, "Whoever has the generator can repeat it.", evidence=0)
    by_model = f"dpaudit verify RUN_DIR --model {argument(facts.manifest.model.name, 'NAME')}"
    shown = NOT_LOADED if facts.manifest.foreign else f"The model shows all of them, without the data: {by_model}"
    open_ones = f"{alone} {shown}"
    if max(compared, default=0) == 0:
        return Outcome("skip", found, expected, open_ones)
    # What is left open is between the model and the record, as all that replay.logits is about.
    return Outcome("skip", found, expected, open_ones, evidence=_REPLAYED)


@RunCheck(
    id="mechanism.model",
    title="The model is not said to have been trained on the private records",
    fails="The model was trained on the private records",
    evidence=0,
    why=(
        "A model that was trained on records can write them word for word, with or without a prompt that shows one. "
        "The claim is about what prompts show, so it says nothing of that."
    ),
    remedy="Do not release these texts. Generate with a model that never saw these records.",
    reference="docs/sharp-edges.md#a-model-that-saw-the-records",
)
def model_never_saw_the_records(facts: Facts) -> Outcome:
    """What the run says of where its model's weights come from; nothing else is looked at."""
    said, expected = facts.manifest.model.trained_on_records, "model.trained_on_records: no, or unknown"
    return Outcome(
        "fail" if said == "yes" else "pass", said if said == "unknown" else f"{said}, by the run's word", expected
    )


@StepCheck(
    id="mechanism.support-rules",
    title="Supports and texts keep the decoding rules",
    fails="A support or a text breaks the decoding rules",
    evidence=1,
    expected="supports of the due size, without a token that a rule of `decoding` forbids there",
    why=(
        "Rules cost nothing because public prompts and released tokens alone say what they forbid. What else a support "
        "lacks or holds was decided by something else, and nothing pays for that."
    ),
    remedy="Take the forbidden tokens out of each support before the draw, and no others. Generate again.",
    reference="docs/generation.md#what-a-text-may-not-hold",
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


def _from_replayed_steps(facts: Facts, seen: str, expected: str, lacking: str) -> Outcome:
    """Where the record shows something of some steps only, `seen`, what replayed steps do; a skip without any."""
    replayed = logits_agree(facts)
    if replayed.status == "pass":
        said = f"{replayed.measured} were recomputed (replay.logits)"
        return Outcome("pass", said, expected, replayed.detail, evidence=_REPLAYED)
    return Outcome("skip", seen, expected, f"{lacking} {replayed_by(facts.manifest)}")
