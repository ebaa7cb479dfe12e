"""Figures combine with their own kind only, and a node's value is what its rule makes of its children."""

from __future__ import annotations

import itertools
import math

import pytest

from dpaudit.accounting.ledger import Figure, KindError, joint, leaf, total, worst

KINDS = ("approximate", "ex-post", "empirical")


def figure(value: float = 1.0, kind: str = "ex-post", relation: str = "add_remove", unit: str = "record") -> Figure:
    return Figure(kind, relation, unit, value)  # type: ignore[arg-type]


def test_kinds_never_combine() -> None:
    for one, other in list(itertools.permutations(KINDS, 2)):
        mine, theirs = figure(kind=one), figure(kind=other)
        with pytest.raises(KindError, match="cannot be combined"):
            mine + theirs
        for combine in (total, worst):
            with pytest.raises(KindError, match="cannot be combined"):
                combine("node", [leaf("a", mine, ""), leaf("b", theirs, "")], "")
        with pytest.raises(KindError, match="cannot be combined"):
            joint("node", mine, [leaf("b", theirs, "")], "")


def test_neighbours_never_mix() -> None:
    for difference in [{"relation": "replace"}, {"unit": "user"}]:
        with pytest.raises(KindError, match="cannot be combined"):
            figure() + figure(**difference)  # type: ignore[arg-type]
        with pytest.raises(KindError, match="cannot be combined"):
            worst("node", [leaf("a", figure(), ""), leaf("b", figure(**difference), "")], "")  # type: ignore[arg-type]


def test_empirical_losses_do_not_add_up_but_the_largest_counts() -> None:
    with pytest.raises(KindError, match="do not add up"):
        figure(kind="empirical") + figure(kind="empirical")
    leaves = [leaf(str(value), figure(value, kind="empirical"), "") for value in (1.0, 3.0, 2.0)]
    assert worst("node", leaves, "").figure.value == 3.0


def test_sums_are_rounded_up_and_deltas_add_up() -> None:
    assert (figure(0.1) + figure(0.2)).value > 0.3
    assert (figure(0.0) + figure(0.7)).value == 0.7
    both = Figure("approximate", "add_remove", "record", 1.0, 1e-6) + Figure(
        "approximate", "add_remove", "record", 1.0, 2e-6
    )
    assert 3e-6 <= both.delta < 3.0001e-6
    assert (figure(math.inf) + figure(1.0)).value == math.inf


def test_a_maximum_lists_the_largest_and_counts_the_rest() -> None:
    leaves = [leaf(f"batch {value}", figure(float(value)), "") for value in range(7)]
    node = worst("run", leaves, "", listed=3)
    assert node.figure.value == 6.0
    assert [child.figure.value for child in node.children] == [6.0, 5.0, 4.0]
    assert node.omitted == 4


def test_a_total_is_the_sum_of_its_children() -> None:
    node = total("pipeline", [leaf("rebalancing", figure(0.5), ""), leaf("generation", figure(2.0), "")], "")
    assert 2.5 <= node.figure.value <= 2.5000001


def test_a_figure_is_a_non_negative_number() -> None:
    for bad in [-1.0, math.nan]:
        with pytest.raises(ValueError, match="at least 0"):
            figure(bad)


def test_no_empirical_figure_has_a_delta() -> None:
    with pytest.raises(ValueError, match="delta"):
        Figure("empirical", "add_remove", "record", 1.0, 1e-6)


def test_deltas_of_ex_post_figures_add_up() -> None:
    spent = Figure("ex-post", "add_remove", "record", 1.0, 1e-6) + Figure("ex-post", "add_remove", "record", 2.0, 1e-6)
    assert 2e-6 <= spent.delta < 2.0000001e-6
