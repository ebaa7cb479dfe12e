"""A run's figures of each kind, the ledger of their composition, and the token curve.

An approximate guarantee, an ex-post cost and an empirical loss are statements of different kinds.
Their sum means nothing, so it cannot be formed; nor can that of figures for different relations or
units.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from typing import Any, Literal, Self

import numpy as np
from typing_extensions import override

from dpaudit import accounting
from dpaudit.accounting import Cost, rounded_sum
from dpaudit.accounting.renyi import most_variation
from dpaudit.auditing.checks.canaries import guesses
from dpaudit.auditing.checks.costs import Costs
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.levels import Levels
from dpaudit.auditing.checks.neighbors import Losses
from dpaudit.auditing.checks.steps import BatchView, StepsView
from dpaudit.mechanisms import Relation, Unit, context_change
from dpaudit.mechanisms.claims import (
    CLAIM_KINDS,
    EMPIRICAL,
    ApproximateClaim,
    ExPostClaim,
    Kind,
    ZcdpClaim,
)
from dpaudit.results import (
    Approximate,
    Attack,
    CanaryGuesses,
    Empirical,
    ExPost,
    Finding,
    Guarantees,
    LedgerEntry,
    OtherNeighbours,
    TokenCurve,
    Zcdp,
)

#: Names of the ledger's roots.
_RELEASE_LEVEL, _BATCH_LEVEL = "pipeline at the release level", "pipeline at the batch level"
_BOTH_LEVELS = "pipeline at either level"
#: Batches that the ledger lists; reports have the others.
LISTED = 50
#: Of a run that cannot be read, and of an audit that is not for everybody.
NOTHING = Guarantees(
    ex_post=None,
    approximate=None,
    empirical=Empirical(leave_one_out_max=None, contexts=0, worst=()),
)
_DOCS = "docs/mathematics.md"


class KindError(ValueError):
    """Figures of different kinds, relations or units were about to be combined."""


def approximate(run: AuditedRun) -> Approximate | None:
    """Return (epsilon, delta) by public settings at the claim's delta, or None if there is none."""
    costs = run[Costs]
    accountant, best, levels = costs.release, costs.approximate, costs.approximate_levels
    if accountant is None or best is None or levels is None:
        return None
    mechanism, tokens = run.manifest.mechanism, run.manifest.decoding.most_tokens
    unbounded = "nothing bounds how one unit changes the contexts"
    rho = accountant.batch.budgets_rho
    return Approximate(
        **neighbours(run),
        epsilon=levels.release,
        batch_epsilon=levels.batch,
        batch_lower=best.epsilon_lower,
        batch_rdp=accountant.batch_level(tokens, run.claim.delta, "rdp").epsilon,
        amplification=levels.amplification,
        delta=run.claim.delta,
        method=best.method,
        tokens=tokens,
        rho=None if math.isinf(rho) else rho,
        sensitivity=unbounded
        if run.change is None
        else mechanism.aggregator.sensitivity(run.change),
        rebalancing=costs.grouping.counts,
        centers=costs.grouping.centers,
        centers_delta=costs.grouping.delta,
        others=tuple(_between_others(run)) if run.manifest.recorded is not None else (),
        **({} if costs.attacks is None else costs.attacks._asdict()),
    )


def zcdp(run: AuditedRun) -> Zcdp | None:
    """Return the rho to compare a claim of rho with; None without a claim or a rho."""
    costs = run[Costs]
    accountant, rho = costs.of_rho, costs.rho
    if accountant is None or rho is None or run.claim.rho is None:
        return None
    return Zcdp(
        **neighbours(run),
        rho=rho,
        rebalancing=accountant.rho_of_clusters(),
        tokens=run.manifest.decoding.most_tokens,
        any_length=math.isfinite(accountant.most_rho),
        advantage=most_variation(run.claim.rho),
        **({} if costs.attacks is None else costs.attacks._asdict()),
    )


def no_attack(run: AuditedRun) -> Finding | None:
    """Return why nothing bounds attacks in general; None where something does."""
    if run[Costs].attacks is None:
        return Finding(code="risk.no-attack-bound")
    return None


