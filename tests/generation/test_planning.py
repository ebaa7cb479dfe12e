"""What is said of a run beforehand is what the run turns out to be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpaudit.generation import expected
from dpaudit.generation.config import Config
from dpaudit.generation.planned import planned_run
from dpaudit.generation.planning import plan, rows_of
from dpaudit.results.plan import Plan
from dpaudit.runs import RunReader

MEAN = {"mechanism": {"aggregator": "mean", "divisor": 4.0}, "privacy": {"delta": 1e-5}}
RECORDED = MEAN | {"record": {"contexts": True}}


def test_a_plan_is_what_the_run_turns_out_to_be(
    make_config: Callable[..., Config], generated: Callable[..., Path]
) -> None:
    for asked in ({}, MEAN, {"decoding": {"max_tokens": 4, "tokens_per_batch": 9}}):
        config, run = make_config(**asked), RunReader(generated(**asked))
        found, weighed, contexts = plan(config), [], []
        for batch in run.batches:
            with run.batch(batch) as opened:
                # All steps of a batch weigh as much; how many there are is drawn.
                weighed.append(
                    sum(array.nbytes for array in next(iter(opened.steps())).arrays.values())
                )
                contexts.append(opened.header.contexts)
        assert found.contexts == pytest.approx(sum(contexts) / len(contexts), rel=0.5), (
            "expected, not drawn"
        )
        assert (found.records, found.labels, found.tokens) == (
            run.manifest.data.records,
            2,
            config.decoding.most_tokens,
        )
        assert found.stored == pytest.approx(sum(weighed) * found.tokens)
        assert found.seconds > 0 and found.audit > 0 and not found.large
        stated = run.manifest.claim
        assert stated is not None
        assert found.claim is None or found.claim.epsilon == stated.epsilon
        assert (found.claim is None) == (stated.kind == "ex-post")


def test_a_plan_says_what_else_its_epsilon_gives(make_config: Callable[..., Config]) -> None:
    margin = {"support": {"kind": "public-top-k", "size": 50, "margin": 0.1}}
    aggregator = {"aggregator": "mean", "divisor": 4.0, "clip": 0.1}
    asked = MEAN | {"mechanism": aggregator | margin, "record": {"contexts": True}}
    found = plan(make_config(**asked))
    assert found.claim is not None and found.menu is not None
    # By public numbers alone: two batches of each of two labels, for some four records each.
    assert (found.menu.records, found.menu.labels, found.records) == (16, 2, 10)
    stated = make_config(**asked, batching={"records": 19})
    again = plan(stated).menu
    assert again is not None and again.records == 19  # what its user said, and no other number
    many, *others = found.menu.offers
    assert many.texts >= found.batches and others
    for offer in found.menu.offers:
        assert offer.epsilon is not None and offer.epsilon <= (found.claim.epsilon or 0)
        assert (offer.seconds or 0) > 0 and (offer.audit or 0) > 0
        # of 50 tokens or a few more: ids, and aggregate and contributions in float64
        step = 50 * (4 + 8 + 8 * round(offer.contexts))
        assert offer.stored == step * offer.texts * found.menu.tokens
    assert plan(make_config()).menu is None  # an ex-post claim
    assert plan(make_config(**RECORDED | {"batching": {"slots": 3}})).menu is None


def test_a_record_of_every_contribution_to_every_token_is_warned_about(
    make_config: Callable[..., Config],
    settings: Callable[..., dict[str, Any]],
    tmp_path: Path,
    dpaudit: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manifest = planned_run(make_config(**RECORDED)).manifest
    # The paper's size: 1,700 batches of 64 contexts, 367 steps over 256,000 tokens in float32.
    record = manifest.record.model_copy(update={"vocabulary": 256_000, "dtype": "float32"})
    batching = manifest.batching.model_copy(update={"batches": 1700})
    decoding = manifest.decoding.model_copy(update={"max_tokens": 367})
    update = {"record": record, "batching": batching, "decoding": decoding}
    large = expected.large_record(manifest.model_copy(update=update), 64.0)
    assert large is not None and large[0] == 1700 * 367 * 64 * 256_000 * 4
    assert 50 < large[1] / 3600 < 200
    (tmp_path / "mean.yaml").write_text(yaml.safe_dump(settings(**RECORDED)))
    top = {"mechanism": {**MEAN["mechanism"], "support": {"kind": "public-top-k", "size": 9}}}
    (tmp_path / "top.yaml").write_text(yaml.safe_dump(settings(**RECORDED | top)))
    monkeypatch.setattr(expected, "_LARGE", 1)
    for name, warned in (("mean", True), ("top", False)):
        planned = dpaudit("generate", f"{name}.yaml", "--dry-run", "--unverified")[1]
        made = dpaudit("generate", f"{name}.yaml", "--out", name, "--unverified", "--no-worth")[2]
        for said in (planned, made):
            assert ("record.contexts" in said) == warned


def test_budgets_that_buy_nothing_are_named_beforehand(
    settings: Callable[..., dict[str, Any]],
    tmp_path: Path,
    dpaudit: Callable[..., tuple[int, str, str]],
) -> None:
    for epsilon, buys in ((500.0, False), (0.01, True)):
        made = settings(**RECORDED | {"privacy": {"delta": 1e-5, "epsilon": epsilon}})
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(made))
        code, said, _ = dpaudit("generate", "own.yaml", "--dry-run", "--unverified", "--json")
        found = Plan.model_validate_json(said)
        assert code == 0 and found.sure is not None
        assert (found.sure < found.tokens) == buys
        said = dpaudit("generate", "own.yaml", "--dry-run", "--unverified")[1]
        assert ("nothing" in said.partition("budgets")[2].splitlines()[0]) == (not buys)


def test_slots_in_rounds_pass_with_a_replay_of_the_data_alone(
    settings: Callable[..., dict[str, Any]],
    tmp_path: Path,
    dpaudit: Callable[..., tuple[int, str, str]],
) -> None:
    for slots, rounds, needs in ((3, 2, True), (3, 1, False), (None, 2, False)):
        batching = {"slots": slots, "rounds": rounds}
        made = settings(**RECORDED | {"batching": batching, "decoding": {"test_seed": None}})
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(made))
        said = dpaudit("generate", "own.yaml", "--dry-run", "--unverified")[1]
        assert ("--data" in said) == needs
        code, said, _ = dpaudit("generate", "own.yaml", "--dry-run", "--unverified", "--json")
        assert (code, Plan.model_validate_json(said).needs_data) == (0, needs)


def test_a_claim_that_readers_outside_will_not_be_told_is_named_beforehand(
    make_config: Callable[..., Config],
    settings: Callable[..., dict[str, Any]],
    tmp_path: Path,
    dpaudit: Any,
) -> None:
    assert plan(make_config(**MEAN)).withheld == plan(make_config()).withheld == ""
    users = {"data": {"user": "label"}, "privacy": {"delta": 1e-5, "unit": "user"}}
    assert (
        plan(
            make_config(
                **RECORDED | users | {"privacy": users["privacy"] | {"records_per_user": 9}}
            )
        ).withheld
        == ""
    )
    (tmp_path / "mean.yaml").write_text(yaml.safe_dump(settings(**RECORDED | users)))
    said = " ".join(dpaudit("generate", "mean.yaml", "--dry-run", "--unverified")[1].split())
    assert "it rests on how many records one user has" in said
    assert "Declare privacy.records_per_user" in said
    assert (
        "Declare privacy.delta"
        in plan(make_config(**RECORDED | {"privacy": {"delta": None}})).withheld
    )


def test_a_dry_run_writes_nothing_and_says_it_in_80_columns(
    settings: Callable[..., dict[str, Any]],
    tmp_path: Path,
    dpaudit: Callable[..., tuple[int, str, str]],
) -> None:
    (tmp_path / "mean.yaml").write_text(yaml.safe_dump(settings(**RECORDED)))
    before = set(tmp_path.iterdir())
    code, said, _ = dpaudit("generate", "mean.yaml", "--dry-run")
    assert code == 0
    for part in (
        "10 records, 2 labels",
        "4, at most 5 tokens each",
        "δ = 1e-5",
        "s on this machine",
        "kB",
        "sampling.seed:",
    ):
        assert part in said
    assert max(map(len, said.splitlines())) <= 80 and "bfloat16" not in said
    code, said, _ = dpaudit("generate", "mean.yaml", "--dry-run", "--json")
    assert (code, Plan.model_validate_json(said).longest) == (0, 5)
    half = settings(**RECORDED, model={"dtype": "bfloat16"})
    (tmp_path / "mean.yaml").write_text(yaml.safe_dump(half))
    assert "bfloat16" in dpaudit("generate", "mean.yaml", "--dry-run")[1]
    assert set(tmp_path.iterdir()) == before
    for wrong in (["--dry-run", "--out", "run"], ["--dry-run", "--public-only"], []):
        assert dpaudit("generate", "mean.yaml", *wrong)[0] == 2


def test_a_plans_time_has_the_baseline_and_the_records_that_are_measured() -> None:
    """Each of these costs as much as a text."""
    assert [len(expected.measured(texts)) for texts in (4, 16, 24, 200)] == [4, 16, 12, 16]
    assert rows_of(24, 32.0, 1, held_out=True) == (24 + 12) * 32 + 24
    assert rows_of(48, 32.0, 2, held_out=True) == (48 + 12) * 32 + 48
    assert rows_of(24, 32.0, 1, held_out=False) == 24 * 32 + 24
