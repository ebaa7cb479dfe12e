"""Centres are kept by noisy counts, and what is worked out from them costs nothing more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta

from dpaudit.generation.clustering.dpm import Dpm
from dpaudit.generation.clustering.interfaces import CentersOrigin, ClusteringCost, Vectors
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.clustering.rebalancing import NoisyCounts, PrivateCounts, Rebalanced
from dpaudit.generation.sampling import SeededStream

#: So many draws show a fault, and are quick.
DRAWS = 2000


def noise(seed: int = 1) -> Noise:
    return Noise(SeededStream(seed, 0))


def noisy(values: Any) -> NoisyCounts:
    return NoisyCounts(np.asarray(values, dtype=np.int64), 1.0, 1.0, "add_remove", 1)


# --- what follows from noisy counts (tests/accounting/test_rebalancing.py has the rest) -------------------------------


def test_noisy_counts_decide_what_is_kept_and_how_many_batches_it_has() -> None:
    counts = noisy([[600, 300, 90, 10], [5, -40, 100, 20]])
    kept = counts.kept(2)
    assert kept.tolist() == [[0, 1], [2, 3]]
    # The first label's 1000 records are shared out 2 : 1, the second's 85 are 5 : 1.
    assert counts.batches(kept, 32, 50).tolist() == [[21, 10], [2, 1]]


# --- noise before choice ----------------------------------------------------------------------------------------------


def right_order(values: NDArray[np.int64], epsilon: float, seed: int) -> int:
    """The center that is kept, of one label's two."""
    places = np.repeat([0, 1], values)
    counts = PrivateCounts(np.zeros_like(places), places, (1, 2))
    return int(Rebalanced(Points(2), 1, epsilon).select(counts, noise(seed))[1][0, 0])


def swapped(values: NDArray[np.int64], epsilon: float, seed: int) -> int:
    """The fault: chosen by the counts, which get their noise afterwards."""
    return int(noisy([values]).kept(1)[0, 0])


def proven(keep: Callable[[NDArray[np.int64], float, int], int], epsilon: float) -> float:
    """Epsilon that 99.9 % of such samples prove at most (Clopper and Pearson), from a tie that one record breaks."""
    seconds = [
        sum(keep(np.array([10, 10 + more]), epsilon, 2 * seed + more) for seed in range(DRAWS)) for more in (0, 1)
    ]
    first, second = seconds
    sides = [(first, second), (second, first), (DRAWS - first, DRAWS - second), (DRAWS - second, DRAWS - first)]
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


# --- the method -------------------------------------------------------------------------------------------------------


FREE = ClusteringCost(0.0)


@dataclass(frozen=True)
class Points:
    """Centres 0, 1, ..., k - 1 on a line, at a price."""

    k: int
    price: ClusteringCost = FREE
    origin: CentersOrigin = "public"
    name: str = "points"

    @property
    def settings(self) -> dict[str, int | float | str]:
        return {"k": self.k}

    def cost(self, relation: Any) -> ClusteringCost:
        return self.price

    def fit(self, private: Vectors, public: Vectors, noise: Noise) -> Vectors:
        return np.arange(self.k, dtype=np.float32)[:, None]


def test_the_centers_of_most_records_are_kept() -> None:
    for relation in ["add_remove", "replace"]:
        private = np.repeat([2.1, 3.9, 0.2], [5000, 7000, 40]).astype(np.float32)[:, None]
        method = Rebalanced(Points(6), 2, 1.0, relation)
        centers = method.fit(private, np.empty((0, 1), dtype=np.float32), noise())
        assert centers.tolist() == [[2.0], [4.0]]


def test_each_label_keeps_its_own() -> None:
    labels, places = np.repeat([0, 1], 1000), np.repeat([4, 1], 1000)
    counts, kept = Rebalanced(Points(6), 1, 1.0).select(PrivateCounts(labels, places, (2, 6)), noise())
    assert kept.tolist() == [[4], [1]]
    assert counts.epsilon == 1.0


def test_counts_get_the_noise_of_the_relation() -> None:
    for relation, sensitivity in [("add_remove", 1), ("replace", 2)]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            asked, drawn = [], Noise.rounded_laplace

            def watched(self: Noise, scale: float, size: int) -> NDArray[np.int64]:
                asked.append((scale, size))
                return drawn(self, scale, size)

            monkeypatch.setattr(Noise, "rounded_laplace", watched)
            method = Rebalanced(Points(6), 2, 0.5, relation)
            counts, _ = method.select(PrivateCounts(np.array([0, 1]), np.array([4, 1]), (2, 6)), noise())
            assert asked == [(counts.scale, 12)]
            assert counts.scale == pytest.approx(sensitivity / 0.5)
            assert counts.scale >= sensitivity / 0.5
            assert (counts.relation, counts.sensitivity, counts.epsilon) == (relation, sensitivity, 0.5)
            method.fit(np.zeros((5, 1), dtype=np.float32), np.empty((0, 1), dtype=np.float32), noise())
            assert asked[1:] == [(counts.scale, 6)]


def test_no_records_keep_some_centers() -> None:
    nobody = np.empty((0, 1), dtype=np.float32)
    assert Rebalanced(Points(6), 2, 0.1).fit(nobody, nobody, noise()).shape == (2, 1)


def test_cost_is_that_of_the_base_and_of_the_counts() -> None:
    public = Rebalanced(Points(6), 2, 0.1)
    assert public.cost("add_remove") == ClusteringCost(0.1)
    assert public.cost("replace").epsilon == pytest.approx(0.2)
    assert Rebalanced(Points(6), 2, 0.1, "replace").cost("add_remove").epsilon == pytest.approx(0.05)
    base = Dpm(1.0, 1e-6)
    both = Rebalanced(base, 2, 0.1).cost("replace")
    assert both.delta == 1e-6
    assert both.epsilon == pytest.approx(base.cost("replace").epsilon + 0.2)
    assert both.epsilon >= base.cost("replace").epsilon + 0.2
    assert Rebalanced(Points(6, ClusteringCost(math.inf)), 2, 0.1).cost("replace").epsilon == math.inf


def test_what_it_is_called_and_made_of() -> None:
    public = Rebalanced(Points(6), 2, 0.1)
    assert (public.name, public.origin) == ("points-rebalanced", "noised")
    assert public.settings == {"k": 6, "keep": 2, "rebalancing_epsilon": 0.1, "rebalancing_relation": "add_remove"}
    assert Rebalanced(Points(6, origin="private"), 2, 0.1).origin == "private"


def test_fields_out_of_range_are_refused() -> None:
    for keep, epsilon in [(0, 0.1), (2, 0.0), (2, math.inf), (2, math.nan)]:
        with pytest.raises(ValueError, match="must be"):
            Rebalanced(Points(6), keep, epsilon)
