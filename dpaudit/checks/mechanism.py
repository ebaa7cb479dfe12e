"""Is the mechanism that the manifest declares one that a guarantee can rest on?"""

from __future__ import annotations

import numpy as np

from dpaudit.checks.claim import recomputed_figure
from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.neighbors import HIDDEN_BY_ROUNDING, logits_agree, rounding_hides
from dpaudit.checks.registry import Outcome, RunCheck, StepCheck, inapplicable, replay_remedy
from dpaudit.mechanisms import COME_AND_GO
from dpaudit.results import Finding, Quantity, Value, finding_of
from dpaudit.results.shell import argument
from dpaudit.runs.manifest import Rows

#: The level of what rests on the model, too.
_REPLAYED = 3


@RunCheck(id="mechanism.randomness")
def randomness_is_secret(facts: Facts) -> Outcome:
    """Judge the declared generator: the system's entropy, a secret seed that the run commits to, or any other."""
    sampling = facts.manifest.sampling
    values: dict[str, Value] = {"generator": sampling.generator}
    if sampling.generator == "os-entropy":
        return Outcome("pass", "entropy", values)
    if sampling.committed:
        return Outcome("pass", "committed-seed", values)
    if sampling.generator == "test-seed":
        return Outcome("fail", "test-seed", values)
    if sampling.seed is not None:
        values["seed"] = sampling.seed
    return Outcome("fail", "mersenne-twister", values)


@StepCheck(
    id="mechanism.clip",
    applies=lambda manifest: (
        manifest.record.contexts and (not manifest.truncated or manifest.mechanism.contribution.over_support)
    ),
    otherwise="mechanism.no-whole-contexts",
)
def contexts_are_clipped(view: StepView) -> Finding | None:
    """Hold each context's largest logit against the clip; differences must make the anchor add up to 1."""
    contexts = view.step.contexts  # None of a batch without contexts
    return None if contexts is None else finding_of(view.mechanism.contribution.clip_problem(view.arrays, contexts))


def _from_replayed_steps(facts: Facts, seen: int) -> Outcome:
    """Return what replayed steps say of sums whose terms are not all recorded; a skip without any."""
    replayed = logits_agree(facts)
    assert isinstance(replayed, Outcome)
    if replayed.status == "pass":
        return Outcome("pass", "recomputed", replayed.values, replayed.notes, evidence=_REPLAYED)
    values: dict[str, Value] = {"seen": seen, "steps": facts.steps}
    return Outcome("skip", "unrecorded-contexts", values, (replay_remedy(facts.manifest),))


@StepCheck(id="mechanism.divisor", shown=lambda view: view.contributions is not None, unshown=_from_replayed_steps)
def divisor_is_the_declared_one(view: StepView) -> Finding | None:
    """Hold each aggregate against the sum of the recorded contexts, over the divisor that the run declares."""
    mechanism, contributions = view.mechanism, view.contributions
    assert contributions is not None, "else nothing is shown"
    return finding_of(mechanism.aggregator.divisor_problem(view.arrays, contributions, mechanism.contribution))


@RunCheck(id="mechanism.unit")
def bounds_are_of_the_unit(facts: Facts) -> Outcome:
    """Hold a claim per record or user against the batching rule: a slot outlives its record and is replaced."""
    claim, rule = facts.claim, facts.manifest.batching.rule
    if claim.unit == "context":
        return inapplicable("mechanism.claim-per-context")
    values: dict[str, Value] = {"unit": claim.unit, "relation": claim.relation, "rule": rule}
    recomputed = recomputed_figure(facts)
    if rule in COME_AND_GO or recomputed is None or facts.kind.covers(claim.stated, recomputed):
        return Outcome("pass", "covered", values)
    values |= {"claimed": Quantity(value=claim.stated, unit="nats"), "figure": facts.kind.figures[0]}
    if facts.change is None:
        return Outcome("fail", "unbounded", values)
    return Outcome("fail", "exceeded", values | {"due": Quantity(value=recomputed, unit="nats")})


