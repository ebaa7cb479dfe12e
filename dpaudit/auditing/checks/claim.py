"""Does the record bear out the claim, and is the rule right by which its parts were combined?

The checks of composition recognise wrong sums: they fail where the claim is too small and a
mistaken rule explains it, so that a failed claim.epsilon comes with its cause.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, get_args

from dpaudit import accounting
from dpaudit.accounting import AttackLimit, limit_of, rounded_sum, zcdp_epsilon
from dpaudit.auditing.checks.costs import Attacks, Costs
from dpaudit.auditing.checks.evidence import AuditedRun
from dpaudit.auditing.checks.levels import Level, Levels
from dpaudit.auditing.checks.registry import (
    Outcome,
    RunCheck,
    SettingsCheck,
    inapplicable,
    judge_origin,
)
from dpaudit.results import Amplification, Finding, Quantity, Value

#: Claims are stated with some decimals; a wrong sum that is no further off than this explains a
#: claim.
_STATED = 1e-3


def _cost_of_settings(run: AuditedRun) -> Outcome | None:
    """Compare a claim that is stated before the run with the cost of its settings.

    That is the cost of all possible texts.
    """
    if run.claim.epsilon is None or run.kind.beforehand:
        return epsilon_is_covered(run)
    spent = run[Costs].grouping.epsilon
    if run.kind.covers(run.claim.epsilon, spent):
        return None
    figures = {"claimed": run.claim.epsilon, "recomputed": spent}
    return Outcome(
        "fail",
        "exceeded",
        {name: Quantity(value=each, unit="nats") for name, each in figures.items()},
    )


@RunCheck(id="claim.epsilon", gathers=(Costs,), foresee=_cost_of_settings)
def epsilon_is_covered(run: AuditedRun) -> Outcome:
    """Hold epsilon, recomputed for the claim's kind, relation and unit, against the claimed one."""
    claim = run.claim
    if claim.epsilon is None:
        return inapplicable("claim.no-epsilon", {"kind": claim.kind})
    asked: dict[str, Value] = {
        "claimed": Quantity(value=claim.epsilon, unit="nats"),
        "kind": claim.kind,
        "unit": claim.unit,
        "relation": claim.relation,
    }
    found = recomputed_levels(run)
    if found is None:
        return Outcome(
            "fail", "no-figure", asked | {"aggregator": run.manifest.mechanism.aggregator.name}
        )
    values = asked | {"recomputed": Quantity(value=found.release, unit="nats")}
    if run.kind.covers(claim.epsilon, found.release):
        return Outcome("pass", "covered", values, _why_equal(found))
    return Outcome("fail", "exceeded", values, tuple(_why_exceeded(run, found, "release")))


@RunCheck(id="claim.batch-epsilon", gathers=(Costs,))
def batch_epsilon_is_covered(run: AuditedRun) -> Outcome:
    """Hold epsilon, recomputed at the batch level, against the claimed one."""
    claimed = run.claim.batch_epsilon
    if claimed is None:
        return inapplicable("claim.no-batch-epsilon")
    asked: dict[str, Value] = {"claimed": Quantity(value=claimed, unit="nats")}
    found = recomputed_levels(run)
    if found is None:
        return Outcome("fail", "no-figure", asked)
    values = asked | {"recomputed": Quantity(value=found.batch, unit="nats")}
    if run.kind.covers(claimed, found.batch):
        return Outcome("pass", "covered", values)
    may_be = run.claim.stated <= claimed and found.release <= claimed
    other_level = (Finding(code="claim.release-level-figure"),) * may_be
    return Outcome("fail", "exceeded", values, (*other_level, *_why_exceeded(run, found, "batch")))


@SettingsCheck(id="claim.rho", gathers=(Costs,))
def rho_is_covered(run: AuditedRun) -> Outcome:
    """Compare the claimed rho of zCDP with the one recomputed for the claim's relation and unit.

    It is recomputed at the batch level.
    """
    costs = run[Costs]
    claim = run.claim
    if claim.rho is None:
        return inapplicable("claim.no-rho")
    asked: dict[str, Value] = {
        "claimed": Quantity(value=claim.rho, unit="nats"),
        "unit": claim.unit,
        "relation": claim.relation,
    }
    if costs.rho is None:
        return Outcome(
            "fail", "no-figure", asked | {"aggregator": run.manifest.mechanism.aggregator.name}
        )
    values = asked | {"recomputed": Quantity(value=costs.rho, unit="nats")}
    if run.kind.covers(claim.rho, costs.rho):
        return Outcome("pass", "covered", values)
    supported = Finding(
        code="claim.rho-supported", values={"rho": Quantity(value=costs.rho, unit="nats")}
    )
    return Outcome("fail", "exceeded", values, tuple(_why_larger(run, costs.rho, supported)))


