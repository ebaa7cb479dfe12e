"""Audited runs -> Comparison: each kind of epsilon at one length, and the length that each epsilon affords.

Ex-post figures are read off the runs' token curves and never carried beyond them: what further text would have cost
depends on data nobody looked at. Approximate ones are worked out anew from the public settings, for any length.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeVar, get_args

from pydantic import BaseModel

from dpaudit.accounting import ApproximateAccountant, Method, rebalancing_events, rounded_sum
from dpaudit.mechanisms import ClaimKind, Mechanism, context_change
from dpaudit.results import (
    Affordable,
    Afforded,
    Approximate,
    AuditResult,
    BudgetCurve,
    BudgetPanel,
    ComparedRun,
    Comparison,
    Empirical,
    ExPost,
    Guarantees,
    LeftOut,
    QualityColumn,
    RunEpsilon,
    RunScore,
    SameLength,
    Spread,
    TokenCurve,
)
from dpaudit.results.quality import Quality
from dpaudit.runs.manifest import Batching, Privacy

_KINDS: tuple[ClaimKind, ClaimKind] = ("ex-post", "approximate")
#: The most lengths that a budget curve has evenly; a run's own length may come on top.
_POINTS = 64
_NO_SETTINGS = "the run states no settings that its guarantee could be worked out from"
_UNREAD = "the run cannot be read as a whole"
_REFUTED = "bounds nothing until its checks pass"
_UNTESTED = "rests on its record alone until the checks that a pass needs are made"
#: Checks about something else than whether the record can be relied on.
_NOT_OF_THE_RECORD = ("claim.", "disclosure.")
_NO_GUARANTEES = Guarantees(
    ex_post=None, approximate=None, empirical=Empirical(leave_one_out_max=None, contexts=0, worst=())
)

Part = TypeVar("Part", bound=BaseModel)


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
        problems = {name: problem for name, result in results.items() if (problem := _problem(kind, result))}
        if len(problems) == len(results) and set(problems.values()) == {_no_figure(kind)}:
            continue
        runs = [run for name in results if name not in problems and (run := _measured(kind, name, results[name]))]
        groups = list(_groups(runs))
        same_length += [_at_one_length(group) for group in groups]
        set_beside = {run.figure.run for group in groups for run in group}
        measured = {run.figure.run: run for run in runs}
        left_out += [
            LeftOut(run=name, kind=kind, reason=problems.get(name) or _why_left_out(measured[name]))
            for name in results
            if name not in set_beside
        ]
        if len(runs) > 1:
            affordable.append(_affordable(runs))
        budgets += [_budget_panel(together) for together in _by_neighbours(runs)]
    return Comparison(
        runs=tuple(_summary(name, result) for name, result in results.items()),
        same_length=tuple(same_length),
        affordable=tuple(affordable),
        spreads=tuple(spread for name, result in results.items() if (spread := batch_spread(name, result))),
        left_out=tuple(left_out),
        budgets=tuple(budgets),
        quality=_quality_columns(results),
    )


class _Measured(Protocol):
    """A run that has a figure of some kind."""

    @property
    def figure(self) -> RunEpsilon:
        """The run's own epsilon, at its own length."""

    @property
    def length(self) -> int:
        """Up to how many tokens its epsilon is known; 0 where it is not."""

    def at(self, tokens: int) -> RunEpsilon:
        """Its epsilon at 1 <= tokens <= length."""

    def within(self, budget: RunEpsilon) -> Afforded:
        """How many tokens a batch can have within an epsilon for the same neighbours."""

    def budgets(self, lengths: Sequence[int]) -> Iterator[BudgetCurve]:
        """Its epsilon by length, at ascending lengths and at its own, by each accountant."""


