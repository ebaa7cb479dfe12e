"""Drawing with matplotlib: pictures in a page, and files for papers.

A file is on white; a picture in a page is transparent, and dark pages invert it (style.css).
"""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dpaudit.reports.figures import GRID, INK, LINE_HEIGHT, MARK, Drawing, Format
from dpaudit.reports.text import LABEL_LENGTH, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure, FigureBase

_FONT = "DejaVu Sans"  # comes with matplotlib
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpaudit",
    "font.family": [_FONT, "sans-serif"],
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
_WIDTH, _HEADING_HEIGHT = 4.6, 0.35  # inches
_DOTS = 200  # per inch


def spare_documentation() -> None:
    """Have matplotlib write no texts on its classes' properties, which are half of its import.

    For programs that end with their figures: a notebook's user may want to read these texts.
    """
    _hush()
    from matplotlib import artist

    # Each class of artists calls it when it is made; `Artist.set` works without.
    artist.Artist._update_set_signature_and_docstring = classmethod(lambda _: None)  # type: ignore[attr-defined]
    artist.kwdoc = lambda artist: ""


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
        "svg": {"Title": drawing.title, "Description": described, "Date": None},
        "png": {"Title": drawing.title, "Description": described},
        "pdf": {"Title": drawing.title, "Subject": described, "CreationDate": None},
    }
    return _drawn(
        draw, height + below, file_format, facecolor="white", metadata=metadata[file_format]
    )


def in_page(drawing: Drawing | None) -> str | None:
    """Return a drawing as a data URL of an SVG for a page; None without one."""
    if drawing is None:
        return None
    svg = _drawn(drawing.draw, drawing.height, "svg", transparent=True, metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _drawn(
    draw: Callable[[Figure], object], height: float, file_format: Format, **saved: Any
) -> bytes:
    _hush()
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure)
        if file_format == "svg":
            _lay_out(figure)
        figure.savefig(buffer, format=file_format, dpi=_DOTS, **saved)
    return buffer.getvalue()


def _lay_out(figure: Figure) -> None:
    """Put a figure's parts in their places for an SVG, as saving would after drawing it twice."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    figure.dpi = 72  # of every SVG
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")


def _hush() -> None:
    """Have matplotlib not tell of a temporary folder where it may not write."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
