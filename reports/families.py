"""The checks that ran, grouped by what they look at, and what is said of each."""

from __future__ import annotations

from dataclasses import dataclass

from dpaudit.reports.outline import MEASURED, checks_with, findings
from dpaudit.reports.text import LABEL_LENGTH, one_line
from dpaudit.reports.wording import DETAIL_NAMES, FAMILIES, HERE, REMEDY, STATUS_NAMES, STATUS_ORDER, WHY, evidence
from dpaudit.results import AuditResult, CheckResult

_RAN = tuple(status for status in STATUS_ORDER if status != "skip")


@dataclass(frozen=True)
class Family:
    """Checks whose ids agree up to the dot, failed ones first.

    Attributes:
        name: what they look at.
        checks: those that ran; never empty.
    """

    name: str
    checks: tuple[CheckResult, ...]

    @property
    def tally(self) -> str:
        """How they came out: `1 failed, 3 passed`."""
        counts = [(sum(check.status == status for check in self.checks), status) for status in _RAN]
        said = [f"{count} {STATUS_NAMES[status].lower()}" for count, status in counts if count]
        return ", ".join(said)


@dataclass(frozen=True)
class Said:
    """One thing that is said of a check: what it is, and the words; `minor` where a reader may skip it."""

    name: str
    words: str
    minor: bool = False


def families(result: AuditResult) -> tuple[Family, ...]:
    """Every family with a check that ran: those with a failed one first, then in the audit's own order."""
    grouped: dict[str, list[CheckResult]] = {}
    for check in checks_with(result, *_RAN):  # failed ones first, so their families are met first
        grouped.setdefault(check.id.partition(".")[0], []).append(check)
    order = {name: place for place, name in enumerate(FAMILIES)}
    ranked = sorted(grouped.items(), key=lambda item: (_RAN.index(item[1][0].status), order.get(item[0], len(order))))
    return tuple(Family(_family_name(name), tuple(checks)) for name, checks in ranked)


def said_of(result: AuditResult, check: CheckResult) -> tuple[Said, ...]:
    """What a report says of a check, in order. How to mend it is said where it did not pass."""
    said = [Said(name, words) for name, words in findings(result, check) if check.status != "skip" or name != MEASURED]
    if check.detail and not _is_remedy(check):
        said.append(Said(_detail_name(check), check.detail))
    if check.why:
        said.append(Said(WHY, check.why))
    if check.status in ("fail", "error", "warn") and _mend(check):
        said.append(Said(REMEDY, _mend(check)))
    said.append(Said("Evidence", evidence(check.evidence), minor=True))
    if check.reference:
        said.append(Said("Reference", check.reference, minor=True))
    return tuple(said)


def _is_remedy(check: CheckResult) -> bool:
    """Whether a check's detail is what would mend it, and nothing else."""
    return check.status == "fail" and (not check.remedy or check.detail == check.remedy)


def _mend(check: CheckResult) -> str:
    return check.remedy or (check.detail if check.status == "fail" else "")


def _detail_name(check: CheckResult) -> str:
    return HERE if _mend(check) and check.status in ("fail", "error", "warn") else DETAIL_NAMES[check.status]


def _family_name(name: str) -> str:
    return FAMILIES.get(name) or f"Checks called {one_line(name, LABEL_LENGTH) or 'nothing'}"
