"""What a check is, and the one place where checks are registered.

A step check looks at one step and names a problem, or returns None. A run check looks at the facts that were gathered
from the whole run and returns an outcome. Both are small functions in their family's file, registered by a decorator.
"""

from __future__ import annotations

import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from dpaudit.checks.facts import Facts, StepView
from dpaudit.results import CheckResult, Status
from dpaudit.results.evidence import EVIDENCE_LEVELS
from dpaudit.results.shell import argument
from dpaudit.runs import InputError, Manifest
from dpaudit.runs.manifest import Origin

if sys.flags.optimize > 1:
    raise InputError(
        "PYTHONOPTIMIZE",
        "Python was told to drop docstrings, and reports quote those of the checks.",
        "Start it without -OO, and leave PYTHONOPTIMIZE unset or at 1.",
    )


@dataclass(frozen=True)
class Outcome:
    """What one check found. `detail` says where, and what to do; a failure without one gets the check's remedy.

    `applicable` is False for a skip that hides nothing: the run has no part that the check is about. `evidence` is what
    this very outcome rests on, where that is not the check's own level.
    """

    status: Status
    measured: str
    expected: str
    detail: str = ""
    applicable: bool = True
    evidence: int | None = None


def not_applicable(expected: str, why: str) -> Outcome:
    """A skip of a check that is not about this run."""
    return Outcome("skip", "not applicable", expected, why, applicable=False)


StepFunction: TypeAlias = Callable[[StepView], str | None]
RunFunction: TypeAlias = Callable[[Facts], Outcome]
Function = TypeVar("Function", StepFunction, RunFunction)


@dataclass(kw_only=True)
class Check(ABC, Generic[Function]):
    """What is fixed about a check: see CheckResult. It decorates the function that makes it, and so registers it.

    Attributes:
        title, fails: state the good outcome and the bad one.
        why: what harm comes where it fails.
        remedy: what to do when it fails.
        function: its docstring says what is held against what.
    """

    id: str
    title: str
    fails: str
    evidence: int
    why: str
    remedy: str
    reference: str
    function: Function = field(init=False)

    def __call__(self, function: Function) -> Function:
        """Register the function that makes this check."""
        if self.id in CHECKS or self.id not in CATALOGUE:
            raise ValueError(f"{self.id} is registered twice, or is not in the catalogue")
        if not function.__doc__:
            raise ValueError(f"the check {self.id} needs a docstring that says what it compares")
        self.function, CHECKS[self.id] = function, self
        return function

    @property
    def compares(self) -> str:
        """What is held against what."""
        return " ".join((inspect.getdoc(self.function) or "").split())

    @abstractmethod
    def result(self, facts: Facts) -> CheckResult:
        """The check's entry in the audit's result."""

    def entry(self, outcome: Outcome) -> CheckResult:
        """The entry for an outcome."""
        return CheckResult(
            id=self.id,
            title=self.fails if outcome.status in ("fail", "error") else self.title,
            status=outcome.status,
            evidence=self.evidence if outcome.evidence is None else outcome.evidence,
            measured=printable(outcome.measured),
            expected=outcome.expected,
            detail=printable(outcome.detail or (self.remedy if outcome.status == "fail" else "")),
            applicable=outcome.applicable,
            why=self.why,
            remedy=self.remedy,
            reference=self.reference,
        )


@dataclass(kw_only=True)
class StepCheck(Check[StepFunction]):
    """A check of every step of those runs for which `applies` holds and whose aggregator it is about.

    Attributes:
        shown: whether a step's record holds what the check looks at. It passes only where all steps' records do.
        unshown: the outcome where some do not, from what the run's other steps show, in words: a skip, or what a replay
            shows instead.
    """

    expected: str
    applies: Callable[[Manifest], bool] = lambda _: True
    otherwise: str = ""
    shown: Callable[[StepView], bool] = lambda _: True
    unshown: Callable[[Facts, str], Outcome] | None = None

    def not_about(self, manifest: Manifest) -> str:
        """Why the check is not about a run, as a sentence; empty where it is."""
        return manifest.mechanism.not_about(self.id) or ("" if self.applies(manifest) else self.otherwise)

    def objection(self, view: StepView) -> str | None:
        """What the check objects to in a step; None where it is not about the run, or the record does not show it."""
        return self.function(view) if not self.not_about(view.manifest) and self.shown(view) else None

    def result(self, facts: Facts) -> CheckResult:
        """From the problems that were noted while the run was read."""
        if reason := self.not_about(facts.manifest):
            return self.entry(not_applicable(self.expected, reason))
        if count := facts.problems[self.id]:
            first = f"{count} of {facts.steps} steps; first {facts.first_problems[self.id]}"
            return self.entry(Outcome("fail", first, self.expected))
        if not facts.steps or self.id in facts.unmade:
            reason = facts.unmade.get(self.id, "No step could be read.")
            return self.entry(Outcome("skip", "nothing", self.expected, reason))
        if self.unshown is not None and (hidden := facts.unshown[self.id]):
            return self.entry(self.unshown(facts, f"{facts.steps - hidden} of {facts.steps} steps"))
        return self.entry(Outcome("pass", f"{facts.steps} steps hold", self.expected))


