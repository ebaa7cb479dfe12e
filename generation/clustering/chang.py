"""Cluster centres from a locality-sensitive tree with noisy counts (Chang and Kamath, 2021).

The method projects records, grows a tree of hash prefixes whose counts are noisy, and finds centres
among the noisy averages of its leaves. `Tree` is all that private records let through.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import optimize  # type: ignore[import-untyped]

from dpaudit.accounting.centers import ChangScales
from dpaudit.generation.clustering.grid import RADIUS, UNIT, Doubles, Projection, on_grid
from dpaudit.generation.clustering.interfaces import NoisedMethod, Settings, Vectors
from dpaudit.generation.clustering.kmeans import kmeans_centers
from dpaudit.generation.clustering.noise import Noise
from dpaudit.mechanisms import Relation

Integers: TypeAlias = NDArray[np.int64]

#: Where there are enough records, leaves are so large that noise moves their averages by this share
#: of the radius.
MEAN_NOISE = 0.1
#: Otherwise small enough for so many leaves a centre, were all alike.
LEAVES_PER_CENTER = 2
#: But never so small that a count is mostly noise: this many times its scale. An empty node then
#: branches with probability e^-6 / 2, so the tree's size is bounded by its records.
LEAST_COUNT = 2
#: k-means runs, of which the best is taken. They see noisy averages only.
KMEANS_STARTS = 10
#: Records that are projected at once.
BLOCK = 1 << 16
#: A node branches at this many times the count that a leaf must have.
BRANCHING = 3
#: How closely noise is calibrated, relatively.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Chang(NoisedMethod[ChangScales]):
    """Centres from a tree of noisy hashes (Chang and Kamath, 2021).

    Their paper is "Practical Differentially Private Clustering".

    1. Vectors longer than the radius are shortened to it, projected at random onto fewer
       dimensions, stretched by sqrt(d / dimension), and shortened to the radius again. Vectors of
       no more dimensions stay as they are.
    2. A record's path is its SimHash: the sides of `depth` random planes through the origin that it
       lies on. Each node gets a count with Laplace noise, and has children only if that noisy count
       is high enough.
    3. The sum of each leaf's projected records gets Gaussian noise, and is divided by the leaf's
      noisy count.
    4. k-means on these averages, weighted by the noisy counts, gives centres among projections.
       They are lifted into the subspace that was projected onto, where the nearest one to a vector
       is the same.

    Steps 1 and 2 choose projection and planes without a look at data; 4 sees what is noised only,
    and costs nothing. `dpaudit.accounting.centers` proves the cost, `grid` says why rounding adds
    nothing to it. Public vectors are not used. Centring private ones beforehand, by a public mean,
    can help.

    Attributes:
        k: centres at most: fewer where fewer leaves are left, and one, the origin, where none is.
        epsilon, delta, relation: see `NoisedMethod`.
        dimension: what vectors are projected onto.
        depth: of the tree. Each level costs, whether the tree grows to it or not.
        radius: public. That of normalised embeddings is 1.
        counts_share: of the budget (as zero-concentrated DP measures it), for the counts of all
            levels together; the sums have the rest.

    Raises:
        ValueError: a number is out of its range, or no noise is right for epsilon.
    """

    k: int
    epsilon: float
    delta: float
    dimension: int
    depth: int = 12
    radius: float = 1.0
    counts_share: float = 0.5
    relation: Relation = "add_remove"
    name: ClassVar[str] = "chang"

    def __post_init__(self) -> None:
        if not 0 < self.counts_share < 1:
            raise ValueError(
                f"counts_share must lie strictly between 0 and 1, not {self.counts_share}"
            )
        super().__post_init__()

    @property
    def settings(self) -> Settings:
        """The settings of its centres, with the scales of the noise."""
        return {
            **asdict(self.scales),
            "centers": self.k,
            "dimension": self.dimension,
            "radius": self.radius,
            "counts_share": self.counts_share,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation,
            "projection": "random, onto `dimension` axes",
            "clustering": "weighted k-means on noisy averages of a hash tree's leaves",
        }

    def _least(self) -> ChangScales:
        return calibrated(self.epsilon, self.delta, self.relation, self.depth, self.counts_share)

    def fit(self, private: Vectors, public: Vectors, noise: Noise) -> Vectors:
        """Return centres of the noised tree; `public` is not used.

        Raises:
            ValueError: a private vector holds a number that is not finite.
        """
        projection, tree = self.release(private, noise)
        points, weights = tree.coreset()
        centers = np.zeros((1, points.shape[1]))
        if len(points):
            found = kmeans_centers(points, self.k, noise.seed(), KMEANS_STARTS, weights)
            centers = np.asarray(found, dtype=np.float64)
        return projection.lift(centers * self.radius).astype(np.float32)

    def release(self, private: Vectors, noise: Noise) -> tuple[Projection, Tree]:
        """Release all that the centres are made of: a projection, no secret, and noised values.

        Raises:
            ValueError: as for `fit`.
        """
        generator = np.random.default_rng(noise.seed())
        projection = Projection.random(private.shape[1], self.dimension, generator)
        whole = [
            projection.apply(on_grid(private[start : start + BLOCK], self.radius))
            for start in range(0, max(len(private), 1), BLOCK)
        ]
        records = np.concatenate(whole)
        planes = hyperplanes(self.depth, records.shape[1], generator)
        least = partial(self._least_count, records.shape[1])
        return projection, grow(records, paths(records, planes), self.scales, least, noise)

    def _least_count(self, dimensions: int, total: int) -> int:
        """Return the least noisy count of a leaf, given the root's noisy count."""
        large_enough = self.scales.sum_sd * math.sqrt(dimensions) / MEAN_NOISE
        return math.ceil(
            max(
                1.0,
                LEAST_COUNT * self.scales.count_scale,
                min(large_enough, total / (LEAVES_PER_CENTER * self.k)),
            )
        )


