"""The verdict on an audit's checks, as a finding for readers inside, and for readers outside."""

from __future__ import annotations

from collections.abc import Sequence

from dpaudit.auditing.checks.claim import recomputed_levels
from dpaudit.auditing.checks.costs import Costs
from dpaudit.auditing.checks.disclosure import acts_on_every_text
from dpaudit.auditing.checks.evidence import AuditedRun
from dpaudit.auditing.checks.levels import Levels
from dpaudit.results import AuditResult, CheckResult, ClaimResult, Finding, Quantity, Value, Verdict
from dpaudit.results.catalogue import entry
from dpaudit.results.shell import WITH_DATA, WITH_MODEL, argument, options_making

#: What cannot be read as a whole cannot be judged: these go before any other failed check.
_READABLE = ("integrity.format", "integrity.complete")
#: The level of evidence from which a check needs the private data.
_OF_THE_DATA = 3


def judge(checks: Sequence[CheckResult], evidence: int) -> Verdict:
    """Return the verdict: all checks up to this level that apply to the run must have been made."""
    failed = [check for check in checks if check.status in ("fail", "error")]
    if any(check.id in _READABLE for check in failed):
        return "error"
    if failed:
        return "fail"
    return "not_verified" if any(check.required(evidence) for check in checks) else "pass"


def guarantee(
    verdict: Verdict, run: AuditedRun, claim: ClaimResult, checks: Sequence[CheckResult], level: int
) -> Finding:
    """Return what an audit found, for readers inside.

    Args:
        verdict: of the checks.
        run: that was audited.
        claim: that was tested.
        checks: all of them.
        level: of evidence that was asked for.
    """
    if verdict == "error":
        return Finding(code="verdict.unreadable")
    if verdict == "not_verified":
        unmade = [check for check in checks if check.required(level)]
        return not_verified("verdict.not-verified", unmade, level)
    if verdict == "fail":
        return _failed([check for check in checks if check.status in ("fail", "error")])
    return _passed(run, claim)


def not_verified(code: str, unmade: Sequence[CheckResult], level: int) -> Finding:
    """Return that nothing failed, but required checks were not made.

    It has their ids, and the command that makes them.
    """
    values: dict[str, Value] = {"checks": tuple(check.id for check in unmade)}
    if options := options_making(unmade, level):
        values["remedy"] = Finding(code="remedy.audit", values={"options": options})
    return Finding(code=code, values=values)


def options_for(run: AuditedRun, check: CheckResult) -> str:
    """Return the options of `dpaudit report` that make a run's skipped check, or "" if none do."""
    if check.status != "skip" or not check.applicable:
        return ""
    manifest = run.manifest
    replayed = manifest.foreign or run.replay is not None
    given = {
        "model": replayed,
        "data": replayed or check.evidence < _OF_THE_DATA,
        "seed": run.seed is not None,
        "tokenizer": bool(run.tokenizers),
    }
    options = {
        "model": f"{WITH_MODEL} {argument(manifest.model.name, 'NAME')}",
        "data": WITH_DATA,
        "seed": " ".join(["--seed-file FILE"] * len(manifest.sampling.seed_hashes)),
        "tokenizer": "--tokenizer FILE",
    }
    return next((options[part] for part in entry(check.id).made_with if not given[part]), "")


def public_guarantee(result: AuditResult, withheld: Finding | None) -> Finding:
    """Return what an audit found, without a figure from the records.

    Args:
        result: the audit's, in its internal form.
        withheld: why the claim is; None if it is not.
    """
    claim = result.claim
    if result.verdict == "error" or claim is None:
        return Finding(code="verdict.unreadable")
    if result.verdict == "fail":
        return Finding(code="verdict.public-failed")
    if result.verdict == "not_verified":
        unmade = [check for check in result.checks if check.required(result.evidence)]
        shown = [check.model_copy(update={"made_with": public_options(check)}) for check in unmade]
        return not_verified("verdict.public-not-verified", shown, result.evidence)
    if withheld is not None:
        whose = Finding(code="verdict.the-claim" if result.asked else "verdict.the-runs-claim")
        return Finding(
            code="verdict.public-withheld",
            values={"whose": whose, "kind": claim.kind, "why": withheld},
        )
    if claim.terms.beforehand:
        return Finding(code=result.guarantee.code, values=result.guarantee.values)
    origin = Finding(
        code="verdict.given-to-the-audit" if result.asked else "verdict.fixed-beforehand"
    )
    found = result.guarantees.ex_post
    values: dict[str, Value] = {
        "origin": origin,
        "change": change(claim),
        "epsilon": _nats(claim.stated),
    }
    if found is not None and not found.amplification.reason:
        values["readers"] = Finding(code="verdict.only-that-batch-unknown")
    if claim.delta:
        return Finding(
            code="verdict.public-ex-post-with-delta", values=values | {"delta": claim.delta}
        )
    return Finding(code="verdict.public-ex-post", values=values)


def public_options(check: CheckResult) -> str:
    """Return the options that make a check, without the name of the run's model."""
    return f"{WITH_MODEL} NAME" if check.made_with.startswith(WITH_MODEL) else check.made_with


