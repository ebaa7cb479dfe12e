"""Does the record bear out the claim?"""

from __future__ import annotations

import math

from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, judge_origin, run_check
from dpaudit.results.rounding import rounded_up

_SHARP = "docs/claims.md"


@run_check(
    check_id="claim.epsilon",
    title="The recomputed epsilon does not exceed the claimed one",
    failed="The recomputed epsilon exceeds the claimed one, or there is none",
    evidence=1,
    why="The texts cost more privacy than readers are told. Nobody should release or accept them under this claim.",
    remedy=(
        "Do not release under this claim. Generating again because of this figure is a choice that no epsilon pays for "
        "(docs/sharp-edges.md)."
    ),
    reference="Clustering and Median Aggregation Improve DP Inference, Theorem 1; docs/mathematics.md",
)
def epsilon_is_covered(facts: Facts) -> Outcome:
    """Epsilon recomputed for the claim's kind, relation and unit against the claimed one."""
    claim = facts.claim
    what = f"{claim.kind}, per {claim.unit}, {claim.relation}"
    expected = f"epsilon at most {claim.epsilon!r} ({what})"
    recomputed = recomputed_epsilon(facts)
    if recomputed is None:
        detail = (
            f"A {facts.manifest.mechanism.aggregator.name} run gives no {claim.kind} figure to hold the claim against."
        )
        return Outcome("fail", "no such figure", expected, detail)
    # Written so that a NaN fails.
    if recomputed <= claim.epsilon:
        return Outcome("pass", f"epsilon {rounded_up(recomputed)}", expected)
    return Outcome("fail", f"epsilon {rounded_up(recomputed)}", expected, _why_exceeded(facts, recomputed))


@run_check(
    check_id="claim.delta",
    title="Delta suits the claim's kind and the number of records",
    failed="Delta does not suit the claim's kind or the number of records",
    evidence=0,
    why="With a delta of 1 / records or more, a mechanism that publishes a whole record could meet the guarantee.",
    remedy="An ex-post claim has delta 0, or that of noised centres. An approximate one needs one below 1 / records.",
    reference=_SHARP,
)
def delta_is_small(facts: Facts) -> Outcome:
    """Delta is 0 for an ex-post claim, or covers that of the centres; for an approximate one it is positive.

    Where it is not 0, it is below 1 / records.
    """
    claim, centers = facts.claim, facts.grouping.delta
    if claim.kind == "ex-post" and not centers:
        zero = "delta 0 for an ex-post claim"
        if claim.delta == 0:
            return Outcome("pass", "delta 0", zero)
        return Outcome("fail", f"delta {claim.delta:.3g}", zero, "The ex-post bound needs no delta: claim it with 0.")
    # A single record gives no limit that would mean anything; two are the fewest that neighbours can differ by one of.
    records = max(2, facts.records)
    limit = 1 / records
    expected = f"0 < delta < 1 / {records} (the records)"
    if centers:
        expected += f", and {'at least' if claim.kind == 'ex-post' else 'more than'} the centres' {centers!r}"
    # What is left of it is spent on the tokens of an approximate claim; an ex-post one needs none for them.
    least = claim.delta >= centers if claim.kind == "ex-post" else claim.delta > centers
    if 0 < claim.delta < limit and least:
        return Outcome("pass", f"delta {claim.delta!r}", expected)
    remedy = "A delta of 1 / records allows publishing one record whole. Claim a smaller one, such as records ** -1.1."
    if not least and centers:
        remedy = "The centres have spent that much of delta: claim a larger one, or give them a smaller one."
    elif claim.delta == 0:
        remedy = "An approximate guarantee is worked out for a delta above 0. Claim one, such as records ** -1.1."
    return Outcome("fail", f"delta {claim.delta!r}", expected, remedy)


@run_check(
    check_id="claim.kind",
    title="The claim is of the kind that the mechanism supports",
    failed="The claim is of a kind that the mechanism does not support",
    evidence=0,
    why=(
        "The kinds promise different things: a figure of one kind, read as the other, misleads about all "
        "other outcomes."
    ),
    remedy="State the claim as the kind that the mechanism supports; the kinds differ in meaning.",
    reference=_SHARP,
)
def kind_fits(facts: Facts) -> Outcome:
    """Every run supports a data-dependent ex-post epsilon, mean runs also an (epsilon, delta) fixed beforehand."""
    aggregator = facts.manifest.mechanism.aggregator
    supported = " or ".join(aggregator.kinds)
    expected = f"{supported} for a {aggregator.name} run"
    if facts.claim.kind in aggregator.kinds:
        return Outcome("pass", facts.claim.kind, expected)
    return Outcome(
        "fail", facts.claim.kind, expected, f"State the claim as {supported}; the two kinds differ in meaning."
    )


@run_check(
    check_id="claim.tuning",
    title="Settings and the maximum length were chosen without private records",
    failed="Settings or the maximum length were chosen with private records, and nothing was paid for it",
    evidence=0,
    why="Each look at private data to choose a setting leaks something of it, and no epsilon here pays for that.",
    remedy="Choose clip, temperature, length and the rest on public data. What a private choice costs is not bounded.",
    reference="docs/sharp-edges.md",
)
def settings_are_public(facts: Facts) -> Outcome:
    """The declared origin of all settings but the batching rule's."""
    return judge_origin(facts.manifest.origins.settings, "settings")


def recomputed_epsilon(facts: Facts) -> float | None:
    """Epsilon in nats for the claim's kind, relation and unit; None where the run has no such figure."""
    if facts.claim.kind not in facts.manifest.mechanism.aggregator.kinds:
        return None
    if facts.claim.kind == "ex-post":
        return facts.ex_post_total
    return facts.approximate.epsilon if facts.approximate else math.inf


def _why_exceeded(facts: Facts, recomputed: float) -> str:
    claim, rule = facts.claim, facts.manifest.batching.rule
    if claim.unit == "user" and facts.manifest.privacy.records_per_user is None:
        return (
            "The run declares no largest number of records per user, so nothing bounds a difference of one user. "
            "Generate with privacy.records_per_user or data.user."
        )
    if facts.change is None and facts.manifest.batching.rule != "paper-slices":
        return "The record keeps too few central values for a change of this size. Generate with a larger record.width."
    if facts.change is None:
        return (
            f"Under the batching rule {rule} nothing bounds a difference of one {claim.unit} ({claim.relation}). "
            "Claim per context, or generate with hashed batches."
        )
    if claim.kind == "ex-post" and facts.ex_post is None:
        return f"No ex-post cost is worked out for a difference of {facts.change.contexts} contexts: claim for fewer."
    if facts.grouping.unbounded:
        return f"{facts.grouping.unbounded} Generate with public centres, or claim for the declared relation and unit."
    if facts.unbounded or len(facts.headers) != facts.manifest.batching.batches:
        return "Some steps give no bound: they are missing, cannot be read, or hold values that are not finite."
    if math.isfinite(recomputed):
        supported = rounded_up(recomputed)
        return f"Do not release under this claim. The claim that this record supports is epsilon {supported}."
    return "Do not release under this claim: nothing in the record bounds it."
