"""Held-out likelihood as a table and as files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from matplotlib.figure import Figure
from rich.console import Console

from dpaudit.reports.figures import likelihoods
from dpaudit.reports.likelihood import likelihood_files, print_likelihoods
from dpaudit.results.likelihood import Likelihoods, MechanismLikelihood

MEAN = {"aggregator": "mean", "divisor": 32.0, "clip": 12.0, "temperature": 0.8}
ANCHORED = {"contribution": "differences", "clip": 2.0, "temperature": 1.0}
TOP = {"support": {"kind": "public-top-k", "size": 100, "margin": 0.25}}


def row(name: str, mechanism: dict[str, Any], **fields: Any) -> MechanismLikelihood:
    values: dict[str, Any] = {"relation": "add_remove", "unit": "record", "records_per_user": None, "batches": 2}
    values |= {"fewest": 30, "most": 41, "texts": 6, "left_out": 0, "max_tokens": 32, "tokens": 1180, "supported": 1180}
    values |= {"nll": {"mean": 3.16749, "error": 0.05149}, "public_nll": {"mean": 3.474, "error": 0.06}}
    values |= {
        "gain": {"mean": 0.30651, "error": 0.0149},
        "approximate": None,
        "batch_epsilon": None,
        "equal": None,
        "ex_post": None,
    }
    return MechanismLikelihood.model_validate({"name": name, "mechanism": mechanism, **values, **fields})


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
        row("open", {**ANCHORED, "aggregator": "mean", "divisor": 32.0}, approximate={"epsilon": "inf", "delta": 1e-4}),
    )
)


def test_the_table(golden: Callable[[str, str], None]) -> None:
    text = io.StringIO()
    print_likelihoods(FOUND, Console(file=text, width=80, color_system=None))
    golden("likelihood.txt", text.getvalue())


def test_kinds_have_panels_of_their_own_and_what_is_endless_none() -> None:
    drawing = likelihoods(FOUND.rows, [f"_{number}" for number in range(4)])
    assert drawing is not None
    figure = Figure()
    drawing.draw(figure)
    panels = {axes.get_xlabel().split("\n")[0]: axes for axes in figure.axes}
    drawn = {
        name: sorted(float(line.get_xdata()[-1]) for line in axes.lines if len(line.get_xdata()) == 2)
        for name, axes in panels.items()
    }
    assert drawn == {
        "Approx. ε, release level": [15.9601],
        "Ex-post ε, batch level": [0.70001, 2.00001, 9.0],
    }
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["_0", "_1", "_2"]
    assert "_2: 2.900 at ex-post ε, batch level (nats) 0.7001, public prompt alone 3.474" in drawing.description
    assert likelihoods(FOUND.rows[3:], ["x"]) is None


def test_files_are_whole_and_the_same_every_time() -> None:
    files = likelihood_files(FOUND)
    assert set(files) == {"likelihood.json", "likelihood.svg", "likelihood.png"}
    assert files == likelihood_files(FOUND)
    assert Likelihoods.model_validate(json.loads(files["likelihood.json"])).rows[0] == FOUND.rows[0]
    words = " ".join(ElementTree.fromstring(files["likelihood.svg"]).itertext())
    assert "Internal: computed from private data." in words and "Hollow: the public prompt alone" in words
    assert "median (1,180 of 1,180 tokens)" in words and "Supports differ" in words
    same = likelihood_files(Likelihoods(rows=FOUND.rows[:2]))["likelihood.svg"]
    assert "Supports differ" not in " ".join(ElementTree.fromstring(same).itertext())
    assert set(likelihood_files(Likelihoods(rows=FOUND.rows[3:]))) == {"likelihood.json"}


def test_a_single_text_has_no_bar() -> None:
    one = row("one", MEAN, nll={"mean": 3.0, "error": None}, ex_post={"epsilon": 1.0, "delta": 0.0})
    assert "likelihood.svg" in likelihood_files(Likelihoods(rows=(one,)))
