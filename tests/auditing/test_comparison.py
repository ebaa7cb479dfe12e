"""Comparisons: epsilon at one length, tokens within another's epsilon, and kinds that never meet."""

from __future__ import annotations

import io
import json
import math
import re
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from dpaudit.accounting import ApproximateAccountant
from dpaudit.auditing import audit_run
from dpaudit.auditing.comparison import compare_runs
from dpaudit.catalogue import sentence
from dpaudit.mechanisms import ContextChange
from dpaudit.reports import findings
from dpaudit.reports.compare import (
    Cell,
    ComparisonTable,
    outcomes,
    render_comparison_html,
    summary,
    tables,
)
from dpaudit.reports.wording import say
from dpaudit.reports.writers.terminal import print_document
from dpaudit.results import (
    Affordable,
    Afforded,
    Approximate,
    AuditResult,
    BatchResult,
    BudgetCurve,
    BudgetPanel,
    CheckResult,
    ClaimResult,
    Comparison,
    Empirical,
    ExPost,
    Finding,
    Guarantees,
    Message,
    RunEpsilon,
    RunSummary,
    SameLength,
    TokenCurve,
)
from tests.nesting import mechanism_with, nested
from tests.settings import settings

CHANGE = ContextChange("add_remove")
SETTINGS = {"clip": 6.0, "temperature": 1.25, "divisor": 64.0}
DELTA = 1e-5


def accountant(divisor: float = 64.0, **clusters: Any) -> ApproximateAccountant:
    mechanism = mechanism_with({"aggregator": "mean", **SETTINGS, "divisor": divisor})
    found = ApproximateAccountant.of(mechanism, CHANGE, **clusters)
    assert found is not None
    return found


def ex_post(epsilon: float, **changes: Any) -> ExPost:
    fields = {"relation": "add_remove", "unit": "record", "theorem1": 1.5 * epsilon, "exact": epsilon, "rise": epsilon}
    return ExPost(
        **{**fields, "fall": 0.0, "rebalancing": 0.0, "epsilon": epsilon, "batch_epsilon": epsilon, **changes}
    )


def curve(exact: list[float]) -> TokenCurve:
    count = len(exact)
    return TokenCurve(
        position=tuple(range(1, count + 1)),
        batches=(3,) * count,
        mean=(0.1,) * count,
        maximum=(0.1,) * count,
        theorem1=tuple(1.5 * value for value in exact),
        exact=tuple(exact),
    )


def approximate(tokens: int, divisor: float = 64.0, **changes: Any) -> Approximate:
    epsilon = accountant(divisor).epsilon(tokens, DELTA, "rdp").epsilon
    fields = {
        "epsilon": epsilon,
        "batch_epsilon": epsilon,
        "batch_lower": None,
        "batch_rdp": epsilon,
        "delta": DELTA,
        "method": "rdp",
    }
    neighbours = {"relation": "add_remove", "unit": "record", "sensitivity": "c/s", "rebalancing": 0.0}
    if "epsilon" in changes:
        changes = {"batch_epsilon": changes["epsilon"], **changes}
    return Approximate(**{**fields, **neighbours, "tokens": tokens, **changes})


def run(
    found: ExPost | None = None,
    tokens: TokenCurve | None = None,
    mean: Approximate | None = None,
    costs: tuple[float | None, ...] = (),
    divisor: float = 64.0,
    **parts: Any,
) -> AuditResult:
    steps = len(tokens.position) if tokens else 0
    batches = tuple(
        BatchResult(
            id=index,
            label=None,
            contexts=4,
            steps=steps,
            theorem1=cost,
            exact=cost,
            rise=cost,
            fall=cost,
            leave_one_out_max=None,
        )
        for index, cost in enumerate(costs or (1.0,) * 3)
    )
    aggregator = {"aggregator": "mean", "divisor": divisor} if mean else {"aggregator": "median"}
    mechanism = {"clip": SETTINGS["clip"], "temperature": SETTINGS["temperature"], **aggregator}
    return AuditResult(
        verdict="pass",
        evidence=2,
        guarantee=Message(code="verdict.ex-post", words="some"),
        caveats=(),
        claim=None,
        guarantees=Guarantees(
            ex_post=found,
            approximate=mean,
            empirical=Empirical(leave_one_out_max=None, contexts=0, worst=()),
        ),
        ledger=(),
        batches=batches,
        tokens=tokens,
        checks=(),
        not_checked=(),
        run=RunSummary(dpaudit="0.1.0", settings=settings({"mechanism": nested(mechanism), **parts})),
    )


SHORT = run(ex_post(0.6), curve([0.1, 0.3, 0.6]))
LONG = run(ex_post(0.8), curve([0.2, 0.4, 0.6, 0.8]))


def of(kind: str, comparison: Comparison) -> tuple[SameLength | None, Affordable | None]:
    same = [found for found in comparison.same_length if found.kind == kind]
    affordable = [found for found in comparison.affordable if found.kind == kind]
    assert len(same) <= 1
    assert len(affordable) <= 1
    return (same or [None])[0], (affordable or [None])[0]


def reasons(comparison: Comparison) -> dict[str, str]:
    return {f"{left.run}, {left.kind}": left.reason.code for left in comparison.left_out}


# --- ex-post ---------------------------------------------------------------------------------------------------------


