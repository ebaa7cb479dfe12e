"""Canaries in generated runs: in or out by coins alone, and nothing else moves with them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from pydantic import ValidationError

from dpaudit.auditing.batches import BatchAuditor
from dpaudit.auditing.checks.canaries import FoundCanaries
from dpaudit.auditing.run import audit_run
from dpaudit.generation import canaries as made_up
from dpaudit.generation.algorithm import generate
from dpaudit.generation.canaries import WORDS
from dpaudit.generation.config import Config
from dpaudit.generation.planning import plan
from dpaudit.generation.replay import replay_run
from dpaudit.runs import Claim, InputError, KeyedHash, RunReader
from dpaudit.runs.layout import CANARIES
from tests.forging import unfinish

COUNT = 16
BATCHES = {"batches_per_label": 9, "generate_per_label": 8}
ASKED = {"batching": BATCHES, "privacy": {"canaries": COUNT}}
MEAN = {
    "mechanism": {"aggregator": "mean", "divisor": 2.0},
    "privacy": {"canaries": COUNT, "delta": 1e-5},
}
BUDGETS = {
    "mechanism": MEAN["mechanism"],
    "privacy": {"canaries": COUNT, "delta": 1e-5, "epsilon": 6.0},
}
KINDS = {
    "median": {},
    "mean": MEAN,
    "budgets": BUDGETS,
    "differences": {
        "mechanism": {
            "contribution": "differences",
            "support": {"kind": "public-top-k", "size": 20},
        }
    },
    "several texts": {"decoding": {"tokens_per_batch": 12}},
}


def steps_of(run, batch):
    with RunReader(run).batch(batch) as reader:
        return reader.header, list(reader.steps())


def batch_of(reader):
    """A canary's batch, in a run of one round."""
    return lambda canary: canary.batches(reader.manifest.batching, reader.manifest.data.groups, 1)[
        0
    ]


def failed(run, **found):
    return {
        check.id: check.measured
        for check in audit_run(run, **found).checks
        if check.status in ("fail", "error")
    }


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_honest_runs_are_clean(generated, kind):
    sections = ASKED | kind
    run = generated(**sections, record={"contexts": None})
    assert failed(run).keys() <= {"mechanism.randomness"}
    found = {check.id: check for check in audit_run(run).checks}
    assert found["canaries.coins"].status == "pass"
    assert audit_run(run).guarantees.empirical.canaries.coins == COUNT


def test_each_is_in_a_batch_of_its_own_where_the_hash_sends_it(generated):
    reader = RunReader(generated(**ASKED))
    hashing = KeyedHash(bytes.fromhex(reader.manifest.batching.key))
    labels = reader.manifest.data.groups
    placed = {each.digest: each.batch for each in reader.assignment()}
    found = reader.canaries().canaries
    assert len(set(map(batch_of(reader), found))) == len(found) == COUNT
    assert {canary.included for canary in found} == {True, False}
    for number, canary in enumerate(found):
        digest = hashing.digest(canary.label, canary.text)
        own = hashing.of_round(0).batch(digest, 9) + 8 * labels.index(canary.label)
        assert batch_of(reader)(canary) == own
        assert placed.get(digest) == (own if canary.included else None)
        with reader.batch(own) as batch:
            assert batch.header.canary == number
        assert set(canary.text.split()) <= set(WORDS)
    assert reader.manifest.data.records == 10 + sum(canary.included for canary in found)


def test_rows_are_those_of_the_contexts_that_are_in(generated):
    run = generated(**ASKED)
    for canary in RunReader(run).canaries().canaries:
        header, steps = steps_of(run, batch_of(RunReader(run))(canary))
        for step in steps:
            rows = np.zeros((0, len(step.canary))) if step.contexts is None else step.contexts
            assert len(rows) == header.contexts
            assert (rows == step.canary).all(axis=1).any() == canary.included


