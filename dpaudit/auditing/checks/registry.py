"""Checks, and the one place where they are registered.

A step check looks at one step and names a problem, or returns None. A run check looks at the run
and the evidence that it says is gathered (`dpaudit.auditing.checks.evidence`), and returns an
outcome. Both are small functions in their family's file, declared by a decorator. Those of plug-ins
are declared likewise, and named by entry points. They are kept apart: an error in one, or in its
evidence, is reported for that check alone, which then counts as not made, and a run does not pass
without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from typing_extensions import override

from dpaudit import plugins
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence, input_problem
from dpaudit.auditing.checks.steps import BatchView, RunView, StepsView, StepView
from dpaudit.plugins import FAILURES, PlugIn
from dpaudit.results import CheckResult, Status, Value
from dpaudit.results import Finding as Finding
from dpaudit.results import Place as Place
from dpaudit.results import finding_of as finding_of
from dpaudit.results.catalogue import (
    Entry,
    catalogue,
    entry,
    render,
    require_words,
    sentence,
    wording,
)
from dpaudit.results.evidence import EVIDENCE_LEVELS, POLICY
from dpaudit.runs import InputError, Manifest
from dpaudit.runs.manifest import Origin


@dataclass(frozen=True)
class Outcome:
    """A check's finding: its values, and an outcome of its catalogue entry or one of all checks.

    Attributes:
        code: of the outcome.
        values: what the outcome's templates show.
        notes: where, and what to do, where that depends on more than the code. A failure without a
            detail gets the check's remedy.
        applicable: False for a skip that hides nothing: the run has no part that the check is
            about.
        evidence: what this very outcome rests on, where that is not the check's own level.
    """

    status: Status
    code: str
    values: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[Finding, ...] = ()
    applicable: bool = True
    evidence: int | None = None


def inapplicable(why: str, values: Mapping[str, Value] | None = None) -> Outcome:
    """Return the skip of a check that is not about this run.

    `why` is a sentence of the catalogue.
    """
    reason = Finding(code=why, values=dict(values or {}))
    return Outcome("skip", "not-applicable", {"why": reason}, applicable=False)


def unusable(error: InputError) -> Outcome:
    """Return the skip of a check that something which cannot be used keeps from being made."""
    return Outcome("skip", "unusable", {"problem": input_problem(error)})


def not_replayed(manifest: Manifest, values: Mapping[str, Value] | None = None) -> Outcome:
    """Return the skip of a check that only a replay makes."""
    return Outcome("skip", "not-replayed", values or {}, (replay_remedy(manifest),))


def replay_remedy(manifest: Manifest) -> Finding:
    """Return what makes the checks that need a run's model and its data."""
    return Finding(code="replay.not-loaded" if manifest.foreign else "replay.command")


#: What every sentence may show: see `dpaudit.results.catalogue.rendering.render`.
Context: TypeAlias = Mapping[str, str]
StepFunction: TypeAlias = Callable[[Any], Finding | None]
RunFunction: TypeAlias = Callable[[AuditedRun], Outcome]
Foresee: TypeAlias = Callable[[AuditedRun], Outcome | None]
Function = TypeVar("Function", StepFunction, RunFunction)


