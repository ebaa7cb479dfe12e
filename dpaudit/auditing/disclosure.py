"""An audit's result for readers outside, without all that was worked out from records."""

from __future__ import annotations

from collections.abc import Iterator

from dpaudit.auditing.caveats import empty_bound, promised_epsilon
from dpaudit.auditing.checks.disclosure import public_settings
from dpaudit.auditing.guarantees import NOTHING
from dpaudit.auditing.verdict import public_guarantee, public_options, why_withheld
from dpaudit.mechanisms.claims import CLAIM_KINDS
from dpaudit.results import (
    AuditResult,
    CheckResult,
    ClaimResult,
    Finding,
    Message,
    RunSummary,
    Value,
)
from dpaudit.results.catalogue import catalogue, is_public, message, render, sentence, wording
from dpaudit.results.shell import RUN_DIR, context_of, options_making


def public_form(result: AuditResult) -> AuditResult:
    """Return the result without what private records gave or what was found on the run's machine.

    Verdict, outcomes, settings that are declared public, a claim that was fixed beforehand and what
    follows from both stay. So does a claim whose figures were all given to the audit, which is not
    the run's own: who asked has chosen to name it. Everything is named that stays, so that a new
    field of the result is left out until it is looked at.
    """
    withheld = why_withheld(result)
    stated = result.claim if withheld is None else None
    public = (
        () if stated is None else tuple(kind for kind in CLAIM_KINDS.values() if kind.beforehand)
    )
    return AuditResult(
        audience="public",
        verdict=result.verdict,
        evidence=result.evidence,
        guarantee=_guarantee(result, withheld),
        caveats=tuple(_caveats(result, withheld)),
        claim=stated,
        guarantees=NOTHING.model_copy(
            update={kind.guarantee: getattr(result.guarantees, kind.guarantee) for kind in public}
            | {"no_attack": _no_attack(result)}
        ),
        ledger=tuple(tree for tree in result.ledger if tree.kind in {kind.id for kind in public}),
        batches=(),
        tokens=None,
        checks=_checks(result, show_values=withheld is None and _fit(result)),
        not_checked=result.not_checked,
        run=_summary(result),
        asked=result.asked,
        own_claim=_own_claim(result),
        policy=result.policy,
        paid=result.paid,
    )


def _no_attack(result: AuditResult) -> Message | None:
    """Return why nothing bounds attacks, where the claim's kind alone says so."""
    reason, claim = result.guarantees.no_attack, result.claim
    if reason is None or claim is None or claim.terms.beforehand or not is_public(reason):
        return None
    return message(reason, _CONTEXT)


def _summary(result: AuditResult) -> RunSummary:
    """Return the auditing software's versions, and the public settings, where they are fit."""
    run = result.run
    shown = None if run.settings is None or not _fit(result) else public_settings(run.settings)
    # What audited a run hangs on no record, and a reader must know whose code judged.
    return run.only("dpaudit", "dp_accounting", "plugins").model_copy(update={"settings": shown})


def _own_claim(result: AuditResult) -> ClaimResult | None:
    """Return the run's own claim beside another asked about, if it would stand there by itself."""
    if result.own_claim is None:
        return None
    unasked = result.model_copy(update={"claim": result.own_claim, "asked": ()})
    return result.own_claim if why_withheld(unasked) is None else None


#: What sentences for readers outside show: neither where the run is, nor what was asked of it.
_CONTEXT = context_of(RUN_DIR)


def _guarantee(result: AuditResult, withheld: Finding | None) -> Message:
    found = public_guarantee(result, withheld)
    if not is_public(found):
        raise ValueError(f"{found.code} is not for readers outside")
    return message(found, _CONTEXT)


def _caveats(result: AuditResult, withheld: Finding | None) -> Iterator[Message]:
    passed, claim, settings = result.verdict == "pass", result.claim, result.run.settings
    if passed and claim is not None and withheld is None:
        # The claim is public here, and its size with it.
        found = result.guarantees.epsilons(claim.kind)
        yield from map(
            message, empty_bound(promised_epsilon(claim, None if found is None else found.epsilon))
        )
    # In words anew: those of readers inside may name the run.
    yield from (message(found, _CONTEXT) for found in filter(is_public, result.caveats))
    if result.asked:
        yield message(Finding(code="caveat.claim-given"))
    if passed and withheld is not None:
        yield message(Finding(code="caveat.no-figure"))
        if settings is not None and settings.claim_stated != "beforehand":
            figure = "--epsilon" if claim is None else f"--{claim.terms.figures[0]}"
            options = (figure, "--delta") if claim is not None and claim.delta else (figure,)
            yield message(Finding(code="caveat.to-show-figure", values={"options": options}))
    if settings is not None and not _fit(result):
        yield message(Finding(code="caveat.settings-left-out"))
    yield message(Finding(code="caveat.outcomes-private"))


def _checks(result: AuditResult, *, show_values: bool) -> tuple[CheckResult, ...]:
    """Return the outcomes, with fixed words and comparisons in place of what the checks measured.

    Args:
        result: the audit's, in its internal form.
        show_values: whether the catalogue may let a check's values out: they are of the claim and
            of settings.
    """
    return tuple(_check(check, result.evidence, show_values=show_values) for check in result.checks)


def _check(check: CheckResult, evidence: int, *, show_values: bool) -> CheckResult:
    words = wording(check.id, check.code) if check.code else None
    named = words.public if words is not None and show_values else ()
    known = catalogue().check.get(check.id)
    shown = check.model_copy(update={"made_with": public_options(check)})
    options = options_making([shown], evidence)
    return CheckResult(
        **check.model_dump(
            include={"id", "title", "status", "evidence", "applicable", "reference"}
        ),
        code=check.code if words is not None and words.public_code else "",
        values={
            name: check.values[name]
            for name in named
            if name in check.values and _shown(check.values[name])
        },
        made_with=shown.made_with,
        measured="",
        expected="" if known is None else known.compares,
        detail=sentence(Finding(code="remedy.audit", values={"options": options}), _CONTEXT)
        if options
        else "",
        why="" if known is None else known.why,
        remedy="" if known is None else render(known.remedy, {}, _CONTEXT),
    )


def _shown(value: Value) -> bool:
    """Return whether a value holds no finding that readers outside may not see."""
    inner = value if isinstance(value, tuple) else (value,)
    return all(is_public(each) for each in inner if isinstance(each, Finding))


def _fit(result: AuditResult) -> bool:
    """Return whether the settings were looked through, and nothing private was found in them."""
    found = [check for check in result.checks if check.id == "disclosure.sensitive"]
    return bool(found) and all(check.status == "pass" or not check.applicable for check in found)