@dataclass(frozen=True)
class _ExPostRun:
    name: str
    found: ExPost
    curve: TokenCurve | None
    longest: int
    batches: int
    by_theorem1: bool

    @property
    def figure(self) -> RunEpsilon:
        return self._figure(self.found.total, self._with_clusters(self.found.theorem1))

    @property
    def length(self) -> int:
        """A curve counts up to its first gap: past it, sums lack a token."""
        if self.curve is None:
            return 0
        return sum(position == place for place, position in enumerate(self.curve.position, start=1))

    def at(self, tokens: int) -> RunEpsilon:
        assert self.curve is not None
        costs = self.curve.exact[tokens - 1], self.curve.theorem1[tokens - 1]
        return self._figure(*map(self._with_clusters, costs))

    def within(self, budget: RunEpsilon) -> Afforded:
        if not self.length:
            return _no_answer("the record gives no cost by token position")
        if self.found.delta > (budget.delta or 0.0):
            return _no_answer("its δ is larger")
        tokens = 0
        # Written so that a NaN is not within anything.
        while tokens < self.length and self.at(tokens + 1).epsilon <= budget.epsilon:
            tokens += 1
        return Afforded(tokens=tokens, all_generated=tokens == self.longest, reason="")

    def budgets(self, lengths: Sequence[int]) -> Iterator[BudgetCurve]:
        """Up to its own length. Theorem 1 is about medians: a mean run has the exact curve alone."""
        assert self.curve is not None
        own = [*(length for length in lengths if length < self.length), self.length]
        yield self._budget("exact", own, self.curve.exact)
        if self.by_theorem1:
            yield self._budget("theorem1", own, self.curve.theorem1)

    def _budget(
        self, accountant: Literal["exact", "theorem1"], lengths: Sequence[int], costs: Sequence[float]
    ) -> BudgetCurve:
        # A record can say anything: not that costs grow with length, nor that they are numbers.
        known = [math.inf if math.isnan(cost) else cost for cost in costs]
        most = [max(known[before:length]) for before, length in pairwise((0, *lengths))]
        return BudgetCurve(
            run=self.name,
            accountant=accountant,
            batches=self.batches,
            delta=self.found.delta or None,
            tokens=tuple(lengths),
            epsilon=tuple(map(self._with_clusters, most)),
        )

    def _with_clusters(self, cost: float) -> float:
        """A cost of generation and that of the clusters, which is spent before the first token."""
        return rounded_sum(cost, self.found.rebalancing)

    def _figure(self, epsilon: float, theorem1: float) -> RunEpsilon:
        """Theorem 1 is about medians: a mean run has no such figure beside its exact one."""
        return RunEpsilon(
            run=self.name,
            kind="ex-post",
            relation=self.found.relation,
            unit=self.found.unit,
            records_per_user=self.found.records_per_user,
            epsilon=epsilon,
            theorem1=theorem1 if self.by_theorem1 else None,
            delta=self.found.delta or None,
        )


@dataclass(frozen=True)
class _ApproximateRun:
    """`accountant` is None where the run states no settings that its guarantee could be worked out from."""

    name: str
    found: Approximate
    accountant: ApproximateAccountant | None

    @property
    def figure(self) -> RunEpsilon:
        return self._figure(self.found.epsilon)

    @property
    def length(self) -> int:
        return self.found.tokens if self.accountant else 0

    def at(self, tokens: int) -> RunEpsilon:
        if tokens == self.found.tokens:
            return self.figure
        assert self.accountant is not None
        shorter = self.accountant.epsilon(tokens, self.found.delta, self._method).epsilon
        # A shorter run costs no more than the whole one.
        return self._figure(min(shorter, self.found.epsilon))

    def within(self, budget: RunEpsilon) -> Afforded:
        if self.accountant is None or budget.delta is None:
            return _no_answer(_NO_SETTINGS)
        try:
            tokens = self.accountant.affordable_tokens(budget.epsilon, budget.delta, self._method)
        except ValueError as error:
            return _no_answer(str(error))
        return Afforded(tokens=tokens, all_generated=False, reason="")

    def budgets(self, lengths: Sequence[int]) -> Iterator[BudgetCurve]:
        """By either accountant, whichever the run's own figure is by: settings alone decide both."""
        together = sorted({*lengths, self.found.tokens})
        for method in get_args(Method):
            known = self._by_length(together, method)
            if known:
                yield BudgetCurve(
                    run=self.name,
                    accountant=method,
                    batches=None,
                    delta=self.found.delta,
                    tokens=tuple(known),
                    epsilon=tuple(known.values()),
                )

    def _by_length(self, lengths: Sequence[int], method: Method) -> dict[int, float]:
        """Epsilon, centres included, at those lengths that the method reaches."""
        assert self.accountant is not None
        epsilons = self.accountant.epsilons(lengths, self.found.delta, method)
        known: dict[int, float] = {}
        for length, epsilon in zip(lengths, epsilons, strict=True):
            if epsilon is not None:
                # The run's own figure comes from a finer grid, and a shorter run costs no more than the whole one.
                own = self.found.epsilon if method == self._method and length <= self.found.tokens else math.inf
                known[length] = min(epsilon, own)
        return known

    @property
    def _method(self) -> Literal["rdp", "optimal"]:
        return "rdp" if self.found.method == "rdp" else "optimal"

    def _figure(self, epsilon: float) -> RunEpsilon:
        return RunEpsilon(
            run=self.name,
            kind="approximate",
            relation=self.found.relation,
            unit=self.found.unit,
            records_per_user=self.found.records_per_user,
            epsilon=epsilon,
            theorem1=None,
            delta=self.found.delta,
        )


