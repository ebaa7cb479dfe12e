"""The comparison of clustering methods as a page, a table and a file."""

from __future__ import annotations

import csv
import io
import json
import math

from rich.console import Console

from dpaudit.generation.experiments.cluster_page import files, screen
from dpaudit.generation.experiments.cluster_results import ClusterComparison, ClusteredBy
from dpaudit.reports.writers.terminal import print_document


def clustered(method: str, **fields: object) -> ClusteredBy:
    values = {
        "origin": "public",
        "centers": 5,
        "epsilon": 0.0,
        "delta": 0.0,
        "clusters": 3,
        "large": 1,
    }
    values |= {"v_measure": 0.51234, "sizes": (120, 7, 2, 1), "settings": {"seed <b>": "x & y"}}
    return ClusteredBy.model_validate({"method": method, **values, **fields})


def comparison(**fields: object) -> ClusterComparison:
    methods = (
        clustered("k-means", origin="private", epsilon=math.inf, v_measure=1.0),
        clustered("chang", origin="noised", epsilon=0.10001, delta=1e-6),
        clustered("public-centers-rebalanced", origin="noised", epsilon=0.1),
    )
    values = {
        "embedding": "a <model>",
        "dimension": 8,
        "normalized": True,
        "records": 130,
        "public_records": 40,
    }
    values |= {"reference": "k-means", "large": 100, "methods": methods}
    return ClusterComparison.model_validate({**values, **fields})


def printed(width: int) -> str:
    text = io.StringIO()
    print_document(screen(comparison()), Console(file=text, width=width, color_system=None))
    return text.getvalue()


def test_page_escapes_names_and_needs_no_network() -> None:
    page = files(comparison())["clusters.html"]
    assert "<model>" not in page and "<b>" not in page
    assert "a &lt;model&gt;" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/", "")
    assert page.count("<script") == 1  # our own, which sorts tables
    assert "<img" in page and "Internal." in page


def test_epsilon_is_rounded_up_and_infinity_is_shown() -> None:
    page = files(comparison())["clusters.html"]
    assert "∞" in page
    assert "0.1001" in page


def test_terminal_says_that_it_is_internal() -> None:
    shown = printed(140)
    assert "Internal." in shown and "do not publish" in shown
    assert "DP clustering (Chang)" in shown


def test_narrow_terminal_cuts_nothing() -> None:
    assert "Chang" in printed(60)


def test_csv_has_every_figure_in_full() -> None:
    rows = list(csv.DictReader(io.StringIO(files(comparison())["clusters.csv"])))
    assert [row["method"] for row in rows] == ["k-means", "chang", "public-centers-rebalanced"]
    assert rows[0]["epsilon"] == "inf"
    assert float(rows[1]["epsilon"]) == 0.10001
    assert rows[1]["sizes"] == "120 7 2 1"


def test_json_has_no_bare_infinity() -> None:
    found = json.loads(
        comparison().to_json(), parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name))
    )
    assert found["methods"][0]["epsilon"] == "inf"
    assert found["audience"] == "internal"


def test_no_records_give_a_page_without_a_figure() -> None:
    page = files(comparison(methods=(clustered("k-means", sizes=()),)))["clusters.html"]
    assert "<img" not in page