@dataclass(kw_only=True)
class Check(ABC, Generic[Function]):
    """A check: its id, which the catalogue has its words by, and the function that makes it.

    It decorates that function.

    Attributes:
        plug_in: what it came by; None of dpaudit's own.
        gathers: the evidence that it looks at.
        foresee: makes the part of the check that settings decide, before the run; None if they
            decide nothing.
    """

    id: str
    function: Function = field(init=False)
    plug_in: PlugIn | None = field(init=False, default=None)
    gathers: tuple[type[Evidence], ...] = ()
    foresee: Foresee | None = None

    def __call__(self, function: Function) -> Function:
        """Declare the function that makes this check."""
        if self.id in _DECLARED:
            raise ValueError(f"the check {self.id} is declared twice")
        self.function, _DECLARED[self.id] = function, self
        return function

    @property
    def entry(self) -> Entry:
        """The check's entry in the catalogue."""
        return entry(self.id)

    @abstractmethod
    def outcome(self, run: AuditedRun) -> Outcome:
        """Make the check."""

    def before(self, run: AuditedRun) -> Outcome | None:
        """Return the outcome that is certain of a planned, unwritten run, or None."""
        if self.foresee is None or run.manifest.mechanism.inapplicable_reason(self.id):
            return None
        return self.foresee(run)

    def result(self, run: AuditedRun, context: Context) -> CheckResult:
        """Return the check's entry in the audit's result."""
        if self.plug_in is None:
            return self.in_words(self.outcome(run), context)
        try:
            lacking = run.absent.get(self.id)
            outcome = self.outcome(run) if lacking is None else unusable(lacking)
            # Whatever level was asked for, a run does not pass without it.
            return self.in_words(
                replace(outcome, evidence=0) if outcome.code == "unusable" else outcome, context
            )
        except FAILURES as error:
            return self.in_words(
                replace(unusable(failure_in(self.plug_in, error)), evidence=0), context
            )

    def in_words(self, outcome: Outcome, context: Context) -> CheckResult:
        """Return the entry for an outcome, rendered with the commands that name the run."""
        fixed = self.entry
        remedy = render(fixed.remedy, {}, context)
        words = wording(self.id, outcome.code)
        due = fixed.expected if outcome.applicable else fixed.title
        values = dict(outcome.values)
        said = [
            render(words.detail, values, context),
            *(sentence(note, context) for note in outcome.notes),
        ]
        return CheckResult(
            id=self.id,
            title=fixed.fails if outcome.status in ("fail", "error") else fixed.title,
            status=outcome.status,
            code=outcome.code,
            values=values,
            notes=outcome.notes,
            evidence=fixed.evidence if outcome.evidence is None else outcome.evidence,
            measured=render(words.found, values, context),
            expected=render(due if words.expected is None else words.expected, values, context),
            detail=" ".join(filter(None, said)) or (remedy if outcome.status == "fail" else ""),
            applicable=outcome.applicable,
            why=fixed.why,
            remedy=remedy,
            reference=fixed.reference,
        )


def _always(_: Any) -> bool:
    return True


@dataclass(kw_only=True)
class StepCheck(Check[StepFunction]):
    """A check of each step of the runs for which `applies` holds and whose aggregator it is about.

    Attributes:
        otherwise: why it is not about a run for which `applies` does not hold, a sentence of the
            catalogue.
        shown: whether a step's record holds what the check looks at. It passes only where all
            steps' records do.
        unshown: the outcome where some do not, from how many of the run's steps do: a skip, or what
            a replay shows.
        together: whether the function, and `shown`, take several steps at once, where nothing is
            wrong with any range (`StepsView`). They object where they would to any of these, which
            are then looked at one by one. Otherwise they take a `StepView`.
    """

    applies: Callable[[Manifest], bool] = _always
    otherwise: str = ""
    shown: Callable[[Any], bool] = _always
    unshown: Callable[[AuditedRun, int], Outcome] | None = None
    together: bool = False

    def __post_init__(self) -> None:
        if (self.applies is _always) != (not self.otherwise) or (self.shown is _always) != (
            self.unshown is None
        ):
            raise ValueError(
                f"{self.id}: `applies` goes with `otherwise`, and `shown` with `unshown`"
            )

    def clears(self, view: StepsView) -> bool:
        """Return whether no step is objected to, by a look at all of them together."""
        if not self.together or self.plug_in is not None:
            return False
        return view.holds(self.id, self._clears)

    def _clears(self, view: StepsView) -> bool:
        return self.shown(view) and self.function(view) is None

    def inapplicable_reason(self, manifest: Manifest) -> str:
        """Return why the check does not apply to a run, as a code of the catalogue, or ""."""
        return manifest.mechanism.inapplicable_reason(self.id) or (
            "" if self.applies(manifest) else self.otherwise
        )

    @override
    def outcome(self, run: AuditedRun) -> Outcome:
        if reason := self.inapplicable_reason(run.manifest):
            return inapplicable(reason)
        objections, steps = run[Objections], run.steps
        if count := objections.problems[self.id]:
            place, problem = objections.first[self.id]
            return Outcome(
                "fail",
                "steps-object",
                {"problems": count, "steps": steps, "place": place, "problem": problem},
            )
        if lacking := objections.unmade.get(self.id):
            return unusable(lacking)
        if not steps:
            return Outcome("skip", "no-step")
        if self.unshown is not None and (hidden := objections.unshown[self.id]):
            return self.unshown(run, steps - hidden)
        return Outcome("pass", "steps-hold", {"steps": steps})


