"""Were the parts of the claim put together by a rule that is right?

These checks recognise the wrong sums: they fail where the claim is too small and a mistaken rule explains it, so that a
failed claim.epsilon comes with its cause.
"""

from __future__ import annotations

import math
from typing import get_args

from dpaudit.accounting import Method, rounded_sum
from dpaudit.checks.claim import recomputed_epsilon
from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, run_check
from dpaudit.results.rounding import rounded_up

_DOCS = "docs/mathematics.md"
#: Claims are stated with some decimals; a wrong sum that is no further off than this explains a claim.
_STATED = 1e-3


@run_check(
    check_id="composition.total",
    title="The claim covers all that was spent, not an average or a realised length",
    failed="The claim covers only a part of what was spent",
    evidence=1,
    why="A claim for a part of the run promises more privacy than the run as a whole gives.",
    remedy="Claim the maximum over all batches, for the public maximum length, with the cost of rebalancing.",
    reference=_DOCS,
)
def everything_is_counted(facts: Facts) -> Outcome:
    """A claim that is too small against the mean over batches, a realised length, and the cost without clusters."""
    expected = "the maximum over batches, for the public maximum length, with what clusters cost"
    for rule, figure in _partial_figures(facts) if _falls_short(facts) else ():
        if _explains(facts, figure):
            found = f"epsilon {facts.claim.epsilon!r} is covered by {rule} only ({rounded_up(figure)})"
            return Outcome("fail", found, expected, _what_to_claim(facts))
    return Outcome("pass", "no partial sum explains the claim", expected)


@run_check(
    check_id="composition.all-batches",
    title="The maximum is taken over every generated batch",
    failed="The claim leaves out the costliest batches",
    evidence=1,
    why="Each record is in one batch, and the unluckiest record counts. An average hides what it lost.",
    remedy="Every generated batch counts, released or not. Claim the maximum over all of them.",
    reference=_DOCS,
)
def every_batch_counts(facts: Facts) -> Outcome:
    """The batches that the accounting took in against the declared number, and the claim against the lesser batches."""
    declared = facts.manifest.batching.batches
    expected = f"{declared} batches in the maximum"
    if len(facts.headers) != declared:
        return Outcome(
            "skip", f"{len(facts.headers)} batches", expected, "Not every batch could be read: restore them."
        )
    if facts.claim.kind == "ex-post" and facts.ex_post is not None and facts.ex_post.change.contexts == 1:
        costs = sorted(rounded_sum(facts.batch_cost(batch).exact, facts.grouping.epsilon) for batch in facts.headers)
        lesser = [cost for cost in costs[:-1] if _explains(facts, cost)]
        if lesser:
            left_out = sum(cost > facts.claim.epsilon for cost in costs)
            found = f"{left_out} of {declared} batches cost more than the claim"
            return Outcome("fail", found, expected, _what_to_claim(facts))
    return Outcome("pass", f"{declared} batches", expected)


def _what_to_claim(facts: Facts) -> str:
    """What to claim instead."""
    recomputed = recomputed_epsilon(facts)
    return f"The figure that covers everything is epsilon {rounded_up(math.inf if recomputed is None else recomputed)}."


def _explains(facts: Facts, figure: float) -> bool:
    """Whether the claim is too small, and a wrong figure would have been rounded up to it."""
    return _falls_short(facts) and figure <= facts.claim.epsilon <= figure * (1 + _STATED) + _STATED


def _falls_short(facts: Facts) -> bool:
    """Whether the claim is too small, where there is a figure that it should have been."""
    recomputed = recomputed_epsilon(facts)
    return recomputed is not None and facts.claim.epsilon < recomputed < math.inf


def _partial_figures(facts: Facts) -> list[tuple[str, float]]:
    """Wrong sums by the rule that gives them, in nats."""
    return [*_without_clusters(facts), *(_ex_post_means(facts) if facts.claim.kind == "ex-post" else _realised(facts))]


def _without_clusters(facts: Facts) -> list[tuple[str, float]]:
    """The cost of generation, without noisy counts and centres; empty where those cost nothing."""
    grouping, alone = facts.grouping, "generation without its clusters"
    if not grouping.epsilon or facts.change is None:
        return []
    if facts.claim.kind == "ex-post":
        return [(alone, facts.ex_post_cost.exact), (alone, rounded_sum(facts.ex_post_cost.exact, grouping.counts))]
    return _of_tokens_alone(facts, facts.manifest.stopping.max_tokens, alone)


def _ex_post_means(facts: Facts) -> list[tuple[str, float]]:
    costs = [facts.batch_cost(batch) for batch in facts.headers]
    if not costs:
        return []
    spent = facts.grouping.epsilon
    return [
        ("the mean over batches", rounded_sum(math.fsum(cost.exact for cost in costs) / len(costs), spent)),
        (
            "the mean over batches of Theorem 1",
            rounded_sum(math.fsum(cost.theorem1 for cost in costs) / len(costs), spent),
        ),
    ]


def _realised(facts: Facts) -> list[tuple[str, float]]:
    longest = max(facts.lengths.values(), default=0)
    shorter = 0 < longest < facts.manifest.stopping.max_tokens
    return _of_tokens_alone(facts, longest, f"the realised length of {longest} tokens") if shorter else []


def _of_tokens_alone(facts: Facts, tokens: int, rule: str) -> list[tuple[str, float]]:
    """What so many tokens cost without clusters, by either method."""
    if facts.beforehand is None or facts.change is None:
        return []
    alone = facts.beforehand.without_clusters()
    return [(rule, alone.epsilon(tokens, facts.claim.delta, method).epsilon) for method in get_args(Method)]
