"""The benchmarks work at a size too small to measure; their latest results are on their pages."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import page, scaling
from benchmarks.__main__ import MODULES, main
from benchmarks.rows import RESULTS, Results, Row, Wanted, significant
from benchmarks.timing import Timings, interleaved


def test_every_topic_has_its_section() -> None:
    assert MODULES.keys() == page.TOPICS.keys()


@pytest.mark.slow  # mypy holds the benchmarks against what they measure
def test_the_small_form_measures_every_topic(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    done = CliRunner().invoke(main, ["--small", "--json", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    assert "the small form works" in done.stdout
    results = Results.read(file)
    assert {row.topic for row in results.rows} == MODULES.keys()
    assert all((row.measured is None) == bool(row.skipped) for row in results.rows)
    assert {"processor", "cores", "memory_gib", "versions"} <= results.machine.keys()
    assert results.made.keys() == MODULES.keys()
    with pytest.raises(ValueError, match="in full"):
        page.rendered(results)


@pytest.mark.parametrize("rendered", [(page.PAGE, page.rendered), (scaling.PAGE, scaling.rendered)])
def test_the_pages_hold_the_latest_results(rendered: tuple[Path, object]) -> None:
    path, render = rendered
    assert callable(render)
    assert path.read_text(encoding="utf-8") == render(Results.read(RESULTS)), (
        "run: python -m benchmarks --page"
    )


def test_results_survive_their_file(tmp_path: Path) -> None:
    rows = (
        Row(
            "audit",
            "a over b",
            2.5,
            wanted=Wanted("at most", 3),
            figures={"a, ms": 5.0, "spread": "2 to 3"},
        ),
        Row("engine", "ray", None, unit="s", skipped="not installed"),
    )
    dates = {"audit": "2026-01-01", "engine": "2026-01-02"}
    results = Results({"cores": 2}, dates, rows, small=False)
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results


def test_newer_rows_take_their_topics_place() -> None:
    def of(**dates: str) -> Results:
        rows = (Row(topic, made, 1.0) for topic, made in dates.items())
        return Results({"cores": 2}, dates, tuple(rows), small=False)

    joined = of(audit="old", engine="old").with_newer(of(audit="new"))
    assert joined == of(engine="old", audit="new")
    with pytest.raises(ValueError, match="another machine"):
        joined.with_newer(replace(joined, machine={"cores": 4}))


def test_a_bound_is_kept_on_its_own_side() -> None:
    row = Row("audit", "a over b", 3.0, wanted=Wanted("at most", 3))
    assert [replace(row, measured=value).met for value in (2.9, 3.0, 3.1, None)] == [
        True,
        True,
        False,
        None,
    ]
    assert replace(row, measured=2.9, wanted=Wanted("at least", 3)).met is False
    assert replace(row, wanted=None).met is None


def test_ratios_are_medians_of_those_of_a_round() -> None:
    timings = Timings({"a": (1.0, 9.0, 4.0), "b": (1.0, 3.0, 2.0)})
    assert timings.ratio("a", "b") == 2.0
    assert timings.median("a") == 4.0
    assert timings.spread("a", "b") == "1 to 3"


def test_every_round_times_every_case_and_begins_with_another() -> None:
    order: list[str] = []
    ticks = iter([0.5, 1.0, 2.0])

    def timed_by_itself() -> float:
        order.append("own")
        return next(ticks)

    timings = interleaved(
        {"own": timed_by_itself, "other": lambda: order.append("other")}, rounds=2
    )
    assert timings.seconds["own"] == (1.0, 2.0)
    assert len(timings.seconds["other"]) == 2
    assert order[-4:] == ["own", "other", "other", "own"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.01234, "0.0123"), (1.0, "1"), (99.96, "100"), (1234567.0, "1,230,000")],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert significant(value) == text


def number(factor: str) -> float:
    value, *words = factor.split()
    return float(value.replace(",", "")) * {name: size for size, name in scaling.NAMED}.get(
        "".join(words[:1]), 1.0
    )


def test_the_arithmetic_of_the_scaling_page_gives_its_results() -> None:
    checked = 0
    page = scaling.PAGE.read_text(encoding="utf-8").splitlines()
    for what, arithmetic, result, many in scaling.worked_out(Results.read(RESULTS)):
        assert (f"| {what} | {result} | {many} |" in page) == (what in scaling.SHOWN)
        if " × " in arithmetic:
            times, *over = arithmetic.split(" ÷ ")
            value = math.prod(map(number, times.split(" × "))) / math.prod(map(number, over))
            assert value == pytest.approx(number(str(result)), rel=0.05), what
            times_more = scaling.MANY.value / scaling.PAPER.value
            assert number(str(many)) == pytest.approx(number(str(result)) * times_more, rel=0.05), (
                what
            )
            checked += 2
    assert checked >= 20
