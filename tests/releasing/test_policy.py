"""A policy is a gate: every rule can be met and missed by name, and unknown ones are refused."""

from __future__ import annotations

import hashlib
import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dpaudit.auditing.disclosure import public_form
from dpaudit.releasing.policy import RULES, PolicyFile, apply_policy, read_policy
from dpaudit.results import AuditResult, TextCounts
from dpaudit.results.policy import Policy
from dpaudit.results.quality import Added, Quality
from dpaudit.results.schemas import json_schema
from dpaudit.runs import InputError

Run = Any
DIGEST = "ab" * 32
#: For each rule what the run below meets, and what it misses.
TRIED: dict[str, tuple[Any, Any]] = {
    "epsilon": (1000, 0.5),
    "batch_epsilon": (1000, 0.5),
    "delta": (0, None),
    "kinds": (["ex-post", "approximate"], ["approximate"]),
    "relation": ("add_remove", "replace"),
    "unit": ("record", "user"),
    "evidence": (2, 4),
    "checks": (["release.text", "claim.epsilon"], ["release.text", "replay.logits"]),
    "short_texts": (1, 0.5),
}


def policy(**rules: Any) -> PolicyFile:
    return PolicyFile(Policy.model_validate({"policy_version": 1, **rules}), DIGEST)


def written(folder: Path, **rules: Any) -> Path:
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump({"policy_version": 1, **rules}))
    return path


@pytest.fixture
def audited(make_run: Callable[..., Run]) -> AuditResult:
    result: AuditResult = make_run(sizes=(4, 5)).audit()
    assert result.verdict == "pass"
    return result


def outcome(result: AuditResult, name: str) -> str:
    (found,) = (check for check in result.checks if check.id == f"policy.{name.replace('_', '-')}")
    assert found.title and found.expected
    return found.status


@pytest.mark.parametrize("name", TRIED)
def test_each_rule_is_met_and_missed_by_its_name(audited: AuditResult, name: str) -> None:
    met, missed = TRIED[name]
    found = apply_policy(audited, policy(**{name: met}))
    assert (found.verdict, outcome(found, name)) == ("pass", "pass")
    assert found.policy is not None and found.policy.sha256 == DIGEST
    assert found.guarantee == audited.guarantee
    if missed is not None:
        found = apply_policy(audited, policy(**{name: missed}))
        lacking = name in ("evidence", "checks")
        assert (found.verdict, outcome(found, name)) == (
            ("not_verified", "skip") if lacking else ("fail", "fail")
        )
        assert found.guarantee.code == f"verdict.policy-{'open' if lacking else 'unmet'}"
        assert found.guarantee.values["rules"] == (f"policy.{name.replace('_', '-')}",)
        assert found.caveats == ()


def test_delta(make_run: Callable[..., Run]) -> None:
    result = make_run(aggregator="mean").audit()
    assert apply_policy(result, policy(delta=result.claim.delta)).verdict == "pass"
    assert outcome(apply_policy(result, policy(delta=result.claim.delta / 2)), "delta") == "fail"


def test_attacks_are_held_against_the_audited_curve(make_run: Callable[..., Run]) -> None:
    """To the last digit, at the release level, and not by the epsilon that is claimed."""
    result = make_run(aggregator="mean", divisor=64.0).audit()
    bound = result.guarantees.approximate.attack
    for rule, most in (("most_advantage", bound.advantage), ("most_true_positives", None)):
        for at in (0.01, 0.2):
            here = bound.curve.true_positives(at) if most is None else most
            for allowed, expected in ((here, "pass"), (math.nextafter(here, 0), "fail")):
                asked = {"at": at, "most": allowed} if most is None else allowed
                assert outcome(apply_policy(result, policy(**{rule: asked})), rule) == expected
    approximate = result.guarantees.approximate.model_copy(update={"attack": None})
    guarantees = result.guarantees.model_copy(update={"approximate": approximate})
    without = result.model_copy(update={"guarantees": guarantees})
    assert outcome(apply_policy(without, policy(most_advantage=1)), "most_advantage") == "fail"


