"""k-means: public centres look at nothing private; private ones cost what nothing bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpaudit.generation.clustering.assignment import nearest
from dpaudit.generation.clustering.interfaces import ClusteringMethod, Vectors
from dpaudit.generation.clustering.kmeans import PrivateKMeans, PublicKMeans
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.sampling import SeededStream
from dpaudit.runs import InputError

NOTHING = np.zeros((0, 3), dtype=np.float32)
CORNERS = np.array([[0, 0, 0], [10, 0, 0], [0, 10, 0], [0, 0, 10]], dtype=np.float32)


def noise(seed: int = 1) -> Noise:
    return Noise(SeededStream(seed, 0))


def blobs(seed: int = 0) -> Vectors:
    """Thirty points about each corner."""
    spread = np.random.default_rng(seed).standard_normal((30 * len(CORNERS), 3)).astype(np.float32)
    return (np.repeat(CORNERS, 30, axis=0) + spread / 4).astype(np.float32)


def ordered(centers: Vectors) -> list[list[float]]:
    found: list[list[float]] = np.round(centers[nearest(CORNERS, centers)]).tolist()
    return found


def test_a_seed_says_where_the_search_starts() -> None:
    rough = np.random.default_rng(3).standard_normal((120, 3)).astype(np.float32)
    given = PublicKMeans(40, noise(1).seed())
    assert np.array_equal(
        given.fit(NOTHING, rough, noise(2)), PublicKMeans(40).fit(NOTHING, rough, noise(1))
    )
    assert given.settings == {**PublicKMeans(40).settings, "seed": given.seed}


def test_public_centres_are_those_of_the_public_texts() -> None:
    method: ClusteringMethod = PublicKMeans(4)
    centers = method.fit(NOTHING, blobs(), noise())
    assert centers.dtype == np.float32
    assert ordered(centers) == CORNERS.tolist()


def test_public_centres_never_look_at_a_private_record() -> None:
    method, public = PublicKMeans(4), blobs()
    garbage = np.full((7, 9), np.nan, dtype=np.float32)
    without = method.fit(None, public, noise())  # type: ignore[arg-type]
    assert np.array_equal(without, method.fit(garbage, public, noise()))
    assert np.array_equal(without, method.fit(100 * blobs(1), public, noise()))


def test_private_centres_are_those_of_the_records() -> None:
    method: ClusteringMethod = PrivateKMeans(4)
    assert ordered(method.fit(blobs(), NOTHING, noise())) == CORNERS.tolist()
    assert method.fit(NOTHING, NOTHING, noise()).tolist() == [[0, 0, 0]]
    assert len(method.fit(blobs()[:3], NOTHING, noise())) == 3


def test_what_they_cost() -> None:
    for relation in ("add_remove", "replace"):
        assert PublicKMeans(4).cost(relation).epsilon == 0
        assert PrivateKMeans(4).cost(relation).epsilon == math.inf
    assert (PublicKMeans(4).origin, PrivateKMeans(4).origin) == ("public", "private")
    assert PublicKMeans(4).name != PrivateKMeans(4).name


def test_a_seed_gives_the_same_centres_again() -> None:
    rough = np.random.default_rng(2).standard_normal((300, 3)).astype(np.float32)
    first, again, other = (PublicKMeans(40).fit(NOTHING, rough, noise(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_no_more_centres_than_distinct_points() -> None:
    repeated = np.concatenate([np.repeat(CORNERS, 5, axis=0), -np.zeros((5, 3), dtype=np.float32)])
    centers = PublicKMeans(9).fit(NOTHING, repeated, noise())
    assert sorted(centers.tolist()) == sorted(CORNERS.tolist())


def test_too_few_public_texts_are_said() -> None:
    with pytest.raises(InputError, match="too few for 121 cluster centres"):
        PublicKMeans(121).fit(blobs(), blobs(), noise())
