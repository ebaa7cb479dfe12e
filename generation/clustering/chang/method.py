"""The method: project, grow a tree, and find centres among its leaves' noisy averages."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from sklearn.cluster import KMeans

from dpaudit.accounting.centers import LEAST_DELTA, MOST_DELTA, MOST_DEPTH, ChangScales
from dpaudit.generation.clustering.chang.accounting import calibrated
from dpaudit.generation.clustering.chang.tree import Integers, Tree, grow, hyperplanes, paths
from dpaudit.generation.clustering.grid import Doubles, Projection, on_grid
from dpaudit.generation.clustering.interfaces import CentersOrigin, ClusteringCost, Settings, Vectors
from dpaudit.generation.clustering.noise import Noise
from dpaudit.mechanisms import Relation

#: Where there are enough records, leaves are so large that noise moves their averages by this share of the radius.
QUIET = 0.1
#: Otherwise small enough for so many leaves a centre, were all alike.
LEAVES = 2
#: But never so small that a count is mostly noise: this many times its scale. An empty node then branches with
#: probability e^-6 / 2, so the tree's size is bounded by its records.
LOUDER = 2
#: k-means runs, of which the best is taken. They see noisy averages only.
RUNS = 10
#: Records that are projected at once.
BLOCK = 1 << 16


@dataclass(frozen=True)
class Chang:
    """Centres from a tree of noisy hashes (Chang and Kamath, 2021: Practical Differentially Private Clustering).

    1. Vectors longer than the radius are shortened to it, projected at random onto fewer dimensions, stretched by
       sqrt(d / dimension), and shortened to the radius again. Vectors of no more dimensions stay as they are.
    2. A record's path is its SimHash: the sides of `depth` random planes through the origin that it lies on. Each node
       gets a count with Laplace noise, and has children only if that noisy count is high enough.
    3. The sum of each leaf's projected records gets Gaussian noise, and is divided by the leaf's noisy count.
    4. k-means on these averages, weighted by the noisy counts, gives centres among projections. They are lifted into
       the subspace that was projected onto, where the nearest one to a vector is the same.

    Steps 1 and 2 choose projection and planes without a look at data; 4 sees what is noised only, and costs nothing.
    `dpaudit.accounting.centers` proves the cost, `grid` says why rounding adds nothing to it. Public
    vectors are not used. Centring private ones beforehand, by a public mean, can help.

    Attributes:
        k: centres at most: fewer where fewer leaves are left, and one, the origin, where none is.
        epsilon: the budget, in nats, for `relation`. Noise is calibrated to use it up.
        delta: in [LEAST_DELTA, MOST_DELTA].
        dimension: what vectors are projected onto.
        depth: of the tree. Each level costs, whether the tree grows to it or not.
        radius: public. That of normalised embeddings is 1.
        counts_share: of the budget (as zero-concentrated DP measures it), for the counts of all levels together; the
            sums have the rest.
        relation: what `epsilon` is stated for. `cost` tells it for either.

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

    def __post_init__(self) -> None:
        for name in ("k", "dimension", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("epsilon", "radius"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, not {getattr(self, name)}")
        if self.depth > MOST_DEPTH:
            raise ValueError(f"depth must be at most {MOST_DEPTH}, not {self.depth}")
        if not LEAST_DELTA <= self.delta <= MOST_DELTA:
            raise ValueError(f"delta must lie in [{LEAST_DELTA}, {MOST_DELTA}], not be {self.delta}")
        if not 0 < self.counts_share < 1:
            raise ValueError(f"counts_share must lie strictly between 0 and 1, not {self.counts_share}")
        self.scales  # noqa: B018  # calibrated now, so that an epsilon that cannot be kept to is refused at once

    @property
    def name(self) -> str:
        """See `ClusteringMethod`."""
        return "chang"

    @property
    def origin(self) -> CentersOrigin:
        """See `ClusteringMethod`."""
        return "noised"

    @property
    def settings(self) -> Settings:
        """See `ClusteringMethod`: with the scales of the noise."""
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

    @cached_property
    def scales(self) -> ChangScales:
        """Of the noise: the least that keeps within the budget."""
        return calibrated(self.epsilon, self.delta, self.relation, self.depth, self.counts_share)

    def cost(self, relation: Relation) -> ClusteringCost:
        """See `ClusteringMethod`: derived from the scales of the noise."""
        return ClusteringCost(self.scales.epsilon(self.delta, relation), self.delta)

    def fit(self, private: Vectors, public: Vectors, noise: Noise) -> Vectors:
        """See `ClusteringMethod`; `public` is not used.

        Raises:
            ValueError: a private vector holds a number that is not finite.
        """
        projection, tree = self.release(private, noise)
        points, weights = tree.coreset()
        return projection.lift(self._centers(points, weights, noise) * self.radius).astype(np.float32)

    def release(self, private: Vectors, noise: Noise) -> tuple[Projection, Tree]:
        """All that the centres are made of: a projection that is secret from nobody, and what is noised.

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
        tree = grow(
            records,
            paths(records, planes),
            self.scales,
            lambda total: self._least(total, records.shape[1]),
            noise,
        )
        return projection, tree

    def _least(self, total: int, dimensions: int) -> int:
        """What a leaf's noisy count must be, given the root's noisy count."""
        quiet = self.scales.sum_sd * math.sqrt(dimensions) / QUIET
        return math.ceil(max(1.0, LOUDER * self.scales.count_scale, min(quiet, total / (LEAVES * self.k))))

    def _centers(self, points: Doubles, weights: Integers, noise: Noise) -> Doubles:
        clusters = min(self.k, len(np.unique(points, axis=0)))
        if not clusters:
            return np.zeros((1, points.shape[1]))
        means = KMeans(clusters, n_init=RUNS, random_state=noise.seed())
        return np.asarray(means.fit(points, sample_weight=weights).cluster_centers_, dtype=np.float64)
