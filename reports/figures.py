"""Figures' content, and their drawing by matplotlib; `figure_files` makes pages' figures and files.

Names of runs are anybody's text, in letters that no font here may have: a figure in a page calls
runs by number. matplotlib is imported inside the functions: it takes longer to load than an audit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np

from dpaudit.reports import budgets, costs
from dpaudit.reports.costs import FEWEST_BINNED, BatchCosts, ex_post_digits, thinned
from dpaudit.reports.text import counted
from dpaudit.results import AuditResult, ExPost, TokenBand, TokenCurve
from dpaudit.results.rounding import bound, saving

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import FigureBase

Format = Literal["svg", "png", "pdf"]

INK, BAR, MARK, GRID = "#1c1f23", "#0072b2", "#b34700", "#d5d9de"
#: Okabe and Ito's colours, which colour-blind readers can tell apart, but for yellow, which white
#: swallows. With styles and markers whose number shares no factor with theirs, no two runs look the
#: same, in grey either.
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: The most runs that one figure can tell apart.
MOST_RUNS = len(LINES) * len(_DASHES)
_HEIGHT, _SQUARE_HEIGHT = 3.1, 3.6  # inches
LINE_HEIGHT = 0.2  # inches, of a legend or of a note
_MOST_BINS, _MOST_RUG_TICKS = 40, 100
_BATCH_AXIS = "Ex-post epsilon of a batch (nats)"
_ROW_WIDTH, LEGEND_WIDTH = (
    20,
    42,
)  # letters in a line of a run's name, beside its row and in a legend
#: Fewer batches than these are no figure of pairs; more than MOST_POINTS share a grid of so many
#: cells a side.
_FEWEST_POINTS, _CELLS = 2, 40


@dataclass(frozen=True)
class Drawing:
    """A figure that `draw` is still to put on an empty canvas.

    Its description has its figures, for people who cannot see it.

    The name is for ids and file names, the height in inches.
    """

    name: str
    title: str
    description: str
    draw: Callable[[FigureBase], object]
    height: float = _HEIGHT


@dataclass(frozen=True)
class Series:
    """One run among others on a figure; `found` says which neighbours all of it is about."""

    label: str
    costs: BatchCosts
    curve: TokenCurve | None
    found: ExPost


def of_run(result: AuditResult, *, alone: bool = False) -> list[Drawing]:
    """Return every figure of one run with anything to show; `alone` as for `batch_histogram`."""
    drawn = (
        batch_histogram(result, alone=alone),
        token_curve(result),
        growth(result),
        taking_part(result),
    )
    return [drawing for drawing in drawn if drawing is not None]


def batch_histogram(result: AuditResult, *, alone: bool = False) -> Drawing | None:
    """Draw per-batch epsilon with the maximum marked; None if no batch has a finite cost.

    A histogram, or a dot for each batch where they are few. `alone`: no page explains the figure,
    so it gets a legend, and the mean.
    """
    found = costs.batch_costs(result)
    if found is None or not found.finite:
        return None

    def draw(figure: FigureBase) -> None:
        values = found.finite
        axes = _draw_dots(figure, found) if found.few else _draw_bins(figure, found)
        along_x = axes.get_xaxis_transform()  # x in nats, y as a fraction of the height
        if not found.unbounded:
            axes.axvline(
                found.values[0],
                color=MARK,
                linewidth=1.6,
                linestyle=(0, (4, 2)),
                label="largest exact",
            )
            axes.plot(
                [found.values[0]],
                [1.0],
                "v",
                color=MARK,
                markersize=8,
                clip_on=False,
                transform=along_x,
            )
        largest = (
            f"largest exact {bound(found.values[0], found.digits)}, batch {found.costliest[0].id}"
        )
        _caption(axes, f"n = {len(found.values):,}", largest)
        if alone:
            if not found.unbounded:
                mean = statistics.fmean(values)
                axes.axvline(
                    mean,
                    color=INK,
                    linewidth=1.4,
                    linestyle=":",
                    label=f"mean {bound(mean, found.digits)}",
                )
            figure.legend(loc="outside lower center", ncols=2)

    height = _HEIGHT + 2 * LINE_HEIGHT * alone
    return Drawing("batch-histogram", "Cost of each batch", found.described(), draw, height)


def token_curve(result: AuditResult) -> Drawing | None:
    """Draw tokens' mean cost by position, its spread, and a strip of the batches at each position.

    None if no position has a finite mean.
    """
    if not _has_means(result.tokens):
        return None
    curve, band = thinned(result.tokens), result.tokens.band

    def draw(figure: FigureBase) -> None:
        axes, strip = _curve_panels(figure, [curve])
        marker = "o" if len(curve.position) == 1 else ""
        if band is not None:  # the range between two quantiles as an area, with the median in it
            middle = [(first + last) / 2 for first, last in zip(band.first, band.last, strict=True)]
            low, centre, high = drawn_band(band)
            label, opacity = "10% to 90% of tokens", 0.25
            # So few tokens have no quantiles that a curve could go through: the extremes and a dot
            # for each place.
            few = max(band.tokens) < FEWEST_BINNED
            if marker or few:
                label = "least to most" if few else label
                axes.vlines(
                    middle,
                    low,
                    high,
                    colors=BAR,
                    linewidth=9 if marker else 3,
                    alpha=opacity,
                    label=label,
                )
            else:
                area: dict[str, Any] = {
                    "facecolor": (BAR, opacity),
                    "edgecolor": BAR,
                    "linewidth": 0.6,
                }
                axes.fill_between(middle, low, high, label=label, **area)
            median: dict[str, Any] = {
                "color": INK,
                "linewidth": 1.5,
                "marker": "o" if few else marker,
                "markersize": 3,
            }
            axes.plot(middle, centre, linestyle="none" if few else ":", label="median", **median)
        axes.plot(
            curve.position, _gaps(curve.mean), color=BAR, linewidth=1.8, marker=marker, label="mean"
        )
        if band is not None:
            _from_zero(axes, (*curve.mean, *band.high))
            axes.set_ylabel("Exact cost (nats)")
            figure.legend(loc="outside lower center", ncols=3)
        edges = _edges(curve)
        strip.stairs(curve.batches, edges, fill=True, color=GRID)
        strip.set_xlim(edges[0], edges[-1])
        strip.set_ylim(bottom=0)
        tokens, batches = (
            counted(sum(curve.batches), "token"),
            counted(max(curve.batches), "batch", "batches"),
        )
        left_out = f"{counted(curve.unbounded, 'token')} without a bound" if curve.unbounded else ""
        _caption(axes, f"n = {tokens} of {batches}", left_out)

    title = "Cost of a token by its position in the text"
    height = _HEIGHT + 2.5 * LINE_HEIGHT * (band is not None)
    return Drawing("token-curve", title, costs.curve_described(result.tokens), draw, height)


def batch_spreads(runs: Sequence[Series]) -> Drawing | None:
    """Draw per-batch costs of runs, a row for each; None if no run has a finite cost.

    Each batch is a tick. Above stands a box where all of the run's costs are finite.
    """
    if not any(run.costs.finite for run in runs):
        return None
    labels = []
    for run, change in zip(runs, _differences([run.found for run in runs]), strict=True):
        endless = f"{run.costs.unbounded:,} not finite" if run.costs.unbounded else ""
        lines = (*wrap(run.label, _ROW_WIDTH), f"n = {len(run.costs.values):,}", endless, change)
        labels.append("\n".join(filter(None, lines)))

    def draw(figure: FigureBase) -> None:
        axes = figure.add_subplot()
        for row, run in enumerate(runs):
            if run.costs.unbounded:
                continue
            least, lower, median, upper, most = run.costs.quartiles
            axes.hlines(row, least, most, colors=INK, linewidth=1.2)
            axes.barh(row, upper - lower, left=lower, height=0.5, color=BAR, edgecolor=BAR)
            axes.vlines([least, most], row - 0.15, row + 0.15, colors=INK, linewidth=1.2)
            axes.vlines(median, row - 0.25, row + 0.25, colors=MARK, linewidth=2.5)
        for row, run in enumerate(runs):
            axes.vlines(run.costs.finite, row + 0.31, row + 0.41, colors=INK, linewidth=0.6)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_xlabel("Exact ex-post cost of a batch (nats)")
        axes.grid(axis="x")
        axes.set_ylim(len(labels) - 0.45, -0.45)

    described = " ".join(f"{run.label}: {run.costs.described()}" for run in runs)
    height = 1.3 + len(labels) * max(0.62, 0.19 * max(map(_lines, labels)))
    return Drawing(
        "batch-spreads", "Exact ex-post cost of each batch by run", described, draw, height
    )


def token_curves(series: Sequence[Series]) -> Drawing | None:
    """Draw mean cost of a token by position, a line for each run; None if no run has one."""
    drawn = [(run, run.curve) for run in series if _has_means(run.curve)]
    if not drawn:
        return None
    labels = []
    for (run, curve), change in zip(
        drawn, _differences([run.found for run, _ in drawn]), strict=True
    ):
        number = f"n = {counted(max(curve.batches), 'batch', 'batches')}"
        label = f"{run.label} ({'; '.join(filter(None, (number, change)))})"
        labels.append("\n".join(wrap(label, LEGEND_WIDTH)))

    def draw(figure: FigureBase) -> None:
        axes, strip = _curve_panels(figure, [curve for _, curve in drawn])
        lines = []
        for place, (_, curve) in enumerate(drawn):
            marks, every = line_marks(place), max(1, len(curve.position) // 8)
            style: dict[str, Any] = {"linestyle": _DASHES[place % len(_DASHES)], "linewidth": 1.6}
            lines += axes.plot(
                curve.position,
                _gaps(curve.mean),
                markevery=(place % every, every),
                **marks,
                **style,
            )
            strip.stairs(curve.batches, _edges(curve), baseline=None, color=marks["color"], **style)
        strip.set_ylim(bottom=0)
        legend = figure.legend(lines, map(str, range(len(lines))), loc="outside lower left")
        # Set afterwards: a legend leaves out what is called like _this.
        for shown, label in zip(legend.get_texts(), labels, strict=True):
            shown.set_text(label)

    described = " ".join(f"{run.label}: {costs.curve_described(curve)}" for run, curve in drawn)
    title = "Mean cost of a token by its position in the text, by run"
    height = _HEIGHT + 0.3 + LINE_HEIGHT * sum(map(_lines, labels))
    return Drawing("token-curves", title, described, draw, height)


def growth(result: AuditResult) -> Drawing | None:
    """Draw ex-post epsilon by length, exact and Theorem 1; None if no curve has a finite value."""
    if result.tokens is None or not any(map(math.isfinite, result.tokens.exact)):
        return None
    curve, digits = thinned(result.tokens), ex_post_digits(result)

    def draw(figure: FigureBase) -> None:
        axes = _axes(figure, "Longest batch allowed (tokens)", "Ex-post ε, batch level (nats)")
        marker = "o" if len(curve.position) == 1 else ""
        theorem1, exact = _gaps(curve.theorem1), _gaps(curve.exact)
        # A point bounds all lengths since the one before: a slope between the two would lie below
        # the bound.
        style: dict[str, Any] = {
            "drawstyle": "steps-pre",
            "marker": marker,
            "markevery": slice(1, None),
        }
        lengths = [0, *curve.position]
        axes.plot(
            lengths,
            theorem1[:1] + theorem1,
            "--",
            color=INK,
            linewidth=1.3,
            label="Theorem 1",
            **style,
        )
        axes.plot(lengths, exact[:1] + exact, color=BAR, linewidth=1.8, label="exact", **style)
        _from_zero(axes, (*theorem1, *exact))
        whole_numbers(axes.xaxis)
        axes.legend(loc="lower right")
        saved = saving(curve.theorem1[-1], curve.exact[-1])
        _caption(axes, f"exact {bound(curve.exact[-1], digits)}", f"saving {saved}")

    return Drawing(
        "growth", "Ex-post epsilon by length of the texts", costs.growth_described(result), draw
    )


def taking_part(result: AuditResult) -> Drawing | None:
    """Draw the share of contexts that took part by position; None without budgets or draws."""
    use = result.budgets
    if use is None or not use.position:
        return None
    positions, active, fewest = budgets.thinned(use)

    def draw(figure: FigureBase) -> None:
        from matplotlib.ticker import PercentFormatter

        axes = _axes(figure, "Position of the token in its batch", "Contexts that took part")
        # At 0 and 1, where a line would be cut in half, it is drawn in full.
        style: dict[str, Any] = {
            "marker": "o" if len(positions) == 1 else "",
            "markersize": 5,
            "clip_on": False,
        }
        thin: dict[str, Any] = {
            "color": INK,
            "linewidth": 0.9,
            "linestyle": (0, (4, 2)),
            "markerfacecolor": "none",
        }
        axes.plot(positions, active, color=BAR, linewidth=1.8, label="all batches", **style)
        axes.plot(positions, fewest, label="batch with fewest", **thin, **style)
        axes.set_ylim(0, 1)
        axes.set_xlim(positions[0] - 0.5, positions[-1] + 0.5)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        whole_numbers(axes.xaxis)
        figure.legend(loc="outside lower center", ncols=2)
        left_out = f"{use.left_out:,} left out of a draw" if use.left_out else "none left out"
        _caption(axes, f"n = {counted(use.contexts, 'context')}", left_out)

    title = "Contexts that took part, by position of the token"
    return Drawing("budgets", title, budgets.took_part(use), draw, _HEIGHT + LINE_HEIGHT)


def line_marks(place: int) -> dict[str, Any]:
    """Return colour and marker of one run, by its place among others, as matplotlib takes them."""
    return {
        "color": LINES[place % len(LINES)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "markersize": 4,
    }


def drawn_band(band: TokenBand) -> tuple[list[float], list[float], list[float]]:
    """Return low, median, high as drawn, with gaps if not finite, and the median in between."""
    low, high = np.array(band.low), np.array(band.high)
    finite = np.isfinite(low) & np.isfinite(high) & np.isfinite(band.median)
    drawn = (low, np.clip(band.median, low, high), high)
    found_low, median, found_high = (
        np.where(finite, values, math.nan).tolist() for values in drawn
    )
    return found_low, median, found_high


def _draw_bins(figure: FigureBase, found: BatchCosts) -> Axes:
    """Draw a histogram of the batches' costs, with a tick for each where they are not many."""
    axes = _axes(figure, _BATCH_AXIS, "Batches")
    values = found.finite
    everything = values + found.theorem1
    bins = min(_MOST_BINS, max(5, math.ceil(2 * math.sqrt(len(values)))))
    span = (min(everything), max(everything))
    axes.hist(values, bins=bins, range=span, color=BAR, rwidth=0.9, label="exact")
    axes.hist(
        found.theorem1,
        bins=bins,
        range=span,
        color=INK,
        histtype="step",
        linewidth=1.1,
        label="Theorem 1",
    )
    if len(values) <= _MOST_RUG_TICKS:
        ticks = axes.get_xaxis_transform()
        axes.vlines(values, -0.03, 0.0, colors=INK, linewidth=0.8, clip_on=False, transform=ticks)
        axes.tick_params(axis="x", length=0, pad=9)
    whole_numbers(axes.yaxis, 5)
    axes.margins(y=0.08)
    return axes


