"""An audit's result for readers outside: what is left of it when everything that was worked out from records goes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpaudit.audit.factors import NEXT_TO_NOTHING, change, factor, next_to_nothing
from dpaudit.checks.disclosure import public_settings
from dpaudit.checks.registry import CHECKS, COMMAND
from dpaudit.results import AuditResult, CheckResult, ClaimResult, Empirical, Guarantees
from dpaudit.results.rounding import exactly

if TYPE_CHECKING:
    from dpaudit.audit.run import Question

_DOUBTFUL = "The run's settings are left out, for the check disclosure.sensitive did not find them fit to publish."
_OUTCOMES = (
    "The verdict and the checks' outcomes depend on the private data themselves, and no epsilon here pays for "
    "publishing them."
)
_UNNAMED = (
    "Without its figure, a claim that holds says nothing about how private the texts are: "
    "only that the run states its cost truly."
)
_ASKED = (
    "The claim was given to the audit, and need not be the run's own. "
    "Whether it was chosen without looking at the data, only who gave it can say."
)


def public_form(result: AuditResult, question: Question | None = None) -> AuditResult:
    """The same result without anything that was worked out from private records or found on the run's machine.

    Verdict, outcomes, settings that are declared public, a claim that was fixed beforehand and what follows from both
    stay. Everything is named that stays, so that a new field of the result is left out until it is looked at.

    Args:
        result: what the audit found.
        question: what the audit was asked to test. A claim whose figures are all from there is not the run's own, and
            stays: who asked has chosen to name it.
    """
    manifest: Mapping[str, Any] = result.run.get("manifest", {})
    asked = question is not None and any(value is not None for value in vars(question).values())
    withheld = _why_withheld(result, manifest, question)
    stated = result.claim if not withheld else None
    approximate = result.guarantees.approximate if stated is not None else None
    nothing = Empirical(leave_one_out_max=None, contexts=0, worst=())
    return AuditResult(
        audience="public",
        verdict=result.verdict,
        evidence=result.evidence,
        guarantee=_sentence(result, withheld, asked),
        caveats=_caveats(result, manifest, withheld, asked),
        claim=stated,
        guarantees=Guarantees(ex_post=None, approximate=approximate, empirical=nothing),
        ledger=tuple(tree for tree in result.ledger if tree.kind == "approximate" and approximate is not None),
        batches=(),
        tokens=None,
        checks=_checks(result),
        not_checked=result.not_checked,
        run=_run(result, manifest),
        asked=result.asked,
    )


def _why_withheld(result: AuditResult, manifest: Mapping[str, Any], question: Question | None) -> str:
    """Why the claim is not for readers outside, as the end of a sentence; empty where it is."""
    if result.claim is None or not manifest:
        return ""
    if manifest["claim_stated"] != "beforehand" and not _is_given(result.claim, question):
        return "the run stated it afterwards, from its own private record"
    if manifest["origins"]["settings"] != "public":
        return "the run does not declare that its settings were chosen without private records"
    # Noise on counts is scaled by that number too, whatever the audit was asked about.
    users = "user" in (result.claim.unit, manifest["privacy"]["unit"])
    if users and manifest["privacy"]["records_per_user_from"] != "declared":
        return "it rests on how many records one user has in the private data"
    counted = manifest["privacy"]["delta_from"] == "records" and not _is_given(result.claim, question)
    if result.claim.kind == "approximate" and counted:
        return "its delta was worked out from the number of private records"
    return ""


def _is_given(claim: ClaimResult, question: Question | None) -> bool:
    """Whether no figure of the tested claim is the run's own. A delta of 0 says that the claim has none."""
    if question is None or question.epsilon is None:
        return False
    return question.delta is not None or claim.delta == 0


def _sentence(result: AuditResult, withheld: str, asked: bool) -> str:
    """The guarantee without a figure from the records."""
    if result.verdict == "error" or result.claim is None:
        return "No guarantee can be stated: the run cannot be read as a whole."
    if result.verdict == "fail":
        return "The run did not pass its audit, so nothing supports a claim. Do not rely on one for these texts."
    if withheld:
        whose = "The" if asked else "The run's"
        return f"{whose} {result.claim.kind} claim was checked and holds. It is withheld here: {withheld}."
    if result.claim.kind == "approximate":
        return result.guarantee
    origin = "given to the audit" if asked else "fixed before the run"
    return (
        f"The claim stated here was {origin}, was checked, and holds for this data and these texts: "
        f"{_ex_post(result.claim)}. What they did cost is worked out from the private data, and withheld."
    )


def _ex_post(claim: ClaimResult) -> str:
    """What an ex-post claim says, from its own figures alone."""
    if claim.delta:
        return (
            f"{change(claim)}, no set of outcomes would be more probable than with a factor e^epsilon on each outcome, "
            f"plus {exactly(claim.delta)}, and for this outcome epsilon is at most {exactly(claim.epsilon)}"
        )
    return (
        f"{change(claim)}, these very texts would have come out with a probability that differs by at most a factor "
        f"{factor(claim.epsilon)}"
    )


def _caveats(result: AuditResult, manifest: Mapping[str, Any], withheld: str, asked: bool) -> tuple[str, ...]:
    declared = bool(manifest) and manifest["privacy"]["records_per_user_from"] == "declared"
    public = {str(manifest["privacy"]["records_per_user"])} if declared else set()
    # A caveat with a figure in it may quote the records, unless that figure is one that was declared.
    told = (said for said in result.caveats if not said.startswith(NEXT_TO_NOTHING))
    kept = [said for said in told if set(re.findall(r"\d+(?:[.,]\d+)*", said)) <= public]
    if result.verdict == "pass" and result.claim is not None and not withheld:
        said = next_to_nothing(result.claim.epsilon)
        kept = [said, *kept] if said else kept
    if asked and result.claim is not None:
        kept.append(_ASKED)
    if result.verdict == "pass" and withheld:
        kept.append(_UNNAMED)
        if manifest["claim_stated"] != "beforehand":
            given = "--epsilon and --delta" if result.claim is not None and result.claim.delta else "--epsilon"
            kept.append(f"To show a number, give {given}, agreed beforehand.")
    if manifest and not _fit(result):
        kept.append(_DOUBTFUL)
    return (*kept, _OUTCOMES)


def _checks(result: AuditResult) -> tuple[CheckResult, ...]:
    """Outcomes, with what each check compares in place of what it measured here, and its fixed words."""
    return tuple(
        CheckResult(
            id=check.id,
            title=check.title,
            status=check.status,
            evidence=check.evidence,
            measured="",
            expected=CHECKS[check.id].compares if check.id in CHECKS else "",
            detail=COMMAND if COMMAND in check.detail else "",
            applicable=check.applicable,
            why=CHECKS[check.id].why if check.id in CHECKS else "",
            remedy=CHECKS[check.id].remedy if check.id in CHECKS else "",
            reference=check.reference,
        )
        for check in result.checks
    )


def _run(result: AuditResult, manifest: Mapping[str, Any]) -> dict[str, Any]:
    versions: dict[str, Any] = {name: result.run[name] for name in ("dpaudit", "dp_accounting") if name in result.run}
    return versions | {"manifest": public_settings(manifest)} if manifest and _fit(result) else versions


def _fit(result: AuditResult) -> bool:
    """Whether the settings were looked through, and nothing private was found in them."""
    found = [check for check in result.checks if check.id == "disclosure.sensitive"]
    return bool(found) and all(check.status == "pass" or not check.applicable for check in found)