def _between_others(run: AuditedRun) -> Iterator[OtherNeighbours]:
    """Yield the tokens' cost between other neighbours: records and contexts, under either relation.

    The claim's own are left out.
    """
    manifest, delta = run.manifest, run.claim.delta
    tokens = manifest.decoding.most_tokens
    units: tuple[Unit, ...] = "record", "context"
    relations: tuple[Relation, ...] = "add_remove", "replace"
    for unit, relation in product(units, relations):
        if (unit, relation) == (run.claim.unit, run.claim.relation):
            continue
        change = context_change(unit, relation, manifest.batching.rule)
        accountant = accounting.ApproximateAccountant.of(manifest.mechanism, change)
        if accountant is not None:
            best, rdp = accountant.epsilon(tokens, delta), accountant.epsilon(tokens, delta, "rdp")
            yield OtherNeighbours(
                relation=relation, unit=unit, epsilon=best.epsilon, rdp=rdp.epsilon
            )


def neighbours(run: AuditedRun) -> dict[str, Any]:
    """Return the difference of the claim's neighbours; for users with their most records."""
    claim = run.claim
    most = run.manifest.privacy.records_per_user if claim.unit == "user" else None
    return {"relation": claim.relation, "unit": claim.unit, "records_per_user": most}


def figures(cost: Cost | None) -> dict[str, Any]:
    """Return an ex-post cost by its fields in results; None in each if the record gives none."""
    return {
        name: None if cost is None else getattr(cost, name)
        for name in ("theorem1", "exact", "rise", "fall")
    }


def ex_post(run: AuditedRun) -> ExPost:
    """Return the run's ex-post figures for the claim's relation and unit.

    They are infinite if the record bounds nothing.
    """
    costs = run[Costs]
    levels = costs.ex_post_levels
    return ExPost(
        **neighbours(run),
        epsilon=levels.release,
        **figures(costs.ex_post_cost),
        rebalancing=costs.grouping.epsilon,
        batch_epsilon=levels.batch,
        delta=costs.grouping.delta,
        amplification=levels.amplification,
    )


def attack(run: AuditedRun) -> Attack | None:
    """Return the result of the replay's attack, for the claim's delta; None without one."""
    found = run.replay.attack if run.replay is not None else None
    if found is None:
        return None
    bounds = {name: value for name, value in vars(found.bound).items() if name != "curve"}
    return Attack(**bounds, trials=found.trials, beyond=found.beyond)


def canaries(run: AuditedRun) -> CanaryGuesses | None:
    """Return what the coins of canaries showed, for the claim's delta.

    Return None without any, or they are not borne out.
    """
    found = guesses(run)
    if found is None:
        return None
    delta = run.claim.delta if run.kind.beforehand else 0.0
    tossed = accounting.canary_guesses(found.coins, delta)
    return CanaryGuesses(
        coins=found.coins,
        right=found.right,
        epsilon=tossed.epsilon_refuted(found.right),
        most=tossed.most_refutable(),
        delta=delta,
        confidence=1 - accounting.REFUTED_AT,
    )


def ledger(run: AuditedRun) -> tuple[LedgerEntry, ...]:
    """Return a tree for each kind of figure that the run has."""
    trees = (_zcdp_tree(run), _approximate_tree(run), _ex_post_tree(run), _empirical_tree(run))
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
    omitted: int = 0,
) -> LedgerEntry:
    """Return a node of the ledger, as `LedgerEntry` describes it.

    Raises:
        KindError: a child makes another sort of statement, or one about other neighbours.
        ValueError: value or delta is negative or not a number, or a delta stands beside an
            empirical loss.
    """
    if not value >= 0 or not 0 <= delta <= 1:
        raise ValueError(
            f"a figure is at least 0, with a delta from 0 to 1, not {value} and {delta}"
        )
    if delta and kind not in CLAIM_KINDS:
        raise ValueError("a loss that was seen has no delta")
    for child in children:
        mine, theirs = (kind, *between), (child.kind, child.relation, child.unit)
        if mine != theirs:
            raise KindError(f"{' '.join(mine)} and {' '.join(theirs)} figures cannot be combined")
    return LedgerEntry(
        name=name,
        kind=kind,
        relation=between[0],
        unit=between[1],
        value=value,
        delta=delta if kind == ApproximateClaim.id or delta else None,
        rule=rule,
        reference=reference,
        children=tuple(children),
        omitted=omitted,
    )