def test_ex_post_at_the_shortest_of_the_longest_batches() -> None:
    same, _ = of("ex-post", compare_runs({"short": SHORT, "long": LONG}))
    assert same is not None
    assert same.tokens == 3
    assert [(f.run, f.epsilon, f.theorem1) for f in same.figures] == [
        ("short", 0.6, 0.6 * 1.5),
        ("long", 0.6, 0.6 * 1.5),
    ]


def test_ex_post_tokens_within_anothers_epsilon() -> None:
    _, found = of("ex-post", compare_runs({"short": SHORT, "long": LONG}))
    assert found is not None
    cells = [[(cell.tokens, cell.all_generated) for cell in row] for row in found.cells]
    # The short run ends within the long one's epsilon, and nothing says what more text would have cost.
    assert cells == [[(3, True), (3, True)], [(3, False), (4, True)]]


def test_a_budget_is_never_overdrawn() -> None:
    for exact, tokens in [
        ([0.7, 0.8], 0),
        ([0.5, 0.61], 1),
        ([0.6, math.nan], 1),
        ([math.nan, 0.1], 0),
        ([math.inf], 0),
    ]:
        _, found = of("ex-post", compare_runs({"short": SHORT, "other": run(ex_post(1.0), curve(exact))}))
        assert found is not None
        assert found.cells[1][0] == Afforded(tokens=tokens, all_generated=False)


def test_an_epsilon_that_is_not_finite_buys_nothing() -> None:
    for budget in [math.inf, math.nan]:
        _, found = of("approximate", mean_runs(epsilon=budget))
        assert found is not None
        assert (found.cells[0][1].tokens, refusal(found.cells[0][1])) == (None, "compare.budget-not-finite")


def test_an_ex_post_figure_that_is_not_finite_is_left_out_with_the_reason() -> None:
    for exact in [math.inf, math.nan]:
        bad = run(ex_post(exact), curve([0.1, 0.2]), costs=(1.0, exact))
        assert_left_out(bad, "compare.not-finite")


def test_a_run_that_cannot_be_read_as_a_whole_is_left_out_with_the_reason() -> None:
    assert_left_out(LONG.model_copy(update={"verdict": "error"}), "compare.unreadable")


def refusal(cell: Afforded) -> str | None:
    """The code of why there is no number of tokens."""
    return None if cell.reason is None else cell.reason.code


def words_of(code: str) -> str:
    return sentence(Finding(code=code))


def assert_left_out(bad: AuditResult, reason: str) -> None:
    comparison = compare_runs({"bad": bad, "short": SHORT, "long": LONG})
    same, found = of("ex-post", comparison)
    assert same is not None
    assert found is not None
    assert [figure.run for figure in same.figures] == ["short", "long"]
    assert [figure.run for figure in found.figures] == ["short", "long"]
    assert [spread.run for spread in comparison.spreads] == ["short", "long"]
    assert reasons(comparison) == {"bad, ex-post": reason}
    assert any(f"run 1 ({words_of(reason)})" in note for table in tables(comparison) for note in table.notes)


def test_missing_steps_of_one_batch_show_no_figure_below_the_truth(make_run: Any) -> None:
    torn, whole = make_run(), make_run(seed=1)
    torn.steps_file(1).unlink()
    comparison = compare_runs({"torn": audit_run(torn.path), "whole": audit_run(whole.path)})
    assert of("ex-post", comparison) == (None, None)
    assert [spread.run for spread in comparison.spreads] == ["whole"]
    assert "torn, ex-post" in reasons(comparison)
    found = comparison.runs[0].guarantees.ex_post
    assert found is None or found.exact == math.inf


def test_a_curve_counts_up_to_its_first_gap() -> None:
    gap = curve([0.1, 0.2, 0.3]).model_copy(update={"position": (1, 2, 4)})
    same, found = of("ex-post", compare_runs({"long": LONG, "gap": run(ex_post(0.3), gap)}))
    assert same is not None
    assert found is not None
    assert same.tokens == 2
    assert (found.cells[1][0].tokens, found.cells[1][0].all_generated) == (2, False)


def test_a_run_without_a_curve_is_left_out_with_the_reason() -> None:
    comparison = compare_runs({"short": SHORT, "long": LONG, "none": run(ex_post(0.0))})
    assert reasons(comparison) == {"none, ex-post": "compare.no-curve"}
    _, found = of("ex-post", comparison)
    assert found is not None
    assert refusal(found.cells[2][0]) == "compare.no-curve"


def test_users_with_different_numbers_of_records_are_never_set_side_by_side() -> None:
    ten, two = (run(ex_post(0.8, unit="user", records_per_user=most), curve([0.2, 0.4])) for most in (10, 2))
    comparison = compare_runs({"ten": ten, "two": two, "also ten": ten})
    same, found = of("ex-post", comparison)
    assert same is not None
    assert found is not None
    assert [figure.run for figure in same.figures] == ["ten", "also ten"]
    assert refusal(found.cells[0][1]) == "compare.other-neighbours"
    assert found.cells[0][2].tokens == 2
    shown = str(tables(comparison))
    assert "with at most 10 records" in shown
    assert "with at most 2 records" in shown


