"""Policy files: reading one, and holding an audited run to it, rule by rule."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dpaudit.checks import CATALOGUE
from dpaudit.releasing.files import read_fields
from dpaudit.results import AuditResult, CheckResult, Status
from dpaudit.results.policy import FAMILY, HeldTo, Policy
from dpaudit.results.quality import Added, Quality
from dpaudit.results.rounding import exactly
from dpaudit.runs import InputError
from dpaudit.runs.strict_yaml import in_short

#: A gate on a figure of private records opens for some secret keys and stays shut for others, by the records.
_CHOOSES = "It looks at private records, and a choice by them among secret keys voids the release level."
_NO_GATE = "Leave `quality` out of the policy, or test a claim that holds at the batch level (--epsilon)."
_REMEDY = f"Give a mapping with policy_version: 1 and any of {', '.join(list(Policy.model_fields)[1:])}."
REFERENCE = "docs/releasing.md#a-policy"


class PolicyFile(NamedTuple):
    """A policy, and SHA-256 of its file in hexadecimal."""

    policy: Policy
    sha256: str

    @property
    def held_to(self) -> HeldTo:
        """What results say of it."""
        return HeldTo(name=self.policy.name, sha256=self.sha256)


def read_policy(path: Path) -> PolicyFile:
    """Read and check a policy file.

    Raises:
        InputError: names the file and the field, and says what is allowed.
    """
    policy, data = read_fields(path, Policy, "a YAML policy", _REMEDY)
    for check in policy.checks or ():
        if check not in CATALOGUE:
            close = "".join(f" Did you mean {name}?" for name in difflib.get_close_matches(check, CATALOGUE, n=1))
            raise InputError(
                f"{path}: checks", f"there is no check {in_short(check)}.", f"`dpaudit checks` lists them.{close}"
            )
    return PolicyFile(policy, hashlib.sha256(data).hexdigest())


class Found(NamedTuple):
    """What a rule found.

    Attributes:
        measured, wanted: in words.
        why: it is not met, or was not looked at.
        remedy: in place of the rule's own.
    """

    status: Status
    measured: str
    wanted: str
    why: str = ""
    remedy: str = ""


class Facts(NamedTuple):
    """What rules look at: an audited run, its evaluation where there is one, and why there is none."""

    policy: Policy
    result: AuditResult
    quality: Quality | None
    no_quality: str
    signer: str | None


class Rule(NamedTuple):
    """One field of a policy, and what becomes of it.

    Attributes:
        met, unmet: titles, which stand in public reports too: they hold no figure.
        evidence: what it rests on, beside the audit.
        judge: holds a run to it.
    """

    met: str
    unmet: str
    evidence: int
    remedy: str
    judge: Callable[[Facts], Found]


def _most(name: str) -> Callable[[Facts], Found]:
    def judge(facts: Facts) -> Found:
        most, claim = getattr(facts.policy, name), facts.result.claim
        assert claim is not None
        stated = getattr(claim, name)
        return Found("pass" if stated <= most else "fail", f"{name} {exactly(stated)}", f"at most {exactly(most)}")

    return judge


def _batch(facts: Facts) -> Found:
    """Of the batch level, against which a claim of the release level holds too where both are equal."""
    most, claim = facts.policy.batch_epsilon, facts.result.claim
    assert claim is not None
    assert most is not None
    guarantees = facts.result.guarantees
    found = guarantees.approximate if claim.kind == "approximate" else guarantees.ex_post
    equal = found is None or bool(found.amplification.reason)
    stated = claim.epsilon if equal and claim.batch_epsilon is None else claim.batch_epsilon
    wanted = f"at most {exactly(most)} at the batch level"
    if stated is None:
        return Found("fail", "nothing is claimed there", wanted)
    return Found("pass" if stated <= most else "fail", f"batch_epsilon {exactly(stated)}", wanted)


def _same(name: str) -> Callable[[Facts], Found]:
    def judge(facts: Facts) -> Found:
        wanted, claim = getattr(facts.policy, name), facts.result.claim
        assert claim is not None
        stated = getattr(claim, name)
        return Found("pass" if stated == wanted else "fail", stated, wanted)

    return judge


def _kinds(facts: Facts) -> Found:
    kinds, claim = facts.policy.kinds or (), facts.result.claim
    assert claim is not None
    return Found("pass" if claim.kind in kinds else "fail", claim.kind, " or ".join(kinds))


def _evidence(facts: Facts) -> Found:
    level, result = facts.policy.evidence or 0, facts.result
    open_ = [check for check in result.checks if check.id in result.not_checked and check.evidence <= level]
    wanted = f"level {level}, every check that is about the run"
    if result.evidence < level:
        return Found("fail", f"level {result.evidence} was asked for", wanted)
    if open_:
        return Found("fail", f"not made: {', '.join(check.id for check in open_)}", wanted)
    return Found("pass", f"level {result.evidence}", wanted)


def _checks(facts: Facts) -> Found:
    made = {check.id: check for check in facts.result.checks}
    wanted = facts.policy.checks or ()
    lacking = [f"{name} ({_outcome(made.get(name))})" for name in wanted if not _passed(made.get(name))]
    measured = ", ".join(lacking) or "all of them passed"
    return Found("fail" if lacking else "pass", measured, f"passed: {', '.join(wanted)}")


def _passed(check: CheckResult | None) -> bool:
    return check is not None and check.status == "pass"


def _outcome(check: CheckResult | None) -> str:
    if check is None:
        return "not in the audit"
    if check.status == "skip":
        return "not made" if check.applicable else "not about this run"
    return {"fail": "failed", "error": "could not run", "warn": "warned"}.get(check.status, check.status)


def _short_texts(facts: Facts) -> Found:
    share, texts = facts.policy.short_texts or 0.0, facts.result.released
    wanted = f"at most a share of {exactly(share)}"
    if texts is None or not texts.texts:
        return Found("fail", "no texts were counted", wanted)
    short = texts.empty + texts.very_short
    return Found("pass" if short <= share * texts.texts else "fail", f"{short:,} of {texts.texts:,}", wanted)


def _quality(facts: Facts) -> Found:
    wanted = "no figure worse than that of texts without any record, beyond chance"
    if _rests_on_secrecy(facts.result):
        return Found("fail", "the claim holds at the release level alone", wanted, _CHOOSES, _NO_GATE)
    if facts.quality is None:
        return Found("fail", "not measured", wanted, facts.no_quality or "There is no evaluation.json.")
    baseline = facts.quality.baseline
    if baseline is None or not baseline.added:
        return Found("fail", "no baseline was measured", wanted, "The evaluation has no public baseline.")
    worse = [added.measure for added in facts.quality.added if _worse(added)]
    measured = f"worse: {', '.join(worse)}" if worse else f"not worse: {_measures(facts.quality.added)}"
    return Found("fail" if worse else "pass", measured, wanted)


def _rests_on_secrecy(result: AuditResult) -> bool:
    """Tell whether the claim holds for readers of the texts alone, who do not know a record's batch."""
    claim, guarantees = result.claim, result.guarantees
    if claim is None:
        return False
    found = guarantees.approximate if claim.kind == "approximate" else guarantees.ex_post
    return found is not None and claim.epsilon < found.batch_epsilon