def total(name: str, children: Sequence[LedgerEntry], reference: str) -> LedgerEntry:
    """Compose children: values and deltas add up, rounded up.

    Raises:
        KindError: the children are of kinds that do not add up.
    """
    value = reduce(rounded_sum, (child.value for child in children))
    delta = min(1.0, reduce(rounded_sum, (child.delta or 0.0 for child in children)))
    made = entry(
        name, value, reference, **_about(children[0]), delta=delta, rule="sum", children=children
    )
    if len(children) > 1 and made.kind not in CLAIM_KINDS:
        raise KindError("empirical losses of different neighbours do not add up to anything")
    return made


def worst(
    name: str, children: Sequence[LedgerEntry], reference: str, omitted: int = 0
) -> LedgerEntry:
    """Return the maximum over children, and `omitted` others that are no larger.

    Raises:
        KindError: the children are of different kinds.
    """
    ranked = sorted(children, key=lambda child: -child.value)
    value, delta = ranked[0].value, ranked[0].delta or 0.0
    about = _about(ranked[0])
    return entry(
        name,
        value,
        reference,
        **about,
        delta=delta,
        rule="maximum",
        children=ranked,
        omitted=omitted,
    )


def _about(like: LedgerEntry) -> dict[str, Any]:
    """Return what a figure must agree in to be combined with this one."""
    return {"kind": like.kind, "between": (like.relation, like.unit)}


def _of(run: AuditedRun, kind: Kind) -> Callable[..., LedgerEntry]:
    """Return a maker of entries of this kind, for the claim's neighbours."""
    return partial(entry, kind=kind, between=(run.claim.relation, run.claim.unit))


def _approximate_tree(run: AuditedRun) -> LedgerEntry | None:
    costs = run[Costs]
    both, found, tokens = costs.release, costs.approximate, run.manifest.decoding.most_tokens
    if both is None or found is None or run.change is None:
        return None
    left, drawn = both.batch.delta_left(found.delta), found.epsilon
    if costs.grouping.epsilon and math.isfinite(found.epsilon):
        drawn = replace(both, batch=both.batch.without_clusters()).batch_level(tokens, left).epsilon
    approximately, rounds = _of(run, ApproximateClaim.id), both.batch.rounds
    batch_of = "any one batch" if rounds == 1 else f"any one batch in each of {rounds:,} rounds"
    if both.batch.gaussian is not None:
        gaussian = both.batch.gaussian
        noise = f"noise of multiplier {gaussian.multiplier:.4g}, sampled at {gaussian.rate:g}"
        said = f"{batch_of}: {tokens} tokens by {noise}, {found.method} composition"
        return _approximate_pipeline(run, found, approximately(said, drawn, _DOCS, delta=left))
    token = approximately(
        "a token: its losses lie in an interval of this length, so it is at least that private "
        "by itself",
        run.manifest.mechanism.eta(run.change) or 0.0,
        "docs/budgets.md#bounded-range",
    )
    if found.method == "zcdp":
        spent, where = "what one unit's contexts can spend", "docs/budgets.md#individual-budgets"
        if run.manifest.mechanism.budget is None:
            spent, where = run.manifest.mechanism.draw.paid_for, run.manifest.mechanism.draw.proof
        batch = approximately(
            f"{batch_of}: {spent}, however many tokens it has", drawn, where, delta=left
        )
    else:
        drawn_by = f"{batch_of}: {tokens} tokens, {found.method} composition"
        omitted = tokens * rounds - 1
        batch = approximately(
            drawn_by,
            drawn,
            "docs/budgets.md",
            delta=left,
            rule="joint",
            children=[token],
            omitted=omitted,
        )
    return _approximate_pipeline(run, found, batch)


