"""Runs whose contexts have budgets of their own: from an epsilon to texts, through kills and memory that runs out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dpaudit.accounting import zcdp_epsilon
from dpaudit.audit import audit_run
from dpaudit.generation import worker
from dpaudit.generation.algorithm import generate, prepare
from dpaudit.generation.config import Config
from dpaudit.generation.planning import plan
from dpaudit.generation.replay import replay_run
from dpaudit.runs import RunReader

MEAN = {"aggregator": "mean", "clip": 4.0, "divisor": 12.0, "contribution": "differences"}
TOP = {"kind": "public-top-k", "size": 24}
DECODING = {"max_tokens": 6, "tokens_per_batch": 14, "test_seed": 7}
BUDGETS: dict[str, Any] = {
    "mechanism": {**MEAN, "support": TOP},
    "privacy": {"epsilon": 3.0, "delta": 1e-3},
    "decoding": DECODING,
}
#: Of runs with a test seed, whose other checks pass.
SEEDED = {"mechanism.randomness"}

MakeConfig = Callable[..., Config]


def spent(run: Path, batch: int) -> Any:
    """[T + 1, n], before the first token and after each."""
    with RunReader(run).batch(batch) as reader:
        steps = [*reader.steps()]
        assert all((after.spent[0] == before.spent[1]).all() for before, after in itertools.pairwise(steps))
        return np.array([steps[0].spent[0], *(step.spent[1] for step in steps)])


def test_an_epsilon_is_all_that_a_config_says(generated: Callable[..., Path]) -> None:
    run = generated(**BUDGETS)
    manifest, result = RunReader(run).manifest, audit_run(run, evidence=1)
    assert manifest.claim is not None and manifest.mechanism.budget is not None
    assert (manifest.claim.epsilon, manifest.claim.delta, manifest.claim_stated) == (3.0, 1e-3, "beforehand")
    assert {check.id for check in result.checks if check.status == "fail"} == SEEDED
    assert result.guarantees.approximate is not None and result.budgets is not None
    assert result.guarantees.approximate.method == "budgets"
    assert 3.0 - 1e-6 < result.guarantees.approximate.epsilon <= 3.0
    assert math.isclose(zcdp_epsilon(manifest.mechanism.budget, 1e-3), 3.0, rel_tol=1e-6)
    # Some are left out, and length goes on: it is public.
    assert result.budgets.left_out > 0 and any(0 < share < 1 for share in result.budgets.active)
    assert {batch.steps for batch in result.batches if batch.contexts} == {DECODING["tokens_per_batch"]}
    sums = spent(run, 0)
    assert (sums[0] == 0).all() and (np.diff(sums, axis=0) >= 0).all() and sums.max() <= manifest.mechanism.budget


def test_what_one_unit_changes_shares_the_budget(make_config: MakeConfig, tmp_path: Path) -> None:
    whole = RunReader(generate(make_config(**BUDGETS), tmp_path / "record")).manifest.mechanism.budget
    assert whole is not None
    slots = {"prompt": {"examples_per_context": 2}, "batching": {"slots": 5}}
    user = {"unit": "user", "records_per_user": 3}
    for name, share, sections in (
        ("replaced", 4, {"privacy": {"relation": "replace"}}),
        ("user", 9, {"privacy": user}),
        ("slots", 4, slots),
        ("context", 1, {"privacy": {"unit": "context"}}),
    ):
        merged = {key: {**BUDGETS.get(key, {}), **sections.get(key, {})} for key in BUDGETS.keys() | sections.keys()}
        run = generate(make_config(**merged), tmp_path / name)
        budget = RunReader(run).manifest.mechanism.budget
        assert budget is not None and whole / share * (1 - 1e-8) <= budget <= whole / share
        result = audit_run(Path(str(run)), evidence=1)
        assert {check.id for check in result.checks if check.status == "fail"} == SEEDED, name


def test_an_interruption_changes_no_sum(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(**BUDGETS)
    whole = Path(str(generate(config, tmp_path / "whole")))

    def stop_at_the_twentieth(event: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 20:
            raise KeyboardInterrupt

    steps = 0
    with pytest.raises(KeyboardInterrupt):
        generate(config, tmp_path / "resumed", stop_at_the_twentieth)
    resumed = Path(str(generate(config, tmp_path / "resumed")))

    own, failed = worker.aggregated, iter([True])

    def without_memory(*arguments: Any, **named: Any) -> Any:
        if (batch := arguments[0]).shape[0] and next(failed, False):
            raise MemoryError(f"{len(batch)} contexts")
        return own(*arguments, **named)

    monkeypatch.setattr(worker, "aggregated", without_memory)
    again = Path(str(generate(config, tmp_path / "again")))
    filled = [batch.id for batch in audit_run(whole).batches if batch.contexts]
    assert len(filled) > 1 and not next(failed, False)
    for run, batch in itertools.product((resumed, again), filled):
        np.testing.assert_array_equal(spent(run, batch), spent(whole, batch))


def test_a_replay_leaves_out_who_was_left_out(generated: Callable[..., Path], data_file: Path) -> None:
    run = generated(**BUDGETS)
    found = replay_run(run, str(data_file), steps=40, left_out=6, trials=2)
    assert found.whole and len(found.steps) == 40
    result = audit_run(run, evidence=4, replay=found)
    checks = {check.id: check.status for check in result.checks}
    assert [checks[name] for name in ("replay.logits", "neighbors.regenerated", "replay.lower-bound")] == ["pass"] * 3


def test_a_plan_says_what_every_budget_pays_for(make_config: MakeConfig) -> None:
    ready = prepare(make_config(**BUDGETS))
    mechanism = ready.manifest.mechanism
    sure = plan(make_config(**BUDGETS)).sure
    assert sure is not None and mechanism.budget is not None
    dearest, spent = np.array([[-mechanism.clip, mechanism.clip]], dtype=np.float32), np.zeros(1)
    for draws in range(1, sure + 3):
        after = mechanism.spend(dearest, spent)
        assert (after > spent).all() == (draws <= sure)
        spent = after
    assert plan(make_config(mechanism=BUDGETS["mechanism"], decoding=DECODING)).sure is None


def test_configs_that_budgets_do_not_fit(settings: Callable[..., dict[str, Any]]) -> None:
    for sections, field in (
        ({"mechanism": {"aggregator": "median"}, "privacy": {"epsilon": 3.0}}, "privacy.epsilon"),
        ({"mechanism": {"aggregator": "median", "budget": 0.1}}, "budget"),
        ({"mechanism": MEAN, "privacy": {"epsilon": 3.0}}, "privacy.delta"),
        ({"mechanism": {**MEAN, "budget": 0.1}, "privacy": BUDGETS["privacy"]}, "mechanism.budget"),
        ({"mechanism": MEAN, "privacy": BUDGETS["privacy"], "record": {"contexts": False}}, "record.contexts"),
        ({"mechanism": {**MEAN, "budget": 0.1}, "record": {"contexts": False}}, "record.contexts"),
        ({"mechanism": MEAN, "privacy": BUDGETS["privacy"], "claim": {"epsilon": 9.0, "delta": 1e-3}}, "claim.epsilon"),
        ({"mechanism": MEAN, "privacy": {"epsilon": math.inf, "delta": 1e-3}}, "epsilon"),
    ):
        with pytest.raises(ValidationError) as caught:
            Config.model_validate(settings(**sections))
        assert field in str(caught.value.errors()), sections
