"""The paper's comparison of clustering methods (table 2 and figure 2), on anybody's texts.

Its figures are worked out from private records, with no noise on them: they are for whoever may see the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import v_measure_score

from dpaudit.generation.caches import VectorCache
from dpaudit.generation.clustering.assignment import nearest
from dpaudit.generation.clustering.chang import Chang
from dpaudit.generation.clustering.dpm import Dpm
from dpaudit.generation.clustering.embedding import Embedder, Watch
from dpaudit.generation.clustering.interfaces import ClusteringMethod, Vectors
from dpaudit.generation.clustering.kmeans import PrivateKMeans, PublicKMeans
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.clustering.rebalancing import Rebalanced
from dpaudit.mechanisms import Relation
from dpaudit.results import ClusterComparison, ClusteredBy

#: From how many records on the paper counts a cluster as large.
LARGE = 100
#: The paper's neighbours: records that come and go.
RELATION: Relation = "add_remove"


@dataclass(frozen=True)
class ComparisonSettings:
    """What is compared.

    Attributes:
        centers: k, of every method that takes a number.
        keep: k', of rebalanced centres.
        chang_epsilon, rebalancing_epsilon: budgets, in nats.
        dpm_epsilons: as many runs of that method; the paper's budget and, to be fair to the others, theirs.
        delta: of the methods that need one.
        dimension: that vectors are projected onto for Chang's method.

    Raises:
        ValueError: no method can work with one of them; raised here, before anything is embedded.
    """

    centers: int = 500
    keep: int = 100
    chang_epsilon: float = 0.1
    dpm_epsilons: tuple[float, ...] = (0.1, 10.0)
    rebalancing_epsilon: float = 0.1
    delta: float = 1e-6
    dimension: int = 16

    def __post_init__(self) -> None:
        Chang(self.centers, self.chang_epsilon, self.delta, self.dimension)
        for epsilon in self.dpm_epsilons:
            Dpm(epsilon, self.delta)

    def methods(self, public: Vectors, noise: Noise) -> list[ClusteringMethod]:
        """In the paper's order; the first is what V-measures compare with.

        Args:
            public: embeddings of public texts, whose largest length is the radius that private ones are cut to.
            noise: for seeds.
        """
        radius = float(np.linalg.norm(public, axis=1).max())
        shared = _FittedKMeans(self.centers, centers=PublicKMeans(self.centers).fit(public[:0], public, noise))
        return [
            PrivateKMeans(self.centers),
            Chang(self.centers, self.chang_epsilon, self.delta, self.dimension, radius=radius),
            *(Dpm(epsilon, self.delta, radius=radius) for epsilon in self.dpm_epsilons),
            shared,
            Rebalanced(shared, self.keep, self.rebalancing_epsilon),
        ]


@dataclass(frozen=True, eq=False)
class _FittedKMeans(PublicKMeans):
    """Public k-means with the centres that it found, float32 [k, d]: two methods start from the same ones."""

    centers: Vectors | None = None

    def fit(self, private: Vectors, public: Vectors, noise: Noise) -> Vectors:
        """The centres that were found."""
        assert self.centers is not None
        return self.centers


def compare_texts(
    private: Sequence[str],
    public: Sequence[str],
    embedder: Embedder,
    settings: ComparisonSettings,
    *,
    private_cache: VectorCache | None = None,
    noise: Noise,
    watch: Watch,
) -> ClusterComparison:
    """Embed texts and cluster the private ones by every method.

    Args:
        private: n distinct texts.
        public: m distinct texts; their embeddings are kept in the user's cache folder.
        embedder: what embeds them.
        settings: what is compared.
        private_cache: where embeddings of private texts are kept; None keeps none.
        noise: where methods get theirs.
        watch: called with what is done.

    Raises:
        InputError: the texts are too few for the settings, or cannot be embedded.
    """
    open_vectors, vectors = (
        embedder.embed(texts, cache, partial(watch, title))
        for title, texts, cache in (
            ("Embedding public texts", public, VectorCache()),
            ("Embedding private texts", private, private_cache),
        )
    )
    methods = compare(vectors, open_vectors, settings, noise, watch)
    return ClusterComparison(
        embedding=embedder.name,
        dimension=embedder.dimensions,
        normalized=embedder.normalize,
        records=len(private),
        public_records=len(public),
        reference=methods[0].method,
        large=LARGE,
        methods=methods,
    )


def compare(
    private: Vectors, public: Vectors, settings: ComparisonSettings, noise: Noise, watch: Watch
) -> tuple[ClusteredBy, ...]:
    """Cluster the same records by every method.

    Args:
        private: embeddings float32 [n, d] of the private records, n >= 1.
        public: embeddings float32 [m, d] of public texts.
        settings: what is compared.
        noise: where methods get theirs.
        watch: called before every method.

    Returns:
        Private figures, in the paper's order.
    """
    watch("Clustering: public texts", 0, 1)
    methods, found = settings.methods(public, noise), list[ClusteredBy]()
    reference: NDArray[np.int32] | None = None
    for number, method in enumerate(methods):
        watch(f"Clustering: {method.name}", number, len(methods))
        centers = method.fit(private, public, noise)
        assigned = nearest(private, centers)
        reference = assigned if reference is None else reference
        found.append(_clustered(method, centers, assigned, reference))
    return tuple(found)


def _clustered(
    method: ClusteringMethod, centers: Vectors, assigned: NDArray[np.int32], reference: NDArray[np.int32]
) -> ClusteredBy:
    sizes = np.sort(np.bincount(assigned, minlength=len(centers)))[::-1]
    cost = method.cost(RELATION)
    return ClusteredBy(
        method=method.name,
        origin=method.origin,
        centers=len(centers),
        epsilon=cost.epsilon,
        delta=cost.delta,
        clusters=int((sizes >= 2).sum()),
        large=int((sizes >= LARGE).sum()),
        v_measure=float(v_measure_score(reference, assigned)),
        sizes=tuple(sizes[sizes > 0].tolist()),
        settings=method.settings,
    )
