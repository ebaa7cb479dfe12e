"""Chang's tree lets through what its cost says, whatever the records, and is worth it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.cluster import KMeans

from dpaudit.accounting import ChangScales
from dpaudit.accounting.centers import changes
from dpaudit.generation.clustering.chang import (
    Chang,
    Integers,
    Tree,
    calibrated,
    grow,
    hyperplanes,
    paths,
)
from dpaudit.generation.clustering.grid import RADIUS, UNIT, Doubles, Projection, on_grid
from dpaudit.generation.clustering.interfaces import ClusteringMethod, Vectors
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.sampling import SeededStream
from dpaudit.mechanisms import Relation

RELATIONS: tuple[Relation, ...] = get_args(Relation)
#: Noise that rounds to none.
SILENT = {"count_scale": 1e-3, "sum_sd": 1e-8}
NOTHING = np.zeros((0, 4), dtype=np.float32)
DELTA = 1e-6


def noise(seed: int = 1) -> Noise:
    return Noise(SeededStream(seed, 0))


@cache
def chang(k: int = 3, dimension: int = 4) -> Chang:
    """Calibrated once."""
    return Chang(k, 1.0, DELTA, dimension)


def vectors(n: int, dimensions: int, seed: int = 0, length: float = 1.0) -> Vectors:
    drawn = np.random.default_rng(seed).standard_normal((n, dimensions))
    return (drawn * length / np.sqrt(dimensions)).astype(np.float32)


# Whole numbers.


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.floats(-30, 30),
    st.sampled_from([0.1, 1.0, 7.3]),
    st.integers(0, 2**32 - 1),
)
def test_no_vector_is_longer_than_the_radius_in_exact_arithmetic(
    dimensions: int, magnitude: float, radius: float, seed: int
) -> None:
    rows = vectors(4, dimensions, seed, length=10.0**magnitude)
    projection = Projection.random(dimensions, max(1, dimensions // 2), np.random.default_rng(seed))
    for whole in (on_grid(rows, radius), projection.apply(on_grid(rows, radius))):
        exact = [[int(number) for number in row] for row in whole]
        assert np.array_equal(np.array(exact, dtype=np.float64), whole)
        assert all(sum(number * number for number in row) <= int(RADIUS) ** 2 for row in exact)


def test_short_vectors_keep_their_place_and_long_ones_their_direction() -> None:
    short, long = vectors(50, 6, length=0.3), vectors(50, 6, length=1e20)
    np.testing.assert_allclose(on_grid(short, 2.0) * 2 / RADIUS, short, atol=2 / RADIUS)
    directions = long / np.linalg.norm(long.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(on_grid(long, 2.0) / RADIUS, directions, atol=3 / RADIUS)


def test_what_a_record_adds_does_not_depend_on_the_others_to_the_last_bit() -> None:
    rows, generator = vectors(257, 384), np.random.default_rng(5)
    projection, planes = Projection.random(384, 24, generator), hyperplanes(20, 24, generator)
    together = projection.apply(on_grid(rows, 1.0))
    for some in (slice(0, 1), slice(3, 100), slice(256, 257)):
        alone = projection.apply(on_grid(rows[some], 1.0))
        assert np.array_equal(alone, together[some])
        assert np.array_equal(paths(alone, planes), paths(together, planes)[some])
    assert np.array_equal(projection.apply(on_grid(rows[::-1], 1.0)), together[::-1])


def test_projected_products_are_exact() -> None:
    """Against whole numbers of any size."""
    rows, generator = on_grid(vectors(20, 300, length=5.0), 1.0), np.random.default_rng(5)
    projection = Projection.random(300, 7, generator)
    assert projection.rows is not None
    exact = rows.astype(np.int64).astype(object) @ projection.rows.T.astype(np.int64).astype(object)
    assert np.array_equal(rows @ projection.rows.T, exact.astype(np.float64))
    planes = hyperplanes(9, 300, generator)
    exact_sides = (
        rows.astype(np.int64).astype(object) @ planes.T.astype(np.int64).astype(object) >= 0
    )
    bits = ["".join(str(int(side)) for side in row) for row in exact_sides]
    assert paths(rows, planes).tolist() == [int(row, 2) for row in bits]


def test_a_projection_keeps_lengths_on_average_and_a_lifted_centre_is_nearest_where_it_was() -> (
    None
):
    rows, generator = vectors(400, 96, length=0.5), np.random.default_rng(3)
    projection = Projection.random(96, 12, generator)
    whole = projection.apply(on_grid(rows, 1.0))
    squares = (whole / RADIUS) ** 2
    assert squares.sum(axis=1).mean() == pytest.approx((rows**2).sum(axis=1).mean(), rel=0.1)
    centers = generator.standard_normal((9, 12)) / 5
    low = ((whole[:, None] / RADIUS - centers) ** 2).sum(axis=2).argmin(axis=1)
    full = ((rows[:, None] - projection.lift(centers)) ** 2).sum(axis=2).argmin(axis=1)
    assert (low == full).mean() > 0.99


def test_no_projection_where_there_is_none_to_be_made() -> None:
    projection = Projection.random(8, 8, np.random.default_rng(0))
    assert projection.rows is None
    whole = on_grid(vectors(3, 8), 1.0)
    assert projection.apply(whole) is whole
    assert projection.lift(whole) is whole


def test_numbers_that_are_not_finite_are_refused() -> None:
    for number in [math.nan, math.inf, -math.inf]:
        rows = vectors(5, 4)
        rows[2, 1] = number
        with pytest.raises(ValueError, match="not finite"):
            chang().fit(rows, NOTHING, noise())


def test_vectors_too_wide_for_exact_sums_are_refused() -> None:
    with pytest.raises(ValueError, match="65537 dimensions"):
        on_grid(np.zeros((1, 65537), dtype=np.float32), 1.0)


# The tree, against a recursion over lists.


@dataclass(frozen=True)
class Recursion:
    """The tree without noise, record by record."""

    whole: Doubles
    words: list[str]
    depth: int
    least: int

    def nodes(self, prefix: str = "") -> dict[str, int]:
        """The count of every prefix in the tree."""
        count = len(self.members(prefix))
        if count < 3 * self.least or len(prefix) == self.depth:
            return {prefix: count}
        return {prefix: count, **self.nodes(prefix + "0"), **self.nodes(prefix + "1")}

    def leaves(self) -> dict[str, list[int]]:
        """The sums of prefixes that have no children, but enough records."""
        nodes = self.nodes()
        ends = [
            prefix
            for prefix, count in nodes.items()
            if count >= self.least and prefix + "0" not in nodes
        ]
        return {
            prefix: [int(total) for total in self.whole[self.members(prefix)].sum(axis=0)]
            for prefix in ends
        }

    def members(self, prefix: str) -> list[int]:
        return [index for index, word in enumerate(self.words) if word.startswith(prefix)]


def word(prefix: int, bits: int) -> str:
    return format(prefix, f"0{bits}b") if bits else ""


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 60),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(0, 2**32 - 1),
)
def test_a_tree_without_noise_is_the_recursion(
    n: int, depth: int, dimensions: int, least: int, seed: int
) -> None:
    whole = on_grid(vectors(n, dimensions, seed), 1.0)
    hashes = paths(whole, hyperplanes(depth, dimensions, np.random.default_rng(seed)))
    reference = Recursion(whole, [word(path, depth) for path in hashes], depth, least)
    tree = grow(whole, hashes, ChangScales(depth, **SILENT), lambda total: least, noise())
    counts = {
        word(prefix, bits): int(count)
        for bits, level in enumerate(tree.levels)
        for prefix, count in zip(level.prefixes, level.counts, strict=True)
    }
    leaves = [
        word(prefix, bits) for bits, level in enumerate(tree.leaves) for prefix in level.prefixes
    ]
    assert counts == reference.nodes()
    assert dict(zip(leaves, tree.sums.tolist(), strict=True)) == reference.leaves()


def test_thresholds_follow_the_noisy_count_of_the_root() -> None:
    whole = on_grid(vectors(500, 2), 1.0)
    hashes, seen = paths(whole, hyperplanes(3, 2, np.random.default_rng(0))), []

    def least(total: int) -> int:
        seen.append(total)
        return 40

    tree = grow(whole, hashes, ChangScales(3, 50.0, 1.0), least, noise())
    assert seen == [tree.levels[0].counts[0]] != [500]
    assert all((level.counts >= 40).all() for level in tree.leaves)


def test_averages_are_within_the_radius_and_weighted_by_noisy_counts() -> None:
    whole = on_grid(vectors(300, 3), 1.0)
    hashes = paths(whole, hyperplanes(4, 3, np.random.default_rng(0)))
    tree = grow(whole, hashes, ChangScales(4, 2.0, 8.0), lambda total: 1, noise())
    points, weights = tree.coreset()
    assert weights.tolist() == [count for level in tree.leaves for count in level.counts]
    lengths = np.linalg.norm(points, axis=1)
    assert lengths.max() == pytest.approx(1.0)
    inside = lengths < 1 - 1e-9
    assert inside.any()
    np.testing.assert_allclose(points[inside] * weights[inside, None] * RADIUS, tree.sums[inside])


# The cost.


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 12),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from(RELATIONS),
    st.integers(0, 2**32 - 1),
)
def test_no_neighbours_move_more_than_a_case_says(
    n: int, depth: int, least: int, relation: Relation, seed: int
) -> None:
    """If neighbours have the same tree, exact counts and sums differ by no more than some case."""
    rows = on_grid(vectors(n + 2, 2, seed, length=3.0), 1.0)
    planes = hyperplanes(depth, 2, np.random.default_rng(seed))
    neighbours = (
        (rows[:-2], rows[:-1])
        if relation == "add_remove"
        else (rows[:-1], rows[[*range(n), n + 1]])
    )
    sides = [Side.of(whole, planes) for whole in neighbours]
    tree = grow(
        neighbours[0],
        sides[0].hashes,
        ChangScales(depth, 2.0, 1.0),
        lambda total: least,
        noise(seed),
    )
    counts = [side.counts(tree) for side in sides]
    moved = np.abs(counts[0] - counts[1])
    distance = float(np.linalg.norm(sides[0].sums(tree) - sides[1].sums(tree))) / RADIUS
    assert moved.max(initial=0) <= 1
    assert any(
        moved.sum() <= case.counts and distance <= case.distance * (1 + 1e-12)
        for case in changes(relation, depth)
    )


@pytest.mark.parametrize(
    "epsilon", [1.0, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.01, 20.0))]
)
def test_noise_uses_the_budget_up(epsilon: float) -> None:
    for relation in RELATIONS:
        spent = Chang(5, epsilon, DELTA, 4, relation=relation).cost(relation).epsilon
        assert 0.999 * epsilon <= spent <= epsilon


def test_noise_for_replacements_is_cheaper_for_additions() -> None:
    method = Chang(5, 1.0, DELTA, 4, relation="replace")
    assert method.cost("add_remove").epsilon < 0.9
    assert chang().cost("replace").epsilon > 1.2


# Distinguishing neighbours.


@dataclass(frozen=True)
class Side:
    """One of two neighbours, as an adversary knows it."""

    whole: Doubles
    hashes: Integers
    depth: int

    @classmethod
    def of(cls, whole: Doubles, planes: Doubles) -> Side:
        return cls(whole, paths(whole, planes), len(planes))

    def counts(self, tree: Tree) -> Integers:
        """Exact counts of a tree's nodes."""
        nodes = [
            self._members(bits, prefix)
            for bits, level in enumerate(tree.levels)
            for prefix in level.prefixes
        ]
        return np.array([members.sum() for members in nodes])

    def sums(self, tree: Tree) -> Doubles:
        """Exact sums of a tree's leaves."""
        nodes = [
            self._members(bits, prefix)
            for bits, level in enumerate(tree.leaves)
            for prefix in level.prefixes
        ]
        return np.array([self.whole[members].sum(axis=0) for members in nodes]).reshape(
            -1, self.whole.shape[1]
        )

    def _members(self, bits: int, prefix: int) -> np.ndarray:
        return self.hashes >> (self.depth - bits) == prefix


