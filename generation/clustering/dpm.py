"""DPM: cells of the data, split again and again where they are empty (arXiv 2307.02969).

The paper is by Liebenow et al. (2024).

The cell of all records is split along an axis at a place that the exponential mechanism chooses:
near the median of the cell, where there is little (`split_scores`). Both halves' noisy counts tell
whether the split stands; if it does, they are split in turn. Noisy sums over noisy counts of the
final cells are the centres. What the paper's implementation takes from the data or assumes is
public here: records are clipped to a radius, places lie on a grid between the bounds of the public
embeddings, and when to stop follows from noisy counts and the depth alone.

Why it is private. A level's cells are disjoint, and what is released of a cell is

- its noisy count: Laplace noise, sensitivity 1;
- its split: the exponential mechanism on scores, each of which a record that comes, goes or is
  exchanged moves by at most `score_sensitivity`;
- if it is final, its noisy sum: gaussian noise, L2 sensitivity the radius, or twice that for an
  exchanged record.

All else, bounds and projection among it, is public or follows from what was released before. How
much one record can move in total, and what that costs, is derived in `dpaudit.accounting.centers`.

Arithmetic. Clipped and projected records lie on a grid on which sums are exact (`grid`), so no
record's coordinates depend on which others are there. Rounding gaussian noise to the same grid
discards the last bits of its doubles: what is released is the exact sum plus a whole number drawn
without a look at it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.centers import DpmScales, growth
from dpaudit.generation.clustering.grid import RADIUS, Projection, on_grid
from dpaudit.generation.clustering.interfaces import NoisedMethod, Settings, Vectors
from dpaudit.generation.clustering.noise import Noise
from dpaudit.mechanisms import Relation

#: Centreness of a split that leaves the share `OUTER` of a cell on one side; from there to the
#: median it rises to 1.
OUTER_CENTRENESS, OUTER = 0.3, 1 / 12
#: Relative room for rounding of scores of up to 10^8 records, and how closely noise is calibrated.
ROOM = 1e-6
#: Vectors that are worked off at once.
BLOCK = 1 << 14
#: Their halves are numbered by 16 bits.
MOST_INTERVALS = (1 << 15) - 1


@dataclass(frozen=True)
class Dpm(NoisedMethod[DpmScales]):
    """Cluster centres by DPM, with (epsilon, delta)-differentially private splits and centres.

    The number of clusters is not given but found: at most 2^depth. Splits are along the axes of the
    embeddings, or of a random projection that does not depend on the data; sums, hence centres, are
    in the embeddings' space, and each of their d coordinates has noise of the same standard
    deviation.

    Attributes:
        epsilon, relation: see `NoisedMethod`.
        delta: of the noise on sums, and for the composition of everything.
        radius: longer vectors are cut to this norm. Public, never looked up in private data; 1 fits
            normalised ones.
        depth: how often a cell can have been split, up to MOST_DEPTH.
        intervals: places per axis where a split may be, the centres of equal intervals; an
            interval's count is what its emptiness is judged by, so it should be about as wide as a
            gap between clusters.
        projection: dimension of the random projection; None for none, as for a dimension that is no
            less.
        count_share: share of epsilon for counts. Each level has the square root of 2 times its
            parent's, as in the paper; so have the splits.
        split_share: share of epsilon for splits. The rest is for sums. All three are relative:
            epsilon is that of their joint composition.
        centreness: weight of a split's nearness to the median.
        emptiness: weight of an interval's emptiness. Much larger than `centreness`: where a cell
            has no gap, an empty margin wins, one side of the split is next to empty, and the cell
            stays whole.

    Raises:
        ValueError: a field is out of its range, or no noise is right for epsilon.
    """

    epsilon: float
    delta: float
    relation: Relation = "add_remove"
    radius: float = 1.0
    depth: int = 7
    intervals: int = 20
    projection: int | None = None
    count_share: float = 0.2
    split_share: float = 0.2
    centreness: float = 1.0
    emptiness: float = 5.0
    name: ClassVar[str] = "dpm"

    def __post_init__(self) -> None:
        if self.count_share + self.split_share >= 1:
            raise ValueError(
                "count_share + split_share must be below 1, not "
                f"{self.count_share + self.split_share}"
            )
        if self.intervals > MOST_INTERVALS:
            raise ValueError(f"intervals must be at most {MOST_INTERVALS}, not {self.intervals}")
        super().__post_init__()

    @property
    def settings(self) -> Settings:
        """Return all fields and the scales of the noise; `projection` only where there is one.

        See `ClusteringMethod`.
        """
        return {
            name: value
            for name, value in {**asdict(self), **asdict(self.scales)}.items()
            if value is not None
        }

    def fit(self, private: Vectors, public: Vectors, noise: Noise) -> Vectors:
        """Find the centres; of `public` only each axis' smallest and largest coordinate counts.

        See `ClusteringMethod`.

        Raises:
            ValueError: a vector is not finite, or private and public ones differ in dimension.
        """
        dimension = private.shape[1]
        if public.shape[1] != dimension:
            raise ValueError(
                f"private vectors have {dimension} dimensions, and public ones {public.shape[1]}"
            )
        generator = np.random.default_rng(noise.seed())
        projection = Projection.random(dimension, self.projection or dimension, generator)
        points = _points(private, self.radius)
        bounds = _bounds(_points(public, self.radius), projection)
        blocks = [
            _bins(block, bounds, self.intervals) for block in _coordinates(points, projection)
        ]
        bins = np.concatenate(blocks, axis=1)
        separation = _Separation(self, bins, noise)
        return self._centers(points, separation.cells(), noise)

    def _centers(self, points: NDArray[np.int32], cells: list[_Cell], noise: Noise) -> Vectors:
        """Return noisy sums over noisy counts, float32 [cells, d], cut to the records' radius."""
        exact = np.array([points[cell.rows].sum(axis=0, dtype=np.int64) for cell in cells])
        drawn = noise.gaussian(self.scales.sum_sd * RADIUS, exact.shape)
        sums = (exact + np.rint(drawn).astype(np.int64)) * (self.radius / RADIUS)
        means = sums / np.array([[max(1, cell.count)] for cell in cells])
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        centers: Vectors = (means * (self.radius / np.maximum(norms, self.radius))).astype(
            np.float32
        )
        return centers

    def _least(self) -> DpmScales:
        """Find the least noise by bisection on its shares."""

        def within(total: float) -> bool:
            return self._scaled(total).epsilon(self.delta, self.relation) <= self.epsilon

        least = most = 1.0
        while within(most):
            least, most = most, 2 * most
        while not within(least):
            least, most = least / 2, least
        while most - least > ROOM * most:
            middle = (least + most) / 2
            least, most = (middle, most) if within(middle) else (least, middle)
        return self._scaled(least)

    def _scaled(self, total: float) -> DpmScales:
        """Return noise in proportion to the shares.

        For sums it is by the plain formula of the Gaussian mechanism.
        """
        counts, splits = (
            sum(growth(level) for level in range(levels)) for levels in (self.depth + 1, self.depth)
        )
        sums_share = total * (1 - self.count_share - self.split_share)
        return DpmScales(
            depth=self.depth,
            count_scale=counts / (total * self.count_share),
            split_epsilon=total * self.split_share / splits,
            sum_sd=math.sqrt(2 * math.log(1.25 / self.delta)) / sums_share,
        )


