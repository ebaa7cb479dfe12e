"""Nearest centres are those of a plain float64 search, whatever else is searched for at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from dpaudit.generation.clustering import assignment
from dpaudit.generation.clustering.assignment import nearest, nearest_of
from dpaudit.generation.clustering.interfaces import Vectors


def plain(vectors: Vectors, centers: Vectors) -> list[int]:
    """All squared distances in float64, then the first of the lowest."""
    apart = vectors[:, None, :].astype(np.float64) - centers[None]
    return [int(row) for row in np.square(apart).sum(axis=2).argmin(axis=1)]


def normal(seed: int, *shape: int) -> Vectors:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_the_nearest_centre_is_that_of_a_plain_search() -> None:
    for n, k, d in [(1, 1, 1), (3, 7, 2), (500, 40, 17), (257, 1, 5), (40, 300, 384)]:
        vectors, centers = normal(1, n, d), normal(2, k, d)
        found = nearest(vectors, centers)
        assert found.dtype == np.int32
        assert found.tolist() == plain(vectors, centers)


# Whole numbers tie often; numbers of very different sizes make rounding large.
_COORDINATES = st.one_of(
    st.integers(-2, 2).map(float),
    st.floats(-1e6, 1e6, width=32),
    st.floats(-(2.0**-120), 2.0**-120, width=32),
)


@settings(max_examples=50)
@given(st.data(), st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_it_is_so_for_any_numbers(data: st.DataObject, n: int, k: int, d: int) -> None:
    vectors, centers = (
        data.draw(arrays.arrays(np.float32, (rows, d), elements=_COORDINATES)) for rows in (n, k)
    )
    assert nearest(vectors, centers).tolist() == plain(vectors, centers)


def test_ties_go_to_the_lowest_index() -> None:
    centers = np.array([[5, 0], [1, 0], [-1, 0], [1, 0], [0, 1]], dtype=np.float32)
    vectors = np.array([[0, 0], [1, 0], [-3, 0], [0.5, 0.5]], dtype=np.float32)
    assert nearest(vectors, centers).tolist() == [1, 1, 2, 1]
    assert nearest(vectors, centers[[1] * 9]).tolist() == [0] * 4


def near_ties(d: int) -> tuple[Vectors, Vectors]:
    """Far from the origin, centres one float apart, and points beside the middle of two of them."""
    base = 1000 * normal(3, 1, d)
    steps = np.spacing(base) * np.random.default_rng(4).integers(-1, 2, (64, d))
    centers = (base + steps).astype(np.float32)
    middles = (centers[:-1] + np.diff(centers, axis=0) / 2).astype(np.float32)
    return np.concatenate([centers, middles]), centers


def test_near_ties_are_told_apart_where_single_precision_cannot() -> None:
    for d in [3, 64]:
        vectors, centers = near_ties(d)
        wanted = plain(vectors, centers)
        assert nearest(vectors, centers).tolist() == wanted
        scores = 0.5 * np.square(centers).sum(axis=1) - vectors @ centers.T
        assert scores.argmin(axis=1).tolist() != wanted


def test_a_vector_has_its_centre_whoever_is_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, centers = near_ties(64)
    vectors = np.concatenate([vectors, normal(5, 100, 64)])
    whole = nearest(vectors, centers)
    assert [int(nearest(vector[None], centers)[0]) for vector in vectors] == whole.tolist()
    backwards = nearest(np.ascontiguousarray(vectors[::-1]), centers)
    assert backwards[::-1].tolist() == whole.tolist()
    monkeypatch.setattr(assignment, "_SCORES", 64 * 7)
    monkeypatch.setattr(assignment, "_COORDINATES", 100)
    assert nearest(vectors, centers).tolist() == whole.tolist()


def test_vectors_may_come_from_a_mapped_file(tmp_path: Path) -> None:
    vectors, centers = normal(6, 1000, 8), normal(7, 20, 8)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    assert nearest(mapped, centers).tolist() == nearest(vectors, centers).tolist()
    assert nearest(vectors[:0], centers).tolist() == []


def test_other_orders_in_memory_make_no_difference() -> None:
    vectors, centers = normal(8, 50, 6), normal(9, 10, 6)
    assert nearest(np.asfortranarray(vectors), np.asfortranarray(centers)).tolist() == plain(
        vectors, centers
    )


@settings(max_examples=30)
@given(st.sets(st.integers(0, 29), min_size=1), st.randoms())
def test_among_some_centres_only(kept: set[int], random: st.DataObject) -> None:
    vectors, centers = normal(10, 40, 5), normal(11, 30, 5)
    centers[17] = centers[4]
    ordered = sorted(kept)
    wanted = [ordered[index] for index in plain(vectors, centers[ordered])]
    shuffled = sorted(kept, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert nearest_of(vectors, centers, np.array(shuffled)).tolist() == wanted


def test_what_cannot_be_compared_is_refused() -> None:
    for vectors, centers, problem in [
        (normal(1, 3, 2), normal(1, 0, 2), "k of at least 1"),
        (normal(1, 3, 2), normal(1, 2), "k of at least 1"),
        (normal(1, 3, 2), normal(1, 4, 3), r"must be \[n, 3\]"),
        (normal(1, 3), normal(1, 4, 3), r"must be \[n, 3\]"),
        (np.full((1, 2), np.nan, np.float32), normal(1, 4, 2), "finite"),
        (np.full((1, 2), np.inf, np.float32), normal(1, 4, 2), "finite"),
        (normal(1, 3, 2), np.full((1, 2), np.nan, np.float32), "finite"),
        (np.full((1, 2), 1e30, np.float32), np.full((1, 2), 1e30, np.float32), "finite"),
    ]:
        with pytest.raises(ValueError, match=problem):
            nearest(vectors, centers)


def test_centres_that_are_all_alike_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "_SCORES", 1000)
    sizes: list[int] = []
    compare = assignment._Search._nearest_of_close

    def counted(
        search: assignment._Search,
        points: Vectors,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        sizes.append(len(rows))
        return compare(search, points, rows, columns)

    monkeypatch.setattr(assignment._Search, "_nearest_of_close", counted)
    assert not nearest(normal(12, 500, 4), np.ones((50, 4), dtype=np.float32)).any()
    assert max(sizes) <= 1000
