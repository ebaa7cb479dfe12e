"""The paper's comparison, on vectors whose clusters are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import v_measure_score

from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.experiments.clusterings import LARGE, ComparisonSettings, compare
from dpaudit.generation.sampling import SeededStream

SETTINGS = ComparisonSettings(
    centers=12, keep=4, chang_epsilon=2.0, dpm_epsilons=(2.0,), rebalancing_epsilon=1.0, dimension=4
)


def blobs(centers: Vectors, size: int, seed: int) -> Vectors:
    random = np.random.default_rng(seed)
    vectors = np.repeat(centers, size, axis=0) + 0.05 * random.normal(
        size=(len(centers) * size, centers.shape[1])
    )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Vectors = (vectors / lengths).astype(np.float32)
    return found


@pytest.fixture(scope="module")
def vectors() -> tuple[Vectors, Vectors]:
    """Private records in 4 of the 12 places where public texts are."""
    places = np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32)
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    return blobs(places[:4], 300, 1), blobs(places, 50, 2)


def test_every_method_is_told_with_its_cost(vectors: tuple[Vectors, Vectors]) -> None:
    told: list[tuple[str, int, int]] = []
    found = compare(
        *vectors, SETTINGS, Noise(SeededStream(1, 0)), lambda *event: told.append(event)
    )
    names = ["k-means", "chang", "dpm", "public-centers", "public-centers-rebalanced"]
    assert [method.method for method in found] == names
    assert [method.origin for method in found] == [
        "private",
        "noised",
        "noised",
        "public",
        "noised",
    ]
    epsilons = [method.epsilon for method in found]
    assert epsilons[0] == math.inf and epsilons[3] == 0
    assert epsilons[1] <= 2 and epsilons[2] <= 2
    assert epsilons[4] == 1.0
    kept = {"keep": 4, "rebalancing_epsilon": 1.0, "rebalancing_relation": "add_remove"}
    assert found[4].settings == {**found[3].settings, **kept}
    assert [method.delta for method in found] == [0, 1e-6, 1e-6, 0, 0]
    assert [name for name, _, _ in told][1:] == [f"Clustering: {name}" for name in names]


def test_rebalancing_keeps_the_centres_where_records_are(vectors: tuple[Vectors, Vectors]) -> None:
    *_, rebalanced = compare(*vectors, SETTINGS, Noise(SeededStream(1, 0)), lambda *_: None)
    assert rebalanced.centers == 4
    assert rebalanced.sizes == (300, 300, 300, 300)
    assert rebalanced.large == rebalanced.clusters == 4
    assert min(rebalanced.sizes) >= LARGE


def test_v_measures_compare_with_the_first_method(vectors: tuple[Vectors, Vectors]) -> None:
    found = compare(*vectors, SETTINGS, Noise(SeededStream(1, 0)), lambda *_: None)
    assert found[0].v_measure == pytest.approx(v_measure_score([0, 1], [0, 1]))
    assert all(0 <= method.v_measure <= 1 for method in found)
    assert found[4].v_measure > 0.5


def test_sizes_count_every_record(vectors: tuple[Vectors, Vectors]) -> None:
    for method in compare(*vectors, SETTINGS, Noise(SeededStream(2, 0)), lambda *_: None):
        assert sum(method.sizes) == 1200
        assert list(method.sizes) == sorted(method.sizes, reverse=True)
        assert method.clusters == sum(size >= 2 for size in method.sizes)
