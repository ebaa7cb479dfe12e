"""Drawing with matplotlib: inline in a page, and as files for papers.

In a page, colours are CSS variables with fallbacks, legible on light pages, dark ones and paper,
and text is in the page's own font. A file has plain colours on white, for LaTeX and many viewers
know no variables.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from dpaudit.reports.figures import BAR, GRID, INK, LINE_HEIGHT, LINES, MARK, Drawing, Format
from dpaudit.reports.text import LABEL_LENGTH, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
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
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
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
_WIDTH, _HEADING_HEIGHT = 4.6, 0.35  # inches
_DOTS = 200  # per inch
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)

#: What a page may draw with instead.
_VARIABLES = {
    INK: "--figure-ink",
    BAR: "--figure-bar",
    MARK: "--figure-mark",
    GRID: "--figure-grid",
}
_VARIABLES |= {
    colour: f"--figure-line-{place}" for place, colour in enumerate(LINES) if colour != BAR
}


def drawable(text: str, limit: int = LABEL_LENGTH) -> str:
    """Return somebody's text in a line, with marks for letters that the figures' font lacks."""
    from matplotlib.font_manager import findfont, get_font

    font, line = get_font(findfont(_FONT)), one_line(text)
    cut = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return "".join(letter if font.get_char_index(ord(letter)) else "\ufffd" for letter in cut)


def file_of(drawing: Drawing, file_format: Format, heading: str, notes: Sequence[str]) -> bytes:
    """Return a figure as a file, the same bytes every time, below `heading` and above `notes`."""
    below = LINE_HEIGHT * len(notes)
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
        figure.add_subfigure(grid[1]).text(
            0.02, 0.55, "\n".join(notes), ha="left", va="center", fontsize=9, color=MARK
        )

    described = f"Internal: computed from private data. {drawing.description}"
    metadata: dict[str, dict[str, str | None]] = {
        "svg": {"Date": None},
        "png": {"Title": drawing.title, "Description": described},
        "pdf": {"Title": drawing.title, "Subject": described, "CreationDate": None},
    }
    made = _drawn(
        draw, height + below, file_format, facecolor="white", metadata=metadata[file_format]
    )
    if file_format != "svg":
        return made
    # Fit to stand alone: no variables, and a font for whoever lacks ours.
    root = _titled(made, drawing, described)
    _restyle(root, {f"'{_FONT}'": "'DejaVu Sans', Verdana, Arial, sans-serif"})
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _drawn(
    draw: Callable[[Figure], object], height: float, file_format: Format, **saved: Any
) -> bytes:
    # where it may not write, it tells of a temporary folder
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure)
        figure.savefig(buffer, format=file_format, dpi=_DOTS, **saved)
    return buffer.getvalue()


def in_page(drawing: Drawing | None) -> Markup | None:
    """Return a drawing as SVG for a page, in the page's size, colours and font."""
    if drawing is None:
        return None
    svg = _drawn(drawing.draw, drawing.height, "svg", transparent=True, metadata={"Date": None})
    root = _titled(svg, drawing, drawing.description)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.set("class", "figure")
    _restyle(
        root,
        {
            f"'{_FONT}'": _PAGE_FONT,
            **{drawn: f"var({name}, {drawn})" for drawn, name in _VARIABLES.items()},
        },
    )
    root.set("style", f"{root.get('style')}; fill: currentColor")
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704 - our own drawing, escaped here


def _titled(svg: bytes, drawing: Drawing, description: str) -> ElementTree.Element:
    """Return the SVG with title, description and ids, and without metadata or page-wide style."""
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
    for place, (tag, part, text) in enumerate(
        (("title", "title", drawing.title), ("desc", "description", description))
    ):
        node = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{name}-{part}"})
        node.text = text
        root.insert(place, node)
    return root


def _restyle(root: ElementTree.Element, replaced: Mapping[str, str]) -> None:
    """Put other colours and fonts into styles alone: a run may be called like a colour."""
    for node in root.iter():
        style = node.get("style")
        if style is not None:
            for drawn, meant in replaced.items():
                style = style.replace(drawn, meant)
            node.set("style", style)


def _prefix_ids(root: ElementTree.Element, name: str) -> None:
    """Keep only ids that something refers to, under the figure's prefix: figures share a page."""
    used = set(
        re.findall(
            r"#([\w-]+)", " ".join(value for node in root.iter() for value in node.attrib.values())
        )
    )
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
