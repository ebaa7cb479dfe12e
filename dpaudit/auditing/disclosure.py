"""An audit's result for readers outside: what is left of it when everything that was worked out from records goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpaudit.auditing.caveats import public_caveats
from dpaudit.auditing.factors import NOT_HERS, change, next_to_nothing
from dpaudit.auditing.guarantees import NOTHING
from dpaudit.checks.disclosure import public_settings
from dpaudit.checks.registry import CHECKS, COMMAND, command_for, context_of
from dpaudit.results import TO_SHOW, AuditResult, CheckResult, ClaimResult
from dpaudit.results.rounding import exactly, factor
from dpaudit.results.shell import claim_options


def public_form(result: AuditResult) -> AuditResult:
    """The same result without anything that was worked out from private records or found on the run's machine.

    Verdict, outcomes, settings that are declared public, a claim that was fixed beforehand and what follows from both
    stay. So does a claim whose figures were all given to the audit, which is not the run's own: who asked has chosen to
    name it. Everything is named that stays, so that a new field of the result is left out until it is looked at.
    """
    manifest: Mapping[str, Any] = result.run.get("manifest", {})
    withheld = _why_withheld(result, manifest)
    stated = result.claim if not withheld else None
    approximate = result.guarantees.approximate if stated is not None else None
    versions: dict[str, Any] = {name: result.run[name] for name in ("dpaudit", "dp_accounting") if name in result.run}
    return AuditResult(
        audience="public",
        verdict=result.verdict,
        evidence=result.evidence,
        guarantee=_sentence(result, withheld),
        caveats=tuple(_caveats(result, manifest, withheld)),
        claim=stated,
        guarantees=NOTHING.model_copy(update={"approximate": approximate}),
        ledger=tuple(tree for tree in result.ledger if tree.kind == "approximate" and approximate is not None),
        batches=(),
        tokens=None,
        checks=_checks(result),
        not_checked=result.not_checked,
        run=versions | {"manifest": public_settings(manifest)} if manifest and _fit(result) else versions,
        asked=result.asked,
        own_claim=_own_claim(result, manifest),
        policy=result.policy,
    )


def _own_claim(result: AuditResult, manifest: Mapping[str, Any]) -> ClaimResult | None:
    """The run's own claim beside another that was asked about, where it would stand there by itself."""
    if result.own_claim is None:
        return None
    unasked = result.model_copy(update={"claim": result.own_claim, "asked": ()})
    return None if _why_withheld(unasked, manifest) else result.own_claim


def _why_withheld(result: AuditResult, manifest: Mapping[str, Any]) -> str:
    """Why the claim is not for readers outside, as the end of a sentence; empty where it is."""
    if result.claim is None or not manifest:
        return ""
    # Whether no figure of the claim is the run's own. A delta of 0 says that the claim has none.
    given = "epsilon" in result.asked and ("delta" in result.asked or result.claim.delta == 0)
    if manifest["claim_stated"] != "beforehand" and not given:
        return "the run stated it afterwards, from its own private record"
    if manifest["origins"]["settings"] != "public":
        return "the run does not declare that its settings were chosen without private records"
    # Noise on counts is scaled by that number too, whatever the audit was asked about.
    users = "user" in (result.claim.unit, manifest["privacy"]["unit"])
    if users and manifest["privacy"]["records_per_user_from"] != "declared":
        return "it rests on how many records one user has in the private data"
    counted = manifest["privacy"]["delta_from"] == "records" and not given
    if result.claim.kind == "approximate" and counted:
        return "its delta was worked out from the number of private records"
    return ""


def _sentence(result: AuditResult, withheld: str) -> str:
    """The guarantee without a figure from the records."""
    if result.verdict == "error" or result.claim is None:
        return "No guarantee can be stated: the run cannot be read as a whole."
    if result.verdict == "fail":
        return "The run did not pass its audit, so nothing supports a claim. Do not rely on one for these texts."
    if withheld:
        whose = "The" if result.asked else "The run's"
        return f"{whose} {result.claim.kind} claim was checked and holds. It is withheld here: {withheld}."
    if result.claim.kind == "approximate":
        return result.guarantee
    origin = "given to the audit" if result.asked else "fixed before the run"
    claim, found = result.claim, result.guarantees.ex_post
    whose = "" if found is None or found.amplification.reason else f"{NOT_HERS}, "
    if claim.delta:
        said = (
            f"{whose}{change(claim)}, no set of outcomes would be more probable than with a factor e^epsilon on each "
            f"outcome, plus {exactly(claim.delta)}, and for this outcome epsilon is at most {exactly(claim.epsilon)}"
        )
    else:
        said = (
            f"{whose}{change(claim)}, these very texts would have come out with a probability that differs by at most "
            f"a factor {factor(claim.epsilon)}"
        )
    return (
        f"The claim stated here was {origin}, was checked, and holds for this data and these texts: {said}. "
        "What they did cost is worked out from the private data, and withheld."
    )


def _caveats(result: AuditResult, manifest: Mapping[str, Any], withheld: str) -> Iterator[str]:
    passed, claim = result.verdict == "pass", result.claim
    if passed and claim is not None and not withheld and (said := next_to_nothing(claim.epsilon)):
        yield said
    declared = bool(manifest) and manifest["privacy"]["records_per_user_from"] == "declared"
    yield from public_caveats(result.caveats, manifest["privacy"]["records_per_user"] if declared else None)
    if result.asked:
        yield (
            "The claim was given to the audit, and need not be the run's own. "
            "Whether it was chosen without looking at the data, only who gave it can say."
        )
    if passed and withheld:
        yield (
            "Without its figure, a claim that holds says nothing about how private the texts are: "
            "only that the run states its cost truly."
        )
        if manifest["claim_stated"] != "beforehand":
            given = "--epsilon and --delta" if claim is not None and claim.delta else "--epsilon"
            yield f"{TO_SHOW} {given}, agreed beforehand."
    if manifest and not _fit(result):
        yield "The run's settings are left out, for the check disclosure.sensitive did not find them fit to publish."
    yield (
        "The verdict and the checks' outcomes depend on the private data themselves, and no epsilon here pays for "
        "publishing them."
    )


def _checks(result: AuditResult) -> tuple[CheckResult, ...]:
    """Outcomes, with what each check compares in place of what it measured here, and its fixed words."""
    own = command_for(COMMAND, context_of(str(result.run.get("path", "")), claim_options(result.claim, result.asked)))
    return tuple(
        CheckResult(
            **check.model_dump(include={"id", "title", "status", "evidence", "applicable", "reference"}),
            measured="",
            expected=CHECKS[check.id].entry.compares if check.id in CHECKS else "",
            detail=COMMAND if own in check.detail or COMMAND in check.detail else "",
            why=CHECKS[check.id].entry.why if check.id in CHECKS else "",
            remedy=CHECKS[check.id].entry.remedy if check.id in CHECKS else "",
        )
        for check in result.checks
    )


def _fit(result: AuditResult) -> bool:
    """Whether the settings were looked through, and nothing private was found in them."""
    found = [check for check in result.checks if check.id == "disclosure.sensitive"]
    return bool(found) and all(check.status == "pass" or not check.applicable for check in found)