class RunCheck(Check[RunFunction]):
    """A check of the run as a whole."""

    def result(self, facts: Facts) -> CheckResult:
        """From the outcome of its function, where it is about the run's mechanism."""
        if reason := facts.manifest.mechanism.not_about(self.id):
            return self.entry(not_applicable(self.title, reason))
        return self.entry(self.function(facts))


#: Stands in remedies for the run, until it is known which.
_RUN_DIR = "RUN_DIR"
#: Where it stands; a replay takes no options of a claim.
_NAMED = re.compile(rf"(dpaudit replay )?{_RUN_DIR}")
#: The command that makes the checks that need the model and the data.
COMMAND = "Run `dpaudit report RUN_DIR --data FILE --evidence 4`."
#: What is said of them where dpaudit cannot load the generator.
NOT_LOADED = "dpaudit cannot load this run's generator. Whoever can may give the audit a replay (docs/foreign-runs.md)."


def replayed_by(manifest: Manifest) -> str:
    """What makes the checks that need a run's model and its data."""
    return NOT_LOADED if manifest.foreign else COMMAND


def command_for(text: str, run: str, options: str = "") -> str:
    """`text` with the run, as its reader named it, and `options` in place of RUN_DIR, which stays in doubt."""
    named = argument(run, _RUN_DIR)
    return _NAMED.sub(lambda found: f"{found[1]}{named}" if found[1] else named + options, text)


def pasteable(check: CheckResult, run: str, options: str = "") -> CheckResult:
    """A check whose commands name the run, and what was asked of it. Every format shows them as they are."""
    said = {name: command_for(getattr(check, name), run, options) for name in ("detail", "remedy")}
    return check.model_copy(update=said)


#: What to do where a check needs every batch.
UNREAD = "Not every batch could be read: restore them."

CHECKS: dict[str, Check[Any]] = {}

#: The catalogue, in the order in which checks are listed. Reports name those that this version does not have.
CATALOGUE = (
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
    "sampling.test",
    "sampling.threshold",
    "release.text",
    "release.selection",
    "release.stopping",
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


def registered() -> list[Check[Any]]:
    """All checks, in the catalogue's order."""
    return [CHECKS[name] for name in CATALOGUE]


def printable(text: str) -> str:
    """Text that every encoding of Unicode can hold: names of files need not be UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def judge_origin(origin: Origin | None, name: str) -> Outcome:
    """An outcome for a declared origin of settings; `name` is its field under `origins`."""
    expected = "chosen without private records"
    if origin == "public":
        return Outcome("pass", "public", expected)
    if origin == "private":
        return Outcome("fail", "chosen with private records, and not paid for", expected)
    return Outcome("skip", "not declared", expected, f"Declare origins.{name} in run.json: public or private.")


def listed() -> list[dict[str, str | int]]:
    """Every check of the catalogue, in its order."""
    names = ("id", "title", "evidence", "compares", "fails", "why", "remedy", "reference")
    return [{name: getattr(check, name) for name in names} for check in registered()]


def described(row: dict[str, str | int]) -> Iterator[tuple[str, str]]:
    """What is said of one check below its title, each behind its name."""
    for name in ("id", "evidence", "compares", "fails", "why", "remedy", "reference"):
        shown = f"{row[name]}, {EVIDENCE_LEVELS[int(row[name])].compares}" if name == "evidence" else str(row[name])
        if shown:
            yield name, shown
