"""What a check is, and the one place where checks are registered.

A step check looks at one step and names a problem, or returns None. A run check looks at the facts that were gathered
from the whole run and returns an outcome. Both are small functions in their family's file, registered by a decorator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dpaudit.checks.facts import Facts
from dpaudit.checks.view import StepView
from dpaudit.results import CheckResult, Status
from dpaudit.results.evidence import EVIDENCE_LEVELS
from dpaudit.runs import Manifest
from dpaudit.runs.manifest import Origin


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


@dataclass(frozen=True)
class About:
    """What is fixed about a check: see CheckResult.

    Attributes:
        title, failed: state the good outcome and the bad one.
        compares: what is held against what.
        why: what harm comes where it fails.
        remedy: what to do when it fails.
    """

    id: str
    title: str
    failed: str
    evidence: int
    compares: str
    why: str
    remedy: str
    reference: str


@dataclass(frozen=True)
class StepCheck:
    """A check of every step of those runs for which `applies` holds and whose aggregator it is about."""

    about: About
    problem: StepFunction
    expected: str
    applies: Callable[[Manifest], bool]
    otherwise: str

    def not_about(self, manifest: Manifest) -> str:
        """Why the check is not about a run, as a sentence; empty where it is."""
        by_mechanism = manifest.mechanism.aggregator.not_applicable.get(self.about.id, "")
        return by_mechanism or ("" if self.applies(manifest) else self.otherwise)

    def objection(self, view: StepView) -> str | None:
        """What the check objects to in a step; None where it is not about the run."""
        return None if self.not_about(view.manifest) else self.problem(view)


@dataclass(frozen=True)
class RunCheck:
    """A check of the run as a whole."""

    about: About
    outcome: RunFunction


STEP_CHECKS: dict[str, StepCheck] = {}
RUN_CHECKS: dict[str, RunCheck] = {}

#: The catalogue, in the order in which checks are listed. Reports name those that this version does not have.
CATALOGUE = (
    "integrity.format",
    "integrity.hashes",
    "integrity.complete",
    "record.range",
    "record.aggregate",
    "record.sides",
    "sampling.support",
    "sampling.distribution",
    "release.text",
    "release.selection",
    "release.stopping",
    "partition.disjoint",
    "partition.stable",
    "partition.public-parameters",
    "mechanism.clip",
    "mechanism.divisor",
    "mechanism.unit",
    "mechanism.support-public",
    "mechanism.randomness",
    "rebalancing.noise",
    "composition.total",
    "composition.all-batches",
    "claim.epsilon",
    "claim.delta",
    "claim.kind",
    "claim.tuning",
    "neighbors.removal",
    "neighbors.addition",
    "neighbors.regenerated",
    "replay.logits",
    "replay.lower-bound",
    "disclosure.sensitive",
)


def step_check(
    *,
    check_id: str,
    title: str,
    failed: str,
    evidence: int,
    expected: str,
    why: str,
    remedy: str,
    reference: str,
    applies: Callable[[Manifest], bool] = lambda _: True,
    otherwise: str = "",
) -> Callable[[StepFunction], StepFunction]:
    """Register a function that looks at one step."""

    def register(function: StepFunction) -> StepFunction:
        _claim_id(check_id)
        about = About(check_id, title, failed, evidence, _compares(function), why, remedy, reference)
        STEP_CHECKS[check_id] = StepCheck(about, function, expected, applies, otherwise)
        return function

    return register


def run_check(
    *, check_id: str, title: str, failed: str, evidence: int, why: str, remedy: str, reference: str
) -> Callable[[RunFunction], RunFunction]:
    """Register a function that looks at the whole run. Its docstring says what it compares."""

    def register(function: RunFunction) -> RunFunction:
        _claim_id(check_id)
        about = About(check_id, title, failed, evidence, _compares(function), why, remedy, reference)
        RUN_CHECKS[check_id] = RunCheck(about, function)
        return function

    return register


def result_of(about: About, outcome: Outcome) -> CheckResult:
    """A check's entry in the audit's result."""
    return CheckResult(
        id=about.id,
        title=about.failed if outcome.status in ("fail", "error") else about.title,
        status=outcome.status,
        evidence=about.evidence if outcome.evidence is None else outcome.evidence,
        measured=printable(outcome.measured),
        expected=outcome.expected,
        detail=printable(outcome.detail or (about.remedy if outcome.status == "fail" else "")),
        applicable=outcome.applicable,
        why=about.why,
        remedy=about.remedy,
        reference=about.reference,
    )


def printable(text: str) -> str:
    """Text that every encoding of Unicode can hold: names of files need not be UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def step_result(check: StepCheck, facts: Facts) -> CheckResult:
    """A step check's entry, from the problems that were noted while the run was read."""
    if reason := check.not_about(facts.manifest):
        return result_of(check.about, not_applicable(check.expected, reason))
    noted = facts.problems.get(check.about.id)
    if noted:
        first = f"{noted.count} of {facts.steps} steps; first {noted.first}"
        return result_of(check.about, Outcome("fail", first, check.expected))
    if not facts.steps:
        return result_of(check.about, Outcome("skip", "nothing", check.expected, "No step could be read."))
    return result_of(check.about, Outcome("pass", f"{facts.steps} steps hold", check.expected))


def registered() -> list[StepCheck | RunCheck]:
    """All checks, in the catalogue's order."""
    known: dict[str, StepCheck | RunCheck] = {**STEP_CHECKS, **RUN_CHECKS}
    return [known[name] for name in CATALOGUE]


def _compares(function: StepFunction | RunFunction) -> str:
    text = inspect.getdoc(function)
    if not text:
        raise ValueError(f"{function.__name__} needs a docstring that says what it compares")
    return " ".join(text.split())


def _claim_id(check_id: str) -> None:
    if check_id in STEP_CHECKS or check_id in RUN_CHECKS or check_id not in CATALOGUE:
        raise ValueError(f"{check_id} is registered twice, or is not in the catalogue")


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
    return [_row(check.about) for check in registered()]


def lines(row: dict[str, str | int]) -> Iterator[str]:
    """One check as lines of text."""
    yield str(row["title"])
    for name in ("id", "evidence", "compares", "fails", "why", "remedy", "reference"):
        if row.get(name) not in (None, ""):
            shown = f"{row[name]}, {EVIDENCE_LEVELS[int(row[name])].compares}" if name == "evidence" else row[name]
            yield f"  {name:<10}{shown}"


def _row(about: About) -> dict[str, str | int]:
    return {
        "id": about.id,
        "title": about.title,
        "evidence": about.evidence,
        "compares": about.compares,
        "fails": about.failed,
        "why": about.why,
        "remedy": about.remedy,
        "reference": about.reference,
    }