def test_other_neighbours_are_never_set_side_by_side() -> None:
    for change in [{"relation": "replace"}, {"unit": "user"}]:
        other = run(ex_post(0.8, **change), curve([0.2, 0.4]))
        comparison = compare_runs({"short": SHORT, "long": LONG, "other": other})
        same, found = of("ex-post", comparison)
        assert same is not None
        assert found is not None
        assert [figure.run for figure in same.figures] == ["short", "long"]
        assert reasons(comparison) == {"other, ex-post": "compare.alone"}
        refused = "compare.other-neighbours"
        assert [refusal(cell) for cell in found.cells[2]] == [refused, refused, None]
        assert [row[2].tokens for row in found.cells] == [None, None, 2]


def test_no_run_is_within_the_epsilon_of_a_smaller_delta() -> None:
    """A pure epsilon pays for no delta, however small the costs by token are."""
    spent = run(ex_post(0.8, delta=1e-3), curve([0.1, 0.2, 0.3]))
    _, found = of("ex-post", compare_runs({"pure": SHORT, "spent": spent, "more": run(ex_post(0.8, delta=2e-3))}))
    assert found is not None
    assert (found.cells[1][0].tokens, refusal(found.cells[1][0])) == (None, "compare.larger-delta")
    assert (found.cells[0][1].tokens, found.cells[1][1].tokens, found.cells[1][2].tokens) == (3, 3, 3)


def test_cutting_texts_by_cost_is_named_what_it_is() -> None:
    mean = {"one": run(mean=approximate(40)), "other": run(mean=approximate(100))}
    for results, told in (({"short": SHORT, "long": LONG}, True), (mean, False)):
        comparison = compare_runs(results)
        (table,) = [table for table in tables(comparison) if table.title.startswith("Tokens per batch")]
        assert sum(said == say("hindsight") for said in (*table.notes, *outcomes(comparison))) == told


def test_theorem_1_stands_beside_no_mean_run() -> None:
    mean = run(ex_post(0.5), curve([0.25, 0.5]), approximate(40))
    comparison = compare_runs({"median": SHORT, "mean": mean})
    (same,) = comparison.same_length
    assert [figure.theorem1 for figure in same.figures] == [0.3 * 1.5, None]
    (table,) = [table for table in tables(comparison) if " at 2 tokens" in table.title]
    assert [cell.text for cell in table.rows[1][1]] == ["0.5000", "–", "–"]


# --- approximate -----------------------------------------------------------------------------------------------------


def mean_runs(**changes: Any) -> Comparison:
    one = run(mean=approximate(40))
    other = run(mean=approximate(100, divisor=128.0, **changes), divisor=128.0)
    return compare_runs({"one": one, "other": other})


def test_approximate_at_the_smallest_public_maximum() -> None:
    same, _ = of("approximate", mean_runs())
    assert same is not None
    assert same.tokens == 40
    expected = [approximate(40).epsilon, approximate(40, divisor=128.0).epsilon]
    assert [figure.epsilon for figure in same.figures] == expected
    assert [figure.delta for figure in same.figures] == [DELTA, DELTA]


def test_approximate_tokens_at_the_others_epsilon_and_delta() -> None:
    _, found = of("approximate", mean_runs(delta=1e-6))
    assert found is not None
    other = approximate(100, divisor=128.0).epsilon
    expected = accountant().affordable_tokens(other, 1e-6)
    assert found.cells[0][1] == Afforded(tokens=expected, all_generated=False)
    assert found.cells[0][0].tokens == 40


def test_rebalancing_is_paid_for_at_every_length() -> None:
    plain, found = of("approximate", mean_runs())[1], of("approximate", mean_runs(rebalancing=0.5))[1]
    assert plain is not None
    assert found is not None
    assert (found.cells[1][0].tokens or 0) < (plain.cells[1][0].tokens or 0)


def test_a_budget_below_the_rebalancing_is_refused_in_words() -> None:
    _, found = of("approximate", mean_runs(rebalancing=8.0))
    assert found is not None
    assert refusal(found.cells[1][0]) == "compare.clusters-alone"


def test_what_centres_leave_is_rounded_down() -> None:
    alone, beside = accountant(), accountant(centers=0.3, centers_delta=3e-6)
    left = beside.delta_left(DELTA)
    assert Fraction(left) < Fraction(DELTA) - Fraction(3e-6)
    assert left == pytest.approx(DELTA - 3e-6, rel=1e-12)
    for tokens in (1, 10, 100):
        tokens_only = alone.epsilon(tokens, left, "rdp").epsilon
        assert Fraction(beside.epsilon(tokens, DELTA, "rdp").epsilon) > Fraction(tokens_only) + Fraction(0.3)
    clusters = run(mean=approximate(9, epsilon=0.5, centers=0.3, centers_delta=3e-6))
    for at in range(20):
        other = run(mean=approximate(9, epsilon=1.0 + at / 7))
        (found,) = compare_runs({"clusters": clusters, "other": other}).affordable
        tokens = found.cells[0][1].tokens
        assert tokens is not None
        costs = [beside.epsilon(most, DELTA, "rdp").epsilon for most in (tokens, tokens + 1)]
        assert costs[0] <= 1.0 + at / 7 < costs[1]


