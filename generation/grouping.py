"""A run's clusters within labels: found once, when it begins, and taken from its directory after.

Noise is drawn once all else was found to be usable, before run.json is written and never after: a
second draw would cost as much as the first. A run that goes on, its workers and its replay read
centres, noisy counts and kept centres from the file `clusters`.

Why it is private. Centres cost what their method says. Given the centres, a record is in one count
of its label, which `PrivateCounts.noised` answers for. Given centres and noisy counts, kept centres
and numbers of batches are post-processing, and where a record goes depends on that record alone, so
batches cost what they cost in a run by labels. The three compose in sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import CLUSTERINGS, CentersAsked, rebalancing_scale
from dpaudit.generation.caches import VectorCache
from dpaudit.generation.clustering.assignment import nearest, nearest_of
from dpaudit.generation.clustering.chang import Chang
from dpaudit.generation.clustering.dpm import Dpm
from dpaudit.generation.clustering.embedding import OFFLINE, Embedder
from dpaudit.generation.clustering.interfaces import ClusteringMethod, Vectors
from dpaudit.generation.clustering.kmeans import PrivateKMeans, PublicKMeans
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.clustering.rebalancing import NoisyCounts, PrivateCounts
from dpaudit.generation.config import ClusteringConfig, Config
from dpaudit.generation.events import Progress, TextsEmbedded
from dpaudit.generation.records import Record, read_texts
from dpaudit.generation.sampling import OsEntropy, SeededStream
from dpaudit.runs import (
    Clustering,
    Clusters,
    CountsNoise,
    InputError,
    Manifest,
    Privacy,
    decoded_centers,
    encoded_centers,
    texts_digest,
)
from dpaudit.runs.layout import MAX_CLUSTERS_BYTES
from dpaudit.runs.manifest import MAX_BATCHES, MAX_COORDINATE, ClusteringSettings, settings_of

_EMBEDDING = "clustering.embedding"

#: The centre that each record goes to, by its index. Private.
Centers: TypeAlias = dict[Record, int]
#: Labels of records, by their index, [n]; or centres that labels keep, [labels, k'].
_Integers: TypeAlias = NDArray[np.int64]


def group(
    config: Config, records: Sequence[Record], privacy: Privacy, progress: Progress
) -> tuple[Clustering, Clusters, Centers]:
    """Embed texts, find centres, draw noise, and send every record to a centre.

    Args:
        config: all settings, with a clustering.
        records: the private ones, distinct.
        privacy: the run's: it says how many records a unit has.
        progress: told of texts that are embedded.

    Returns:
        What run.json says of it, the file `clusters`, and where records go.

    Raises:
        InputError: the embedding model, the public texts or the settings cannot be used.
    """
    settings, all_labels = _settings(config), config.data.groups
    embedder = Embedder(
        settings.embedding or OFFLINE,
        normalize=settings.normalize,
        device=config.model.device,
        field=_EMBEDDING,
    )
    if settings.dimension is not None and settings.dimension > embedder.dimensions:
        problem = (
            f"this is {settings.dimension}, but embeddings have {embedder.dimensions} dimensions."
        )
        raise InputError("clustering.dimension", problem, "Project onto fewer.")
    texts: tuple[str, ...] = ()
    public = np.empty((0, embedder.dimensions), dtype=np.float32)
    if settings.public is not None:
        texts = read_texts(
            settings.public, settings.public_text, "clustering.public", "clustering.public_text"
        )
        public = embedder.embed(
            texts, VectorCache(), lambda done, of: progress(TextsEmbedded("public", done, of))
        )
    # Embeddings of the records are as sensitive as their texts, so none of them is kept.
    private = [record.text for record in records]
    vectors = embedder.embed(
        private, None, lambda done, of: progress(TextsEmbedded("private", done, of))
    )
    labels = _labels(records, all_labels)
    seed = config.sampling.seed
    # The stream is one that no batch has.
    noise = Noise(OsEntropy() if seed is None else SeededStream(seed, MAX_BATCHES))
    # The radius is public: of unit vectors 1, else the length of the longest public one. A seed
    # that is stated lets whoever has the public texts find their centres again.
    radius = 1.0
    if len(public) and not settings.normalize:
        radius = float(np.linalg.norm(public, axis=1).max())
    public_seed = noise.seed() if CLUSTERINGS[settings.method].origin == "public" else None
    method = _method(config, radius, public_seed)
    centers = method.fit(vectors, public, noise)
    _require_recordable(config, centers)
    noisy, kept = None, np.tile(np.arange(len(centers)), (len(all_labels), 1))
    if settings.keep is not None:
        if settings.keep > len(centers):
            problem = (
                f"this is {settings.keep}, but the public texts have only {len(centers)} "
                "distinct centres."
            )
            raise InputError("clustering.keep", problem, "Keep fewer, or give more public texts.")
        counts = PrivateCounts(labels, nearest(vectors, centers), (len(all_labels), len(centers)))
        noisy = counts.noised(settings.budget, privacy.relation, noise, _records_per_unit(privacy))
        kept = noisy.kept(settings.keep)
    clusters, digest = _clusters(config, centers, noisy, kept)
    statement = Clustering(
        **_declared_fields(config, method, privacy),
        settings=method.settings,
        public_digest=texts_digest(texts) if texts else None,
        embedding_digest=embedder.digest,
        centers=len(centers),
        keep=kept.shape[1],
        digest=digest,
    )
    return statement, clusters, _nearest_kept(records, labels, vectors, centers, kept)


def expected_statement(config: Config, privacy: Privacy, begun: Manifest | None) -> Clustering:
    """Return run.json's statement of the clustering for a run under this config.

    Findings, such as the number of centres and their digest, are those of the run that has begun. A
    new run has a single centre here.

    Raises:
        InputError: the settings are out of their range.
    """
    settings, method = _settings(config), _method(config)
    declared = _declared_fields(config, method, privacy)
    if begun is None:
        return Clustering(**declared, settings=method.settings, centers=1, keep=1)
    found = begun.clustering
    # Drawn, measured on the public texts, or worked out by libraries whose last digits change with
    # their versions.
    found_then = [
        "seed",
        "count_scale",
        "split_epsilon",
        "sum_sd",
        *["radius"] * (not settings.normalize),
    ]
    known = {name: found.settings[name] for name in found_then if name in found.settings}
    keep = found.keep if settings.keep is None else settings.keep
    declared |= {"settings": {**method.settings, **known}, "keep": keep, "epsilon": found.epsilon}
    return found.model_copy(update=declared)


def recompute_grouping(
    manifest: Manifest, clusters: Clusters, records: Sequence[Record], where: str
) -> tuple[Centers | None, int | None]:
    """Embed a run's records anew and send each to a recorded centre; nothing without a clustering.

    Args:
        manifest, clusters: of the run, as `RunReader` has them.
        records: the run's.
        where: names run.json.

    Returns:
        Where records go, and the noise on counts as `dpaudit.results.replay.Replay.noise` has it.
        Both are private.

    Raises:
        InputError: the run does not say which model or centres it had, or the model is not the
            run's.
    """
    stated = manifest.clustering
    if stated.method == "none":
        return None, None
    if (
        stated.embedding is None
        or stated.embedding_digest is None
        or stated.digest is None
        or stated.centers is None
    ):
        problem = "the run does not say which embedding model or which centres it used."
        raise InputError(
            f"{where}: clustering", problem, "Only runs of `dpaudit generate` can be replayed."
        )
    # A vector that was made on a CPU is computed bit for bit only there.
    device: Literal["auto", "cpu"] = "cpu" if manifest.model.device == "cpu" else "auto"
    field = f"{where}: {_EMBEDDING}"
    embedder = Embedder(
        stated.embedding, normalize=bool(stated.normalize), device=device, field=field
    )
    centers = decoded_centers(clusters, stated.centers)
    if embedder.digest != stated.embedding_digest or embedder.dimensions != centers.shape[1]:
        problem = f"the model that {stated.embedding!r} names now is not the one that the run used."
        raise InputError(field, problem, "Put the run's model there.")
    labels, kept = _labels(records, manifest.data.groups), np.array(clusters.kept)
    vectors = embedder.embed([record.text for record in records])
    noise = None
    if clusters.noisy_counts:  # only an audit may look at exact ones
        noisy = np.array(clusters.noisy_counts, dtype=np.int64)
        places = np.ravel_multi_index((labels, nearest(vectors, centers)), noisy.shape)
        exact = np.bincount(places, minlength=noisy.size).reshape(noisy.shape)
        noise = int(np.abs(noisy - exact).sum())
    return _nearest_kept(records, labels, vectors, centers, kept), noise


def _settings(config: Config) -> ClusteringConfig:
    assert config.clustering is not None, "the config asks for no clustering"
    return config.clustering


def _labels(records: Sequence[Record], labels: Sequence[str]) -> _Integers:
    numbers = {label: number for number, label in enumerate(labels)}
    return np.array([numbers[record.label] for record in records], dtype=np.int64)


def _method(config: Config, radius: float = 1.0, seed: int | None = None) -> ClusteringMethod:
    """Return the source of the centres; which are kept is decided later.

    No cost depends on radius and seed.
    """
    settings, relation = _settings(config), config.privacy.relation
    centers, delta = settings.centers or 1, settings.delta or 0.0
    try:
        if settings.method == "k-means":
            return PrivateKMeans(centers)
        if settings.method == "chang":
            dimension = settings.dimension or 1
            return Chang(
                centers, settings.budget, delta, dimension, radius=radius, relation=relation
            )
        if settings.method == "dpm":
            return Dpm(settings.budget, delta, relation, radius)
        if settings.method not in CLUSTERINGS.own:
            asked = (settings.centers, settings.epsilon, settings.delta, settings.dimension)
            method: ClusteringMethod = CLUSTERINGS[settings.method].fitting(
                CentersAsked(*asked, relation, radius, seed)
            )
            return method
    except ValueError as error:
        raise InputError("clustering", f"{error}.", "Choose another number.") from None
    return PublicKMeans(centers, seed)


def _declared_fields(config: Config, method: ClusteringMethod, privacy: Privacy) -> dict[str, Any]:
    """Return the fields of run.json's clustering that follow from the config."""
    settings = _settings(config)
    cost, counts = method.cost(privacy.relation), None
    if settings.keep is not None:
        scale = rebalancing_scale(settings.budget, privacy.relation, _records_per_unit(privacy))
        counts = CountsNoise(epsilon=settings.budget, scale=scale, noised="before-selection")
    asked = settings_of(settings, ClusteringSettings)
    del asked["centers"], asked["keep"]  # as many as are found and kept
    return {
        **asked,
        "origin": method.origin,
        "embedding": settings.embedding or OFFLINE,
        "epsilon": cost.epsilon if np.isfinite(cost.epsilon) else None,
        "delta": cost.delta,
        "counts": counts,
    }