def _zcdp_tree(run: AuditedRun) -> LedgerEntry | None:
    found, accountant = zcdp(run), run[Costs].of_rho
    if found is None or accountant is None or not math.isfinite(found.rho):
        return None
    of, reference, rounds = _of(run, ZcdpClaim.id), f"{_DOCS}#zcdp", accountant.rounds
    batch_of = "any one batch" if rounds == 1 else f"any one batch in each of {rounds:,} rounds"
    spent = "what one unit's contexts can spend, however many tokens it has"
    if accountant.rho(found.tokens) < accountant.budgets_rho:
        spent = f"{found.tokens} tokens, each by the range of its draw"
    generation = of(f"generation: {batch_of}, {spent}", accountant.rho(found.tokens), reference)
    clusters = of("clusters: half the square of each pure epsilon", found.rebalancing, reference)
    return of(
        f"{_BATCH_LEVEL}: rhos add up",
        found.rho,
        reference,
        rule="sum",
        children=[clusters, generation],
    )


def _approximate_pipeline(
    run: AuditedRun, found: accounting.Composition, batch: LedgerEntry
) -> LedgerEntry:
    generation = worst(
        "generation: batches share no records, so the costliest counts", [batch], f"{_DOCS}#runs"
    )
    parts = [*_grouping(run, ApproximateClaim.id), generation]
    of, levels = _of(run, ApproximateClaim.id), run[Costs].approximate_levels
    assert levels is not None  # as there is a figure
    whole = of(
        _BATCH_LEVEL,
        found.epsilon,
        f"{_DOCS}#ledger",
        delta=found.delta,
        rule="joint",
        children=parts,
    )
    return _at_release_level(run, levels, whole, found.delta)


def _at_release_level(
    run: AuditedRun, levels: Levels, whole: LedgerEntry, delta: float
) -> LedgerEntry:
    """Return the tree's root: what readers learn who do not know a record's batch.

    Without secrets it is the pipeline itself.
    """
    if not levels.amplified:
        return whole.model_copy(update={"name": _BOTH_LEVELS})
    of = _of(run, whole.kind)
    named = ", ".join(
        f"{generated:,} of {batches:,}" for batches, generated in levels.amplification.groups
    )
    name = f"{_RELEASE_LEVEL}: her batch is one of secret ones, generated: {named}"
    return of(
        name, levels.release, f"{_DOCS}#secret-batches", delta=delta, rule="joint", children=[whole]
    )


def _ex_post_tree(run: AuditedRun) -> LedgerEntry | None:
    costs = run[Costs]
    if costs.ex_post is None or not math.isfinite(costs.ex_post_cost.exact):
        return None
    # Entries are made of those alone that are listed: a run may have very many batches.
    costliest = heapq.nlargest(LISTED, run.lengths, key=lambda batch: costs.batch_cost(batch).exact)
    batches = [_of_batch(run, batch, costs.batch_cost(batch)) for batch in costliest]
    contexts, omitted, rounds = (
        costs.ex_post.change.contexts,
        len(run.lengths) - len(batches),
        run.manifest.rounds,
    )
    if contexts == 1 and rounds == 1:
        generation = worst("generation: the costliest batch", batches, f"{_DOCS}#runs", omitted)
    else:
        way = f"way of spreading {contexts} contexts over the batches" if contexts > 1 else "batch"
        every = f" of each of {rounds:,} rounds, added up" if rounds > 1 else ""
        generation = _of(run, ExPostClaim.id)(
            f"generation: the costliest {way}{every}",
            costs.ex_post_cost.exact,
            f"{_DOCS}#runs",
            rule="joint",
            children=batches,
            omitted=omitted,
        )
    whole = total(_BATCH_LEVEL, [*_grouping(run, ExPostClaim.id), generation], f"{_DOCS}#ledger")
    return _at_release_level(run, costs.ex_post_levels, whole, whole.delta or 0.0)


