"""What an attacker can do, in sentences with a run's own numbers.

Every number bounds every attack, and is rounded up. Readers of the texts stand first; someone who
knows a record's batch beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dpaudit.mechanisms import Relation, Unit
from dpaudit.mechanisms.claims import CLAIM_KINDS
from dpaudit.reports import figures
from dpaudit.reports.document import Block, Figure, Items, Paragraph
from dpaudit.reports.findings import is_public
from dpaudit.reports.levels import holding
from dpaudit.reports.text import one_line
from dpaudit.reports.wording import say
from dpaudit.results import Attack, AttackBound, AuditResult, CanaryGuesses, Finding, ForNeighbours
from dpaudit.results.catalogue import sentence
from dpaudit.results.rounding import bound, decimals, nearest
from dpaudit.results.values import Quantity, Value

TITLE = "What an attacker can do."
#: Of the sentences about base rates: how likely it was beforehand, and the test's false alarms.
_BASE_RATES, _FALSE_ALARMS = {"tenth": 0.1, "hundredth": 0.01}, 0.01
#: False alarms at which a figure's words state true ones.
_STATED_RATES = (0.001, 0.01, 0.1)


@dataclass(frozen=True)
class Told:
    """What attacks may tell of one unit, for sentences.

    Attributes:
        about: what neighbours differ by.
        release, batch: bounds at both levels.
    """

    about: ForNeighbours
    release: AttackBound
    batch: AttackBound

    @property
    def apart(self) -> bool:
        """Whether the levels differ."""
        return self.batch.lines != self.release.lines

    @cached_property
    def words(self) -> Subject:
        """Of whom sentences speak."""
        return subject(self.about.relation, self.about.unit, self.about.records_per_user)

    @property
    def observer(self) -> Finding:
        """Who attacks: for whom the first bound is."""
        code = "risk.reader" if self.apart else "risk.everybody"
        return Finding(code=code, values={"others": self.words.others})

    def beside(self, **of_batch: Value) -> dict[str, Value]:
        """Return the batch level's values, where it has its own."""
        return {"whose": self.words.batches, **of_batch} if self.apart else {}


class Subject(NamedTuple):
    """What an attacker asks, whose records they know, and whose batches they may know."""

    question: Finding
    others: Finding
    batches: Finding


def subject(relation: Relation, unit: Unit, most: int | None) -> Subject:
    """Return whom sentences about neighbours speak of: a record, or a person with several.

    Args:
        relation, unit: of the neighbours.
        most: how many records a person has at most; None if nothing bounds it.
    """
    person = unit == "user"
    replaced = "which-" if relation == "replace" else ""
    values: dict[str, Value] = {} if person else {"unit": unit}
    if person and most is not None:
        values["most"] = most
    question = f"risk.{replaced}{'persons-were' if person else 'was'}-used"
    others, batches = "other-records", Finding(code="risk.units-batch", values={"unit": unit})
    if person:
        others, batches = "other-persons-records", Finding(code="risk.persons-batches")
    return Subject(Finding(code=question, values=values), Finding(code=f"risk.{others}"), batches)


def box(result: AuditResult) -> Iterator[Block]:
    """Yield what an attacker can do, or why nothing bounds it; nothing where no claim holds."""
    if holding(result) and (told := _told(result)) is not None:
        yield Paragraph(say("what-attacks-are"), lead=TITLE)
        yield Items(list(_sentences(told)))
    elif reason := _unbounded(result):
        yield Paragraph(reason, lead=TITLE)


def details(result: AuditResult) -> Iterator[Block]:
    """Yield the bound at every rate and, inside, what attacks have shown; or these texts' odds."""
    if holding(result) and (told := _told(result)) is not None:
        yield from _curve(told)
        yield Paragraph(_guess(told))
        yield Paragraph(say("attacks-explained"), "quiet")
        if not is_public(result) and (seen := list(_lower_bounds(result))):
            yield Items(seen)
    elif _unbounded(result) and (odds := posterior_odds(result)):
        yield Paragraph(odds)


def sentences(result: AuditResult) -> Iterator[str]:
    """Yield sentences on a toss-up, on a test's alarms and on base rates; none without a bound."""
    if (told := _told(result)) is not None:
        yield from _sentences(told)


def in_short(result: AuditResult) -> str:
    """Return what attacks can do in a few lines, or why nothing bounds them.

    It is empty where no claim holds.
    """
    said = _unbounded(result)
    if holding(result) and (told := _told(result)) is not None:
        said = in_a_sentence(told)
    if said and result.paid is not None:
        return f"{said} {beside_worth(result.paid.spent)}"
    return said


def rates_in_short(result: AuditResult) -> str:
    """Return both levels' figures in a line, for a prompt, or that there are none.

    It is empty where no claim holds.
    """
    if not holding(result) or (told := _told(result)) is None:
        return "nothing bounds them in general" if _unbounded(result) else ""
    levels = {"release level": told.release, "batch level": told.batch}
    if not told.apart:
        levels = {"both levels": told.release}
    return "; ".join(
        f"advantage {bound(each.advantage)}, {percent_bound(each.tpr_at_1pct)} true alarms at 1% "
        f"false ones ({name})"
        for name, each in levels.items()
    )


def _unbounded(result: AuditResult) -> str:
    """Return why nothing bounds attacks on a run that passed; empty if something does."""
    reason = result.guarantees.no_attack
    return "" if reason is None or result.verdict != "pass" else one_line(reason)