# What is let through.


class Watched(Noise):
    """Noise that records each request and each answer.

    The first count's noise gets something on top.
    """

    def __init__(self, seed: int, first: int = 0) -> None:
        super().__init__(SeededStream(seed, 0))
        self.counts: list[tuple[float, Integers]] = []
        self.sums: list[tuple[float, Doubles]] = []
        self._first = first

    def rounded_laplace(self, scale: float, size: int) -> Integers:
        drawn = super().rounded_laplace(scale, size) + self._first
        self._first = 0
        self.counts.append((scale, drawn))
        return drawn

    def gaussian(self, scale: float, shape: tuple[int, ...]) -> Doubles:
        drawn = super().gaussian(scale, shape)
        self.sums.append((scale, drawn))
        return drawn


class Lifted(Noise):
    """No noise on sums, and as much on every count that the whole tree grows."""

    def rounded_laplace(self, scale: float, size: int) -> Integers:
        return np.full(size, 10**6, dtype=np.int64)

    def gaussian(self, scale: float, shape: tuple[int, ...]) -> Doubles:
        return np.zeros(shape)


@cache
def deep() -> Chang:
    """A method with noise small enough for a deep tree, and large enough to decide its growth."""
    return Chang(40, 4.0, 1e-3, 3, depth=6, radius=0.5)


