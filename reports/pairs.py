"""Batches as points: rise against fall, and the largest loss of a left-out context against its batch's bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpaudit.reports.costs import ex_post_digits
from dpaudit.reports.figures import BAR, INK, MARK, Drawing, caption, in_page
from dpaudit.reports.rounding import bound, nearest
from dpaudit.reports.text import counted
from dpaudit.results import AuditResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

#: More batches than these are drawn as one mark for each cell of a grid.
MOST_POINTS = 400
_FEWEST_POINTS = 2
_CELLS = 40
POINTS = f"Each point is a batch, or up from {MOST_POINTS:,} of them all batches in a cell of a grid."
_HEIGHT = 3.6  # inches


@dataclass(frozen=True)
class Pairs:
    """Two finite figures of each batch, in nats.

    Attributes:
        across, up: the figures; as long as `batches`.
        batches: ids.
        endless: the two of each batch that has both, where one is not finite.
        endless_batches: ids of these.
        lacking: batches that lack one of the two.
    """

    across: tuple[float, ...]
    up: tuple[float, ...]
    batches: tuple[int, ...]
    endless: tuple[tuple[float, float], ...]
    endless_batches: tuple[int, ...]
    lacking: int

    @property
    def above(self) -> int:
        """How many of the finite batches have the larger figure upwards."""
        return sum(y > x for x, y in zip(self.across, self.up, strict=True))

    @property
    def beyond(self) -> int:
        """How many of all batches have an upward figure that the other does not bound."""
        return self.above + sum(not y <= x for x, y in self.endless)

    def largest_share(self) -> tuple[float, int]:
        """Where the upward figure is the largest share of the other: that share, and which batch."""
        shares = [y / x if x else (math.inf if y else 0.0) for x, y in zip(self.across, self.up, strict=True)]
        worst = max(range(len(shares)), key=shares.__getitem__)
        return shares[worst], self.batches[worst]


def directions(result: AuditResult) -> Pairs | None:
    """Rise across and fall upwards; None where no batch has both."""
    return _pairs([(batch.id, batch.rise, batch.fall) for batch in result.batches])


def losses(result: AuditResult) -> Pairs | None:
    """A batch's exact bound across, and the largest absolute loss of its contexts upwards; None where none has both."""
    return _pairs([(batch.id, batch.exact, batch.leave_one_out_max) for batch in result.batches])


def directions_described(result: AuditResult) -> str:
    """Rise and fall over the batches, in words; empty where there are none."""
    found, digits = directions(result), ex_post_digits(result)
    if found is None:
        return ""
    count = len(found.batches)
    if not count:
        return f"No batch has a rise and a fall that are finite.{_left_out(found)}"
    rise, fall = (bound(max(values), digits) for values in (found.across, found.up))
    finite = "finite " if found.endless else ""
    falls, ties = found.above, sum(x == y for x, y in zip(found.across, found.up, strict=True))
    equal = f", both are equal in {ties:,}" if ties else ""
    return (
        f"Of {counted(count, 'batch', 'batches')}, the rise is larger in {count - falls - ties:,} and the fall in "
        f"{falls:,}{equal}. Largest {finite}rise {rise} nats, largest {finite}fall {fall} nats.{_left_out(found)}"
    )


def losses_described(result: AuditResult) -> str:
    """How close losses come to the bounds, in words; empty where there are none."""
    found = losses(result)
    if found is None:
        return ""
    contexts = counted(result.guarantees.empirical.contexts, "context")
    beyond = (
        f"{counted(found.beyond, 'batch has', 'batches have')} a loss beyond the bound, which no sound bound allows."
    )
    count = len(found.batches) + len(found.endless)
    said = [f"Losses of {contexts} left out one at a time, in {counted(count, 'batch', 'batches')}."]
    said.append(beyond if found.beyond else "No loss is beyond the bound of its batch.")
    if found.batches:
        share, batch = found.largest_share()
        finite = "finite " if found.endless else ""
        said.append(f"The largest share of its {finite}bound is reached in batch {batch}: {_percent(share)}.")
    return " ".join(said) + _left_out(found)


