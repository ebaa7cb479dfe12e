"""What an attacker can do, in sentences with a run's own numbers.

Every number bounds every attack, and is rounded up. Readers of the texts stand first; someone who
knows a record's batch beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpaudit.mechanisms.claims import CLAIM_KINDS
from dpaudit.reports.document import Block, Items, Paragraph
from dpaudit.reports.levels import holding
from dpaudit.reports.text import one_line
from dpaudit.reports.wording import say
from dpaudit.results import AttackBound, AuditResult, Finding
from dpaudit.results.catalogue import sentence
from dpaudit.results.values import Value

_TITLE = "What an attacker can do."
#: Of the sentences about base rates: how likely it was beforehand, and the test's false alarms.
_BASE_RATES, _FALSE_ALARMS = {"tenth": 0.1, "hundredth": 0.01}, 0.01


def box(result: AuditResult) -> Iterator[Block]:
    """Yield what an attacker can do, or why nothing bounds it; nothing where no claim holds."""
    if not holding(result):
        return
    if said := list(sentences(result)):
        yield Paragraph(f"{say('what-attacks-are')} {say('attacks-explained')}", lead=_TITLE)
        yield Items(said)
    elif (reason := result.guarantees.no_attack) is not None:
        yield Paragraph(one_line(reason), lead=_TITLE)


def sentences(result: AuditResult) -> Iterator[str]:
    """Yield sentences on a toss-up, on a test's alarms and on base rates; none without a bound."""
    claim, bounds = result.claim, _bounds(result)
    if claim is None or bounds is None or not CLAIM_KINDS[claim.kind].beforehand:
        return
    release, batch = bounds
    apart = batch.lines != release.lines
    about: dict[str, Value] = {"unit": claim.unit}
    if claim.records_per_user:
        about["most"] = claim.records_per_user
    question = "which-was-used" if claim.relation == "replace" else "was-used"
    toss_up: dict[str, Value] = {
        "observer": Finding(code="risk.reader" if apart else "risk.everybody"),
        "question": Finding(code=f"risk.{question}", values=about),
        "accuracy": release.accuracy,
    }
    alarms: dict[str, Value] = {"found": release.tpr_at_1pct}
    rates: dict[str, Value] = {
        name: release.curve.precision(prior, _FALSE_ALARMS) for name, prior in _BASE_RATES.items()
    }
    if apart:
        toss_up["batch"], alarms["batch"] = batch.accuracy, batch.tpr_at_1pct
        for name, prior in _BASE_RATES.items():
            rates[f"batch_{name}"] = batch.curve.precision(prior, _FALSE_ALARMS)
    for name, values in (("toss-up", toss_up), ("one-in-100", alarms), ("base-rate", rates)):
        yield sentence(Finding(code=f"risk.{name}", values=values))


def _bounds(result: AuditResult) -> tuple[AttackBound, AttackBound] | None:
    """Return the bounds at the release and at the batch level, if the settings give any."""
    for found in (result.guarantees.zcdp, result.guarantees.approximate):
        if found is not None and found.attack is not None and found.batch_attack is not None:
            return found.attack, found.batch_attack
    return None
