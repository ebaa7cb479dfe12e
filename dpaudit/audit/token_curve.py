"""Costs of tokens by their position in the text, gathered a batch at a time in memory that no run can make grow.

Means and maxima are kept for every position up to the public maximum length. For quantiles each position has a
histogram of costs; once there are more than MOST_GROUPS positions, neighbours share one. Histograms hold counts, so
they add up exactly, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpaudit.accounting import Cost
from dpaudit.results import TokenBand, TokenCurve

#: The most groups of positions that have a histogram of their own.
MOST_GROUPS = 512
#: A bin reaches over a sixteenth of a factor of 2, about 4%: what a quantile can be rounded by.
_BINS_PER_DOUBLING = 16
#: Costs beyond these, in nats, share a bin each: quantiles there are the least or the largest cost of the group.
_LEAST, _MOST = -30, 12  # powers of 2
_EDGES = np.exp2(np.arange(_LEAST * _BINS_PER_DOUBLING, _MOST * _BINS_PER_DOUBLING + 1) / _BINS_PER_DOUBLING)
#: The share of costs below the band, and of those above it.
_OUTSIDE = 0.1


class CurveSums:
    """Step costs at each token position, and a histogram of them for each group of positions."""

    def __init__(self, positions: int) -> None:
        """Start with nothing; `positions` is the public maximum length, in tokens."""
        self.positions = positions
        self._total = np.zeros(positions)
        self._maximum = np.zeros(positions)
        self._count = np.zeros(positions, dtype=np.int64)
        self._unbounded = 0
        self._width = 1  # of a group; it doubles when a longer text comes
        self._histograms = np.zeros((MOST_GROUPS, len(_EDGES) + 1), dtype=np.int64)
        self._least = np.full(MOST_GROUPS, np.inf)
        self._largest = np.full(MOST_GROUPS, -np.inf)

    def take(self, costs: Sequence[float]) -> None:
        """Take in the exact cost of each of a batch's tokens, in nats; NaN where the record bounds nothing."""
        values = np.asarray(costs, dtype=np.float64)
        at = np.flatnonzero(~np.isnan(values))
        known = values[at]
        self._total[at] += known
        self._maximum[at] = np.maximum(self._maximum[at], known)
        self._count[at] += 1
        self._unbounded += len(values) - len(at)
        while len(at) and at[-1] >= MOST_GROUPS * self._width:
            self._widen()
        groups = at // self._width
        np.add.at(self._histograms, (groups, np.searchsorted(_EDGES, known, side="right")), 1)
        np.minimum.at(self._least, groups, known)
        np.maximum.at(self._largest, groups, known)

    def result(self, by_tokens: Sequence[Cost]) -> TokenCurve | None:
        """The curve; `by_tokens` has the run's cost after 0, 1, 2, ... tokens of every batch.

        None where no step has a cost: a position whose steps give no bound has none to show.
        """
        reached = [int(position) for position in np.flatnonzero(self._count)]
        if not reached:
            return None
        return TokenCurve(
            position=tuple(position + 1 for position in reached),
            batches=tuple(int(count) for count in self._count[reached]),
            mean=tuple(float(self._total[p] / self._count[p]) for p in reached),
            maximum=tuple(float(self._maximum[p]) for p in reached),
            theorem1=tuple(by_tokens[p + 1].theorem1 for p in reached),
            exact=tuple(by_tokens[p + 1].exact for p in reached),
            band=self._band(),
            unbounded=self._unbounded,
        )

    def _band(self) -> TokenBand:
        """The quantiles of each group that has a cost; none reaches beyond the public maximum length."""
        tokens = self._histograms.sum(axis=1)
        groups = [int(group) for group in np.flatnonzero(tokens)]
        low, median, high = zip(*map(self._quantiles, groups), strict=True)
        return TokenBand(
            first=tuple(group * self._width + 1 for group in groups),
            last=tuple(min((group + 1) * self._width, self.positions) for group in groups),
            tokens=tuple(int(tokens[group]) for group in groups),
            low=low,
            median=median,
            high=high,
        )

    def _quantiles(self, group: int) -> tuple[float, float, float]:
        """Lower quantile, median and upper quantile of one group, rounded outward and within its range."""
        known = np.cumsum(self._histograms[group])
        total, edges = int(known[-1]), np.concatenate(([0.0], _EDGES, [np.inf]))
        ranks = (int(_OUTSIDE * (total - 1)), total // 2, total - 1 - int(_OUTSIDE * (total - 1)))
        # A cost of rank r, from 0, lies in the first bin that more than r costs lie in or below.
        bins = np.searchsorted(known, ranks, side="right")
        least, largest = float(self._least[group]), float(self._largest[group])
        low, median, high = max(float(edges[bins[0]]), least), float(edges[bins[1] + 1]), float(edges[bins[2] + 1])
        return low, min(median, largest), min(high, largest)

    def _widen(self) -> None:
        """Let each two neighbouring groups be one."""
        half = MOST_GROUPS // 2
        for kept, join, nothing in (
            (self._histograms, np.add, 0),
            (self._least, np.minimum, np.inf),
            (self._largest, np.maximum, -np.inf),
        ):
            kept[:half], kept[half:] = join(kept[::2], kept[1::2]), nothing
        self._width *= 2
