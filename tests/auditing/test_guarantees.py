"""Figures combine with their own kind only, and a rule gets a node's value from its children."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from dpaudit.auditing.guarantees import KindError, entry, total, worst
from dpaudit.results import LedgerEntry

KINDS = ("approximate", "ex-post", "empirical")


def figure(
    value: float = 1.0,
    kind: str = "ex-post",
    relation: str = "add_remove",
    unit: str = "record",
    delta: float = 0.0,
) -> LedgerEntry:
    return entry("leaf", value, "", kind=kind, between=(relation, unit), delta=delta)  # type: ignore[arg-type]


def test_kinds_never_combine() -> None:
    for one, other in itertools.permutations(KINDS, 2):
        mine, theirs = figure(kind=one), figure(kind=other)
        for combine in (total, worst):
            with pytest.raises(KindError, match="cannot be combined"):
                combine("node", [mine, theirs], "")
        with pytest.raises(KindError, match="cannot be combined"):
            entry(
                "node",
                1.0,
                "",
                kind=one,
                between=("add_remove", "record"),
                rule="joint",
                children=[theirs],
            )  # type: ignore[arg-type]


def test_neighbours_never_mix() -> None:
    for difference in [{"relation": "replace"}, {"unit": "user"}]:
        for combine in (total, worst):
            with pytest.raises(KindError, match="cannot be combined"):
                combine("node", [figure(), figure(**difference)], "")  # type: ignore[arg-type]


def test_empirical_losses_do_not_add_up_but_the_largest_counts() -> None:
    with pytest.raises(KindError, match="not add up"):
        total("node", [figure(kind="empirical"), figure(kind="empirical")], "")
    assert (
        worst("node", [figure(value, kind="empirical") for value in (1.0, 3.0, 2.0)], "").value
        == 3.0
    )


def test_sums_are_rounded_up_and_deltas_add_up() -> None:
    assert total("node", [figure(0.1), figure(0.2)], "").value > 0.3
    assert total("node", [figure(0.0), figure(0.7)], "").value == 0.7
    assert total("node", [figure(math.inf), figure(1.0)], "").value == math.inf
    for kind in ("approximate", "ex-post"):
        both = total("node", [figure(1.0, kind, delta=1e-6), figure(2.0, kind, delta=2e-6)], "")
        assert both.delta is not None
        assert 3e-6 <= both.delta < 3.0001e-6


def test_a_maximum_is_that_of_its_children_the_largest_first() -> None:
    node = worst("run", [figure(float(value)) for value in range(3)], "", omitted=4)
    assert (node.value, node.omitted) == (2.0, 4)
    assert [child.value for child in node.children] == [2.0, 1.0, 0.0]


def test_a_run_lists_its_costliest_batches_and_counts_the_rest(
    make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpaudit.auditing.guarantees.LISTED", 2)
    result = make_run(sizes=(2, 5, 3, 4)).audit()
    trees = {tree.kind: tree for tree in result.ledger}
    generation, empirical = trees["ex-post"].children[-1], trees["empirical"]
    for node, costs in (
        (generation, [batch.exact for batch in result.batches]),
        (empirical, [batch.leave_one_out_max for batch in result.batches]),
    ):
        assert [child.value for child in node.children] == sorted(costs, reverse=True)[:2]
        assert (node.value, node.omitted) == (max(costs), 2)


def test_a_total_is_the_sum_of_its_children() -> None:
    assert 2.5 <= total("pipeline", [figure(0.5), figure(2.0)], "").value <= 2.5000001


def test_a_figure_is_a_non_negative_number() -> None:
    for bad in [-1.0, math.nan]:
        with pytest.raises(ValueError, match="at least 0"):
            figure(bad)


def test_no_empirical_figure_has_a_delta() -> None:
    with pytest.raises(ValueError, match="delta"):
        figure(kind="empirical", delta=1e-6)
    assert (figure().delta, figure(kind="approximate").delta) == (None, 0.0)
