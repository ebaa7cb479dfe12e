"""DPM keeps to its budget, finds what can be found, and its proof's figures hold by brute force."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import beta
from sklearn.metrics import v_measure_score

from dpaudit.accounting import zcdp_epsilon
from dpaudit.accounting.centers import LEAST_DELTA
from dpaudit.generation.clustering import dpm
from dpaudit.generation.clustering.assignment import nearest
from dpaudit.generation.clustering.dpm import (
    Dpm,
    _Cell,
    _Separation,
    score_sensitivity,
    split_scores,
)
from dpaudit.generation.clustering.grid import RADIUS, Projection, on_grid
from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.sampling import SeededStream

RELATIONS = ["add_remove", "replace"]
NOTHING = np.empty((0, 1), dtype=np.float32)
#: So many draws show a fault, and are quick.
DRAWS = 600


def noise(seed: int = 1) -> Noise:
    return Noise(SeededStream(seed, 0))


# --- scores ---------------------------------------------------------------------------------------


def naive_score(
    coordinates: list[float], place: float, width: float, count: int, weights: tuple[float, float]
) -> float:
    """As in the paper, times the noisy count: centreness by cases, emptiness by counting."""
    below = sum(x < place for x in coordinates)
    inside = sum(place - width / 2 <= x < place + width / 2 for x in coordinates)
    n, q, t = count, 1 / 12, 0.3
    aside = n / 2 - abs(min(below, n) - n / 2)
    outer, inner = (
        aside * t / (n * q),
        (t - 2 * q) / (1 - 2 * q) + aside * (1 - t) / (n / 2 - n * q),
    )
    central = outer if aside <= n * q else inner
    return weights[0] * n * central + weights[1] * n * max(0.0, 1 - inside / n)


@given(
    st.lists(st.floats(-1.5, 1.5, width=32), max_size=40),
    st.integers(1, 60),
    st.integers(1, 9),
    st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)),
)
@settings(max_examples=60, deadline=None)
def test_scores_are_the_papers(
    coordinates: list[float], count: int, intervals: int, weights: tuple[float, float]
) -> None:
    bounds = np.array([[-1.0, 1.0]])
    halves = np.linspace(-1, 1, 2 * intervals + 1)
    # on a border, rounding decides
    apart = [x for x in coordinates if np.abs(halves - x).min() > 1e-9]
    bins = dpm._bins(np.array([apart]).reshape(1, -1), bounds, intervals)
    found = split_scores(np.bincount(bins[0], minlength=2 * intervals + 2)[None], count, *weights)
    expected = [naive_score(apart, place, 2 / intervals, count, weights) for place in halves[1::2]]
    np.testing.assert_allclose(found[0], expected, rtol=1e-9, atol=1e-9 * count)


def changes(histogram: NDArray[np.int64], relation: str) -> Iterator[NDArray[np.int64]]:
    """Histograms of all neighbours that have a record more, or another one."""
    unit = np.eye(len(histogram), dtype=np.int64)
    if relation == "add_remove":
        yield from histogram + unit
    else:
        pairs = itertools.permutations(range(len(histogram)), 2)
        yield from (histogram - unit[old] + unit[new] for old, new in pairs if histogram[old])


def largest_change(
    histogram: NDArray[np.int64], count: int, weights: tuple[float, float], relation: str
) -> float:
    neighbors = list(changes(histogram, relation))
    before = split_scores(histogram[None], count, *weights)
    return (
        float(np.abs(split_scores(np.array(neighbors), count, *weights) - before).max())
        if neighbors
        else 0.0
    )


def test_no_neighbor_moves_a_score_further_than_its_sensitivity_and_some_do_as_far() -> None:
    for relation in RELATIONS:
        random = np.random.default_rng(7)
        reached = 0.0
        for _ in range(4000):
            weights = float(random.uniform(0.1, 5)), float(random.uniform(0.1, 5))
            histogram = random.integers(
                0, random.integers(1, 30), size=2 * random.integers(1, 5) + 2
            )
            histogram[random.random(len(histogram)) < 0.4] = 0
            count = max(1, int(histogram.sum() + random.integers(-5, 6)))
            stated = score_sensitivity(*weights)
            change = largest_change(histogram, count, weights, relation)
            assert change <= stated * (1 + 1e-9)
            reached = max(reached, change / stated)
        assert reached > 0.999


@given(
    st.lists(st.integers(0, 50), min_size=4, max_size=10).filter(
        lambda values: len(values) % 2 == 0
    ),
    st.integers(1, 300),
    st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)),
    st.sampled_from(RELATIONS),
)
@settings(max_examples=100, deadline=None)
def test_sensitivity_holds_whatever_the_noisy_count(
    values: list[int], count: int, weights: tuple[float, float], relation: str
) -> None:
    change = largest_change(np.array(values), count, weights, relation)
    assert change <= score_sensitivity(*weights) * (1 + dpm.ROOM)


def test_a_record_has_one_place_on_every_axis_whoever_else_is_there() -> None:
    random = np.random.default_rng(3)
    vectors = random.standard_normal((501, 40)).astype(np.float32)
    projection = dpm.Projection.random(40, 5, random)
    (whole,) = dpm._coordinates(dpm._points(vectors, 1.0), projection)
    for rows in (slice(0, 1), slice(1, None), slice(100, 107)):
        (part,) = dpm._coordinates(dpm._points(vectors[rows], 1.0), projection)
        np.testing.assert_array_equal(part, whole[:, rows])


# --- cost -----------------------------------------------------------------------------------------


def test_the_budget_is_used_up_and_kept() -> None:
    for relation in RELATIONS:
        for epsilon in [0.1, 1.0, 10.0]:
            method = Dpm(epsilon, 1e-6, relation=relation)
            assert 0.999 * epsilon <= method.cost(relation).epsilon <= epsilon
            other = method.cost("replace" if relation == "add_remove" else "add_remove").epsilon
            assert (other > epsilon) == (relation == "add_remove")


def test_what_is_asked_of_the_noise_is_what_the_cost_is_for() -> None:
    """The scales as they arrive there, level by level, composed by hand."""
    for relation in RELATIONS:
        method, asked = Dpm(2.0, 1e-5, relation, depth=4), Watched(1)
        method.fit(crowd(300), FRAME, asked)
        counts = sorted({1 / call.scale for call in asked.calls if isinstance(call, Laplace)})
        splits = sorted({call.epsilon for call in asked.calls if isinstance(call, Choice)})
        (sums,) = (RADIUS / call.scale for call in asked.calls if isinstance(call, Gaussian))
        assert (len(counts), len(splits)) == (5, 4)
        courses = [(counts, splits, sums)]
        # parted by the first split, or by the last one, which does not stand
        if relation == "replace":
            early = 2 * counts[1:], splits[:1] + 2 * splits[1:], math.sqrt(2) * sums
            courses = [early, (2 * counts[-1:], splits, 2 * sums)]
        composed = [
            zcdp_epsilon(
                sums**2 / 2 + sum(epsilon**2 / 8 for epsilon in splits),
                method.delta,
                laplace=counts,
            )
            for counts, splits, sums in courses
        ]
        assert max(composed) == pytest.approx(method.cost(relation).epsilon, rel=0.01)
        assert method.cost(relation).epsilon == pytest.approx(2.0, rel=1e-3)


# --- what is let through --------------------------------------------------------------------------


@dataclass(frozen=True)
class Laplace:
    scale: float
    drawn: list[int]


@dataclass(frozen=True)
class Gaussian:
    scale: float
    drawn: NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    scores: NDArray[np.float64]
    epsilon: float
    sensitivity: float
    chosen: int


class Watched(Noise):
    """Noise that records each request and each answer.

    The first count's noise gets something on top.
    """

    def __init__(self, seed: int, first: int = 0) -> None:
        super().__init__(SeededStream(seed, 0))
        self.calls: list[Laplace | Gaussian | Choice] = []
        self._first = first

    def rounded_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
        drawn = super().rounded_laplace(scale, size) + self._first
        self._first = 0
        self.calls.append(Laplace(scale, drawn.tolist()))
        return drawn

    def gaussian(self, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        drawn = super().gaussian(scale, shape)
        self.calls.append(Gaussian(scale, drawn))
        return drawn

    def choice(self, scores: NDArray[np.float64], epsilon: float, sensitivity: float) -> int:
        chosen = super().choice(scores, epsilon, sensitivity)
        self.calls.append(Choice(scores.copy(), epsilon, sensitivity, chosen))
        return chosen


#: Corners of what is public in the plane; and its embeddings in general.
FRAME = np.array([[-0.5, -0.4], [0.6, 0.5]], dtype=np.float32)


def crowd(size: int, seed: int = 3) -> NDArray[np.float32]:
    """Some of them beyond the radius, and beyond the frame."""
    return (0.5 * np.random.default_rng(seed).standard_normal((size, 2))).astype(np.float32)


class Replay:
    """The method once more, record by record, with all numbers from the declared draws of noise."""

    def __init__(
        self, method: Dpm, private: Vectors, public: Vectors, seed: int, calls: list[Any]
    ) -> None:
        self.method, self.calls, self.cells = method, iter(calls), list[tuple[list[int], int]]()
        generator = np.random.default_rng(Noise(SeededStream(seed, 0)).seed())
        projection = Projection.random(
            private.shape[1], method.projection or private.shape[1], generator
        )
        self.points = on_grid(private, method.radius)
        self.places = (projection.apply(self.points) / RADIUS).tolist()
        ends = projection.apply(on_grid(public, method.radius)) / RADIUS
        self.low, self.high = ends.min(axis=0), ends.max(axis=0)
        self.levels: list[int] = []
        #: Cells that exact counts would have decided otherwise.
        self.turned = 0

    def centers(self) -> NDArray[np.float64]:
        """And everything that was drawn was for this."""
        everyone = list(range(len(self.points)))
        count = self.count(everyone, 0)
        self.least = max(1, count) / 2**self.method.depth
        self.visit(everyone, count, 0, [(0, self.method.intervals)] * len(self.low))
        call = next(self.calls)
        assert isinstance(call, Gaussian)
        assert call.scale == self.method.settings["sum_sd"] * RADIUS
        assert call.drawn.shape == (len(self.cells), self.points.shape[1])
        assert next(self.calls, None) is None
        sums = [self.points[rows].sum(axis=0) for rows, _ in self.cells] + np.rint(call.drawn)
        means = sums / RADIUS / np.array([[max(1, count)] for _, count in self.cells])
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        return np.where(lengths > 1, means / lengths, means) * self.method.radius

    def count(self, rows: list[int], level: int) -> int:
        call = next(self.calls)
        assert isinstance(call, Laplace)
        assert call.scale == pytest.approx(
            self.method.settings["count_scale"] / math.sqrt(2) ** level, rel=1e-12
        )
        assert len(call.drawn) == 1
        self.levels.append(level)
        return len(rows) + call.drawn[0]

    def visit(self, rows: list[int], count: int, level: int, ranges: list[tuple[int, int]]) -> None:
        if level == self.method.depth or count < 1 or all(first == end for first, end in ranges):
            self.cells.append((rows, count))
            return
        axis, place = self.split(rows, count, level, ranges)
        border = self.border(axis, place)
        sides = [row for row in rows if self.places[row][axis] < border], []
        sides[1].extend(row for row in rows if self.places[row][axis] >= border)
        counts = [self.count(side, level + 1) for side in sides]
        stands = min(counts) > self.least
        self.turned += stands != (min(map(len, sides)) > len(self.points) / 2**self.method.depth)
        if not stands:
            self.cells.append((rows, count))
            return
        first, end = ranges[axis]
        narrowed = [
            [*ranges[:axis], bounds, *ranges[axis + 1 :]]
            for bounds in ((first, place), (place + 1, end))
        ]
        for side in (1, 0):
            self.visit(sides[side], counts[side], level + 1, narrowed[side])

    def split(
        self, rows: list[int], count: int, level: int, ranges: list[tuple[int, int]]
    ) -> tuple[int, int]:
        method, call = self.method, next(self.calls)
        assert isinstance(call, Choice)
        assert call.epsilon == pytest.approx(
            method.settings["split_epsilon"] * math.sqrt(2) ** level, rel=1e-12
        )
        # the paper's steepest slope
        assert call.sensitivity >= method.centreness * 0.3 * 12 + method.emptiness
        allowed = [
            (axis, place) for axis, (first, end) in enumerate(ranges) for place in range(first, end)
        ]
        weights = (method.centreness, method.emptiness)
        scores = []
        for axis, place in allowed:
            width = (self.high[axis] - self.low[axis]) / method.intervals
            column = [self.places[row][axis] for row in rows]
            scores.append(naive_score(column, self.border(axis, place), width, count, weights))
        np.testing.assert_allclose(call.scores, scores, rtol=1e-9)
        return allowed[call.chosen]

    def border(self, axis: int, place: int) -> float:
        width = (self.high[axis] - self.low[axis]) / self.method.intervals
        return float(self.low[axis] + (place + 0.5) * width)


@pytest.mark.parametrize(
    "seeds", [(1,), pytest.param((2, 3), marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_all_that_is_let_through_is_exact_plus_drawn(seeds: Iterable[int]) -> None:
    """Counts, scores, stopping, bounds and sums of a deep tree; nothing else depends on records."""
    for size, first, projection in [
        (500, 0, None),
        (500, 1500, None),
        (500, -460, 1),
        (0, 60, None),
        (40, -400, None),
    ]:
        for seed in seeds:
            method = Dpm(
                3.0, 1e-5, depth=6, intervals=16, emptiness=1.0, radius=0.9, projection=projection
            )
            drawn, private = Watched(seed, first), crowd(size)
            centers = method.fit(private, FRAME, drawn)
            replay = Replay(method, private, FRAME, seed, drawn.calls)
            np.testing.assert_allclose(centers, replay.centers(), rtol=1e-5, atol=1e-7)
            if size + first > 100:
                assert max(replay.levels) >= 4
            if size > 40 and size + first > 100:
                assert replay.turned


class Scripted(Noise):
    """No noise on sums, equal noise on counts so that all splits stand, splits without scores."""

    def __init__(self, seed: int) -> None:
        super().__init__(SeededStream(seed, 0))
        self.moves: list[tuple[NDArray[np.float64], float]] = []
        self._generator = np.random.default_rng(seed)

    def rounded_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
        return np.full(size, 10_000, dtype=np.int64)

    def gaussian(self, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return np.zeros(shape)

    def choice(self, scores: NDArray[np.float64], epsilon: float, sensitivity: float) -> int:
        self.moves.append((scores.copy(), sensitivity))
        return int(self._generator.integers(len(scores)))


@dataclass(frozen=True)
class Exact:
    """The values under the noise.

    Counts are in their order, with their levels; scores are those of every split; sums are in
    radii.
    """

    counts: list[tuple[int, int]]
    moves: list[tuple[NDArray[np.float64], float]]
    sums: NDArray[np.float64]

    @classmethod
    def of(cls, private: Vectors, seed: int, monkeypatch: pytest.MonkeyPatch) -> Exact:
        method, noise, counts, sums = (
            Dpm(3.0, 1e-5, depth=5, intervals=300, radius=0.9),
            Scripted(seed),
            [],
            [],
        )
        count, centers = _Separation.count, Dpm._centers

        def counted(self: _Separation, rows: NDArray[np.int64], level: int) -> int:
            counts.append((level, count(self, rows, level)))
            return counts[-1][1]

        def summed(
            self: Dpm, points: NDArray[np.int32], cells: list[_Cell], noise: Noise
        ) -> Vectors:
            sums.extend(points[cell.rows].sum(axis=0) for cell in cells)
            return centers(self, points, cells, noise)

        with monkeypatch.context() as patched:
            patched.setattr(_Separation, "count", counted)
            patched.setattr(Dpm, "_centers", summed)
            method.fit(private, FRAME, noise)
        return cls(counts, noise.moves, np.array(sums) / RADIUS)


#: Far beyond the radius, and beyond the frame; both would be bounds if private records had a say in
#: them.
LONG = np.array([[3e8, -1e9], [-2e7, 7.0], [0.1, 0.2]], dtype=np.float32)


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 6), marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_one_record_moves_what_the_proof_says_and_no_more(seeds: Iterable[int]) -> None:
    for relation in RELATIONS:
        for seed in seeds:
            with pytest.MonkeyPatch.context() as monkeypatch:
                others, last = crowd(60, seed), LONG[[seed % 3]]
                before = (
                    others
                    if relation == "add_remove"
                    else np.concatenate([others, LONG[[(seed + 1) % 3]]])
                )
                one, other = (
                    Exact.of(data, seed, monkeypatch)
                    for data in (before, np.concatenate([others, last]))
                )
                assert [level for level, _ in one.counts] == [level for level, _ in other.counts]
                # of every level, how far all counts together, and how far one
                moved = np.zeros((6, 2), dtype=int)
                for (level, count), (_, again) in zip(one.counts, other.counts, strict=True):
                    moved[level] = (
                        moved[level, 0] + abs(count - again),
                        max(moved[level, 1], abs(count - again)),
                    )
                assert moved[:, 1].max() == 1
                assert (
                    moved[:, 0].tolist() == [1] * 6
                    if relation == "add_remove"
                    else moved[0, 0] == 0 and moved.max() <= 2
                )
                for (scores, sensitivity), (again_scores, again) in zip(
                    one.moves, other.moves, strict=True
                ):
                    assert sensitivity == again
                    assert np.abs(scores - again_scores).max() <= sensitivity
                lengths = np.linalg.norm(one.sums - other.sums, axis=1)
                lengths = np.sort(lengths[lengths > 0])
                assert len(one.sums) == 2**5
                if relation == "add_remove":
                    assert len(lengths) == 1
                    assert lengths[0] <= 1
                else:
                    assert len(lengths) <= 2
                    assert lengths.max() <= (2 if len(lengths) == 1 else 1)


# --- distinguishing -------------------------------------------------------------------------------


def lower_bound(first: int, second: int, delta: float) -> float:
    """The epsilon that these event counts of neighbours prove (Clopper and Pearson, 99.9 %).

    Each count is of DRAWS draws on one of the two data sets.
    """
    sides = [
        (first, second),
        (second, first),
        (DRAWS - first, DRAWS - second),
        (DRAWS - second, DRAWS - first),
    ]
    return max(
        0.0, *(math.log(max(_low(often) - delta, 1e-300) / _high(rare)) for often, rare in sides)
    )


def _low(successes: int) -> float:
    return float(beta.ppf(1e-3 / 8, successes, DRAWS - successes + 1)) if successes else 0.0


def _high(successes: int) -> float:
    return float(beta.isf(1e-3 / 8, successes + 1, DRAWS - successes)) if successes < DRAWS else 1.0


def proven(event: Callable[[int, bool], bool], delta: float) -> float:
    """Of an event that a seed and one of two neighbouring data sets lead to."""
    first, second = (
        sum(event(2 * seed + more, bool(more)) for seed in range(DRAWS)) for more in (0, 1)
    )
    return lower_bound(first, second, delta)


def with_scales(method: Dpm, **faults: float) -> Dpm:
    """The same method with other noise than its cost is for."""
    faulty = replace(method)
    faulty.__dict__["scales"] = replace(method.scales, **faults)
    return faulty


def column(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32).reshape(-1, 1)


def sums_prove(method: Dpm, relation: str) -> float:
    """A record or none, or one at either end: where is the centre?"""
    data, border = (
        ([column(), column(1.0)], 0.5)
        if relation == "add_remove"
        else ([column(-1.0), column(1.0)], 0.0)
    )
    return proven(
        lambda seed, more: bool((method.fit(data[more], NOTHING, noise(seed)) > border).any()),
        method.delta,
    )


def stopping_proves(method: Dpm, relation: str) -> float:
    """The epsilon that a split's standing proves.

    Twenty records are at one point, and the last one elsewhere, absent, or at that point too.
    """
    other = column(-0.5) if relation == "replace" else column()
    data = [np.concatenate([column(*[-0.5] * 20), last]) for last in (other, column(0.5))]
    return proven(
        lambda seed, more: len(method.fit(data[more], NOTHING, noise(seed))) > 1, method.delta
    )


def splits_prove(method: Dpm, relation: str) -> float:
    """The epsilon that a split's place proves.

    Most records are in the middle. One at the left, added or moved from the right, pulls the split
    there.
    """
    bins = np.repeat(np.array([0, 2, 5], dtype=np.uint16), [50, 900, 50])
    data = [bins[None], np.append(bins[:-1] if relation == "replace" else bins, np.uint16(0))[None]]

    def left(seed: int, more: bool) -> bool:
        separation = _Separation(method, data[more], noise(seed))
        cell = _Cell(np.arange(data[more].size), 1000, 0, np.array([[0, 2]]))
        return separation.split(cell) == (0, 0)

    return proven(left, 0.0)


#: Exchanged records, which cost twice the time, where there is some.
BY_RELATION = pytest.mark.parametrize(
    "relation", ["add_remove", pytest.param("replace", marks=pytest.mark.slow)]
)

SUMS = Dpm(1.0, 1e-5, depth=1, count_share=0.1, split_share=0.1)
STOPPING = Dpm(1.0, 1e-5, intervals=2, count_share=0.4, split_share=0.4)
SPLITS = Dpm(1.0, 1e-5, depth=1, intervals=2, count_share=0.1, split_share=0.8, emptiness=0.01)


@BY_RELATION
def test_sums_tell_no_more_than_they_may_and_ones_with_less_noise_are_caught(relation: str) -> None:
    stated = SUMS.cost(relation).epsilon
    assert sums_prove(SUMS, relation) <= stated
    assert sums_prove(with_scales(SUMS, sum_sd=SUMS.scales.sum_sd / 50), relation) > stated


@BY_RELATION
def test_stopping_tells_no_more_than_it_may(relation: str) -> None:
    assert stopping_proves(STOPPING, relation) <= STOPPING.cost(relation).epsilon


@BY_RELATION
def test_stopping_by_exact_counts_is_caught(relation: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        noisy = _Separation.count
        monkeypatch.setattr(
            _Separation,
            "count",
            lambda self, rows, level: len(rows) if level else noisy(self, rows, level),
        )
        assert stopping_proves(STOPPING, relation) > STOPPING.cost(relation).epsilon


@BY_RELATION
def test_splits_tell_no_more_than_they_may_and_ones_at_eight_times_their_epsilon_are_caught(
    relation: str,
) -> None:
    (epsilon,) = SPLITS.scales.split_epsilons
    assert splits_prove(SPLITS, relation) <= epsilon
    assert (
        splits_prove(with_scales(SPLITS, split_epsilon=8 * epsilon), relation)
        > SPLITS.cost(relation).epsilon
    )


# --- centres --------------------------------------------------------------------------------------


def blobs(
    dimension: int, seed: int, clusters: int = 5, size: int = 5000
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Normal clusters whose means are far apart, in the unit ball."""
    random = np.random.default_rng(seed)
    means = random.uniform(-1, 1, (1, dimension))
    while len(means) < clusters:
        mean = random.uniform(-1, 1, dimension)
        if np.linalg.norm(means - mean, axis=1).min() > 0.7:
            means = np.vstack([means, mean])
    truth = random.integers(clusters, size=size)
    points = (means[truth] + 0.07 * random.standard_normal((size, dimension))) / (
        1.3 * math.sqrt(dimension)
    )
    return points.astype(np.float32), truth