def in_a_sentence(told: Told) -> str:
    """Return a toss-up and a test's alarms in one sentence."""
    release, batch = told.release, told.batch
    values: dict[str, Value] = {
        "observer": told.observer,
        "question": told.words.question,
        "accuracy": release.accuracy,
        "found": release.tpr_at_1pct,
        **told.beside(batch=batch.accuracy, batch_found=batch.tpr_at_1pct),
    }
    return sentence(Finding(code="risk.in-short", values=values))


def beside_worth(epsilon: float) -> str:
    """Say that figures of what the records added cost so much more, in nats, than the texts."""
    return sentence(Finding(code="risk.worth-beside", values={"epsilon": epsilon}))


def found_by(bounds: AttackBound) -> str:
    """Say how bounds on attacks were found; empty if a result does not say."""
    if not bounds.method:
        return ""
    values: dict[str, Value] = {
        "ways": tuple(Finding(code=f"risk.by-{way}") for way in bounds.method)
    }
    if len(bounds.method) > 1:
        values["least"] = Finding(code="risk.least-of-them")
    return sentence(Finding(code="risk.found-by", values=values))


def posterior_odds(result: AuditResult) -> str:
    """Say how far these very texts move the odds that a unit was used, for readers inside alone.

    It is empty for other neighbours than of one more or less, and where centres spent a delta: then
    it need not be true.
    """
    found = result.guarantees.ex_post
    if found is None or is_public(result):
        return ""
    if found.relation != "add_remove" or found.delta or not math.isfinite(found.batch_epsilon):
        return ""
    words = subject(found.relation, found.unit, found.records_per_user)
    rounded = Quantity(value=float(decimals(found.batch_epsilon)), unit="nats")
    values: dict[str, Value] = {
        "others": words.others,
        "question": words.question,
        "cost": rounded,
    }
    return sentence(Finding(code="risk.posterior-odds", values=values))


def _told(result: AuditResult) -> Told | None:
    """Return the bounds of a claim that was fixed beforehand; None without any."""
    claim, found = result.claim, result.guarantees.attacks
    if claim is None or found is None or not CLAIM_KINDS[claim.kind].beforehand:
        return None
    if found.attack is None or found.batch_attack is None:
        return None
    return Told(claim, found.attack, found.batch_attack)


def _sentences(told: Told) -> Iterator[str]:
    release, batch = told.release, told.batch
    toss_up: dict[str, Value] = {
        "observer": told.observer,
        "question": told.words.question,
        "accuracy": release.accuracy,
        **told.beside(batch=batch.accuracy),
    }
    alarms: dict[str, Value] = {
        "found": release.tpr_at_1pct,
        **told.beside(batch=batch.tpr_at_1pct),
    }
    rates: dict[str, Value] = {}
    for level, name, bounds in (("", "", release), ("batch_", "batch", batch)):
        if name and not told.apart:
            continue
        for rate, prior in _BASE_RATES.items():
            rates[f"{level}{rate}"] = bounds.curve.precision(prior, _FALSE_ALARMS)
    for name, values in (
        ("toss-up", toss_up),
        ("one-in-100", alarms),
        ("base-rate", rates | told.beside()),
    ):
        yield sentence(Finding(code=f"risk.{name}", values=values))


def _curve(told: Told) -> Iterator[Block]:
    """Yield the bound on true alarms at each rate of false ones, and how it was found."""
    values: dict[str, Value] = {
        "rates": tuple(f"{100 * rate:g}%" for rate in _STATED_RATES),
        "found": _percentages(told.release),
        **told.beside(batch=_percentages(told.batch)),
    }
    words = sentence(Finding(code="risk.curve", values=values))
    drawing = figures.attack_curves(told.release, told.batch if told.apart else None, words)
    yield Figure(drawing, f"{words} {found_by(told.release)}".strip(), say("attack-curve-marks"))


def _guess(told: Told) -> str:
    """Say how often a secret is guessed at most that is guessed once in ten times without it."""
    values: dict[str, Value] = {
        "unit": "person" if told.about.unit == "user" else told.about.unit,
        "instead": "without it"
        if told.about.relation == "add_remove"
        else "with another in its place",
        "guess": told.release.guess_at_10pct,
        **told.beside(batch=told.batch.guess_at_10pct),
    }
    return sentence(Finding(code="risk.guess", values=values))


def _percentages(bounds: AttackBound) -> tuple[str, ...]:
    curve = bounds.curve
    return tuple(percent_bound(curve.true_positives(rate)) for rate in _STATED_RATES)


def percent_bound(share: float) -> str:
    """Return a bound on a share in percent, three digits, rounded up."""
    return f"{bound(100 * share, 3)}%"


def _lower_bounds(result: AuditResult) -> Iterator[str]:
    """Yield what attacks have shown, beside what they can at most."""
    seen = result.guarantees.empirical
    if (attack := seen.attack) is not None:
        values: dict[str, Value] = {"texts": 2 * attack.trials, **_shown(attack)}
        yield sentence(Finding(code="risk.attack-shows", values=values))
    if (canaries := seen.canaries) is not None:
        values = {"coins": canaries.coins, "right": canaries.right, **_shown(canaries)}
        yield sentence(Finding(code="risk.canaries-show", values=values))


def _shown(found: Attack | CanaryGuesses) -> dict[str, Value]:
    """Return the epsilon that a lower bound refutes, and with what confidence."""
    refuted: dict[str, Value] = {"epsilon": Quantity(value=found.epsilon, unit="nats")}
    if found.delta:
        refuted["delta"] = found.delta
    code = "risk.refutes" if found.epsilon > 0 else "risk.refutes-nothing"
    confidence = f"{nearest(100 * found.confidence, 3).rstrip('0').rstrip('.')}%"
    return {
        "shown": Finding(code=code, values=refuted if found.epsilon > 0 else {}),
        "confidence": confidence,
    }
