"""Figures' content, and their drawing by matplotlib; `figure_files` makes pages' figures and files.

Names of runs are anybody's text, in letters that no font here may have: a figure in a page calls
runs by number. matplotlib is imported inside the functions: it takes longer to load than an audit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard

import numpy as np

from dpaudit.reports import costs
from dpaudit.reports.costs import BatchCosts
from dpaudit.reports.text import counted
from dpaudit.results import AttackBound, AuditResult, ExPost, TokenCurve

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
_HEIGHT, _SPREAD_HEIGHT = 3.1, 2.4  # inches
LINE_HEIGHT = 0.2  # inches, of a legend or of a note
#: False-positive rates from which bounds on attacks are drawn, and at how many.
_LEAST_RATE, _RATES = 1e-4, 97
#: Ticks that a figure has room for: twice as many as its dots.
_TICKS = 2000
#: Letters in a line of a run's name, beside its row and in a legend.
_ROW_WIDTH, LEGEND_WIDTH = 20, 42


class Drawing(NamedTuple):
    """A figure that `draw` is still to put on an empty canvas.

    Its description has its figures, for people who cannot see it.

    The name is for ids and file names, the height in inches.
    """

    name: str
    title: str
    description: str
    draw: Callable[[FigureBase], object]
    height: float = _HEIGHT


class Series(NamedTuple):
    """One run among others on a figure; `found` says which neighbours all of it is about."""

    label: str
    costs: BatchCosts
    curve: TokenCurve | None
    found: ExPost


def of_run(result: AuditResult) -> list[Drawing]:
    """Return every figure of one run with anything to show."""
    drawn = (batch_spread(result), token_curve(result))
    return [drawing for drawing in drawn if drawing is not None]


def batch_spread(result: AuditResult) -> Drawing | None:
    """Draw costs of batches, exact and by Theorem 1; None if no batch has a finite cost."""
    found = costs.batch_costs(result)
    if found is None or not found.finite:
        return None

    def draw(figure: FigureBase) -> None:
        axes = _draw_spreads(figure, ["exact", "Theorem 1"], [found.values, found.theorem1])
        axes.set_xlabel("Ex-post epsilon of a batch (nats)")
        _caption(axes, f"n = {len(found.values):,}", f"most in batch {found.costliest[0].id}")

    return Drawing("batch-costs", "Cost of each batch", found.described(), draw, _SPREAD_HEIGHT)


def token_curve(result: AuditResult) -> Drawing | None:
    """Draw tokens' mean and largest cost by position; None if no position has a finite mean."""
    curve = result.tokens
    if not _has_means(curve):
        return None

    def draw(figure: FigureBase) -> None:
        axes, strip = _curve_panels(figure, [curve])
        marker = "o" if len(curve.position) == 1 else ""
        largest: dict[str, Any] = {"color": INK, "linewidth": 0.9, "linestyle": (0, (4, 2))}
        axes.plot(curve.position, _gaps(curve.maximum), label="largest", marker=marker, **largest)
        axes.plot(
            curve.position, _gaps(curve.mean), color=BAR, linewidth=1.8, marker=marker, label="mean"
        )
        _from_zero(axes, (*curve.mean, *curve.maximum))
        axes.set_ylabel("Exact cost (nats)")
        figure.legend(loc="outside lower center", ncols=2)
        edges = _edges(curve)
        strip.stairs(curve.batches, edges, fill=True, color=GRID)
        strip.set_xlim(edges[0], edges[-1])
        strip.set_ylim(bottom=0)
        tokens = counted(sum(curve.batches), "token")
        batches = counted(max(curve.batches), "batch", "batches")
        left_out = f"{counted(curve.unbounded, 'token')} without a bound" if curve.unbounded else ""
        _caption(axes, f"n = {tokens} of {batches}", left_out)

    title = "Cost of a token by its position in the text"
    height = _HEIGHT + 2.5 * LINE_HEIGHT
    return Drawing("token-curve", title, costs.curve_described(curve), draw, height)


