"""Audited runs -> Comparison: each kind of epsilon at one length, and the length that each epsilon affords.

Ex-post figures are read off the runs' token curves and never carried beyond them: what further text would have cost
depends on data nobody looked at. Approximate ones are worked out anew from the public settings, for any length.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

from dpaudit.accounting import ApproximateAccountant, Method, delta_share, rebalancing_events, rounded_sum
from dpaudit.auditing.guarantees import NOTHING
from dpaudit.catalogue import message
from dpaudit.claims import CLAIM_KINDS, ClaimKind, ExPostClaim
from dpaudit.mechanisms import Mechanism, context_change
from dpaudit.results import (
    Affordable,
    Afforded,
    Approximate,
    AuditResult,
    BatchResult,
    BudgetCurve,
    BudgetPanel,
    ComparedRun,
    Comparison,
    ExPost,
    Finding,
    LeftOut,
    Message,
    QualityColumn,
    RunEpsilon,
    RunRho,
    RunScore,
    SameLength,
    SampleText,
    Settings,
    Spread,
    TokenCurve,
)
from dpaudit.results.quality import Measure, PerToken, Scores, Source

_KINDS = tuple(kind.id for kind in CLAIM_KINDS.values() if kind.accountants)
#: The most lengths that a budget curve has evenly; a run's own length may come on top.
_POINTS = 64
#: What classifiers are trained on whose accuracies are compared.
_TRAINED: tuple[Source, ...] = ("synthetic", "public", "real-same-size")
#: The texts of a run that stand beside those of others.
_TEXTS = 3


def compare_runs(results: Mapping[str, AuditResult]) -> Comparison:
    """Set audited runs side by side.

    Args:
        results: two or more audits by the name to show.

    Returns:
        A comparison in which figures of different kinds, or for different neighbours, never meet.
    """
    same_length: list[SameLength] = []
    affordable: list[Affordable] = []
    left_out: list[LeftOut] = []
    budgets: list[BudgetPanel] = []
    for kind in _KINDS:
        measured = {name: _measured(kind, name, result) for name, result in results.items()}
        if all(run is None for run in measured.values()):
            continue
        runs = [run for run in measured.values() if run is not None and not isinstance(run, Message)]
        groups = _by_neighbours(runs)
        budgets += map(_budget_panel, groups)
        for group in groups:
            if len(group) > 1:
                tokens = min(run.length for run in group)
                figures = tuple(run.at(tokens) for run in group)
                same_length.append(SameLength(kind=kind, figures=figures, tokens=tokens))
        beside = {run.figure.run for group in groups if len(group) > 1 for run in group}
        left_out += [
            LeftOut(run=name, kind=kind, reason=_why_left_out(kind, run))
            for name, run in measured.items()
            if name not in beside
        ]
        if len(runs) > 1:
            figures = tuple(run.figure for run in runs)
            cells = tuple(tuple(_afforded(run, budget) for budget in figures) for run in runs)
            affordable.append(Affordable(kind=kind, figures=figures, cells=cells))
    return Comparison(
        runs=tuple(_summary(name, result) for name, result in results.items()),
        same_length=tuple(same_length),
        affordable=tuple(affordable),
        spreads=tuple(spread for name, result in results.items() if (spread := batch_spread(name, result))),
        left_out=tuple(left_out),
        budgets=tuple(budgets),
        quality=_quality_columns(results),
        rhos=tuple(_rhos(results)),
    )


def _rhos(results: Mapping[str, AuditResult]) -> Iterator[RunRho]:
    """Yield the rhos of the runs that claim one, and can be read as a whole."""
    for name, result in results.items():
        found = result.guarantees.zcdp
        if found is not None and result.verdict != "error":
            alike = found.model_dump(include={"relation", "unit", "records_per_user", "rho"})
            yield RunRho(run=name, **alike)


@dataclass(frozen=True)
class _ExPostRun:
    figure: RunEpsilon
    found: ExPost
    curve: TokenCurve | None
    longest: int
    batches: int

    @property
    def length(self) -> int:
        """A curve counts up to its first gap: past it, sums lack a token."""
        if self.curve is None:
            return 0
        return sum(position == place for place, position in enumerate(self.curve.position, start=1))

    def at(self, tokens: int) -> RunEpsilon:
        assert self.curve is not None
        epsilon = self._with_clusters(self.curve.exact[tokens - 1])
        theorem1 = self._with_clusters(self.curve.theorem1[tokens - 1])
        known = {"epsilon": epsilon, "theorem1": None if self.figure.theorem1 is None else theorem1}
        return self.figure.model_copy(update=known)

    def within(self, budget: RunEpsilon) -> Afforded:
        if not self.length:
            return _no_answer("no-curve")
        if self.found.delta > (budget.delta or 0.0):
            return _no_answer("larger-delta")
        tokens = 0
        # Written so that a NaN is not within anything.
        while tokens < self.length and self.at(tokens + 1).epsilon <= budget.epsilon:
            tokens += 1
        return Afforded(tokens=tokens, all_generated=tokens == self.longest)

    def budgets(self, lengths: Sequence[int]) -> Iterator[BudgetCurve]:
        """Yield epsilons by length, up to its own. Theorem 1 is about medians: a mean run has the exact curve alone."""
        assert self.curve is not None
        own = [*(length for length in lengths if length < self.length), self.length]
        yield self._budget("exact", own, self.curve.exact)
        if self.figure.theorem1 is not None:
            yield self._budget("theorem1", own, self.curve.theorem1)

    def _budget(
        self, accountant: Literal["exact", "theorem1"], lengths: Sequence[int], costs: Sequence[float]
    ) -> BudgetCurve:
        # A record can say anything: not that costs grow with length, nor that they are numbers.
        known = [math.inf if math.isnan(cost) else cost for cost in costs]
        most = {length: max(known[before:length]) for before, length in pairwise((0, *lengths))}
        epsilons = {length: self._with_clusters(cost) for length, cost in most.items()}
        return _curve(self, accountant, epsilons, self.batches)

    def _with_clusters(self, cost: float) -> float:
        """Return a cost of generation with that of the clusters, which is spent before the first token."""
        return rounded_sum(cost, self.found.rebalancing)


@dataclass(frozen=True)
class _ApproximateRun:
    """Of the batch level, as what a number of tokens buys is.

    Attributes:
        accountant: of all rounds; None where the run states no settings that its guarantee could be worked out from.
        shares: over how many stopping points delta is split.
    """

    figure: RunEpsilon
    found: Approximate
    accountant: ApproximateAccountant | None
    shares: int = 1

    def share(self, delta: float) -> float:
        """Return what one stopping point has of a delta, rounded down."""
        return delta_share(delta, self.shares)

    @property
    def length(self) -> int:
        return self.found.tokens if self.accountant else 0

    def at(self, tokens: int) -> RunEpsilon:
        if tokens == self.found.tokens:
            return self.figure
        assert self.accountant is not None
        shorter = self.accountant.epsilon(tokens, self.share(self.found.delta), self._method).epsilon
        # A shorter run costs no more than the whole one.
        return self.figure.model_copy(update={"epsilon": min(shorter, self.found.batch_epsilon)})

    def within(self, budget: RunEpsilon) -> Afforded:
        if self.accountant is None or budget.delta is None:
            return _no_answer("no-settings")
        delta = self.share(budget.delta)
        if self.accountant.budgets_epsilon(delta) <= budget.epsilon:
            return _no_answer("any-number")
        if self.accountant.epsilon(0, delta, "rdp").epsilon > budget.epsilon:
            return _no_answer("clusters-alone")
        try:
            tokens = self.accountant.affordable_tokens(budget.epsilon, delta, self._method)
        except ValueError:
            return _no_answer("not-countable")
        return Afforded(tokens=tokens, all_generated=False)

    def budgets(self, lengths: Sequence[int]) -> Iterator[BudgetCurve]:
        """Yield epsilons by each accountant, whichever the run's own figure is by, and by budgets."""
        assert self.accountant is not None
        together = sorted({*lengths, self.found.tokens})
        delta = self.share(self.found.delta)
        by_budgets = self.accountant.budgets_epsilon(delta)
        if math.isfinite(by_budgets):
            yield _curve(self, "budgets", dict.fromkeys(together, by_budgets))
        for method in get_args(Method):
            known: dict[int, float] = {}
            epsilons = replace(self.accountant, most_rho=math.inf).epsilons(together, delta, method)
            for length, epsilon in zip(together, epsilons, strict=True):
                if epsilon is not None:
                    # The run's own figure comes from a finer grid, and a shorter run costs no more than the whole one.
                    own = (
                        self.found.batch_epsilon
                        if method == self.found.method and length <= self.found.tokens
                        else math.inf
                    )
                    known[length] = min(epsilon, own)
            if known:
                yield _curve(self, method, known)

    @property
    def _method(self) -> Literal["rdp", "optimal"]:
        return "rdp" if self.found.method == "rdp" else "optimal"