@dataclass(frozen=True, eq=False)
class _Cell:
    """Records that no split has parted.

    Attributes:
        rows: int64 [n], which ones.
        count: their noisy number.
        level: how many splits led here.
        places: [axes, 2], the first place of each axis where it may be split, and the one after the
            last.
    """

    rows: NDArray[np.int64]
    count: int
    level: int
    places: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Separation:
    """One run of the splits."""

    method: Dpm
    bins: NDArray[np.uint16]
    noise: Noise

    def cells(self) -> list[_Cell]:
        """Return the final cells; at least one."""
        axes, size = self.bins.shape
        everyone = np.arange(size)
        root = _Cell(
            everyone, self.count(everyone, 0), 0, np.tile([0, self.method.intervals], (axes, 1))
        )
        least = max(1, root.count) / 2**self.method.depth
        final, waiting = [], [root]
        while waiting:
            cell = waiting.pop()
            halves = self.halves(cell)
            if halves and all(half.count > least for half in halves):
                waiting += halves
            else:
                final.append(cell)
        return final

    def halves(self, cell: _Cell) -> list[_Cell]:
        """Return both sides of a cell's split; none if it is not to be split."""
        if (
            cell.level == self.method.depth
            or cell.count < 1
            or not (cell.places[:, 0] < cell.places[:, 1]).any()
        ):
            return []
        axis, place = self.split(cell)
        left = self.bins[axis][cell.rows] <= 2 * place + 1
        halves = []
        for rows, end in ((cell.rows[left], 1), (cell.rows[~left], 0)):
            places = cell.places.copy()
            places[axis, end] = place + 1 - end
            halves.append(_Cell(rows, self.count(rows, cell.level + 1), cell.level + 1, places))
        return halves

    def count(self, rows: NDArray[np.int64], level: int) -> int:
        """Return a noisy count."""
        return len(rows) + int(
            self.noise.rounded_laplace(self.method.scales.count_scales[level], 1)[0]
        )

    def split(self, cell: _Cell) -> tuple[int, int]:
        """Return the axis and place of a cell's split."""
        method = self.method
        width = 2 * method.intervals + 2
        histograms = np.array([np.bincount(axis[cell.rows], minlength=width) for axis in self.bins])
        scores = split_scores(histograms, cell.count, method.centreness, method.emptiness)
        places = np.arange(method.intervals)
        allowed = np.flatnonzero((places >= cell.places[:, :1]) & (places < cell.places[:, 1:]))
        sensitivity = score_sensitivity(method.centreness, method.emptiness) * (1 + ROOM)
        chosen = self.noise.choice(
            scores.ravel()[allowed], method.scales.split_epsilons[cell.level], sensitivity
        )
        axis, place = divmod(int(allowed[chosen]), method.intervals)
        return axis, place


