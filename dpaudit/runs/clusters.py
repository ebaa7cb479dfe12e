"""The content of the file `clusters`: centres, and the batch ids of each cluster."""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from dpaudit.runs.manifest import MAX_COORDINATE, Clusters, Manifest

_FLOAT = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """The place of a batch id.

    Attributes:
        label: index of the label.
        position: of the cluster among the centres that the label keeps.
        center: index of the centre.
        number: of the batch within the cluster.
        count: number of batches that the cluster's records are hashed into.
    """

    label: int
    position: int
    center: int
    number: int
    count: int


class ClusterPlaces:
    """The places of batch ids 0, 1, 2, ... in every round.

    They run through labels, their clusters, and the first batches of each. A place is worked out
    when it is asked for, so that memory grows with the clusters only.
    """

    def __init__(self, clusters: Clusters, generate_per_cluster: int, rounds: int = 1) -> None:
        """Work out the ids of at most `generate_per_cluster` batches of each cluster.

        Rows of `kept` and `batches` must have the same lengths.
        """
        self._clusters, self._rounds = clusters, rounds
        self._kept = len(clusters.kept[0]) if clusters.kept else 0
        generated = (min(generate_per_cluster, count) for row in clusters.batches for count in row)
        self._ends = list(accumulate(generated))

    @property
    def counts(self) -> frozenset[int]:
        """The distinct numbers of batches that clusters are hashed into."""
        return frozenset(count for row in self._clusters.batches for count in row)

    @property
    def groups(self) -> list[tuple[range, int]]:
        """Each cluster's batch ids in the first round, and the number of batches it is hashed into.

        Clusters come in the order of ids.
        """
        counts = [count for row in self._clusters.batches for count in row]
        ids = (range(start, end) for start, end in pairwise([0, *self._ends]))
        return list(zip(ids, counts, strict=True))

    @property
    def per_round(self) -> int:
        """The number of batches that a round generates."""
        return self._ends[-1] if self._ends else 0

    def __len__(self) -> int:
        return self._rounds * self.per_round

    def __getitem__(self, batch: int) -> ClusterPlace:
        if not 0 <= batch < len(self):
            raise IndexError(f"there are {len(self)} batches, and none has the id {batch}")
        batch %= self.per_round
        cluster = bisect_right(self._ends, batch)
        label, position = divmod(cluster, self._kept)
        first = self._ends[cluster - 1] if cluster else 0
        kept, batches = self._clusters.kept[label], self._clusters.batches[label]
        return ClusterPlace(label, position, kept[position], batch - first, batches[position])


def texts_digest(texts: Iterable[str]) -> str:
    """Return the digest of public texts, whatever their order and however often they come.

    `Clustering.public_digest` holds it. It is the SHA-256 of the distinct texts in ascending order
    of their UTF-8, each after its length in bytes (eight bytes, big-endian).
    """
    digest = hashlib.sha256()
    for text in sorted({text.encode("utf-8") for text in texts}):
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()


def encoded_centers(centers: NDArray[np.float32]) -> tuple[str, str]:
    """Return centres [k, d] as in `Clusters.centers`, and the digest for `Clustering.digest`."""
    data = np.ascontiguousarray(centers).astype(_FLOAT, copy=False).tobytes()
    return base64.b64encode(data).decode("ascii"), hashlib.sha256(data).hexdigest()


def decoded_centers(clusters: Clusters, count: int) -> NDArray[np.float32]:
    """Return the centres: float32 [count, d], read-only.

    Raises:
        ValueError: the file does not hold `count` centres.
    """
    data = base64.b64decode(clusters.centers, validate=True)
    if not data or len(data) % (count * _FLOAT.itemsize):
        raise ValueError(f"centers does not hold {count} rows of float32")
    return np.frombuffer(data, dtype=_FLOAT).reshape(count, -1)


def clusters_problem(clusters: Clusters, manifest: Manifest) -> str | None:
    """Return why the file `clusters` cannot be that of this run.json, or None.

    The reason is the end of a sentence.
    """
    declared = manifest.clustering
    if clusters.method != declared.method:
        return (
            f"method is {clusters.method}, and clustering.method in run.json is {declared.method}"
        )
    if declared.method == "none":
        listed = [
            name
            for name in ("centers", "noisy_counts", "kept", "batches")
            if getattr(clusters, name)
        ]
        if listed:
            return f"{listed[0]} is for a clustering, and there is none"
        return None
    assert declared.centers is not None  # as the manifest's own validation has it
    assert declared.keep is not None
    labels = len(manifest.data.groups)
    shapes = {"kept": (labels, declared.keep), "batches": (labels, declared.keep)}
    if clusters.noisy_counts or declared.counts is not None:
        shapes["noisy_counts"] = (labels, declared.centers)
    for name, (rows, columns) in shapes.items():
        table = getattr(clusters, name)
        if len(table) != rows or any(len(row) != columns for row in table):
            return f"{name} is not {columns} numbers for each of {rows} labels"
    for row in clusters.kept:
        if any(here >= after for here, after in pairwise(row)) or row[-1] >= declared.centers:
            return f"a row of kept is not ascending indices of {declared.centers} centres"
    most, least = manifest.batching.most_batches, manifest.batching.least_batches
    if most is not None and any(count > most for row in clusters.batches for count in row):
        return f"a cluster has more than batching.most_batches, {most}"
    if least is not None and any(count < least for row in clusters.batches for count in row):
        return f"a cluster has fewer than batching.least_batches, {least}"
    each = manifest.batching.batches_per_cluster
    if each is not None and any(count != each for row in clusters.batches for count in row):
        return f"a cluster has another number than batching.batches_per_cluster, {each}"
    if not clusters.centers and declared.digest is None:
        return None
    try:
        centers = decoded_centers(clusters, declared.centers)
    except ValueError as error:
        return str(error)
    if not bool((np.abs(centers) <= MAX_COORDINATE).all()):  # nor is NaN
        return f"centers holds a number that is not finite, or beyond {MAX_COORDINATE:,.0f}"
    _, found = encoded_centers(centers)
    if declared.digest in (None, found):
        return None
    return "centers are not those of clustering.digest in run.json"
