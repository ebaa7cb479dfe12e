"""The report's figures as inline SVG in one style.

Colours are CSS variables with fallbacks, so that one drawing is legible on a light page, a dark page and on paper; text
stays text in the page's own font. matplotlib is imported inside the functions: it takes longer to load than an audit.
"""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from dpaudit.results import AuditResult, Spread, TokenCurve
from reports.costs import BatchCosts, batch_costs, curve_described, ex_post_digits, growth_described
from reports.rounding import bound, saving
from reports.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"

# What matplotlib draws with, and what the page makes of it. The fallbacks hold where the SVG stands alone.
_INK, _BAR, _MARK, _GRID = "#010101", "#020202", "#030303", "#040404"
_ROLES = {
    _INK: "var(--figure-ink, #1c1f23)",
    _BAR: "var(--figure-bar, #0072b2)",
    _MARK: "var(--figure-mark, #b34700)",
    _GRID: "var(--figure-grid, #d5d9de)",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpaudit",
    "font.family": ["DejaVu Sans"],
    "font.size": 11,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _GRID,
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
_WIDTH, _HEIGHT = 4.6, 3.1  # inches
_MOST_BINS = 40
_MOST_RUG_TICKS = 100


ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)


def batch_histogram_svg(result: AuditResult) -> str | None:
    """Histogram of per-batch epsilon with the maximum marked; None where no batch has a finite cost."""
    costs = batch_costs(result)
    if costs is None or not costs.finite:
        return None
    svg = _drawn(lambda figure: _draw_histogram(figure, costs))
    return _inline(svg, "batch-histogram", "Histogram of the cost of each batch", costs.described())


def token_curve_svg(result: AuditResult) -> str | None:
    """Mean cost of a token by position, over a strip with the batches behind each mean; None where there is none."""
    curve = result.tokens
    if curve is None or not any(math.isfinite(value) for value in curve.mean):
        return None
    svg = _drawn(lambda figure: _draw_curve(figure, curve))
    return _inline(svg, "token-curve", "Mean cost of a token by its position in the text", curve_described(curve))


def growth_svg(result: AuditResult) -> str | None:
    """Ex-post epsilon by length, exact and Theorem 1; None where there is no curve with a finite value."""
    curve = result.tokens
    if curve is None or not any(math.isfinite(value) for value in curve.exact):
        return None
    digits = ex_post_digits(result)
    svg = _drawn(lambda figure: _draw_growth(figure, curve, digits))
    return _inline(svg, "growth", "Ex-post epsilon by length of the texts", growth_described(result))


def spreads_svg(spreads: Sequence[tuple[int, Spread]], description: str) -> str | None:
    """Per-batch costs of numbered runs as one box each; None where no run has finite ones."""
    drawn = [(number, spread) for number, spread in spreads if math.isfinite(spread.maximum)]
    if not drawn:
        return None
    svg = _drawn(lambda figure: _draw_spreads(figure, drawn), height=1.3 + 0.5 * len(drawn))
    return _inline(svg, "spreads", "Exact ex-post cost per batch of each run", description)


