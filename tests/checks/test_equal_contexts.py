"""Contexts of a batch that are one record, shown again and again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.auditing.batches import BatchAuditor
from dpaudit.auditing.caveats import EqualContexts, EqualRows
from dpaudit.auditing.disclosure import public_form
from dpaudit.mechanisms import Spans
from dpaudit.results import Place


def steps(contexts: int, width: int, count: int, seed: int = 1) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(contexts, width)).astype(np.float32) for _ in range(count)]


def view(contexts: np.ndarray | None) -> Any:
    """A step whose record has these contributions."""
    return SimpleNamespace(
        contexts=contexts, spans=Spans([0 if contexts is None else contexts.shape[1]])
    )


def found(rows: list[np.ndarray]) -> list[list[int]]:
    equal = EqualRows(len(rows[0]))
    for each in rows:
        equal.look(view(each))
    return equal.result() or []


def test_rows_that_are_equal_throughout_are_found():
    rows = steps(6, 12, 4)
    for each in rows:
        each[[3, 5]] = each[1]
        each[4] = each[0]
    assert found(rows) == [[0, 4], [1, 3, 5]]
    rows[-1][5, 7] = np.nextafter(rows[-1][5, 7], np.float32(9))
    assert found(rows) == [[0, 4], [1, 3]]


def test_rows_that_clipping_made_equal_are_not_told():
    rows = [np.sign(each) * 6 for each in steps(6, 2, 20)]
    assert found(rows) == []
    rows = [np.full((6, 12), -6.0) for _ in range(20)]
    assert found(rows) == []


def test_without_recorded_contexts_nothing_is_found():
    equal = EqualRows(4)
    equal.look(view(None))
    assert equal.result() is None


@pytest.mark.parametrize("aggregator", ["median", "mean"])
def test_a_pass_says_so_and_a_public_report_does_not(make_run, monkeypatch, aggregator):
    run = make_run(aggregator=aggregator, contexts=True)
    clean = run.audit()
    assert "caveat.equal-contexts" not in {caveat.code for caveat in clean.caveats}
    read = BatchAuditor.__call__

    def alike(auditor, batches):
        found = read(auditor, batches)
        for each in found:
            each.evidence[EqualContexts] = [[0, 2, 3]] if each.id else []
        return found

    monkeypatch.setattr(BatchAuditor, "__call__", alike)
    result = run.audit()
    (found,) = [caveat for caveat in result.caveats if caveat.code == "caveat.equal-contexts"]
    assert result.verdict == "pass"
    assert found.values == {"contexts": 3, "batch": Place(batch=1)}
    assert public_form(result) == public_form(clean)


def test_no_number_that_was_declared_lets_a_caveat_out(make_run, monkeypatch):
    """Two equal contexts, and users of two records."""
    run = make_run(unit="user", records_per_user=2, contexts=True, width=3)
    clean, read = run.audit(), BatchAuditor.__call__

    def alike(auditor, batches):
        found = read(auditor, batches)
        for each in found:
            each.evidence[EqualContexts] = [[0, 1]] if each.id == 1 else []
        return found

    monkeypatch.setattr(BatchAuditor, "__call__", alike)
    result = run.audit()
    (found,) = [caveat for caveat in result.caveats if caveat.code == "caveat.equal-contexts"]
    assert found.values == {"contexts": 2, "batch": Place(batch=1)}
    assert public_form(result) == public_form(clean)
    (declared,) = [
        caveat for caveat in public_form(result).caveats if caveat.code == "caveat.users-declared"
    ]
    assert declared.values == {"most": 2}