@dataclass(kw_only=True)
class RunCheck(Check[RunFunction]):
    """A check of the run as a whole, and of the evidence that it gathers."""

    @override
    def outcome(self, run: AuditedRun) -> Outcome:
        if reason := run.manifest.mechanism.inapplicable_reason(self.id):
            return inapplicable(reason)
        for kind in self.gathers:
            if lacking := run.unmade.get(kind):
                return unusable(lacking)
        return self.function(run)


@dataclass(kw_only=True)
class SettingsCheck(RunCheck):
    """A check of the run's settings alone, which is made before the run as well."""

    @override
    def before(self, run: AuditedRun) -> Outcome | None:
        return self.outcome(run)


def _step_checks(run: RunView) -> tuple[list[StepCheck], dict[str, InputError]]:
    """Return the step checks that apply to a run, and why nobody can tell of others, by id."""
    applying, unmade = list[StepCheck](), dict[str, InputError]()
    for check in registered().values():
        if isinstance(check, StepCheck):
            try:
                if not check.inapplicable_reason(run.manifest):
                    applying.append(check)
            except FAILURES as error:
                unmade[check.id] = failure_in(check.plug_in, error)
    return applying, unmade


class Objections(BatchEvidence, Evidence):
    """The objections of step checks at the steps of one batch, or of a run.

    Attributes:
        problems: how many steps each check objected to, by its id.
        first: the first of these objections, and where.
        unshown: how many steps' records do not hold what a check looks at, by its id.
        unmade: why a check could not be made, by its id.
    """

    partial = True

    def __init__(self) -> None:
        self.problems, self.unshown = Counter[str](), Counter[str]()
        self.first: dict[str, tuple[Place, Finding]] = {}
        self.unmade: dict[str, InputError] = {}
        self._checks: Sequence[StepCheck] = ()

    @override
    @classmethod
    def open(cls, batch: BatchView) -> Objections:
        found = cls()
        found._checks, unmade = batch.run.once(_step_checks)
        found.unmade |= unmade
        return found

    @override
    def look(self, view: StepsView) -> None:
        left = [check for check in self._checks if len(view) == 1 or not check.clears(view)]
        for one in view.each if left else ():
            for check, problem in self._objecting(left, one):
                self.problems[check] += 1
                self.first.setdefault(
                    check, (Place(batch=one.header.id, step=one.position), problem)
                )

    def at(self, view: StepView) -> Iterator[tuple[str, Finding]]:
        """Yield objections to a step, by check id.

        A check that fails is noted, and the others go on.
        """
        return self._objecting(self._checks, view)

    def _objecting(
        self, checks: Iterable[StepCheck], view: StepView
    ) -> Iterator[tuple[str, Finding]]:
        for check in checks:
            try:
                if not check.shown(view):
                    self.unshown[check.id] += 1
                elif problem := check.function(view):
                    yield check.id, problem
            except FAILURES as error:
                self.unmade.setdefault(check.id, failure_in(check.plug_in, error))

    @override
    def result(self) -> Objections:
        self._checks = ()
        return self

    @override
    def merge(self, batch: int, found: Objections) -> None:
        self.problems.update(found.problems)
        self.unshown.update(found.unshown)
        self.first = found.first | self.first
        self.unmade = found.unmade | self.unmade


