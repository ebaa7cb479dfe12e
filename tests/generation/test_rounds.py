"""Runs of several rounds: whole, interrupted, stopped early, in workers; and secret drawn sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dpaudit.auditing.run import audit_run
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.events import BatchDone, Event, RecordsPlaced
from dpaudit.generation.replay import replay_run
from dpaudit.runs import InputError, KeyedHash, RunReader
from dpaudit.runs.engines import LocalEngine
from tests.forging import unfinish

MakeConfig = Callable[..., Config]
ROUNDS = 3
SECRET: dict[str, Any] = {
    "batches_per_label": 4,
    "generate_per_label": 2,
    "rounds": ROUNDS,
    "key": None,
}
MEAN: dict[str, Any] = {
    "mechanism": {"aggregator": "mean", "divisor": 8.0, "clip": 1.0},
    "privacy": {"delta": 1e-3},
    "record": {"contexts": True},
}
RULES: dict[str, dict[str, Any]] = {
    "records": {},
    "slots": {"prompt": {"examples_per_context": 2}, "batching": {"slots": 3}},
    "cells": {"prompt": {"examples_per_context": 2}, "batching": {"cells": 3}},
    "mean": MEAN,
    "budgets": MEAN | {"privacy": {"delta": 1e-3, "epsilon": 5.0}},
    "canaries": {
        "batching": {"batches_per_label": 60, "generate_per_label": 9},
        "privacy": {"canaries": 16},
    },
}


def asked(rule: str = "records", **batching: Any) -> dict[str, Any]:
    sections = {"decoding": {"max_tokens": 3, "test_seed": None}, **RULES[rule]}
    return sections | {"batching": SECRET | sections.get("batching", {}) | batching}


def failed(run: Any, **given: Any) -> dict[str, str]:
    return {
        check.id: check.measured
        for check in audit_run(run, **given).checks
        if check.status in ("fail", "error")
    }


@pytest.mark.parametrize("rule", RULES)
def test_honest_runs_pass_and_their_replay_finds_them_so(
    generated: Callable[..., Path], data_file: Path, rule: str
) -> None:
    run = generated(**asked(rule))
    assert failed(run) == {}
    reader = RunReader(run)
    manifest = reader.manifest
    assert len(reader.batches) == manifest.batches == ROUNDS * manifest.batching.per_round
    assert manifest.batching.allocation is not None and manifest.batching.allocation.secret
    found = replay_run(run, str(data_file), steps=200, left_out=2, trials=0)
    assert found.assignment is None
    assert all(not step.problems and step.difference <= step.tolerance for step in found.steps)
    assert failed(run, replay=found) == {}


def test_each_round_has_its_own_places_and_the_file_says_groups_alone(
    generated: Callable[..., Path],
) -> None:
    reader = RunReader(generated(**asked()))
    batching, lines = reader.manifest.batching, list(reader.assignment())
    assert {(line.batch, line.slot) for line in lines} <= {(0, None), (1, None)} and len(
        lines
    ) == 10
    keyed, held = KeyedHash(bytes.fromhex(batching.key or "")), Counter[int]()
    for number in range(ROUNDS):
        for line in lines:
            place = keyed.of_round(number).batch(line.digest, 4)
            if place < 2:
                held[number * batching.per_round + 2 * (line.batch or 0) + place] += 1
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            assert opened.header.contexts == held[batch]
            assert opened.header.label == ("north", "south")[batch % 4 // 2]


def test_a_run_that_was_killed_goes_on_in_its_round(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    config, run = make_config(**asked(), model={"rows": 1}), tmp_path / "run"

    def kill(event: Event) -> None:
        if isinstance(event, BatchDone) and event.batch == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(config, run, kill)
    assert 0 < len(RunReader(run).batches) < 12
    generate(config, run)
    assert failed(run) == {}
    assert len(RunReader(run).batches) == 12


def test_workers_place_the_same_rounds(tmp_path: Path, make_config: MakeConfig) -> None:
    """Each reads the data anew, and knows neither key nor round from the process that asks it."""
    run = generate(make_config(**asked()), tmp_path / "run", engine=LocalEngine(1))
    assert failed(run) == {}


def test_a_run_is_stopped_after_rounds_that_are_whole(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    config, run = make_config(**asked("mean")), tmp_path / "run"
    generate(config, run, stop_after=2)
    reader = RunReader(run)
    assert (reader.manifest.stopped_after, reader.manifest.rounds, len(reader.batches)) == (2, 2, 8)
    assert failed(run) == {}
    claim = reader.manifest.claim
    whole = RunReader(generate(config, tmp_path / "whole")).manifest.claim
    assert claim is not None and claim == whole, "it costs what all rounds do"


def test_rejects_a_stop_before_batches_that_are_there(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    config, run = make_config(**asked()), tmp_path / "run"
    generate(config, run, stop_after=2)
    unfinish(run)
    with pytest.raises(InputError, match="already stopped after 2 rounds"):
        generate(config, run, stop_after=1)
    run = tmp_path / "other"
    generate(config, run)
    unfinish(run)
    with pytest.raises(InputError) as refused:
        generate(config, run, stop_after=1)
    assert (
        "round 3 are already finished" in str(refused.value)
        and "Leave out --stop-after" in refused.value.remedy
    )
    for rounds in (ROUNDS, 7):
        with pytest.raises(InputError, match="--stop-after"):
            generate(config, tmp_path / "new", stop_after=rounds)


def test_a_split_delta_gives_every_number_of_rounds_an_epsilon(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    sections = asked("mean") | {"privacy": {"delta": 1e-3, "split_delta": True}}
    run = generate(make_config(**sections), tmp_path / "run", stop_after=1)
    assert failed(run) == {}
    manifest, found = RunReader(run).manifest, audit_run(run).guarantees.approximate
    assert manifest.privacy.split_delta and manifest.claim is not None and found is not None
    assert found.epsilon < manifest.claim.epsilon


def test_a_key_that_was_given_hides_nothing(generated: Callable[..., Path]) -> None:
    given = RunReader(generated(**asked("mean", key="0f" * 32))).manifest
    drawn = RunReader(generated(**asked("mean"))).manifest
    assert given.batching.allocation is not None and not given.batching.allocation.secret
    assert given.claim is not None and drawn.claim is not None
    assert given.claim.epsilon == given.claim.batch_epsilon == drawn.claim.batch_epsilon
    assert drawn.claim.epsilon < drawn.claim.batch_epsilon
    run = generated(**asked("mean") | {"privacy": {"delta": 1e-3, "amplification": "none"}})
    claim = RunReader(run).manifest.claim
    assert claim is not None and claim.epsilon == claim.batch_epsilon == drawn.claim.batch_epsilon
    assert failed(run) == {}


def test_nobody_is_told_what_the_key_made_of_batches(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    """What is told before the first token is the same under two keys, whatever sizes they give."""
    told = []
    for key in ("0f", "f0"):
        events: list[Event] = []
        generate(make_config(**asked(key=key * 32)), tmp_path / key, events.append)
        told.append([event for event in events if isinstance(event, RecordsPlaced)])
    assert told[0] == told[1] and len(told[0]) == 1
    assert told[0][0].contexts == 10 / 2 / 4


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "slices": (
        {
            "batching": {
                "rule": "paper-slices",
                "slots": 2,
                "rounds": 2,
                "batches_per_label": None,
            },
            "privacy": {"unit": "context"},
        },
        "1 when rule is paper-slices",
    ),
    "users who share": (
        MEAN
        | {
            "data": {"user": "label"},
            "batching": {"rounds": 2},
            "privacy": {"delta": 1e-3, "epsilon": 5.0, "unit": "user", "records_per_user": 9},
        },
        "share a budget",
    ),
    "split without rounds": (
        MEAN | {"privacy": {"delta": 1e-3, "split_delta": True}},
        "without several",
    ),
    "split without delta": (
        {"batching": {"rounds": 2}, "privacy": {"split_delta": True}},
        "which has no delta",
    ),
    "least without records": ({"batching": {"least_batches": 2}}, "null without records_per_batch"),
    "too many": (
        {"batching": {"rounds": 1 << 20, "batches_per_label": 90, "generate_per_label": 90}},
        "batches in a round",
    ),
    "crowded canaries": (
        {
            "batching": {"rounds": 50, "batches_per_label": 20, "generate_per_label": 18},
            "privacy": {"canaries": 30},
        },
        "a batch of its own in each of 50 rounds",
    ),
}


@pytest.mark.parametrize(("sections", "said"), REFUSED.values(), ids=REFUSED)
def test_configs_that_rounds_do_not_go_with_are_refused(
    make_config: MakeConfig, sections: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        make_config(**sections)
    assert said in str(refused.value)


def test_budgets_that_earlier_runs_spent_have_no_rounds(
    tmp_path: Path, make_config: MakeConfig, generated: Callable[..., Path]
) -> None:
    one = generated(**asked("budgets", rounds=1))
    with pytest.raises(InputError, match=r"batching\.rounds"):
        generate(make_config(**asked("budgets")), tmp_path / "run", spent=[one])
    several = generated(**asked("budgets"))
    with pytest.raises(InputError, match="several rounds"):
        generate(make_config(**asked("budgets", rounds=1)), tmp_path / "run", spent=[several])


def test_rounds_that_have_the_places_of_another_are_seen(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = KeyedHash.of_round
    monkeypatch.setattr(KeyedHash, "of_round", lambda keyed, number: honest(keyed, 0))
    run = generate(make_config(**asked(batches_per_label=2, key="0f" * 32)), tmp_path / "run")
    monkeypatch.undo()
    assert "partition.disjoint" in failed(run)


def test_rounds_of_slots_that_have_the_places_of_another_never_pass(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, data_file: Path
) -> None:
    """As many contexts are in each batch, whatever its records: only the data show the places."""
    honest = KeyedHash.of_round
    monkeypatch.setattr(KeyedHash, "of_round", lambda keyed, number: honest(keyed, 0))
    run = generate(make_config(**asked("slots", batches_per_label=2)), tmp_path / "run")
    monkeypatch.undo()
    found = audit_run(run)
    assert failed(run) == {} and found.verdict == "not_verified"
    assert "amplification.records" in found.not_checked
    replayed = replay_run(run, str(data_file), steps=200, left_out=0, trials=0)
    assert "replay.logits" in failed(run, replay=replayed)