def _measures(found: tuple[Added, ...]) -> str:
    return ", ".join(added.measure for added in found)


def _worse(added: Added) -> bool:
    """Whether texts without records did better; where nothing tells chance apart, any difference counts."""
    return added.outcome == "less" or (added.outcome == "unknown" and added.difference < 0)


def _signers(facts: Facts) -> Found:
    wanted = f"one of {len(facts.policy.signers or ())} keys"
    if facts.signer is not None:
        return Found("pass" if facts.signer in (facts.policy.signers or ()) else "fail", facts.signer, wanted)
    return Found("skip", "nothing is signed yet", wanted, "`dpaudit release` and `dpaudit verify FOLDER` look at keys.")


def _trained(facts: Facts) -> Found:
    said = facts.result.run["manifest"]["model"]["trained_on_records"]
    return Found("pass" if said == facts.policy.trained_on_records else "fail", said, "no, by the run's word")


_TEST = "Test the claim that was agreed (--epsilon, --batch-epsilon, --delta, --relation, --unit), or do not release."
_SIGN = "Sign with a key that the policy names."
RULES = {
    "epsilon": Rule(
        "Epsilon is within the policy", "Epsilon is larger than the policy allows", 1, _TEST, _most("epsilon")
    ),
    "batch_epsilon": Rule(
        "The epsilon of a batch is within the policy",
        "The epsilon of a batch is larger than the policy allows, or not claimed",
        1,
        _TEST,
        _batch,
    ),
    "delta": Rule("Delta is within the policy", "Delta is larger than the policy allows", 1, _TEST, _most("delta")),
    "kinds": Rule(
        "The claim is of a kind that the policy allows",
        "The policy does not allow claims of this kind",
        1,
        "Generate with a mechanism whose claims the policy allows (docs/which-mechanism.md).",
        _kinds,
    ),
    "relation": Rule(
        "The claim is for the policy's relation", "The claim is for another relation", 1, _TEST, _same("relation")
    ),
    "unit": Rule("The claim is for the policy's unit", "The claim is for another unit", 1, _TEST, _same("unit")),
    "evidence": Rule(
        "The audit rests on the evidence that the policy asks for",
        "The audit rests on less evidence than the policy asks for",
        1,
        "Give the audit what it lacks: --data FILE for levels 3 and 4.",
        _evidence,
    ),
    "checks": Rule(
        "Every check that the policy names passed",
        "A check that the policy names did not pass",
        1,
        "See what these checks say of the run, and what they lack.",
        _checks,
    ),
    "short_texts": Rule(
        "Few enough texts are empty or very short",
        "More texts are empty or very short than the policy allows",
        2,
        "Do not release. To choose among runs by their texts is not paid for (docs/sharp-edges.md).",
        _short_texts,
    ),
    "quality": Rule(
        "The texts are no worse than the public baseline's",
        "The texts are not shown to be as good as the public baseline's",
        0,
        "Measure it: `dpaudit evaluate RUN_DIR --reference DATA --baseline DIR`.",
        _quality,
    ),
    "trained_on_records": Rule(
        "The run says that its model was not trained on the records",
        "The run does not say that its model was not trained on the records",
        0,
        "Where that is known of the next run's model, its config says model.trained_on_records: no.",
        _trained,
    ),
    "signers": Rule("The policy names who signs", "The policy does not name who signs", 0, _SIGN, _signers),
}


