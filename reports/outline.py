"""What a report says, before any format: verdict, the kinds side by side with the claim, checks in order, settings."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dpaudit.results import AuditResult, BatchResult, CheckResult, ClaimResult, Status
from reports.costs import batch_costs
from reports.rounding import bound, bound_beside, nearest, stated
from reports.text import LABEL_LENGTH, counted, one_line, printable
from reports.wording import (
    KIND_MEANINGS,
    KIND_TITLES,
    PRIVATE_FIGURES,
    PRIVATE_REPORT,
    STATUS_ORDER,
    Kind,
    neighbours,
)

NOT_CLAIMED = "not claimed"
NOT_COMPUTED = "not computed"
Value = TypeVar("Value", float, str)

ABSENT = "–"
MOST_BATCHES = 50

_SETTINGS_DEPTH = 8
_SETTINGS_ITEMS = 60


@dataclass(frozen=True)
class Line:
    """One quantity, as claimed and as recomputed."""

    name: str
    claimed: str
    recomputed: str


@dataclass(frozen=True)
class KindBlock:
    """One kind of epsilon. Kinds are rendered as separate blocks so that their figures cannot be read across.

    Attributes:
        lines: claimed beside recomputed; empty where this kind was neither claimed nor recomputed.
        parts: what the recomputed figure is made of.
        remark: one sentence on what is absent or what to mind.
    """

    kind: Kind
    lines: tuple[Line, ...]
    parts: tuple[tuple[str, str], ...]
    remark: str

    @property
    def title(self) -> str:
        """The kind's name."""
        return KIND_TITLES[self.kind]

    @property
    def meaning(self) -> str:
        """What a figure of this kind says."""
        return KIND_MEANINGS[self.kind]


@dataclass(frozen=True)
class Column:
    """A column of the per-batch table; `words` tells text, which may be hostile, from figures."""

    name: str
    cell: Callable[[BatchResult], str]
    words: bool = False


@dataclass(frozen=True)
class Setting:
    """One entry of the run's settings: a name with a value, or with entries of its own."""

    name: str
    value: str = ""
    entries: tuple[Setting, ...] = ()


def headline(result: AuditResult) -> str:
    """The verdict in a few words; the first word is the verdict itself."""
    if result.verdict == "error":
        return "Error: this run could not be audited"
    if result.verdict == "pass":
        return "Pass: every check that ran succeeded" if result.claim is None else "Pass: the claim holds"
    failed = [check.id for check in result.checks if check.status == "fail"]
    if "claim.epsilon" in failed:
        return "Fail: the run cost more than it claims"
    return f"Fail: {counted(len(failed), 'check')} failed" if failed else "Fail: not every check could be passed"


def tally(result: AuditResult) -> str:
    """How many checks came out how, in one line."""
    named: dict[Status, str] = {
        "fail": "failed",
        "error": "could not run",
        "warn": "warned",
        "pass": "passed",
        "skip": "skipped",
    }
    counts = [(sum(check.status == status for check in result.checks), named[status]) for status in STATUS_ORDER]
    said = [f"{count} {name}" for count, name in counts if count]
    if result.not_checked:
        said.append(f"{len(result.not_checked)} not in this version")
    return "Checks: " + (", ".join(said) if said else "none ran")


def privacy_warning(result: AuditResult) -> str:
    """Why the report itself must be kept private."""
    losses = result.guarantees.empirical.leave_one_out_max is not None
    ex_post = result.guarantees.ex_post is not None or batch_costs(result) is not None
    return PRIVATE_FIGURES if ex_post or losses else PRIVATE_REPORT


def caution(result: AuditResult) -> str:
    """What to mind about the recomputed figures where checks other than the claim's own failed; else empty."""
    found = result.guarantees.ex_post or result.guarantees.approximate
    doubted = [check for check in checks_with(result, "fail", "error") if not check.id.startswith("claim.")]
    if not doubted or found is None:
        return ""
    return (
        "Checks of the run itself did not pass. What is recomputed below rests on what the run recorded, "
        "so it bounds nothing until they do."
    )


def kind_blocks(result: AuditResult) -> tuple[KindBlock, ...]:
    """The three kinds, each on its own, in a fixed order."""
    return (_ex_post_block(result), _approximate_block(result), _empirical_block(result))