def test_canaries_that_are_out_change_nothing(tmp_path, make_config, monkeypatch):
    """With all coins out, texts and records are those of a run without canaries, bit for bit."""
    monkeypatch.setattr(made_up.secrets, "randbits", lambda bits: 0)
    plain = {"batching": BATCHES, "record": {"contexts": True}}
    runs = {name: tmp_path / name for name in ("with", "without")}
    generate(make_config(**plain, privacy={"canaries": COUNT}), runs["with"])
    generate(make_config(**plain), runs["without"])
    assert (runs["with"] / "samples.jsonl").read_bytes() == (
        runs["without"] / "samples.jsonl"
    ).read_bytes()
    assert (runs["with"] / "assignment").read_bytes() == (
        runs["without"] / "assignment"
    ).read_bytes()
    for batch in range(COUNT):
        one, other = (steps_of(run, batch) for run in runs.values())
        assert dataclasses.replace(one[0], canary=None) == other[0]
        for step, same in zip(one[1], other[1], strict=True):
            assert step.aggregate_digest == same.aggregate_digest
            assert step.contexts is same.contexts is None or (step.contexts == same.contexts).all()
            assert step.canary is not None and same.canary is None


def test_one_that_is_in_changes_its_own_batch_alone(tmp_path, make_config, monkeypatch):
    """The same canaries with one coin turned: neighbouring data, as a claim per record means it."""
    coins, drawn = iter([0] * COUNT), made_up._draw_canaries
    monkeypatch.setattr(made_up.secrets, "randbits", lambda bits: next(coins))
    kept = []
    monkeypatch.setattr(
        made_up, "_draw_canaries", lambda *given: kept.append(drawn(*given)) or kept[0]
    )
    generate(make_config(**ASKED, record={"contexts": True}), tmp_path / "out")
    first, *rest = kept[0].canaries
    turned = kept[0].model_copy(
        update={"canaries": (first.model_copy(update={"included": True}), *rest)}
    )
    monkeypatch.setattr(made_up, "_draw_canaries", lambda *given: turned)
    generate(make_config(**ASKED, record={"contexts": True}), tmp_path / "in")
    moved = []
    for batch in range(COUNT):
        (before, steps), (after, same) = (
            steps_of(tmp_path / name, batch) for name in ("out", "in")
        )
        if [step.aggregate_digest for step in steps] != [step.aggregate_digest for step in same]:
            moved.append((batch, after.contexts - before.contexts))
        assert (steps[0].canary == same[0].canary).all()
    assert moved == [(batch_of(RunReader(tmp_path / "in"))(first), 1)]


def test_log_ratios_are_those_of_either_data_set(tmp_path, make_config, monkeypatch):
    """The audit's figures for a canary that is out equal a run's with it in, for these tokens."""
    monkeypatch.setattr(made_up.secrets, "randbits", lambda bits: 0)
    config = make_config(**ASKED)
    generate(config, tmp_path / "run")
    reader = RunReader(tmp_path / "run")
    batch, mechanism = batch_of(reader)(reader.canaries().canaries[0]), reader.manifest.mechanism
    _, steps = steps_of(tmp_path / "run", batch)
    loss = 0.0
    for step in steps:
        rows = (
            np.zeros((0, len(step.canary)), np.float32) if step.contexts is None else step.contexts
        )
        logs = []
        for values in (np.vstack([rows, step.canary]), rows):
            scores = (
                np.median(values, axis=0) if len(values) else np.zeros(rows.shape[1])
            ) / mechanism.temperature
            logs.append(scores[step.token] - np.log(np.exp(scores).sum()))
        loss += logs[0] - logs[1]
    found = BatchAuditor(str(tmp_path / "run"), None)([batch])[0].evidence[FoundCanaries]
    assert found.added == pytest.approx(loss, abs=1e-5)
    assert not found.among


def test_a_run_that_was_interrupted_goes_on_with_its_coins(tmp_path, make_config, generated):
    whole = generated(**ASKED)
    config, run = make_config(**ASKED), tmp_path / "run"
    generate(config, run)
    for batch in (3, 5):
        (run / f"steps/{batch:08d}.zip").unlink()
    unfinish(run)
    before = (run / CANARIES).read_bytes()
    generate(config, run)
    assert (run / CANARIES).read_bytes() == before != (whole / CANARIES).read_bytes()
    assert failed(run).keys() <= {"mechanism.randomness"}


