"""The paper's comparison of clustering methods (table 2 and figure 2), on anybody's texts.

Its figures are worked out from private records, with no noise on them: they are for whoever may see the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.metrics import v_measure_score

from dpaudit.generation.caches import VectorCache
from dpaudit.generation.clustering.assignment import nearest
from dpaudit.generation.clustering.chang import Chang
from dpaudit.generation.clustering.dpm import Dpm
from dpaudit.generation.clustering.embedding import Embedder, Watch
from dpaudit.generation.clustering.interfaces import ClusteringMethod, Vectors
from dpaudit.generation.clustering.kmeans import PrivateKMeans, PublicKMeans
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.clustering.rebalancing import PrivateCounts
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
        private, public: distinct texts; embeddings of public ones are kept in the user's cache folder.
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
        normalized=embedder.normalized,
        records=len(private),
        public_records=len(public),
        reference=methods[0].method,
        large=LARGE,
        methods=methods,
    )


def compare(
    private: Vectors, public: Vectors, settings: ComparisonSettings, noise: Noise, watch: Watch
) -> tuple[ClusteredBy, ...]:
    """Cluster the same records by every method, given embeddings float32 [n, d], n >= 1, and those of public texts.

    Returns:
        Private figures, in the paper's order; V-measures compare with the first.
    """
    watch("Clustering: public texts", 0, 1)
    open_method, epsilon = PublicKMeans(settings.centers), settings.rebalancing_epsilon
    open_centers = open_method.fit(private[:0], public, noise)
    radius = float(np.linalg.norm(public, axis=1).max())  # public, so private vectors may be cut to it
    methods: list[ClusteringMethod] = [
        PrivateKMeans(settings.centers),
        Chang(settings.centers, settings.chang_epsilon, settings.delta, settings.dimension, radius=radius),
        *(Dpm(each, settings.delta, radius=radius) for each in settings.dpm_epsilons),
    ]
    rebalanced = _declared(open_method) | {
        "method": f"{open_method.name}-rebalanced",
        "origin": "noised",
        "epsilon": epsilon,
        "settings": {
            **open_method.settings,
            "keep": settings.keep,
            "rebalancing_epsilon": epsilon,
            "rebalancing_relation": RELATION,
        },
    }

    def keep() -> Vectors:
        places = nearest(private, open_centers)
        counts = PrivateCounts(np.zeros_like(places), places, (1, len(open_centers)))
        kept: Vectors = open_centers[counts.noised(epsilon, RELATION, noise).kept(settings.keep)[0]]
        return kept

    ways: list[tuple[dict[str, Any], Callable[[], Vectors]]] = [
        *((_declared(method), partial(method.fit, private, public, noise)) for method in methods),
        (_declared(open_method), lambda: open_centers),
        (rebalanced, keep),
    ]
    found, reference = list[ClusteredBy](), None
    for declared, centers_of in ways:
        watch(f"Clustering: {declared['method']}", len(found), len(ways))
        centers = centers_of()
        assigned = nearest(private, centers)
        reference = assigned if reference is None else reference
        sizes = np.sort(np.bincount(assigned, minlength=len(centers)))[::-1]
        found.append(
            ClusteredBy(
                **declared,
                centers=len(centers),
                clusters=int((sizes >= 2).sum()),
                large=int((sizes >= LARGE).sum()),
                v_measure=float(v_measure_score(reference, assigned)),
                sizes=tuple(sizes[sizes > 0].tolist()),
            )
        )
    return tuple(found)


def _declared(method: ClusteringMethod) -> dict[str, Any]:
    """What a result says of a method before it has seen anything."""
    cost = method.cost(RELATION)
    said = {"method": method.name, "origin": method.origin, "settings": method.settings}
    return {**said, "epsilon": cost.epsilon, "delta": cost.delta}
