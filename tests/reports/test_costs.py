"""Costs of tokens and batches: in words, and as they are drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpaudit.reports.costs import curve_described
from dpaudit.reports.figures import Drawing, batch_spread, token_curve
from dpaudit.results import AuditResult

Samples = Mapping[str, Callable[[], AuditResult]]


def drawn(drawing: Drawing | None) -> Any:
    assert drawing is not None
    figure = Figure()
    drawing.draw(figure)
    return figure


def test_tokens_that_nothing_bounds_are_counted_in_words_and_figure(samples: Samples) -> None:
    result = samples["median"]()
    assert result.tokens is not None
    assert "left out" not in curve_described(result.tokens)
    curve = result.tokens.model_copy(update={"unbounded": 3})
    said = curve_described(curve)
    assert "The costliest single token with a bound took" in said
    assert said.endswith("3 tokens without a bound are left out.")
    figure = drawn(token_curve(result.model_copy(update={"tokens": curve})))
    assert "3 tokens without a bound" in [
        text.get_text() for axes in figure.axes for text in axes.texts
    ]


def test_a_row_with_a_cost_that_is_not_finite_has_ticks_and_no_box(samples: Samples) -> None:
    result = samples["median"]()
    (whole,) = drawn(batch_spread(result)).axes
    assert len(whole.patches) == 2
    batches = (result.batches[0].model_copy(update={"theorem1": math.inf}), *result.batches[1:])
    (broken,) = drawn(batch_spread(result.model_copy(update={"batches": batches}))).axes
    assert len(broken.patches) == 1
    ticks = [len(each.get_segments()) for each in broken.collections]
    assert sorted(ticks)[-2:] == [len(batches) - 1, len(batches)]


def test_a_report_of_ten_thousand_batches_stays_small(samples: Samples) -> None:
    """Its figure has the outermost ticks, and no two closer than it can show."""
    result, random = samples["median"](), np.random.default_rng(0)
    batches = tuple(
        result.batches[0].model_copy(update={"id": number, "exact": cost, "theorem1": cost})
        for number, cost in enumerate(random.gamma(2.0, size=10_000).tolist())
    )
    texts = tuple(
        result.samples[0].model_copy(update={"batch": number, "text": "x" * 100, "costs": None})
        for number in range(10_000)
    )
    many = result.model_copy(update={"batches": batches, "samples": texts})
    (axes,) = drawn(batch_spread(many)).axes
    ticks = sorted(
        (np.array([segment[0, 0] for segment in each.get_segments()]) for each in axes.collections),
        key=len,
    )[-1]
    values = sorted(batch.exact for batch in batches if batch.exact is not None)
    ticks.sort()
    assert len(ticks) <= 2001 and {values[0], values[-1]} <= set(ticks.tolist()) <= set(values)
    below = ticks[np.searchsorted(ticks, values, side="right") - 1]
    assert (np.array(values) - below).max() < (values[-1] - values[0]) / 1999
    text = json.dumps(many.model_dump(mode="json"), ensure_ascii=False) + "\n"
    assert len(text.encode()) < 5e6
    read = AuditResult.model_validate_json(text)
    assert read == many and read.to_json() == many.to_json() == text