def why_withheld(result: AuditResult) -> Finding | None:
    """Return why the claim is not for readers outside, or None."""
    settings = result.run.settings
    if result.claim is None or settings is None:
        return None
    # Whether no figure of the claim is the run's own. A delta of 0 says that the claim has none.
    kind = result.claim.terms
    given = kind.figures[0] in result.asked and ("delta" in result.asked or result.claim.delta == 0)
    if settings.claim_stated != "beforehand" and not given:
        return Finding(code="withheld.stated-afterwards")
    if settings.chosen_from.settings != "public":
        return Finding(code="withheld.settings-private")
    # Noise on counts is scaled by that number too, whatever the audit was asked about.
    users = "user" in (result.claim.unit, settings.privacy.unit)
    if users and settings.privacy.records_per_user_from != "declared":
        return Finding(code="withheld.users-counted")
    counted = settings.privacy.delta_from == "records" and not given
    if kind.beforehand and counted:
        return Finding(code="withheld.records-counted")
    return None


def change(claim: ClaimResult) -> Finding:
    """Return what a guarantee compares with, as the condition of a sentence."""
    code = "verdict.added-or-removed" if claim.relation == "add_remove" else "verdict.replaced"
    most: dict[str, Value] = {"most": claim.records_per_user} if claim.records_per_user else {}
    return Finding(code=code, values={"unit": claim.unit} | most)


def _failed(failed: Sequence[CheckResult]) -> Finding:
    # A record that stands in every prompt is in the texts, whatever is published beside them.
    if [check.id for check in failed] == ["disclosure.sensitive"] and not acts_on_every_text(
        failed[0]
    ):
        return Finding(code="verdict.settings-unfit", values={"found": _found(failed[0])})
    if any(not check.id.startswith("claim.") for check in failed):
        return Finding(code="verdict.record-unreliable")
    return Finding(code="verdict.claim-fails", values={"reasons": tuple(map(_reason, failed))})


def _reason(check: CheckResult) -> Finding:
    due = Finding(code=f"{check.id}:{check.code}:expected", values=check.values)
    return Finding(code="verdict.reason", values={"found": _found(check), "expected": due})


def _found(check: CheckResult) -> Finding:
    return Finding(code=f"{check.id}:{check.code}", values=check.values)


def _passed(run: AuditedRun, claim: ClaimResult) -> Finding:
    """Return the guarantee of a pass at the release level, and at the batch level if it differs."""
    levels = recomputed_levels(run)
    if claim.rho is not None:
        return _of_rho(run, claim.rho, claim, levels)
    assert levels is not None  # as the claim passed
    values: dict[str, Value] = {
        "aggregation": run.manifest.mechanism.aggregator.title.capitalize(),
        "epsilon": _nats(claim.stated),
        "recomputed": _nats(levels.release),
        "change": change(claim),
    }
    if claim.delta:
        values["delta"] = claim.delta
    if levels.amplified:
        unknown = (
            "verdict.batch-unknown" if run.kind.beforehand else "verdict.only-that-batch-unknown"
        )
        values |= {
            "readers": Finding(code=unknown),
            "level": Finding(code="verdict.at-release-level"),
        }
        of_batch: dict[str, Value] = {"recomputed": _nats(levels.batch)}
        if claim.batch_epsilon is None:
            values["beside"] = Finding(code="verdict.batch-level", values=of_batch)
        else:
            of_batch["claimed"] = _nats(claim.batch_epsilon)
            values["beside"] = Finding(code="verdict.batch-level-claimed", values=of_batch)
    elif levels.amplification.reason:
        values["beside"] = Finding(
            code="verdict.levels-equal", values={"reason": levels.amplification.reason}
        )
    if run.kind.beforehand:
        return Finding(code="verdict.approximate", values={"delta": claim.delta} | values)
    return Finding(code=f"verdict.ex-post{'-with-delta' if claim.delta else ''}", values=values)


def _of_rho(run: AuditedRun, rho: float, claim: ClaimResult, levels: Levels | None) -> Finding:
    """Return the guarantee of a passed zCDP claim, with its epsilons at its delta, if any."""
    costs = run[Costs]
    assert costs.rho is not None  # as the claim passed
    values: dict[str, Value] = {
        "aggregation": run.manifest.mechanism.aggregator.title.capitalize(),
        "rho": _nats(rho),
        "recomputed": _nats(costs.rho),
        "change": change(claim),
    }
    if levels is not None:
        at_delta: dict[str, Value] = {"delta": claim.delta, "batch": _nats(levels.batch)}
        code = "verdict.zcdp-at-delta"
        if levels.amplified:
            code, at_delta["epsilon"] = "verdict.zcdp-at-both-levels", _nats(levels.release)
        elif levels.amplification.reason:
            equal = Finding(
                code="verdict.levels-equal", values={"reason": levels.amplification.reason}
            )
            at_delta["beside"] = equal
        values["at_delta"] = Finding(code=code, values=at_delta)
    return Finding(code="verdict.zcdp", values=values)


def _nats(value: float) -> Quantity:
    return Quantity(value=value, unit="nats")
