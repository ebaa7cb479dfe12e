"""Policy files: reading one, and holding an audited run to it, rule by rule."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dpaudit.accounting.risk import AttackCurve
from dpaudit.accounting.worth import (
    composed_advantage,
    composed_epsilon,
    composed_rho,
    composed_true_positives,
)
from dpaudit.auditing.checks import registered
from dpaudit.auditing.checks.registry import Outcome, RunCheck
from dpaudit.errors import in_short
from dpaudit.releasing.files import read_fields
from dpaudit.results import AuditResult, CheckResult, Finding, Quantity, Value
from dpaudit.results.catalogue import message
from dpaudit.results.evidence import POLICY
from dpaudit.results.policy import AppliedPolicy, Policy
from dpaudit.results.publication import SignedOff
from dpaudit.results.quality import Added, Quality
from dpaudit.results.shell import context_for
from dpaudit.runs import InputError

_REMEDY = (
    f"Give a mapping with policy_version: 1 and any of {', '.join(list(Policy.model_fields)[1:])}."
)


class PolicyFile(NamedTuple):
    """A policy, and SHA-256 of its file in hexadecimal."""

    policy: Policy
    sha256: str

    @property
    def applied(self) -> AppliedPolicy:
        """The policy's entry in results."""
        return AppliedPolicy(name=self.policy.name, sha256=self.sha256)


def read_policy(path: Path) -> PolicyFile:
    """Read and check a policy file.

    Raises:
        InputError: names the file and the field, and says what is allowed.
    """
    policy, data = read_fields(path, Policy, "a YAML policy", _REMEDY)
    for check in policy.checks or ():
        if check not in registered():
            close = "".join(
                f" Did you mean {name}?"
                for name in difflib.get_close_matches(check, registered(), n=1)
            )
            raise InputError(
                f"{path}: checks",
                f"there is no check {in_short(check)}.",
                f"`dpaudit checks` lists them.{close}",
            )
    return PolicyFile(policy, hashlib.sha256(data).hexdigest())


class Facts(NamedTuple):
    """The basis of rules: an audited run, its evaluation if any, and why there is none.

    `reviewers`: who signed the run off, or why nobody knows.
    """

    policy: Policy
    result: AuditResult
    quality: Quality | None
    no_quality: str
    signer: str | None
    reviewers: tuple[SignedOff, ...] | str


def _most(name: str) -> Callable[[Facts], Outcome]:
    unit = "" if name == "delta" else "nats"

    def judge(facts: Facts) -> Outcome:
        most, claim = getattr(facts.policy, name), facts.result.claim
        assert claim is not None
        stated = getattr(claim, name)
        if stated is None:
            return _not_claimed(facts, {"most": Quantity(value=most, unit=unit)})
        compose = {"epsilon": composed_epsilon, "rho": composed_rho}.get(name)
        stated = stated if compose is None else compose(stated, _paid(facts))
        values: dict[str, Value] = {
            "stated": Quantity(value=stated, unit=unit),
            "most": Quantity(value=most, unit=unit),
        }
        if stated <= most:
            return Outcome("pass", "within", values)
        return Outcome("fail", "exceeded", values)

    return judge


def _paid(facts: Facts) -> float:
    """Return what figures of worth have cost for the claim's neighbouring data sets, in nats."""
    paid, claim = facts.result.paid, facts.result.claim
    return 0.0 if paid is None or claim is None else paid.cost(claim.relation, claim.unit)


def _worth(facts: Facts) -> Outcome:
    asked, paid = facts.policy.worth, facts.result.paid
    assert asked is not None
    values: dict[str, Value] = {"least": Quantity(value=asked.gain_at_least, unit="nats")}
    if paid is None:
        return Outcome("skip", "not-paid", values)
    values |= {
        "gain": Quantity(value=paid.gain, unit="nats"),
        "bound": Quantity(value=paid.at_least, unit="nats"),
        "epsilon": Quantity(value=paid.spent, unit="nats"),
    }
    if paid.at_least >= asked.gain_at_least:
        return Outcome("pass", "reached", values)
    return Outcome("fail", "below", values)


def _not_claimed(facts: Facts, values: dict[str, Value]) -> Outcome:
    """Judge a limit on a figure that the claim does not state.

    The policy has to limit the one that it promises.
    """
    claim = facts.result.claim
    assert claim is not None
    promised = claim.terms.figures[0]
    if getattr(facts.policy, promised) is None:
        return Outcome("fail", "not-claimed", values)
    return Outcome("skip", "of-another-kind", values | {"promised": promised}, applicable=False)


def _batch(facts: Facts) -> Outcome:
    """Judge the batch level.

    A claim of the release level holds at it too if both are equal.
    """
    most, claim = facts.policy.batch_epsilon, facts.result.claim
    assert claim is not None
    assert most is not None
    found = facts.result.guarantees.epsilons(claim.kind)
    equal = found is None or bool(found.amplification.reason)
    stated = claim.batch_epsilon
    if equal and claim.batch_epsilon is None:
        stated = claim.epsilon
    values: dict[str, Value] = {"most": Quantity(value=most, unit="nats")}
    if claim.epsilon is None:
        return _not_claimed(facts, values)
    if stated is None:
        return Outcome("fail", "not-claimed", values)
    stated = composed_epsilon(stated, _paid(facts))
    values["stated"] = Quantity(value=stated, unit="nats")
    if stated <= most:
        return Outcome("pass", "within", values)
    return Outcome("fail", "exceeded", values)


