"""How contexts used budgets of their own: what is said, listed and drawn, and for whom."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpaudit.auditing.disclosure import public_form
from dpaudit.reports import budgets
from dpaudit.reports.audit_document import render_html, render_markdown
from dpaudit.reports.costs import MOST_DRAWN
from dpaudit.reports.document import Definitions
from dpaudit.reports.engineers import kind_sections
from dpaudit.reports.figure_files import FigureRun, figure_files
from dpaudit.reports.figures import taking_part
from dpaudit.reports.wording import section_title
from dpaudit.results import AuditResult, BudgetUse
from tests.reports.conftest import budget_use, budgets_run, mean_run

TITLE = section_title("budgets")
SHARES = re.compile(r"\d%")


def section(result: AuditResult) -> str:
    """The part of the Markdown report; empty where there is none."""
    return render_markdown(result).partition(f"### {TITLE}\n")[2].partition("\n### ")[0]


def drawn(use: BudgetUse) -> Any:
    drawing = taking_part(budgets_run(budgets=use))
    assert drawing is not None
    figure = Figure()
    drawing.draw(figure)
    (axes,) = figure.axes
    return axes


# --- words ----------------------------------------------------------------------------------------


def said_of(use: BudgetUse) -> dict[str, str]:
    return {entry.name: str(entry.value) for entry in budgets.entries(use)}


def test_what_is_said_follows_the_figures() -> None:
    for changes, said in [
        ({}, "117 of 129"),
        ({"left_out": 0}, "0 of 129"),
        ({"spent": (0.29, 0.57, 0.58, 0.99, 1.0)}, "29%, 58%, 100%"),
        ({"worst_case": 0.05412805}, "0.500 times the budget"),
        ({"worst_case": math.inf}, "bounds nothing"),
        ({"budget": 5e-324}, "infinite times the budget"),
    ]:
        assert any(value.endswith(said) for value in said_of(budget_use(**changes)).values()), (
            changes
        )
    assert len(said_of(budget_use(moved=0.0))) == len(said_of(budget_use())) - 1


def test_a_bound_is_rounded_up_and_what_would_have_been_is_not() -> None:
    shown = list(said_of(budget_use(budget=0.10001, worst_case=0.200001)).values())
    assert shown[0] == "ρ ≤ 0.1001" and any(value.startswith("ρ 0.2000, ") for value in shown)
    assert "ρ 0.01230" in said_of(budget_use(smallest=0.0123)).values()


def test_who_took_part_is_said() -> None:
    for active, said in [
        ((1.0, 1.0, 1.0), "at the last (3); in the batch where fewest did, 100% and 100%."),
        ((1.0, 0.99951), "100% took part at the first position and over 99.9% at the last (2)"),
        ((1e-9, 0.0), "under 0.1% took part at the first position and 0% at the last (2)"),
        ((), ""),
    ]:
        use = budget_use(position=tuple(range(1, len(active) + 1)), active=active, fewest=active)
        assert said in budgets.took_part(use) and bool(said) == bool(budgets.took_part(use)), active


def test_a_run_of_any_length_has_no_more_points_than_are_drawn() -> None:
    for length in (*range(40), 95, 96, 500, MOST_DRAWN + 1, 32_768):
        use = budget_use(length)
        positions, active, fewest = budgets.thinned(use)
        assert len(positions) == len(active) == len(fewest) <= min(length, MOST_DRAWN)
        if length <= MOST_DRAWN:
            assert (positions, active, fewest) == ([*use.position], [*use.active], [*use.fewest])
        assert min(fewest, default=0) == min(use.fewest, default=0)
        assert not length or positions[-1] == length


# --- the figure -----------------------------------------------------------------------------------


def test_the_figure_holds_both_shares_from_nothing_to_all() -> None:
    use = budget_use()
    axes = drawn(use)
    assert axes.get_ylim() == (0, 1)
    lines = {line.get_label(): line for line in axes.lines}
    for label, shares in (("all batches", use.active), ("batch with fewest", use.fewest)):
        assert list(lines[label].get_xdata()) == list(use.position)
        assert list(lines[label].get_ydata()) == list(shares)
        assert not lines[label].get_clip_on(), "a line at 0 or 1 would lose half its width"
    assert lines["all batches"].get_linewidth() > lines["batch with fewest"].get_linewidth()
    (dot, _) = drawn(budget_use(1)).lines
    assert dot.get_marker() == "o", "a line of one point cannot be seen"


def test_there_is_no_figure_without_a_draw() -> None:
    assert taking_part(mean_run()) is None
    nothing = budgets_run(budgets=budget_use(0))
    assert taking_part(nothing) is None
    assert "|" not in section(nothing) and "Budget of a context" in section(nothing)
    page = render_html(nothing)
    assert "Contexts that took part" not in page and TITLE in page


def test_a_file_of_the_figure_speaks_of_no_cost() -> None:
    result = budgets_run()
    files = figure_files(
        [FigureRun("run", "runs/run", result)], ("svg",), "dpaudit compare runs/run"
    )
    mean = "not its (ε, δ) guarantee"
    assert mean in files["run-growth.svg"].decode()
    figure = files["run-budgets.svg"].decode()
    assert (
        mean not in figure
        and "nats" not in figure
        and "Internal: computed from private data." in figure
    )


# --- for whom -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_only_a_private_report_of_budgets_has_the_section(
    samples: dict[str, Callable[[], AuditResult]],
) -> None:
    for name, build in samples.items():
        shown = TITLE in render_html(build())
        assert shown == bool(section(build())) == (name in ("budgets", "rho")), name
    public = budgets_run(audience="public")
    assert TITLE not in render_html(public) and not section(public)


@pytest.mark.usefixtures("undrawn")
def test_a_public_report_has_the_promise_and_not_its_use(make_run: Callable[..., Any]) -> None:
    run = make_run(sizes=(6, 7), aggregator="mean", budget=0.9137, max_tokens=12, divisor=4.0)
    result = run.audit()
    assert result.verdict == "pass" and result.budgets is not None and result.budgets.left_out
    public = public_form(result)
    assert public.budgets is None and "budgets" not in public.model_dump(exclude_none=True)
    internal = section(result)
    assert SHARES.search(internal) and "of 13" in internal
    for text in (render_html(public), render_markdown(public)):
        assert TITLE not in text and "took part" not in text
        assert not SHARES.search(re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))
        assert "rho 0.9137 (zCDP), whatever their number" in text


def test_the_approximate_block_names_what_budgets_promise() -> None:
    def parts(result: AuditResult) -> dict[str, str]:
        (found,) = (
            each
            for each in kind_sections(result)["approximate"].blocks
            if isinstance(each, Definitions)
        )
        return {entry.name: str(entry.value) for entry in found.entries}

    by_budgets = parts(budgets_run())
    assert by_budgets["All tokens"] == "rho 0.1083 (zCDP), whatever their number"
    assert by_budgets["Tokens accounted for"] == "any number; a batch has at most 48"
    assert "tighter" in str(kind_sections(mean_run())["approximate"])
    approximate = budgets_run().guarantees.approximate
    claim = budgets_run().claim
    assert approximate is not None and claim is not None
    promised = claim.model_copy(update={"epsilon": approximate.epsilon * (1 + 1e-9)})
    assert "tighter" not in str(kind_sections(budgets_run(claim=promised))["approximate"])
    assert (
        "All tokens" not in parts(mean_run()) and parts(mean_run())["Tokens accounted for"] == "48"
    )
    # So short a run that worst-case accounting promises less: then its tokens do count.
    found = budgets_run().guarantees
    assert found.approximate is not None
    short = found.approximate.model_copy(update={"method": "optimal"})
    as_well = parts(budgets_run(guarantees=found.model_copy(update={"approximate": short})))
    assert "All tokens" in as_well and as_well["Tokens accounted for"] == "48"


# --- runs -----------------------------------------------------------------------------------------

RUNS: dict[str, dict[str, Any]] = {
    "one token": {"max_tokens": 1, "budget": 0.9},
    "a batch without contexts": {"sizes": (5, 0), "max_tokens": 6, "budget": 0.9},
    "one context": {"sizes": (1, 0), "max_tokens": 6, "budget": 0.9},
    "all exhausted at once": {"max_tokens": 4, "budget": 2e-3},
    "none left out": {"max_tokens": 4, "budget": 500.0},
    "several texts": {
        "contribution": "differences",
        "top_k": 8,
        "tokens_per_batch": 40,
        "max_tokens": 6,
        "budget": 0.7,
    },
}


@pytest.mark.usefixtures("undrawn")
def test_runs_at_the_edges_are_told_of(make_run: Callable[..., Any]) -> None:
    for name, fields in RUNS.items():
        result = make_run(aggregator="mean", **fields).audit()
        use = result.budgets
        assert use is not None, name
        assert all(
            0 <= share <= 1 for share in (*use.spent, *use.active, *use.fewest, use.moved)
        ), name
        said = section(result).replace("\u00a0", " ")
        assert all(value in said for value in said_of(use).values()), name
        assert TITLE in render_html(result)
        assert not re.search("nan|inf|None|not a number", said), said
        if name == "all exhausted at once":
            assert use.left_out == use.contexts
        if name == "none left out":
            assert not use.left_out and set(use.active) == {1.0}
        if name == "one context":
            assert use.contexts == 1 and "ρ ≤ 0.9000" in said
        if name == "one token":
            assert len(use.position) == 1
        if name == "several texts":
            assert use.position == tuple(range(1, 41))


@pytest.mark.usefixtures("undrawn")
def test_sums_that_are_no_numbers_count_as_spent(make_run: Callable[..., Any]) -> None:
    for value in (math.nan, math.inf, -math.inf, -1.0, 1e308):
        run = make_run(aggregator="mean", sizes=(4, 5), budget=0.9, max_tokens=6)

        def corrupt(draft: Any, value: float = value) -> None:
            for step in range(len(draft.steps)):
                spent = np.array(draft.steps[step].spent)
                spent[-1, :2] = value
                draft.edit(step, spent=spent)

        run.rewrite(0, corrupt)
        run.rehash()
        result = run.audit()
        assert result.verdict != "pass"
        use = result.budgets
        assert use is not None and all(
            0 <= share <= 1 for share in (*use.spent, *use.active, *use.fewest, use.moved)
        )
        assert use.spent[-1] == 1.0 or value < 0
        assert "%" in section(result) and TITLE in render_html(result)
