"""The sampling test: how often it alarms on honest runs, and what it detects."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.checks.sampling_test import FALSE_ALARMS, THRESHOLD, SamplingTest

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


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (at(1.0), "temperature"),
        (at(2.5), "temperature"),
        (among(1), "greedy decoding"),
        (among(50), "top-k 50"),
        (nucleus(0.9), "top-p 0.9"),
    ],
    ids=["temperature 1.0", "temperature 2.5", "greedy", "top-k 50", "top-p 0.9"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_run_of_the_demos_size_betrays_another_sampler(draw: Draw, named: str, seed: int) -> None:
    alarms = sampled(draw, steps=200, size=49_152, seed=seed).alarms()
    assert any(alarm.alternative.startswith(named) for alarm in alarms)


@pytest.mark.parametrize("size", [2, 30, 2000])
def test_honest_runs_pass(size: int) -> None:
    """At most FALSE_ALARMS of honest runs alarm: of 1,980 in all none is to be expected, two would be a finding."""
    alarmed = sum(bool(sampled(at(TEMPERATURE), steps=25, size=size, seed=seed).alarms()) for seed in range(660))
    assert alarmed <= 1
    assert FALSE_ALARMS * 660 < 0.1


def test_the_stated_power_is_the_power() -> None:
    """Of runs at the smallest temperature error that is said to be detected, 99 of 100 alarm."""
    said = sampled(at(TEMPERATURE), steps=120, size=300, seed=0).detectable()
    low = float(said.split("a temperature of ")[1].split(" ")[0])
    missed = sum(not sampled(at(low), steps=120, size=300, seed=seed).alarms() for seed in range(100))
    assert missed <= 5


def test_ties_and_a_token_at_the_floor() -> None:
    test = SamplingTest(1.0)
    for token in range(8):
        test.add(np.zeros(8), token, b"")
    assert test.steps == 8
    assert not test.alarms()
    assert THRESHOLD > 12