def _draw_dots(figure: FigureBase, found: BatchCosts) -> Axes:
    """Draw a dot for each batch by its exact cost, and below by Theorem 1's."""
    axes = _axes(figure, _BATCH_AXIS, "")
    axes.plot(
        found.finite,
        [1.0] * len(found.finite),
        "o",
        color=BAR,
        alpha=0.7,
        markersize=8,
        label="exact",
    )
    hollow: dict[str, Any] = {
        "color": INK,
        "markerfacecolor": "none",
        "markersize": 8,
        "label": "Theorem 1",
    }
    axes.plot(found.theorem1, [0.0] * len(found.theorem1), "o", **hollow)
    axes.set_yticks([0, 1], ["Theorem 1", "exact"])
    axes.set_ylim(-0.7, 1.7)
    return axes


def _axes(figure: FigureBase, across: str, up: str, grid: Literal["y", "both"] = "y") -> Axes:
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis=grid)
    return axes


def _from_zero(axes: Axes, drawn: Iterable[float]) -> None:
    """Have the axis begin at 0 and leave a little room above all of `drawn`."""
    axes.set_ylim(0, 1.08 * max(filter(math.isfinite, drawn)) or 1)


def _curve_panels(figure: FigureBase, curves: Sequence[TokenCurve]) -> tuple[Axes, Axes]:
    """Return axes for costs by position, and a strip below for the number of batches there."""
    grid = figure.add_gridspec(2, 1, height_ratios=(3.4, 1))
    strip = figure.add_subplot(grid[1])
    axes = figure.add_subplot(grid[0], sharex=strip)
    axes.set_ylabel("Mean exact cost (nats)")
    _from_zero(axes, (value for curve in curves for value in curve.mean))
    axes.tick_params(labelbottom=False)
    axes.grid(axis="y")
    strip.set_ylabel("Batches")
    strip.set_xlabel("Position of the token in its text")
    whole_numbers(strip.xaxis)
    whole_numbers(strip.yaxis, 2)
    figure.align_ylabels([axes, strip])
    return axes, strip


