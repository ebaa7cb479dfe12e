"""What each figure shows, and how matplotlib draws it; `figure_files` makes pages' figures and files of it.

Names of runs are anybody's text, in letters that no font here may have: a figure in a page calls runs by number.
matplotlib is imported inside the functions: it takes longer to load than an audit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from dpaudit.reports.costs import (
    MOST_POINTS,
    BatchCosts,
    Pairs,
    batch_costs,
    curve_described,
    directions,
    directions_described,
    ex_post_digits,
    growth_described,
    losses,
    losses_described,
    percent,
    thinned,
)
from dpaudit.reports.outline import neighbours_of
from dpaudit.reports.text import counted
from dpaudit.results import AuditResult, BudgetCurve, BudgetPanel, ExPost, Kind, Spread, TokenBand, TokenCurve
from dpaudit.results.rounding import bound, saving

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import FigureBase

Format = Literal["svg", "png", "pdf"]

INK, BAR, MARK, GRID = "#1c1f23", "#0072b2", "#b34700", "#d5d9de"
#: Okabe and Ito's colours, which colour-blind readers can tell apart, but for yellow, which white swallows. With styles
#: and markers whose number shares no factor with theirs, no two runs look the same, in grey either.
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: The most runs that one figure can tell apart.
MOST_RUNS = len(LINES) * len(_DASHES)
_HEIGHT, _SQUARE_HEIGHT = 3.1, 3.6  # inches
LINE_HEIGHT = 0.2  # inches, of a legend or of a note
_MOST_BINS = 40
_MOST_RUG_TICKS = 100
_BAND_OPACITY = 0.25
_ROW_WIDTH, _LEGEND_WIDTH = 20, 42  # letters in a line of a run's name, beside its row and in a legend
#: Fewer batches than these are no figure of pairs; more than MOST_POINTS share a grid of so many cells a side.
_FEWEST_POINTS, _CELLS = 2, 40

ACCOUNTANTS = {"exact": "exact", "theorem1": "Theorem 1", "rdp": "Rényi DP", "optimal": "optimal"}
BUDGETS_CAPTION = (
    "A step for each length that was worked out: epsilon of everything, had no batch more tokens; ex-post, the maximum "
    "over n batches. A colour and a marker for each run, a dash for each accountant."
)
_BUDGET_AXES: dict[Kind, str] = {"ex-post": "Ex-post epsilon (nats)", "approximate": "Approximate DP epsilon (nats)"}
_TIGHT: dict[str, Any] = {"linestyle": "-", "linewidth": 1.8}
_LOOSE: dict[str, Any] = {"linestyle": (0, (5, 2)), "linewidth": 1.2}
_ACCOUNTANT_STYLES = {"exact": _TIGHT, "theorem1": _LOOSE, "rdp": _LOOSE, "optimal": _TIGHT}
_MOST_LETTERS = 22  # of a label in a legend of two columns
_BUDGET_HEIGHT = 3.0  # inches: the axes without the legend


@dataclass(frozen=True)
class Drawing:
    """A figure that is still to be drawn, into a page or a file.

    Attributes:
        name: for ids and file names.
        title: what it shows, in a few words.
        description: the same with its figures, for who cannot see it.
        draw: puts it on an empty canvas.
        height: in inches.
    """

    name: str
    title: str
    description: str
    draw: Callable[[FigureBase], None]
    height: float = _HEIGHT


@dataclass(frozen=True)
class Series:
    """One run among others on a figure.

    Attributes:
        label: what it is called there.
        costs: of its batches.
        curve: of its tokens; None where it has none.
        spread: of its batches; None where its cost is not finite.
        found: which neighbours all of these are about.
    """

    label: str
    costs: BatchCosts
    curve: TokenCurve | None
    spread: Spread | None
    found: ExPost


def batch_histogram(result: AuditResult, *, alone: bool = False) -> Drawing | None:
    """Histogram of per-batch epsilon with the maximum marked; None where no batch has a finite cost.

    Args:
        result: the run.
        alone: no page explains the figure: it gets a legend, and the mean.
    """
    costs = batch_costs(result)
    if costs is None or not costs.finite:
        return None
    return Drawing(
        "batch-histogram",
        "Histogram of the cost of each batch",
        costs.described(),
        lambda figure: _draw_histogram(figure, costs, alone),
        _HEIGHT + 2 * LINE_HEIGHT * alone,
    )


def token_curve(result: AuditResult) -> Drawing | None:
    """Mean cost of a token by position and how it is spread, over a strip with the batches behind each position.

    None where no position has a finite mean.
    """
    curve = result.tokens
    if not _has_means(curve):
        return None
    title = "Cost of a token by its position in the text"
    height = _HEIGHT + 2.5 * LINE_HEIGHT * (curve.band is not None)
    return Drawing("token-curve", title, curve_described(curve), lambda figure: _draw_curve(figure, curve), height)


def batch_spreads(series: Sequence[Series]) -> Drawing | None:
    """Per-batch costs of runs as one row each, on one axis; None where no run has a finite one."""
    if not any(run.costs.finite for run in series):
        return None
    described = " ".join(f"{run.label}: {run.costs.described()}" for run in series)
    title = "Exact ex-post cost of each batch by run"
    labels = _row_labels(series)
    height = 1.3 + len(series) * max(0.62, 0.19 * max(map(_lines, labels)))
    return Drawing("batch-spreads", title, described, lambda figure: _draw_batches(figure, series, labels), height)


def token_curves(series: Sequence[Series]) -> Drawing | None:
    """Mean cost of a token by position, a line for each run; None where no run has one."""
    drawn = [run for run in series if _has_means(run.curve)]
    if not drawn:
        return None
    described = " ".join(f"{run.label}: {curve_described(run.curve)}" for run in drawn)
    title = "Mean cost of a token by its position in the text, by run"
    labels = _line_labels(drawn)
    height = _HEIGHT + 0.3 + LINE_HEIGHT * sum(map(_lines, labels))
    return Drawing("token-curves", title, described, lambda figure: _draw_curves(figure, drawn, labels), height)


def growth(result: AuditResult) -> Drawing | None:
    """Ex-post epsilon by length, exact and Theorem 1; None where there is no curve with a finite value."""
    curve = result.tokens
    if curve is None or not any(math.isfinite(value) for value in curve.exact):
        return None
    digits = ex_post_digits(result)
    described = growth_described(result)
    title, curve = "Ex-post epsilon by length of the texts", thinned(curve)
    return Drawing("growth", title, described, lambda figure: _draw_growth(figure, curve, digits))


def rise_and_fall(result: AuditResult) -> Drawing | None:
    """Rise against fall; None where there are no two batches to compare."""
    found = directions(result)
    if found is None or len(found.finite) < _FEWEST_POINTS:
        return None

    def draw(figure: FigureBase) -> None:
        axes = figure.add_subplot()
        _draw_pairs(axes, found, "rise = fall", min(*found.across, *found.up))
        axes.set_xlabel("Rise of a batch (nats)")
        axes.set_ylabel("Fall of a batch (nats)")
        exact = [max(pair) for pair in zip(found.across, found.up, strict=True)]
        worst = max(range(len(exact)), key=exact.__getitem__)
        largest = bound(exact[worst], ex_post_digits(result))
        label, right = "largest exact", f"largest exact {largest}, batch {found.finite[worst][0]}"
        if found.endless:
            label, right = f"largest finite: {largest}", _endless(found)
        axes.plot(found.across[worst], found.up[worst], "v", color=MARK, markersize=8, label=label)
        axes.legend(loc="upper left")
        _caption(axes, f"n = {len(found.finite):,}", right)

    title = "Rise and fall of each batch"
    return Drawing("directions", title, directions_described(result), draw, _SQUARE_HEIGHT)


def losses_and_bounds(result: AuditResult) -> Drawing | None:
    """Losses of left-out contexts against bounds; None where there are no two batches to compare."""
    found = losses(result)
    if found is None or len(found.finite) < _FEWEST_POINTS:
        return None

    def draw(figure: FigureBase) -> None:
        axes = figure.add_subplot()
        _draw_pairs(axes, found, "the bound", 0.0)
        axes.set_xlabel("Exact ex-post bound of a batch (nats)")
        axes.set_ylabel("Largest loss in the batch (nats)")
        axes.legend(loc="upper left")
        share, _ = found.largest_share()
        right = _endless(found) or f"up to {percent(share)} of the bound"
        if found.beyond:
            right = f"{counted(found.beyond, 'batch', 'batches')} beyond the bound"
        _caption(axes, f"n = {len(found.finite):,}", right)

    title = "Largest loss of a left-out context against the bound of its batch"
    return Drawing("losses", title, losses_described(result), draw, _SQUARE_HEIGHT)


def spreads(costs: Sequence[tuple[str, Spread]], description: str) -> Drawing | None:
    """Per-batch costs of numbered runs as one box each; None where no run has finite ones."""
    drawn = [(number, spread) for number, spread in costs if math.isfinite(spread.maximum)]
    if not drawn:
        return None
    # Runs go by number: a name is anybody's text, in letters that no font here may have.
    changes = _differences([spread for _, spread in drawn])
    rows = [
        ("\n".join(filter(None, (f"run {number} (n = {spread.batches:,})", change))), spread)
        for (number, spread), change in zip(drawn, changes, strict=True)
    ]
    title, height = "Exact ex-post cost per batch of each run", 1.3 + 0.5 * len(drawn)
    return Drawing("spreads", title, description, lambda figure: _draw_spreads(figure.add_subplot(), rows), height)


def cluster_sizes(methods: Sequence[tuple[str, Sequence[int]]], description: str) -> Drawing | None:
    """Sizes of clusters, descending, in a panel for each method; None where there are no records."""
    drawn = [(title, sizes) for title, sizes in methods if sizes]
    if not drawn:
        return None
    title, height = "Records of each cluster by method", 2.2 * -(-len(drawn) // 2)
    return Drawing("cluster-sizes", title, description, lambda figure: _draw_sizes(figure, drawn), height)


def _marks(place: int) -> dict[str, Any]:
    """Colour and marker of one run, by its place among others, as matplotlib takes them."""
    return {"color": LINES[place % len(LINES)], "marker": _MARKERS[place % len(_MARKERS)], "markersize": 4}


def budget_curves(
    panel: BudgetPanel,
    numbers: Mapping[str, int],
    digits: Mapping[tuple[str, Kind], int],
    name: str,
    starred: Collection[str] = (),
) -> Drawing | None:
    """The panel's curves; None where none has a finite figure.

    Args:
        panel: what to draw.
        numbers: each run's number, by which it goes: a name is anybody's text.
        digits: significant digits of each run's figures of a kind.
        name: the drawing's.
        starred: the runs whose figures need a caution, which stands beside the drawing.
    """
    labels = {run: f"run {number}{'*' * (run in starred)}" for run, number in numbers.items()}
    drawn = [curve for curve in panel.curves if any(map(math.isfinite, curve.epsilon))]
    if not drawn:
        return None
    described = "; ".join(_curve_in_words(curve, labels, digits[curve.run, curve.kind]) for curve in drawn)
    return Drawing(
        name,
        f"{_BUDGET_AXES[panel.kind]} by length of the texts, for {neighbours_of(panel)}",
        f"{described}.",
        lambda figure: _draw_budgets(figure, panel.kind, drawn, numbers, labels),
        _BUDGET_HEIGHT + LINE_HEIGHT * len(_budget_legend(drawn, labels)),
    )


def _draw_sizes(figure: FigureBase, methods: Sequence[tuple[str, Sequence[int]]]) -> None:
    for place, (title, sizes) in enumerate(methods, start=1):
        axes = figure.add_subplot(-(-len(methods) // 2), 2, place)
        axes.stairs(sizes, fill=True, color=BAR)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel("Cluster, by size", fontsize=9)
        axes.set_ylabel("Records", fontsize=9)
        axes.tick_params(labelsize=8)
        _whole_numbers(axes.xaxis, 4)
        _whole_numbers(axes.yaxis, 4)
        axes.grid(axis="y")


def _draw_histogram(figure: FigureBase, costs: BatchCosts, alone: bool) -> None:
    axes = figure.add_subplot()
    along_x = axes.get_xaxis_transform()  # x in nats, y as a fraction of the height
    values = costs.finite
    everything = values + costs.theorem1
    bins = min(_MOST_BINS, max(5, math.ceil(2 * math.sqrt(len(values)))))
    span = (min(everything), max(everything))
    axes.hist(values, bins=bins, range=span, color=BAR, rwidth=0.9, label="exact")
    axes.hist(costs.theorem1, bins=bins, range=span, color=INK, histtype="step", linewidth=1.1, label="Theorem 1")
    if len(values) <= _MOST_RUG_TICKS:
        axes.vlines(values, -0.03, 0.0, colors=INK, linewidth=0.8, clip_on=False, transform=along_x)
        axes.tick_params(axis="x", length=0, pad=9)
    axes.set_xlabel("Ex-post epsilon of a batch (nats)")
    axes.set_ylabel("Batches")
    _whole_numbers(axes.yaxis, 5)
    axes.grid(axis="y")
    axes.margins(y=0.08)
    if not costs.unbounded:
        axes.axvline(costs.maximum, color=MARK, linewidth=1.6, linestyle=(0, (4, 2)), label="largest exact")
        axes.plot([costs.maximum], [1.0], "v", color=MARK, markersize=8, clip_on=False, transform=along_x)
    largest = f"largest exact {bound(costs.maximum, costs.digits)}, batch {costs.costliest[0].id}"
    _caption(axes, f"n = {len(costs.values):,}", largest)
    if alone:
        if not costs.unbounded:
            mean = statistics.fmean(values)
            axes.axvline(mean, color=INK, linewidth=1.4, linestyle=":", label=f"mean {bound(mean, costs.digits)}")
        figure.legend(loc="outside lower center", ncols=2)


def _draw_curve(figure: FigureBase, curve: TokenCurve) -> None:
    curve = thinned(curve)
    axes, strip = _curve_panels(figure, [curve])
    marker = "o" if len(curve.position) == 1 else ""
    if curve.band is not None:
        _draw_band(axes, curve.band, marker)
    axes.plot(curve.position, _gaps(curve.mean), color=BAR, linewidth=1.8, marker=marker, label="mean")
    if curve.band is not None:
        drawn = [value for value in (*curve.mean, *curve.band.high) if math.isfinite(value)]
        axes.set_ylim(0, 1.08 * max(drawn) or 1)
        axes.set_ylabel("Exact cost (nats)")
        figure.legend(loc="outside lower center", ncols=3)
    edges = _edges(curve)
    strip.stairs(curve.batches, edges, fill=True, color=GRID)
    strip.set_xlim(edges[0], edges[-1])
    strip.set_ylim(bottom=0)
    tokens, batches = counted(sum(curve.batches), "token"), counted(max(curve.batches), "batch", "batches")
    left_out = f"{counted(curve.unbounded, 'token')} without a bound" if curve.unbounded else ""
    _caption(axes, f"n = {tokens} of {batches}", left_out)


def _draw_band(axes: Axes, band: TokenBand, marker: str) -> None:
    """The range between two quantiles as an area, with the median in it."""
    middle = [(first + last) / 2 for first, last in zip(band.first, band.last, strict=True)]
    low, high, label = _gaps(band.low), _gaps(band.high), "10% to 90% of tokens"
    if marker:
        axes.vlines(middle, low, high, colors=BAR, linewidth=9, alpha=_BAND_OPACITY, label=label)
    else:
        area: dict[str, Any] = {"facecolor": (BAR, _BAND_OPACITY), "edgecolor": BAR, "linewidth": 0.6}
        axes.fill_between(middle, low, high, label=label, **area)
    axes.plot(middle, _gaps(band.median), ":", color=INK, linewidth=1.5, marker=marker, markersize=3, label="median")


def _draw_curves(figure: FigureBase, series: Sequence[Series], labels: Sequence[str]) -> None:
    curves = [run.curve for run in series if run.curve is not None]
    axes, strip = _curve_panels(figure, curves)
    lines = []
    for place, curve in enumerate(curves):
        marks, every = _marks(place), max(1, len(curve.position) // 8)
        style: dict[str, Any] = {"linestyle": _DASHES[place % len(_DASHES)], "linewidth": 1.6}
        lines += axes.plot(curve.position, _gaps(curve.mean), markevery=(place % every, every), **marks, **style)
        strip.stairs(curve.batches, _edges(curve), baseline=None, color=marks["color"], **style)
    strip.set_ylim(bottom=0)
    legend = figure.legend(lines, map(str, range(len(lines))), loc="outside lower left")
    # Set afterwards: a legend leaves out what is called like _this.
    for shown, label in zip(legend.get_texts(), labels, strict=True):
        shown.set_text(label)


def _line_labels(series: Sequence[Series]) -> list[str]:
    """Each run with a curve as the legend has it."""
    labels = []
    for run, change in zip(series, _differences([run.found for run in series]), strict=True):
        assert run.curve is not None
        number = f"n = {counted(max(run.curve.batches), 'batch', 'batches')}"
        label = f"{run.label} ({'; '.join(filter(None, (number, change)))})"
        labels.append("\n".join(wrap(label, _LEGEND_WIDTH)))
    return labels


def _curve_panels(figure: FigureBase, curves: Sequence[TokenCurve]) -> tuple[Axes, Axes]:
    """Axes for costs by position, and below it a strip for the number of batches that reached a position."""
    grid = figure.add_gridspec(2, 1, height_ratios=(3.4, 1))
    strip = figure.add_subplot(grid[1])
    axes = figure.add_subplot(grid[0], sharex=strip)
    axes.set_ylabel("Mean exact cost (nats)")
    axes.set_ylim(0, 1.08 * max(value for curve in curves for value in curve.mean if math.isfinite(value)) or 1)
    axes.tick_params(labelbottom=False)
    axes.grid(axis="y")
    strip.set_ylabel("Batches")
    strip.set_xlabel("Position of the token in its text")
    _whole_numbers(strip.xaxis)
    _whole_numbers(strip.yaxis, 2)
    figure.align_ylabels([axes, strip])
    return axes, strip


def _edges(curve: TokenCurve) -> list[float]:
    return [curve.position[0] - 0.5, *(position + 0.5 for position in curve.position)]


def _has_means(curve: TokenCurve | None) -> TypeGuard[TokenCurve]:
    return curve is not None and any(math.isfinite(value) for value in curve.mean)


def _draw_growth(figure: FigureBase, curve: TokenCurve, digits: int) -> None:
    axes = figure.add_subplot()
    marker = "o" if len(curve.position) == 1 else ""
    theorem1, exact = _gaps(curve.theorem1), _gaps(curve.exact)
    # A point bounds all lengths since the one before: a slope between the two would lie below the bound.
    style: dict[str, Any] = {"drawstyle": "steps-pre", "marker": marker, "markevery": slice(1, None)}
    lengths = [0, *curve.position]
    axes.plot(lengths, theorem1[:1] + theorem1, "--", color=INK, linewidth=1.3, label="Theorem 1", **style)
    axes.plot(lengths, exact[:1] + exact, color=BAR, linewidth=1.8, label="exact", **style)
    axes.set_ylim(0, 1.08 * max(value for value in (*theorem1, *exact) if math.isfinite(value)) or 1)
    axes.set_xlabel("Longest text allowed (tokens)")
    axes.set_ylabel("Ex-post epsilon (nats)")
    _whole_numbers(axes.xaxis)
    axes.grid(axis="y")
    axes.legend(loc="lower right")
    saved = saving(curve.theorem1[-1], curve.exact[-1])
    _caption(axes, f"exact {bound(curve.exact[-1], digits)}", f"saving {saved}")


def _draw_batches(figure: FigureBase, series: Sequence[Series], labels: Sequence[str]) -> None:
    axes = figure.add_subplot()
    _draw_spreads(axes, [(label, run.spread) for label, run in zip(labels, series, strict=True)])
    for row, run in enumerate(series):
        axes.vlines(run.costs.finite, row + 0.31, row + 0.41, colors=INK, linewidth=0.6)
    axes.set_ylim(len(series) - 0.45, -0.45)


def _row_labels(series: Sequence[Series]) -> list[str]:
    """Each run as it stands beside its row."""
    labels = []
    for run, change in zip(series, _differences([run.found for run in series]), strict=True):
        number = f"n = {len(run.costs.values):,}"
        endless = f"{run.costs.unbounded:,} not finite" if run.costs.unbounded else ""
        labels.append("\n".join(filter(None, (*wrap(run.label, _ROW_WIDTH), number, endless, change))))
    return labels


def _lines(label: str) -> int:
    return 1 + label.count("\n")


def _draw_spreads(axes: Axes, rows: Sequence[tuple[str, Spread | None]]) -> None:
    """A row for each run, by its label: a box, or nothing where its largest cost is not finite."""
    for row, (_, spread) in enumerate(rows):
        if spread is None:
            continue
        box = spread.upper_quartile - spread.lower_quartile
        axes.hlines(row, spread.minimum, spread.maximum, colors=INK, linewidth=1.2)
        axes.barh(row, box, left=spread.lower_quartile, height=0.5, color=BAR, edgecolor=BAR)
        axes.vlines([spread.minimum, spread.maximum], row - 0.15, row + 0.15, colors=INK, linewidth=1.2)
        axes.vlines(spread.median, row - 0.25, row + 0.25, colors=MARK, linewidth=2.5)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("Exact ex-post cost of a batch (nats)")
    axes.grid(axis="x")


def _differences(found: Sequence[Spread | ExPost]) -> list[str]:
    """What each run's neighbours differ by, in a few words; empty for all where it is the same for all."""
    between = [_between(each) for each in found]
    return between if len(set(between)) > 1 else [""] * len(between)


