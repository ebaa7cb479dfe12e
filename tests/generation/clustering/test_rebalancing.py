"""Centres are kept by noisy counts, and what is worked out from them costs nothing more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.clustering.rebalancing import NoisyCounts, PrivateCounts
from dpaudit.generation.sampling import SeededStream
from dpaudit.mechanisms import Relation

RELATIONS: tuple[Relation, ...] = ("add_remove", "replace")
#: So many draws show a fault, and are quick.
DRAWS = 2000


def noise(seed: int = 1) -> Noise:
    return Noise(SeededStream(seed, 0))


def noisy(values: Any) -> NoisyCounts:
    return NoisyCounts(np.asarray(values, dtype=np.int64), 1.0)


# --- what follows from noisy counts (tests/accounting/test_rebalancing.py has the rest) -----------


def test_noisy_counts_decide_what_is_kept_and_how_many_batches_it_has() -> None:
    counts = noisy([[600, 300, 90, 10], [5, -40, 100, 20]])
    kept = counts.kept(2)
    assert kept.tolist() == [[0, 1], [2, 3]]
    # The first label's 1000 records are shared out 2 : 1, the second's 85 are 5 : 1.
    assert counts.batches(kept, 32, 50, 1).tolist() == [[21, 10], [2, 1]]
    assert counts.batches(kept, 32, 50, 8).tolist() == [[21, 10], [8, 8]], (
        "no fewer than the public least"
    )


def test_each_label_keeps_its_own() -> None:
    labels, places = np.repeat([0, 1], 1000), np.repeat([4, 1], 1000)
    for relation in RELATIONS:
        noised = PrivateCounts(labels, places, (2, 6)).noised(1.0, relation, noise())
        assert noised.kept(1).tolist() == [[4], [1]]


# --- noise before choice --------------------------------------------------------------------------


def right_order(values: NDArray[np.int64], epsilon: float, seed: int) -> int:
    """The center that is kept, of one label's two."""
    places = np.repeat([0, 1], values)
    counts = PrivateCounts(np.zeros_like(places), places, (1, 2))
    return int(counts.noised(epsilon, "add_remove", noise(seed)).kept(1)[0, 0])


def swapped(values: NDArray[np.int64], epsilon: float, seed: int) -> int:
    """The fault: chosen by the counts, which get their noise afterwards."""
    return int(noisy([values]).kept(1)[0, 0])


def proven(keep: Callable[[NDArray[np.int64], float, int], int], epsilon: float) -> float:
    """The epsilon that samples from a tie, which one record breaks, prove.

    By Clopper and Pearson, 99.9 % of such samples prove at most the true epsilon.
    """
    seconds = [
        sum(keep(np.array([10, 10 + more]), epsilon, 2 * seed + more) for seed in range(DRAWS))
        for more in (0, 1)
    ]
    first, second = seconds
    sides = [
        (first, second),
        (second, first),
        (DRAWS - first, DRAWS - second),
        (DRAWS - second, DRAWS - first),
    ]
    return max(0.0, *(math.log(max(_low(often), 1e-300) / _high(rare)) for often, rare in sides))


def _low(successes: int) -> float:
    return float(beta.ppf(1e-3 / 8, successes, DRAWS - successes + 1)) if successes else 0.0


def _high(successes: int) -> float:
    return float(beta.isf(1e-3 / 8, successes + 1, DRAWS - successes)) if successes < DRAWS else 1.0


def test_the_choice_tells_no_more_than_the_noise_allows() -> None:
    for epsilon in [0.1, 1.0]:
        assert proven(right_order, epsilon) <= epsilon


def test_a_choice_before_the_noise_is_caught() -> None:
    assert proven(swapped, 1.0) > 1.0