def _edges(curve: TokenCurve) -> list[float]:
    return [curve.position[0] - 0.5, *(position + 0.5 for position in curve.position)]


def _has_means(curve: TokenCurve | None) -> TypeGuard[TokenCurve]:
    return curve is not None and any(math.isfinite(value) for value in curve.mean)


def _lines(label: str) -> int:
    return 1 + label.count("\n")


def _differences(found: Sequence[ExPost]) -> list[str]:
    """Return each run's neighbours' difference, in a few words; "" if it is the same for all."""
    between = []
    for each in found:
        most = (
            ""
            if each.records_per_user is None
            else f" of {counted(each.records_per_user, 'record')}"
        )
        between.append(f"{each.unit}{most}, {each.relation.replace('_', '/')}")
    return between if len(set(between)) > 1 else [""] * len(between)


def _caption(axes: Axes, left: str, right: str) -> None:
    """Write above the axes: how many there are on the left, what stands out on the right."""
    axes.text(0, 1.06, left, transform=axes.transAxes, ha="left", va="bottom")
    axes.text(
        1, 1.06, right, transform=axes.transAxes, ha="right", va="bottom", color=MARK, weight="bold"
    )


def whole_numbers(axis: Axis, most: int = 10) -> None:
    """Put ticks at whole numbers alone."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=most))


def _gaps(values: tuple[float, ...]) -> list[float]:
    """Return values to draw: what is not finite leaves a gap in the line."""
    return [value if math.isfinite(value) else math.nan for value in values]
