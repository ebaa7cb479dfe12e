"""Each format word for word, of a few results that differ in what they hold.

After a wanted change: DPAUDIT_UPDATE_GOLDEN=1 pytest tests/reports/test_golden.py, and read what
git says has changed. What depends on matplotlib's version, the drawings' paths, is left out of
pages: their titles and descriptions stay.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from dpaudit.auditing.checks import registry
from dpaudit.auditing.comparison import compare_runs
from dpaudit.reports import compare
from dpaudit.reports.audit_document import render_markdown
from dpaudit.reports.document import Document
from dpaudit.reports.figure_files import CAPTIONS, FigureRun, figure_files
from dpaudit.reports.machine import render_junit, render_sarif
from dpaudit.reports.terminal import (
    check_explained,
    checks_listed,
    demo,
    failures,
    higher_levels,
    summary,
)
from dpaudit.reports.writers.terminal import print_document
from dpaudit.results import AuditResult, TextCounts
from dpaudit.results.comparison import Comparison

Results = dict[str, AuditResult]
Golden = Callable[[str, str], None]
PAGES = ("median", "mean", "secret", "failed", "public", "hostile")
OTHERS = (
    *PAGES,
    "attacked",
    "budgets",
    "rho",
    "approximate only",
    "user",
    "unreadable",
    "infinite",
    "secret median",
)


def words_of(page: str) -> str:
    """A page without style, script and paths of drawings."""
    page = re.sub(r"<(style|script)>.*?</\1>", r"<\1>", page, flags=re.DOTALL)
    return re.sub(r'src="data:[^"]*"', 'src=""', page)


def printed(*documents: Document, width: int = 80) -> str:
    file = io.StringIO()
    for document in documents:
        print_document(document, Console(file=file, width=width, force_terminal=False))
    return file.getvalue()


def test_pages(results: Results, html_of: Callable[[AuditResult], str], golden: Golden) -> None:
    for name in PAGES:
        golden(f"{name}.html", words_of(html_of(results[name])))


def test_the_section_on_budgets(
    results: Results, html_of: Callable[[AuditResult], str], golden: Golden
) -> None:
    page = words_of(html_of(results["budgets"]))
    kind, section = (
        re.search(rf'<(article|section)[^>]* aria-labelledby="{name}".*?</\1>', page, re.DOTALL)
        for name in ("kind-approximate", "budgets")
    )
    assert kind and section
    golden("budgets.html", f"{kind[0]}\n{section[0]}\n")


def test_markdown(results: Results, golden: Golden) -> None:
    for name in OTHERS:
        golden(f"{name.replace(' ', '-')}.md", render_markdown(results[name]))


def test_junit_and_sarif(results: Results, golden: Golden) -> None:
    for name in (*PAGES, "unreadable"):
        golden(f"{name}.junit.xml", render_junit(results[name]))
        golden(f"{name}.sarif", render_sarif(results[name]))


def test_terminal(results: Results, golden: Golden) -> None:
    for name in OTHERS:
        result = results[name]
        shown = printed(summary(result), failures(result), Document("", [higher_levels(result)]))
        golden(f"{name.replace(' ', '-')}.txt", shown)


def test_comparison(comparison: Comparison, comparison_page: str, golden: Golden) -> None:
    golden("comparison.html", words_of(comparison_page))
    golden("comparison.txt", printed(compare.summary(comparison)))


def test_two_runs_take_forty_lines(results: Results, golden: Golden) -> None:
    comparison = compare_runs({"runs/median": results["median"], "runs/mean": results["mean"]})
    shown = printed(compare.summary(comparison))
    assert len(shown.splitlines()) <= 40
    golden("comparison-of-two.txt", shown)


def test_the_demo_ends_in_twenty_lines(results: Results, golden: Golden) -> None:
    released = TextCounts(texts=12, empty=1, very_short=2)
    texts = [("business", "A text of a few words."), ("sport", "A long text goes on and on. " * 20)]
    mean, median = (
        results[name].model_copy(update={"released": released}) for name in ("mean", "median")
    )
    shown = printed(demo({"Mean": (mean, texts), "Median": (median, texts)}))
    assert len(shown.splitlines()) <= 17, "the command adds three"
    golden("demo.txt", shown)
    failed = printed(demo({"Mean": (results["failed"], texts)}))
    assert "What that means" not in failed, "a run that fails promises nothing"


def test_the_catalogue_of_checks_wraps(golden: Golden) -> None:
    rows = registry.listed()
    shown = printed(checks_listed(rows), check_explained(rows[0]))
    assert max(map(len, shown.splitlines())) <= 80
    golden("checks.txt", shown)


def test_captions(results: Results, golden: Golden) -> None:
    drawn = {
        name: results[name]
        for name in ("median", "mean", "budgets", "failed", "infinite", "hostile")
    }
    runs = [FigureRun(name, f"runs/{name}", result) for name, result in drawn.items()]
    captions = figure_files(runs, (), "dpaudit compare runs/* --figures figures")[CAPTIONS].decode()
    golden(CAPTIONS, captions.replace(version("matplotlib"), "VERSION"))


def test_every_golden_file_is_looked_at() -> None:
    pages = {f"{name}.html" for name in (*PAGES, "budgets", "comparison")}
    machine = {
        f"{name}.{ending}" for name in (*PAGES, "unreadable") for ending in ("junit.xml", "sarif")
    }
    rest = {f"{name.replace(' ', '-')}.{ending}" for name in OTHERS for ending in ("md", "txt")}
    there = {path.name for path in Path(__file__).with_name("golden").iterdir()}
    single = {"checks.txt", "comparison.txt", "comparison-of-two.txt", "demo.txt", CAPTIONS}
    assert there == pages | machine | rest | single
