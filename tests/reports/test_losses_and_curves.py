"""Losses against bounds in words, and curves thinned before they are drawn."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from dpaudit.accounting import Cost
from dpaudit.auditing.guarantees import CurveSums
from dpaudit.reports import costs, figures
from dpaudit.reports.costs import MOST_DRAWN, curve_described, thinned
from dpaudit.reports.figures import Drawing, drawn_band, growth, token_curve
from dpaudit.results import AuditResult, TokenBand, TokenCurve
from dpaudit.results.rounding import lower_bound

Samples = Mapping[str, Callable[[], AuditResult]]


def having(result: AuditResult, *rows: dict[str, Any]) -> AuditResult:
    """The result with batches that differ in these figures."""
    batches = tuple(
        result.batches[0].model_copy(update={"id": place, **row}) for place, row in enumerate(rows)
    )
    return result.model_copy(update={"batches": batches})


def panel(drawing: Drawing | None) -> Any:
    assert drawing is not None
    figure = Figure()
    drawing.draw(figure)
    return figure.axes[0]


def test_a_loss_that_is_not_finite_is_beyond_its_bound(samples: Samples) -> None:
    for bound, loss in [(1.0, math.inf), (1.0, math.nan), (math.nan, 0.5), (math.nan, math.nan)]:
        fine, broken = (
            {"exact": 4.0, "leave_one_out_max": 1.0},
            {"exact": bound, "leave_one_out_max": loss},
        )
        for rows in ((fine, broken), (broken,)):
            said = costs.losses_described(having(samples["median"](), *rows))
            assert "1 batch has a loss beyond the bound" in said
            assert "No loss is beyond" not in said
        endless = {"exact": math.inf, "leave_one_out_max": 0.5}
        assert "No loss is beyond" in costs.losses_described(
            having(samples["median"](), fine, endless)
        )


def test_growth_never_lies_below_the_bound_of_any_length(samples: Samples) -> None:
    result = samples["median"]()
    count = 3 * MOST_DRAWN
    sums = tuple(float(place) for place in range(1, count + 1))
    assert result.tokens is not None
    long = {"position": tuple(range(1, count + 1)), "exact": sums, "theorem1": sums, "band": None}
    other = dict.fromkeys(("batches", "mean", "maximum"), (1,) * count)
    lines = panel(
        growth(result.model_copy(update={"tokens": result.tokens.model_copy(update=long | other)}))
    ).lines
    for line in lines[:2]:
        assert line.get_drawstyle() == "steps-pre"
        xs, ys = map(list, line.get_data())
        assert (xs[0], xs[-1], ys[0]) == (0, count, ys[1])
        assert all(
            ys[bisect_left(xs, length)] >= sums[length - 1] for length in range(1, count + 1)
        )


def test_losses_beyond_their_bound_are_told(samples: Samples) -> None:
    for loss, said in [
        (
            0.5,
            "No loss is beyond the bound of its batch. The largest share of its bound is reached "
            "in batch 1: 50.0%.",
        ),
        (1.5, "1 batch has a loss beyond the bound, which no sound bound allows."),
    ]:
        rows = [{"exact": 4.0, "leave_one_out_max": 1.0}, {"exact": 1.0, "leave_one_out_max": loss}]
        assert said in costs.losses_described(having(samples["median"](), *rows))


def test_a_batch_that_cost_nothing_has_no_loss_within_its_bound(samples: Samples) -> None:
    nothing, none = ({"exact": 0.0, "leave_one_out_max": loss} for loss in (1.0, 0.0))
    assert "1 batch has a loss beyond the bound" in costs.losses_described(
        having(samples["median"](), nothing, none)
    )
    assert "No loss is beyond" in costs.losses_described(having(samples["median"](), none, none))


def test_without_losses_there_is_nothing_to_say(samples: Samples) -> None:
    for name in ["no batch", "approximate only", "unreadable"]:
        result = samples[name]()
        assert costs.losses_described(result) == ""


def test_a_long_curve_is_grouped_before_it_is_drawn(samples: Samples) -> None:
    curve = samples["median"]().tokens
    assert curve is not None
    assert thinned(curve) is curve
    count = 3 * MOST_DRAWN + 1
    positions = tuple(range(1, count + 1))
    values = tuple(float(place % 4) for place in positions)
    long = TokenCurve(
        position=positions,
        batches=tuple(range(count, 0, -1)),
        mean=values,
        maximum=values,
        theorem1=tuple(map(float, positions)),
        exact=tuple(map(float, positions)),
    )
    few = thinned(long)
    assert len(few.position) <= MOST_DRAWN
    assert (few.position[-1], few.exact[-1]) == (count, float(count))
    assert few.batches[0] == count
    assert few.mean[0] == pytest.approx(
        sum(v * b for v, b in zip(values[:4], long.batches[:4], strict=True))
        / sum(long.batches[:4])
    )
    assert sum(map(len, [few.mean, few.maximum, few.theorem1])) == 3 * len(few.position)


def test_the_band_is_in_the_words_of_the_curve(samples: Samples) -> None:
    curve = samples["median"]().tokens
    assert curve is not None and curve.band is not None
    at = curve.band.median.index(max(curve.band.median))
    said = curve_described(curve)
    assert f"The median token is costliest at position {curve.band.first[at]}:" in said
    assert f"between {lower_bound(curve.band.low[at])} and" in said
    assert "median token" not in curve_described(curve.model_copy(update={"band": None}))


def test_tokens_that_nothing_bounds_are_counted_in_words_and_figure(samples: Samples) -> None:
    result = samples["median"]()
    assert result.tokens is not None
    assert "left out" not in curve_described(result.tokens)
    curve = result.tokens.model_copy(update={"unbounded": 3})
    said = curve_described(curve)
    assert "The costliest single token with a bound took" in said
    assert said.endswith("3 tokens without a bound are left out.")
    drawing, figure = token_curve(result.model_copy(update={"tokens": curve})), Figure()
    assert drawing is not None
    drawing.draw(figure)
    assert "3 tokens without a bound" in [
        text.get_text() for axes in figure.axes for text in axes.texts
    ]


COSTS = st.floats(0, 1e5) | st.floats(0, 2) | st.sampled_from([math.inf, math.nan, 0.0, 5e-324])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(COSTS, max_size=6), min_size=1, max_size=14), st.sampled_from([6, 600]))
def test_no_median_leaves_its_own_band(batches: list[list[float]], longest: int) -> None:
    sums = CurveSums(longest)
    for values in batches:
        sums.merge(0, values)
    sums.merge(0, [0.5] * longest)
    curve = sums.result([Cost(0.0, 0.0, 0.0)] * (longest + 1))
    assert curve is not None and curve.band is not None
    for low, median, high in zip(curve.band.low, curve.band.median, curve.band.high, strict=True):
        assert low <= median <= high
    for low, median, high in zip(*drawn_band(curve.band), strict=True):
        assert low <= median <= high or all(map(math.isnan, (low, median, high)))


def test_a_median_is_drawn_only_within_a_band_that_is_drawn() -> None:
    band = TokenBand(
        first=(1, 2),
        last=(1, 2),
        tokens=(9, 9),
        low=(0.1, 0.1),
        median=(0.5, 0.2),
        high=(0.4, math.inf),
    )
    low, median, high = drawn_band(band)
    assert (low[0], median[0], high[0]) == (0.1, 0.4, 0.4)
    assert all(math.isnan(each[1]) for each in (low, median, high))


def test_few_batches_are_dots_and_many_are_bins(samples: Samples) -> None:
    result = samples["median"]()
    for count in (2, 5, 9, 10, 40):
        few = result.model_copy(update={"batches": result.batches[:count]})
        axes = panel(figures.batch_histogram(few))
        found = costs.batch_costs(few)
        assert found is not None and found.few == (count < 10)
        if count < 10:
            assert not axes.patches
            exact, theorem1 = axes.lines[0].get_xdata(), axes.lines[1].get_xdata()
            assert sorted(exact) == sorted(found.finite) and sorted(theorem1) == sorted(
                found.theorem1
            )
            assert "dot" in found.marks
        else:
            assert axes.patches and "Bars" in found.marks


def test_few_tokens_at_a_place_have_no_curve_of_medians(samples: Samples) -> None:
    result = samples["median"]()
    assert result.tokens is not None and result.tokens.band is not None
    for count in (5, 40):
        band = result.tokens.band.model_copy(
            update={"tokens": (count,) * len(result.tokens.band.tokens)}
        )
        curve = result.tokens.model_copy(update={"band": band})
        figure, drawing = Figure(), token_curve(result.model_copy(update={"tokens": curve}))
        assert drawing is not None
        drawing.draw(figure)
        axes = next(axes for axes in figure.axes if axes.lines)
        (median,) = [line for line in axes.lines if line.get_label() == "median"]
        assert median.get_linestyle() == ("None" if count < 10 else ":")
        assert ("all tokens there" in curve_described(curve)) == (count < 10)