def batch_columns(result: AuditResult) -> tuple[Column, ...]:
    """The per-batch table's columns, without those that this run has no figure for. Kinds have columns of their own."""
    columns = [
        Column("Batch", lambda batch: str(batch.id)),
        Column("Ex-post, Theorem 1 (nats)", lambda batch: _or_absent(batch.theorem1, bound)),
        Column("Ex-post, exact (nats)", lambda batch: _or_absent(batch.exact, bound)),
        Column("Empirical, largest loss (nats)", lambda batch: _or_absent(batch.leave_one_out_max, nearest)),
        Column("Contexts", lambda batch: f"{batch.contexts:,}"),
        Column("Tokens", lambda batch: f"{batch.steps:,}"),
        Column("Label", lambda batch: _or_absent(batch.label, _label), words=True),
    ]
    return tuple(column for column in columns if any(column.cell(batch) != ABSENT for batch in result.batches))


def listed_batches(result: AuditResult) -> tuple[BatchResult, ...]:
    """The batches that a report lists: the costliest, or the first where none has a cost."""
    costs = batch_costs(result)
    return (result.batches if costs is None else costs.costliest)[:MOST_BATCHES]


def listed_sentence(result: AuditResult) -> str:
    """Which batches are listed, and how many are not."""
    count, listed = len(result.batches), len(listed_batches(result))
    if count == 0:
        return "No batch was read."
    has_costs = batch_costs(result) is not None
    if count > listed:
        which = "costliest" if has_costs else "first"
        return f"The {listed} {which} of {count:,} batches; report.json has the other {count - listed:,} too."
    return counted(count, "batch", "batches") + (", costliest first." if has_costs and count > 1 else ".")


def claim_sentence(claim: ClaimResult | None) -> str:
    """The claim in words."""
    if claim is None:
        return "The run claims no guarantee."
    delta = f", δ = {stated(claim.delta)}" if claim.kind == "approximate" or claim.delta else ""
    return f"{claim.kind}, ε ≤ {stated(claim.epsilon)} nats{delta}, {neighbours(claim.relation, claim.unit)}"


def checks_with(result: AuditResult, *statuses: Status) -> list[CheckResult]:
    """The checks of these statuses, in the order of `statuses`, then in the audit's own order."""
    return [check for status in statuses for check in result.checks if check.status == status]


def unchecked_families(result: AuditResult) -> list[tuple[str, list[str]]]:
    """Ids that this version lacks, by family (the part before the dot), in the audit's own order."""
    families: dict[str, list[str]] = {}
    for check_id in result.not_checked:
        shown = one_line(check_id, LABEL_LENGTH)
        families.setdefault(shown.partition(".")[0], []).append(shown)
    return list(families.items())


def commands(result: AuditResult) -> tuple[str, ...]:
    """What to type to get this report again and to use its claim as a release gate."""
    path = shlex.quote(printable(result.run.get("path") or "RUN_DIR"))
    verify = f"dpaudit verify {path}"
    if result.claim is not None:
        claim = result.claim
        verify += (
            f" --epsilon {stated(claim.epsilon)} --delta {stated(claim.delta)}"
            f" --relation {claim.relation} --unit {claim.unit}"
        )
    return (f"dpaudit report {path}", verify)


def settings(run: Mapping[str, Any]) -> tuple[Setting, ...]:
    """The run's summary as a tree of printable text, bounded in depth and breadth."""
    return _entries(list(run.items()), depth=1)


def _ex_post_block(result: AuditResult) -> KindBlock:
    claim = _claim_of(result, "ex-post")
    found = result.guarantees.ex_post
    if found is None:
        remark = "No ex-post epsilon was computed for this run."
        return KindBlock("ex-post", _claim_lines(claim), (), remark)
    total = bound(found.total) if claim is None else bound_beside(found.total, claim.epsilon)
    parts = (
        ("Generation, Theorem 1", _nats(bound(found.theorem1))),
        ("Generation, exact", NOT_COMPUTED if found.exact is None else _nats(bound(found.exact))),
        ("Rebalancing", _nats(bound(found.rebalancing))),
    )
    lines = _claim_lines(claim, _nats(total), neighbours(found.relation, found.unit))
    remark = "The total adds the smaller of the two generation costs and the rebalancing."
    return KindBlock("ex-post", lines, parts, remark)