def seen(method: Chang, private: Vectors, seed: int) -> tuple[Doubles, Doubles, Integers]:
    """Rows of the projection, records and hashes, by public numbers and the seed alone."""
    generator = np.random.default_rng(noise(seed).seed())
    projection = Projection.random(private.shape[1], method.dimension, generator)
    whole = projection.apply(on_grid(private, method.radius))
    assert projection.rows is not None
    return (
        projection.rows,
        whole,
        paths(whole, hyperplanes(method.depth, method.dimension, generator)),
    )


@pytest.mark.parametrize(
    "seeds", [(1,), pytest.param((2, 3), marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_all_that_is_let_through_is_exact_plus_drawn(seeds: Iterable[int]) -> None:
    for n, first in [(2_000, 0), (2_000, 3_000), (0, 3_000), (2_000, -1_900)]:
        for seed in seeds:
            method, drawn, private = deep(), Watched(seed, first), vectors(n, 8)
            projection, tree = method.release(private, drawn)
            rows, whole, hashes = seen(method, private, seed)
            assert np.array_equal(projection.rows, rows)
            side = Side(whole, hashes, method.depth)
            assert [scale for scale, _ in drawn.counts] == [method.settings["count_scale"]] * len(
                tree.levels
            )
            assert [len(noise) for _, noise in drawn.counts] == [
                len(level.counts) for level in tree.levels
            ]
            counts = np.concatenate([level.counts for level in tree.levels])
            assert np.array_equal(
                counts, side.counts(tree) + np.concatenate([noise for _, noise in drawn.counts])
            )
            ((scale, noise_on_sums),) = drawn.sums
            assert scale == method.settings["sum_sd"] * RADIUS
            assert noise_on_sums.shape == (
                sum(len(level.counts) for level in tree.leaves),
                method.dimension,
            )
            assert np.array_equal(tree.sums, side.sums(tree) + np.rint(noise_on_sums))
            if n and first >= 0:
                assert len(tree.levels) >= 4
                assert len(tree.sums) >= 8


@pytest.mark.parametrize(
    "seeds", [(1,), pytest.param((2, 3), marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_a_tree_grows_by_noisy_counts_alone(seeds: Iterable[int]) -> None:
    for n, first in [(2_000, 0), (2_000, 3_000), (0, 3_000), (2_000, -1_900)]:
        for seed in seeds:
            method = deep()
            _, tree = method.release(vectors(n, 8), Watched(seed, first))
            total = int(tree.levels[0].counts[0])
            quiet = method.scales.sum_sd * math.sqrt(method.dimension) / 0.1
            least = math.ceil(
                max(1, 2 * method.scales.count_scale, min(quiet, total / (2 * method.k)))
            )
            level, expected, leaves = {0: total}, [], []
            for bits, found in enumerate(tree.levels):
                assert found.prefixes.tolist() == sorted(level)
                level = dict(zip(found.prefixes.tolist(), found.counts.tolist(), strict=True))
                grows = [
                    prefix
                    for prefix, count in level.items()
                    if count >= 3 * least and bits < method.depth
                ]
                leaves.append(
                    [
                        prefix
                        for prefix, count in level.items()
                        if count >= least and prefix not in grows
                    ]
                )
                expected.append(len(level))
                level = {child: 0 for prefix in grows for child in (2 * prefix, 2 * prefix + 1)}
            assert not level
            assert [each.prefixes.tolist() for each in tree.leaves] == leaves


#: Far beyond the radius, in whatever direction.
LONG = np.array(
    [[1e9, -3e8, 7, 0, 0, 0, 0, 1e7], [-9.0, 2, 5, 5, 5, 5, 5, 5], [0.1] * 8], dtype=np.float32
)


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 6), marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_one_record_moves_what_the_proof_says_and_no_more(seeds: Iterable[int]) -> None:
    """`fit`, on everything that goes into the tree and on all counts and sums of the whole tree."""
    for relation in RELATIONS:
        for seed in seeds:
            with pytest.MonkeyPatch.context() as monkeypatch:
                others, last = vectors(60, 8, seed), LONG[[seed % 3]]
                before = (
                    others
                    if relation == "add_remove"
                    else np.concatenate([others, LONG[[(seed + 1) % 3]]])
                )
                given: list[tuple[Doubles, Integers, ChangScales, list[int]]] = []
                trees: list[Tree] = []

                def watched(
                    whole: Doubles,
                    hashes: Integers,
                    scales: ChangScales,
                    least: Callable[[int], int],
                    noise: Noise,
                ) -> Tree:
                    given.append(
                        (
                            whole,
                            hashes,
                            scales,
                            [least(total) for total in (-5, 0, 60, 1000, 10**9)],
                        )
                    )
                    trees.append(grow(whole, hashes, scales, lambda total: 1, noise))
                    return trees[-1]

                monkeypatch.setattr("dpaudit.generation.clustering.chang.grow", watched)
                for private in (before, np.concatenate([others, last])):
                    deep().fit(private, NOTHING, Lifted(SeededStream(seed, 0)))
                one, other = given
                assert np.array_equal(one[0][:60], other[0][:60])
                assert np.array_equal(one[1][:60], other[1][:60])
                assert one[2:] == other[2:]
                assert one[2] == deep().scales
                counts = [np.concatenate([level.counts for level in tree.levels]) for tree in trees]
                moved = np.abs(counts[0] - counts[1])
                distances = np.linalg.norm((trees[0].sums - trees[1].sums) / RADIUS, axis=1)
                assert len(moved) == 2**7 - 1
                assert moved.max() <= 1
                cases = changes(relation, deep().depth)
                assert any(
                    moved.sum() <= case.counts and np.linalg.norm(distances) <= case.distance
                    for case in cases
                )


def test_centres_follow_from_what_was_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The private records go into `release` and nowhere else."""
    private, method = vectors(2_000, 8), deep()
    released = method.release(private, noise(3))
    whole = method.fit(private, NOTHING, noise())
    monkeypatch.setattr(Chang, "release", lambda self, private, noise: released)
    found = [method.fit(data, NOTHING, noise()) for data in (private, 100 * private, private[:0])]
    assert all(np.array_equal(found[0], each) for each in found)
    assert len(found[0]) > 10
    assert not np.array_equal(found[0], whole)


#: Directions of planes such that x >= 0 is one side of the first, y >= 0 of the second.
PLANES = np.eye(2) * UNIT
EAST, WEST = np.array([[RADIUS, 0.0]]), np.array([[-RADIUS, 0.0]])
CLAIMED, CLAIMED_DELTA, RUNS = 1.0, 0.1, 200


@dataclass(frozen=True)
class Neighbours:
    """Two data sets, and whether the tree may branch on them."""

    relation: Relation
    one: Doubles
    other: Doubles
    branches: bool = True

    def least(self, total: int) -> int:
        return 1 if self.branches else max(1, total)


CASES = {
    "an isolated record": Neighbours("add_remove", np.zeros((0, 2)), EAST),
    "a record in a dense cell": Neighbours(
        "add_remove", np.repeat(EAST, 60, axis=0), np.repeat(EAST, 61, axis=0)
    ),
    "an exchange across the first plane": Neighbours(
        "replace",
        np.repeat([*EAST, *WEST], [60, 61], axis=0),
        np.repeat([*EAST, *WEST], [61, 60], axis=0),
    ),
    "an exchange within a leaf": Neighbours(
        "replace",
        np.repeat([*EAST, *WEST], [4, 5], axis=0),
        np.repeat([*EAST, *WEST], [5, 4], axis=0),
        branches=False,
    ),
}


#: What the default run looks at; with the exact tests above it catches what is too loud, too quiet
#: or forgotten.
FAST = ("an isolated record",)


@cache
def declared(relation: Relation) -> ChangScales:
    return calibrated(CLAIMED, CLAIMED_DELTA, relation, len(PLANES), 0.5)


def shown(
    neighbours: Neighbours, actual: Callable[[ChangScales], ChangScales] = lambda scales: scales
) -> float:
    """epsilon from below (99.9%), by the best threshold on the log-likelihood ratio of the output.

    Half of the runs choose the threshold, the other half are judged by it.
    """
    scales, source = declared(neighbours.relation), noise(11)
    sides = [Side.of(whole, PLANES) for whole in (neighbours.one, neighbours.other)]

    def score() -> list[Doubles]:
        return [np.array([score_of(side) for _ in range(RUNS)]) for side in sides]

    def score_of(side: Side) -> float:
        tree = grow(side.whole, side.hashes, actual(scales), neighbours.least, source)
        counts = np.concatenate([level.counts for level in tree.levels])
        fits = [np.abs(counts - each.counts(tree)).sum() / scales.count_scale for each in sides]
        squares = [
            (((tree.sums - each.sums(tree)) / RADIUS) ** 2).sum() / (2 * scales.sum_sd**2)
            for each in sides
        ]
        return float(fits[0] - fits[1] + squares[0] - squares[1])

    trained, judged = score(), score()
    # In either direction: the first of a pair is what a test should call, the second what it should
    # not.
    pairs = [((1, 0), 1.0), ((0, 1), -1.0)]
    bounds = [
        bound_beyond(
            judged[hit] * sign,
            judged[miss] * sign,
            best_threshold(trained[hit] * sign, trained[miss] * sign),
        )
        for (hit, miss), sign in pairs
    ]
    return max(bounds)


def best_threshold(hits: Doubles, misses: Doubles) -> float:
    return max(
        np.concatenate([hits, misses]).tolist(),
        key=lambda threshold: bound_beyond(hits, misses, threshold),
    )


def bound_beyond(hits: Doubles, misses: Doubles, threshold: float) -> float:
    """log((P - delta) / Q) for the least P and most Q: Clopper and Pearson, 0.05% on each side."""
    found, false = int((hits >= threshold).sum()), int((misses >= threshold).sum())
    least = stats.beta.ppf(0.0005, found, RUNS - found + 1) if found else 0.0
    most = stats.beta.ppf(0.9995, false + 1, RUNS - false) if false < RUNS else 1.0
    return math.log(max(least - CLAIMED_DELTA, 1e-9) / most)


@pytest.mark.parametrize(
    "cases", [FAST, pytest.param(CASES, marks=pytest.mark.slow)], ids=["one", "all"]
)
def test_neighbours_are_not_told_apart_beyond_the_claim(cases: Iterable[str]) -> None:
    for case in cases:
        assert shown(CASES[case]) <= CLAIMED


@pytest.mark.parametrize(
    "cases", [FAST, pytest.param(CASES, marks=pytest.mark.slow)], ids=["one", "all"]
)
def test_too_little_noise_is_caught(cases: Iterable[str]) -> None:
    for case in cases:
        assert (
            shown(
                CASES[case],
                lambda scales: ChangScales(scales.depth, scales.count_scale / 4, scales.sum_sd / 4),
            )
            > CLAIMED
        )


@pytest.mark.slow
def test_counts_without_noise_are_caught() -> None:
    for case in ["an isolated record", "a record in a dense cell"]:
        assert (
            shown(CASES[case], lambda scales: replace(scales, count_scale=SILENT["count_scale"]))
            > CLAIMED
        )


# What it is good for.


def mixture(n: int, dimensions: int, k: int, seed: int) -> Vectors:
    """Gaussians about centres that are uniform in the ball of radius 0.8."""
    generator = np.random.default_rng(seed)
    means = in_ball(k, dimensions, generator) * 0.8
    return (
        means[generator.integers(k, size=n)] + 0.05 * generator.standard_normal((n, dimensions))
    ).astype(np.float32)


def in_ball(n: int, dimensions: int, generator: np.random.Generator) -> Doubles:
    directions = generator.standard_normal((n, dimensions))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return directions * generator.uniform(size=(n, 1)) ** (1 / dimensions)


def noisy_lloyd(
    points: Vectors, k: int, epsilon: float, delta: float, seed: int, rounds: int = 5
) -> Doubles:
    """Lloyd's iterations with noisy counts and sums (Su et al., 2016), from random centres.

    The centres are in the unit ball.

    Accounting: a record is in one cluster a round, so `rounds` Laplace counts of sensitivity 1 and
    as many Gaussian sums of sensitivity 1, which compose as one Gaussian with 1 / sqrt(rounds) of
    the noise: `calibrated`, for that many counts. Half of the budget to either. diffprivlib's
    Laplace noise on both is more.
    """
    # not the mixture's: its first draws are the true means
    generator = np.random.default_rng((seed, 1))
    scales = calibrated(epsilon, delta, "add_remove", rounds - 1, 0.5)
    centers = in_ball(k, points.shape[1], generator)
    inside = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1.0)
    for _ in range(rounds):
        nearest = ((inside[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
        for center in range(k):
            count = (nearest == center).sum() + generator.laplace(scale=scales.count_scale)
            total = inside[nearest == center].sum(axis=0)
            total += generator.normal(scale=scales.sum_sd * math.sqrt(rounds), size=total.shape)
            mean = total / max(count, 1.0)
            centers[center] = mean / max(np.linalg.norm(mean), 1.0)
    return centers


def inertia(points: Vectors, centers: np.ndarray) -> float:
    return float(((points[:, None] - centers) ** 2).sum(axis=2).min(axis=1).sum())


@pytest.mark.slow
def test_it_beats_noisy_lloyd_on_mixtures() -> None:
    for n, dimensions, k in [(5_000, 4, 8), (10_000, 6, 12)]:
        found: dict[str, list[float]] = {"chang": [], "lloyd": []}
        method = chang(k, dimensions)
        for seed in range(3):
            points = mixture(n, dimensions, k, seed)
            best = KMeans(k, n_init=2, random_state=seed).fit(points).inertia_
            found["chang"].append(inertia(points, method.fit(points, NOTHING, noise(seed))) / best)
            found["lloyd"].append(inertia(points, noisy_lloyd(points, k, 1.0, DELTA, seed)) / best)
        assert np.median(found["chang"]) < 0.7 * np.median(found["lloyd"])


# The ends of its range.


def fitted(private: Vectors, k: int = 3) -> Vectors:
    return chang(k).fit(private, NOTHING, noise())


def test_it_is_a_clustering_method() -> None:
    method: ClusteringMethod = chang()
    assert (method.name, method.origin) == ("chang", "noised")


def test_few_records_give_a_centre_all_the_same() -> None:
    for n in [0, 1, 2]:
        centers = fitted(vectors(n, 6))
        assert centers.dtype == np.float32
        assert centers.shape[1] == 6
        assert 1 <= len(centers) <= 3
        assert (np.linalg.norm(centers, axis=1) <= 2).all()


def test_equal_records_are_found_where_they_are() -> None:
    centers = fitted(np.full((20_000, 4), 0.4, dtype=np.float32))
    assert np.linalg.norm(centers - 0.4, axis=1).min() < 0.02


def test_more_centres_than_leaves() -> None:
    assert 1 <= len(fitted(vectors(3_000, 4), k=5_000)) < 100


def test_public_vectors_are_not_used() -> None:
    private, method = vectors(2_000, 4), chang()
    public = np.full((3, 4), math.nan, dtype=np.float32)
    assert np.array_equal(
        method.fit(private, public, noise()), method.fit(private, NOTHING, noise())
    )


def test_centres_lie_in_the_space_of_the_embeddings_and_scale_with_the_radius() -> None:
    private = vectors(5_000, 40)
    method = chang(4, 5)
    centers = method.fit(private, NOTHING, noise())
    assert centers.shape == (4, 40)
    assert np.linalg.matrix_rank(centers, tol=1e-4) <= 5
    larger = replace(method, radius=8.0).fit(8 * private, NOTHING, noise())
    np.testing.assert_allclose(larger, 8 * centers, rtol=1e-5)


def test_records_are_projected_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    private, method = vectors(1_000, 12), chang(4, 5)
    whole = method.fit(private, NOTHING, noise())
    monkeypatch.setattr("dpaudit.generation.clustering.chang.BLOCK", 300)
    assert np.array_equal(method.fit(private, NOTHING, noise()), whole)


def test_numbers_out_of_range_are_refused() -> None:
    for field, value in [
        ("k", 0),
        ("dimension", 0),
        ("depth", 0),
        ("depth", 63),
        ("epsilon", 0.0),
        ("epsilon", math.inf),
        ("delta", 0.0),
        ("delta", 0.5),
        ("delta", 5e-11),
        ("epsilon", 1e-300),
        ("epsilon", 1e300),
        ("radius", -1.0),
        ("radius", math.nan),
        ("counts_share", 0.0),
        ("counts_share", 1.0),
    ]:
        with pytest.raises(ValueError, match=field):
            replace(chang(), **{field: value})
