"""From the facts of a run to its figures of each kind, and to the ledger that shows how they come about."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dpaudit.accounting.ledger import Entry, Figure, joint, leaf, total, worst
from dpaudit.checks import Facts
from dpaudit.mechanisms import Kind
from dpaudit.results import Approximate, Attack, CurvePoint, ExPost, LedgerEntry
from dpaudit.runs import Claim, Manifest

#: Batches that the ledger lists; reports have the others.
LISTED = 50
_DOCS = "docs/mathematics.md"


def approximate(facts: Facts) -> Approximate | None:
    """(epsilon, delta) at the claim's delta, fixed by public settings; None where the run has no such guarantee."""
    manifest, claim, accountant, best = facts.manifest, facts.claim, facts.beforehand, facts.approximate
    if accountant is None or best is None:
        return None
    aggregator, tokens = manifest.mechanism.aggregator, manifest.stopping.max_tokens
    unbounded = "nothing bounds how one unit changes the contexts"
    return Approximate(
        epsilon=best.epsilon,
        epsilon_lower=best.epsilon_lower,
        rdp=accountant.epsilon(tokens, claim.delta, "rdp").epsilon,
        delta=claim.delta,
        method=best.method,
        relation=claim.relation,
        unit=claim.unit,
        records_per_user=users_records(manifest, claim),
        tokens=tokens,
        sensitivity=unbounded if facts.change is None else aggregator.sensitivity(facts.change),
        rebalancing=facts.grouping.counts,
        centers=facts.grouping.centers,
        centers_delta=facts.grouping.delta,
    )


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
    accountant, found, tokens = facts.beforehand, facts.approximate, facts.manifest.stopping.max_tokens
    if accountant is None or found is None or facts.change is None:
        return None
    token = leaf(
        "a token: its losses lie in an interval of this length, so it is at least that private by itself",
        _figure(facts, "approximate", facts.manifest.mechanism.eta(facts.change) or 0.0),
        "docs/budgets.md#bounded-range",
    )
    figure, drawn = _figure(facts, "approximate", found.epsilon, found.delta), found.epsilon
    left = accountant.delta_left(found.delta)
    if facts.grouping.epsilon and math.isfinite(found.epsilon):
        drawn = accountant.without_clusters().epsilon(tokens, left).epsilon
    batch = joint(
        f"any one batch: {tokens} tokens, {found.method} composition",
        _figure(facts, "approximate", drawn, left),
        [token],
        "docs/budgets.md",
        omitted=tokens - 1,
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
