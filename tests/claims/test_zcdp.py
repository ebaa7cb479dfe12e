"""Claims of zCDP: against rho recomputed by hand, at their edge, and beside other kinds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import dpaudit
from dpaudit.accounting import zcdp_epsilon
from dpaudit.accounting.renyi import most_variation
from dpaudit.auditing.comparison import compare_runs
from dpaudit.auditing.composition import compose_runs
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import Question, audit_run
from dpaudit.releasing.attestation import Beside, found_by
from dpaudit.releasing.policy import PolicyFile, apply_policy
from dpaudit.reports.findings import headline
from dpaudit.results import Finding
from dpaudit.results.attestation import ClaimTested
from dpaudit.results.catalogue import sentence
from dpaudit.results.policy import Policy
from dpaudit.results.release_layout import REGISTRY
from dpaudit.runs import Claim, InputError, RunReader
from dpaudit.runs.statements import Statement

MEAN = {"aggregator": "mean"}
BUDGETS: dict[str, Any] = {"sizes": (6, 7), "budget": 0.9, "max_tokens": 12, "divisor": 4.0, **MEAN}
REBALANCED: dict[str, Any] = {
    "clusters": "public-centers-rebalanced",
    "sizes": (3, 4, 5, 2),
    **MEAN,
}


def claim_rho(run: Any, rho: float, **fields: Any) -> None:
    """Let a run claim a rho in place of its epsilons."""
    claim = {"kind": "zcdp", "epsilon": None, "batch_epsilon": None, "rho": rho, **fields}
    run.edit_manifest({f"claim.{name}": value for name, value in claim.items()})
    run.rehash()


def by_hand(run: Any) -> float:
    """A run's rho: a budget, or eta^2 / 8 a token; plus half the square of each count's cost."""
    manifest = RunReader(run.path).manifest
    mechanism, counts = manifest.mechanism, manifest.clustering.counts
    divisor = mechanism.model_dump()["aggregator"]["divisor"]
    eta = 2 * mechanism.clip / (divisor * mechanism.temperature)
    tokens = eta**2 / 8 * manifest.decoding.most_tokens
    spent = 0.0 if counts is None else (1 / counts.scale) ** 2 / 2
    return min(tokens, mechanism.budget or math.inf) * manifest.batching.rounds + spent


@pytest.mark.parametrize("kind", [MEAN, BUDGETS, REBALANCED], ids=["means", "budgets", "counts"])
def test_rho_is_what_it_costs_and_passes_down_to_it(
    make_run: Callable[..., Any], failed: Callable[..., set[str]], kind: dict[str, Any]
) -> None:
    run = make_run(**kind)
    expected = by_hand(run)
    found = audit_run(run.path, Question(rho=expected * 2))
    assert found.guarantees.zcdp is not None
    rho = found.guarantees.zcdp.rho
    assert rho == pytest.approx(expected, rel=1e-6) and rho >= expected * (1 - 1e-15)
    claim_rho(run, rho)
    passed = audit_run(run.path)
    assert passed.verdict == "pass" and passed.claim is not None
    assert (passed.claim.kind, passed.claim.rho, passed.claim.epsilon) == ("zcdp", rho, None)
    claim_rho(run, math.nextafter(rho, 0))
    exceeded = audit_run(run.path)
    assert failed(exceeded) == {"claim.rho"}
    assert headline(exceeded) == sentence(Finding(code="headline.claim-exceeded"))


def test_epsilons_at_a_delta_stand_beside_a_rho(make_run: Callable[..., Any]) -> None:
    run = make_run(**BUDGETS)
    claim_rho(run, 0.9, delta=1e-4)
    found = audit_run(run.path)
    assert found.verdict == "pass" and found.guarantees.approximate is not None
    assert found.guarantees.approximate.batch_epsilon <= zcdp_epsilon(0.9, 1e-4)
    assert found.guarantees.approximate.epsilon <= found.guarantees.approximate.batch_epsilon
    claim_rho(run, 0.9, delta=0.0)
    found = audit_run(run.path)
    assert found.verdict == "pass" and found.guarantees.approximate is None
    assert dpaudit.audit(run.path, find_model=False).rho == 0.9


def test_a_rho_bounds_attacks_at_both_levels_with_a_delta_and_without(
    make_run: Callable[..., Any],
) -> None:
    run = make_run(**BUDGETS)
    found = {}
    for delta in (1e-4, 0.0):
        claim_rho(run, 0.9, delta=delta)
        zcdp = audit_run(run.path).guarantees.zcdp
        assert zcdp is not None and zcdp.attack is not None and zcdp.batch_attack is not None
        assert zcdp.attack.advantage <= zcdp.batch_attack.advantage
        # The run costs no more than it claims.
        assert zcdp.batch_attack.advantage <= most_variation(0.9) * (1 + 1e-4)
        found[delta] = zcdp.batch_attack
    assert found[0.0].advantage == pytest.approx(found[1e-4].advantage, rel=1e-3)
    claim_rho(run, 0.9, delta=1e-4)
    both = audit_run(run.path).guarantees
    assert both.zcdp is not None and both.approximate is not None
    assert both.zcdp.attack == both.approximate.attack
    audit = dpaudit.audit(run.path, find_model=False)
    assert both.zcdp.batch_attack is not None and audit.batch_attack is not None
    assert audit.batch_attack.advantage == both.zcdp.batch_attack.advantage
    assert audit.attack is not None and audit.attack.true_positives(0.01) < 1


def test_questions_change_the_kind(
    make_run: Callable[..., Any], failed: Callable[..., set[str]]
) -> None:
    run = make_run(**BUDGETS)
    assert failed(audit_run(run.path, Question(rho=0.89))) == {"claim.rho"}
    claim_rho(run, 0.9, delta=1e-4)
    found = audit_run(run.path, Question(epsilon=50.0))
    assert found.claim is not None and (found.claim.kind, found.claim.rho) == ("approximate", None)
    assert found.verdict == "pass"
    assert failed(audit_run(run.path, Question(epsilon=0.01))) == {"claim.epsilon"}
    with pytest.raises(InputError):
        audit_run(run.path, Question(batch_epsilon=3.0))
    with pytest.raises(InputError):
        dpaudit.audit(run.path, epsilon=1.0, rho=1.0)


def test_medians_have_no_rho(make_run: Callable[..., Any], failed: Callable[..., set[str]]) -> None:
    run = make_run()
    claim_rho(run, 99.0, delta=0.0)
    assert failed(audit_run(run.path)) == {"claim.kind", "claim.rho"}


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "zcdp", "epsilon": 1.0},
        {"kind": "zcdp", "rho": 1.0, "epsilon": 1.0},
        {"kind": "zcdp", "rho": 1.0, "batch_epsilon": 1.0},
        {"kind": "approximate", "rho": 1.0},
        {"kind": "ex-post", "epsilon": 1.0, "rho": 1.0},
    ],
)
def test_claims_state_what_their_kind_has(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Claim.model_validate(fields)


def test_others_learn_a_rho_that_was_settled_beforehand(make_run: Callable[..., Any]) -> None:
    run = make_run(**BUDGETS)
    claim_rho(run, 0.9, delta=1e-4)
    public = public_form(audit_run(run.path))
    assert public.claim is not None and public.claim.rho == 0.9
    assert public.guarantees.zcdp is not None and public.guarantees.ex_post is None
    attested = next(
        one
        for one in found_by(public, "zcdp", Beside()).configuration
        if isinstance(one, ClaimTested)
    )
    assert (attested.annotations.rho, attested.annotations.epsilon) == (0.9, None)
    assert "0.9" in public.guarantee.words


@pytest.mark.parametrize(
    ("asked", "fails"),
    [
        ({"rho": 0.9}, set()),
        ({"rho": 0.89}, {"policy.rho"}),
        ({"epsilon": 99.0}, {"policy.epsilon"}),
        ({"epsilon": 1.0, "batch_epsilon": 1.0, "rho": 0.9}, set()),
        ({"batch_epsilon": 99.0}, {"policy.batch-epsilon"}),
        ({"kinds": ["approximate"]}, {"policy.kinds"}),
        ({"kinds": ["approximate", "zcdp"]}, set()),
    ],
)
def test_policies_limit_the_figure_that_a_claim_promises(
    make_run: Callable[..., Any],
    failed: Callable[..., set[str]],
    asked: dict[str, Any],
    fails: set[str],
) -> None:
    run = make_run(**BUDGETS)
    claim_rho(run, 0.9, delta=1e-4)
    policy = PolicyFile(Policy.model_validate({"policy_version": 1, **asked}), "0" * 64)
    found = apply_policy(audit_run(run.path), policy)
    assert failed(found) == fails and found.verdict == ("fail" if fails else "pass")


def test_a_limit_of_rho_alone_admits_no_epsilon(
    make_run: Callable[..., Any], failed: Callable[..., set[str]]
) -> None:
    policy = PolicyFile(Policy.model_validate({"policy_version": 1, "rho": 99.0}), "0" * 64)
    assert failed(apply_policy(audit_run(make_run(**MEAN).path), policy)) == {"policy.rho"}


def test_rhos_are_compared_and_add_up(
    make_run: Callable[..., Any], dpaudit: Callable[..., Any]
) -> None:
    first, second, third = make_run(**BUDGETS), make_run(**BUDGETS, seed=5), make_run()
    claim_rho(first, 0.9)
    claim_rho(second, 0.95)
    results = {str(run.path): audit_run(run.path) for run in (first, second, third)}
    compared = compare_runs(results)
    rhos = [result.guarantees.zcdp for result in compared.runs.values()]
    assert [each and each.rho for each in rhos] == [0.9, 0.9, None]
    code, shown, _ = dpaudit(
        "compare", first.path, second.path, third.path, "--out", "compared.html"
    )
    assert code == 0
    for text in (Path("compared.html").read_text(), shown):
        assert "Claimed ρ, batch level" in text and "0.95" in text
    code, shown, _ = dpaudit("compose", first.path, second.path)
    assert code == 0 and "ρ ≤ 1.8" in shown
    statement = Statement.model_validate(
        {"name": "a table", "relation": "add_remove", "unit": "record", "zcdp": {"rho": 0.5}}
    )
    joint = compose_runs(
        {run.path: results[str(run.path)] for run in (first, second, third)}, [statement], 1e-4
    )
    assert joint.zcdp is not None
    assert joint.zcdp.rho >= 0.9 + 0.9 + 0.5 and joint.zcdp.rho == pytest.approx(2.3)
    assert joint.zcdp.reason is not None and joint.zcdp.reason.values == {
        "runs": (str(third.path),)
    }
    assert len(joint.zcdp.releases) == 3
    assert json.loads(joint.to_json())["zcdp"]["rho"] == joint.zcdp.rho
    assert (
        compose_runs({run.path: results[str(run.path)] for run in (second, third)}, [], 1e-4).zcdp
        is None
    )


@pytest.mark.usefixtures("empty_figures")
def test_a_release_states_its_rho(
    make_run: Callable[..., Any], dpaudit: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    run = make_run(**BUDGETS)
    claim_rho(run, 0.9, delta=1e-4)
    assert dpaudit("report", run.path, "--out", "report")[0] == 0
    assert (
        json.loads((tmp_path / "report" / "report.json").read_text())["guarantees"]["zcdp"]["rho"]
        == 0.9
    )
    assert dpaudit("report", run.path, "--out", "public", "--audience", "public")[0] == 0
    assert dpaudit("release", run.path, "--out", "texts", "--unsigned")[0] == 0
    card, registry = ((tmp_path / "texts" / name).read_text() for name in ("README.md", REGISTRY))
    assert "0.9-zero-concentrated" in card and "Zero-concentrated DP" in registry
    assert (
        yaml.safe_load(registry)["deployment"]["privacy_loss"]["privacy_parameters"]["rho"] == 0.9
    )
    for options, code in ((("--rho", "0.9"), 0), (("--rho", "0.89"), 1), (("--epsilon", "99"), 1)):
        assert dpaudit("verify", "texts", "--unsigned", *options)[0] == code


def test_the_epsilon_beside_a_published_rho_is_of_the_same_level(
    make_run: Callable[..., Any], dpaudit: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    run = make_run(**BUDGETS, secret=True)
    claim_rho(run, 0.9, delta=1e-4)
    found = audit_run(run.path).guarantees.approximate
    assert found is not None and found.epsilon < found.batch_epsilon
    assert dpaudit("release", run.path, "--out", "texts", "--unsigned")[0] == 0
    stated = yaml.safe_load((tmp_path / "texts" / REGISTRY).read_text())["deployment"][
        "privacy_loss"
    ]
    assert stated["privacy_parameters"] == {
        "epsilon": found.batch_epsilon,
        "delta": 1e-4,
        "rho": 0.9,
    }
