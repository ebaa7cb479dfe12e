"""Drawing with matplotlib: pictures in a page, and files for papers.

A file is on white; a picture in a page is transparent, and dark pages invert it (style.css).
"""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    buffer = io.BytesIO()
    with _drawn(draw, height + below) as figure:
        figure.savefig(
            buffer,
            format=file_format,
            dpi=_DOTS,
            facecolor="white",
            metadata=metadata[file_format],
        )
    return buffer.getvalue()


def in_page(drawing: Drawing | None) -> str | None:
    """Return a drawing as a data URL of an SVG for a page; None without one."""
    if drawing is None:
        return None
    with _drawn(drawing.draw, drawing.height) as figure:
        svg = _transparent_svg(figure)
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


@contextmanager
def _drawn(draw: Callable[[Figure], object], height: float) -> Iterator[Figure]:
    """Yield a figure with our style in force."""
    _hush()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure)
        yield figure


def _transparent_svg(figure: Figure) -> bytes:
    """Return what `figure.savefig` writes, which would draw the figure once more for its layout."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    canvas: Any = FigureCanvasSVG(figure)
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set(facecolor="none", edgecolor="none")
    figure.dpi = 72  # of every SVG
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")
    buffer = io.BytesIO()
    canvas.print_svg(buffer, metadata={"Date": None})
    return buffer.getvalue()


def _hush() -> None:
    """Have matplotlib not tell of a temporary folder where it may not write."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
