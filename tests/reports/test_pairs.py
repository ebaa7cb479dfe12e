"""Batches as points: what the figures count, say and omit; and curves thinned before drawing."""

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
    batches = tuple(result.batches[0].model_copy(update={"id": place, **row}) for place, row in enumerate(rows))
    return result.model_copy(update={"batches": batches})


def panel(drawing: Drawing | None) -> Any:
    assert drawing is not None
    figure = Figure()
    drawing.draw(figure)
    return figure.axes[0]


def points(drawing: Drawing | None) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in panel(drawing).collections[0].get_offsets()]


def test_every_batch_is_a_point(samples: Samples) -> None:
    result = samples["median"]()
    drawn = points(figures.rise_and_fall(result))
    assert drawn == [(batch.rise, batch.fall) for batch in result.batches]
    assert points(figures.losses_and_bounds(result)) == [(b.exact, b.leave_one_out_max) for b in result.batches]


def test_many_batches_are_drawn_by_cell(large_run: AuditResult) -> None:
    found = costs.directions(large_run)
    assert found is not None
    drawn = points(figures.rise_and_fall(large_run))
    assert len(drawn) < 0.5 * len(large_run.batches)
    assert min(found.across) - 0.1 <= min(x for x, _ in drawn) <= max(x for x, _ in drawn) <= max(found.across) + 0.1
    assert "all batches in its cell" in costs.mark_meaning(found)


def test_both_figures_have_axes_of_one_range_so_that_the_line_divides_them(samples: Samples) -> None:
    for drawing in (figures.rise_and_fall(samples["median"]()), figures.losses_and_bounds(samples["median"]())):
        axes = panel(drawing)
        assert axes.get_xlim() == axes.get_ylim()


def test_rises_falls_and_ties_are_counted(samples: Samples) -> None:
    rows = [{"rise": 1.0, "fall": 2.0}, {"rise": 3.0, "fall": 2.5}, {"rise": 1.5, "fall": 1.5}]
    unknown = {"rise": math.inf, "fall": 1.0}
    said = costs.directions_described(having(samples["median"](), *rows, unknown, unknown))
    assert said == (
        "Of 3 batches, the rise is larger in 1 and the fall in 1, both are equal in 1. "
        "Largest finite rise 3.000 nats, largest finite fall 2.500 nats. 2 batches without a finite figure "
        "are left out."
    )