def test_a_shorter_run_costs_no_more_than_the_whole_one() -> None:
    runs = {"whole": run(mean=approximate(40, epsilon=1.25)), "short": run(mean=approximate(39))}
    same, _ = of("approximate", compare_runs(runs))
    assert same is not None
    assert approximate(39).epsilon > 1.25
    assert [figure.epsilon for figure in same.figures] == [1.25, approximate(39).epsilon]


def test_settings_that_bound_nothing_give_no_figure() -> None:
    for other in [
        run(mean=approximate(40), mechanism=None),
        run(mean=approximate(40), mechanism={"aggregator": "mean"}),
        run(mean=approximate(40), mechanism={"aggregator": "of a plug-in that is not here"}),
        run(mean=approximate(40)).model_copy(update={"run": RunSummary(dpaudit="0.1.0")}),
        run(mean=approximate(40), batching={"rule": "paper-slices", "slots": 3, "labels": []}),
    ]:
        comparison = compare_runs({"one": run(mean=approximate(40)), "other": other})
        same, found = of("approximate", comparison)
        assert same is None
        assert found is not None
        assert refusal(found.cells[1][0]) == "compare.no-settings"
        assert reasons(comparison)["other, approximate"] == "compare.no-settings"


# --- kinds -----------------------------------------------------------------------------------------------------------

EX_POST = RunEpsilon(
    run="a", kind="ex-post", relation="add_remove", unit="record", epsilon=1.0, theorem1=1.1, delta=None
)
APPROXIMATE = RunEpsilon(
    run="b", kind="approximate", relation="add_remove", unit="record", epsilon=1.0, theorem1=None, delta=DELTA
)
REPLACE = EX_POST.model_copy(update={"relation": "replace"})
TEN, TWO = (EX_POST.model_copy(update={"unit": "user", "records_per_user": most}) for most in (10, 2))
USERS = (TEN, TWO)
CELL = Afforded(tokens=3, all_generated=False)


def test_two_kinds_never_share_a_column() -> None:
    for kind in ["ex-post", "approximate"]:
        figures = (EX_POST, APPROXIMATE)
        with pytest.raises(ValidationError, match="another kind"):
            SameLength(kind=kind, figures=figures, tokens=3)
        with pytest.raises(ValidationError, match="another kind"):
            Affordable(kind=kind, figures=figures, cells=((CELL, CELL), (CELL, CELL)))
        with pytest.raises(ValueError, match="share a table"):
            ComparisonTable("Mixed", kind, ("ε",), ((1, (Cell("1", "ex-post"),)), (2, (Cell("1", "approximate"),))))


def test_other_neighbours_never_share_a_column() -> None:
    for pair in [(EX_POST, REPLACE), USERS]:
        with pytest.raises(ValidationError, match="different neighbours"):
            SameLength(kind="ex-post", figures=pair, tokens=3)
        with pytest.raises(ValidationError, match="buys no tokens"):
            Affordable(kind="ex-post", figures=pair, cells=((CELL, CELL), (CELL, CELL)))


def test_a_table_of_cells_is_square() -> None:
    with pytest.raises(ValidationError, match="each figure"):
        Affordable(kind="ex-post", figures=(EX_POST, EX_POST), cells=((CELL,), (CELL, CELL)))


def test_a_median_and_a_mean_run_meet_in_ex_post_figures_only() -> None:
    mean = run(ex_post(0.5), curve([0.25, 0.5]), approximate(40))
    comparison = compare_runs({"median": SHORT, "mean": mean})
    assert [(same.kind, same.tokens) for same in comparison.same_length] == [("ex-post", 2)]
    assert [found.kind for found in comparison.affordable] == ["ex-post"]
    assert reasons(comparison) == {
        "median, approximate": "compare.no-figure",
        "mean, approximate": "compare.alone",
    }
    for table in tables(comparison):
        assert {cell.kind for _, cells in table.rows for cell in cells} <= {None, table.kind}


# --- the rest --------------------------------------------------------------------------------------------------------


def test_quartiles_are_costs_of_actual_batches() -> None:
    for costs, five in [
        ((1.0,), (1.0, 1.0, 1.0, 1.0, 1.0)),
        ((2.0, 1.0), (1.0, 2.0, 2.0, 2.0, 2.0)),
        ((5.0, 4.0, 3.0, 2.0, 1.0), (1.0, 2.0, 3.0, 4.0, 5.0)),
        ((1.0, math.nan, None), (1.0, math.inf, math.inf, math.inf, math.inf)),
        (tuple(float(value) for value in range(1_000)), (0.0, 250.0, 500.0, 750.0, 999.0)),
    ]:
        spread = compare_runs({"one": run(ex_post(1.0), costs=costs), "other": SHORT}).spreads[0]
        found = (spread.minimum, spread.lower_quartile, spread.median, spread.upper_quartile, spread.maximum)
        assert (spread.run, spread.batches, found) == ("one", len(costs), five)


def test_a_run_that_cannot_be_read_has_a_row_and_no_figures() -> None:
    unread = run().model_copy(update={"batches": (), "run": RunSummary(dpaudit="0.1.0"), "verdict": "error"})
    comparison = compare_runs({"unread": unread, "short": SHORT})
    row = comparison.runs[0]
    assert (row.aggregator, row.clip, row.batches, row.longest_batch) == (None, None, 0, 0)
    assert [spread.run for spread in comparison.spreads] == ["short"]
    assert reasons(comparison)["unread, ex-post"] == "compare.no-figure"


