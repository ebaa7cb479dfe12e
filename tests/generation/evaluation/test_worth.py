"""What the records added: records that are held out, their gain, its price, and its neighbours."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting.worth import sensitivity, steps_of
from dpaudit.api.audits import audit
from dpaudit.api.generating import Config as FrontDoorConfig
from dpaudit.api.generating import generate
from dpaudit.auditing.run import audit_run
from dpaudit.commands.cli import main
from dpaudit.generation.algorithm import prepare
from dpaudit.generation.config import Config
from dpaudit.generation.evaluation.texts import RealData
from dpaudit.generation.evaluation.worth import GainByBatch, paid_gain, pay_for_gain
from dpaudit.generation.rebuilt import RunParts
from dpaudit.reports.worth import paid_words
from dpaudit.results.quality_file import read_worth, write_measures
from dpaudit.results.worth import Worth
from dpaudit.runs import InputError, KeyedHash, RunReader
from dpaudit.runs.public import PublicReader

KEY = "0f" * 32
WORDS = ("rain", "fog", "snow", "hail", "wind", "sun", "heat", "dust")
ROWS = [
    ("north" if number % 2 else "south", f"{word} on day {number}")
    for number, word in enumerate(WORDS * 4)
]
HELD_OUT: dict[str, Any] = {
    "batching": {"held_out": 0.4},
    "decoding": {"max_tokens": 12},
    "sampling": {"generator": "os-entropy"},
}


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *rows])
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "days.csv", ROWS)


def parts_of(config: Config) -> RunParts:
    ready = prepare(config)
    return RunParts(
        ready.manifest, ready.model, ready.prompts, ready.records.batches, ready.records.held_out
    )


def by_batch(config: Config) -> GainByBatch:
    parts = parts_of(config)
    return GainByBatch(parts, range(parts.manifest.batching.per_round), 4, lambda *_: None)


def test_a_keyed_hash_of_the_record_alone_holds_it_out(
    make_config: Callable[..., Config], data: Path
) -> None:
    """Nobody else moves, and the records that stay keep their batches."""
    asked = {"data": {"path": str(data)}}
    everyone, fewer = (
        prepare(make_config(**asked, batching={"held_out": share})).records for share in (0.0, 0.4)
    )
    hashing = KeyedHash(bytes.fromhex(KEY))
    out = {place.digest for place in fewer.assignment if hashing.holds_out(place.digest, 400_000)}
    assert 5 < len(out) < 22
    for before, after in zip(everyone.assignment, fewer.assignment, strict=True):
        assert before.digest == after.digest
        assert after.batch == (None if after.digest in out else before.batch)
    shown = {record for batch in fewer.batches for context in batch.contexts for record in context}
    by_digest = {hashing.digest(record.label, record.text): record for record in shown}
    assert by_digest.keys().isdisjoint(out)
    natural = {place.digest: place.batch for place in everyone.assignment}
    assert {
        (hashing.digest(record.label, record.text), batch) for record, batch in fewer.held_out
    } == {(digest, natural[digest]) for digest in out if natural[digest] is not None}


def test_no_round_shows_a_record_that_is_held_out(
    make_config: Callable[..., Config], data: Path
) -> None:
    batching = {"held_out": 0.4, "rounds": 3, "generate_per_label": 1}
    found = prepare(make_config(data={"path": str(data)}, batching=batching)).records
    shown = {record for batch in found.batches for context in batch.contexts for record in context}
    held = {record for record, _ in found.held_out}
    assert held
    assert held.isdisjoint(shown)


@pytest.mark.parametrize(
    "sections",
    [
        {"batching": {"slots": 3}},
        {"batching": {"cells": 3}, "prompt": {"examples_per_context": 2}},
        {"batching": {"rounds": 2}},
    ],
    ids=["slots", "cells", "rounds"],
)
def test_runs_that_hold_records_out_pass_with_their_data(
    make_config: Callable[..., Config], data: Path, tmp_path: Path, sections: dict[str, Any]
) -> None:
    batching = {**HELD_OUT["batching"], **sections["batching"], "key": None}
    config = make_config(
        **{**sections, "data": {"path": str(data)}, "batching": batching},
        sampling={"generator": "os-entropy"},
    )
    generate(config, out=tmp_path / "run", worth=False)
    found = audit(tmp_path / "run", data=data, evidence=3, replay={"steps": 1, "left_out": 0})
    assert found.check("partition.stable").status == "pass"
    assert found.check("partition.stable").evidence == 3
    assert found.verdict == "pass"


@pytest.mark.parametrize(
    "sections",
    [
        {"batching": {"held_out": 0.1, "rule": "paper-slices", "batches_per_label": None,
                      "slots": 2}},
        {"batching": {"held_out": 1.0}},
        {
            "batching": {"held_out": 0.1, "batches_per_label": 99, "generate_per_label": 9},
            "privacy": {"canaries": 16},
        },
    ],
    ids=["slices", "everyone", "canaries"],
)  # fmt: skip
def test_impossible_shares_are_refused(
    settings: Callable[..., dict[str, Any]], sections: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as error:
        FrontDoorConfig(**settings(**sections))
    assert error.value.where == "Config: batching.held_out"


def test_the_default_path_has_baseline_and_gain(
    make_config: Callable[..., Config], data: Path, tmp_path: Path
) -> None:
    """Both are in the run directory, and neither is part of its record."""
    config = make_config(data={"path": str(data)}, **HELD_OUT)
    run = tmp_path / "run"
    generate(config, out=run)
    baseline = PublicReader(run / "baseline")
    baseline.public.require_fit("", RunReader(run).manifest)
    assert len(list(baseline.samples())) == len(list(RunReader(run).samples()))
    worth = audit(run).worth
    assert worth is not None
    assert worth.gain is not None
    assert worth.gain.texts == 4  # one of each batch
    assert worth.gain.outcome == "unmeasured"
    assert worth.baseline is not None
    assert worth.baseline.texts == 4
    assert worth.paid is None
    result = audit_run(run)
    assert {check.status for check in result.checks if check.id.startswith("integrity")} == {"pass"}
    # by the formula, of the batches that a run of these settings has
    parts = parts_of(config)
    found = GainByBatch(parts, range(parts.manifest.batching.per_round), 1, lambda *_: None)
    assert found.gain == worth.gain


def test_the_same_call_goes_on_with_an_interrupted_measurement(
    make_config: Callable[..., Config], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    config, run = make_config(data={"path": str(data)}, **HELD_OUT), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("dpaudit.generation.evaluation.worth.gain_at_the_end", interrupted)
        with pytest.warns(UserWarning), pytest.raises(KeyboardInterrupt):
            generate(config, out=run)
    texts, worth = (run / "samples.jsonl").read_bytes(), run / "report" / "worth.json"
    assert audit_run(run) and not worth.exists()
    # another config, or nothing to measure: the texts are not gone on with
    other = make_config(data={"path": str(data)}, **HELD_OUT | {"decoding": {"max_tokens": 2}})
    for refused, measure in ((other, True), (config, False)):
        with pytest.raises(InputError):
            generate(refused, out=run, worth=measure)
        assert not worth.exists()
    generate(config, out=run)
    assert read_worth(run / "report", lambda: RunReader(run)).gain is not None
    assert (run / "samples.jsonl").read_bytes() == texts
    # told before the data is read
    data.unlink()
    with pytest.raises(InputError, match="finished"):
        generate(config, out=run)


def test_the_option_leaves_both_out(
    make_config: Callable[..., Config], data: Path, tmp_path: Path
) -> None:
    config = make_config(data={"path": str(data)}, **HELD_OUT)
    generate(config, out=tmp_path / "run", worth=False)
    assert not (tmp_path / "run" / "baseline").exists()
    assert not (tmp_path / "run" / "report").exists()


def test_every_neighbour_moves_one_batch_within_the_cut_off(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    """All data sets with one record less, shown or held out, and one with a record more."""
    rows = ROWS[:8]

    def found(number: int, rows: list[tuple[str, str]]) -> GainByBatch:
        path = write(tmp_path / f"{number}.csv", rows)
        return by_batch(make_config(data={"path": str(path)}, **HELD_OUT))

    whole = found(0, rows)
    more = [*rows, ("north", "thunder and more thunder")]
    others = [rows[:place] + rows[place + 1 :] for place in range(len(rows))]
    moved = []
    for number, neighbour in enumerate([more, *others], start=1):
        other = found(number, neighbour)
        batches = whole.gains.keys() | other.gains.keys()
        changed = [batch for batch in batches if whole.gains.get(batch) != other.gains.get(batch)]
        assert len(changed) <= 1
        assert abs(whole.steps - other.steps) <= sensitivity(1)
        moved.append(abs(whole.steps - other.steps))
    assert max(moved) > 0


def test_a_gain_of_all_texts_in_one_batch_would_move_too_far(
    make_config: Callable[..., Config], data: Path
) -> None:
    """Planted: each held-out text in the first batch of its label, cut off text by text.

    Then one shown record of that batch moves the gains of all of them.
    """
    config = make_config(data={"path": str(data)}, **HELD_OUT)
    run = parts_of(config)
    first = {run.batches[place].label: place for place in (2, 0)}
    crowded = run._replace(
        held_out=[(record, first[record.label]) for record, _ in run.held_out],
    )
    batch = run.batches[0]
    fewer = tuple(
        batch if each.id else type(batch)(0, each.label, None, each.contexts[1:])
        for each in run.batches
    )
    sums = [
        GainByBatch(parts, range(parts.manifest.batching.per_round), 99, lambda *_: None).sums[0]
        for parts in (crowded, crowded._replace(batches=fewer))
    ]
    gains = [(each[:, 1] - each[:, 0]) / each[:, 2] for each in sums]
    assert len(gains[0]) > 2
    assert np.count_nonzero(gains[0] != gains[1]) > 1


def test_a_figure_is_paid_for_and_every_further_one_too(
    make_config: Callable[..., Config], data: Path, tmp_path: Path
) -> None:
    config = make_config(data={"path": str(data)}, **HELD_OUT)
    run = tmp_path / "run"
    generate(config, out=run, worth=False)
    reader, real = RunReader(run), RealData(str(data))
    first = pay_for_gain(reader, real, 0.5, None, lambda *_: None)
    assert first.paid is not None
    assert (first.paid.epsilon, first.paid.spent, first.paid.batches) == (0.5, 0.5, 4)
    second = pay_for_gain(reader, real, 0.25, first, lambda *_: None)
    assert second.paid is not None
    assert second.paid.spent == pytest.approx(0.75)
    assert second.paid.spent >= 0.75
    write_measures(second, run / "report")
    assert audit(run).result.paid == second.paid
    with pytest.raises(InputError) as error:
        pay_for_gain(reader, real, 1e-12, second, lambda *_: None)
    assert error.value.where == "--epsilon"


def test_the_command_prints_and_keeps_the_paid_figure(
    make_config: Callable[..., Config],
    data: Path,
    tmp_path: Path,
    encoder_folder: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Without a price it measures what `generate` was told to leave out."""
    config = make_config(data={"path": str(data)}, **HELD_OUT)
    run = tmp_path / "run"
    generate(config, out=run, worth=False)
    arguments = ["evaluate", run, "--reference", data, "--embedding", encoder_folder]

    def evaluated(*options: str) -> Worth | None:
        with pytest.raises(SystemExit) as left:
            main([*map(str, (*arguments, "--seeds", "1", *options))])
            raise SystemExit(0)
        assert left.value.code == 0
        return audit(run).worth

    free = evaluated()
    assert free is not None
    assert free.gain is not None
    assert free.paid is None
    worth = evaluated("--epsilon", "2")
    assert worth is not None
    assert worth.paid is not None
    assert worth.gain == free.gain
    assert paid_words(worth.paid) in " ".join(capfd.readouterr().out.split())