def _advantage(facts: Facts) -> Outcome:
    most = facts.policy.most_advantage
    assert most is not None
    values: dict[str, Value] = {"most": most}
    curve = _attack_curve(facts.result)
    if curve is None:
        return Outcome("fail", "unbounded", values)
    return _within(composed_advantage(curve.advantage, _paid(facts)), most, values)


def _true_positives(facts: Facts) -> Outcome:
    asked = facts.policy.most_true_positives
    assert asked is not None
    values: dict[str, Value] = {"most": asked.most, "at": asked.at}
    curve = _attack_curve(facts.result)
    if curve is None:
        return Outcome("fail", "unbounded", values)
    rate = composed_true_positives(curve.true_positives(asked.at), _paid(facts))
    return _within(rate, asked.most, values)


def _attack_curve(result: AuditResult) -> AttackCurve | None:
    """Return the audited bound on what readers can do; None without one."""
    found = result.guarantees.attacks
    return None if found is None or found.attack is None else found.attack.curve


def _within(found: float, most: float, values: dict[str, Value]) -> Outcome:
    values = values | {"found": found}
    if found <= most:
        return Outcome("pass", "within", values)
    return Outcome("fail", "exceeded", values)


def _same(name: str) -> Callable[[Facts], Outcome]:
    def judge(facts: Facts) -> Outcome:
        wanted, claim = getattr(facts.policy, name), facts.result.claim
        assert claim is not None
        stated = getattr(claim, name)
        values: dict[str, Value] = {"stated": stated, "allowed": wanted}
        if stated == wanted:
            return Outcome("pass", "allowed", values)
        return Outcome("fail", "other", values)

    return judge


def _kinds(facts: Facts) -> Outcome:
    kinds, claim = facts.policy.kinds or (), facts.result.claim
    assert claim is not None
    values: dict[str, Value] = {"stated": claim.kind, "allowed": kinds}
    if claim.kind in kinds:
        return Outcome("pass", "allowed", values)
    return Outcome("fail", "other", values)


def _evidence(facts: Facts) -> Outcome:
    level, result = facts.policy.evidence or 0, facts.result
    unmade = [
        check
        for check in result.checks
        if check.id in result.not_checked and check.evidence <= level
    ]
    values: dict[str, Value] = {"level": level, "asked": result.evidence}
    if result.evidence < level:
        return Outcome("skip", "lower", values)
    if unmade:
        return Outcome("skip", "not-made", values | {"checks": tuple(check.id for check in unmade)})
    return Outcome("pass", "reached", values)


def _checks(facts: Facts) -> Outcome:
    made = {check.id: check for check in facts.result.checks}
    named = facts.policy.checks or ()
    lacking = [_lacking(name, made.get(name)) for name in named if not _passed(made.get(name))]
    values: dict[str, Value] = {"named": named}
    if not lacking:
        return Outcome("pass", "passed", values)
    values["lacking"] = tuple(lacking)
    if all(each.code == "policy.check-not-made" for each in lacking):
        return Outcome("skip", "not-made", values)
    return Outcome("fail", "not-passed", values)


def _passed(check: CheckResult | None) -> bool:
    return check is not None and check.status == "pass"


def _lacking(name: str, check: CheckResult | None) -> Finding:
    """Return how a check came out that did not pass."""
    outcome = "missing"
    if check is not None and check.status == "skip":
        outcome = "not-made" if check.applicable else "inapplicable"
    elif check is not None:
        outcome = {"fail": "failed", "error": "error", "warn": "warned"}[check.status]
    return Finding(code=f"policy.check-{outcome}", values={"check": name})


def _short_texts(facts: Facts) -> Outcome:
    share, texts = facts.policy.short_texts or 0.0, facts.result.released
    values: dict[str, Value] = {"most": share}
    if texts is None or not texts.texts:
        return Outcome("fail", "no-texts", values)
    short = texts.empty + texts.very_short
    values |= {"short": short, "texts": texts.texts}
    if short <= share * texts.texts:
        return Outcome("pass", "within", values)
    return Outcome("fail", "exceeded", values)


def _quality(facts: Facts) -> Outcome:
    # A gate on a figure of private records opens for some secret keys and stays shut for others, by
    # the records.
    if _rests_on_secrecy(facts.result):
        return Outcome("fail", "chooses-by-records")
    if facts.quality is None:
        if facts.no_quality:
            return Outcome("fail", "unreadable", {"problem": facts.no_quality})
        return Outcome("skip", "not-measured")
    baseline = facts.quality.baseline
    if baseline is None or not baseline.added:
        return Outcome("skip", "no-baseline")
    worse = tuple(added.measure for added in facts.quality.added if _worse(added))
    if worse:
        return Outcome("fail", "worse", {"measures": worse})
    return Outcome(
        "pass", "not-worse", {"measures": tuple(added.measure for added in facts.quality.added)}
    )


