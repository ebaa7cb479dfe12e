"""The evidence ladder: what the checks of each level rest on, and how they came out."""

from __future__ import annotations

from dataclasses import dataclass

from dpaudit.reports.outline import checks_not_about, checks_not_made
from dpaudit.reports.text import counted
from dpaudit.reports.wording import EVIDENCE
from dpaudit.results import AuditResult, CheckResult

COLUMNS = (
    "Level",
    "Rests on",
    "Passed",
    "Failed",
    "Warned or could not run",
    "Not made",
    "Not about this run",
    "Asked for",
)


@dataclass(frozen=True)
class Rung:
    """One level of evidence.

    Attributes:
        level: from 0, as in CheckResult.
        rests_on: what a passed check of this level rests on.
        passed, failed, unsure, not_made, not_about: numbers of checks; `unsure` ones warned or could not run.
        asked: the audit asked for every check of this level that is about the run.
    """

    level: int
    rests_on: str
    passed: int
    failed: int
    unsure: int
    not_made: int
    not_about: int
    asked: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """The rung as a row of COLUMNS."""
        counts = (self.passed, self.failed, self.unsure, self.not_made, self.not_about)
        asked = "yes" if self.asked else "no"
        return (str(self.level), self.rests_on, *(str(count) for count in counts), asked)


def rungs(result: AuditResult) -> tuple[Rung, ...]:
    """Every level from the lowest, those that no check came to included."""
    not_made, not_about = checks_not_made(result), checks_not_about(result)
    found = []
    for level, rests_on in enumerate(EVIDENCE):
        here = [check for check in result.checks if check.evidence == level]
        found.append(
            Rung(
                level,
                rests_on,
                passed=_number(here, "pass"),
                failed=_number(here, "fail"),
                unsure=_number(here, "warn", "error"),
                not_made=sum(check in not_made for check in here),
                not_about=sum(check in not_about for check in here),
                asked=level <= result.evidence,
            )
        )
    return tuple(found)


def standing(result: AuditResult) -> str:
    """How far up every check holds, and how far this audit asked, in a few sentences."""
    found = rungs(result)
    broken = next((rung for rung in found if rung.asked and (rung.failed or rung.unsure or rung.not_made)), None)
    said = [f"This audit asked for {_levels(result.evidence)}."]
    if broken is None:
        said.append("Every check there that is about this run passed.")
    elif broken.level:
        said.append(f"Every check of {_levels(broken.level - 1)} that is about this run passed.")
    if broken is not None:
        said.append(f"Not every check of level {broken.level} did: what rests on it, or on a level above, is in doubt.")
    beyond = [rung for rung in found if not rung.asked]
    not_passed = sum(rung.failed + rung.unsure for rung in beyond)
    if not_passed:
        said.append(
            f"Beyond it, {counted(not_passed, 'check')} did not pass, and a failed one decides the verdict too."
        )
    not_made = sum(rung.not_made for rung in beyond)
    if not_made:
        said.append(f"Beyond what was asked for, {counted(not_made, 'check was', 'checks were')} not made.")
    return " ".join(said)


def _levels(top: int) -> str:
    return f"levels 0 to {top}" if top else "level 0"


def _number(checks: list[CheckResult], *statuses: str) -> int:
    return sum(check.status in statuses for check in checks)