@cache
def calibrated(
    epsilon: float, delta: float, relation: Relation, depth: int, counts_share: float
) -> ChangScales:
    """Return the least noise within a budget, epsilon in nats, as `ChangScales.epsilon` has it.

    `counts_share` of it, as zero-concentrated DP measures it under add_remove, goes into the
    counts, evenly over the levels; the rest into the sums.

    Raises:
        ValueError: noise would be out of its range.
    """

    def scales(noise: float) -> ChangScales:
        return ChangScales(
            depth,
            noise * math.sqrt((depth + 1) / counts_share),
            noise / math.sqrt(1 - counts_share),
        )

    def excess(log_noise: float) -> float:
        spent = scales(math.exp(log_noise)).epsilon(delta, relation)
        return math.log(spent / epsilon) if spent else -math.inf

    high = math.log(scales(1.0).rho(relation)) / 2 - math.log(_zcdp_root(epsilon, delta))
    while excess(high) > 0:
        high += 1
    low = high - 1 / 2
    while excess(low) <= 0:
        low, high = low - 1 / 2, low
    # Nearly a straight line, so this takes few steps.
    noise = optimize.brentq(
        lambda log_noise: max(excess(log_noise), -1.0), low, high, xtol=TOLERANCE
    )
    while excess(noise) > 0:
        noise += TOLERANCE
    return scales(math.exp(noise))


def _zcdp_root(epsilon: float, delta: float) -> float:
    """Return the root of zero-concentrated DP's rho for this epsilon.

    See Bun and Steinke (2016), proposition 1.3.
    """
    root = math.sqrt(-math.log(delta))
    return epsilon / (math.sqrt(root**2 + epsilon) + root)


@dataclass(frozen=True)
class Level:
    """Nodes of one level.

    Attributes:
        prefixes: the first bits of their records' hashes, as numbers: int64 [m].
        counts: noisy: int64 [m].
    """

    prefixes: Integers
    counts: Integers


