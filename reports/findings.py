"""The checks' findings, before any format: by family, by level of evidence, and those not made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from dpaudit.reports.document import Statement
from dpaudit.reports.text import LABEL_LENGTH, grouped, one_line
from dpaudit.reports.wording import (
    DETAIL_NAMES,
    HERE,
    REMEDY,
    STATUS_NAMES,
    WHY,
    evidence,
    least_epsilon,
    say,
)
from dpaudit.results import (
    VERY_SHORT,
    AuditResult,
    CanaryGuesses,
    CheckResult,
    Finding,
    Message,
    Status,
    TextCounts,
    Value,
)
from dpaudit.results.catalogue import catalogue, sentence
from dpaudit.results.evidence import level_meaning
from dpaudit.results.rounding import delta_bound, lower_bound, nearest
from dpaudit.results.shell import context_for, options_making

MEASURED = "Measured"
#: A place in the documentation, as checks and the ledger name it.
_PLACE = re.compile(r"docs/([\w-]+)\.md(?:#([\w-]+))?")
#: The most checks that are named one by one.
MOST_NAMED = 16


class Unmade(NamedTuple):
    """Checks that are about the run and were not made, for one and the same reason.

    `remedy`: the command that would make them, or what is missing. `needed`: the verdict is no pass
    without them.
    """

    checks: tuple[CheckResult, ...]
    remedy: str
    needed: bool

    @property
    def ids(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(one_line(check.id, LABEL_LENGTH) for check in self.checks)

    @property
    def named(self) -> str:
        """Their ids in a line, or only their number where too many would hide all else."""
        return ", ".join(self.ids) if len(self.ids) <= MOST_NAMED else f"{len(self.ids)} checks"

    @property
    def described(self) -> str:
        """The unmade checks and what to do, in a line."""
        needed = " (needed for a pass)" if self.needed else ""
        return f"{self.named}{needed}. {self.remedy}".rstrip()


def is_public(result: AuditResult) -> bool:
    """Return whether the report is for readers outside."""
    return result.audience == "public"


def checks_with(result: AuditResult, *statuses: Status) -> list[CheckResult]:
    """Return checks by status, in the order of `statuses`, then in the audit's own order."""
    return [check for status in statuses for check in result.checks if check.status == status]


def tally(result: AuditResult) -> str:
    """Say how many checks came out how, in one line."""
    return f"Checks: {counts(result)}"


def counts(result: AuditResult) -> str:
    """Return how many checks came out how, in words."""
    named: dict[Status, str] = {
        "fail": "failed",
        "error": "could not run",
        "warn": "warned",
        "pass": "passed",
    }
    found = [(len(checks_with(result, status)), name) for status, name in named.items()]
    required, unmade = len(needed(result)), len(checks_not_made(result))
    not_about = len(checks_not_about(result))
    found += [(required, "not verified"), (unmade - required, "not made")]
    found.append((not_about, "does not apply" if not_about == 1 else "do not apply"))
    said = [f"{count} {name}" for count, name in found if count]
    return ", ".join(said) if said else "none ran"


def canaries_said(found: CanaryGuesses) -> str:
    """Say what the coins of canaries showed, without a full stop."""
    sure = f"{nearest(100 * found.confidence, 2).rstrip('.')}% confidence"
    delta = f" at delta {delta_bound(found.delta)}" if found.delta else ""
    shown = f"{least_epsilon(found.epsilon)}{delta} ({sure})"
    most = (
        f"were all right, it would be {lower_bound(found.most) if found.most > 0 else 'none, too'}"
    )
    return f"{found.right:,} of {found.coins:,} coins guessed right: {shown}; {most}"


def texts(found: TextCounts) -> str:
    """Return how many texts are released, and how many of them say nothing or next to it."""
    named = {
        "empty": "empty",
        "very_short": f"very short (fewer than {VERY_SHORT} tokens)",
        "digits": "mostly digits and signs",
        "lists": "lists",
        "repetitions": "repeating themselves",
        "prompts": "repeating the prompt or a public example",
        "other_language": "not in the language of the public examples",
    }
    counts = ((getattr(found, name), what) for name, what in named.items())
    said = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    if not said:
        return f"{found.texts:,}; by rule, each of them says something"
    return f"{found.texts:,}, of which {found.nothing:,} say nothing: {said}"