def test_one_number_never_shows_in_two_ways() -> None:
    claim = ClaimResult(epsilon=0.60000001, delta=0.0, kind="ex-post", relation="add_remove", unit="record")
    claimed = run(ex_post(0.600000009), curve([0.1, 0.600000009]), costs=(0.1, 0.600000009))
    comparison = compare_runs({"claimed": claimed.model_copy(update={"claim": claim}), "short": SHORT})
    shown = str(tables(comparison))
    # Claimed, exact, rise and total; at one length; by length; a spread's quartiles and most.
    assert shown.count("'0.60000001'") == 11
    assert "run 1: 0.60000001" in shown
    assert "0.6001" not in shown


def test_what_clusters_cost_is_in_every_figure_of_an_ex_post_run() -> None:
    clustered = run(ex_post(0.5, rebalancing=0.25, batch_epsilon=math.nextafter(0.75, 1)), curve([0.2, 0.5]))
    comparison = compare_runs({"labels": run(ex_post(0.5), curve([0.25, 0.5])), "clusters": clustered})
    (figures,) = comparison.same_length
    assert [figure.epsilon for figure in figures.figures] == [0.5, math.nextafter(0.75, 1)]
    assert [figure.theorem1 for figure in figures.figures] == pytest.approx([0.75, 1.0])
    (affordable,) = comparison.affordable
    assert [[cell.tokens for cell in row] for row in affordable.cells] == [[2, 2], [1, 2]]
    spent = run(ex_post(0.5, rebalancing=math.inf, batch_epsilon=math.inf), curve([0.25, 0.5]))
    assert compare_runs({"labels": SHORT, "clusters": spent}).left_out[-1].reason.code == "compare.not-finite"


def test_what_clusters_cost_is_in_every_figure_of_a_mean_run() -> None:
    """Counts are composed jointly, centres added; a shorter run has both too."""
    epsilons = {"rebalancing": 0.2, "centers": 0.3, "centers_delta": 4e-6}
    clusters, delta = accountant(laplace=(0.2,)), DELTA - 4e-6
    full, shorter = (clusters.epsilon(tokens, delta, "rdp").epsilon + 0.3 for tokens in (100, 40))
    clustered = run(mean=approximate(100, epsilon=full, **epsilons))
    comparison = compare_runs({"labels": run(mean=approximate(40)), "clusters": clustered})
    (figures,) = comparison.same_length
    assert figures.tokens == 40
    assert figures.figures[1].epsilon == pytest.approx(shorter, rel=1e-12)
    (affordable,) = comparison.affordable
    by_hand = clusters.affordable_tokens(approximate(40).epsilon - 0.3, delta)
    assert affordable.cells[1][0].tokens == by_hand < 40
    unbounded = run(mean=approximate(100, epsilon=math.inf, centers=math.inf))
    assert compare_runs({"labels": run(mean=approximate(40)), "clusters": unbounded}).left_out


# --- budgets by length -----------------------------------------------------------------------------------------------


def test_budget_curves_are_the_runs_costs_by_length() -> None:
    (panel,) = compare_runs({"short": SHORT, "long": LONG}).budgets
    assert (panel.kind, panel.relation, panel.unit) == ("ex-post", "add_remove", "record")
    found = {(each.run, each.accountant): (each.tokens, each.epsilon) for each in panel.curves}
    for name, result in (("short", SHORT), ("long", LONG)):
        assert result.tokens is not None
        assert {each.batches for each in panel.curves} == {3}
        assert found[name, "exact"] == (result.tokens.position, result.tokens.exact)
        assert found[name, "theorem1"] == (result.tokens.position, result.tokens.theorem1)


def test_a_mean_run_has_both_accountants_and_no_theorem_1() -> None:
    mean = run(ex_post(0.5), curve([0.25, 0.5]), approximate(40))
    ex_post_panel, approximate_panel = compare_runs({"median": SHORT, "mean": mean}).budgets
    assert {(each.run, each.accountant) for each in ex_post_panel.curves} == {
        ("median", "exact"),
        ("median", "theorem1"),
        ("mean", "exact"),
    }
    rdp, optimal = approximate_panel.curves
    assert (rdp.accountant, optimal.accountant) == ("rdp", "optimal")
    assert rdp.tokens == optimal.tokens == tuple(range(1, 41))
    for at in (0, 9, 39):
        assert rdp.epsilon[at] == approximate(at + 1).epsilon
        assert optimal.epsilon[at] <= rdp.epsilon[at]
    assert rdp.delta == DELTA


def test_approximate_curves_go_to_the_longest_maximum_and_keep_the_runs_own_figure() -> None:
    runs = {"one": run(mean=approximate(40, epsilon=1.25)), "other": run(mean=approximate(300))}
    (panel,) = compare_runs(runs).budgets
    rdp = panel.curves[0]
    assert (rdp.run, rdp.tokens[-1], len(rdp.tokens)) == ("one", 300, 65)
    # Never above what the run itself was found to cost, up to its own length, by the accountant that found it.
    assert rdp.epsilon[rdp.tokens.index(40)] == 1.25
    assert rdp.epsilon[-1] == approximate(300).epsilon
    assert panel.curves[1].epsilon == tuple(accountant().epsilons(rdp.tokens, DELTA, "optimal"))


