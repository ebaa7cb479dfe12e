"""A row is told to be empty where it is at every step, and where enough of it is seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpaudit.auditing.checks.record import UniformRows
from dpaudit.mechanisms import ANCHOR, TELLING, Spans
from dpaudit.results import Finding, Place
from tests.nesting import mechanism_with

MEAN = {"aggregator": "mean", "clip": 3.0, "temperature": 1.0, "divisor": 4.0}
NOISE = np.random.default_rng(0)


@dataclass(frozen=True)
class Looked:
    """As much of a `StepView` as is looked at."""

    mechanism: Any
    arrays: dict[str, np.ndarray]
    contexts: np.ndarray | None

    def __len__(self) -> int:
        return 1

    @property
    def spans(self) -> Spans:
        return Spans([0 if self.contexts is None else self.contexts.shape[1]])


def view(contribution: str, logits: np.ndarray, public: np.ndarray, **fields: Any) -> Any:
    """A step of these rows."""
    mechanism = mechanism_with({**MEAN, "contribution": contribution, **fields})
    kind = mechanism.contribution
    anchor = kind.anchor(public)
    values = np.empty_like(logits)
    kind.write(logits, kind.row_constants(logits), anchor, values)
    arrays = {} if anchor is None else {ANCHOR: anchor}
    return Looked(mechanism, arrays, values.astype(float))


def rows(size: int = 40, empty: int = 1) -> np.ndarray:
    found = NOISE.normal(0, 1, (3, size)).astype(np.float32)
    found[:empty] = 0
    return found


def test_rows_that_are_empty_at_every_step_are_counted():
    for contribution in ("logits", "differences", "raw-differences"):
        public = NOISE.normal(0, 1, 40).astype(np.float32)
        uniform = UniformRows(7, 3)
        for _ in range(4):
            uniform.look(view(contribution, rows(), public))
        assert uniform.result() == Finding(
            code="record.unscored-contexts",
            values={"place": Place(batch=7), "unscored": 1, "contexts": 3},
        ), contribution
        uniform.look(view(contribution, rows(empty=0), public))
        assert uniform.result() is None, "a model may know nothing of one word"


def test_an_empty_public_row_is_told():
    for contribution in ("differences", "raw-differences"):
        uniform = UniformRows(7, 3)
        uniform.look(view(contribution, rows(empty=0), np.zeros(40, dtype=np.float32)))
        assert uniform.result() == Finding(
            code="record.unscored-public", values={"place": Place(batch=7)}
        )
        uniform.look(view(contribution, rows(empty=0), np.arange(40, dtype=np.float32) / 40))
        assert uniform.result() is None


def test_where_nothing_tells_nothing_is_said():
    few, public = TELLING - 1, NOISE.normal(0, 1, 40).astype(np.float32)
    for step in (
        view("logits", rows(few), public[:few]),
        view("logits", rows(), public, grid=0.5),
        view("raw-differences", rows(), public + np.float32(30)),  # the clip takes all of it
    ):
        uniform = UniformRows(7, 3)
        uniform.look(step)
        assert uniform.result() is None
    uniform = UniformRows(7, 3)
    assert uniform.result() is None, "no step was read"
    uniform.look(replace(view("raw-differences", rows(), public), contexts=None))
    assert uniform.result() is None
