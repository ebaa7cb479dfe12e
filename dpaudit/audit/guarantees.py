"""From the facts of a run to its figures of each kind, and to the ledger that shows how they come about."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dpaudit.accounting import (
    ContextChange,
    Method,
    bounded_range,
    exponential_mechanism_epsilon,
    mean_sensitivity,
    rounded_sum,
)
from dpaudit.accounting.ledger import Entry, Figure, Kind, joint, leaf, total, worst
from dpaudit.checks import Facts
from dpaudit.checks.grouping import GroupingCost, grouping_cost
from dpaudit.results import Approximate, Attack, CurvePoint, ExPost, LedgerEntry
from dpaudit.runs import Claim, Manifest

#: Batches that the ledger lists; reports have the others.
LISTED = 50
_DOCS = "docs/mathematics.md"
_METHODS: tuple[Method, Method] = ("optimal", "rdp")


def approximate(manifest: Manifest, claim: Claim, change: ContextChange | None) -> Approximate | None:
    """(epsilon, delta) of a mean run at the claim's delta, from public settings: maximum length, not realised ones.

    Noisy counts are composed jointly with the tokens, at the delta that the centres leave; what the centres cost is
    added to that.

    None for other aggregators, and where the claim has no delta to work it out at.
    """
    mechanism, tokens = manifest.mechanism, manifest.stopping.max_tokens
    if mechanism.divisor is None or not 0 < claim.delta < 1:
        return None
    eta, sensitivity = math.inf, "nothing bounds how one unit changes the contexts"
    if change is not None:
        eta = bounded_range(mechanism.clip, mechanism.temperature, mechanism.divisor, change)
        sensitivity = mean_sensitivity(change).text
    grouping = grouping_cost(manifest, claim)
    left = _delta_left(claim, grouping)
    if not left or math.isinf(grouping.counts):
        eta = math.inf  # nothing bounds the rest either
    found, rdp = (
        exponential_mechanism_epsilon(eta, tokens, left or claim.delta, method=method, laplace=grouping.events)
        for method in _METHODS
    )
    return Approximate(
        epsilon=rounded_sum(found.epsilon, grouping.centers),
        epsilon_lower=None if grouping.delta else found.epsilon_lower,
        rdp=rounded_sum(rdp.epsilon, grouping.centers),
        delta=claim.delta,
        method=found.method,
        relation=claim.relation,
        unit=claim.unit,
        records_per_user=users_records(manifest, claim),
        tokens=tokens,
        sensitivity=sensitivity,
        rebalancing=grouping.counts,
        centers=grouping.centers,
        centers_delta=grouping.delta,
    )


def _delta_left(claim: Claim, grouping: GroupingCost) -> float:
    """What of the claim's delta the centres leave, rounded down; 0 where nothing."""
    if not grouping.delta:
        return claim.delta
    return max(0.0, math.nextafter(claim.delta - grouping.delta, 0.0))


def users_records(manifest: Manifest, claim: Claim) -> int | None:
    """The most records that one unit of the claim stands for, where that unit is a user."""
    return manifest.privacy.records_per_user if claim.unit == "user" else None


def ex_post(facts: Facts) -> ExPost:
    """The run's ex-post figures for the claim's relation and unit; infinite where the record bounds nothing."""
    cost = facts.ex_post_cost
    return ExPost(
        relation=facts.claim.relation,
        unit=facts.claim.unit,
        records_per_user=users_records(facts.manifest, facts.claim),
        theorem1=cost.theorem1,
        exact=cost.exact,
        rise=cost.rise,
        fall=cost.fall,
        rebalancing=facts.grouping.epsilon,
        total=facts.ex_post_total,
        delta=facts.grouping.delta,
    )


def attack(facts: Facts) -> Attack | None:
    """What the replay's attack showed, for the claim's delta; None where none was made."""
    found = facts.replay.attack if facts.replay is not None else None
    if found is None:
        return None
    return Attack(
        epsilon=found.bound.epsilon,
        estimate=found.bound.estimate,
        delta=found.bound.delta,
        confidence=found.bound.confidence,
        trials=found.trials,
        beyond=found.beyond,
        curve=tuple(CurvePoint(epsilon=e, delta=d, delta_lower=low) for e, d, low in found.bound.curve),
    )


def ledger(facts: Facts) -> tuple[LedgerEntry, ...]:
    """A tree for each kind of figure that the run has."""
    trees = (_approximate_tree(facts), _ex_post_tree(facts), _empirical_tree(facts))
    return tuple(_listed(tree) for tree in trees if tree is not None)