def directions_drawing(result: AuditResult) -> Drawing | None:
    """Rise against fall; None where there are no two batches to compare."""
    found = directions(result)
    if found is None or len(found.batches) < _FEWEST_POINTS:
        return None

    def draw(figure: FigureBase) -> None:
        axes = figure.add_subplot()
        _draw(axes, found, "rise = fall", min(*found.across, *found.up))
        axes.set_xlabel("Rise of a batch (nats)")
        axes.set_ylabel("Fall of a batch (nats)")
        exact = [max(pair) for pair in zip(found.across, found.up, strict=True)]
        worst = max(range(len(exact)), key=exact.__getitem__)
        largest = bound(exact[worst], ex_post_digits(result))
        label, right = "largest exact", f"largest exact {largest}, batch {found.batches[worst]}"
        if found.endless:
            label, right = f"largest finite: {largest}", _endless(found)
        axes.plot(found.across[worst], found.up[worst], "v", color=MARK, markersize=8, label=label)
        axes.legend(loc="upper left")
        caption(axes, _number(found), right)

    title = "Rise and fall of each batch"
    return Drawing("directions", title, directions_described(result), draw, _HEIGHT)


def losses_drawing(result: AuditResult) -> Drawing | None:
    """Losses of left-out contexts against bounds; None where there are no two batches to compare."""
    found = losses(result)
    if found is None or len(found.batches) < _FEWEST_POINTS:
        return None

    def draw(figure: FigureBase) -> None:
        axes = figure.add_subplot()
        _draw(axes, found, "the bound", 0.0)
        axes.set_xlabel("Exact ex-post bound of a batch (nats)")
        axes.set_ylabel("Largest loss in the batch (nats)")
        axes.legend(loc="upper left")
        share, _ = found.largest_share()
        right = _endless(found) or f"up to {_percent(share)} of the bound"
        if found.beyond:
            right = f"{counted(found.beyond, 'batch', 'batches')} beyond the bound"
        caption(axes, _number(found), right)

    title = "Largest loss of a left-out context against the bound of its batch"
    return Drawing("losses", title, losses_described(result), draw, _HEIGHT)


def directions_svg(result: AuditResult) -> str | None:
    """`directions_drawing` for a page."""
    return in_page(directions_drawing(result))


def losses_svg(result: AuditResult) -> str | None:
    """`losses_drawing` for a page."""
    return in_page(losses_drawing(result))


def mark_meaning(found: Pairs) -> str:
    """What a point of the figure is."""
    if len(found.batches) <= MOST_POINTS:
        return "Each point is a batch."
    return "Each point stands for all batches in its cell of a grid: the larger, the more."


def _pairs(rows: list[tuple[int, float | None, float | None]]) -> Pairs | None:
    both = [(batch, x, y) for batch, x, y in rows if x is not None and y is not None]
    if not both:
        return None
    kept = [(batch, x, y) for batch, x, y in both if math.isfinite(x) and math.isfinite(y)]
    rest = [(batch, x, y) for batch, x, y in both if not (math.isfinite(x) and math.isfinite(y))]
    return Pairs(
        across=tuple(x for _, x, _ in kept),
        up=tuple(y for _, _, y in kept),
        batches=tuple(batch for batch, _, _ in kept),
        endless=tuple((x, y) for _, x, y in rest),
        endless_batches=tuple(batch for batch, _, _ in rest),
        lacking=len(rows) - len(both),
    )


def _draw(axes: Axes, found: Pairs, line: str, start: float) -> None:
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
    count = len(found.endless_batches)
    if count == 1:
        return f"batch {found.endless_batches[0]} is not bounded"
    return f"{count:,} batches are not bounded" if count else ""


def _number(found: Pairs) -> str:
    return f"n = {len(found.batches):,}"


def _percent(share: float) -> str:
    return f"{nearest(100 * share, 3)}%" if math.isfinite(share) else "infinite"


def _left_out(found: Pairs) -> str:
    said = ""
    if found.endless:
        one = len(found.endless) == 1
        these = f"Batch {found.endless_batches[0]}" if one else f"{len(found.endless):,} batches"
        said = f" {these} without a finite figure {'is' if one else 'are'} left out."
    lacking = f" {counted(found.lacking, 'batch', 'batches')} without both figures left out."
    return said + lacking if found.lacking else said
