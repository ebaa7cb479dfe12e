"""The sampling test: how often it alarms on honest runs, and what it detects."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.checks.sampling import BINS, FALSE_ALARMS, TEMPERATURES, THRESHOLD, TOP_K, TOP_P, SamplingTest

TEMPERATURE = 1.5
Draw = Callable[[NDArray[np.float64], np.random.Generator], int]


def softmax(values: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    weights = np.exp((values - values.max()) / temperature)
    return weights / weights.sum()


def at(temperature: float) -> Draw:
    return lambda values, random: int(random.choice(len(values), p=softmax(values, temperature)))


def among(k: int) -> Draw:
    """Private top-k: the k largest entries of the aggregate only."""

    def draw(values: NDArray[np.float64], random: np.random.Generator) -> int:
        kept = np.argsort(-values, kind="stable")[:k]
        return int(kept[random.choice(k, p=softmax(values[kept], TEMPERATURE))])

    return draw


def nucleus(share: float) -> Draw:
    def draw(values: NDArray[np.float64], random: np.random.Generator) -> int:
        order = np.argsort(-values, kind="stable")
        size = int(np.searchsorted(np.cumsum(softmax(values, TEMPERATURE)[order]), share)) + 1
        return int(order[random.choice(size, p=softmax(values[order[:size]], TEMPERATURE))])

    return draw


def aggregates(steps: int, size: int, seed: int) -> NDArray[np.float64]:
    """Like a language model's medians: a few tokens stand out, and most lie at the floor of the clip."""
    random = np.random.default_rng(seed)
    values = np.full((steps, size), -9.0)
    likely = min(size, 400)
    for row in values:
        places = random.choice(size, likely, replace=False)
        row[places] = np.clip(9.0 - np.sort(random.gamma(2.0, 3.0, likely)), -9.0, 9.0)
    return values


def sampled(draw: Draw, steps: int, size: int, seed: int) -> SamplingTest:
    random = np.random.default_rng([seed, 1])
    test = SamplingTest(TEMPERATURE)
    for number, row in enumerate(aggregates(steps, size, seed)):
        test.add(row, draw(row, random), bytes([seed % 256, number % 256]))
    return test


def test_a_run_of_the_demos_size_betrays_another_sampler() -> None:
    for (draw, named), seed in itertools.product(
        [
            (at(1.0), "temperature"),
            (at(2.5), "temperature"),
            (among(1), "greedy decoding"),
            (among(50), "top-k 50"),
            (nucleus(0.9), "top-p 0.9"),
        ],
        range(2),
    ):
        alarms = sampled(draw, steps=200, size=49_152, seed=seed).alarms()
        assert any(alarm.alternative.startswith(named) for alarm in alarms)


@pytest.mark.parametrize("runs", [100, pytest.param(660, marks=pytest.mark.slow)])
def test_honest_runs_pass(runs: int) -> None:
    """At most FALSE_ALARMS of honest runs alarm: of 1,980 in all none is to be expected, two would be a finding."""
    for size in (2, 30, 2000):
        alarmed = sum(bool(sampled(at(TEMPERATURE), steps=25, size=size, seed=seed).alarms()) for seed in range(runs))
        assert alarmed <= 1
        assert FALSE_ALARMS * 660 < 0.1


@pytest.mark.parametrize(("runs", "most"), [(20, 1), pytest.param(100, 5, marks=pytest.mark.slow)])
def test_the_stated_power_is_the_power(runs: int, most: int) -> None:
    """Of runs at the smallest temperature error that is said to be detected, 99 of 100 alarm."""
    said = sampled(at(TEMPERATURE), steps=120, size=300, seed=0).detectable()
    low = float(said.split("a temperature of ")[1].split(" ")[0])
    missed = sum(not sampled(at(low), steps=120, size=300, seed=seed).alarms() for seed in range(runs))
    assert missed <= most


def test_ties_and_a_token_at_the_floor() -> None:
    test = SamplingTest(1.0)
    for token in range(8):
        test.add(np.zeros(8), token, bytes([token]))
    assert test.steps == 8
    assert not test.alarms()
    assert THRESHOLD > 12