@RunCheck(id="mechanism.support-public")
def public_parts_are_public(facts: Facts) -> Outcome:
    """Hold supports and anchors against other batches' after the same label and tokens, and against the model's.

    Where texts have parted nothing is left to compare: whether those steps' are public only the model shows. Without it
    steps after a text's first token must be among those that agree: who takes private supports may begin there.
    """
    parts = tuple(facts.manifest.public_parts)
    if not parts:
        return Outcome("pass", "whole-vocabulary")
    compared, steps = facts.compared_parts, facts.steps
    values: dict[str, Value] = {"parts": parts, "steps": steps, "agreeing": compared.total()}
    if private := facts.private_parts:
        return Outcome("fail", "differ", values | {"differing": len(private), "place": private[0]})
    recomputed = facts.replayed.public if facts.replayed is not None else None
    if recomputed is not None and recomputed.wrong:
        first: dict[str, Value] = {} if recomputed.first is None else {"first": recomputed.first}
        found = values | {"wrong": recomputed.wrong, "recomputed": recomputed.steps} | first
        return Outcome("fail", "not-the-models", found, evidence=_REPLAYED)
    if compared:
        values["before"] = max(compared)
    if compared.total() == steps:
        return Outcome("pass", "agree", values)
    if recomputed is not None:
        apart: dict[str, Value] = {"difference": recomputed.difference, "tolerance": recomputed.tolerance}
        found = values | {"recomputed": recomputed.steps} | apart
        if rounding_hides(recomputed.difference, facts):
            return Outcome("skip", "rounding-hides", found, (HIDDEN_BY_ROUNDING,), evidence=_REPLAYED)
        return Outcome("pass", "recomputed", found, evidence=_REPLAYED)
    recorded = facts.manifest.recorded
    if recorded is not None and "rows" in recorded.mended and recorded.rows == Rows(logit=0.0, support=0):
        return Outcome("pass", "scored-apart", values, evidence=0)
    model = argument(facts.manifest.model.name, "NAME")
    shown = (
        Finding(code="replay.not-loaded")
        if facts.manifest.foreign
        else Finding(code="mechanism.shown-by-model", values={"model": model})
    )
    values["others"] = steps - compared.total()
    if max(compared, default=0) == 0:
        return Outcome("skip", "uncompared", values, (shown,))
    # What is left open is between the model and the record, as all that replay.logits is about.
    return Outcome("skip", "partly-compared", values, (shown,), evidence=_REPLAYED)


@RunCheck(id="mechanism.model")
def model_never_saw_the_records(facts: Facts) -> Outcome:
    """Judge what the run says of where its model's weights come from; nothing else is looked at."""
    declared = facts.manifest.model.trained_on_records
    if declared == "yes":
        return Outcome("fail", "trained-on-records")
    return Outcome("pass", "unknown" if declared == "unknown" else "not-trained-on-records")


@StepCheck(
    id="mechanism.support-rules",
    applies=lambda manifest: manifest.decoding.any,
    otherwise="mechanism.no-rules",
)
def supports_keep_the_rules(view: StepView) -> Finding | None:
    """Hold each support and its token against what the rules forbid after the public prompt and the text so far."""
    if view.forbidden is None:
        return None  # facts.unmade says why
    allowed = np.ones(view.manifest.record.vocabulary, dtype=np.bool_)
    support = np.arange(len(allowed)) if view.step.support is None else view.step.support
    drawn = np.append(support, view.step.token)
    drawn = drawn[(drawn >= 0) & (drawn < len(allowed))]  # record.range objects to others
    for rule, ids in view.forbidden.items():
        allowed[ids] = False
        if len(held := drawn[~allowed[drawn]]):
            return Finding(code="mechanism.forbidden-token", values={"token": int(held[0]), "rule": rule})
    least, most = (min(due, int(allowed.sum())) for due in (view.manifest.least_support, view.manifest.most_support))
    if least <= len(support) <= most:
        return None
    return Finding(code="mechanism.support-size", values={"tokens": len(support), "due": most})