class Gathered(NamedTuple):
    """Evidence that is gathered, and the plug-in that it came by; None for dpaudit's own."""

    kind: type[Evidence]
    plug_in: PlugIn | None


def gathered() -> tuple[Gathered, ...]:
    """Return the evidence of all checks, each kind once: dpaudit's own is never held apart."""
    found: dict[type[Evidence], PlugIn | None] = {Objections: None}
    for check in registered().values():
        for kind in check.gathers:
            if check.plug_in is None or kind not in found:
                found[kind] = check.plug_in
    return tuple(Gathered(*each) for each in found.items())


def loaded_here() -> frozenset[PlugIn]:
    """Return the plug-ins whose checks this process can make."""
    return frozenset(
        check.plug_in
        for check in registered().values()
        if check.plug_in is not None and not isinstance(check, Unloaded)
    )


def absent_checks(looked: frozenset[PlugIn]) -> Iterator[tuple[str, InputError]]:
    """Yield plug-ins' checks, by id, that saw no batch where these plug-ins alone could be loaded.

    They are checks that look at batches.
    """
    for check in registered().values():
        if check.plug_in is None or check.plug_in in looked:
            continue
        if isinstance(check, StepCheck) or check.gathers:
            remedy = "Install the same version wherever batches are read, or give --workers 1."
            yield (
                check.id,
                check.plug_in.unusable("a process that read batches could not load it.", remedy),
            )


def failure_in(plug_in: PlugIn | None, error: BaseException) -> InputError:
    """Return the error as the reason why a check is not made, or raise our own defect.

    What an error in a plug-in says is left out: it may be of private records.
    """
    if plug_in is not None:
        return plug_in.unusable(f"its check failed ({type(error).__name__}).")
    if isinstance(error, InputError):
        return error
    raise error


def held_apart(
    each: Gathered, unmade: dict[type[Evidence], InputError]
) -> AbstractContextManager[None]:
    """Return a context that notes what goes wrong in a plug-in's evidence, and goes on."""
    return _OWN if each.plug_in is None else _noting(each, unmade)


#: An error in dpaudit's own evidence passes.
_OWN = nullcontext()


@contextmanager
def _noting(each: Gathered, unmade: dict[type[Evidence], InputError]) -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        unmade.setdefault(each.kind, failure_in(each.plug_in, error))


@dataclass(kw_only=True)
class Unloaded(Check[RunFunction]):
    """A check of a plug-in that cannot be loaded: it is not made, whatever evidence was asked for.

    Attributes:
        problem: why.
    """

    problem: InputError

    @override
    def outcome(self, run: AuditedRun) -> Outcome:
        return replace(unusable(self.problem), evidence=0)


#: Every check whose module was imported, by its id.
_DECLARED: dict[str, Check[Any]] = {}

#: dpaudit's own checks, in the order in which they are listed. Reports name those that this version
#: does not have.
OWN_CHECKS = (
    "integrity.format",
    "integrity.hashes",
    "integrity.commitment",
    "integrity.redrawn",
    "integrity.complete",
    "record.range",
    "record.aggregate",
    "record.sides",
    "record.rows",
    "sampling.support",
    "sampling.distribution",
    "sampling.independence",
    "sampling.seeds",
    "sampling.committed-seed",
    "sampling.noise",
    "sampling.subsets",
    "release.text",
    "release.selection",
    "release.stopping",
    "release.disclosure",
    "partition.disjoint",
    "partition.stable",
    "partition.public-parameters",
    "partition.users",
    "mechanism.clip",
    "mechanism.divisor",
    "mechanism.unit",
    "mechanism.support-public",
    "mechanism.support-rules",
    "mechanism.randomness",
    "mechanism.model",
    "budget.shares",
    "budget.sums",
    "budget.limit",
    "budget.activity",
    "rebalancing.noise",
    "composition.total",
    "composition.all-batches",
    "amplification.key",
    "amplification.records",
    "amplification.groups",
    "amplification.rounds",
    "claim.epsilon",
    "claim.batch-epsilon",
    "claim.rho",
    "claim.risk",
    "claim.delta",
    "claim.kind",
    "claim.tuning",
    "neighbors.removal",
    "neighbors.addition",
    "neighbors.regenerated",
    "neighbors.rows",
    "replay.logits",
    "replay.lower-bound",
    "replay.frozen",
    "canaries.coins",
    "canaries.lower-bound",
    "disclosure.sensitive",
)