def _measured(kind: ClaimKind, name: str, result: AuditResult) -> _Measured | None:
    ex_post, approximate = result.guarantees.ex_post, result.guarantees.approximate
    if kind == "ex-post":
        longest = max((batch.steps for batch in result.batches), default=0)
        mechanism = _part(result, "mechanism", Mechanism)
        theorem1 = mechanism is None or mechanism.aggregator.by_theorem1
        if ex_post is None:
            return None
        return _ExPostRun(name, ex_post, result.tokens, longest, len(result.batches), theorem1)
    return None if approximate is None else _ApproximateRun(name, approximate, _accountant(result, approximate))


def _problem(kind: ClaimKind, result: AuditResult) -> str:
    """Why a run has no figure of this kind that could be compared; empty where it has one.

    What cannot be read as a whole has none: its costs leave out what was not read, and its settings bind nothing.
    """
    found = result.guarantees.ex_post if kind == "ex-post" else result.guarantees.approximate
    if found is None:
        return _no_figure(kind)
    if result.verdict == "error":
        return _UNREAD
    if isinstance(found, Approximate):
        return ""
    return "" if math.isfinite(found.total) else "its ex-post cost is not finite"


def _no_figure(kind: str) -> str:
    return f"no {kind} figure"


def _accountant(result: AuditResult, found: Approximate) -> ApproximateAccountant | None:
    """None where the run states no settings that are valid, or where they bound nothing."""
    mechanism = _part(result, "mechanism", Mechanism)
    batching, privacy = _part(result, "batching", Batching), _part(result, "privacy", Privacy)
    if mechanism is None or batching is None or privacy is None:
        return None
    change = context_change(found.unit, found.relation, batching.rule, records_per_user=privacy.records_per_user)
    if change is None or not (0 < found.delta < 1 and 0 <= found.rebalancing < math.inf):
        return None
    if not (0 <= found.centers < math.inf and 0 <= found.centers_delta < found.delta):
        return None
    # Rebalancing as the event that costs most however the noise was shared out over the counts.
    laplace = rebalancing_events(found.rebalancing, "add_remove")
    accountant = ApproximateAccountant.of(
        mechanism, change, laplace=laplace, centers=found.centers, centers_delta=found.centers_delta
    )
    return accountant if accountant is None or accountant.delta_left(found.delta) else None


def _part(result: AuditResult, name: str, expected: type[Part]) -> Part | None:
    """A part of the run's manifest, or None where the run states none that is valid."""
    manifest = result.run.get("manifest")
    if not isinstance(manifest, Mapping) or name not in manifest:
        return None
    try:
        return expected.model_validate_json(json.dumps(manifest[name]))
    except (TypeError, ValueError):
        return None


def _groups(runs: Sequence[_Measured]) -> Iterator[list[_Measured]]:
    """Two or more runs each whose figures are known by length and hold for the same neighbours."""
    return (group for group in _by_neighbours(runs) if len(group) > 1)


def _by_neighbours(runs: Sequence[_Measured]) -> list[list[_Measured]]:
    """The runs whose figures are known by length, together with those for the same neighbours."""
    groups: dict[tuple[str, str, int | None], list[_Measured]] = {}
    for run in runs:
        if run.length:
            groups.setdefault(run.figure.neighbours, []).append(run)
    return [*groups.values()]


