"""From the facts of a run to its figures of each kind, and to the ledger that shows how they come about.

An approximate guarantee, an ex-post cost and an empirical loss are statements of different kinds. Their sum means
nothing, so it cannot be formed; nor can that of figures for different relations or units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, Literal

from dpaudit.accounting import Cost, rounded_sum
from dpaudit.checks import Facts
from dpaudit.mechanisms import Kind, Relation, Unit
from dpaudit.results import Approximate, Attack, CurvePoint, Empirical, ExPost, Guarantees, LedgerEntry

#: Batches that the ledger lists; reports have the others.
LISTED = 50
#: Of a run that cannot be read, and of an audit that is not for everybody.
NOTHING = Guarantees(ex_post=None, approximate=None, empirical=Empirical(leave_one_out_max=None, contexts=0, worst=()))
_DOCS = "docs/mathematics.md"


class KindError(ValueError):
    """Figures of different kinds, relations or units were about to be combined."""


def approximate(facts: Facts) -> Approximate | None:
    """(epsilon, delta) at the claim's delta, fixed by public settings; None where the run has no such guarantee."""
    accountant, best = facts.beforehand, facts.approximate
    if accountant is None or best is None:
        return None
    mechanism, tokens = facts.manifest.mechanism, facts.manifest.stopping.max_tokens
    unbounded = "nothing bounds how one unit changes the contexts"
    return Approximate(
        **neighbours(facts),
        epsilon=best.epsilon,
        epsilon_lower=best.epsilon_lower,
        rdp=accountant.epsilon(tokens, facts.claim.delta, "rdp").epsilon,
        delta=facts.claim.delta,
        method=best.method,
        tokens=tokens,
        sensitivity=unbounded if facts.change is None else mechanism.aggregator.sensitivity(facts.change),
        rebalancing=facts.grouping.counts,
        centers=facts.grouping.centers,
        centers_delta=facts.grouping.delta,
    )


def neighbours(facts: Facts) -> dict[str, Any]:
    """What the claim's neighbours differ by; for users, with how many records one of them has at most."""
    claim = facts.claim
    most = facts.manifest.privacy.records_per_user if claim.unit == "user" else None
    return {"relation": claim.relation, "unit": claim.unit, "records_per_user": most}


def figures(cost: Cost | None) -> dict[str, Any]:
    """An ex-post cost by its fields in results; None in each where the record gives none."""
    return {name: None if cost is None else getattr(cost, name) for name in ("theorem1", "exact", "rise", "fall")}


def ex_post(facts: Facts) -> ExPost:
    """The run's ex-post figures for the claim's relation and unit; infinite where the record bounds nothing."""
    return ExPost(
        **neighbours(facts),
        **figures(facts.ex_post_cost),
        rebalancing=facts.grouping.epsilon,
        total=facts.ex_post_total,
        delta=facts.grouping.delta,
    )


def attack(facts: Facts) -> Attack | None:
    """What the replay's attack showed, for the claim's delta; None where none was made."""
    found = facts.replay.attack if facts.replay is not None else None
    if found is None:
        return None
    curve = tuple(CurvePoint(epsilon=e, delta=d, delta_lower=low) for e, d, low in found.bound.curve)
    return Attack(**vars(found.bound) | {"curve": curve}, trials=found.trials, beyond=found.beyond)


def ledger(facts: Facts) -> tuple[LedgerEntry, ...]:
    """A tree for each kind of figure that the run has."""
    trees = (_approximate_tree(facts), _ex_post_tree(facts), _empirical_tree(facts))
    return tuple(tree for tree in trees if tree is not None)


def entry(
    name: str,
    value: float,
    reference: str,
    *,
    kind: Kind,
    between: tuple[Relation, Unit],
    delta: float = 0.0,
    rule: Literal["leaf", "sum", "maximum", "joint"] = "leaf",
    children: Sequence[LedgerEntry] = (),
    listed: int | None = None,
    omitted: int = 0,
) -> LedgerEntry:
    """A node of the ledger, as `LedgerEntry` describes it; of its children the first `listed` are listed.

    Raises:
        KindError: a child makes another sort of statement, or one about other neighbours.
        ValueError: value or delta is negative or not a number, or a delta stands beside an empirical loss.
    """
    if not value >= 0 or not 0 <= delta <= 1:
        raise ValueError(f"a figure is at least 0, with a delta from 0 to 1, not {value} and {delta}")
    if delta and kind == "empirical":
        raise ValueError("an empirical figure has no delta")
    for child in children:
        mine, theirs = (kind, *between), (child.kind, child.relation, child.unit)
        if mine != theirs:
            raise KindError(f"{' '.join(mine)} and {' '.join(theirs)} figures cannot be combined")
    kept = tuple(children[:listed])
    return LedgerEntry(
        name=name,
        kind=kind,
        relation=between[0],
        unit=between[1],
        value=value,
        delta=delta if kind == "approximate" or delta else None,
        rule=rule,
        reference=reference,
        children=kept,
        omitted=omitted + len(children) - len(kept),
    )


