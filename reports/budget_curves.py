"""Epsilon of runs by the number of tokens that a batch may have: one panel for each kind of epsilon."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpaudit.reports.figures import INK, Drawing, line_color, line_marker
from dpaudit.reports.outline import neighbours_of
from dpaudit.reports.rounding import bound
from dpaudit.reports.text import counted
from dpaudit.results import BudgetCurve, BudgetPanel, Kind

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

ACCOUNTANTS = {"exact": "exact", "theorem1": "Theorem 1", "rdp": "Rényi DP", "optimal": "optimal"}
CAPTION = (
    "A step for each length that was worked out: epsilon of everything, had no batch more tokens; ex-post, the maximum "
    "over n batches. A colour and a marker for each run, a dash for each accountant."
)
_AXES: dict[Kind, str] = {"ex-post": "Ex-post epsilon (nats)", "approximate": "Approximate DP epsilon (nats)"}
_TIGHT: dict[str, Any] = {"linestyle": "-", "linewidth": 1.8}
_LOOSE: dict[str, Any] = {"linestyle": (0, (5, 2)), "linewidth": 1.2}
_STYLES = {"exact": _TIGHT, "theorem1": _LOOSE, "rdp": _LOOSE, "optimal": _TIGHT}
_MOST_LETTERS = 22  # of a label in a legend of two columns
_HEIGHT, _LINE_HEIGHT = 3.0, 0.2  # inches: the axes, and a line of the legend


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
    described = "; ".join(_described(curve, labels, digits[curve.run, curve.kind]) for curve in drawn)
    return Drawing(
        name,
        f"{_AXES[panel.kind]} by length of the texts, for {neighbours_of(panel)}",
        f"{described}.",
        lambda figure: _draw(figure, panel.kind, drawn, numbers, labels),
        _HEIGHT + _LINE_HEIGHT * len(_legend(drawn, labels)),
    )


def _described(curve: BudgetCurve, labels: Mapping[str, str], digits: int) -> str:
    places = sorted({0, len(curve.tokens) // 2, len(curve.tokens) - 1})
    points = [f"{bound(curve.epsilon[at], digits)} at {counted(curve.tokens[at], 'token')}" for at in places]
    return f"{_label(curve, labels)}, {ACCOUNTANTS[curve.accountant]}: {', '.join(points)}"


def _label(curve: BudgetCurve, labels: Mapping[str, str]) -> str:
    number = "" if curve.batches is None else f"n = {curve.batches:,}"
    delta = f"δ {bound(curve.delta)}" if curve.delta else ""
    beside = ", ".join(filter(None, (number, delta)))
    return labels[curve.run] + (f" ({beside})" if beside else "")


def _draw(
    figure: FigureBase, kind: Kind, curves: list[BudgetCurve], numbers: Mapping[str, int], labels: Mapping[str, str]
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    axes = figure.add_subplot()
    handles: dict[str, Line2D] = {}
    for curve in curves:
        place, every = numbers[curve.run] - 1, max(1, len(curve.tokens) // 6)
        look = {"color": line_color(place), **line_marker(place)}
        # An epsilon holds for every length since the point before.
        axes.plot(
            [0, *curve.tokens],
            [value if math.isfinite(value) else math.nan for value in (curve.epsilon[0], *curve.epsilon)],
            drawstyle="steps-pre",
            markevery=(1 + place % every, every),
            **look,
            **_STYLES[curve.accountant],
        )
        handles[_label(curve, labels)] = Line2D([], [], linestyle="", **look)
        handles[ACCOUNTANTS[curve.accountant]] = Line2D([], [], color=INK, **_STYLES[curve.accountant])
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("Longest text allowed (tokens)")
    axes.set_ylabel(_AXES[kind])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    rows = _legend(curves, labels)
    handles[""] = Line2D([], [], linestyle="")
    listed = [row[column] for column in range(len(rows[0])) for row in rows]  # matplotlib fills a legend by columns
    figure.legend([handles[label] for label in listed], listed, loc="outside lower left", ncols=len(rows[0]))


def _legend(curves: Sequence[BudgetCurve], labels: Mapping[str, str]) -> list[list[str]]:
    """The legend's entries in rows: runs, then accountants, in two columns where they are short."""
    runs = list(dict.fromkeys(_label(curve, labels) for curve in curves))
    accountants = list(dict.fromkeys(ACCOUNTANTS[curve.accountant] for curve in curves))
    columns = 1 if max(map(len, runs)) > _MOST_LETTERS else 2
    filled = [[*entries, *[""] * (-len(entries) % columns)] for entries in (runs, accountants)]
    return [entries[at : at + columns] for entries in filled for at in range(0, len(entries), columns)]