def _budget_panel(group: Sequence[_Measured]) -> BudgetPanel:
    longest = max(run.length for run in group)
    count = min(longest, _POINTS)
    lengths = [-(-place * longest // count) for place in range(1, count + 1)]
    first = group[0].figure
    return BudgetPanel(
        kind=first.kind,
        relation=first.relation,
        unit=first.unit,
        records_per_user=first.records_per_user,
        curves=tuple(curve for run in group for curve in run.budgets(lengths)),
    )


def _at_one_length(group: Sequence[_Measured]) -> SameLength:
    tokens = min(run.length for run in group)
    figures = tuple(run.at(tokens) for run in group)
    return SameLength(kind=figures[0].kind, figures=figures, tokens=tokens)


def _why_left_out(run: _Measured) -> str:
    kind = run.figure.kind
    if not run.length:
        return "the record gives no cost by token position" if kind == "ex-post" else _NO_SETTINGS
    return f"no other run has an {kind} figure for the same neighbours"


def _affordable(runs: Sequence[_Measured]) -> Affordable:
    figures = tuple(run.figure for run in runs)
    cells = tuple(tuple(_afforded(run, budget) for budget in figures) for run in runs)
    return Affordable(kind=figures[0].kind, figures=figures, cells=cells)


def _afforded(run: _Measured, budget: RunEpsilon) -> Afforded:
    if run.figure.neighbours != budget.neighbours:
        return _no_answer("the two epsilons hold for different neighbours")
    if not math.isfinite(budget.epsilon):
        return _no_answer("that epsilon is not finite")
    return run.within(budget)


def _no_answer(reason: str) -> Afforded:
    return Afforded(tokens=None, all_generated=False, reason=reason)


def batch_spread(name: str, result: AuditResult) -> Spread | None:
    """How a run's ex-post costs (nats) spread over its batches; None where its cost as a whole is not finite."""
    found = result.guarantees.ex_post
    # What is absent or not a number has no bound.
    costs = sorted(math.inf if b.exact is None or math.isnan(b.exact) else b.exact for b in result.batches)
    if found is None or not costs or _problem("ex-post", result):
        return None
    least, lower, median, upper, most = (costs[math.ceil(share * (len(costs) - 1) / 4)] for share in range(5))
    return Spread(
        run=name,
        relation=found.relation,
        unit=found.unit,
        records_per_user=found.records_per_user,
        batches=len(costs),
        minimum=least,
        lower_quartile=lower,
        median=median,
        upper_quartile=upper,
        maximum=most,
    )


@dataclass(frozen=True)
class _Measure:
    """One measure of one run."""

    kind: Literal["mauve", "linear-probe", "fine-tuned"]
    n: int
    features: str
    score: RunScore


def _quality_columns(results: Mapping[str, AuditResult]) -> tuple[QualityColumn, ...]:
    """What was evaluated: a column for each measure and for all conditions that it was measured under."""
    groups: dict[tuple[str, str], list[_Measure]] = {}
    for name, result in results.items():
        for measure in () if result.quality is None or result.verdict == "error" else _measures(name, result.quality):
            groups.setdefault((measure.kind, measure.score.conditions), []).append(measure)
    order = ("mauve", "linear-probe", "fine-tuned")
    return tuple(
        QualityColumn(
            measure=group[0].kind,
            n=group[0].n,
            features=group[0].features,
            figures=tuple(measure.score for measure in group),
        )
        for group in sorted(groups.values(), key=lambda group: order.index(group[0].kind))
    )


def _measures(name: str, quality: Quality) -> Iterator[_Measure]:
    if quality.mauve is not None:
        conditions = _digest(quality.mauve_conditions)
        found = RunScore(run=name, score=quality.mauve.score, ceiling=quality.mauve.ceiling, conditions=conditions)
        yield _Measure("mauve", quality.mauve.settings.n, quality.features.name, found)
    for downstream in quality.downstream:
        trained, real = downstream.of("synthetic"), downstream.of("real-same-size")
        if trained is not None and quality.held_out is not None:
            conditions = _digest(quality.accuracy_conditions(downstream))
            ceiling = None if real is None else real.accuracy
            found = RunScore(run=name, score=trained.accuracy, ceiling=ceiling, conditions=conditions)
            yield _Measure(downstream.method, quality.held_out.test.texts, downstream.encoder.name, found)


def _digest(conditions: tuple[Any, ...]) -> str:
    return hashlib.sha256(repr(conditions).encode("utf-8", "backslashreplace")).hexdigest()


def _summary(name: str, result: AuditResult) -> ComparedRun:
    mechanism = _part(result, "mechanism", Mechanism)
    return ComparedRun(
        name=name,
        verdict=result.verdict,
        guarantee=result.guarantee,
        caveats=result.caveats,
        caution=_caution(result),
        aggregator=mechanism.aggregator.name if mechanism else None,
        clip=mechanism.clip if mechanism else None,
        temperature=mechanism.temperature if mechanism else None,
        divisor=mechanism.model_dump().get("divisor") if mechanism else None,
        batches=len(result.batches),
        contexts=sum(batch.contexts for batch in result.batches),
        tokens=sum(batch.steps for batch in result.batches),
        longest_batch=max((batch.steps for batch in result.batches), default=0),
        claim=result.claim,
        guarantees=_NO_GUARANTEES if result.verdict == "error" else result.guarantees,
    )


def _caution(result: AuditResult) -> str:
    """Why a run's epsilons cannot be relied on, as what is said of the run; empty where they can, or it has none."""
    found = result.guarantees
    if result.verdict == "error" or (found.ex_post is None and found.approximate is None):
        return ""
    checks = [check for check in result.checks if not check.id.startswith(_NOT_OF_THE_RECORD)]
    if any(check.status in ("fail", "error") for check in checks):
        return _REFUTED
    unmade = [check for check in result.checks if check.status == "skip" and check.id in result.not_checked]
    return _UNTESTED if any(check.evidence <= result.evidence for check in unmade) else ""
