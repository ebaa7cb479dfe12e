"""Keeps the centres that most records fall to, by noisy counts (paper, section 4.1, "Public centers with rebalancing").

All counts get their noise first (`PrivateCounts.noised`). Which centres are kept and how many batches their records are
hashed into is then post-processing, and costs nothing more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import batches_by_counts, kept_by_counts, rebalancing_epsilon, rebalancing_scale, rounded_sum
from dpaudit.generation.clustering.assignment import nearest
from dpaudit.generation.clustering.counts import NoisyCounts, PrivateCounts
from dpaudit.generation.clustering.interfaces import CentersOrigin, ClusteringCost, ClusteringMethod, Settings, Vectors
from dpaudit.generation.clustering.noise import Noise
from dpaudit.mechanisms import Relation


def kept_centers(noisy: NoisyCounts, keep: int) -> NDArray[np.int64]:
    """`dpaudit.accounting.kept_by_counts` of counts that have their noise: int64 [labels, keep]."""
    return kept_by_counts(noisy.values, keep)


def batches_per_cluster(
    noisy: NoisyCounts, kept: NDArray[np.int64], records_per_batch: float, most: int
) -> NDArray[np.int64]:
    """`dpaudit.accounting.batches_by_counts` of counts that have their noise: int64 [labels, keep]."""
    return batches_by_counts(noisy.values, kept, records_per_batch, most)


@dataclass(frozen=True)
class Rebalanced:
    """A method's centres, of which those with the highest noisy counts of private records are kept.

    Attributes:
        base: where the centres come from: public ones, in the paper.
        keep: how many are kept, for each label where there are any.
        epsilon: of the counts, in nats, under `relation`.
        relation: whether records come and go, or are exchanged.

    Raises:
        ValueError: `keep` or `epsilon` is out of its range.
    """

    base: ClusteringMethod
    keep: int
    epsilon: float
    relation: Relation = "add_remove"

    def __post_init__(self) -> None:
        if self.keep < 1 or not 0 < self.epsilon < math.inf:
            raise ValueError(f"keep {self.keep} and epsilon {self.epsilon} must be positive, and epsilon finite")

    @property
    def name(self) -> str:
        """See `ClusteringMethod`."""
        return f"{self.base.name}-rebalanced"

    @property
    def origin(self) -> CentersOrigin:
        """See `ClusteringMethod`: private records have a say now, through noise."""
        return "private" if self.base.origin == "private" else "noised"

    @property
    def settings(self) -> Settings:
        """See `ClusteringMethod`: the base's, and how centres are kept."""
        kept = {"keep": self.keep, "rebalancing_epsilon": self.epsilon, "rebalancing_relation": self.relation}
        return {**self.base.settings, **kept}

    def cost(self, relation: Relation) -> ClusteringCost:
        """See `ClusteringMethod`: what the base costs, and the counts."""
        base = self.base.cost(relation)
        counts = self.epsilon
        if relation != self.relation:
            counts = rebalancing_epsilon(rebalancing_scale(self.epsilon, self.relation), relation)
        return ClusteringCost(rounded_sum(base.epsilon, counts), base.delta)

    def fit(self, private: Vectors, public: Vectors, noise: Noise) -> Vectors:
        """See `ClusteringMethod`: the kept centres [keep, d] where all records have one label.

        Raises:
            ValueError: the base gives fewer centres than are to be kept, or cannot work with what it is given.
        """
        centers = self.base.fit(private, public, noise)
        places = nearest(private, centers)
        counts = PrivateCounts(np.zeros_like(places), places, (1, len(centers)))
        _, kept = self.select(counts, noise)
        chosen: Vectors = centers[kept[0]]
        return chosen

    def select(self, counts: PrivateCounts, noise: Noise) -> tuple[NoisyCounts, NDArray[np.int64]]:
        """Noise on all counts of records at the base's centres, then the choice: int64 [labels, keep].

        Raises:
            ValueError: there are fewer centres than are to be kept.
        """
        noisy = counts.noised(self.epsilon, self.relation, noise)
        return noisy, kept_centers(noisy, self.keep)