def split_scores(
    histograms: NDArray[np.int64], count: int, centreness: float, emptiness: float
) -> NDArray[np.float64]:
    """Score a split of a cell at each place of each axis: the paper's score, times the noisy count.

    It is the paper's score, times the noisy count. The noisy count was released before, so it is a
    constant here, the same for neighbours.

    Args:
        histograms: int64 [axes, 2 intervals + 2], records below the bounds, in each half of each
            interval, and above.
        count: the cell's noisy count, >= 1.
        centreness: weight of the nearness to the median.
        emptiness: weight of the interval's emptiness.

    Returns:
        float64 [axes, intervals].
    """
    below = np.cumsum(histograms, axis=1)[:, 1:-2:2]
    inside = histograms[:, 1:-1:2] + histograms[:, 2::2]
    outer = OUTER * count
    knots = np.array([0, outer, count / 2, count - outer, count])
    central = np.interp(
        below, knots, count * np.array([0, OUTER_CENTRENESS, 1, OUTER_CENTRENESS, 0])
    )
    scores: NDArray[np.float64] = centreness * central + emptiness * np.maximum(count - inside, 0)
    return scores


def score_sensitivity(centreness: float, emptiness: float) -> float:
    """Return how far a record that comes, goes or is exchanged moves any of `split_scores`.

    A place's score depends on two numbers of its axis: how many records are below the place, and
    how many are inside its interval. A record that comes or goes moves each by at most 1. So does
    an exchanged one: what one of its two positions adds, the other can only keep or take back.
    Centreness times the count is continuous and piecewise linear in the first number (0 beyond both
    ends), so it moves by at most its steepest slope; emptiness times the count by at most 1. Both
    can fall at once: a record inside the interval and below the place, where most are below it
    already.
    """
    slope = max(OUTER_CENTRENESS / OUTER, (1 - OUTER_CENTRENESS) / (0.5 - OUTER))
    return centreness * slope + emptiness


def _points(vectors: Vectors, radius: float) -> NDArray[np.int32]:
    """Return vectors on the grid, int32 [n, d]."""
    blocks = [
        on_grid(vectors[start : start + BLOCK], radius)
        for start in range(0, max(1, len(vectors)), BLOCK)
    ]
    return np.concatenate([block.astype(np.int32) for block in blocks])


def _coordinates(
    points: NDArray[np.int32], projection: Projection
) -> Iterator[NDArray[np.float64]]:
    """Yield projected points, in radii, block by block: float64 [axes, n]."""
    for start in range(0, max(1, len(points)), BLOCK):
        yield projection.apply(points[start : start + BLOCK].astype(np.float64)).T / RADIUS


def _bounds(points: NDArray[np.int32], projection: Projection) -> NDArray[np.float64]:
    """Return each axis' smallest and largest coordinate [axes, 2].

    Where these do not differ, they are one radius either way.
    """
    ends = [
        (block.min(axis=1, initial=math.inf), block.max(axis=1, initial=-math.inf))
        for block in _coordinates(points, projection)
    ]
    low, high = (
        np.min([least for least, _ in ends], axis=0),
        np.max([most for _, most in ends], axis=0),
    )
    return np.where((low < high)[:, None], np.stack([low, high], axis=1), [-1.0, 1.0])


def _bins(
    coordinates: NDArray[np.float64], bounds: NDArray[np.float64], intervals: int
) -> NDArray[np.uint16]:
    """Return each record's half of an interval, uint16 [axes, n].

    Below all is 0, above all 2 intervals + 1.
    """
    low, high = bounds[:, :1], bounds[:, 1:]
    halves = np.floor((coordinates - low) * (2 * intervals / (high - low)))
    return (np.clip(halves, -1, 2 * intervals) + 1).astype(np.uint16)