def total(name: str, children: Sequence[LedgerEntry], reference: str) -> LedgerEntry:
    """Basic composition of one or more children: values and deltas add up, rounded up. Raises KindError."""
    value = reduce(rounded_sum, (child.value for child in children))
    delta = min(1.0, reduce(rounded_sum, (child.delta or 0.0 for child in children)))
    made = entry(name, value, reference, **_about(children[0]), delta=delta, rule="sum", children=children)
    if len(children) > 1 and made.kind == "empirical":
        raise KindError("empirical losses of different neighbours do not add up to anything")
    return made


def worst(name: str, children: Sequence[LedgerEntry], reference: str, listed: int | None = None) -> LedgerEntry:
    """The maximum over one or more children, of which the `listed` largest are listed. Raises KindError."""
    ranked = sorted(children, key=lambda child: -child.value)
    value, delta = ranked[0].value, ranked[0].delta or 0.0
    about = _about(ranked[0])
    return entry(name, value, reference, **about, delta=delta, rule="maximum", children=ranked, listed=listed)


def _about(like: LedgerEntry) -> dict[str, Any]:
    """What a figure must agree in to be combined with this one."""
    return {"kind": like.kind, "between": (like.relation, like.unit)}


def _of(facts: Facts, kind: Kind) -> Callable[..., LedgerEntry]:
    """Makes entries of this kind, for the claim's neighbours."""
    return partial(entry, kind=kind, between=(facts.claim.relation, facts.claim.unit))


def _approximate_tree(facts: Facts) -> LedgerEntry | None:
    accountant, found, tokens = facts.beforehand, facts.approximate, facts.manifest.stopping.max_tokens
    if accountant is None or found is None or facts.change is None:
        return None
    left, drawn = accountant.delta_left(found.delta), found.epsilon
    if facts.grouping.epsilon and math.isfinite(found.epsilon):
        drawn = accountant.without_clusters().epsilon(tokens, left).epsilon
    approximately = _of(facts, "approximate")
    token = approximately(
        "a token: its losses lie in an interval of this length, so it is at least that private by itself",
        facts.manifest.mechanism.eta(facts.change) or 0.0,
        "docs/budgets.md#bounded-range",
    )
    batch = approximately(
        f"any one batch: {tokens} tokens, {found.method} composition",
        drawn,
        "docs/budgets.md",
        delta=left,
        rule="joint",
        children=[token],
        omitted=tokens - 1,
    )
    generation = worst("generation: batches share no records, so the costliest counts", [batch], f"{_DOCS}#runs")
    parts = [*_grouping(facts, "approximate"), generation]
    whole = f"{_DOCS}#ledger"
    return approximately("pipeline", found.epsilon, whole, delta=found.delta, rule="joint", children=parts)


def _ex_post_tree(facts: Facts) -> LedgerEntry | None:
    if facts.ex_post is None or not math.isfinite(facts.ex_post_cost.exact):
        return None
    batches = sorted(_batches(facts), key=lambda batch: -batch.value)
    contexts = facts.ex_post.change.contexts
    if contexts == 1:
        generation = worst("generation: the costliest batch", batches, f"{_DOCS}#runs", LISTED)
    else:
        name = f"generation: the costliest way of spreading {contexts} contexts over the batches"
        generation = _of(facts, "ex-post")(
            name, facts.ex_post_cost.exact, f"{_DOCS}#runs", rule="joint", children=batches, listed=LISTED
        )
    return total("pipeline", [*_grouping(facts, "ex-post"), generation], f"{_DOCS}#ledger")


def _batches(facts: Facts) -> Iterator[LedgerEntry]:
    for batch, steps in facts.lengths.items():
        cost = facts.batch_cost(batch)
        directions = [
            _of(facts, "ex-post")(f"{name} summed over {steps} tokens", value, _DOCS, rule="sum", omitted=steps)
            for name, value in (("rise", cost.rise), ("fall", cost.fall))
        ]
        yield worst(f"batch {batch}", directions, f"{_DOCS}#exact-cost")


def _grouping(facts: Facts, kind: Kind) -> Iterator[LedgerEntry]:
    """What was spent before any token was drawn."""
    clustering, spent, reference = facts.manifest.clustering, facts.grouping, f"{_DOCS}#rebalancing"
    counts = "no noisy counts were used"
    if clustering.counts is not None:
        counts = f"noisy counts of records, Laplace noise of scale {clustering.counts.scale:g}"
    yield _of(facts, kind)(f"rebalancing: {counts}", spent.counts, reference)
    if clustering.method != "none":
        centers = f"centres: {clustering.origin}, {clustering.method}"
        yield _of(facts, kind)(centers, spent.centers, reference, delta=spent.delta)


def _empirical_tree(facts: Facts) -> LedgerEntry | None:
    # What was tried is the removal of one context, whatever the claim is about.
    lost = partial(entry, reference=f"{_DOCS}#leave-one-out", kind="empirical", between=("add_remove", "context"))
    leaves = [
        lost(f"batch {batch}: the largest loss of a left-out context", loss) for batch, loss in facts.losses.items()
    ]
    if not leaves:
        return None
    return worst("leave-one-out: the batch with the largest loss", leaves, f"{_DOCS}#leave-one-out", LISTED)