def test_a_cost_of_these_texts_alone_meets_no_limit_on_attacks(audited: AuditResult) -> None:
    for name, asked in (
        ("most_advantage", 1),
        ("most_true_positives", {"at": 0.01, "most": 0.999}),
    ):
        found = apply_policy(audited, policy(**{name: asked}))
        assert (found.verdict, outcome(found, name)) == ("fail", "fail")
        (rule,) = (check for check in found.checks if check.code == "unbounded")
        assert rule.id == f"policy.{name.replace('_', '-')}"


def test_a_level_is_missed_where_its_checks_were_not_made(audited: AuditResult) -> None:
    asked = audited.model_copy(update={"evidence": 4})
    found = apply_policy(asked, policy(evidence=4))
    (rule,) = (check for check in found.checks if check.id == "policy.evidence")
    assert (rule.status, rule.code, found.verdict) == ("skip", "not-made", "not_verified")
    assert "replay.logits" in rule.values["checks"]  # type: ignore[operator]
    assert rule.required(found.evidence)


def quality_that(**added: float | None) -> Quality:
    def one(measure: str, difference: float, spread: float | None) -> Added:
        return Added.model_validate(
            {"measure": measure, "difference": difference, "spread": spread}
        )

    difference, spread = added["difference"], added["spread"]
    assert difference is not None
    return _Quality((one("mauve", difference, spread),))  # type: ignore[return-value]


class _Quality:
    """All of an evaluation that a rule looks at."""

    def __init__(self, added: tuple[Added, ...]) -> None:
        self.added = added
        self.baseline = self if added else None


@pytest.mark.parametrize(
    ("difference", "spread", "status"),
    [
        (0.1, 0.01, "pass"),
        (-0.01, 0.01, "pass"),
        (-0.1, 0.01, "fail"),
        (-0.001, None, "fail"),
        (0.0, None, "pass"),
    ],
)
def test_quality_is_held_against_the_public_baseline(
    audited: AuditResult, difference: float, spread: float | None, status: str
) -> None:
    measured = quality_that(difference=difference, spread=spread)
    assert (
        outcome(apply_policy(audited, policy(quality="public-baseline"), measured), "quality")
        == status
    )


def test_quality_is_no_gate_beside_a_claim_that_rests_on_secret_batches(
    make_run: Callable[..., Run],
) -> None:
    """Quality looks at private records, which then choose a key.

    A claim that holds at the batch level rests on no key.
    """
    run, measured = (
        make_run(secret=True, sizes=(4, 5, 4, 5), aggregator="mean"),
        quality_that(difference=0.1, spread=0.01),
    )
    result = run.audit()
    assert (
        result.verdict == "pass"
        and result.claim is not None
        and result.claim.batch_epsilon is not None
    )
    assert (
        outcome(apply_policy(result, policy(quality="public-baseline"), measured), "quality")
        == "fail"
    )
    run.edit_manifest({"claim.epsilon": result.claim.batch_epsilon})
    known = run.audit()
    assert (
        outcome(apply_policy(known, policy(quality="public-baseline"), measured), "quality")
        == "pass"
    )


def test_quality_is_no_gate_beside_an_epsilon_of_zcdp_that_rests_on_secret_batches(
    make_run: Callable[..., Run],
) -> None:
    measured, rules = quality_that(difference=0.1, spread=0.01), policy(quality="public-baseline")
    for secret, status in ((True, "fail"), (False, "pass")):
        run = make_run(secret=secret, sizes=(4, 5, 4, 5), aggregator="mean")
        claim = {"kind": "zcdp", "epsilon": None, "batch_epsilon": None, "rho": 99.0, "delta": 1e-4}
        run.edit_manifest({f"claim.{name}": value for name, value in claim.items()})
        assert outcome(apply_policy(run.audit(), rules, measured), "quality") == status