def _between(found: Spread | ExPost) -> str:
    most = "" if found.records_per_user is None else f" of {counted(found.records_per_user, 'record')}"
    return f"{found.unit}{most}, {found.relation.replace('_', '/')}"


def _caption(axes: Axes, left: str, right: str) -> None:
    """Write above the axes: how many there are on the left, what stands out on the right."""
    axes.text(0, 1.06, left, transform=axes.transAxes, ha="left", va="bottom")
    axes.text(1, 1.06, right, transform=axes.transAxes, ha="right", va="bottom", color=MARK, weight="bold")


def _whole_numbers(axis: Axis, most: int = 10) -> None:
    """Ticks at whole numbers alone."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=most))


def _gaps(values: tuple[float, ...]) -> list[float]:
    """Values to draw: what is not finite leaves a gap in the line."""
    return [value if math.isfinite(value) else math.nan for value in values]


def _draw_pairs(axes: Axes, found: Pairs, line: str, start: float) -> None:
    """The points on axes of one range from `start`, and the line on which both figures are equal."""
    across, up, sizes = np.array(found.across), np.array(found.up), np.array(26.0)
    end = max(across.max(), up.max())
    room = 0.06 * (end - start) or 0.1 * end or 0.1
    low, high = max(0.0, start - room), end + room
    if len(across) > MOST_POINTS:
        across, up, counts = _by_cell(across, up, (low, high))
        sizes = 4 + 60 * counts / counts.max()
    axes.plot([low, high], [low, high], "--", color=INK, linewidth=1.1, label=line)
    axes.scatter(across, up, s=sizes, color=BAR, alpha=0.8, linewidths=0)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.grid()


def _by_cell(
    across: NDArray[np.float64], up: NDArray[np.float64], span: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The mean of the points in each cell of a grid, and how many they are.

    Points above the line of equal figures are apart from the others: then the means lie on the side of their points.
    """
    parts = []
    for side in (up > across, up <= across):
        grid = [np.linspace(*span, _CELLS + 1)] * 2
        counts, sums_across, sums_up = (
            np.histogram2d(across[side], up[side], bins=grid, weights=weights)[0]
            for weights in (None, across[side], up[side])
        )
        full = counts > 0
        parts.append(np.array([sums_across[full] / counts[full], sums_up[full] / counts[full], counts[full]]))
    means_across, means_up, counts = np.concatenate(parts, axis=1)
    return means_across, means_up, counts