@dataclass(frozen=True)
class Tree:
    """The released numbers.

    Attributes:
        levels: every node's noisy count, from the root down.
        leaves: of each level, those of a noisy count that is high enough. Records in the others are
            lost.
        sums: of the leaves' records, in the order of `leaves`, noisy, in steps of radius / RADIUS:
            int64 [m, p].
    """

    levels: tuple[Level, ...]
    leaves: tuple[Level, ...]
    sums: Integers

    def coreset(self) -> tuple[Doubles, Integers]:
        """Return leaves' noisy averages, at most 1 long, in radii [m, p], and noisy counts [m]."""
        counts = np.concatenate([level.counts for level in self.leaves])
        points = self.sums / RADIUS / counts[:, None]
        return points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1.0), counts


def hyperplanes(depth: int, dimensions: int, generator: np.random.Generator) -> Doubles:
    """Return normals of random planes through the origin, one per hash bit.

    They are whole numbers [depth, p].
    """
    return np.rint(generator.standard_normal((depth, dimensions)) * UNIT)


def paths(whole: Doubles, planes: Doubles) -> Integers:
    """Return SimHashes [n] (Charikar, 2002).

    Each bit is the side of a plane that a record lies on, the first plane's bit highest.
    """
    sides = whole @ planes.T >= 0
    bits = 1 << np.arange(len(planes), dtype=np.int64)[::-1]
    return np.asarray(sides @ bits, dtype=np.int64)


def grow(
    whole: Doubles, hashes: Integers, scales: ChangScales, least: Callable[[int], int], noise: Noise
) -> Tree:
    """Let through noisy counts from the root down, and then noisy sums of the leaves.

    Args:
        whole: records, from `grid.on_grid` or a projection of it [n, p].
        hashes: their `paths` [n], of as many bits as the tree is deep.
        scales: of the noise; and the depth.
        least: what a leaf's noisy count must be, given the root's: at least 1.
        noise: of counts and sums.
    """
    depth, order = scales.depth, np.argsort(hashes, kind="stable")
    records = _Records(whole[order], hashes[order], depth)
    levels, leaves, threshold, prefixes = (
        list[Level](),
        list[Level](),
        0,
        np.zeros(1, dtype=np.int64),
    )
    for bits in range(depth + 1):
        counts = records.counts(bits, prefixes) + noise.rounded_laplace(
            scales.count_scale, len(prefixes)
        )
        if not bits:
            threshold = least(int(counts[0]))
        branching = (counts >= BRANCHING * threshold) & (bits < depth)
        levels.append(Level(prefixes, counts))
        final = (counts >= threshold) & ~branching
        leaves.append(Level(prefixes[final], counts[final]))
        parents = prefixes[branching]
        if not len(parents):
            break
        prefixes = np.stack([2 * parents, 2 * parents + 1], axis=1).ravel()
    sums = [
        records.sum(bits, prefix) for bits, level in enumerate(leaves) for prefix in level.prefixes
    ]
    exact = np.array(sums).reshape(-1, whole.shape[1])
    noisy = exact + np.rint(noise.gaussian(scales.sum_sd * RADIUS, exact.shape))
    return Tree(tuple(levels), tuple(leaves), noisy.astype(np.int64))


@dataclass(frozen=True)
class _Records:
    """Records in the order of their hashes, those of a node side by side.

    Nothing of it is noised.
    """

    whole: Doubles
    hashes: Integers
    depth: int

    def counts(self, bits: int, prefixes: Integers) -> Integers:
        """Return how many records have each of these prefixes [m]."""
        return self._place(bits, prefixes + 1) - self._place(bits, prefixes)

    def sum(self, bits: int, prefix: np.int64) -> Doubles:
        """Return the exact sum [p] of the records that have this prefix."""
        first, end = self._place(bits, np.array([prefix, prefix + 1]))
        return np.asarray(self.whole[first:end].sum(axis=0))

    def _place(self, bits: int, prefixes: Integers) -> Integers:
        return np.searchsorted(self.hashes, prefixes << (self.depth - bits)).astype(np.int64)