def cluster_sizes_svg(methods: Sequence[tuple[str, Sequence[int]]], description: str) -> str | None:
    """Sizes of clusters, descending, in a panel for each method; None where there are no records."""
    drawn = [(title, sizes) for title, sizes in methods if sizes]
    if not drawn:
        return None
    svg = _drawn(lambda figure: _draw_sizes(figure, drawn), height=2.2 * -(-len(drawn) // 2))
    return _inline(svg, "cluster-sizes", "Records of each cluster by method", description)


def _draw_sizes(figure: Figure, methods: Sequence[tuple[str, Sequence[int]]]) -> None:
    from matplotlib.ticker import MaxNLocator

    for place, (title, sizes) in enumerate(methods, start=1):
        axes = figure.add_subplot(-(-len(methods) // 2), 2, place)
        axes.stairs(sizes, fill=True, color=_BAR)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel("Cluster, by size", fontsize=9)
        axes.set_ylabel("Records", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        axes.grid(axis="y")


def _draw_histogram(figure: Figure, costs: BatchCosts) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = figure.add_subplot()
    along_x = axes.get_xaxis_transform()  # x in nats, y as a fraction of the height
    values = costs.finite
    everything = values + costs.theorem1
    bins = min(_MOST_BINS, max(5, math.ceil(2 * math.sqrt(len(values)))))
    span = (min(everything), max(everything))
    axes.hist(values, bins=bins, range=span, color=_BAR, rwidth=0.9)
    axes.hist(costs.theorem1, bins=bins, range=span, color=_INK, histtype="step", linewidth=1.1)
    if len(values) <= _MOST_RUG_TICKS:
        axes.vlines(values, -0.03, 0.0, colors=_INK, linewidth=0.8, clip_on=False, transform=along_x)
        axes.tick_params(axis="x", length=0, pad=9)
    axes.set_xlabel("Ex-post epsilon of a batch (nats)")
    axes.set_ylabel("Batches")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.grid(axis="y")
    axes.margins(y=0.08)
    if not costs.unbounded:
        axes.axvline(costs.maximum, color=_MARK, linewidth=1.6, linestyle=(0, (4, 2)))
        axes.plot([costs.maximum], [1.0], "v", color=_MARK, markersize=8, clip_on=False, transform=along_x)
    largest = f"largest exact {bound(costs.maximum, costs.digits)}, batch {costs.costliest[0].id}"
    _caption(axes, f"n = {len(costs.values):,}", largest)


def _draw_curve(figure: Figure, curve: TokenCurve) -> None:
    from matplotlib.ticker import MaxNLocator

    grid = figure.add_gridspec(2, 1, height_ratios=(3.4, 1))
    strip = figure.add_subplot(grid[1])
    axes = figure.add_subplot(grid[0], sharex=strip)
    marker = "o" if len(curve.position) == 1 else ""
    axes.plot(curve.position, _gaps(curve.mean), color=_BAR, linewidth=1.8, marker=marker)
    axes.set_ylabel("Mean exact cost (nats)")
    axes.set_ylim(0, 1.08 * max(value for value in curve.mean if math.isfinite(value)) or 1)
    axes.tick_params(labelbottom=False)
    axes.grid(axis="y")
    edges = [curve.position[0] - 0.5, *(position + 0.5 for position in curve.position)]
    strip.stairs(curve.batches, edges, fill=True, color=_GRID)
    strip.set_ylim(bottom=0)
    strip.set_ylabel("Batches")
    strip.set_xlabel("Position of the token in its text")
    strip.xaxis.set_major_locator(MaxNLocator(integer=True))
    strip.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=2))
    figure.align_ylabels([axes, strip])
    tokens, batches = counted(sum(curve.batches), "token"), counted(max(curve.batches), "batch", "batches")
    _caption(axes, f"n = {tokens} of {batches}", "")


def _draw_growth(figure: Figure, curve: TokenCurve, digits: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = figure.add_subplot()
    marker = "o" if len(curve.position) == 1 else ""
    theorem1, exact = _gaps(curve.theorem1), _gaps(curve.exact)
    axes.plot(curve.position, theorem1, "--", color=_INK, linewidth=1.3, marker=marker, label="Theorem 1")
    axes.plot(curve.position, exact, color=_BAR, linewidth=1.8, marker=marker, label="exact")
    axes.set_ylim(0, 1.08 * max(value for value in (*theorem1, *exact) if math.isfinite(value)) or 1)
    axes.set_xlabel("Longest text allowed (tokens)")
    axes.set_ylabel("Ex-post epsilon (nats)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    axes.legend(loc="lower right")
    saved = saving(curve.theorem1[-1], curve.exact[-1])
    _caption(axes, f"exact {bound(curve.exact[-1], digits)}", f"saving {saved}")


def _draw_spreads(figure: Figure, spreads: Sequence[tuple[int, Spread]]) -> None:
    axes = figure.add_subplot()
    for row, (_, spread) in enumerate(spreads):
        box = spread.upper_quartile - spread.lower_quartile
        axes.hlines(row, spread.minimum, spread.maximum, colors=_INK, linewidth=1.2)
        axes.barh(row, box, left=spread.lower_quartile, height=0.5, color=_BAR, edgecolor=_BAR)
        axes.vlines([spread.minimum, spread.maximum], row - 0.15, row + 0.15, colors=_INK, linewidth=1.2)
        axes.vlines(spread.median, row - 0.25, row + 0.25, colors=_MARK, linewidth=2.5)
    # Runs go by number: a name is anybody's text, in letters that no font here may have.
    named = [f"run {number} (n = {spread.batches:,})" for number, spread in spreads]
    between = [_between(spread) for _, spread in spreads]
    if len(set(between)) > 1:
        named = [f"{name}\n{change}" for name, change in zip(named, between, strict=True)]
    axes.set_yticks(range(len(spreads)), named)
    axes.invert_yaxis()
    axes.set_xlabel("Exact ex-post cost of a batch (nats)")
    axes.grid(axis="x")


def _between(spread: Spread) -> str:
    most = "" if spread.records_per_user is None else f" of {counted(spread.records_per_user, 'record')}"
    return f"{spread.unit}{most}, {spread.relation.replace('_', '/')}"


def _caption(axes: Axes, left: str, right: str) -> None:
    axes.text(0, 1.06, left, transform=axes.transAxes, ha="left", va="bottom")
    axes.text(1, 1.06, right, transform=axes.transAxes, ha="right", va="bottom", color=_MARK, weight="bold")


def _gaps(values: tuple[float, ...]) -> list[float]:
    """Values to draw: what is not finite leaves a gap in the line."""
    return [value if math.isfinite(value) else math.nan for value in values]


def _drawn(draw: Callable[[Figure], None], height: float = _HEIGHT) -> str:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where it may not write, it tells of a temporary folder
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure)
        FigureCanvasSVG(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


def _inline(svg: str, name: str, title: str, description: str) -> str:
    """The drawn SVG made fit to stand in a page: titled, without metadata or page-wide style, ids of its own."""
    root = ElementTree.fromstring(svg)  # noqa: S314 - drawn a moment ago, by us
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.attrib.update(
        {
            "id": f"figure-{name}",
            "class": "figure",
            "role": "img",
            "aria-labelledby": f"figure-{name}-title figure-{name}-description",
            "style": "stroke-linejoin: round; stroke-linecap: butt; fill: currentColor",
        }
    )
    _prefix_ids(root, f"figure-{name}")
    _insert(root, 0, "title", f"figure-{name}-title", title)
    _insert(root, 1, "desc", f"figure-{name}-description", description)
    text = ElementTree.tostring(root, encoding="unicode")
    for drawn, role in _ROLES.items():
        text = text.replace(drawn, role)
    return re.sub(r"font-family: [^;\"]*sans-serif", f"font-family: {_PAGE_FONT}", text)


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