def test_noise_is_on_integers_and_counts_units(
    make_config: Callable[..., Config], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales = []

    def drawn(_: Any, scale: float, size: int) -> Any:
        scales.append(scale)
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr("dpaudit.generation.clustering.noise.Noise.rounded_laplace", drawn)
    for privacy, records in (
        ({}, 1),
        ({"relation": "replace"}, 2),
        ({"unit": "user", "records_per_user": 3}, 3),
    ):
        config = make_config(data={"path": str(data)}, privacy=privacy, **HELD_OUT)
        found = by_batch(config)
        paid = paid_gain(found, parts_of(config).manifest, 0.1, None)
        assert paid.records == records
        assert scales[-1] == pytest.approx(sensitivity(records) / 0.1)
        assert paid.gain == pytest.approx(
            sum(map(steps_of, found.gains.values())) / 1000 / paid.batches
        )


def test_a_run_without_held_out_records_has_no_paid_figure(
    generated: Callable[..., Path], data_file: Path
) -> None:
    with pytest.raises(InputError) as error:
        pay_for_gain(RunReader(generated()), RealData(str(data_file)), 0.1, None, lambda *_: None)
    assert error.value.where == "--epsilon"


@pytest.mark.parametrize(
    "sections",
    [
        {"privacy": {"unit": "user"}, "data": {"user": "who"}},
        {"chosen_from": {"batching": "private"}},
    ],
    ids=["records of a user were counted", "numbers of batches follow from records"],
)
def test_no_figure_is_paid_for_where_records_set_its_noise_or_its_batches(
    make_config: Callable[..., Config], data: Path, tmp_path: Path, sections: dict[str, Any]
) -> None:
    with data.open(newline="") as file:
        header, *rows = csv.reader(file)
    with data.open("w", newline="") as file:
        users = [[*row, f"user {number // 3}"] for number, row in enumerate(rows)]
        csv.writer(file).writerows([[*header, "who"], *users])
    sections = sections | {"data": {"path": str(data), **sections.get("data", {})}}
    run = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one is not fit for a release
        generate(make_config(**sections, **HELD_OUT), out=run, worth=False, unverified=True)
    with pytest.raises(InputError) as error:
        pay_for_gain(RunReader(run), RealData(str(data)), 0.1, None, lambda *_: None)
    assert error.value.where == "--epsilon"


def test_a_batch_that_cannot_be_measured_counts_as_no_gain(
    make_config: Callable[..., Config], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record may stop the figure, or tell by its absence."""

    def failing(*_: Any, **__: Any) -> Any:
        raise InputError("model", "its logits cannot be used.", "Take another.")

    monkeypatch.setattr("dpaudit.generation.evaluation.worth.Measurement", failing)
    found = by_batch(make_config(data={"path": str(data)}, **HELD_OUT))
    assert found.steps == 0
    assert found.gain.gain is None


def test_worth_of_other_texts_is_not_shown(
    generated: Callable[..., Path], own_run: Callable[..., Path]
) -> None:
    run = own_run()
    write_measures(Worth(samples="ab" * 32), run / "report")
    with pytest.warns(UserWarning, match="worth.json"):
        assert audit(run).worth is None
    (run / "report" / "worth.json").write_text(json.dumps({"samples": 3}))
    with pytest.warns(UserWarning, match="worth.json"):
        assert audit(run).worth is None