def _records_per_unit(privacy: Privacy) -> int:
    """Return a unit's records: claims per context go with rules where a context is a record."""
    return (privacy.records_per_user or 1) if privacy.unit == "user" else 1


def _require_recordable(config: Config, centers: Vectors) -> None:
    """Refuse centres before counts are noised.

    Raises:
        InputError: a run directory holds no such centres, or fewer batches.
    """
    if not bool((np.abs(centers) <= MAX_COORDINATE).all()):
        problem = f"the model's vectors reach beyond {MAX_COORDINATE:,.0f}."
        raise InputError(
            _EMBEDDING, problem, "Use another model, or set clustering.normalize to true."
        )
    if len(encoded_centers(centers)[0]) >= MAX_CLUSTERS_BYTES:
        raise _too_large(centers)
    kept = _settings(config).keep or len(centers)
    each, labels, rounds = (
        config.batching.generate_per_cluster,
        len(config.data.groups),
        config.batching.rounds,
    )
    if labels * kept * each * rounds > MAX_BATCHES:
        problem = f"this is {each:,}, for {kept:,} clusters of each of {labels:,} labels"
        problem += "." if rounds == 1 else f" in each of {rounds:,} rounds."
        remedy = f"Ask for fewer: a run has at most {MAX_BATCHES:,} batches."
        raise InputError("batching.generate_per_cluster", problem, remedy)