def test_quality_that_was_not_measured_is_not_met(audited: AuditResult) -> None:
    for measured, why, outcomes in (
        (None, "", ("skip", "not-measured", "not_verified")),
        (None, "It is broken.", ("fail", "unreadable", "fail")),
        (_Quality(()), "", ("skip", "no-baseline", "not_verified")),
    ):
        found = apply_policy(audited, policy(quality="public-baseline"), measured, why)  # type: ignore[arg-type]
        (rule,) = (check for check in found.checks if check.id == "policy.quality")
        assert (rule.status, rule.code, found.verdict) == outcomes


def test_texts_that_were_not_counted_are_not_few(audited: AuditResult) -> None:
    for counts in (None, TextCounts(texts=0, empty=0, very_short=0)):
        result = audited.model_copy(update={"released": counts})
        assert outcome(apply_policy(result, policy(short_texts=1)), "short_texts") == "fail"
    some = audited.model_copy(update={"released": TextCounts(texts=10, empty=1, very_short=2)})
    assert outcome(apply_policy(some, policy(short_texts=0.3)), "short_texts") == "pass"
    assert outcome(apply_policy(some, policy(short_texts=0.29)), "short_texts") == "fail"


def test_signers_are_for_what_is_signed(audited: AuditResult) -> None:
    found = apply_policy(audited, policy(signers=[DIGEST]))
    assert (outcome(found, "signers"), found.verdict) == ("skip", "pass")
    assert "policy.signers" not in found.not_checked
    for signer, verdict in ((DIGEST, "pass"), ("cd" * 32, "fail")):
        assert apply_policy(audited, policy(signers=[DIGEST]), signer=signer).verdict == verdict


@pytest.mark.parametrize("said", ["no", "unknown"])
def test_a_policy_can_demand_a_model_that_never_saw_the_records(
    make_run: Callable[..., Run], said: str
) -> None:
    run = make_run()
    run.edit_manifest({"model.trained_on_records": said})
    run.rehash()
    audited = run.audit()
    assert audited.verdict == "pass"
    for audience in (audited, public_form(audited)):
        code = "of-model.not-trained" if said == "no" else "of-model.trained-unknown"
        assert code in {caveat.code for caveat in audience.caveats}
        assert audience.run.settings.model.trained_on_records == said
    found = apply_policy(audited, policy(trained_on_records="no"))
    assert (found.verdict, outcome(found, "trained_on_records")) == (
        ("pass",) * 2 if said == "no" else ("fail",) * 2
    )


@pytest.mark.parametrize("no", ["no", '"no"', "'no'"])
def test_the_word_no_is_no_boolean(tmp_path: Path, no: str) -> None:
    """To YAML 1.1 it is one."""
    path = tmp_path / "policy.yaml"
    path.write_text(f"policy_version: 1\ntrained_on_records: {no}\n")
    assert read_policy(path).policy.trained_on_records == "no"


def test_every_rule_is_tried_here() -> None:
    elsewhere = {"rho", "quality", "worth", "trained_on_records", "sign_off", "signers"}
    of_attacks = {"most_advantage", "most_true_positives"}
    assert set(TRIED) | elsewhere | of_attacks == set(RULES)
    assert list(RULES) == [
        name for name in Policy.model_fields if name not in ("policy_version", "name")
    ]


def test_a_run_that_fails_its_audit_stays_failed(make_run: Callable[..., Run]) -> None:
    run = make_run()
    run.edit_samples(lambda lines: lines.pop())
    failed = run.audit()
    found = apply_policy(failed, policy(epsilon=1000))
    assert (found.verdict, found.guarantee) == (failed.verdict, failed.guarantee)


def test_a_public_report_names_the_policy_and_no_figure(audited: AuditResult) -> None:
    found = public_form(apply_policy(audited, policy(name="of the house", short_texts=0.5)))
    assert found.policy is not None and found.policy.name == "of the house"
    rules = [check for check in found.checks if check.id.startswith("policy.")]
    assert {check.measured for check in rules} == {""}
    assert not any(
        char.isdigit() for check in rules for char in check.title + check.detail + check.expected
    )