def test_blobs_are_separated() -> None:
    for dimension in [2, 4, 8]:
        found = []
        for seed in range(5):
            points, truth = blobs(dimension, seed)
            frame = np.array([[-1.0] * dimension, [1.0] * dimension], dtype=np.float32) / math.sqrt(
                dimension
            )
            centers = Dpm(1.0, 1e-6).fit(points, frame, noise(seed))
            found.append(v_measure_score(truth, nearest(points, centers)))
        assert np.median(found) > 0.8


def test_a_projection_finds_them_too() -> None:
    points, truth = blobs(64, 1)
    centers = Dpm(5.0, 1e-6, projection=4).fit(points, points[::10], noise())
    assert centers.shape[1] == 64
    assert v_measure_score(truth, nearest(points, centers)) > 0.6


def test_few_and_equal_records_give_centers() -> None:
    for size in [0, 1, 300]:
        points = np.full((size, 3), 0.4, dtype=np.float32)
        centers = Dpm(1.0, 1e-6).fit(points, np.empty((0, 3), dtype=np.float32), noise())
        assert centers.dtype == np.float32
        assert centers.shape[1] == 3
        assert len(centers) >= 1
        assert (np.linalg.norm(centers, axis=1) <= 1 + 1e-6).all()


def test_a_generous_budget_finds_the_means() -> None:
    points = np.repeat(np.array([[-0.6, 0.0], [0.6, 0.0]], dtype=np.float32), 500, axis=0)
    centers = Dpm(1e4, 0.1, depth=2).fit(points, np.empty((0, 2), dtype=np.float32), noise())
    np.testing.assert_allclose(centers[np.argsort(centers[:, 0])], points[[0, -1]], atol=1e-2)