def held_to(
    result: AuditResult,
    file: PolicyFile,
    quality: Quality | None = None,
    no_quality: str = "",
    signer: str | None = None,
) -> AuditResult:
    """The result with a check for each rule of a policy; it fails where one is not met.

    Args:
        result: an audit's, in its internal form. One of a run that cannot be read has nothing to be held to.
        file: the policy.
        quality: the run's evaluation, None where there is none.
        no_quality: why there is none, as a sentence.
        signer: id of the key that will sign a release; None where nothing is to be signed.
    """
    result = result.model_copy(update={"policy": file.held_to})
    if result.claim is None or result.verdict == "error":
        return result
    rules = tuple(_judged(Facts(file.policy, result, quality, no_quality, signer)))
    unmet = [rule.id for rule in rules if rule.status == "fail"]
    changes: dict[str, object] = {"checks": (*result.checks, *rules)}
    if unmet and result.verdict == "pass":
        said = f"The claim holds, and the run does not meet the policy: {', '.join(unmet)}. Do not release these texts."
        changes |= {"verdict": "fail", "guarantee": said, "caveats": ()}
    return result.model_copy(update=changes)


def _judged(facts: Facts) -> Iterator[CheckResult]:
    for name in facts.policy.rules:
        rule = RULES[name]
        found = rule.judge(facts)
        bad, remedy = found.status == "fail", found.remedy or rule.remedy
        yield CheckResult(
            id=f"{FAMILY}.{name.replace('_', '-')}",
            title=rule.unmet if bad else rule.met,
            status=found.status,
            evidence=rule.evidence,
            measured=found.measured,
            expected=found.wanted,
            detail=" ".join(filter(None, (found.why, remedy if bad else ""))),
            reference=REFERENCE,
            applicable=found.status != "skip",
            why="What the house asks of a release was settled before the run." if bad else "",
            remedy=remedy,
        )
