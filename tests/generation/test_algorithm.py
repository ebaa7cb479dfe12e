import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpaudit.accounting import ExPostAccountant, context_changes, mean_epsilon, median_of
from dpaudit.runs import InputError, RunReader, Step, aggregate_digest
from generation.algorithm import BatchDone, BatchStarted, Event, StepDone, generate
from generation.config import Config

MakeConfig = Callable[..., Config]

MEAN = {"aggregator": "mean", "divisor": 4.0}
SLOTS = {"prompt": {"examples_per_context": 2}, "batching": {"slots": 3}}
SLICES = {
    "batching": {"rule": "paper-slices", "batches_per_label": None, "slots": 4},
    "privacy": {"unit": "context"},
}


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
    accountant = ExPostAccountant(context_changes("record", "add_remove", "hashed-records"), 1.0)
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
    assert 0 <= claim.epsilon - mean_epsilon(4.0, 1.0, 4.0, 5, claim.delta) < 1e-4


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
    config = make_config(mechanism=mechanism)
    with pytest.raises(KilledError):
        generate(config, tmp_path / "broken", kill_at(*place))
    assert RunReader(tmp_path / "broken").batches == tuple(range(place[0]))
    events: list[Event] = []
    generate(config, tmp_path / "broken", events.append)
    assert sum(isinstance(event, BatchDone) and event.resumed for event in events) == place[0]
    assert_same_runs(tmp_path / "broken", generate(config, tmp_path / "whole"))


def test_a_run_that_was_killed_equals_an_unbroken_one(
    tmp_path: Path, settings: Callable[..., dict[str, Any]], make_config: MakeConfig
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings()))
    script = """
import os, signal, sys
from pathlib import Path
from generation import StepDone, generate, load_config

def progress(event):
    if isinstance(event, StepDone) and event.batch == 2 and event.tokens == 2:
        os.kill(os.getpid(), signal.SIGKILL)

generate(load_config(Path("config.yaml")), Path("broken"), progress)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert RunReader(tmp_path / "broken").batches == (0, 1)
    generate(make_config(), tmp_path / "broken")
    assert_same_runs(tmp_path / "broken", generate(make_config(), tmp_path / "whole"))


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
    def broken(logits: np.ndarray, clip: float) -> np.ndarray:
        raise ValueError("the model gave NaN or infinite logits")

    monkeypatch.setattr("generation.algorithm.clip_logits", broken)
    with pytest.raises(InputError, match="batch 0, step 0") as caught:
        generate(make_config(), tmp_path / "run")
    assert canary not in str(caught.value)
