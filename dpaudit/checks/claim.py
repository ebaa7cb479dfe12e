"""Does the record bear out the claim, and were the claim's parts put together by a rule that is right?

The checks of composition recognise wrong sums: they fail where the claim is too small and a mistaken rule explains it,
so that a failed claim.epsilon comes with its cause.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

from dpaudit.accounting import Method, rounded_sum
from dpaudit.checks.facts import Facts
from dpaudit.checks.levels import Level, Levels
from dpaudit.checks.registry import UNREAD, Outcome, RunCheck, judge_origin, not_applicable
from dpaudit.results import Amplification
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
    found = recomputed_levels(facts)
    if found is None:
        aggregator = facts.manifest.mechanism.aggregator.name
        detail = f"A {aggregator} run gives no {claim.kind} figure to hold the claim against."
        return Outcome("fail", "no such figure", expected, detail)
    # Written so that a NaN fails.
    if found.release <= claim.epsilon:
        reason = found.amplification.reason
        said = f"Both levels are equal: {reason}." if reason else ""
        return Outcome("pass", f"epsilon {bound_against(found.release, claim.epsilon)}", expected, said)
    return Outcome("fail", f"epsilon {rounded_up(found.release)}", expected, _why_exceeded(facts, found))


@RunCheck(
    id="claim.batch-epsilon",
    title="The recomputed epsilon of one batch does not exceed the claimed one",
    fails="The recomputed epsilon of one batch exceeds the claimed one, or there is none",
    evidence=1,
    why=(
        "Whoever has the key, the assignment or the run directory knows which batch a record was in. Against them the "
        "larger figure holds, and they are told a smaller one."
    ),
    remedy="Do not release under this claim. Claim what a batch costs, or claim nothing at the batch level.",
    reference="docs/mathematics.md#secret-batches",
)
def batch_epsilon_is_covered(facts: Facts) -> Outcome:
    """Epsilon recomputed at the batch level, against whoever knows a record's batch, against the claimed one."""
    claim = facts.claim
    if claim.batch_epsilon is None:
        return not_applicable(
            "epsilon at most what is claimed of a batch", "The claim says nothing of the batch level."
        )
    expected = f"epsilon at most {claim.batch_epsilon!r} at the batch level"
    found = recomputed_levels(facts)
    if found is None:
        return Outcome("fail", "no such figure", expected, "The run gives no figure to hold the claim against.")
    if found.batch <= claim.batch_epsilon:
        return Outcome("pass", f"epsilon {bound_against(found.batch, claim.batch_epsilon)}", expected)
    taken = ""
    if claim.epsilon <= claim.batch_epsilon and found.release <= claim.batch_epsilon:
        taken = "It may be the release level's figure, which is smaller. "
    detail = f"{taken}{_why_exceeded(facts, found, 'batch')}"
    return Outcome("fail", f"epsilon {rounded_up(found.batch)}", expected, detail)


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
    by_round: Counter[int] = Counter()  # in each of which every record serves once
    for batch, header in facts.headers.items():
        by_round[batch // facts.manifest.batching.per_round] += header.contexts
    shown = max(by_round.values(), default=0) if filled else 0
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


def recomputed_levels(facts: Facts) -> Levels | None:
    """Epsilon in nats for what is claimed, at both levels; None where the run has no figure of the claim's kind."""
    if facts.claim.kind not in facts.manifest.mechanism.kinds:
        return None
    if facts.claim.kind == "ex-post":
        return facts.ex_post_levels
    return facts.approximate_levels or Levels(math.inf, math.inf, Amplification())


def batch_claim(facts: Facts) -> float:
    """What holds against whoever knows a record's batch, by the claim or, where that says nothing of it, as recomputed.

    Whatever guesses by a record's own batch is held against this: the release level hides presence, and no place.
    """
    claim, found = facts.claim, recomputed_levels(facts)
    stated = math.inf if claim.batch_epsilon is None else claim.batch_epsilon
    if found is None or not found.amplified:
        return min(claim.epsilon, stated)
    return found.batch if claim.batch_epsilon is None else stated


def _why_exceeded(facts: Facts, found: Levels, level: Level = "release") -> str:
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
    recomputed, reason = found.at(level), found.amplification.reason
    if math.isfinite(recomputed):
        supported = rounded_up(recomputed)
        why = f" Both levels are equal: {reason}." if reason and level == "release" else ""
        return (
            f"Do not release under this claim. The claim that this record supports is epsilon {supported} "
            f"at the {level} level.{why}"
        )
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
    for short in too_small(facts):
        for rule, figure in _partial_figures(facts, short.level):
            if short.explained_by(figure):
                found = f"{short} is covered by {rule} only ({rounded_up(figure)})"
                return Outcome("fail", found, expected, short.instead)
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
    if facts.claim.kind == "ex-post" and facts.ex_post is not None and facts.ex_post.change.contexts == 1:
        costs = sorted(rounded_sum(facts.batch_cost(batch).exact, facts.grouping.epsilon) for batch in facts.headers)
        for short in too_small(facts) if facts.manifest.rounds == 1 else ():
            if any(short.explained_by(cost) for cost in costs[:-1]):
                left_out = sum(cost > short.claimed for cost in costs)
                found = f"{left_out} of {declared} batches cost more than the claim"
                return Outcome("fail", found, expected, short.instead)
    return Outcome("pass", f"{declared} batches", expected)


@dataclass(frozen=True)
class TooSmall:
    """A figure of the claim that is smaller than what was recomputed, both in nats.

    Attributes:
        level: that it is of.
        claimed, due: it, and what covers everything, which is finite.
    """

    level: Level
    claimed: float
    due: float

    def __str__(self) -> str:
        return f"{'epsilon' if self.level == 'release' else 'batch_epsilon'} {self.claimed!r}"

    @property
    def instead(self) -> str:
        """What to claim."""
        return f"The figure that covers everything is epsilon {rounded_up(self.due)}."

    def explained_by(self, figure: float) -> bool:
        """Whether a wrong figure would have been rounded up to what is claimed."""
        return figure <= self.claimed <= figure * (1 + _STATED) + _STATED


def too_small(facts: Facts) -> Iterator[TooSmall]:
    """The figures of the claim that are; none where nothing else is known to hold."""
    found, claim = recomputed_levels(facts), facts.claim
    stated: tuple[tuple[Level, float | None], ...] = (("release", claim.epsilon), ("batch", claim.batch_epsilon))
    for level, claimed in stated:
        if found is not None and claimed is not None and claimed < found.at(level) < math.inf:
            yield TooSmall(level, claimed, found.at(level))


def _partial_figures(facts: Facts, level: Level) -> Iterator[tuple[str, float]]:
    """Wrong sums of a level by the rule that gives them, in nats."""
    spent, alone, found = facts.grouping, "generation without its clusters", recomputed_levels(facts)
    clustered = spent.epsilon and facts.change is not None
    if facts.claim.kind == "ex-post":
        generation = facts.generation_levels.at(level)
        if clustered:
            yield alone, generation
            yield alone, rounded_sum(generation, spent.counts)
        costs = [facts.batch_cost(batch) for batch in facts.headers]
        if costs and (level == "batch" or not (found is not None and found.amplified)):
            exact = math.fsum(cost.exact for cost in costs) / len(costs) * facts.manifest.rounds
            theorem1 = math.fsum(cost.theorem1 for cost in costs) / len(costs) * facts.manifest.rounds
            yield "the mean over batches", rounded_sum(exact, spent.epsilon)
            yield "the mean over batches of Theorem 1", rounded_sum(theorem1, spent.epsilon)
    elif facts.release is not None and facts.change is not None:
        stopping, longest = facts.manifest.stopping, max(facts.lengths.values(), default=0)
        most = stopping.most_tokens
        partial = [(alone, most)] if clustered else []
        if stopping.max_tokens < most:
            partial.append((f"a single text of {stopping.max_tokens} tokens", stopping.max_tokens))
        if 0 < longest < most:
            partial.append((f"the realised length of {longest} tokens", longest))
        texts_alone = replace(facts.release, batch=facts.release.batch.without_clusters())
        for rule, tokens in partial:
            if level == "release" and found is not None and found.amplified:
                yield rule, texts_alone.epsilon(tokens, facts.claim.delta)
            else:
                for method in get_args(Method):
                    yield rule, texts_alone.batch_level(tokens, facts.claim.delta, method).epsilon
