"""Noise on record: how rarely honest noise alarms, whenever one looks, and how surely half of it does."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from dpaudit.checks import noise
from dpaudit.checks.noise import FEWEST, NoiseTally


def tally(quantiles: np.ndarray) -> NoiseTally:
    found = NoiseTally()
    found.take(quantiles)
    return found


def laplace(random: np.random.Generator, size: int, scale: float) -> np.ndarray:
    """Quantiles in the Laplace distribution of scale 1 of noise that is `scale` as large."""
    values = random.laplace(scale=scale, size=size)
    tails = np.exp(-np.abs(values)) / 2
    return np.where(values < 0, tails, 1 - tails)


def test_half_the_noise_is_seen_in_as_few_numbers_as_are_enough() -> None:
    random = np.random.default_rng(1)
    seen = [bool(tally(laplace(random, FEWEST, 0.5)).alarm) for _ in range(1000)]
    assert np.mean(seen) > 0.98


def test_honest_noise_never_alarms_whenever_one_looks() -> None:
    random = np.random.default_rng(2)
    for _ in range(30):
        found = NoiseTally()
        for each in random.random(300):
            found.take(np.array([each]))
            assert not found.alarm


@pytest.mark.parametrize("wrong", [lambda u: 0.5 + u / 2, lambda u: u**2, lambda u: np.round(u)])
def test_noise_of_another_distribution_alarms(wrong: Callable[[np.ndarray], np.ndarray]) -> None:
    assert "whose distribution" in tally(wrong(np.random.default_rng(3).random(800))).alarm


def test_a_bound_on_repetitions_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    values, most = 64, 40
    monkeypatch.setattr(noise, "VALUES", float(values))
    distinct = np.zeros(most + 2)
    distinct[0] = 1.0
    for draws in range(1, most + 1):
        before = distinct.copy()
        distinct = before * np.arange(most + 2) / values
        distinct[1:] += before[:-1] * (1 - np.arange(most + 1) / values)
        for repeated in range(1, draws):
            exact = float(distinct[: draws - repeated + 1].sum())
            assert noise._repetition(repeated, draws, 1) >= math.log(max(exact, 1e-300)) - 1e-9
    assert noise._repetition(0, 10**6, 1) == 0.0


def test_single_precision_repeats_itself_and_shared_noise_does_so_more() -> None:
    random = np.random.default_rng(4)
    drawn = random.random(20_000, dtype=np.float32)
    repeated = len(drawn) - np.unique(drawn).size
    assert repeated > 3
    assert noise._repetition(repeated, len(drawn), 1) > math.log(noise.ALARM) > noise._repetition(200, len(drawn), 1)
    assert noise._repetition(1, 1000, 8) < math.log(noise.ALARM) < noise._repetition(1, 1000, 1)