def test_going_on_with_other_canaries_is_refused(tmp_path, make_config):
    run, batching = tmp_path / "run", {"batches_per_label": 9, "generate_per_label": 9}
    generate(make_config(batching=batching, privacy={"canaries": COUNT}), run)
    unfinish(run)
    for privacy in ({}, {"canaries": COUNT + 1}):
        with pytest.raises(InputError, match=r"privacy\.canaries"):
            generate(
                make_config(batching=batching, privacy=privacy, record={"contexts": True}), run
            )


def test_a_replay_finds_the_run_as_it_is(generated, data_file):
    run = generated(**ASKED)
    found = replay_run(run, str(data_file), steps=20, left_out=3, trials=1)
    assert found.assignment is None
    assert all(step.difference <= step.tolerance and not step.problems for step in found.steps)
    assert failed(run, replay=found).keys() <= {"mechanism.randomness"}


def test_a_plan_says_what_they_could_refute(make_config):
    found = plan(make_config(**ASKED))
    assert found.canaries == COUNT
    assert found.refutable == pytest.approx(-np.log(0.05 ** (-1 / COUNT) - 1), rel=1e-6)
    with_delta = plan(make_config(**{**ASKED, **MEAN}))
    assert with_delta.refutable < found.refutable
    assert plan(make_config(batching=BATCHES)).canaries is None


REFUSED = {
    "too few": ({"privacy": {"canaries": 15}}, "at least 16"),
    "more than batches": ({"privacy": {"canaries": 17}}, "16 batches"),
    "slots": ({**ASKED, "batching": BATCHES | {"slots": 3}}, "null with privacy.canaries"),
    "slices": (
        {
            **ASKED,
            "batching": {
                "rule": "paper-slices",
                "batches_per_label": None,
                "generate_per_label": 8,
                "slots": 3,
            },
            "privacy": {"canaries": 16, "unit": "context"},
        },
        "hashed with privacy.canaries",
    ),
    "no contexts": ({**ASKED, "record": {"contexts": False}}, "null or true with privacy.canaries"),
    "no delta": (
        {**ASKED, **MEAN, "privacy": {"canaries": 16}},
        "above 0 and below 1 with privacy.canaries",
    ),
}


@pytest.mark.parametrize(("sections", "said"), REFUSED.values(), ids=REFUSED)
def test_configs_that_they_do_not_go_with_are_refused(make_config, sections, said):
    with pytest.raises(ValidationError) as refused:
        make_config(**{"batching": BATCHES, **sections})
    assert said in str(refused.value)


def test_clusters_have_none(settings):
    values = settings(privacy={"canaries": COUNT}, clustering={"method": "k-means", "centers": 2})
    values["batching"] = {"rule": "hashed", "batches_per_cluster": 8, "generate_per_cluster": 8}
    values["chosen_from"]["batching"] = "private"
    with pytest.raises(ValidationError, match=r"null with privacy\.canaries"):
        Config.model_validate(values)


def test_runs_that_go_on_from_others_have_none(tmp_path, make_config, generated):
    spent = {
        "mechanism": MEAN["mechanism"],
        "privacy": {"delta": 1e-5, "epsilon": 6.0},
        "batching": BATCHES,
    }
    earlier = generated(**spent)
    with pytest.raises(InputError, match="--spent"):
        generate(
            make_config(**{**spent, "privacy": BUDGETS["privacy"]}),
            tmp_path / "run",
            spent=[earlier],
        )


def test_a_claim_per_record_covers_them(generated):
    """A canary that comes or goes costs its batch no more than any record."""
    run = generated(**ASKED)
    result = audit_run(run)
    claim = RunReader(run).manifest.claim
    assert isinstance(claim, Claim) and result.guarantees.ex_post.batch_epsilon <= claim.epsilon
