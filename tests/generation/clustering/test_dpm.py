"""DPM keeps to its budget, finds what can be found, and its proof's figures hold by brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import beta
from sklearn.metrics import v_measure_score

from dpaudit.accounting import zcdp_epsilon
from generation.clustering import dpm
from generation.clustering.assignment import nearest
from generation.clustering.dpm import Dpm, _Budget, _Cell, _Separation, score_sensitivity, split_scores
from generation.clustering.noise import Noise
from generation.sampling import SeededStream

RELATIONS = ["add_remove", "replace"]
NOTHING = np.empty((0, 1), dtype=np.float32)
#: So many draws show a fault, and are quick.
DRAWS = 600


def noise(seed: int = 1) -> Noise:
    return Noise(SeededStream(seed, 0))


# --- scores -----------------------------------------------------------------------------------------------------------


def naive_score(
    coordinates: list[float], place: float, width: float, count: int, weights: tuple[float, float]
) -> float:
    """As in the paper, times the noisy count: centreness by cases, emptiness by counting."""
    below = sum(x < place for x in coordinates)
    inside = sum(place - width / 2 <= x < place + width / 2 for x in coordinates)
    n, q, t = count, 1 / 12, 0.3
    aside = n / 2 - abs(min(below, n) - n / 2)
    outer, inner = aside * t / (n * q), (t - 2 * q) / (1 - 2 * q) + aside * (1 - t) / (n / 2 - n * q)
    central = outer if aside <= n * q else inner
    return weights[0] * n * central + weights[1] * n * max(0.0, 1 - inside / n)


@given(
    st.lists(st.floats(-1.5, 1.5, width=32), max_size=40),
    st.integers(1, 60),
    st.integers(1, 9),
    st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)),
)
@settings(max_examples=200, deadline=None)
def test_scores_are_the_papers(
    coordinates: list[float], count: int, intervals: int, weights: tuple[float, float]
) -> None:
    bounds = np.array([[-1.0, 1.0]])
    halves = np.linspace(-1, 1, 2 * intervals + 1)
    apart = [x for x in coordinates if np.abs(halves - x).min() > 1e-9]  # on a border, rounding decides
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


def largest_change(histogram: NDArray[np.int64], count: int, weights: tuple[float, float], relation: str) -> float:
    neighbors = list(changes(histogram, relation))
    before = split_scores(histogram[None], count, *weights)
    return float(np.abs(split_scores(np.array(neighbors), count, *weights) - before).max()) if neighbors else 0.0


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_neighbor_moves_a_score_further_than_its_sensitivity_and_some_do_as_far(relation: str) -> None:
    random = np.random.default_rng(7)
    reached = 0.0
    for _ in range(4000):
        weights = float(random.uniform(0.1, 5)), float(random.uniform(0.1, 5))
        histogram = random.integers(0, random.integers(1, 30), size=2 * random.integers(1, 5) + 2)
        histogram[random.random(len(histogram)) < 0.4] = 0
        count = max(1, int(histogram.sum() + random.integers(-5, 6)))
        stated = score_sensitivity(*weights)
        change = largest_change(histogram, count, weights, relation)
        assert change <= stated * (1 + 1e-9)
        reached = max(reached, change / stated)
    assert reached > 0.999


@given(
    st.lists(st.integers(0, 50), min_size=4, max_size=10).filter(lambda values: len(values) % 2 == 0),
    st.integers(1, 300),
    st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)),
    st.sampled_from(RELATIONS),
)
@settings(max_examples=300, deadline=None)
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


# --- cost -------------------------------------------------------------------------------------------------------------

#: Epsilons of Laplace noise and of splits, and the square of a sum's shift in units of its noise's deviation.
Course = tuple[tuple[float, ...], tuple[float, ...], float]


def courses(budget: _Budget, relation: str) -> Iterator[Course]:
    """All that can happen to neighbours, by walking down the tree."""
    if relation == "replace":
        yield from together(budget, 0)
    else:
        yield from alone(budget, 0, 1)


def alone(budget: _Budget, level: int, cells: int) -> Iterator[Course]:
    """The neighbours differ in so many cells, each by a record that one of them has."""
    counts, squares = (budget.counts[level],) * cells, cells / budget.sums**2
    yield counts, (), squares
    if level < len(budget.splits):
        splits = (budget.splits[level],) * cells
        yield (*counts, *(budget.counts[level + 1],) * cells), splits, squares  # too few on one side
        for below, further, square in alone(budget, level + 1, cells):
            yield counts + below, splits + further, square


def together(budget: _Budget, level: int) -> Iterator[Course]:
    """Both records of an exchange are in one cell, whose count is the same."""
    squares = 4 / budget.sums**2
    yield (), (), squares
    if level < len(budget.splits):
        split = (budget.splits[level],)
        yield (budget.counts[level + 1],) * 2, split, squares  # parted, but too few on one side
        for counts, splits, square in itertools.chain(together(budget, level + 1), alone(budget, level + 1, 2)):
            yield counts, split + splits, square


def renyi_epsilon(course: Course, delta: float) -> float:
    counts, splits, squares = course
    return zcdp_epsilon(squares / 2 + sum(epsilon * epsilon / 8 for epsilon in splits), delta, laplace=counts)


def pld_epsilon(course: Course, delta: float, step: float) -> float:
    """By privacy loss distributions, of one mechanism that each step may be: tight for it."""
    counts, splits, squares = course
    loss = pld.from_gaussian_mechanism(1 / math.sqrt(squares), value_discretization_interval=step)
    for epsilon in counts:
        loss = loss.compose(pld.from_laplace_mechanism(1 / epsilon, value_discretization_interval=step))
    for epsilon in splits:  # two places, of which a record makes one better and one worse by the sensitivity
        lie = 2 / (math.exp(epsilon / 2) + 1)
        loss = loss.compose(pld.from_randomized_response(lie, 2, value_discretization_interval=step))
    return float(loss.get_epsilon_for_delta(delta))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "method", [Dpm(1.0, 1e-6), Dpm(10.0, 1e-5, depth=2), Dpm(0.1, 1e-6, depth=3, relation="replace")]
)
def test_cost_agrees_with_an_independent_composition(method: Dpm, relation: Any) -> None:
    stated = method.cost(relation)
    assert stated.delta == method.delta
    (renyi, dearest), *_ = sorted(
        (renyi_epsilon(course, method.delta), course) for course in set(courses(method._budget, relation))
    )[::-1]
    assert renyi <= stated.epsilon <= 1.02 * renyi
    tight = pld_epsilon(dearest, method.delta, method.epsilon / 4000)
    assert tight <= stated.epsilon <= 1.2 * tight


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_budget_is_used_up_and_kept(relation: Any, epsilon: float) -> None:
    method = Dpm(epsilon, 1e-6, relation=relation)
    assert 0.999 * epsilon <= method.cost(relation).epsilon <= epsilon
    other = method.cost("replace" if relation == "add_remove" else "add_remove").epsilon
    assert (other > epsilon) == (relation == "add_remove")


# --- distinguishing ---------------------------------------------------------------------------------------------------


def lower_bound(first: int, second: int, delta: float) -> float:
    """Epsilon that so many of DRAWS events on one data set and on its neighbour prove (Clopper and Pearson, 99.9 %)."""
    sides = [(first, second), (second, first), (DRAWS - first, DRAWS - second), (DRAWS - second, DRAWS - first)]
    return max(0.0, *(math.log(max(_low(often) - delta, 1e-300) / _high(rare)) for often, rare in sides))


def _low(successes: int) -> float:
    return float(beta.ppf(1e-3 / 8, successes, DRAWS - successes + 1)) if successes else 0.0


def _high(successes: int) -> float:
    return float(beta.isf(1e-3 / 8, successes + 1, DRAWS - successes)) if successes < DRAWS else 1.0


def proven(event: Callable[[int, bool], bool], delta: float) -> float:
    """Of an event that a seed and one of two neighbouring data sets lead to."""
    first, second = (sum(event(2 * seed + more, bool(more)) for seed in range(DRAWS)) for more in (0, 1))
    return lower_bound(first, second, delta)


def with_budget(method: Dpm, **faults: Any) -> Dpm:
    """The same method with other noise than its cost is for."""
    faulty = replace(method)
    faulty.__dict__["_budget"] = replace(method._budget, **faults)
    return faulty


def column(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32).reshape(-1, 1)


def sums_prove(method: Dpm, relation: str) -> float:
    """A record or none, or one at either end: where is the centre?"""
    data, border = ([column(), column(1.0)], 0.5) if relation == "add_remove" else ([column(-1.0), column(1.0)], 0.0)
    return proven(lambda seed, more: bool((method.fit(data[more], NOTHING, noise(seed)) > border).any()), method.delta)


def stopping_proves(method: Dpm, relation: str) -> float:
    """Twenty records at one point, and one elsewhere or none, or at that point too: does a split stand?"""
    other = column(-0.5) if relation == "replace" else column()
    data = [np.concatenate([column(*[-0.5] * 20), last]) for last in (other, column(0.5))]
    return proven(lambda seed, more: len(method.fit(data[more], NOTHING, noise(seed))) > 1, method.delta)


def splits_prove(method: Dpm, relation: str) -> float:
    """Most records in the middle: one at the left, added or from the right, pulls the split there."""
    bins = np.repeat(np.array([0, 2, 5], dtype=np.uint16), [50, 900, 50])
    data = [bins[None], np.append(bins[:-1] if relation == "replace" else bins, np.uint16(0))[None]]

    def left(seed: int, more: bool) -> bool:
        separation = _Separation(method, method._budget, data[more], noise(seed))
        cell = _Cell(np.arange(data[more].size), 1000, 0, np.array([[0, 2]]))
        return separation.split(cell) == (0, 0)

    return proven(left, 0.0)


SUMS = Dpm(1.0, 1e-5, depth=1, count_share=0.1, split_share=0.1)
STOPPING = Dpm(1.0, 1e-5, intervals=2, count_share=0.4, split_share=0.4)
SPLITS = Dpm(1.0, 1e-5, depth=1, intervals=2, count_share=0.1, split_share=0.8, emptiness=0.01)


@pytest.mark.parametrize("relation", RELATIONS)
def test_sums_tell_no_more_than_they_may_and_ones_with_less_noise_are_caught(relation: Any) -> None:
    stated = SUMS.cost(relation).epsilon
    assert sums_prove(SUMS, relation) <= stated
    assert sums_prove(with_budget(SUMS, sums=SUMS._budget.sums / 50), relation) > stated


@pytest.mark.parametrize("relation", RELATIONS)
def test_stopping_tells_no_more_than_it_may(relation: Any) -> None:
    assert stopping_proves(STOPPING, relation) <= STOPPING.cost(relation).epsilon


@pytest.mark.parametrize("relation", RELATIONS)
def test_stopping_by_exact_counts_is_caught(relation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = _Separation.count
    monkeypatch.setattr(
        _Separation, "count", lambda self, rows, level: len(rows) if level else noisy(self, rows, level)
    )
    assert stopping_proves(STOPPING, relation) > STOPPING.cost(relation).epsilon


@pytest.mark.parametrize("relation", RELATIONS)
def test_splits_tell_no_more_than_they_may_and_ones_at_eight_times_their_epsilon_are_caught(relation: Any) -> None:
    (epsilon,) = SPLITS._budget.splits
    assert splits_prove(SPLITS, relation) <= epsilon
    assert splits_prove(with_budget(SPLITS, splits=(8 * epsilon,)), relation) > SPLITS.cost(relation).epsilon


# --- centres ----------------------------------------------------------------------------------------------------------


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
    points = (means[truth] + 0.07 * random.standard_normal((size, dimension))) / (1.3 * math.sqrt(dimension))
    return points.astype(np.float32), truth


@pytest.mark.parametrize("dimension", [2, 4, 8])
def test_blobs_are_separated(dimension: int) -> None:
    found = []
    for seed in range(5):
        points, truth = blobs(dimension, seed)
        frame = np.array([[-1.0] * dimension, [1.0] * dimension], dtype=np.float32) / math.sqrt(dimension)
        centers = Dpm(1.0, 1e-6).fit(points, frame, noise(seed))
        found.append(v_measure_score(truth, nearest(points, centers)))
    assert np.median(found) > 0.8


def test_a_projection_finds_them_too() -> None:
    points, truth = blobs(64, 1)
    centers = Dpm(5.0, 1e-6, projection=4).fit(points, points[::10], noise())
    assert centers.shape[1] == 64
    assert v_measure_score(truth, nearest(points, centers)) > 0.6


@pytest.mark.parametrize("size", [0, 1, 300])
def test_few_and_equal_records_give_centers(size: int) -> None:
    points = np.full((size, 3), 0.4, dtype=np.float32)
    centers = Dpm(1.0, 1e-6).fit(points, np.empty((0, 3), dtype=np.float32), noise())
    assert centers.dtype == np.float32
    assert centers.shape[1] == 3
    assert len(centers) >= 1
    assert (np.linalg.norm(centers, axis=1) <= 1 + 1e-6).all()


def test_a_generous_budget_finds_the_means() -> None:
    points = np.repeat(np.array([[-0.6, 0.0], [0.6, 0.0]], dtype=np.float32), 500, axis=0)
    centers = Dpm(1e4, 0.5, depth=2).fit(points, np.empty((0, 2), dtype=np.float32), noise())
    np.testing.assert_allclose(centers[np.argsort(centers[:, 0])], points[[0, -1]], atol=1e-2)


def test_long_vectors_are_cut_to_the_radius() -> None:
    points = np.full((500, 1), 1e6, dtype=np.float32)
    centers = Dpm(1e4, 0.5, depth=1, radius=2.0).fit(points, NOTHING, noise())
    np.testing.assert_allclose(centers, 2.0, atol=1e-2)


def test_what_is_no_vector_is_refused() -> None:
    good = np.zeros((2, 3), dtype=np.float32)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            Dpm(1.0, 1e-6).fit(np.full((2, 3), bad, dtype=np.float32), good, noise())
    with pytest.raises(ValueError, match="dimensions"):
        Dpm(1.0, 1e-6).fit(good, np.zeros((2, 4), dtype=np.float32), noise())


@pytest.mark.parametrize(
    "fields",
    [
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"delta": 0.0},
        {"delta": 1.0},
        {"radius": math.nan},
        {"depth": 0},
        {"intervals": 0},
        {"intervals": 1 << 15},
        {"projection": 0},
        {"count_share": 0.5, "split_share": 0.5},
        {"emptiness": -1.0},
    ],
)
def test_fields_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Dpm(**{"epsilon": 1.0, "delta": 1e-6, **fields})


def test_settings_tell_all_that_decides() -> None:
    assert Dpm(1.0, 1e-6).settings["intervals"] == 20
    assert "projection" not in Dpm(1.0, 1e-6).settings
    assert Dpm(1.0, 1e-6, projection=4).settings["projection"] == 4
