"""Budget curves of a comparison: figures, text alternatives, tables, and kinds kept apart."""

from __future__ import annotations

import math
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.cbook import STEP_LOOKUP_MAP
from matplotlib.figure import Figure

from dpaudit.reports.compare import render_comparison_html, tables
from dpaudit.reports.drawing import in_page
from dpaudit.reports.figures import budget_curves
from dpaudit.results import BudgetCurve, BudgetPanel, ComparedRun, Comparison, Empirical, Guarantees, Message

SVG = "{http://www.w3.org/2000/svg}"
NEIGHBOURS: Any = {"relation": "add_remove", "unit": "record"}


def curve(run: str, accountant: Any, epsilon: tuple[float, ...], delta: float | None = None) -> BudgetCurve:
    tokens = tuple(10 * (at + 1) for at in range(len(epsilon)))
    batches = None if accountant in ("rdp", "optimal") else 1_234
    return BudgetCurve(run=run, accountant=accountant, batches=batches, delta=delta, tokens=tokens, epsilon=epsilon)


EX_POST = BudgetPanel(
    kind="ex-post",
    curves=(
        curve("median", "exact", (0.1, 0.2, 0.33333333)),
        curve("median", "theorem1", (0.2, 0.3, 0.5)),
        curve("mean", "exact", (0.4, 0.5, 0.6, 0.7, 0.8)),
    ),
    **NEIGHBOURS,
)
APPROXIMATE = BudgetPanel(
    kind="approximate",
    curves=(curve("mean", "rdp", (1.0, 2.0), 1e-5), curve("mean", "optimal", (0.9,), 1e-5)),
    **NEIGHBOURS,
)


def compared(name: str) -> ComparedRun:
    return ComparedRun(
        name=name,
        verdict="pass",
        guarantee=Message(code="verdict.ex-post", words="some"),
        caveats=(),
        contribution=None,
        aggregator=None,
        clip=None,
        temperature=None,
        divisor=None,
        batches=1,
        contexts=4,
        texts=1,
        tokens=30,
        longest_batch=30,
        claim=None,
        guarantees=Guarantees(
            ex_post=None, approximate=None, empirical=Empirical(leave_one_out_max=None, contexts=0, worst=())
        ),
    )


def comparison(*panels: BudgetPanel, names: tuple[str, str] = ("median", "mean")) -> Comparison:
    return Comparison(
        runs=tuple(map(compared, names)), same_length=(), affordable=(), spreads=(), left_out=(), budgets=panels
    )


def drawn(panel: BudgetPanel) -> ElementTree.Element:
    digits = {(each.run, each.kind): 4 for each in panel.curves}
    svg = in_page(budget_curves(panel, {"median": 1, "mean": 2}, digits, "budgets-1"))
    assert svg is not None
    return ElementTree.fromstring(svg)


def test_a_figure_says_everything_in_words_too() -> None:
    root = drawn(EX_POST)
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert title.text == "Ex-post ε, batch level (nats) by length of the texts, for add or remove one record"
    assert description.text == (
        "run 1 (n = 1,234), exact: 0.1000 at 10 tokens, 0.2000 at 20 tokens, 0.3334 at 30 tokens; "
        "run 1 (n = 1,234), Theorem 1: 0.2000 at 10 tokens, 0.3000 at 20 tokens, 0.5000 at 30 tokens; "
        "run 2 (n = 1,234), exact: 0.4000 at 10 tokens, 0.6000 at 30 tokens, 0.8000 at 50 tokens."
    )
    words = " ".join("".join(node.itertext()) for node in root.iter(f"{SVG}text"))
    for label in (
        *("Longest batch allowed (tokens)", "Ex-post ε, batch level (nats)"),
        *("run 1 (n = 1,234)", "run 2 (n = 1,234)", "exact", "Theorem 1"),
    ):
        assert label in words