#: A run that has a figure of some kind: `figure` is its own epsilon, at its own length. `length` is up to how many
#: tokens its epsilon is known, 0 where it is not, and `at` its epsilon at so many. `within` says how many tokens a
#: batch can have within an epsilon for the same neighbours; `budgets` are its epsilons by each accountant, at ascending
#: lengths and at its own.
_Measured: TypeAlias = _ExPostRun | _ApproximateRun


def _curve(
    run: _Measured,
    accountant: Literal["exact", "theorem1", "rdp", "optimal", "budgets"],
    epsilons: Mapping[int, float],
    batches: int | None = None,
) -> BudgetCurve:
    return BudgetCurve(
        run=run.figure.run,
        accountant=accountant,
        batches=batches,
        delta=run.figure.delta,
        tokens=tuple(epsilons),
        epsilon=tuple(epsilons.values()),
    )


def _measured(kind: ClaimKind, name: str, result: AuditResult) -> _Measured | Message | None:
    """Return a run's figure of this kind, why it cannot be compared, or None where there is none.

    What cannot be read as a whole has none: its costs leave out what was not read, and its settings bind nothing.
    """
    found = result.guarantees.epsilons(kind)
    if found is None:
        return None
    if result.verdict == "error":
        return _why("unreadable")
    if isinstance(found, ExPost) and not math.isfinite(found.batch_epsilon):
        return _why("not-finite")
    figure = RunEpsilon(
        run=name,
        kind=kind,
        relation=found.relation,
        unit=found.unit,
        records_per_user=found.records_per_user,
        epsilon=found.batch_epsilon,
        theorem1=None,
        delta=found.delta or None,
    )
    if isinstance(found, Approximate):
        return _ApproximateRun(figure, found, _accountant(result, found), _delta_shares(result.run.settings))
    mechanism = _mechanism(result)
    if mechanism is None or mechanism.aggregator.by_theorem1:
        # It is about medians: a mean run has no such figure beside its exact one.
        figure = figure.model_copy(update={"theorem1": rounded_sum(found.theorem1, found.rebalancing)})
    longest = max((batch.steps for batch in result.batches), default=0)
    return _ExPostRun(figure, found, result.tokens, longest, len(result.batches))