def _rests_on_secrecy(result: AuditResult) -> bool:
    """Return whether an epsilon holds only for readers who do not know a record's batch.

    It is the claim's, or the one that is worked out beside a claim that states none.
    """
    claim = result.claim
    if claim is None or (found := result.guarantees.epsilons(claim.kind)) is None:
        return False
    stated = found.epsilon if claim.epsilon is None else claim.epsilon
    return stated < found.batch_epsilon


def _worse(added: Added) -> bool:
    """Return whether texts without records did better.

    Where nothing tells chance apart, any difference counts.
    """
    return added.outcome == "less" or (added.outcome == "unknown" and added.difference < 0)


def _signers(facts: Facts) -> Outcome:
    signers = facts.policy.signers or ()
    values: dict[str, Value] = {"keys": len(signers)}
    if facts.signer is None:
        return Outcome("skip", "unsigned", values, applicable=False)
    values["signer"] = facts.signer
    if facts.signer in signers:
        return Outcome("pass", "named", values)
    return Outcome("fail", "other", values)


def _sign_off(facts: Facts) -> Outcome:
    asked = facts.policy.sign_off
    assert asked is not None
    values: dict[str, Value] = {"reviewers": asked.reviewers}
    if isinstance(facts.reviewers, str):
        return Outcome("fail", "unreadable", values | {"problem": facts.reviewers})
    there = asked.counted(each.key for each in facts.reviewers)
    values["there"] = there
    if there >= asked.reviewers:
        return Outcome("pass", "signed-off", values)
    return Outcome("skip", "too-few", values)


def _trained(facts: Facts) -> Outcome:
    settings = facts.result.run.settings
    stated = "unknown" if settings is None else settings.model.trained_on_records
    values: dict[str, Value] = {"stated": stated}
    if stated == facts.policy.trained_on_records:
        return Outcome("pass", "as-asked", values)
    return Outcome("fail", "other", values)


#: What holds a run to each field of a policy.
RULES: dict[str, Callable[[Facts], Outcome]] = {
    "epsilon": _most("epsilon"),
    "batch_epsilon": _batch,
    "rho": _most("rho"),
    "delta": _most("delta"),
    "most_advantage": _advantage,
    "most_true_positives": _true_positives,
    "kinds": _kinds,
    "relation": _same("relation"),
    "unit": _same("unit"),
    "evidence": _evidence,
    "checks": _checks,
    "worth": _worth,
    "short_texts": _short_texts,
    "quality": _quality,
    "trained_on_records": _trained,
    "sign_off": _sign_off,
    "signers": _signers,
}


def apply_policy(
    result: AuditResult,
    file: PolicyFile,
    quality: Quality | None = None,
    no_quality: str = "",
    signer: str | None = None,
    reviewers: tuple[SignedOff, ...] | str = (),
) -> AuditResult:
    """Return the result with a check for each rule of a policy.

    It fails where a rule is not met, and is not verified where one asks for what was not made.

    Args:
        result: an audit's, in its internal form. One of a run that cannot be read has nothing to be
            held to.
        file: the policy.
        quality: the run's evaluation, None without one.
        no_quality: why it cannot be read; empty if it can, or there is none.
        signer: id of the key that will sign a release; None if nothing is to be signed.
        reviewers: who signed the run off, or why nobody knows.
    """
    result = result.model_copy(update={"policy": file.applied})
    if result.claim is None or result.verdict == "error":
        return result
    rules = tuple(_judged(Facts(file.policy, result, quality, no_quality, signer, reviewers)))
    unmet = tuple(rule.id for rule in rules if rule.status == "fail")
    unmade = tuple(rule.id for rule in rules if rule.status == "skip" and rule.applicable)
    held = result.model_copy(
        update={"checks": (*result.checks, *rules), "not_checked": (*result.not_checked, *unmade)}
    )
    holds: dict[str, Value] = (
        {"holds": Finding(code="verdict.claim-holds")} if result.verdict == "pass" else {}
    )
    found = None
    if unmet and result.verdict != "fail":
        found = "fail", Finding(code="verdict.policy-unmet", values=holds | {"rules": unmet})
    elif unmade and result.verdict == "pass":
        found = (
            "not_verified",
            Finding(code="verdict.policy-open", values=holds | {"rules": unmade}),
        )
    if found is None:
        return held
    verdict, said = found
    return held.model_copy(
        update={"verdict": verdict, "guarantee": message(said, context_for(result)), "caveats": ()}
    )


def _judged(facts: Facts) -> Iterator[CheckResult]:
    for name in facts.policy.rules:
        rule = RunCheck(id=f"{POLICY}.{name.replace('_', '-')}")
        yield rule.in_words(RULES[name](facts), context_for(facts.result))
