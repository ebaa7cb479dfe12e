"""Does the record bear out the claim, and were the claim's parts put together by a rule that is right?

The checks of composition recognise wrong sums: they fail where the claim is too small and a mistaken rule explains it,
so that a failed claim.epsilon comes with its cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import get_args

from dpaudit.accounting import Method, rounded_sum
from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import UNREAD, Outcome, RunCheck, judge_origin
from dpaudit.results.rounding import bound_against, rounded_up, stated

_CLAIMS, _MATHEMATICS = "docs/claims.md", "docs/mathematics.md"
#: Claims are stated with some decimals; a wrong sum that is no further off than this explains a claim.
_STATED = 1e-3


@RunCheck(
    id="claim.epsilon",
    title="The recomputed epsilon does not exceed the claimed one",
    fails="The recomputed epsilon exceeds the claimed one, or there is none",
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
        aggregator = facts.manifest.mechanism.aggregator.name
        detail = f"A {aggregator} run gives no {claim.kind} figure to hold the claim against."
        return Outcome("fail", "no such figure", expected, detail)
    # Written so that a NaN fails.
    if recomputed <= claim.epsilon:
        return Outcome("pass", f"epsilon {bound_against(recomputed, claim.epsilon)}", expected)
    return Outcome("fail", f"epsilon {rounded_up(recomputed)}", expected, _why_exceeded(facts, recomputed))


@RunCheck(
    id="claim.delta",
    title="Delta suits the claim's kind and the number of records",
    fails="Delta does not suit the claim's kind or the number of records",
    evidence=0,
    why="With a delta of 1 / records or more, a mechanism that publishes a whole record could meet the guarantee.",
    remedy="An ex-post claim has delta 0, or that of noised centres. An approximate one needs one below 1 / records.",
    reference=_CLAIMS,
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
        return Outcome(
            "fail", f"delta {stated(claim.delta)}", zero, "The ex-post bound needs no delta: claim it with 0."
        )
    # No fewer than contexts show; a fixed slot may be empty, so it counts for one only where the claim is per context.
    filled = facts.manifest.batching.rule != "hashed-slots" or claim.unit == "context"
    shown = sum(header.contexts for header in facts.headers.values()) if filled else 0
    # A single record gives no limit that would mean anything; two are the fewest that neighbours can differ by one of.
    records = max(2, facts.manifest.data.records, shown)
    limit = 1 / records
    expected = f"0 < delta < 1 / {records} (the records)"
    if centers:
        expected += f", and {'at least' if claim.kind == 'ex-post' else 'more than'} the centres' {stated(centers)}"
    # What is left of it is spent on the tokens of an approximate claim; an ex-post one needs none for them.
    least = claim.delta >= centers if claim.kind == "ex-post" else claim.delta > centers
    if 0 < claim.delta < limit and least:
        return Outcome("pass", f"delta {stated(claim.delta)}", expected)
    remedy = "A delta of 1 / records allows publishing one record whole. Claim a smaller one, such as records ** -1.1."
    if not least and centers:
        remedy = "The centres have spent that much of delta: claim a larger one, or give them a smaller one."
    elif claim.delta == 0:
        remedy = "An approximate guarantee is worked out for a delta above 0. Claim one, such as records ** -1.1."
    return Outcome("fail", f"delta {stated(claim.delta)}", expected, remedy)


@RunCheck(
    id="claim.kind",
    title="The claim is of the kind that the mechanism supports",
    fails="The claim is of a kind that the mechanism does not support",
    evidence=0,
    why=(
        "The kinds promise different things: a figure of one kind, read as the other, misleads about all "
        "other outcomes."
    ),
    remedy="State the claim as the kind that the mechanism supports; the kinds differ in meaning.",
    reference=_CLAIMS,
)
def kind_fits(facts: Facts) -> Outcome:
    """Runs by softmax support a data-dependent ex-post epsilon; means an (epsilon, delta) fixed beforehand."""
    mechanism = facts.manifest.mechanism
    supported = " or ".join(mechanism.kinds)
    drawn = "" if mechanism.draw.ex_post else f" by {mechanism.draw.name}"
    expected = f"{supported} for a {mechanism.aggregator.name} run{drawn}"
    if facts.claim.kind in mechanism.kinds:
        return Outcome("pass", facts.claim.kind, expected)
    mend = f"State the claim as {supported}; the two kinds differ in meaning."
    return Outcome("fail", facts.claim.kind, expected, mend)


@RunCheck(
    id="claim.tuning",
    title="Settings and the maximum length were chosen without private records",
    fails="Settings or the maximum length were chosen with private records, and nothing was paid for it",
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
    if facts.claim.kind not in facts.manifest.mechanism.kinds:
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
    if facts.unbounded or len(facts.headers) != facts.manifest.batches:
        return "Some steps give no bound: they are missing, cannot be read, or hold values that are not finite."
    if math.isfinite(recomputed):
        supported = rounded_up(recomputed)
        return f"Do not release under this claim. The claim that this record supports is epsilon {supported}."
    return "Do not release under this claim: nothing in the record bounds it."


@RunCheck(
    id="composition.total",
    title="The claim covers all that was spent, not an average or a realised length",
    fails="The claim covers only a part of what was spent",
    evidence=1,
    why="A claim for a part of the run promises more privacy than the run as a whole gives.",
    remedy="Claim the maximum over all batches, for all tokens that a batch may have, with the cost of rebalancing.",
    reference=_MATHEMATICS,
)
def everything_is_counted(facts: Facts) -> Outcome:
    """A claim that is too small against the mean over batches, fewer tokens than a batch's, and no clusters."""
    expected = "the maximum over batches, for all tokens that a batch may have, with what clusters cost"
    mend = _instead(facts)
    for rule, figure in _partial_figures(facts) if mend else ():
        if _explains(facts, figure):
            found = f"epsilon {facts.claim.epsilon!r} is covered by {rule} only ({rounded_up(figure)})"
            return Outcome("fail", found, expected, mend)
    return Outcome("pass", "no partial sum explains the claim", expected)