def test_what_clusters_cost_is_in_every_curve() -> None:
    clustered = approximate(40, epsilon=9.0, rebalancing=0.2, centers=0.3, centers_delta=4e-6)
    found = run(ex_post(0.5, rebalancing=0.25, batch_epsilon=0.75), curve([0.25, 0.5]), clustered)
    exact, rdp = (panel.curves[0] for panel in compare_runs({"a": found, "b": found}).budgets)
    assert exact.epsilon == pytest.approx((0.5, 0.75))
    assert rdp.epsilon[-1] == pytest.approx(accountant(laplace=(0.2,)).epsilon(40, DELTA - 4e-6, "rdp").epsilon + 0.3)


def test_what_budgets_promise_stands_beside_worst_case_accounting(make_run: Any) -> None:
    kind = {"aggregator": "mean", "sizes": (6, 7), "max_tokens": 20, "divisor": 4.0}
    own, worst = make_run(**kind, budget=0.9).audit(), make_run(**kind).audit()
    comparison = compare_runs({"own": own, "worst": worst})
    (panel,) = (panel for panel in comparison.budgets if panel.kind == "approximate")
    curves = {(each.run, each.accountant): each for each in panel.curves}
    assert curves.keys() == {
        ("own", "budgets"),
        *((name, by) for name in ("own", "worst") for by in ("rdp", "optimal")),
    }
    promised = own.guarantees.approximate
    assert set(curves["own", "budgets"].epsilon) == {promised.epsilon}
    for by in ("rdp", "optimal"):
        assert curves["own", by].epsilon == pytest.approx(curves["worst", by].epsilon, rel=1e-2)
        assert curves["own", by].epsilon[-1] > 3 * promised.epsilon
    # The promise holds for any length: there is no number of tokens at which another epsilon ends.
    _, affordable = of("approximate", comparison)
    assert affordable is not None
    own_at_worst, worst_at_own = affordable.cells[0][1], affordable.cells[1][0]
    assert own_at_worst.tokens is None and refusal(own_at_worst) == "compare.any-number"
    assert worst_at_own.tokens is not None and worst_at_own.tokens < 20
    said = " ".join(outcomes(comparison))
    assert re.search(
        r"Run 1's budgets promise ε [\d.]+ \(batch level\) .* worst-case accounting, [\d.]+ at 20 tokens",
        said,
    )
    moved = own.budgets.moved
    assert f"{100 * moved:.0f}% as far as " in said and f"clip of about {6 * moved:.2g}" in said
    assert "Run 2's budgets" not in said
    assert own.budgets.moved**2 * sum(own.budgets.active) * 13 == pytest.approx(
        13 * 20 * own.budgets.budget * 0.9 / own.budgets.worst_case, rel=0.2
    )