def _of_batch(run: AuditedRun, batch: int, cost: Cost) -> LedgerEntry:
    steps = run.lengths[batch]
    directions = [
        _of(run, ExPostClaim.id)(
            f"{name} summed over {steps} tokens", value, _DOCS, rule="sum", omitted=steps
        )
        for name, value in (("rise", cost.rise), ("fall", cost.fall))
    ]
    return worst(f"batch {batch}", directions, f"{_DOCS}#exact-cost")


def _grouping(run: AuditedRun, kind: Kind) -> Iterator[LedgerEntry]:
    """Yield what was spent before any token was drawn."""
    clustering, spent, reference = (
        run.manifest.clustering,
        run[Costs].grouping,
        f"{_DOCS}#rebalancing",
    )
    counts = "no noisy counts were used"
    if clustering.counts is not None:
        counts = f"noisy counts of records, Laplace noise of scale {clustering.counts.scale:g}"
    yield _of(run, kind)(f"rebalancing: {counts}", spent.counts, reference)
    if clustering.method != "none":
        centers = f"centres: {clustering.origin}, {clustering.method}"
        yield _of(run, kind)(centers, spent.centers, reference, delta=spent.delta)


def _empirical_tree(run: AuditedRun) -> LedgerEntry | None:
    # What was tried is the removal of one context, whatever the claim is about.
    lost = partial(
        entry, reference=f"{_DOCS}#leave-one-out", kind=EMPIRICAL, between=("add_remove", "context")
    )
    largest = heapq.nlargest(LISTED, run[Losses].largest, key=run[Losses].largest.__getitem__)
    if not largest:
        return None
    leaves = [
        lost(f"batch {batch}: the largest loss of a left-out context", run[Losses].largest[batch])
        for batch in largest
    ]
    omitted = len(run[Losses].largest) - len(leaves)
    return worst(
        "leave-one-out: the batch with the largest loss", leaves, f"{_DOCS}#leave-one-out", omitted
    )


class _BatchCurve(BatchEvidence):
    """The exact cost of each of a batch's tokens, in nats; NaN where the record bounds nothing."""

    def __init__(self) -> None:
        self.costs: list[float] = []

    @override
    def look(self, view: StepsView) -> None:
        self.costs += np.maximum(view.costs[:, 1], view.costs[:, 2]).tolist()

    @override
    def result(self) -> list[float]:
        return self.costs


class CurveSums(Evidence):
    """Costs of tokens by position, up to the most tokens of a batch, gathered batch by batch."""

    partial = True

    def __init__(self, positions: int) -> None:
        """Start with nothing; `positions` is the most tokens of a batch."""
        self._total = np.zeros(positions)
        self._maximum = np.zeros(positions)
        self._count = np.zeros(positions, dtype=np.int64)
        self._unbounded = 0

    @override
    @classmethod
    def begin(cls, run: AuditedRun) -> Self:
        return cls(run.manifest.decoding.most_tokens)

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence:
        return _BatchCurve()

    @override
    def merge(self, batch: int, found: Sequence[float]) -> None:
        values = np.asarray(found, dtype=np.float64)
        at = np.flatnonzero(~np.isnan(values))
        known = values[at]
        self._total[at] += known
        self._maximum[at] = np.maximum(self._maximum[at], known)
        self._count[at] += 1
        self._unbounded += len(values) - len(at)

    def result(self, by_tokens: Sequence[Cost]) -> TokenCurve | None:
        """Return the curve; `by_tokens` has the run's cost after 0, 1, 2, ...

        Tokens of every batch.

        It is None if no step has a cost: a position whose steps give no bound has none to show.
        """
        reached = [int(position) for position in np.flatnonzero(self._count)]
        if not reached:
            return None
        return TokenCurve(
            position=tuple(position + 1 for position in reached),
            batches=tuple(int(count) for count in self._count[reached]),
            mean=tuple(float(self._total[p] / self._count[p]) for p in reached),
            maximum=tuple(float(self._maximum[p]) for p in reached),
            theorem1=tuple(by_tokens[p + 1].theorem1 for p in reached),
            exact=tuple(by_tokens[p + 1].exact for p in reached),
            unbounded=self._unbounded,
        )