def attack_curves(release: AttackBound, batch: AttackBound | None, described: str) -> Drawing:
    """Draw the most true alarms of a test at each rate of false ones, on logarithmic axes.

    Args:
        release: for readers, or for everybody.
        batch: for someone who knows the batch; None if that makes no difference.
        described: what it shows, in words.
    """
    rates = np.geomspace(_LEAST_RATE, 1, _RATES)

    def draw(figure: FigureBase) -> None:
        axes = figure.add_subplot()
        shown: dict[str, tuple[AttackBound, str, Any]] = {
            "readers of the texts" if batch else "with the texts": (release, BAR, "-")
        }
        if batch:
            shown["someone who knows the batch"] = (batch, MARK, (0, (5, 2)))
        for label, (bounds, color, dashes) in shown.items():
            found = bounds.curve.at(rates)
            axes.loglog(rates, found, color=color, linestyle=dashes, linewidth=1.8, label=label)
        axes.loglog(
            rates,
            rates,
            color=INK,
            linestyle=(0, (1, 1.4)),
            linewidth=1.2,
            label="without the texts",
        )
        axes.set_xlim(_LEAST_RATE, 1)
        axes.set_ylim(_LEAST_RATE, 1)
        for axis, name in ((axes.xaxis, "False alarms"), (axes.yaxis, "True alarms, at most")):
            axis.set_label_text(name)
            axis.set_major_formatter(lambda rate, _: f"{100 * rate:g}%")
        axes.minorticks_off()
        axes.grid()
        figure.legend(loc="outside lower center", ncols=1)

    title = "The most that a test can tell, by its false alarms"
    height = _HEIGHT + LINE_HEIGHT * (4 if batch else 3)
    return Drawing("attack-curve", title, described, draw, height)


def batch_spreads(runs: Sequence[Series]) -> Drawing | None:
    """Draw per-batch costs of runs, a row for each; None if no run has a finite cost."""
    if not any(run.costs.finite for run in runs):
        return None
    labels = []
    for run, change in zip(runs, _differences([run.found for run in runs]), strict=True):
        endless = f"{run.costs.unbounded:,} not finite" if run.costs.unbounded else ""
        lines = (*wrap(run.label, _ROW_WIDTH), f"n = {len(run.costs.values):,}", endless, change)
        labels.append("\n".join(filter(None, lines)))

    def draw(figure: FigureBase) -> None:
        axes = _draw_spreads(figure, labels, [run.costs.values for run in runs])
        axes.set_xlabel("Exact ex-post cost of a batch (nats)")

    described = " ".join(f"{run.label}: {run.costs.described()}" for run in runs)
    height = 1.3 + len(labels) * max(0.62, 0.19 * max(map(_lines, labels)))
    return Drawing(
        "batch-spreads", "Exact ex-post cost of each batch by run", described, draw, height
    )


def _draw_spreads(
    figure: FigureBase, labels: Sequence[str], rows: Sequence[Sequence[float]]
) -> Axes:
    """Draw each row's costs as ticks, below a box of its quartiles where all are finite."""
    axes = figure.add_subplot()
    for row, values in enumerate(rows):
        finite = [value for value in values if math.isfinite(value)]
        if finite and len(finite) == len(values):
            least, lower, median, upper, most = np.quantile(
                values, (0, 0.25, 0.5, 0.75, 1), method="higher"
            )
            axes.hlines(row, least, most, colors=INK, linewidth=1.2, zorder=0.5)
            axes.barh(row, upper - lower, left=lower, height=0.5, color=BAR, edgecolor=BAR)
            axes.vlines([least, most], row - 0.15, row + 0.15, colors=INK, linewidth=1.2)
            axes.vlines(median, row - 0.25, row + 0.25, colors=MARK, linewidth=2.5)
        axes.vlines(_apart(finite), row + 0.31, row + 0.41, colors=INK, linewidth=0.6)
    axes.set_yticks(range(len(labels)), labels)
    axes.grid(axis="x")
    axes.set_ylim(len(labels) - 0.45, -0.45)
    return axes


def _apart(values: Sequence[float]) -> Sequence[float]:
    """Return all of few values; of more than _TICKS, one in each _TICKS-th of their range."""
    if len(values) <= _TICKS:
        return values
    known = np.sort(values)
    least, most = known[0], known[-1]
    _, firsts = np.unique(
        np.floor((known - least) / (most - least or 1) * _TICKS), return_index=True
    )
    found: list[float] = known[firsts].tolist()
    return found


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


def line_marks(place: int) -> dict[str, Any]:
    """Return colour and marker of one run, by its place among others, as matplotlib takes them."""
    return {
        "color": LINES[place % len(LINES)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "markersize": 4,
    }


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