def _approximate_block(result: AuditResult) -> KindBlock:
    claim = _claim_of(result, "approximate")
    found = result.guarantees.approximate
    if found is None:
        remark = "No approximate guarantee was computed for this run."
        return KindBlock("approximate", _claim_lines(claim), (), remark)
    epsilon = bound(found.epsilon) if claim is None else bound_beside(found.epsilon, claim.epsilon)
    delta = bound(found.delta) if claim is None else bound_beside(found.delta, claim.delta)
    parts = (
        ("Accounting method", one_line(found.method)),
        ("Tokens accounted for", f"{found.tokens:,}"),
        ("Rebalancing", _nats(bound(found.rebalancing))),
    )
    lines = _claim_lines(claim, _nats(epsilon), neighbours(found.relation, found.unit), delta)
    return KindBlock("approximate", lines, parts, "Public settings and the claimed δ decide these figures.")


def _empirical_block(result: AuditResult) -> KindBlock:
    loss = result.guarantees.empirical.leave_one_out_max
    if loss is None:
        return KindBlock("empirical", (), (), "No loss of a left-out context was computed for this run.")
    parts = (("Largest loss of a left-out context", _nats(nearest(loss))),)
    return KindBlock("empirical", (), parts, "Not a guarantee, so it has no claim to stand beside.")


def _label(label: str) -> str:
    return one_line(label, LABEL_LENGTH) or "empty"


def _or_absent(value: Value | None, shown: Callable[[Value], str]) -> str:
    return ABSENT if value is None else shown(value)


def _claim_of(result: AuditResult, kind: Kind) -> ClaimResult | None:
    return result.claim if result.claim is not None and result.claim.kind == kind else None


def _claim_lines(
    claim: ClaimResult | None, epsilon: str | None = None, neighbour: str | None = None, delta: str | None = None
) -> tuple[Line, ...]:
    if claim is None and epsilon is None:
        return ()
    claimed_delta = NOT_CLAIMED if claim is None else stated(claim.delta)
    lines = [
        Line("ε", NOT_CLAIMED if claim is None else _nats(stated(claim.epsilon)), epsilon or NOT_COMPUTED),
        Line("δ", claimed_delta, delta or ("none" if epsilon else NOT_COMPUTED)),
        Line(
            "Neighbours",
            NOT_CLAIMED if claim is None else neighbours(claim.relation, claim.unit),
            neighbour or NOT_COMPUTED,
        ),
    ]
    return tuple(lines)


def _nats(figure: str) -> str:
    return f"{figure} nats" if any(character.isdigit() for character in figure) else figure


def _entries(items: list[tuple[object, object]], depth: int) -> tuple[Setting, ...]:
    shown = tuple(_setting(one_line(name, LABEL_LENGTH), value, depth) for name, value in items[:_SETTINGS_ITEMS])
    return shown + _left_out(len(items) - _SETTINGS_ITEMS)


def _setting(name: str, value: object, depth: int) -> Setting:
    if depth >= _SETTINGS_DEPTH and isinstance(value, Mapping | list | tuple):
        return Setting(name, "nested too deeply to show")
    if isinstance(value, Mapping):
        return Setting(name, "" if value else "none", _entries(list(value.items()), depth + 1))
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping | list | tuple) for item in value):
            return Setting(name, "", _entries([(str(index), item) for index, item in enumerate(value)], depth + 1))
        return Setting(name, _listed(value))
    return Setting(name, _scalar(value))


def _listed(values: list[object] | tuple[object, ...]) -> str:
    if not values:
        return "none"
    left_out = len(values) - _SETTINGS_ITEMS
    more = f", and {left_out:,} more" if left_out > 0 else ""
    return ", ".join(_scalar(value) for value in values[:_SETTINGS_ITEMS]) + more


def _scalar(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return stated(value)
    return one_line(value) or "empty"


def _left_out(count: int) -> tuple[Setting, ...]:
    return (Setting("…", f"{counted(count, 'more entry', 'more entries')} in report.json"),) if count > 0 else ()