def test_long_curves_are_thinned_and_never_drawn_too_low() -> None:
    for length in [1, 63, 64, 65, 129, 1_000]:
        costs = [0.01 * (at + 1) for at in range(length)]
        if length > 1:
            costs[(length - 1) // 2] = math.nan
        whole = run(ex_post(costs[-1]), curve(costs))
        short = run(ex_post(0.1), curve([0.1]))
        (panel,) = compare_runs({"long": whole, "short": short}).budgets
        found = panel.curves[0]
        assert len(found.tokens) <= 65
        assert found.tokens[-1] == length
        assert panel.curves[2].tokens == (1,)
        for at, cost in enumerate(costs, start=1):
            covering = next(e for tokens, e in zip(found.tokens, found.epsilon, strict=True) if tokens >= at)
            assert covering >= (math.inf if math.isnan(cost) else cost)


def test_a_curve_that_falls_is_never_drawn_too_low() -> None:
    """No record should say so, but a record can say anything: a step is the most of its lengths."""
    costs = [2.0 - 0.01 * at for at in range(129)]
    (panel,) = compare_runs({"falls": run(ex_post(2.0), curve(costs))}).budgets
    found = panel.curves[0]
    assert len(found.tokens) < len(costs)
    for at, cost in enumerate(costs, start=1):
        assert next(e for tokens, e in zip(found.tokens, found.epsilon, strict=True) if tokens >= at) >= cost


def test_curves_of_other_neighbours_have_a_panel_of_their_own() -> None:
    other = run(ex_post(0.8, relation="replace"), curve([0.2, 0.4]))
    panels = compare_runs({"short": SHORT, "other": other}).budgets
    assert [(panel.relation, {each.run for each in panel.curves}) for panel in panels] == [
        ("add_remove", {"short"}),
        ("replace", {"other"}),
    ]


def test_two_kinds_never_share_an_axis() -> None:
    fields = {"run": "a", "batches": None, "delta": None, "tokens": (1, 2), "epsilon": (0.1, 0.2)}
    exact, rdp = BudgetCurve(accountant="exact", **fields), BudgetCurve(accountant="rdp", **fields)
    with pytest.raises(ValidationError, match="another kind"):
        BudgetPanel(kind="ex-post", relation="add_remove", unit="record", curves=(exact, rdp))
    for tokens in ((2, 1), (1, 1), (1,)):
        with pytest.raises(ValidationError, match="which ascend"):
            BudgetCurve(accountant="exact", **{**fields, "tokens": tokens})


# --- what does not hold ----------------------------------------------------------------------------------------------


def check(name: str, status: Any, evidence: int = 1) -> CheckResult:
    words = {"title": "", "measured": "", "expected": "", "detail": "", "reference": ""}
    return CheckResult(id=name, evidence=evidence, status=status, **words)


REFUTED = "compare.refuted"
UNTESTED = "compare.untested"


def test_a_run_has_a_caution_where_its_report_has_one() -> None:
    for found, caution in [
        (check("record.complete", "pass"), ""),
        (check("claim.epsilon", "fail"), ""),
        (check("record.complete", "warn"), ""),
        (check("record.complete", "fail"), REFUTED),
        (check("sampling.draws", "error"), REFUTED),
        (check("sampling.draws", "skip", 2), UNTESTED),
        (check("replay.logits", "skip", 3), ""),
    ]:
        skipped = (found.id,) if found.status == "skip" else ()
        result = LONG.model_copy(update={"checks": (found,), "not_checked": skipped})
        assert bool(findings.caution(result)) == bool(caution)
        found_caution = compare_runs({"one": result, "short": SHORT}).runs[0].caution
        assert (found_caution.code if found_caution else "") == caution


def doubtful(result: AuditResult) -> AuditResult:
    return result.model_copy(update={"verdict": "fail", "checks": (check("record.complete", "fail"),)})


def test_a_run_whose_checks_failed_is_starred_wherever_its_epsilon_stands() -> None:
    mean = doubtful(run(ex_post(0.5), curve([0.25, 0.5]), approximate(9)))
    comparison = compare_runs({"good": SHORT, "bad": mean, "mean": run(mean=approximate(40))})
    said = f"* run 2: {words_of(REFUTED)}."
    listed = tables(comparison)
    starred = [table for table in listed if table.kind in ("ex-post", "approximate")]
    assert len(starred) == 9
    for table in starred:
        assert (said in table.notes) != (said in table.caption), "once, in the caption where there is a figure"
        assert table.starred == {2}
    for table in listed:
        assert (said in (*table.notes, *table.caption.partition(said))) == (table in starred)
    assert any(name.startswith("run 2*: ") for table in starred for name in table.header)
    page = render_comparison_html(comparison)
    for caption in re.findall(r"<figcaption>(.*?)</figcaption>", page, re.DOTALL):
        assert said in caption
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 3
    for drawing in drawings:
        assert "run 2*" in drawing
        assert not re.search(r"run 2\b(?!\*)", drawing)
    assert '<th scope="row"><bdi>2* ' in page
    printed = shown(comparison)
    assert re.search(r"^2\* .* 0\.5000", printed, re.MULTILINE)
    assert printed.count(words_of(REFUTED)) == 1 and f"Run 2* {words_of(REFUTED)}." in printed


def test_an_unread_run_has_no_figures_at_all() -> None:
    unread = run(ex_post(0.5), curve([0.25, 0.5]), approximate(9)).model_copy(update={"verdict": "error"})
    comparison = compare_runs({"unread": unread, "good": run(ex_post(0.5), curve([0.25, 0.5]), approximate(40))})
    guarantees = comparison.runs[0].guarantees
    assert (guarantees.ex_post, guarantees.approximate, guarantees.empirical.leave_one_out_max) == (None, None, None)
    assert {curve.run for panel in comparison.budgets for curve in panel.curves} == {"good"}
    assert (comparison.same_length, comparison.affordable) == ((), ())
    assert reasons(comparison)["unread, approximate"] == "compare.unreadable"
    for table in tables(comparison):
        for number, cells in table.rows:
            if number == 1 and table.title != "Runs":
                assert not any(re.search("[1-9]", cell.text) for cell in cells), table.title


# --- what is said first ----------------------------------------------------------------------------------------------


def shown(comparison: Comparison) -> str:
    text = io.StringIO()
    print_document(summary(comparison), Console(file=text, width=200, color_system=None))
    return text.getvalue()


def test_the_outcome_comes_first() -> None:
    comparison = compare_runs({"short": SHORT, "long": LONG})
    first, hindsight = outcomes(comparison)
    assert first == "Within run 1's ex-post epsilon (batch level), run 2 affords 3 of 4 tokens."
    assert hindsight == say("hindsight")
    assert shown(comparison).startswith(first)
    words = re.sub("<.*?>", "", render_comparison_html(comparison)).replace("&#39;", "'")
    assert words.index(first) < words.index("cannot be compared with each other") < words.index("add or remove one")


def test_the_outcome_of_mean_runs_and_of_other_deltas() -> None:
    said = outcomes(compare_runs({"one": run(mean=approximate(40)), "same": run(mean=approximate(40))}))
    assert said == ("Within run 1's approximate epsilon (batch level), run 2 affords all 40 tokens.",)
    wide, strict = run(mean=approximate(40)), run(mean=approximate(40, divisor=128.0), divisor=128.0)
    cut = outcomes(compare_runs({"wide": wide, "strict": strict}))
    assert re.fullmatch(r"Within run 2's approximate epsilon \(batch level\), run 1 affords \d+ of 40 tokens\.", *cut)
    loose = run(mean=approximate(40, epsilon=0.99 * approximate(40).epsilon, delta=1e-2))
    (more,) = outcomes(compare_runs({"one": run(mean=approximate(40)), "loose": loose}))
    assert re.fullmatch(r"Within run 2's .*, run 1 affords \d+ tokens, beyond its .* 40\.", more)
    spent = run(ex_post(0.9, delta=1e-3), curve([0.1, 0.9]))
    assert outcomes(compare_runs({"spent": spent, "short": SHORT}))[0] == (
        "Within run 1's ex-post epsilon (batch level), run 2 affords all 3 tokens."
    )


def test_the_outcome_says_what_does_not_count() -> None:
    unread = LONG.model_copy(update={"verdict": "error"})
    assert outcomes(compare_runs({"good": SHORT, "bad": doubtful(LONG), "unread": unread})) == (
        "No two runs have figures that hold and can be set side by side.",
        f"Run 2* {words_of(REFUTED)}.",
        "Run 3 cannot be read as a whole, so it has no figures.",
    )


def test_many_pairs_have_no_sentence_each() -> None:
    said = outcomes(compare_runs({str(number): SHORT for number in range(6)}))
    assert len(said) == 11
    assert said[-1].endswith(" have 5 more pairs.")


def test_a_figure_has_the_digits_that_its_claim_needs_here_as_in_the_report() -> None:
    found = approximate(40).model_copy(update={"epsilon": 13.2, "rdp": 15.96137})
    claim = ClaimResult(epsilon=15.9614, delta=found.delta, kind="approximate", relation="add_remove", unit="record")
    mean = run(mean=found).model_copy(update={"claim": claim})
    comparison = compare_runs({"mean": mean, "median": SHORT})
    for text in (shown(comparison), render_comparison_html(comparison)):
        assert "15.9614" in text and "15.97" not in text


def test_a_caveat_that_runs_share_is_said_once() -> None:
    runs = [
        SHORT.model_copy(
            update={
                "caveats": tuple(
                    Message(code="caveat.declared", values={"words": each}, words=each) for each in caveats
                )
            }
        )
        for caveats in (("Of all.", "Of two."), ("Of all.", "Of one."), ("Of two.", "Of all."))
    ]
    comparison = compare_runs({str(number): result for number, result in enumerate(runs)})
    for text in (shown(comparison), re.sub("<.*?>", "", render_comparison_html(comparison))):
        assert [text.count(caveat) for caveat in ("Of all.", "Of two.", "Of one.")] == [1, 1, 1]
        assert "All runs: Of all." in text
        assert "Runs 1, 3: Of two." in text


def test_numbers_stand_on_the_right_and_words_on_the_left() -> None:
    comparison = compare_runs({"short": SHORT, "long": LONG})
    page, printed = render_comparison_html(comparison), shown(comparison)
    assert '<td class="number"><bdi>0.6000</bdi></td>' in page
    assert '<td class="words"><bdi>add or remove one record</bdi></td>' in page
    assert '<th scope="col" class="number">Exact</th>' in page
    assert '<th scope="col" class="words">Neighbours</th>' in page
    heading, row = next(pair for pair in pairwise(printed.splitlines()) if "Tokens" in pair[0])
    assert heading.index("Tokens") + len("Tokens") == len(row.rstrip())
    assert heading.index("Mechanism") == row.index("median")


def test_the_glossary_sends_nobody_to_a_file_that_is_not_there() -> None:
    page = render_comparison_html(compare_runs({"short": SHORT, "long": LONG}))
    assert "report.json" not in page
    assert "dpaudit compare" in page and "--json" in page


def test_json_is_strict_and_complete() -> None:
    results = {
        "short": SHORT,
        "bad": run(ex_post(1.0, theorem1=math.inf), curve([math.inf, math.nan])),
        "mean": run(mean=approximate(9)),
    }
    comparison = compare_runs(results)
    document = json.loads(comparison.to_json(), parse_constant=pytest.fail)
    assert document["runs"][1]["guarantees"]["ex_post"]["theorem1"] == "inf"
    assert document["same_length"][0]["figures"][1]["epsilon"] == "nan"
    assert set(document) >= {"schema_version", "runs", "same_length", "affordable", "spreads", "left_out"}
    assert Comparison.model_validate_json(comparison.to_json()).to_json() == comparison.to_json()


def test_curves_of_several_rounds_hold_the_batch_level_of_all(make_run: Any) -> None:
    kind = {"aggregator": "mean", "sizes": (4, 4), "secret": True, "rounds": 3}
    runs = {"all": make_run(**kind), "split": make_run(**kind, split=True, stopped=2)}
    found = {name: audit_run(run.path) for name, run in runs.items()}
    comparison = compare_runs(found)
    (panel,) = (panel for panel in comparison.budgets if panel.kind == "approximate")
    for name, result in found.items():
        due = result.guarantees.approximate
        assert due is not None and due.epsilon < due.batch_epsilon
        curves = [curve for curve in panel.curves if curve.run == name]
        best = min(curve.epsilon[curve.tokens.index(due.tokens)] for curve in curves)
        assert math.isclose(best, due.batch_epsilon, rel_tol=1e-2)
        assert all(curve.epsilon[-1] >= due.batch_epsilon * 0.999 for curve in curves)
    (table,) = (each for each in comparison.affordable if each.kind == "approximate")
    for number, row in enumerate(table.cells):
        assert row[number].tokens is not None and row[number].tokens >= 3, "a run is within its own epsilon"