def test_long_vectors_are_cut_to_the_radius() -> None:
    points = np.full((500, 1), 1e6, dtype=np.float32)
    centers = Dpm(1e4, 0.1, depth=1, radius=2.0).fit(points, NOTHING, noise())
    np.testing.assert_allclose(centers, 2.0, atol=1e-2)


def test_what_is_no_vector_is_refused() -> None:
    good = np.zeros((2, 3), dtype=np.float32)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            Dpm(1.0, 1e-6).fit(np.full((2, 3), bad, dtype=np.float32), good, noise())
    with pytest.raises(ValueError, match="dimensions"):
        Dpm(1.0, 1e-6).fit(good, np.zeros((2, 4), dtype=np.float32), noise())


def test_fields_out_of_range_are_refused() -> None:
    for fields in [
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"delta": 0.0},
        {"delta": LEAST_DELTA / 2},
        {"delta": 0.2},
        {"radius": math.nan},
        {"depth": 0},
        {"depth": 63},
        {"intervals": 0},
        {"intervals": 1 << 15},
        {"projection": 0},
        {"count_share": 0.5, "split_share": 0.5},
        {"emptiness": -1.0},
    ]:
        with pytest.raises(ValueError, match=r"must be|must lie"):
            Dpm(**{"epsilon": 1.0, "delta": 1e-6, **fields})


def test_settings_tell_all_that_decides() -> None:
    assert Dpm(1.0, 1e-6).settings["intervals"] == 20
    assert "projection" not in Dpm(1.0, 1e-6).settings
    assert Dpm(1.0, 1e-6, projection=4).settings["projection"] == 4
    assert Dpm(1.0, 1e-6).settings["sum_sd"] == Dpm(1.0, 1e-6).scales.sum_sd


def test_epsilons_that_no_noise_is_right_for_are_refused() -> None:
    for epsilon in [1e-300, 1e300]:
        with pytest.raises(ValueError, match=re.escape(f"epsilon {epsilon}")):
            Dpm(epsilon, 1e-6)
