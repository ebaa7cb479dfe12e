"""The file `clusters`: places of batches against a naive listing, exact centres, and refusals."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.runs import (
    ClusterPlace,
    ClusterPlaces,
    Clusters,
    RunReader,
    RunWriter,
    decoded_centers,
    encoded_centers,
    texts_digest,
)

CLUSTERED = {"sizes": (1, 2, 1, 2), "clusters": "public-centers-rebalanced"}


def listed(clusters: Clusters, generated: int) -> list[ClusterPlace]:
    """Every place, by counting."""
    places = []
    for label, (kept, batches) in enumerate(zip(clusters.kept, clusters.batches, strict=True)):
        for position, (center, count) in enumerate(zip(kept, batches, strict=True)):
            places += [
                ClusterPlace(label, position, center, n, count)
                for n in range(count)
                if n < generated
            ]
    return places


rows = st.integers(1, 4).flatmap(
    lambda keep: st.lists(
        st.lists(st.integers(1, 6), min_size=keep, max_size=keep), min_size=1, max_size=4
    )
)


@given(batches=rows, generated=st.integers(1, 8))
def test_places_are_those_of_counting(batches: list[list[int]], generated: int) -> None:
    kept = tuple(tuple(range(1, 2 * len(row), 2)) for row in batches)
    clusters = Clusters(method="public-centers", kept=kept, batches=tuple(map(tuple, batches)))
    places = ClusterPlaces(clusters, generated)
    assert (
        list(places)
        == [places[batch] for batch in range(len(places))]
        == listed(clusters, generated)
    )
    assert places.counts == {count for row in batches for count in row}
    for batch in (-1, len(places)):
        with pytest.raises(IndexError, match="has the id"):
            places[batch]


def test_places_take_no_memory_of_their_own() -> None:
    clusters = Clusters(method="public-centers", kept=((0, 1),), batches=((1 << 24, 1 << 24),))
    places = ClusterPlaces(clusters, 10**18)
    assert len(places) == 1 << 25
    assert places[len(places) - 1] == ClusterPlace(0, 1, 1, (1 << 24) - 1, 1 << 24)


def test_no_clustering_has_no_places() -> None:
    assert list(ClusterPlaces(Clusters(), 3)) == []


def test_centres_come_back_bit_for_bit() -> None:
    centers = np.array([[0.1, -0.0, np.nan], [1e-45, np.inf, 3.0]], dtype=np.float32)
    text, digest = encoded_centers(centers)
    assert decoded_centers(Clusters(method="dpm", centers=text), 2).tobytes() == centers.tobytes()
    assert encoded_centers(np.asfortranarray(centers)) == (text, digest)
    for count in (4, 5):
        with pytest.raises(ValueError, match=f"{count} rows"):
            decoded_centers(Clusters(method="dpm", centers=text), count)


def test_a_digest_of_texts_knows_where_each_one_ends() -> None:
    framed = b"\0\0\0\0\0\0\0\1b" + b"\0\0\0\0\0\0\0\3\xc3\xa9a"
    assert texts_digest(["\u00e9a", "b", "b"]) == hashlib.sha256(framed).hexdigest()
    assert texts_digest(["ab", "c"]) != texts_digest(["a", "bc"])
    assert texts_digest([]) != texts_digest([""])


def test_a_run_says_how_its_centers_were_found(make_run):
    run = make_run(**CLUSTERED)
    stated = RunReader(run.path).manifest.clustering
    assert stated == run.spec.clustering()
    assert stated.settings == {
        "k": 4,
        "projection": "none",
        "depth": 3,
        "count_scale": 40.0,
        "sum_sd": 60.0,
    }
    assert [type(value) for value in stated.settings.values()] == [int, str, int, float, float]


def test_a_run_has_its_clusters_as_they_were_written(make_run):
    run = make_run(**CLUSTERED)
    reader = RunReader(run.path)
    assert reader.clusters() == run.spec.grouping()
    assert decoded_centers(reader.clusters(), 4).tobytes() == run.spec.centers.tobytes()
    clusters = []
    for number in reader.batches:
        with reader.batch(number) as batch:
            clusters.append(batch.header.cluster)
    assert clusters == [0, 2, 1, 3]


WRONG = {
    "another method": {"method": "dpm"},
    "another shape": {"kept": ((0, 1, 2), (0, 1, 2))},
    "no counts": {"noisy_counts": ()},
    "other centres": {"centers": "AAAA" * 4},
    "centres of another digest": {
        "centers": encoded_centers(np.zeros((4, 3), dtype=np.float32))[0]
    },
    "centres beyond all embeddings": {
        "centers": encoded_centers(np.full((4, 3), 2e6, dtype=np.float32))[0]
    },
}


def test_a_writer_takes_no_clusters_that_a_reader_would_refuse(make_run, tmp_path):
    spec = make_run.generator(**CLUSTERED).spec

    def create(clusters=None):
        RunWriter.create(
            tmp_path / "run", spec.manifest, tokenizer_json=None, assignment=[], clusters=clusters
        )

    for change in WRONG.values():
        with pytest.raises(ValueError, match="clusters: "):
            create(spec.grouping().model_copy(update=change))
    with pytest.raises(ValueError, match="method is none"):
        create()


def test_a_writer_takes_no_clusters_that_are_too_large(make_run, tmp_path, monkeypatch):
    monkeypatch.setattr("dpaudit.runs.writer.MAX_CLUSTERS_BYTES", 100)
    with pytest.raises(ValueError, match="100 at most"):
        make_run.generator(**CLUSTERED).create(tmp_path / "run")