def evidence_asked(result: AuditResult) -> str:
    """Say up to which level every check that applies had to be made for a pass."""
    return f"Checked up to evidence level {result.evidence} ({level_meaning(result.evidence)})."


def causes(result: AuditResult) -> list[CheckResult]:
    """Return the failed checks for which a run could not be judged; none where it was."""
    unread = ("integrity.format", "integrity.complete") if result.verdict == "error" else ()
    return [check for check in checks_with(result, "fail") if check.id in unread]


def compared(result: AuditResult, check: CheckResult) -> tuple[tuple[str, str], ...]:
    """Return what a check measured and expected, by name; in public, what it compares."""
    named = ((MEASURED, check.measured), (expected_name(result), check.expected))
    return tuple((name, said) for name, said in named if said)


def expected_name(result: AuditResult) -> str:
    """Return the name of a check's `expected`; for readers outside it is what is compared."""
    return "Compares" if is_public(result) else "Expected"


def checks_not_made(result: AuditResult) -> list[CheckResult]:
    """Return the skipped checks that are about the run."""
    return [check for check in checks_with(result, "skip") if check.id in result.not_checked]


def checks_not_about(result: AuditResult) -> list[CheckResult]:
    """Return the skipped checks of what the run does not have: nothing is hidden by them."""
    return [check for check in checks_with(result, "skip") if check.id not in result.not_checked]


def unmade(result: AuditResult) -> tuple[Unmade, ...]:
    """Return the checks that apply but were not made, by remedy; first what a pass needs."""
    groups = grouped(
        ((check.required(result.evidence), _reason(check)), check)
        for check in checks_not_made(result)
    )
    found = [
        Unmade(tuple(checks), _remedy(result, checks), needed)
        for (needed, _), checks in groups.items()
    ]
    return tuple(sorted(found, key=lambda group: not group.needed))


def still_to_make(result: AuditResult) -> tuple[Unmade, ...]:
    """Return the unmade checks that can be made now, none if the run must first be mended."""
    return () if result.verdict == "error" else unmade(result)


def _reason(check: CheckResult) -> str:
    """Return what checks share that one command makes, or that one reason kept from being made."""
    if check.made_with:
        return check.made_with
    if not check.code:  # readers outside are not told
        return check.detail
    return Finding(code=check.code, values=check.values | {"notes": check.notes}).model_dump_json()


def _remedy(result: AuditResult, checks: Sequence[CheckResult]) -> str:
    """Return the command that makes checks, or what is missing for them."""
    if options := options_making(checks, result.evidence):
        return sentence(
            Finding(code="remedy.audit", values={"options": options}), context_for(result)
        )
    return one_line(checks[0].detail)


def why_skipped(result: AuditResult, check: CheckResult) -> str:
    """Return why a skipped check was not made, and whether a pass needs it, in a line."""
    why = "Not made."
    if check.id not in result.not_checked:
        why = "Does not apply."
    elif check.required(result.evidence):
        why = f"Not made, and evidence level {result.evidence} was asked for."
    return f"{why} {one_line(check.detail)}".rstrip()


def status_name(result: AuditResult, check: CheckResult) -> str:
    """Return how a check came out, in a word or a few: what does not apply was not left unmade."""
    if check.status == "skip" and check.id not in result.not_checked:
        return "Does not apply"
    return STATUS_NAMES["not_verified" if check.required(result.evidence) else check.status]


def needed(result: AuditResult) -> set[str]:
    """Return ids of the checks that were not made and that a pass needs."""
    return {check.id for check in checks_not_made(result) if check.required(result.evidence)}