class Reference:
    """The evidence by its definitions: every alternative's distribution over all tokens, written out."""

    def __init__(self) -> None:
        self.ratio, self.expected, self.variance = (np.zeros(len(TEMPERATURES)) for _ in range(3))
        self.top_k, self.top_p = np.zeros(len(TOP_K)), np.zeros(len(TOP_P))
        self.places: list[tuple[float, float]] = []

    def add(self, values: NDArray[np.float64], token: int) -> None:
        here = np.log(softmax(values, TEMPERATURE))
        for i, factor in enumerate(TEMPERATURES):
            other = softmax(values, factor * TEMPERATURE)
            ratio = np.log(other) - here
            mean = float((other * ratio).sum())
            self.ratio[i] += ratio[token]
            self.expected[i] += mean
            self.variance[i] += float((other * (ratio - mean) ** 2).sum())
        order = np.argsort(-values, kind="stable")
        ranked, rank = np.exp(here)[order], int(np.flatnonzero(order == token)[0])
        mass = np.cumsum(ranked)
        for i, k in enumerate(TOP_K):
            self.top_k[i] += np.inf if rank >= k else (-np.log(mass[k - 1]) if k < len(values) else 0.0)
        for i, p in enumerate(TOP_P):
            kept = int(np.searchsorted(mass, p)) + 1
            self.top_p[i] += np.inf if rank >= kept else (-np.log(mass[kept - 1]) if kept < len(values) else 0.0)
        self.places.append((float(mass[rank] - ranked[rank]), float(mass[rank])))


def test_evidence_is_that_of_the_definitions() -> None:
    for (size, dtype), draw in itertools.product(
        [(1, "f8"), (2, "f4"), (40, "f4"), (3000, "f4"), (3000, "f8")], [at(TEMPERATURE), at(0.8), among(1)]
    ):
        random, test, reference = np.random.default_rng(5), SamplingTest(TEMPERATURE), Reference()
        for number, row in enumerate(aggregates(20, size, seed=3).astype(dtype)):
            values = row.astype(np.float64)
            token = draw(values, random)
            test.add(row, token, bytes([number]))
            reference.add(values, token)
        for found, right in (
            (test._ratio, reference.ratio),
            (test._expected, reference.expected),
            (test._variance, reference.variance),
            (np.where(test._left, np.inf, test._truncated), np.append(reference.top_k, reference.top_p)),
        ):
            np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9)
        assert test._counts.sum() == 20
        edges = [tuple(int(np.clip(end * BINS, 0, BINS - 1)) for end in place) for place in reference.places]
        for bin_ in np.flatnonzero(test._counts):
            assert any(low <= bin_ <= high for low, high in edges)


def test_transforms_that_all_lie_at_one_end_are_evidence_by_massarts_bound() -> None:
    test = SamplingTest(TEMPERATURE)
    for number in range(20):
        test.add(np.array([30.0, -30.0]), 0, bytes([number]))  # a token of probability 1: its places are uniform
    assert test.steps == test._counts.sum() == 20
    test._counts[:] = [20] + [0] * (BINS - 1)
    assert test._transform_evidence() == pytest.approx(2 * 20 * (1 - 1 / BINS) ** 2)


def test_merged_tests_are_the_test_of_all_steps() -> None:
    whole, parts = SamplingTest(TEMPERATURE), [SamplingTest(TEMPERATURE) for _ in range(3)]
    random = np.random.default_rng(0)
    for number, row in enumerate(aggregates(30, 200, seed=1)):
        token = at(TEMPERATURE)(row, random)
        for test in (whole, parts[number // 10]):
            test.add(row, token, bytes([number]))
    merged = SamplingTest(TEMPERATURE)
    for part in parts:
        merged.merge(part)
    assert merged.steps == whole.steps == 30
    for found, right in zip(merged._sums(), whole._sums(), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-12)
    assert merged.detectable() == whole.detectable()


def test_steps_that_are_no_numbers_are_left_to_other_checks() -> None:
    for value in [np.nan, np.inf, -np.inf]:
        test = SamplingTest(TEMPERATURE)
        test.add(np.array([0.0, value, 1.0]), 0, b"")
        assert test.steps == 0