@cache
def registered() -> Mapping[str, Check[Any]]:
    """Return all checks by id, in listing order: those of plug-ins come behind their family."""
    found: dict[str, Check[Any]] = {check: _DECLARED[check] for check in OWN_CHECKS}
    found |= {check.id: check for check in map(_of_plug_in, plugins.plug_ins(plugins.CHECKS))}
    families = list(dict.fromkeys(_family(check) for check in found))
    return {
        check: found[check]
        for check in sorted(found, key=lambda check: families.index(_family(check)))
    }


def _family(check: str) -> str:
    return check.partition(".")[0]


def _of_plug_in(plug_in: PlugIn) -> Check[Any]:
    """Return a plug-in's check; one that says why it cannot be made, where that is so."""
    try:
        _require_free(plug_in)
        function = plug_in.load()
        found = _DECLARED.get(plug_in.name)
        if found is None or found.function is not function:
            raise plug_in.unusable(
                f"{plug_in.value} is no function that StepCheck or RunCheck decorates for this id."
            )
        if not all(isinstance(kind, type) and issubclass(kind, Evidence) for kind in found.gathers):
            raise plug_in.unusable("it gathers what is no class derived from Evidence.")
        require_words(plug_in)
        held = catalogue().check.get(plug_in.name)
        if held is None or held.evidence not in range(len(EVIDENCE_LEVELS)):
            remedy = f'Write [check."{plug_in.name}"] into the TOML file beside its module.'
            raise plug_in.unusable(
                "the catalogue has no entry of this check, or of no evidence level.", remedy
            )
    except InputError as error:
        taken = plug_in.name in OWN_CHECKS
        return Unloaded(
            id=f"{plug_in.package}.{plug_in.name}" if taken else plug_in.name, problem=error
        )
    found.plug_in = plug_in
    return found


def _require_free(plug_in: PlugIn) -> None:
    """Refuse an id that is another's: a plug-in adds checks, and replaces none."""
    plugins.plug_in(plugins.CHECKS, plug_in.name)
    family = _family(plug_in.name)
    if not plug_in.is_own and (family == POLICY or family in map(_family, OWN_CHECKS)):
        remedy = (
            "Name the check after the package, such as "
            f"{plug_in.package}.{plug_in.name.partition('.')[2]}."
        )
        raise plug_in.unusable(f"the family {family} is dpaudit's own.", remedy)


def require_loaded() -> None:
    """Raise InputError where a plug-in's check cannot be loaded."""
    for check in registered().values():
        if isinstance(check, Unloaded):
            raise check.problem


def judge_origin(origin: Origin | None, name: str) -> Outcome:
    """Return the outcome for a declared origin of settings.

    `name` is its field under `chosen_from`.
    """
    if origin == "public":
        return Outcome("pass", "origin-public")
    if origin == "private":
        return Outcome("fail", "origin-private")
    return Outcome("skip", "origin-undeclared", {"field": name})


def listed() -> list[dict[str, str | int]]:
    """Return every check, in the order of `registered`."""
    names = ("title", "evidence", "compares", "fails", "why", "remedy", "reference")
    return [
        {"id": check.id, **{name: getattr(check.entry, name) for name in names}}
        for check in registered().values()
    ]