def _delta_shares(settings: Settings | None) -> int:
    """Return over how many stopping points delta is split."""
    rounds = None if settings is None or not settings.privacy.split_delta else settings.batching.rounds
    return rounds or 1


def _accountant(result: AuditResult, found: Approximate) -> ApproximateAccountant | None:
    """Return an accountant of a run; None where it states no valid settings, or where they bound nothing."""
    mechanism, settings = _mechanism(result), result.run.settings
    if mechanism is None or settings is None:
        return None
    most, shared = settings.privacy.records_per_user, bool(settings.privacy.shared_budgets)
    rule = settings.batching.rule
    change = context_change(found.unit, found.relation, rule, records_per_user=most, shared=shared)
    if change is None or not (0 < found.delta < 1 and 0 <= found.rebalancing < math.inf):
        return None
    if not (0 <= found.centers < math.inf and 0 <= found.centers_delta < found.delta):
        return None
    # Rebalancing as the event that costs most however the noise was shared out over the counts.
    laplace = rebalancing_events(found.rebalancing, "add_remove")
    accountant = ApproximateAccountant.of(
        mechanism,
        change,
        laplace=laplace,
        centers=found.centers,
        centers_delta=found.centers_delta,
        rounds=found.amplification.rounds,
    )
    return accountant if accountant is None or accountant.delta_left(found.delta) else None


