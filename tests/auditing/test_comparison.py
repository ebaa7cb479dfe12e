"""Comparisons: what differs, ex-post costs at one length, kinds and neighbours that never meet."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from dpaudit.auditing.comparison import compare_runs
from dpaudit.auditing.run import audit_run
from dpaudit.reports import findings
from dpaudit.reports.compare import build, render_comparison_html, summary
from dpaudit.reports.document import Document, Section, Table
from dpaudit.reports.writers.terminal import print_document
from dpaudit.results import (
    Approximate,
    AuditResult,
    BatchResult,
    CheckResult,
    ClaimResult,
    Empirical,
    ExPost,
    Guarantees,
    Message,
    RunSummary,
    SampleText,
    TokenCurve,
)
from dpaudit.results.comparison import Comparison
from tests.nesting import nested
from tests.settings import settings

DELTA = 1e-5


def ex_post(epsilon: float, **changes: Any) -> ExPost:
    fields = {
        "relation": "add_remove",
        "unit": "record",
        "theorem1": 1.5 * epsilon,
        "exact": epsilon,
        "rise": epsilon,
        "fall": 0.0,
        "rebalancing": 0.0,
        "epsilon": epsilon,
        "batch_epsilon": epsilon,
    }
    return ExPost(**{**fields, **changes})


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


def approximate(epsilon: float = 2.0, **changes: Any) -> Approximate:
    fields = {
        "relation": "add_remove",
        "unit": "record",
        "epsilon": epsilon,
        "batch_epsilon": epsilon,
        "batch_lower": None,
        "batch_rdp": 1.25 * epsilon,
        "delta": DELTA,
        "method": "rdp",
        "tokens": 40,
        "sensitivity": "c/s",
        "rebalancing": 0.0,
    }
    return Approximate(**{**fields, **changes})


def run(
    found: ExPost | None = None,
    tokens: TokenCurve | None = None,
    mean: Approximate | None = None,
    aggregator: str = "median",
    **parts: Any,
) -> AuditResult:
    steps = len(tokens.position) if tokens else 0
    figures: Any = dict.fromkeys(("theorem1", "exact", "rise", "fall"), 1.0)
    batch = BatchResult(
        id=0, label=None, contexts=4, steps=steps, leave_one_out_max=None, **figures
    )
    mechanism = {"clip": 6.0, "temperature": 1.25, "aggregator": aggregator}
    empirical = Empirical(leave_one_out_max=None, contexts=0, worst=())
    return AuditResult(
        verdict="pass",
        evidence=2,
        guarantee=Message(code="verdict.ex-post", words="some"),
        caveats=(),
        claim=None,
        guarantees=Guarantees(ex_post=found, approximate=mean, empirical=empirical),
        ledger=(),
        batches=(batch,),
        tokens=tokens,
        checks=(),
        not_checked=(),
        run=RunSummary(
            dpaudit="0.1.0", settings=settings({"mechanism": nested(mechanism), **parts})
        ),
    )


SHORT = run(ex_post(0.6), curve([0.1, 0.3, 0.6]))
LONG = run(ex_post(0.8), curve([0.2, 0.4, 0.6, 0.8]))


def tables(document: Document) -> dict[str, Table]:
    """Every table of a document by its title."""
    found = {}
    for section in document.blocks:
        if isinstance(section, Section):
            found |= {table.title: table for table in section.blocks if isinstance(table, Table)}
    return found


def rows(comparison: Comparison, start: str) -> dict[str, list[str]]:
    """The cells of the tables whose titles begin so, by the names of their rows."""
    found = [table for title, table in tables(build(comparison)).items() if title.startswith(start)]
    return {str(row.cells[0]): [*map(str, row.cells[1:])] for table in found for row in table.rows}


def shown(comparison: Comparison) -> str:
    text = io.StringIO()
    print_document(summary(comparison), Console(file=text, width=200, color_system=None))
    return text.getvalue()


def check(name: str, status: Any, evidence: int = 1, **changes: Any) -> CheckResult:
    words = {"title": "", "measured": "", "expected": "", "detail": "", "reference": ""}
    return CheckResult(id=name, evidence=evidence, status=status, **words, **changes)


# --- ex-post at one length ------------------------------------------------------------------------


def test_ex_post_at_the_shortest_of_the_longest_batches() -> None:
    (same,) = compare_runs({"short": SHORT, "long": LONG}).same_length
    assert (same.tokens, same.runs, same.epsilons) == (3, ("short", "long"), (0.6, 0.6))
    assert rows(compare_runs({"short": SHORT, "long": LONG}), "Ex-post")[
        "ε, batch level, up to 3 tokens"
    ] == [
        "0.6000",
        "0.6000",
        "–",
    ]


def test_clusters_are_paid_for_at_every_length() -> None:
    spent = run(ex_post(0.6, rebalancing=0.25, batch_epsilon=0.85), curve([0.1, 0.3, 0.6]))
    (same,) = compare_runs({"spent": spent, "long": LONG}).same_length
    assert same.epsilons[0] >= 0.6 + 0.25 and same.epsilons[0] == pytest.approx(0.85)


def test_what_cannot_be_compared_at_one_length_is_left_out() -> None:
    gap = curve([0.1, 0.2, 0.3]).model_copy(update={"position": (1, 2, 4)})
    (same,) = compare_runs({"long": LONG, "gap": run(ex_post(0.3), gap)}).same_length
    assert same.tokens == 2, "a curve counts up to its first gap"
    for other in (
        run(ex_post(math.inf), curve([0.1, 0.2])),
        run(ex_post(math.nan), curve([0.1, 0.2])),
        run(ex_post(0.3)),
        run(mean=approximate()),
        LONG.model_copy(update={"verdict": "error"}),
    ):
        (same,) = compare_runs({"other": other, "short": SHORT, "long": LONG}).same_length
        assert same.runs == ("short", "long")
        assert compare_runs({"other": other, "short": SHORT}).same_length == ()


def test_other_neighbours_are_never_set_side_by_side() -> None:
    for change in [
        {"relation": "replace"},
        {"unit": "user"},
        {"unit": "user", "records_per_user": 2},
    ]:
        other = run(ex_post(0.8, **change), curve([0.2, 0.4]))
        comparison = compare_runs({"short": SHORT, "other": other})
        assert comparison.same_length == ()
        found = [
            table
            for title, table in tables(build(comparison)).items()
            if title.startswith("Ex-post")
        ]
        assert {table.header for table in found} == {("", "1 short", "2 other")}, "no difference"
        assert len({*rows(comparison, "Ex-post")["Neighbours"]}) == 2
        groups = compare_runs({"a": SHORT, "b": SHORT, "c": other, "d": other}).same_length
        assert [(each.runs, each.tokens) for each in groups] == [(("a", "b"), 3), (("c", "d"), 2)]
        named = rows(compare_runs({"a": SHORT, "b": SHORT, "c": other, "d": other}), "Ex-post")
        assert sum("up to" in name for name in named) == 2


def test_users_with_different_numbers_of_records_are_never_set_side_by_side() -> None:
    ten, two = (
        run(ex_post(0.8, unit="user", records_per_user=most), curve([0.2, 0.4])) for most in (10, 2)
    )
    comparison = compare_runs({"ten": ten, "two": two, "also ten": ten})
    assert [same.runs for same in comparison.same_length] == [("ten", "also ten")]
    neighbours = rows(comparison, "Ex-post")["Neighbours"]
    assert "with at most 10 records" in neighbours[0] and "with at most 2 records" in neighbours[1]


def test_missing_steps_of_one_batch_show_no_figure_below_the_truth(make_run: Any) -> None:
    torn, whole = make_run(), make_run(seed=1)
    torn.steps_file(1).unlink()
    comparison = compare_runs({"torn": audit_run(torn.path), "whole": audit_run(whole.path)})
    assert comparison.same_length == ()
    found = comparison.runs["torn"].guarantees.ex_post
    assert found is None or found.exact == math.inf


# --- figures --------------------------------------------------------------------------------------


def test_kinds_never_share_a_table() -> None:
    results = {"median": SHORT, "mean": run(ex_post(0.5), curve([0.25, 0.5]), approximate(3.25))}
    for document in (build(compare_runs(results)), summary(compare_runs(results))):
        found = tables(document)
        median = [table for title, table in found.items() if title.startswith("Ex-post")]
        mean = [table for title, table in found.items() if title.startswith("Approximate")]
        assert "3.250" not in str(median) and "3.250" in str(mean)
        assert "0.6000" not in str(mean) and "0.6000" in str(median)


def test_two_figures_of_one_kind_have_a_difference() -> None:
    found = rows(compare_runs({"short": SHORT, "long": LONG}), "Ex-post")
    assert found["ε, release level"] == ["0.6000", "0.8000", "+0.200"]
    assert found["Rise"] == ["0.6000", "0.8000", "+0.200"]
    mean, other = run(mean=approximate()), run(mean=approximate(1.5))
    assert rows(compare_runs({"a": mean, "b": other}), "Approx")["ε, batch level"] == [
        "2.000",
        "1.500",
        "-0.500",
    ]


def test_figures_at_other_deltas_have_no_difference() -> None:
    mean = run(mean=approximate())
    for other in (run(mean=approximate(1.5, delta=1e-6)), run(ex_post(0.5))):
        found = rows(compare_runs({"a": mean, "b": other}), "Approx")
        assert len(found["ε, batch level"]) == 2
    three = rows(compare_runs({"a": mean, "b": mean, "c": mean}), "Approx")
    assert len(three["ε, batch level"]) == 3


def test_a_figure_has_the_digits_that_its_claim_needs_here_as_in_the_report() -> None:
    found = approximate(13.2).model_copy(update={"batch_rdp": 15.96137})
    claim = ClaimResult(
        epsilon=15.9614, delta=DELTA, kind="approximate", relation="add_remove", unit="record"
    )
    mean = run(mean=found.model_copy(update={"epsilon": 15.96137})).model_copy(
        update={"claim": claim}
    )
    comparison = compare_runs({"mean": mean, "median": SHORT})
    for text in (shown(comparison), render_comparison_html(comparison)):
        assert "15.9614" in text and "15.97" not in text


def test_claimed_figures_and_neighbours_stand_beside_recomputed_ones() -> None:
    claim = ClaimResult(epsilon=0.9, delta=0.0, kind="ex-post", relation="replace", unit="record")
    found = rows(
        compare_runs({"a": SHORT.model_copy(update={"claim": claim}), "b": LONG}), "Ex-post"
    )
    assert found["Claimed ε, release level"] == ["0.9", "–"]
    assert "claimed: replace one record" in found["Neighbours"][0]


# --- settings, checks, texts ----------------------------------------------------------------------


def test_settings_that_differ_are_listed() -> None:
    other = run(ex_post(0.8), curve([0.2]), aggregator="mean", created="2026-01-01T00:00:00+00:00")
    comparison = compare_runs({"a": SHORT, "b": other})
    differing = {each.name: each.values for each in comparison.settings}
    assert differing == {"mechanism.aggregator.kind": ("median", "mean")}
    assert compare_runs({"a": SHORT, "b": SHORT}).settings == ()


def test_checks_that_differ_are_listed_where_they_apply() -> None:
    one = SHORT.model_copy(
        update={"checks": (check("a.b", "pass"), check("c.d", "fail"), check("e.f", "pass"))}
    )
    inapplicable = check("e.f", "skip", applicable=False)
    two = SHORT.model_copy(
        update={"checks": (check("a.b", "pass"), check("c.d", "pass"), inapplicable)}
    )
    comparison = compare_runs({"one": one, "two": two})
    assert [(each.name, each.values) for each in comparison.checks] == [("c.d", ("fail", "pass"))]
    assert rows(comparison, "Checks")["c.d"] == ["Failed", "Passed"]


def test_texts_of_each_label_stand_first() -> None:
    texts = [
        SampleText(batch=at, number=0, label=label, text=f"text {at}", characters=6, tokens=2)
        for at, label in enumerate(("b", "b", "a", "b"))
    ]
    comparison = compare_runs(
        {"one": SHORT.model_copy(update={"samples": tuple(texts)}), "two": LONG}
    )
    assert [sample.batch for sample in comparison.runs["one"].samples] == [2, 0, 1]


# --- what does not hold ---------------------------------------------------------------------------


def doubtful(result: AuditResult) -> AuditResult:
    return result.model_copy(
        update={"verdict": "fail", "checks": (check("record.complete", "fail"),)}
    )


def test_a_run_whose_checks_failed_is_starred() -> None:
    comparison = compare_runs({"good": SHORT, "bad": doubtful(LONG)})
    caution = findings.caution(doubtful(LONG))
    assert caution
    page, screen = build(comparison), shown(comparison)
    for title, table in tables(page).items():
        assert table.header[1:3] == ("1 good", "2* bad"), title
    assert f"* Run 2: {caution}" in str(page) and caution in " ".join(screen.split())
    assert re.search(r" 1 +2\*", screen)


def test_an_unread_run_has_no_figures_at_all() -> None:
    unread = run(ex_post(0.5), curve([0.25, 0.5]), approximate(9.0)).model_copy(
        update={"verdict": "error"}
    )
    comparison = compare_runs(
        {"unread": unread, "good": run(ex_post(0.5), curve([0.25, 0.5]), approximate(4.0))}
    )
    guarantees = comparison.runs["unread"].guarantees
    assert (guarantees.ex_post, guarantees.approximate, guarantees.empirical.leave_one_out_max) == (
        None,
        None,
        None,
    )
    assert comparison.same_length == ()
    for start in ("Ex-post", "Approximate"):
        assert {cells[0] for cells in rows(comparison, start).values()} == {"–"}


# --- the page and the screen ----------------------------------------------------------------------


def test_a_caveat_that_runs_share_is_said_once() -> None:
    runs = [
        SHORT.model_copy(
            update={
                "caveats": tuple(Message(code="caveat.declared", words=each) for each in caveats)
            }
        )
        for caveats in (("Of all.", "Of two."), ("Of all.", "Of one."), ("Of two.", "Of all."))
    ]
    comparison = compare_runs({str(number): result for number, result in enumerate(runs)})
    for text in (shown(comparison), re.sub("<.*?>", "", render_comparison_html(comparison))):
        assert [text.count(caveat) for caveat in ("Of all.", "Of two.", "Of one.")] == [1, 1, 1]
        assert "All runs: Of all." in text
        assert "Runs 1, 3: Of two." in text


def test_a_hostile_name_is_shown_as_text() -> None:
    for name in ["<script>alert(1)</script>", "\u202egnp.exe", "x" * 100_000]:
        page = render_comparison_html(compare_runs({name: SHORT, "other": LONG}))
        assert "<script>alert" not in page and "\u202e" not in page and len(page) < 200_000


def test_json_is_strict_and_complete() -> None:
    results = {
        "short": SHORT,
        "bad": run(ex_post(1.0, theorem1=math.inf), curve([math.inf, math.nan])),
        "mean": run(mean=approximate()),
    }
    comparison = compare_runs(results)
    document = json.loads(comparison.to_json(), parse_constant=pytest.fail)
    assert document["runs"]["bad"]["guarantees"]["ex_post"]["theorem1"] == "inf"
    assert document["same_length"][0]["epsilons"][1] == "nan"
    assert Comparison.model_validate_json(comparison.to_json()).to_json() == comparison.to_json()


def test_several_rounds_have_both_levels(make_run: Callable[..., Any]) -> None:
    kind = {"aggregator": "mean", "sizes": (4, 4), "secret": True, "rounds": 3}
    found = {
        name: audit_run(make_run(**kind, **more).path)
        for name, more in (("a", {}), ("b", {"stopped": 2}))
    }
    comparison = compare_runs(found)
    for name, result in found.items():
        due = result.guarantees.approximate
        assert due is not None and due.epsilon < due.batch_epsilon
        assert comparison.runs[name].guarantees.approximate == due
