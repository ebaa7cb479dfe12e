"""The paper's comparison of clustering methods (table 2 and figure 2), on anybody's texts.

Its figures are worked out from private records, with no noise on them: they are for whoever may see
the records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import v_measure_score

from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.generation.caches import VectorCache
from dpaudit.generation.clustering.assignment import nearest
from dpaudit.generation.clustering.chang import Chang
from dpaudit.generation.clustering.dpm import Dpm
from dpaudit.generation.clustering.embedding import OFFLINE, Embedder, Watch
from dpaudit.generation.clustering.interfaces import ClusteringMethod, Vectors
from dpaudit.generation.clustering.kmeans import PrivateKMeans, PublicKMeans
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.clustering.rebalancing import PrivateCounts
from dpaudit.generation.experiments.cluster_results import ClusterComparison, ClusteredBy
from dpaudit.generation.records import read_texts
from dpaudit.generation.sampling import OsEntropy
from dpaudit.generation.sources import overlap
from dpaudit.mechanisms import Relation
from dpaudit.runs import InputError

#: From how many records on the paper counts a cluster as large.
LARGE = 100
#: The paper's neighbours: records that come and go.
RELATION: Relation = "add_remove"


@dataclass(frozen=True)
class ComparisonSettings:
    """The settings of a comparison.

    Attributes:
        centers: k, of every method that takes a number.
        keep: k', of rebalanced centres.
        chang_epsilon, rebalancing_epsilon: budgets, in nats.
        dpm_epsilons: as many runs of that method; the paper's budget and, to be fair to the others,
            theirs.
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


def compare_clusterings(
    data: str,
    public: str,
    *,
    text: str = "text",
    public_text: str = "text",
    embedding: str | None = None,
    normalize: bool = True,
    private_cache: Path | None = None,
    monitor: Monitor = SILENT,
    **settings: Any,
) -> ClusterComparison:
    """Cluster private texts by every method, and count what each makes of them.

    Args:
        data: the private texts, as data.path in a config.
        public: public texts, whose clusters cost nothing. Their embeddings are kept in the user's
            cache folder.
        text: the column of the private texts.
        public_text: the column of the public texts.
        embedding: sentence-embedding model; None for the offline one.
        normalize: make vectors unit vectors.
        private_cache: folder for embeddings of private texts, which are as sensitive as the texts;
            None keeps none.
        monitor: receives progress.
        settings: fields of `ComparisonSettings`. One that is None or empty has its default.

    Raises:
        InputError: the texts or a setting cannot be used.
    """
    wanted = _settings({name: value for name, value in settings.items() if value not in (None, ())})
    if overlap(public, data):
        raise InputError("--public", "this leads to the private texts.", "Name public ones.")
    private = read_texts(data, text, "DATA", "--text")
    open_texts = read_texts(public, public_text, "--public", "--public-text")
    embedder = Embedder(embedding or OFFLINE, normalize=normalize, field="--embedding")
    if wanted.dimension > embedder.dimensions:
        problem = f"{wanted.dimension} is more than the {embedder.dimensions} of embeddings."
        raise InputError("--dimension", problem, "Give fewer.")
    cache = None if private_cache is None else VectorCache(folder=private_cache)
    with monitor.steps() as watch:
        open_vectors = embedder.embed(
            open_texts, VectorCache(), partial(watch, "Embedding public texts")
        )
        vectors = embedder.embed(private, cache, partial(watch, "Embedding private texts"))
        methods = compare(vectors, open_vectors, wanted, Noise(OsEntropy()), watch)
    return ClusterComparison(
        embedding=embedder.name,
        dimension=embedder.dimensions,
        normalized=embedder.normalized,
        records=len(private),
        public_records=len(open_texts),
        reference=methods[0].method,
        large=LARGE,
        methods=methods,
    )


def _settings(given: dict[str, Any]) -> ComparisonSettings:
    """Return the settings that are given, and defaults for the others."""
    try:
        wanted = ComparisonSettings(**given)
    except ValueError as error:
        raise InputError("settings", f"{error}.", "Change one of the numbers.") from None
    if "keep" not in given:
        return replace(wanted, keep=min(wanted.keep, wanted.centers))
    if wanted.keep > wanted.centers:
        raise InputError(
            "--keep",
            f"{wanted.keep} is more than the {wanted.centers} of --centers.",
            "Give fewer.",
        )
    return wanted


def compare(
    private: Vectors, public: Vectors, settings: ComparisonSettings, noise: Noise, watch: Watch
) -> tuple[ClusteredBy, ...]:
    """Cluster the same records by every method.

    Args:
        private: embeddings of the records, float32 [n, d], n >= 1.
        public: embeddings of public texts, float32 [m, d].
        settings: what is compared.
        noise: where methods get theirs.
        watch: called with what is done.

    Returns:
        Private figures, in the paper's order; V-measures compare with the first.
    """
    watch("Clustering: public texts", 0, 1)
    open_method, epsilon = PublicKMeans(settings.centers), settings.rebalancing_epsilon
    open_centers = open_method.fit(private[:0], public, noise)
    # public, so private vectors may be cut to it
    radius = float(np.linalg.norm(public, axis=1).max())
    methods: list[ClusteringMethod] = [
        PrivateKMeans(settings.centers),
        Chang(
            settings.centers,
            settings.chang_epsilon,
            settings.delta,
            settings.dimension,
            radius=radius,
        ),
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
    """Return what a result says of a method before it has seen anything."""
    cost = method.cost(RELATION)
    said = {"method": method.name, "origin": method.origin, "settings": method.settings}
    return {**said, "epsilon": cost.epsilon, "delta": cost.delta}
