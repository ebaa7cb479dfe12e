"""Figures in one style: inline in a report, and as files of their own.

In a page, colours are CSS variables with fallbacks, so that one drawing is legible on a light page, a dark page and on
paper; text stays text in the page's own font. A file has plain colours on white, for LaTeX and many viewers
know no variables. matplotlib is imported inside the functions: it takes longer to load than an audit.
"""

from __future__ import annotations

import io
import logging
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, TypeGuard
from xml.etree import ElementTree

from dpaudit.reports.costs import BatchCosts, batch_costs, curve_described, ex_post_digits, growth_described, thinned
from dpaudit.reports.rounding import bound, saving
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line
from dpaudit.results import AuditResult, ExPost, Spread, TokenBand, TokenCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"

Format = Literal["svg", "png", "pdf"]

INK, BAR, MARK, GRID = "#1c1f23", "#0072b2", "#b34700", "#d5d9de"
#: What a page may draw with instead.
_VARIABLES = {INK: "--figure-ink", BAR: "--figure-bar", MARK: "--figure-mark", GRID: "--figure-grid"}
#: Okabe and Ito's colours, which colour-blind readers can tell apart, but for yellow, which white swallows. With styles
#: and markers whose number shares no factor with theirs, no two runs look the same, in grey either.
_LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)))
_VARIABLES |= {colour: f"--figure-line-{place}" for place, colour in enumerate(_LINES) if colour != BAR}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: The most runs that one figure can tell apart.
MOST_RUNS = len(_LINES) * len(_DASHES)
_FONT = "DejaVu Sans"  # comes with matplotlib
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpaudit",
    "font.family": [_FONT],
    "text.parse_math": False,  # a run may be called $x$
    "pdf.fonttype": 42,  # journals refuse Type 3 fonts
    "font.size": 11,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "legend.frameon": False,
    "legend.fontsize": 10,
}
_PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_FILE_FONT = "'DejaVu Sans', Verdana, Arial, sans-serif"
_WIDTH, _HEIGHT = 4.6, 3.1  # inches
_DOTS = 200  # per inch
_MOST_BINS = 40
_MOST_RUG_TICKS = 100
_BAND_OPACITY = 0.25
_HEADING_HEIGHT = 0.35  # inches
_LINE_HEIGHT = 0.2  # inches, of a legend or of a note
_ROW_WIDTH, _LEGEND_WIDTH = 20, 42  # letters in a line of a run's name, beside its row and in a legend


ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)


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
        _HEIGHT + 2 * _LINE_HEIGHT * alone,
    )


def token_curve(result: AuditResult) -> Drawing | None:
    """Mean cost of a token by position and how it is spread, over a strip with the batches behind each position.

    None where no position has a finite mean.
    """
    curve = result.tokens
    if not _has_means(curve):
        return None
    title = "Cost of a token by its position in the text"
    height = _HEIGHT + 2.5 * _LINE_HEIGHT * (curve.band is not None)
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
    height = _HEIGHT + 0.3 + _LINE_HEIGHT * sum(map(_lines, labels))
    return Drawing("token-curves", title, described, lambda figure: _draw_curves(figure, drawn, labels), height)


def batch_histogram_svg(result: AuditResult) -> str | None:
    """`batch_histogram` for a page."""
    return in_page(batch_histogram(result))


def token_curve_svg(result: AuditResult) -> str | None:
    """`token_curve` for a page."""
    return in_page(token_curve(result))


def growth(result: AuditResult) -> Drawing | None:
    """Ex-post epsilon by length, exact and Theorem 1; None where there is no curve with a finite value."""
    curve = result.tokens
    if curve is None or not any(math.isfinite(value) for value in curve.exact):
        return None
    digits = ex_post_digits(result)
    described = growth_described(result)
    title, curve = "Ex-post epsilon by length of the texts", thinned(curve)
    return Drawing("growth", title, described, lambda figure: _draw_growth(figure, curve, digits))


def growth_svg(result: AuditResult) -> str | None:
    """`growth` for a page."""
    return in_page(growth(result))


def spreads_svg(spreads: Sequence[tuple[str, Spread]], description: str) -> str | None:
    """Per-batch costs of numbered runs as one box each; None where no run has finite ones."""
    drawn = [(number, spread) for number, spread in spreads if math.isfinite(spread.maximum)]
    if not drawn:
        return None
    # Runs go by number: a name is anybody's text, in letters that no font here may have.
    changes = _differences([spread for _, spread in drawn])
    rows = [
        ("\n".join(filter(None, (f"run {number} (n = {spread.batches:,})", change))), spread)
        for (number, spread), change in zip(drawn, changes, strict=True)
    ]
    title, height = "Exact ex-post cost per batch of each run", 1.3 + 0.5 * len(drawn)
    return in_page(
        Drawing("spreads", title, description, lambda figure: _draw_spreads(figure.add_subplot(), rows), height)
    )