def _endless(found: Pairs) -> str:
    """Which batches have no finite figure, in the few words that a figure has room for; empty where all have one."""
    count = len(found.endless)
    if count == 1:
        return f"batch {found.endless[0][0]} is not bounded"
    return f"{count:,} batches are not bounded" if count else ""


def _curve_in_words(curve: BudgetCurve, labels: Mapping[str, str], digits: int) -> str:
    places = sorted({0, len(curve.tokens) // 2, len(curve.tokens) - 1})
    points = [f"{bound(curve.epsilon[at], digits)} at {counted(curve.tokens[at], 'token')}" for at in places]
    return f"{_budget_label(curve, labels)}, {ACCOUNTANTS[curve.accountant]}: {', '.join(points)}"


def _budget_label(curve: BudgetCurve, labels: Mapping[str, str]) -> str:
    number = "" if curve.batches is None else f"n = {curve.batches:,}"
    delta = f"δ {bound(curve.delta)}" if curve.delta else ""
    beside = ", ".join(filter(None, (number, delta)))
    return labels[curve.run] + (f" ({beside})" if beside else "")


def _draw_budgets(
    figure: FigureBase, kind: Kind, curves: list[BudgetCurve], numbers: Mapping[str, int], labels: Mapping[str, str]
) -> None:
    from matplotlib.lines import Line2D

    axes = figure.add_subplot()
    handles: dict[str, Line2D] = {}
    for curve in curves:
        place, every = numbers[curve.run] - 1, max(1, len(curve.tokens) // 6)
        look = _marks(place)
        # An epsilon holds for every length since the point before.
        axes.plot(
            [0, *curve.tokens],
            _gaps((curve.epsilon[0], *curve.epsilon)),
            drawstyle="steps-pre",
            markevery=(1 + place % every, every),
            **look,
            **_ACCOUNTANT_STYLES[curve.accountant],
        )
        handles[_budget_label(curve, labels)] = Line2D([], [], linestyle="", **look)
        handles[ACCOUNTANTS[curve.accountant]] = Line2D([], [], color=INK, **_ACCOUNTANT_STYLES[curve.accountant])
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("Longest text allowed (tokens)")
    axes.set_ylabel(_BUDGET_AXES[kind])
    _whole_numbers(axes.xaxis)
    axes.grid(axis="y")
    rows = _budget_legend(curves, labels)
    handles[""] = Line2D([], [], linestyle="")
    listed = [row[column] for column in range(len(rows[0])) for row in rows]  # matplotlib fills a legend by columns
    figure.legend([handles[label] for label in listed], listed, loc="outside lower left", ncols=len(rows[0]))


def _budget_legend(curves: Sequence[BudgetCurve], labels: Mapping[str, str]) -> list[list[str]]:
    """The legend's entries in rows: runs, then accountants, in two columns where they are short."""
    runs = list(dict.fromkeys(_budget_label(curve, labels) for curve in curves))
    accountants = list(dict.fromkeys(ACCOUNTANTS[curve.accountant] for curve in curves))
    columns = 1 if max(map(len, runs)) > _MOST_LETTERS else 2
    filled = [[*entries, *[""] * (-len(entries) % columns)] for entries in (runs, accountants)]
    return [entries[at : at + columns] for entries in filled for at in range(0, len(entries), columns)]