@RunCheck(
    id="composition.all-batches",
    title="The maximum is taken over every generated batch",
    fails="The claim leaves out the costliest batches",
    evidence=1,
    why="Each record is in one batch, and the unluckiest record counts. An average hides what it lost.",
    remedy="Every generated batch counts, released or not. Claim the maximum over all of them.",
    reference=_MATHEMATICS,
)
def every_batch_counts(facts: Facts) -> Outcome:
    """The batches that the accounting took in against the declared number, and the claim against the lesser batches."""
    declared = facts.manifest.batches
    expected = f"{declared} batches in the maximum"
    if len(facts.headers) != declared:
        return Outcome("skip", f"{len(facts.headers)} batches", expected, UNREAD)
    mend = _instead(facts)
    if mend and facts.claim.kind == "ex-post" and facts.ex_post is not None and facts.ex_post.change.contexts == 1:
        costs = sorted(rounded_sum(facts.batch_cost(batch).exact, facts.grouping.epsilon) for batch in facts.headers)
        if any(_explains(facts, cost) for cost in costs[:-1]):
            left_out = sum(cost > facts.claim.epsilon for cost in costs)
            found = f"{left_out} of {declared} batches cost more than the claim"
            return Outcome("fail", found, expected, mend)
    return Outcome("pass", f"{declared} batches", expected)


def _instead(facts: Facts) -> str:
    """What to claim where the claim is too small; empty where it is not, or nothing else is known to hold."""
    recomputed = recomputed_epsilon(facts)
    if recomputed is None or not facts.claim.epsilon < recomputed < math.inf:
        return ""
    return f"The figure that covers everything is epsilon {rounded_up(recomputed)}."


def _explains(facts: Facts, figure: float) -> bool:
    """Whether a wrong figure would have been rounded up to the claim."""
    return figure <= facts.claim.epsilon <= figure * (1 + _STATED) + _STATED


def _partial_figures(facts: Facts) -> Iterator[tuple[str, float]]:
    """Wrong sums by the rule that gives them, in nats."""
    spent, alone = facts.grouping, "generation without its clusters"
    clustered = spent.epsilon and facts.change is not None
    if facts.claim.kind == "ex-post":
        if clustered:
            yield alone, facts.ex_post_cost.exact
            yield alone, rounded_sum(facts.ex_post_cost.exact, spent.counts)
        if costs := [facts.batch_cost(batch) for batch in facts.headers]:
            exact = math.fsum(cost.exact for cost in costs) / len(costs)
            theorem1 = math.fsum(cost.theorem1 for cost in costs) / len(costs)
            yield "the mean over batches", rounded_sum(exact, spent.epsilon)
            yield "the mean over batches of Theorem 1", rounded_sum(theorem1, spent.epsilon)
    elif facts.beforehand is not None and facts.change is not None:
        stopping, longest = facts.manifest.stopping, max(facts.lengths.values(), default=0)
        most = stopping.most_tokens
        partial = [(alone, most)] if clustered else []
        if stopping.max_tokens < most:
            partial.append((f"a single text of {stopping.max_tokens} tokens", stopping.max_tokens))
        if 0 < longest < most:
            partial.append((f"the realised length of {longest} tokens", longest))
        tokens_alone = facts.beforehand.without_clusters()
        for rule, tokens in partial:
            for method in get_args(Method):
                yield rule, tokens_alone.epsilon(tokens, facts.claim.delta, method).epsilon