def _mechanism(result: AuditResult) -> Mechanism | None:
    """Return the run's mechanism, or None where the run states none that is known here."""
    settings = result.run.settings
    if settings is None or settings.mechanism is None:
        return None
    try:
        return Mechanism.model_validate_json(json.dumps(settings.mechanism))
    except ValueError:
        return None


def _by_neighbours(runs: Sequence[_Measured]) -> list[list[_Measured]]:
    """Return the runs whose figures are known by length, together with those for the same neighbours."""
    groups: dict[tuple[str, str, int | None], list[_Measured]] = {}
    for run in runs:
        if run.length:
            groups.setdefault(run.figure.neighbours, []).append(run)
    return [*groups.values()]


def _budget_panel(group: Sequence[_Measured]) -> BudgetPanel:
    longest = max(run.length for run in group)
    count = min(longest, _POINTS)
    lengths = [-(-place * longest // count) for place in range(1, count + 1)]
    alike = group[0].figure.model_dump(include={"kind", "relation", "unit", "records_per_user"})
    return BudgetPanel(
        **alike,
        curves=tuple(curve for run in group for curve in run.budgets(lengths)),
    )


def _why_left_out(kind: ClaimKind, run: _Measured | Message | None) -> Message:
    if run is None:
        return _why("no-figure", kind=kind)
    if isinstance(run, Message):
        return run
    if not run.length:
        return _why("no-settings" if CLAIM_KINDS[kind].beforehand else "no-curve")
    return _why("alone", kind=kind)


def _afforded(run: _Measured, budget: RunEpsilon) -> Afforded:
    if run.figure.neighbours != budget.neighbours:
        return _no_answer("other-neighbours")
    if not math.isfinite(budget.epsilon):
        return _no_answer("budget-not-finite")
    return run.within(budget)


def _no_answer(reason: str) -> Afforded:
    return Afforded(tokens=None, all_generated=False, reason=_why(reason))


def _why(reason: str, **values: str) -> Message:
    return message(Finding(code=f"compare.{reason}", values=dict(values)))


def _bound(batch: BatchResult) -> float:
    """Return a batch's exact cost, in nats; without one, or where it is no number, nothing bounds it."""
    return math.inf if batch.exact is None or math.isnan(batch.exact) else batch.exact


def batch_spread(name: str, result: AuditResult) -> Spread | None:
    """Return how a run's ex-post costs (nats) spread over its batches; None where its whole cost is not finite."""
    run = _measured(ExPostClaim.id, name, result)
    costs = sorted(_bound(batch) for batch in result.batches)
    if not isinstance(run, _ExPostRun) or not costs:
        return None
    least, lower, median, upper, most = (costs[math.ceil(share * (len(costs) - 1) / 4)] for share in range(5))
    return Spread(
        **run.figure.model_dump(include={"run", "relation", "unit", "records_per_user"}),
        batches=len(costs),
        minimum=least,
        lower_quartile=lower,
        median=median,
        upper_quartile=upper,
        maximum=most,
    )


def _quality_columns(results: Mapping[str, AuditResult]) -> tuple[QualityColumn, ...]:
    """Return what was evaluated: a column for each measure and all conditions that it was measured under."""
    groups: dict[tuple[str, str], list[QualityColumn]] = {}
    for name, result in results.items():
        for one in _measures(name, result):
            groups.setdefault((one.measure, one.figures[0].conditions), []).append(one)
    order = ("mauve", "linear-probe", "fine-tuned", "likelihood")
    return tuple(
        QualityColumn(**vars(group[0]) | {"figures": tuple(one.figures[0] for one in group)})
        for group in sorted(groups.values(), key=lambda group: order.index(group[0].measure))
    )


def _measures(name: str, result: AuditResult) -> Iterator[QualityColumn]:
    """Yield one run's measures, a column each; none of a run that cannot be read as a whole."""
    quality = result.quality
    if quality is None or result.verdict == "error":
        return
    added = {each.measure: each for each in quality.added}

    def column(
        measure: Measure,
        n: int,
        features: str,
        conditions: tuple[Any, ...],
        score: Scores | PerToken,
        public: Scores | PerToken | None,
        ceiling: Scores | None,
    ) -> QualityColumn:
        digest = hashlib.sha256(repr(conditions).encode("utf-8", "backslashreplace")).hexdigest()
        shown: dict[str, Any] = {"score": score, "public": public, "ceiling": ceiling, "added": added.get(measure)}
        found = RunScore(run=name, conditions=digest, **shown)
        return QualityColumn(measure=measure, n=n, features=features, figures=(found,))

    if (mauve := quality.mauve) is not None:
        n, features, conditions = mauve.settings.n, quality.features.name, quality.mauve_conditions
        yield column("mauve", n, features, conditions, mauve.score, mauve.public, mauve.ceiling)
    for downstream in quality.downstream:
        trained, public, real = (downstream.of(source) for source in _TRAINED)
        if trained is not None and quality.held_out is not None:
            texts, encoder = quality.held_out.test.texts, downstream.encoder.name
            conditions = quality.accuracy_conditions(downstream)
            others = [None if each is None else each.accuracy for each in (public, real)]
            yield column(downstream.method, texts, encoder, conditions, trained.accuracy, *others)
    if (given := quality.likelihood) is not None:
        settings, mechanism = result.run.settings, _mechanism(result)
        rules = settings and settings.decoding and settings.decoding.rules
        asked = settings and (settings.prompt, rules)
        conditions = (*quality.likelihood_conditions, asked, mechanism and mechanism.support)
        yield column("likelihood", given.texts.texts, given.model.name, conditions, given.score, given.public, None)


def _summary(name: str, result: AuditResult) -> ComparedRun:
    mechanism = _mechanism(result)
    return ComparedRun(
        name=name,
        verdict=result.verdict,
        guarantee=result.guarantee,
        caveats=result.caveats,
        caution=_caution(result),
        contribution=None if mechanism is None else mechanism.contribution.name,
        aggregator=None if mechanism is None else mechanism.aggregator.title,
        clip=None if mechanism is None else mechanism.clip,
        temperature=None if mechanism is None else mechanism.temperature,
        divisor=None if mechanism is None else dict(mechanism.aggregator).get("divisor"),
        batches=len(result.batches),
        contexts=sum(batch.contexts for batch in result.batches),
        texts=sum(batch.texts for batch in result.batches),
        tokens=sum(batch.steps for batch in result.batches),
        longest_batch=max((batch.steps for batch in result.batches), default=0),
        released=result.released,
        samples=tuple(_texts(result)),
        claim=result.claim,
        guarantees=NOTHING if result.verdict == "error" else result.guarantees,
        budgets=None if result.verdict == "error" else result.budgets,
    )


def _texts(result: AuditResult) -> Iterator[SampleText]:
    """Yield the first text of each label, then others, up to _TEXTS: those of the same labels stand side by side."""
    labels = [sample.label for sample in result.samples]
    first = [labels.index(sample.label) == place for place, sample in enumerate(result.samples)]
    ranked = sorted(zip(first, result.samples, strict=True), key=lambda found: (not found[0], found[1].label or ""))
    for _, sample in ranked[:_TEXTS]:
        yield sample.model_copy(update={"costs": None})


def _caution(result: AuditResult) -> Message | None:
    """Return why a run's epsilons cannot be relied on; None where they can, or it has none."""
    found = result.guarantees
    if result.verdict == "error" or (found.ex_post is None and found.approximate is None):
        return None
    # What such checks are about is not whether the record can be relied on.
    checks = [check for check in result.checks if not check.id.startswith(("claim.", "disclosure."))]
    if any(check.status in ("fail", "error") for check in checks):
        return _why("refuted")
    if any(check.required(result.evidence) for check in result.checks):
        return _why("untested")
    return None