def test_a_curve_is_drawn_from_zero_and_never_below_its_epsilon() -> None:
    """A step covers the lengths up to its point, the first from no token on.

    A value that is not finite is a gap.
    """
    endless = (0.1, 0.2, math.inf, 0.4)
    panel = BudgetPanel(kind="ex-post", curves=(curve("mean", "exact", endless),), **NEIGHBOURS)
    drawing = budget_curves(panel, {"mean": 1}, {("mean", "ex-post"): 4}, "budgets-1")
    assert drawing is not None
    figure = Figure()
    drawing.draw(figure)
    (axes,) = figure.axes
    (line,) = axes.lines
    x, y = STEP_LOOKUP_MAP[line.get_drawstyle()](*line.get_data())
    assert x[0] == 0
    assert axes.get_xlim()[0] == axes.get_ylim()[0] == 0
    for place, epsilon in enumerate(endless):
        for length in range(10 * place + 1, 10 * place + 10):
            height = np.interp(length, x, y)
            assert math.isnan(height) if math.isinf(epsilon) else height == pytest.approx(epsilon)


def test_a_run_with_a_caution_is_starred_in_words_and_in_the_legend() -> None:
    digits = {(name, "ex-post"): 4 for name in ("median", "mean")}
    svg = in_page(budget_curves(EX_POST, {"median": 1, "mean": 2}, digits, "budgets-1", {"mean"}))
    assert svg is not None
    words = ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"run 1 (n = 1,234)", "run 2* (n = 1,234)"} <= set(words)
    assert "run 2* (n = 1,234), exact" in svg


def test_a_legend_tells_runs_and_accountants_apart() -> None:
    root = drawn(APPROXIMATE)
    words = ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]
    assert {"run 2 (δ 1e-5)", "Rényi DP", "optimal"} <= set(words)
    long = BudgetPanel(kind="ex-post", curves=(curve("median", "exact", (0.1,), 1e-6), EX_POST.curves[2]), **NEIGHBOURS)
    assert "run 1 (n = 1,234, δ 1e-6)" in ["".join(node.itertext()) for node in drawn(long).iter(f"{SVG}text")]


def test_what_is_not_finite_is_left_out_of_the_drawing() -> None:
    endless = BudgetPanel(kind="ex-post", curves=(curve("mean", "exact", (math.inf, math.inf)),), **NEIGHBOURS)
    assert budget_curves(endless, {"mean": 1}, {("mean", "ex-post"): 4}, "budgets-1") is None
    (table,) = [table for table in tables(comparison(endless)) if table.caption]
    assert [cell.text for cell in table.rows[0][1]] == ["exact", "infinite", "infinite"]
    assert "<svg" not in render_comparison_html(comparison(endless))


def test_a_table_shows_bounds_that_cover_the_length() -> None:
    (table,) = [table for table in tables(comparison(EX_POST)) if table.caption]
    assert table.header == ("By", "20 tokens", "30 tokens", "40 tokens", "50 tokens")
    rows = [(number, [cell.text for cell in cells]) for number, cells in table.rows]
    assert rows == [
        (1, ["exact", "0.2000", "0.3334", "–", "–"]),
        (1, ["Theorem 1", "0.3000", "0.5000", "–", "–"]),
        (2, ["exact", "0.5000", "0.6000", "0.7000", "0.8000"]),
    ]
    between = EX_POST.model_copy(
        update={"curves": (curve("median", "exact", (0.1, 0.9)), curve("mean", "exact", (1.0,)))}
    )
    (table,) = [table for table in tables(comparison(between)) if table.caption]
    assert [cell.text for cell in table.rows[0][1]] == ["exact", "0.1000", "0.9000"]


def test_kinds_have_figures_and_tables_of_their_own() -> None:
    page = render_comparison_html(comparison(EX_POST, APPROXIMATE))
    figures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(figures) == 2
    assert "Approximate" not in figures[0]
    assert "Ex-post" not in figures[1]
    for table in tables(comparison(EX_POST, APPROXIMATE)):
        assert {cell.kind for _, cells in table.rows for cell in cells} <= {None, table.kind}
    assert page.index("Ex-post epsilon by length") < page.index("Approximate DP by length")


def test_a_hostile_name_reaches_no_figure() -> None:
    for name in ["<script>alert(1)</script>", "$x$", "\u202egnp.exe", "x" * 100_000]:
        panel = EX_POST.model_copy(update={"curves": (curve(name, "exact", (0.1, 0.2)),)})
        page = render_comparison_html(comparison(panel, names=(name, "mean")))
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert len(page) < 200_000
        (svg,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
        assert "run 1 (n = 1,234), exact: " in svg