def _clusters(
    config: Config, centers: Vectors, noisy: NoisyCounts | None, kept: _Integers
) -> tuple[Clusters, str]:
    """Return the file `clusters`, and the digest of the centres in it.

    Raises:
        InputError: it would be larger than readers accept.
    """
    batching, (encoded, digest) = config.batching, encoded_centers(centers)
    if (
        noisy is not None
        and batching.records_per_batch is not None
        and batching.most_batches is not None
    ):
        least = batching.least_batches or 1
        batches = noisy.batches(kept, batching.records_per_batch, batching.most_batches, least)
    else:
        batches = np.full(kept.shape, batching.batches_per_cluster)
    clusters = Clusters(
        method=_settings(config).method,
        centers=encoded,
        noisy_counts=() if noisy is None else _rows(noisy.values),
        kept=_rows(kept),
        batches=_rows(batches),
    )
    if len(clusters.model_dump_json()) >= MAX_CLUSTERS_BYTES:
        raise _too_large(centers)
    return clusters, digest


def _too_large(centers: Vectors) -> InputError:
    problem = (
        f"{len(centers):,} centres of {centers.shape[1]} dimensions are more than a run "
        "directory holds."
    )
    return InputError("clustering.centers", problem, "Ask for fewer.")


def _rows(table: _Integers) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, table.tolist()))


def _nearest_kept(
    records: Sequence[Record],
    labels: _Integers,
    vectors: Vectors,
    centers: Vectors,
    kept: _Integers,
) -> Centers:
    """Return each record's nearest centre among those that its label keeps."""
    found: Centers = {}
    for label, allowed in enumerate(kept):
        rows = np.flatnonzero(labels == label)
        places = nearest_of(vectors[rows], centers, allowed)
        found.update(zip((records[row] for row in rows.tolist()), places.tolist(), strict=True))
    return found
