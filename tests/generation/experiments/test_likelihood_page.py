"""Held-out likelihood as a table and as files."""

from __future__ import annotations

import io
import json
from typing import Any
from xml.etree import ElementTree

from matplotlib.figure import Figure
from rich.console import Console

from dpaudit.generation.experiments.likelihood_page import drawing, files, screen
from dpaudit.generation.experiments.likelihood_results import Likelihoods, MechanismLikelihood
from dpaudit.reports.document import Table
from dpaudit.reports.writers.terminal import print_document
from tests.nesting import nested

MEAN = {"aggregator": "mean", "divisor": 32.0, "clip": 12.0, "temperature": 0.8}
ANCHORED = {"contribution": "differences", "clip": 2.0, "temperature": 1.0}
TOP = {"support": {"kind": "public-top-k", "size": 100, "margin": 0.25}}


def row(name: str, mechanism: dict[str, Any], **fields: Any) -> MechanismLikelihood:
    values: dict[str, Any] = {
        "relation": "add_remove",
        "unit": "record",
        "records_per_user": None,
        "batches": 2,
    }
    values |= {
        "fewest": 30,
        "most": 41,
        "texts": 6,
        "left_out": 0,
        "max_tokens": 32,
        "tokens": 1180,
        "supported": 1180,
    }
    values |= {
        "nll": {"mean": 3.16749, "error": 0.05149},
        "public_nll": {"mean": 3.474, "error": 0.06},
    }
    values |= {
        "gain": {"mean": 0.30651, "error": 0.0149},
        "approximate": None,
        "batch_epsilon": None,
        "equal": None,
        "ex_post": None,
    }
    return MechanismLikelihood.model_validate(
        {"name": name, "mechanism": nested(mechanism), **values, **fields}
    )


FOUND = Likelihoods(
    rows=(
        row(
            "paper-mean",
            MEAN,
            approximate={"epsilon": 15.9601, "delta": 1e-4},
            batch_epsilon=31.2,
            ex_post={"epsilon": 9.0, "delta": 0},
        ),
        row(
            "median",
            {"aggregator": "median", "clip": 12.0, "temperature": 0.8},
            ex_post={"epsilon": 2.00001, "delta": 0},
        ),
        row(
            "[b]_central\x1b[31m",
            {**ANCHORED, **TOP, "aggregator": "central", "central": 8},
            supported=950,
            left_out=3,
            nll={"mean": 2.9, "error": None},
            ex_post={"epsilon": 0.70001, "delta": 1e-6},
        ),
        row(
            "open",
            {**ANCHORED, "aggregator": "mean", "divisor": 32.0},
            approximate={"epsilon": "inf", "delta": 1e-4},
        ),
    )
)


def test_the_table_rounds_up_and_shows_hostile_names_as_they_are() -> None:
    (table,) = (block for block in screen(FOUND).blocks if isinstance(block, Table))
    cells = [dict(zip(table.header, row.cells, strict=True)) for row in table.rows]
    assert [each["Loss"] for each in cells] == [*["3.167\n± 0.051"] * 2, "2.900", "3.167\n± 0.051"]
    assert [each["ε approx."] for each in cells] == [
        "15.97\n/31.20\nδ 0.0001",
        "–",
        "–",
        "infinite\nδ 0.0001",
    ]
    assert [each["ε ex-post"] for each in cells] == ["9.000", "2.001", "0.7001\nδ 1e-6", "–"]
    assert [each["Tokens"] for each in cells][1:3] == ["1,180\nof 1,180", "950\nof 1,180"]
    text = io.StringIO()
    print_document(screen(FOUND), Console(file=text, width=80, color_system=None))
    shown = text.getvalue()
    assert "[b]_central" in shown and "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_kinds_have_panels_of_their_own_and_what_is_endless_none() -> None:
    drawn = drawing(FOUND.rows, [f"_{number}" for number in range(4)])
    assert drawn is not None
    figure = Figure()
    drawn.draw(figure)
    panels = {axes.get_xlabel().split("\n")[0]: axes for axes in figure.axes}
    points = {
        name: sorted(
            float(line.get_xdata()[-1]) for line in axes.lines if len(line.get_xdata()) == 2
        )
        for name, axes in panels.items()
    }
    assert points == {
        "Approx. ε, release level": [15.9601],
        "Ex-post ε, batch level": [0.70001, 2.00001, 9.0],
    }
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["_0", "_1", "_2"]
    assert (
        "_2: 2.900 at ex-post ε, batch level (nats) 0.7001, public prompt alone 3.474"
        in drawn.description
    )
    assert drawing(FOUND.rows[3:], ["x"]) is None


def test_files_are_whole_and_the_same_every_time() -> None:
    written = files(FOUND)
    assert set(written) == {"likelihood.json", "likelihood.svg", "likelihood.png"}
    assert written == files(FOUND)
    assert (
        Likelihoods.model_validate(json.loads(written["likelihood.json"])).rows[0] == FOUND.rows[0]
    )
    words = " ".join(ElementTree.fromstring(written["likelihood.svg"]).itertext())
    assert (
        "Internal: computed from private data." in words
        and "Hollow: the public prompt alone" in words
    )
    assert "median (1,180 of 1,180 tokens)" in words and "Supports differ" in words
    same = files(Likelihoods(rows=FOUND.rows[:2]))["likelihood.svg"]
    assert "Supports differ" not in " ".join(ElementTree.fromstring(same).itertext())
    assert set(files(Likelihoods(rows=FOUND.rows[3:]))) == {"likelihood.json"}


def test_a_single_text_has_no_bar() -> None:
    one = row("one", MEAN, nll={"mean": 3.0, "error": None}, ex_post={"epsilon": 1.0, "delta": 0.0})
    assert "likelihood.svg" in files(Likelihoods(rows=(one,)))