def cluster_sizes_svg(methods: Sequence[tuple[str, Sequence[int]]], description: str) -> str | None:
    """Sizes of clusters, descending, in a panel for each method; None where there are no records."""
    drawn = [(title, sizes) for title, sizes in methods if sizes]
    if not drawn:
        return None
    title, height = "Records of each cluster by method", 2.2 * -(-len(drawn) // 2)
    return in_page(Drawing("cluster-sizes", title, description, lambda figure: _draw_sizes(figure, drawn), height))


def line_color(place: int) -> str:
    """The colour of one run among others, by its place among them."""
    return _LINES[place % len(_LINES)]


def line_marker(place: int) -> dict[str, Any]:
    """The marker of one run among others, as matplotlib takes it: for readers who see no colours."""
    return {"marker": _MARKERS[place % len(_MARKERS)], "markersize": 4}


def drawable(text: str, limit: int = LABEL_LENGTH) -> str:
    """Somebody's text in a line, with a mark in place of every letter that the figures' font lacks."""
    from matplotlib.font_manager import findfont, get_font

    font, line = get_font(findfont(_FONT)), one_line(text)
    cut = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return "".join(letter if font.get_char_index(ord(letter)) else "\ufffd" for letter in cut)


def file_of(drawing: Drawing, file_format: Format, heading: str, notes: Sequence[str], warning: str) -> bytes:
    """A figure as a file: on white, without a date, the same bytes every time.

    Args:
        drawing: what to draw.
        file_format: what kind of file.
        heading: whose figure it is, to stand above it.
        notes: what its reader must know, a line each, to stand below it.
        warning: who it is for; it goes into the file's description and is not drawn.
    """
    below = _LINE_HEIGHT * len(notes)
    height = drawing.height + _HEADING_HEIGHT * bool(heading)

    def headed(figure: FigureBase) -> None:
        drawing.draw(figure)
        if heading:
            figure.suptitle(heading, x=0.02, ha="left", fontsize=11)

    def draw(figure: Figure) -> None:
        if not notes:
            headed(figure)
            return
        # A row of their own: a legend outside the axes would cover notes.
        grid = figure.add_gridspec(2, 1, height_ratios=(height, below))
        headed(figure.add_subfigure(grid[0]))
        figure.add_subfigure(grid[1]).text(0.02, 0.55, "\n".join(notes), ha="left", va="center", fontsize=9, color=MARK)

    described = f"{warning} {drawing.description}"
    metadata: dict[str, dict[str, str | None]] = {
        "svg": {"Date": None},
        "png": {"Title": drawing.title, "Description": described},
        "pdf": {"Title": drawing.title, "Subject": described, "CreationDate": None},
    }
    made = _drawn(draw, height + below, file_format, facecolor="white", metadata=metadata[file_format])
    return made if file_format != "svg" else _svg_file(made, drawing, described)


def _draw_sizes(figure: FigureBase, methods: Sequence[tuple[str, Sequence[int]]]) -> None:
    from matplotlib.ticker import MaxNLocator

    for place, (title, sizes) in enumerate(methods, start=1):
        axes = figure.add_subplot(-(-len(methods) // 2), 2, place)
        axes.stairs(sizes, fill=True, color=BAR)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel("Cluster, by size", fontsize=9)
        axes.set_ylabel("Records", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        axes.grid(axis="y")


def _draw_histogram(figure: FigureBase, costs: BatchCosts, alone: bool) -> None:
    from matplotlib.ticker import MaxNLocator

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
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.grid(axis="y")
    axes.margins(y=0.08)
    if not costs.unbounded:
        axes.axvline(costs.maximum, color=MARK, linewidth=1.6, linestyle=(0, (4, 2)), label="largest exact")
        axes.plot([costs.maximum], [1.0], "v", color=MARK, markersize=8, clip_on=False, transform=along_x)
    largest = f"largest exact {bound(costs.maximum, costs.digits)}, batch {costs.costliest[0].id}"
    caption(axes, f"n = {len(costs.values):,}", largest)
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
    caption(axes, f"n = {tokens} of {batches}", left_out)


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
        style: dict[str, Any] = {
            "color": line_color(place),
            "linestyle": _DASHES[place % len(_DASHES)],
            "linewidth": 1.6,
        }
        every = max(1, len(curve.position) // 8)
        marks = {**line_marker(place), "markevery": (place % every, every)}
        lines += axes.plot(curve.position, _gaps(curve.mean), **style, **marks)
        strip.stairs(curve.batches, _edges(curve), baseline=None, **style)
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
    from matplotlib.ticker import MaxNLocator

    grid = figure.add_gridspec(2, 1, height_ratios=(3.4, 1))
    strip = figure.add_subplot(grid[1])
    axes = figure.add_subplot(grid[0], sharex=strip)
    axes.set_ylabel("Mean exact cost (nats)")
    axes.set_ylim(0, 1.08 * max(value for curve in curves for value in curve.mean if math.isfinite(value)) or 1)
    axes.tick_params(labelbottom=False)
    axes.grid(axis="y")
    strip.set_ylabel("Batches")
    strip.set_xlabel("Position of the token in its text")
    strip.xaxis.set_major_locator(MaxNLocator(integer=True))
    strip.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=2))
    figure.align_ylabels([axes, strip])
    return axes, strip


def _edges(curve: TokenCurve) -> list[float]:
    return [curve.position[0] - 0.5, *(position + 0.5 for position in curve.position)]


def _has_means(curve: TokenCurve | None) -> TypeGuard[TokenCurve]:
    return curve is not None and any(math.isfinite(value) for value in curve.mean)


def _draw_growth(figure: FigureBase, curve: TokenCurve, digits: int) -> None:
    from matplotlib.ticker import MaxNLocator

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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    axes.legend(loc="lower right")
    saved = saving(curve.theorem1[-1], curve.exact[-1])
    caption(axes, f"exact {bound(curve.exact[-1], digits)}", f"saving {saved}")


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


def caption(axes: Axes, left: str, right: str) -> None:
    """Write above the axes: how many there are on the left, what stands out on the right."""
    axes.text(0, 1.06, left, transform=axes.transAxes, ha="left", va="bottom")
    axes.text(1, 1.06, right, transform=axes.transAxes, ha="right", va="bottom", color=MARK, weight="bold")


def _gaps(values: tuple[float, ...]) -> list[float]:
    """Values to draw: what is not finite leaves a gap in the line."""
    return [value if math.isfinite(value) else math.nan for value in values]


def _drawn(draw: Callable[[Figure], None], height: float, file_format: Format, **saved: Any) -> bytes:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where it may not write, it tells of a temporary folder
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure)
        figure.savefig(buffer, format=file_format, dpi=_DOTS, **saved)
    return buffer.getvalue()


def in_page(drawing: Drawing | None) -> str | None:
    """A drawing as SVG that is fit to stand in a page: as large as the page has it, in the page's colours and font."""
    if drawing is None:
        return None
    svg = _drawn(drawing.draw, drawing.height, "svg", transparent=True, metadata={"Date": None})
    root = _titled(svg, drawing, drawing.description)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.set("class", "figure")
    _restyle(root, {f"'{_FONT}'": _PAGE_FONT, **{drawn: f"var({name}, {drawn})" for drawn, name in _VARIABLES.items()}})
    root.set("style", f"{root.get('style')}; fill: currentColor")
    return ElementTree.tostring(root, encoding="unicode")


def _svg_file(svg: bytes, drawing: Drawing, description: str) -> bytes:
    """The SVG made fit to stand alone: no variables, and a font for whoever lacks ours."""
    root = _titled(svg, drawing, description)
    _restyle(root, {f"'{_FONT}'": _FILE_FONT})
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _titled(svg: bytes, drawing: Drawing, description: str) -> ElementTree.Element:
    """The SVG with title and description, without metadata or page-wide style, ids of its own."""
    root = ElementTree.fromstring(svg)  # noqa: S314 - drawn a moment ago, by us
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    name = f"figure-{drawing.name}"
    root.attrib.update(
        {
            "id": name,
            "role": "img",
            "aria-labelledby": f"{name}-title {name}-description",
            "style": "stroke-linejoin: round; stroke-linecap: butt",
        }
    )
    _prefix_ids(root, name)
    _insert(root, 0, "title", f"{name}-title", drawing.title)
    _insert(root, 1, "desc", f"{name}-description", description)
    return root


def _restyle(root: ElementTree.Element, replaced: Mapping[str, str]) -> None:
    """Other colours and fonts, in styles alone: a run may be called like a colour."""
    for node in root.iter():
        style = node.get("style")
        if style is not None:
            for drawn, meant in replaced.items():
                style = style.replace(drawn, meant)
            node.set("style", style)


def _prefix_ids(root: ElementTree.Element, name: str) -> None:
    """Keeps only ids that something refers to, under the figure's own prefix: two figures share a page."""
    used = set(re.findall(r"#([\w-]+)", " ".join(value for node in root.iter() for value in node.attrib.values())))
    for node in root.iter():
        for key, value in list(node.attrib.items()):
            if key == "id" and node is not root:
                del node.attrib["id"]
                if value in used:
                    node.set("id", f"{name}-{value}")
            elif key == f"{{{_XLINK}}}href":
                node.set(key, value.replace("#", f"#{name}-"))
            elif "url(#" in value:
                node.set(key, value.replace("url(#", f"url(#{name}-"))


def _insert(root: ElementTree.Element, index: int, tag: str, identifier: str, text: str) -> None:
    node = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": identifier})
    node.text = text
    root.insert(index, node)