def test_a_batch_that_nothing_bounds_is_said_and_no_finite_one_is_called_the_largest(samples: Samples) -> None:
    rows = [{"rise": 1.0, "fall": 1.9202}, {"rise": 1.0, "fall": 1.0}, {"rise": math.inf, "fall": 1.0}, {"rise": None}]
    result = having(samples["median"](), *rows)
    axes = panel(figures.rise_and_fall(result))
    assert [text.get_text() for text in axes.texts] == ["n = 2", "batch 2 is not bounded"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["rise = fall", "largest finite: 1.921"]
    said = costs.directions_described(result)
    assert said.endswith("Batch 2 without a finite figure is left out. 1 batch without both figures left out.")
    alone = costs.directions_described(having(samples["median"](), rows[2]))
    assert alone == ("No batch has a rise and a fall that are finite. Batch 0 without a finite figure is left out.")


def test_a_loss_that_is_not_finite_is_beyond_its_bound(samples: Samples) -> None:
    for bound, loss in [(1.0, math.inf), (1.0, math.nan), (math.nan, 0.5), (math.nan, math.nan)]:
        fine, broken = {"exact": 4.0, "leave_one_out_max": 1.0}, {"exact": bound, "leave_one_out_max": loss}
        for rows in ((fine, broken), (broken,)):
            said = costs.losses_described(having(samples["median"](), *rows))
            assert "1 batch has a loss beyond the bound" in said
            assert "No loss is beyond" not in said
        drawn = panel(figures.losses_and_bounds(having(samples["median"](), fine, fine, broken)))
        assert [text.get_text() for text in drawn.texts] == ["n = 2", "1 batch beyond the bound"]
        endless = {"exact": math.inf, "leave_one_out_max": 0.5}
        assert "No loss is beyond" in costs.losses_described(having(samples["median"](), fine, endless))


def test_no_cell_of_the_grid_stands_on_the_wrong_side_of_the_line(samples: Samples) -> None:
    rows = [{"exact": 1 + i / 500, "leave_one_out_max": (1 + i / 500) * (0.97 + i % 4 / 100)} for i in range(600)]
    drawn = points(figures.losses_and_bounds(having(samples["median"](), *rows)))
    assert len(drawn) < 300
    assert all(loss <= bound + 1e-9 for bound, loss in drawn)
    rows[300]["leave_one_out_max"] = rows[300]["exact"] + 1e-3
    drawn = points(figures.losses_and_bounds(having(samples["median"](), *rows)))
    assert sum(loss > bound + 1e-9 for bound, loss in drawn) == 1  # not lost among its neighbours


def test_growth_never_lies_below_the_bound_of_any_length(samples: Samples) -> None:
    result = samples["median"]()
    count = 3 * MOST_DRAWN
    sums = tuple(float(place) for place in range(1, count + 1))
    assert result.tokens is not None
    long = {"position": tuple(range(1, count + 1)), "exact": sums, "theorem1": sums, "band": None}
    other = dict.fromkeys(("batches", "mean", "maximum"), (1,) * count)
    lines = panel(growth(result.model_copy(update={"tokens": result.tokens.model_copy(update=long | other)}))).lines
    for line in lines[:2]:
        assert line.get_drawstyle() == "steps-pre"
        xs, ys = map(list, line.get_data())
        assert (xs[0], xs[-1], ys[0]) == (0, count, ys[1])
        assert all(ys[bisect_left(xs, length)] >= sums[length - 1] for length in range(1, count + 1))


def test_losses_beyond_their_bound_are_told(samples: Samples) -> None:
    for loss, said in [
        (0.5, "No loss is beyond the bound of its batch. The largest share of its bound is reached in batch 1: 50.0%."),
        (1.5, "1 batch has a loss beyond the bound, which no sound bound allows."),
    ]:
        rows = [{"exact": 4.0, "leave_one_out_max": 1.0}, {"exact": 1.0, "leave_one_out_max": loss}]
        assert said in costs.losses_described(having(samples["median"](), *rows))


def test_a_batch_that_cost_nothing_has_no_loss_or_an_infinite_share(samples: Samples) -> None:
    nothing, none = ({"exact": 0.0, "leave_one_out_max": loss} for loss in (1.0, 0.0))
    assert "batch 0: infinite" in costs.losses_described(having(samples["median"](), nothing, none))
    assert "batch 0: 0%" in costs.losses_described(having(samples["median"](), none, none))


def test_without_figures_there_is_nothing_to_draw_or_say(samples: Samples) -> None:
    for name in ["no batch", "approximate only", "unreadable"]:
        result = samples[name]()
        assert figures.rise_and_fall(result) is figures.losses_and_bounds(result) is None
        assert costs.directions_described(result) == costs.losses_described(result) == ""


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
        sum(v * b for v, b in zip(values[:4], long.batches[:4], strict=True)) / sum(long.batches[:4])
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
    assert "3 tokens without a bound" in [text.get_text() for axes in figure.axes for text in axes.texts]


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
    band = TokenBand(first=(1, 2), last=(1, 2), tokens=(9, 9), low=(0.1, 0.1), median=(0.5, 0.2), high=(0.4, math.inf))
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
            assert sorted(exact) == sorted(found.finite) and sorted(theorem1) == sorted(found.theorem1)
            assert "dot" in found.marks
        else:
            assert axes.patches and "Bars" in found.marks


def test_few_tokens_at_a_place_have_no_curve_of_medians(samples: Samples) -> None:
    result = samples["median"]()
    assert result.tokens is not None and result.tokens.band is not None
    for count in (5, 40):
        band = result.tokens.band.model_copy(update={"tokens": (count,) * len(result.tokens.band.tokens)})
        curve = result.tokens.model_copy(update={"band": band})
        figure, drawing = Figure(), token_curve(result.model_copy(update={"tokens": curve}))
        assert drawing is not None
        drawing.draw(figure)
        axes = next(axes for axes in figure.axes if axes.lines)
        (median,) = [line for line in axes.lines if line.get_label() == "median"]
        assert median.get_linestyle() == ("None" if count < 10 else ":")
        assert ("all tokens there" in curve_described(curve)) == (count < 10)