# --- files ----------------------------------------------------------------------------------------


def test_a_policy_file_is_read_with_its_digest(tmp_path: Path) -> None:
    rules = {name: met for name, (met, _) in TRIED.items()} | {
        "quality": "public-baseline",
        "signers": [DIGEST],
        "worth": {"gain_at_least": 0.05},
        "sign_off": {"reviewers": 2, "keys": [DIGEST]},
        "rho": 0.5,
        "most_advantage": 0.25,
        "most_true_positives": {"at": 0.01, "most": 0.05},
    }
    path = written(tmp_path, name="all", trained_on_records="no", **rules)
    found = read_policy(path)
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert set(found.policy.rules) == set(RULES)
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema("policy"))


WRONG = {
    "an unknown field": ("policy_version: 1\nepsilonn: 3", "epsilonn", "no such field"),
    "an unknown check": (
        "policy_version: 1\nchecks: [release.txet]",
        "checks",
        "Did you mean release.text?",
    ),
    "no version": ("epsilon: 3", "policy_version", "missing"),
    "another version": ("policy_version: 2\nepsilon: 3", "policy_version", "the value is 2"),
    "nothing asked": ("policy_version: 1", "", "asks for one thing at least"),
    "no mapping": ("- epsilon", "", "holds no mapping of fields"),
    "a field twice": ("policy_version: 1\nepsilon: 3\nepsilon: 4", "line 3", "given twice"),
    "a field without a value": (
        "policy_version: 1\nunit: record\nepsilon:",
        "epsilon",
        "has no value",
    ),
    "fields merged in": (
        "policy_version: 1\n<<: {epsilon: 1, epsilon: 100}",
        "line 2",
        "merged in",
    ),
    "a negative epsilon": ("policy_version: 1\nepsilon: -1", "epsilon", "the value is -1"),
    "text for a number": ("policy_version: 1\nepsilon: three", "epsilon", "the value is 'three'"),
    "a number as text": (
        'policy_version: 1\nepsilon: "3"',
        "epsilon",
        "is '3'. Allowed: a number, without quotes.",
    ),
    "a version that is no number": (
        "policy_version: true\nepsilon: 3",
        "policy_version",
        "is True. Allowed: 1.",
    ),
    "one check alone": (
        "policy_version: 1\nchecks: release.text",
        "checks",
        "Allowed: a list, such as",
    ),
    "a check that is no id": ("policy_version: 1\nchecks: [Text]", "checks.0", "the id of a check"),
    "an infinite epsilon": ("policy_version: 1\nepsilon: .inf", "epsilon", "the value is inf"),
    "a share above 1": ("policy_version: 1\nshort_texts: 2", "short_texts", "the value is 2"),
    "an advantage above 1": (
        "policy_version: 1\nmost_advantage: 2",
        "most_advantage",
        "the value is 2",
    ),
    "true positives at no rate": (
        "policy_version: 1\nmost_true_positives: {most: 0.05}",
        "most_true_positives.at",
        "missing",
    ),
    "a level that is none": ("policy_version: 1\nevidence: 5", "evidence", "the value is 5"),
    "an unknown kind": ("policy_version: 1\nkinds: [empirical]", "kinds.0", "empirical"),
    "no kinds": (
        "policy_version: 1\nkinds: []",
        "kinds",
        "the value is []. Allowed: a list of one",
    ),
    "a signer that is no key": (
        "policy_version: 1\nsigners: [me]",
        "signers.0",
        "Allowed: 64 digits from 0 to 9 and a to f.",
    ),
    "a model that saw the records": (
        "policy_version: 1\ntrained_on_records: yes",
        "trained_on_records",
        "'yes'",
    ),
    "a boolean for a word": (
        "policy_version: 1\ntrained_on_records: false",
        "trained_on_records",
        "is 'false'. Allowed",
    ),
    "an empty file": ("", "", "is empty"),
    "no YAML": ("epsilon: [", "", "not valid YAML"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_policy_that_asks_for_what_is_unknown_is_refused(
    tmp_path: Path,
    make_run: Callable[..., Run],
    dpaudit: Callable[..., tuple[int, str, str]],
    name: str,
) -> None:
    text, where, said = WRONG[name]
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_policy(path)
    assert where in error.value.where and said in str(error.value)
    code, out, err = dpaudit("verify", make_run().path, "--policy", path)
    assert (code, out) == (2, "")
    assert said in err


def test_commands_hold_a_run_to_a_policy(
    tmp_path: Path,
    make_run: Callable[..., Run],
    dpaudit: Callable[..., tuple[int, str, str]],
    empty_figures: None,
) -> None:
    run = make_run()
    path = written(tmp_path, epsilon=1000, relation="add_remove", delta=1)
    assert dpaudit("verify", run.path, "--policy", path)[0] == 0
    path = written(tmp_path, epsilon=0.5, relation="add_remove", unit="context")
    code, out, err = dpaudit(
        "verify", run.path, "--policy", path, "--junit", "found/junit.xml", "--sarif", "a.sarif"
    )
    assert code == 1
    assert (
        "FAIL policy.epsilon: measured epsilon" in out
        and "FAIL policy.unit: measured record" in out
    )
    assert "the policy: policy.epsilon and policy.unit" in " ".join(err.split())
    cases = ET.parse(tmp_path / "found" / "junit.xml").iter("testcase")
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert failed == {"policy.epsilon", "policy.unit"}
    alerts = json.loads((tmp_path / "a.sarif").read_text())["runs"][0]["results"]
    assert {alert["ruleId"] for alert in alerts if alert["level"] == "error"} == failed
    code, out, _ = dpaudit("report", run.path, "--policy", path, "--out", "report")
    assert code == 1 and "Failed: policy.epsilon" not in out
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["policy"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    jsonschema.validate(report, json_schema("report"))
    assert "house&#39;s policy" in (tmp_path / "report" / "report.html").read_text()


def test_a_policys_level_is_asked_for(
    tmp_path: Path, make_run: Callable[..., Run], dpaudit: Callable[..., tuple[int, str, str]]
) -> None:
    path = written(tmp_path, evidence=4)
    code, out, _ = dpaudit("verify", make_run().path, "--policy", path, "--json")
    found = json.loads(out)
    assert (code, found["evidence"]) == (1, 4)


def test_findings_are_not_written_into_the_record(
    make_run: Callable[..., Run], dpaudit: Callable[..., tuple[int, str, str]]
) -> None:
    run = make_run()
    for option in ("--junit", "--sarif"):
        code, _, err = dpaudit("verify", run.path, option, run / "found")
        assert code == 2 and "inside a run" in err


def test_a_policy_bounds_either_level(make_run: Callable[..., Run]) -> None:
    result = make_run(aggregator="mean", sizes=(4, 5, 4, 5), secret=True).audit()
    claim = result.claim
    assert (
        claim is not None
        and claim.batch_epsilon is not None
        and claim.epsilon < claim.batch_epsilon
    )
    assert (
        apply_policy(
            result, policy(epsilon=claim.epsilon, batch_epsilon=claim.batch_epsilon)
        ).verdict
        == "pass"
    )
    for rules in ({"epsilon": claim.epsilon * 0.99}, {"batch_epsilon": claim.batch_epsilon * 0.99}):
        found = apply_policy(result, policy(**rules))
        assert [outcome(found, name) for name in rules] == ["fail"]
    unsaid = result.model_copy(update={"claim": claim.model_copy(update={"batch_epsilon": None})})
    assert outcome(apply_policy(unsaid, policy(batch_epsilon=1000)), "batch_epsilon") == "fail", (
        "readers' level is no bound"
    )
    equal = make_run(aggregator="mean", sizes=(4, 5, 4, 5)).audit()
    assert outcome(apply_policy(equal, policy(batch_epsilon=1000)), "batch_epsilon") == "pass", (
        "it is of either level"
    )