def _ex_post_tree(facts: Facts) -> Entry | None:
    if facts.ex_post is None or not math.isfinite(facts.ex_post_cost.exact):
        return None
    batches = sorted(_batches(facts), key=lambda entry: -entry.figure.value)
    contexts = facts.ex_post.change.contexts
    if contexts == 1:
        generation = worst("generation: the costliest batch", batches, f"{_DOCS}#runs", LISTED)
    else:
        generation = joint(
            f"generation: the costliest way of spreading {contexts} contexts over the batches",
            _figure(facts, "ex-post", facts.ex_post_cost.exact),
            batches[:LISTED],
            f"{_DOCS}#runs",
            max(0, len(batches) - LISTED),
        )
    return total("pipeline", [*_grouping(facts, "ex-post"), generation], f"{_DOCS}#ledger")


def _grouping(facts: Facts, kind: Kind) -> Iterator[Entry]:
    """What was spent before any token was drawn."""
    clustering, spent, reference = facts.manifest.clustering, facts.grouping, f"{_DOCS}#rebalancing"
    counts = "no noisy counts were used"
    if clustering.counts is not None:
        counts = f"noisy counts of records, Laplace noise of scale {clustering.counts.scale:g}"
    yield leaf(f"rebalancing: {counts}", _figure(facts, kind, spent.counts), reference)
    if clustering.method == "none":
        return
    centers = f"centres: {clustering.origin}, {clustering.method}"
    yield leaf(centers, _figure(facts, kind, spent.centers, spent.delta), reference)


def _batches(facts: Facts) -> Iterator[Entry]:
    for batch, steps in facts.lengths.items():
        cost = facts.batch_cost(batch)
        directions = [
            Entry(f"{name} summed over {steps} tokens", _figure(facts, "ex-post", value), "sum", _DOCS, omitted=steps)
            for name, value in (("rise", cost.rise), ("fall", cost.fall))
        ]
        yield worst(f"batch {batch}", directions, f"{_DOCS}#exact-cost")


def _empirical_tree(facts: Facts) -> Entry | None:
    leaves = [
        leaf(f"batch {batch}: the largest loss of a left-out context", _tried(loss), f"{_DOCS}#leave-one-out")
        for batch, loss in facts.losses.items()
    ]
    if not leaves:
        return None
    return worst("leave-one-out: the batch with the largest loss", leaves, f"{_DOCS}#leave-one-out", LISTED)


def _approximate_tree(facts: Facts) -> Entry | None:
    found, mechanism, change = facts.approximate, facts.manifest.mechanism, facts.change
    if found is None or change is None or mechanism.divisor is None:
        return None
    eta = bounded_range(mechanism.clip, mechanism.temperature, mechanism.divisor, change)
    token = leaf(
        "a token: its losses lie in an interval of this length, so it is at least that private by itself",
        _figure(facts, "approximate", eta),
        "docs/budgets.md#bounded-range",
    )
    figure, drawn = _figure(facts, "approximate", found.epsilon, found.delta), found.epsilon
    left = _delta_left(facts.claim, facts.grouping)
    if facts.grouping.epsilon and math.isfinite(found.epsilon):  # of the tokens alone, without counts and centres
        drawn = exponential_mechanism_epsilon(eta, found.tokens, left).epsilon
    batch = joint(
        f"any one batch: {found.tokens} tokens, {found.method} composition",
        _figure(facts, "approximate", drawn, left),
        [token],
        "docs/budgets.md",
        omitted=found.tokens - 1,
    )
    generation = worst("generation: batches share no records, so the costliest counts", [batch], f"{_DOCS}#runs")
    return joint("pipeline", figure, [*_grouping(facts, "approximate"), generation], f"{_DOCS}#ledger")


def _tried(loss: float) -> Figure:
    """What was tried is the removal of one context, whatever the claim is about."""
    return Figure("empirical", "add_remove", "context", loss)


def _figure(facts: Facts, kind: Kind, value: float, delta: float = 0.0) -> Figure:
    return Figure(kind, facts.claim.relation, facts.claim.unit, value, delta)


def _listed(entry: Entry) -> LedgerEntry:
    figure = entry.figure
    return LedgerEntry(
        name=entry.name,
        kind=figure.kind,
        relation=figure.relation,
        unit=figure.unit,
        value=figure.value,
        delta=figure.delta if figure.kind == "approximate" or figure.delta else None,
        rule=entry.rule,
        reference=entry.reference,
        children=tuple(_listed(child) for child in entry.children),
        omitted=entry.omitted,
    )