@RunCheck(id="claim.risk", gathers=(Costs,))
def risk_is_within_the_settings(run: AuditedRun) -> Outcome:
    """Compare what attacks can gain, recomputed for readers, with the most that settings name.

    It is recomputed for the claim's unit and relation, and for the settings', if these are others.
    """
    limit = limit_of(run.manifest.privacy)
    if not isinstance(limit, AttackLimit):
        return inapplicable("claim.no-risk")
    values: dict[str, Value] = {"most": limit.most, "field": run.manifest.privacy.limit or ""}
    if limit.at is not None:
        values["at"] = limit.at
    bounds = (run[Costs].attacks, _attacks_on_planned_units(run))
    readers = [each.attack.curve for each in bounds if each is not None]
    if len(readers) < 2:
        return Outcome("fail", "no-figure", values)
    values["found"] = max(map(limit.reached, readers))
    return (
        Outcome("pass", "within", values)
        if all(map(limit.allows, readers))
        else Outcome("fail", "exceeded", values)
    )


def _attacks_on_planned_units(run: AuditedRun) -> Attacks | None:
    """Return bounds on attacks on the settings' own unit, whichever the claim is about."""
    planned, claim = run.manifest.privacy, run.claim
    own = {"unit": planned.unit, "relation": planned.relation}
    own_claim = claim.model_copy(update=own | {"delta": claim.delta or planned.delta or 0.0})
    if own_claim == claim:
        return run[Costs].attacks
    return Costs(AuditedRun(run.reader, own_claim)).attacks


