"""Runs planned by what attacks may gain: configs, plans, first configs, and their audits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from dpaudit.accounting import AttackLimit, limit_of
from dpaudit.accounting.renyi import most_variation
from dpaudit.auditing.run import audit_run
from dpaudit.generation.algorithm import prepare
from dpaudit.generation.config import Config
from dpaudit.generation.planning import plan
from dpaudit.runs import RunReader

MEAN = {"aggregator": "mean", "clip": 4.0, "divisor": 12.0, "contribution": "differences"}
RATES = {"at": 0.01, "most": 0.05}
DECODING = {"max_tokens": 6, "tokens_per_batch": 14, "test_seed": 7}

MakeConfig = Callable[..., Config]
Dpaudit = Callable[..., tuple[int, str, str]]


def limited(**privacy: Any) -> dict[str, Any]:
    mechanism = {**MEAN, "support": {"kind": "public-top-k", "size": 24}}
    return {
        "mechanism": mechanism,
        "privacy": {"delta": 1e-3} | privacy,
        "decoding": DECODING,
    }


@pytest.mark.parametrize("privacy", [{"advantage": 0.2}, {"true_positives": RATES}])
def test_a_limit_on_attacks_is_all_that_a_config_says(
    generated: Callable[..., Path], privacy: dict[str, Any]
) -> None:
    run = generated(**limited(**privacy))
    manifest, result = RunReader(run).manifest, audit_run(run, evidence=1)
    limit = limit_of(manifest.privacy)
    assert isinstance(limit, AttackLimit) and manifest.mechanism.budget is not None
    # The epsilon that the limit entails is claimed beforehand, and no more than it.
    assert manifest.claim is not None and manifest.claim_stated == "beforehand"
    assert manifest.claim.epsilon is not None and 0 < manifest.claim.epsilon < 3
    found = result.guarantees.approximate
    assert found is not None and found.attack is not None
    assert found.epsilon <= manifest.claim.epsilon <= found.epsilon * 1.01 + 1e-4
    reached = limit.reached(found.attack.curve)
    assert limit.most * (1 - 1e-3) < reached <= limit.most
    outcomes = {check.id: check.status for check in result.checks}
    assert outcomes["claim.risk"] == "pass"
    assert {name for name, status in outcomes.items() if status == "fail"} == {
        "mechanism.randomness"
    }
    settings = result.run.settings
    assert settings is not None and result.claim is not None


def test_a_users_limit_leaves_one_record_less(make_config: MakeConfig) -> None:
    user = {"unit": "user", "records_per_user": 3, "advantage": 0.2}
    found = [
        prepare(make_config(**limited(**privacy))).manifest
        for privacy in ({"advantage": 0.2}, user)
    ]
    one, three = (manifest.mechanism.budget for manifest in found)
    assert one is not None and three == pytest.approx(one / 9)
    assert most_variation(one) <= 0.2 < most_variation(one * (1 + 1e-6))


def test_one_limit_at_a_time_and_where_sums_keep_it(
    settings: Callable[..., dict[str, Any]],
) -> None:
    median = {"mechanism": {"aggregator": "median"}}
    for sections, field in (
        (median | {"privacy": {"advantage": 0.2}}, "privacy.advantage"),
        (median | {"privacy": {"true_positives": RATES}}, "privacy.true_positives"),
        (limited(advantage=0.2, delta=None), "privacy.delta"),
        (limited(advantage=0.2, epsilon=1.0), "advantage"),
        (limited(advantage=0.2, true_positives=RATES), "true_positives"),
        (limited(true_positives=RATES, epsilon=1.0), "true_positives"),
        (limited(true_positives={"at": 0.05, "most": 0.05}), "most"),
        (limited(true_positives={"at": 0.0, "most": 0.05}), "at"),
        (limited(advantage=1.0), "advantage"),
        (limited(advantage=0.2) | {"claim": {"epsilon": 9.0, "delta": 1e-3}}, "claim.epsilon"),
        (limited(advantage=0.2) | {"record": {"contexts": False}}, "record.contexts"),
    ):
        with pytest.raises(ValidationError) as caught:
            Config.model_validate(settings(**sections))
        assert field in str(caught.value.errors()), sections


def test_what_a_limit_leaves_nothing_for_is_refused_before_the_model(
    settings: Callable[..., dict[str, Any]],
    tmp_path: Path,
    encoder_folder: Path,
    dpaudit: Dpaudit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Noisy counts alone have an advantage of 1 - exp(-1/4), which is more than a fifth."""
    monkeypatch.setattr("dpaudit.generation.algorithm.load_model", None)
    public = tmp_path / "public.csv"
    public.write_text("text\n" + "".join(f"nobody {number}\n" for number in range(9)))
    counts = {"method": "public-centers-rebalanced", "centers": 2, "keep": 1, "epsilon": 0.5}
    clustering = counts | {"embedding": str(encoder_folder), "public": str(public)}
    labels = {"batches_per_label": None, "generate_per_label": None}
    for sections, figure in (
        ({"clustering": clustering, "batching": {"batches_per_cluster": 2} | labels}, "0.2213"),
        ({"privacy": {"advantage": 1e-300}}, "nothing"),
    ):
        values = settings(**{**limited(advantage=0.2), "decoding": {"test_seed": None}} | sections)
        values["privacy"]["delta"] = 1e-3
        for name, fields in values.items():
            values[name] = {key: field for key, field in fields.items() if field is not None}
        (tmp_path / "mean.yaml").write_text(yaml.safe_dump(values))
        for command in (("--dry-run",), ("--out", "run")):
            code, out, err = dpaudit("generate", "mean.yaml", *command)
            assert (code, out) == (2, "")
            assert "privacy.advantage" in err and figure in err, err


def test_plans_state_both_levels(
    make_config: MakeConfig, settings: Callable[..., dict[str, Any]], tmp_path: Path, dpaudit: Any
) -> None:
    for privacy, times in (({}, 1), ({"unit": "user", "records_per_user": 2}, 2)):
        config = make_config(**limited(**privacy))
        found = plan(config)
        assert found.attack is not None and found.batch_attack is not None
        eta = times * 2 * config.mechanism.clip / (12.0 * config.mechanism.temperature)
        # One draw is told by tanh(eta / 4), and all of them by no less.
        assert math.tanh(eta / 4) < found.batch_attack.advantage < 1
        assert found.attack.advantage <= found.batch_attack.advantage
    (tmp_path / "mean.yaml").write_text(yaml.safe_dump(settings(**limited(advantage=0.2))))
    code, said, _ = dpaudit("generate", "mean.yaml", "--dry-run", "--unverified")
    assert code == 0 and re.search(r"attacks +advantage 0\.(2000|1999)", said), said
    code, said, _ = dpaudit("generate", "mean.yaml", "--dry-run", "--unverified", "--json")
    shown = json.loads(said)
    assert code == 0 and 0.199 < shown["attack"]["advantage"] <= 0.2
    assert shown["attack"]["advantage"] <= shown["batch_attack"]["advantage"]
