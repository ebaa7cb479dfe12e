"""How contexts used budgets of their own: what is said, listed and drawn, and for whom."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpaudit.auditing.disclosure import public_form
from dpaudit.reports import budgets
from dpaudit.reports.audit_document import render_html, render_markdown
from dpaudit.reports.document import Definitions
from dpaudit.reports.engineers import kind_sections
from dpaudit.reports.wording import section_title
from dpaudit.results import AuditResult, BudgetUse
from tests.reports.conftest import budget_use, budgets_run, mean_run

TITLE = section_title("budgets")
SHARES = re.compile(r"\d%")


def section(result: AuditResult) -> str:
    """The part of the Markdown report; empty where there is none."""
    return render_markdown(result).partition(f"### {TITLE}\n")[2].partition("\n### ")[0]


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
        shown = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
        # Bounds on attacks follow from public settings, and are shares too; so are those of labels.
        others = [line for line in shown.splitlines() if not re.search("alarms|50.00%", line)]
        assert [line for line in others if SHARES.search(line)] == []
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
