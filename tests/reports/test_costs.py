"""Costs of tokens and batches: in words, and as they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

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