@SettingsCheck(id="claim.delta", gathers=(Costs,))
def delta_is_small(run: AuditedRun) -> Outcome:
    """Compare delta with the claim's kind, the number of records, and the noised centres' delta."""
    claim, centers, needs = run.claim, run[Costs].grouping.delta, run.kind.delta
    values: dict[str, Value] = {"delta": claim.delta}
    if needs == "none" and not centers:
        return (
            Outcome("pass", "zero", values)
            if claim.delta == 0
            else Outcome("fail", "not-zero", values)
        )
    if needs == "optional" and not claim.delta:
        return Outcome("pass", "every-delta", values)
    # No fewer than contexts show; a fixed slot may be empty, so it counts for one only where the
    # claim is per context.
    batching, by_round = (
        run.manifest.batching,
        Counter[int](),
    )  # in each of which every record serves once
    for batch, header in run.headers.items():
        by_round[batch // batching.per_round] += header.contexts
    shown = max(by_round.values(), default=0)
    if batching.rule == "hashed-slots" and batching.slots is not None:
        shown = max(shown, batching.slots * batching.per_round) if claim.unit == "context" else 0
    # A single record gives no limit that would mean anything; two are the fewest that neighbours
    # can differ by one of.
    records = max(2, run.manifest.data.records, shown)
    limit = 1 / records
    values["records"] = records
    # What is left of it is spent on the tokens of an approximate claim; an ex-post one needs none
    # for them.
    least = claim.delta >= centers if needs == "none" else claim.delta > centers
    if centers:
        beside = "claim.delta-at-least" if needs == "none" else "claim.delta-more-than"
        values["beside"] = Finding(code=beside, values={"centers": centers})
    if 0 < claim.delta < limit and least:
        return Outcome("pass", "small", values)
    if not least and centers:
        return Outcome("fail", "spent-on-centers", values)
    return Outcome("fail", "too-large" if claim.delta else "zero-for-approximate", values)


@RunCheck(id="claim.kind")
def kind_fits(run: AuditedRun) -> Outcome:
    """Hold the claim's kind against those that the mechanism supports."""
    mechanism = run.manifest.mechanism
    values: dict[str, Value] = {
        "kind": run.claim.kind,
        "supported": mechanism.kinds,
        "aggregator": mechanism.aggregator.name,
    }
    if not mechanism.draw.ex_post:
        values["draw"] = mechanism.draw.name
    return (
        Outcome("pass", "supported", values)
        if run.claim.kind in mechanism.kinds
        else Outcome("fail", "other", values)
    )


@SettingsCheck(id="claim.tuning")
def settings_are_public(run: AuditedRun) -> Outcome:
    """Judge the declared origin of all settings but the batching rule's."""
    return judge_origin(run.manifest.chosen_from.settings, "settings")


def recomputed_levels(run: AuditedRun) -> Levels | None:
    """Return the epsilons at both levels, in nats, that go with the claim's kind.

    None if the run has no figure of that kind, or the claim states no delta to work epsilons out
    at.
    """
    costs = run[Costs]
    if run.claim.kind not in run.manifest.mechanism.kinds:
        return None
    if not run.kind.beforehand:
        return costs.ex_post_levels
    if run.kind.delta == "optional":
        return costs.approximate_levels
    return costs.approximate_levels or Levels(math.inf, math.inf, Amplification())


def recomputed_figure(run: AuditedRun) -> float | None:
    """Return the figure, in nats, to compare with the claim's promise, or None.

    It is epsilon at the release level, or rho.
    """
    if run.claim.rho is not None:
        return run[Costs].rho
    found = recomputed_levels(run)
    return None if found is None else found.release


def batch_claim(run: AuditedRun) -> float:
    """Return the batch-level epsilon that the claim states, or else the recomputed one, in nats.

    Guesses of a record's own batch are held against it: the release level hides presence, and no
    place. A rho has its epsilon at the kind's `tested_delta`.
    """
    claim, found = run.claim, recomputed_levels(run)
    if claim.rho is not None:  # which is a batch's: what epsilon follows at the claim's delta
        delta = run.kind.tested_delta(claim.delta)
        return zcdp_epsilon(claim.rho, delta) if 0 < delta < 1 else math.inf
    stated = math.inf if claim.batch_epsilon is None else claim.batch_epsilon
    if found is None or not found.amplified:
        return min(claim.stated, stated)
    return found.batch if claim.batch_epsilon is None else stated


def _why_equal(found: Levels) -> tuple[Finding, ...]:
    reason = found.amplification.reason
    return (
        () if reason is None else (Finding(code="claim.levels-equal", values={"reason": reason}),)
    )


def _why_exceeded(run: AuditedRun, found: Levels, level: Level) -> Iterator[Finding]:
    """Yield why a level's epsilon exceeds the claim, and what to do."""
    values: dict[str, Value] = {
        "epsilon": Quantity(value=found.at(level), unit="nats"),
        "level": level,
    }
    yield from _why_larger(run, found.at(level), Finding(code="claim.supported", values=values))
    if level == "release" and math.isfinite(found.release):
        yield from _why_equal(found)


def _why_larger(run: AuditedRun, recomputed: float, supported: Finding) -> Iterator[Finding]:
    """Yield why a recomputed figure exceeds the claim, and the remedy.

    `supported` is what could be claimed instead.
    """
    costs = run[Costs]
    claim, rule = run.claim, run.manifest.batching.rule
    if claim.unit == "user" and run.manifest.privacy.records_per_user is None:
        yield Finding(code="claim.users-unbounded")
    elif run.change is None and rule != "paper-slices":
        yield Finding(code="claim.record-too-narrow")
    elif run.change is None:
        change: dict[str, Value] = {"rule": rule, "unit": claim.unit, "relation": claim.relation}
        yield Finding(code="claim.change-unbounded", values=change)
    elif not run.kind.beforehand and costs.ex_post is None:
        yield Finding(code="claim.change-too-large", values={"contexts": run.change.contexts})
    elif costs.grouping.unbounded:
        yield from costs.grouping.unbounded
        yield Finding(code="claim.clusters-unbounded")
    elif costs.unbounded or len(run.headers) != run.manifest.batches:
        yield Finding(code="claim.steps-unbounded")
    elif math.isfinite(recomputed):
        yield supported
    else:
        yield Finding(code="claim.unbounded")


@RunCheck(id="composition.total", gathers=(Costs,))
def everything_is_counted(run: AuditedRun) -> Outcome:
    """Compare a claim that is too small with figures that leave something out.

    These are the mean over batches, fewer tokens than a batch's, and no clusters.
    """
    for short in too_small(run):
        for rule, figure in _partial_figures(run, short.level):
            if short.explained_by(figure):
                partial: dict[str, Value] = {
                    "rule": rule,
                    "partial": Quantity(value=figure, unit="nats"),
                }
                return Outcome("fail", "partial", short.values | partial)
    return Outcome("pass", "nothing-partial")


@RunCheck(id="composition.all-batches", gathers=(Costs,))
def every_batch_counts(run: AuditedRun) -> Outcome:
    """Compare the batches read with the declared number, and the claim with the lesser batches."""
    costs = run[Costs]
    declared = run.manifest.batches
    values: dict[str, Value] = {"declared": declared, "read": len(run.headers)}
    if len(run.headers) != declared:
        return Outcome("skip", "unread", values)
    if not run.kind.beforehand and costs.ex_post is not None and costs.ex_post.change.contexts == 1:
        by_batch = sorted(
            rounded_sum(costs.batch_cost(batch).exact, costs.grouping.epsilon)
            for batch in run.headers
        )
        for short in too_small(run) if run.manifest.rounds == 1 else ():
            if any(short.explained_by(cost) for cost in by_batch[:-1]):
                left_out = sum(cost > short.claimed for cost in by_batch)
                return Outcome("fail", "left-out", values | short.values | {"left_out": left_out})
    return Outcome("pass", "all", values)


class TooSmall(NamedTuple):
    """A figure of the claim that is smaller than what was recomputed, both in nats.

    Attributes:
        field: of the claim that states it.
        level: that it is of.
        claimed, due: it, and what covers everything, which is finite.
    """

    field: str
    level: Level
    claimed: float
    due: float

    @property
    def values(self) -> dict[str, Value]:
        """Return the figures, as outcomes show them."""
        claimed, due = (Quantity(value=value, unit="nats") for value in (self.claimed, self.due))
        return {"field": self.field, "claimed": claimed, "due": due}

    def explained_by(self, figure: float) -> bool:
        """Return whether a wrong figure would have been rounded up to what is claimed."""
        return figure <= self.claimed <= figure * (1 + _STATED) + _STATED


def too_small(run: AuditedRun) -> Iterator[TooSmall]:
    """Yield the claim's figures that are too small; none where nothing else is known to hold."""
    found = recomputed_levels(run)
    release, batch = (None, None) if found is None else (found.release, found.batch)
    figures: tuple[tuple[str, Level, float | None], ...] = (
        ("epsilon", "release", release),
        ("batch_epsilon", "batch", batch),
        ("rho", "batch", run[Costs].rho),
    )
    for field, level, due in figures:
        claimed = getattr(run.claim, field)
        if due is not None and claimed is not None and claimed < due < math.inf:
            yield TooSmall(field, level, claimed, due)


def _partial_figures(run: AuditedRun, level: Level) -> Iterator[tuple[Finding, float]]:
    """Yield wrong sums of a level, in nats, by the rule that gives them."""
    costs = run[Costs]
    spent, found = costs.grouping, recomputed_levels(run)
    alone = Finding(code="claim.without-clusters")
    clustered = spent.epsilon and run.change is not None
    if not run.kind.beforehand:
        generation = costs.generation_levels.at(level)
        if clustered:
            yield alone, generation
            yield alone, rounded_sum(generation, spent.counts)
        by_batch = [costs.batch_cost(batch) for batch in run.headers]
        if by_batch and (level == "batch" or not (found is not None and found.amplified)):
            exact = math.fsum(cost.exact for cost in by_batch) / len(by_batch) * run.manifest.rounds
            theorem1 = (
                math.fsum(cost.theorem1 for cost in by_batch) / len(by_batch) * run.manifest.rounds
            )
            yield Finding(code="claim.mean-over-batches"), rounded_sum(exact, spent.epsilon)
            yield Finding(code="claim.mean-of-theorem-1"), rounded_sum(theorem1, spent.epsilon)
    elif run.change is not None:
        decoding, longest = run.manifest.decoding, max(run.lengths.values(), default=0)
        most = decoding.most_tokens
        partial = [(alone, most)] if clustered else []
        if decoding.max_tokens < most:
            partial.append(
                (
                    Finding(code="claim.single-text", values={"tokens": decoding.max_tokens}),
                    decoding.max_tokens,
                )
            )
        if 0 < longest < most:
            partial.append(
                (Finding(code="claim.realised-length", values={"tokens": longest}), longest)
            )
        for rule, tokens in partial:
            yield from ((rule, figure) for figure in _of_tokens(run, tokens, level))


def _of_tokens(run: AuditedRun, tokens: int, level: Level) -> Iterator[float]:
    """Yield what so many tokens cost without clusters, in nats, by each way of working it out."""
    costs = run[Costs]
    found, delta = recomputed_levels(run), run.claim.delta
    if run.claim.rho is not None:
        if costs.of_rho is not None:
            yield costs.of_rho.without_clusters().rho(tokens)
    elif costs.release is not None:
        texts_alone = replace(costs.release, batch=costs.release.batch.without_clusters())
        if level == "release" and found is not None and found.amplified:
            yield texts_alone.epsilon(tokens, delta)
        else:
            yield from (
                texts_alone.batch_level(tokens, delta, method).epsilon
                for method in get_args(accounting.Method)
            )