def families(checks: Sequence[CheckResult]) -> dict[str, list[CheckResult]]:
    """Return checks by the title of their family: their ids agree up to the dot."""
    titles = catalogue().family
    found = grouped((check.id.partition(".")[0], check) for check in checks)
    ranked = sorted(found, key=lambda name: list(titles).index(name) if name in titles else 99)
    unknown = "Checks called {}"
    return {
        titles.get(name) or unknown.format(one_line(name, LABEL_LENGTH) or "nothing"): found[name]
        for name in ranked
    }


def statements(result: AuditResult, check: CheckResult) -> Iterator[Statement]:
    """Yield a report's statements on a check, and how to mend it where it did not pass."""
    # A failed check's detail stands in for a remedy that it does not have.
    remedy = check.remedy or (check.detail if check.status == "fail" else "")
    mended = bool(remedy) and check.status in ("fail", "error", "warn")
    for name, words in compared(result, check):
        if check.status != "skip" or name != MEASURED:
            yield Statement(name, words, "cell")
    if check.detail and not (check.status == "fail" and check.detail == remedy):
        yield Statement(HERE if mended else DETAIL_NAMES[check.status], cited(check.detail))
    if check.why:
        yield Statement(WHY, check.why, "why")
    if mended:
        yield Statement(REMEDY, cited(remedy), "remedy")
    yield Statement("Evidence", evidence(check.evidence), "minor")
    if check.reference:
        yield Statement("Reference", cited(check.reference), "minor")


def cited(reference: str) -> str:
    """Return a reference to follow from paper: documentation places by page and heading."""
    return _PLACE.sub(lambda found: _place(*found.groups()), reference)


def _place(page: str, heading: str | None) -> str:
    where = f", “{heading.replace('-', ' ')}”" if heading else ""
    return f"documentation of dpaudit, page {page}{where}"


def headline(result: AuditResult) -> str:
    """Return the verdict in a few words: up to the colon it is the verdict itself."""
    return sentence(_headline(result))


def _headline(result: AuditResult) -> Finding:
    if result.verdict == "error":
        return Finding(code="headline.error")
    if result.verdict == "pass":
        bound: dict[str, Value] = {}
        if caveats(result, "empty-bound"):
            bound = {"bound": Finding(code="headline.empty-bound")}
        if result.claim is None:
            unstated = "pass-withheld" if is_public(result) else "pass-without-claim"
            return Finding(code=f"headline.{unstated}", values=bound)
        unit = "person" if result.claim.unit == "user" else result.claim.unit
        return Finding(code="headline.pass", values={"unit": unit, **bound})
    if result.verdict == "not_verified":
        return Finding(code="headline.not-verified", values={"unmade": len(needed(result))})
    failed = {check.id: check.code for check in checks_with(result, "fail", "error")}
    if promised := {"claim.epsilon", "claim.rho"} & {*failed}:
        if failed[promised.pop()] == "no-figure":
            return Finding(code="headline.no-figure")
        return Finding(
            code="headline.asked-exceeded" if result.asked else "headline.claim-exceeded"
        )
    return Finding(code="headline.failed", values={"failed": len(failed)})


def caveats(
    result: AuditResult, family: Literal["empty-bound", "of-claim", "of-model", "caveat"]
) -> list[Message]:
    """Return the caveats of a family.

    Args:
        result: of the audit.
        family: "empty-bound" says that a guarantee rules out next to nothing, "of-claim" who
            settled its number, "of-model" what no check sees of the model, and "caveat" what else
            is taken on trust.
    """
    return [caveat for caveat in result.caveats if caveat.family == family]


def caution(result: AuditResult) -> str:
    """Say why recomputed figures are in doubt, or "": checks beside the claim's did not pass."""
    if result.guarantees.ex_post is None and result.guarantees.approximate is None:
        return ""
    failed = checks_with(result, "fail", "error")
    if any(not check.id.startswith(("claim.", "disclosure.")) for check in failed):
        return say("record-in-doubt")
    if needed(result):
        return say("record-not-looked-through")
    return ""
