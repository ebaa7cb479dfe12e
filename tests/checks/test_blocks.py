"""Steps that are looked at together give what each gives by itself, to the last bit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.auditing.batches import BatchAuditor
from dpaudit.auditing.checks import steps
from dpaudit.auditing.checks.registry import Objections
from dpaudit.auditing.checks.steps import BatchView, RunView, StepsView, StepView
from dpaudit.auditing.run import audit_run
from dpaudit.mechanisms import ContextChange, Spans
from dpaudit.results import Place
from dpaudit.runs import DecodingRules, InputError, RunReader
from tests.forging import list_digests

LONG = {"sizes": (6, 7, 0), "max_tokens": 20}
RULES = DecodingRules(least_tokens=2, no_repeated_ngram=2)
KINDS: dict[str, dict[str, Any]] = {
    "median": LONG,
    "median, contexts": {**LONG, "contexts": True},
    "median, grid": {**LONG, "grid": 2.0},
    "median, rules": {**LONG, "rules": RULES, "top_k": 5},
    "mean": {**LONG, "aggregator": "mean", "contexts": True},
    "differences": {**LONG, "contribution": "differences", "contexts": True},
    "mean of differences": {
        **LONG,
        "contribution": "differences",
        "aggregator": "mean",
        "contexts": True,
        "top_k": 5,
        "tokens_per_batch": 30,
    },
    "replace": {**LONG, "relation": "replace", "width": 3, "contexts": True},
    "budgets": {**LONG, "aggregator": "mean", "budget": 0.5, "contexts": True},
    "canaries": {**LONG, "canaries": 2},
    "canaries, mean": {**LONG, "canaries": 2, "aggregator": "mean", "contexts": True},
}
SPARSE_VECTOR: dict[str, Any] = {
    "sizes": (5, 4),
    "contribution": "differences",
    "private_tokens": 24,
    "temperature": 1.0,
    "top_k": 8,
    "tokens_per_batch": 30,
    "aggregator": "mean",
    "divisor": 5.0,
}


def found(path: Path) -> dict[str, Any]:
    """All that an audit says, but for its date."""
    written: dict[str, Any] = json.loads(audit_run(path).model_dump_json())
    return {name: value for name, value in written.items() if name != "created"}


def alone(monkeypatch: pytest.MonkeyPatch, path: Path) -> dict[str, Any]:
    """The same with blocks of one step."""
    with monkeypatch.context() as patch:
        patch.setattr(steps, "BLOCK_BYTES", 0)
        return found(path)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_an_audit_in_blocks_is_the_audit_step_by_step(
    make_run: Any, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    run = make_run(**kind)
    assert found(run.path) == alone(monkeypatch, run.path)
    with RunReader(run.path).batch(0) as opened:
        view = BatchView(RunView(RunReader(run.path), None), opened)
        sizes = [len(block) for block in view.blocks()]
    assert max(sizes) > 1, "the steps of an honest run are looked at together"


@pytest.mark.parametrize("aggregator", ["mean", "median"])
@pytest.mark.parametrize("fault", ["none", "no zip", "another digest"])
def test_whole_batches_are_looked_at_together(
    make_run: Any, monkeypatch: pytest.MonkeyPatch, aggregator: str, fault: str
) -> None:
    """Those of as many contexts are, and a fault in one of them is found in that one."""
    run = make_run(sizes=(4, 4, 5, 4, 4), max_tokens=6, aggregator=aggregator, contexts=True)
    if fault == "no zip":
        run.steps_file(3).write_bytes(b"no zip file")
    elif fault == "another digest":
        run.rewrite(3, lambda draft: draft.edit(1, aggregate_digest=bytes(32)))
        list_digests(run.path)
    together, look = set[int](), Objections.look

    def spy(self: Objections, view: StepsView) -> None:
        if view._among is not None:
            together.add(view.header.id)
            own = StepsView(view.manifest, view.header, view.recorded, view.positions, view.earlier)
            for name in ("columns", "aggregate", "log_probabilities", "draws"):
                assert np.array_equal(getattr(view, name), getattr(own, name)), name
        look(self, view)

    with monkeypatch.context() as patch:
        patch.setattr(Objections, "look", spy)
        auditor = BatchAuditor(str(run.path), ContextChange("add_remove"))
        assert [each.id for each in auditor(range(5))] == [0, 1, 2, 3, 4]
    assert together == ({0, 1} if fault == "no zip" else {0, 1, 3, 4})
    result = found(run.path)
    assert result == alone(monkeypatch, run.path)
    failed = [check["values"] for check in result["checks"] if check["id"] == "record.aggregate"]
    if fault == "another digest":
        assert failed[0]["problems"] == 1
        assert failed[0]["place"] == Place(batch=3, step=1).model_dump()


@pytest.mark.parametrize("fault", ["too large", "no room", "exits"])
def test_no_more_batches_are_open_than_there_is_room_for(
    make_run: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """One that cannot be opened beside others is read once these are closed."""
    run, now, most = make_run(sizes=(4,) * 5), list[int](), 0

    def batch(number: int, read: Any = RunReader.batch) -> Any:
        @contextmanager
        def opened() -> Iterator[Any]:
            nonlocal most
            if now and fault == "no room":
                raise InputError("steps", "there is no room.", "Make some.")
            if now and fault == "exits":
                raise SystemExit("private words")
            with read(auditor._reader, number) as record:
                now.append(number)
                most = max(most, len(now))
                yield record
                now.remove(number)

        return opened()

    auditor = BatchAuditor(str(run.path), None)
    if fault == "too large":
        monkeypatch.setattr(steps, "BLOCK_BYTES", 1)
    monkeypatch.setattr(auditor._reader, "batch", batch)
    found = auditor(range(5))
    assert [(each.id, each.unreadable, each.steps > 0) for each in found] == [
        (number, None, True) for number in range(5)
    ]
    assert most == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, 70.0])
def test_steps_beside_a_wrong_one_are_looked_at_one_by_one(
    make_run: Any, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    run = make_run(**KINDS["mean"])
    run.rewrite(0, lambda draft: draft.alter(2, "aggregate", 3, value))
    list_digests(run.path)
    result = found(run.path)
    assert result == alone(monkeypatch, run.path)
    (check,) = (check for check in result["checks"] if check["id"] == "record.range")
    assert (check["status"], check["values"]["problems"]) == ("fail", 1)
    assert check["values"]["place"] == Place(batch=0, step=2).model_dump()


def test_steps_before_one_that_cannot_be_decoded_count(
    make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(**KINDS["mean"])
    run.rechunk(1, monkeypatch)  # a step a chunk

    def break_off(entries: list[Any]) -> list[Any]:
        return [
            each._replace(data=each.data[:-9]) if each.name == "aggregate/c/4/0" else each
            for each in entries
        ]

    run.rezip(0, break_off)
    result = found(run.path)
    assert result["verdict"] == "error" and result["guarantees"] is not None
    assert result == alone(monkeypatch, run.path)
    auditor = BatchAuditor(str(run.path), None)
    assert auditor([0])[0].steps == 4


def test_steps_are_apart_where_scores_hang_on_more_than_a_column(make_run: Any) -> None:
    reader = RunReader(make_run(**SPARSE_VECTOR).path)
    with reader.batch(0) as opened:
        views = list(BatchView(RunView(reader, None), opened).blocks())
    assert len(views) > 1 and all(isinstance(view, StepView) for view in views)


@pytest.mark.parametrize("alike", [True, False])
def test_sums_of_steps_are_those_of_each_alone(alike: bool) -> None:
    random = np.random.default_rng(int(alike))
    for size in (1, 2, 7, 8, 9, 100, 129, 1000):
        lengths = [size] * 5 if alike else [0, *random.integers(1, size + 1, 5).tolist(), 0]
        spans = Spans(lengths)
        values = np.exp(random.normal(0, 9, (3, sum(lengths))))
        for of_steps, right in (
            (Spans.sums, lambda own: [math.fsum(row) for row in own]),
            (Spans.largest, lambda own: own.max(axis=-1, initial=0)),
            (Spans.smallest, lambda own: own.min(axis=-1, initial=own.max(initial=0))),
        ):
            for span, found in zip(spans.slices, of_steps(spans, values).T, strict=True):
                own = values[:, span].copy()
                assert np.array_equal(found, of_steps(Spans([own.shape[1]]), own)[:, 0])
                assert found == pytest.approx(right(own), rel=1e-14)
        assert np.array_equal(spans.spread(spans.starts), np.repeat(spans.starts, lengths))
        assert spans.counts(values > 1).tolist() == [
            [int((row[span] > 1).sum()) for span in spans.slices] for row in values
        ]
        padded = spans.padded(values[0], -1.0)
        assert padded.shape == (len(lengths), max(lengths))
        for row, span in zip(padded.tolist(), spans.slices, strict=True):
            own = values[0, span].tolist()
            assert row == own + [-1.0] * (max(lengths) - len(own))
        totals = np.concatenate([np.cumsum(values[0, span]) for span in spans.slices])
        assert np.array_equal(spans.totals(values[0]), totals)
