"""The rank test: its level and its interval, against simulation and enumeration."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dpaudit.accounting.ranks import rank_test


def test_few_scores_have_the_tails_of_all_orders() -> None:
    scores = np.array([0.1, 0.4, 0.5, 0.7, 1.3, 2.0, 2.2])
    first = scores[[3, 5, 6]]
    found = rank_test(first, np.delete(scores, [3, 5, 6]))

    def auc(chosen: tuple[int, ...]) -> float:
        mine, others = scores[list(chosen)], np.delete(scores, list(chosen))
        return float((mine[:, None] > others).mean())

    every = [auc(chosen) for chosen in combinations(range(7), 3)]
    assert found.auc == pytest.approx(auc((3, 5, 6)))
    assert found.p == pytest.approx(np.mean([each >= found.auc - 1e-9 for each in every]))
    assert found.p_lower == pytest.approx(np.mean([each <= found.auc + 1e-9 for each in every]))


def test_separated_scores_leave_an_interval() -> None:
    found = rank_test(np.arange(100.0, 150.0), np.arange(80.0))
    assert found.auc == 1.0 and found.high == pytest.approx(1.0)
    assert 0.9 < found.low < 0.95
    assert found.p < 1e-20 and found.p_lower == pytest.approx(1.0)


def test_ties_count_half_and_do_not_reject() -> None:
    found = rank_test(np.zeros(60), np.zeros(50))
    assert found.auc == 0.5 and found.p > 0.4 and found.p_lower > 0.4


def test_few_scores_that_tie_keep_the_level() -> None:
    for scores, number in (([0.0, 0, 0, 1, 1, 1], 3), ([0.0, 0, 1, 2, 2], 2), ([0.0, 1, 1, 1], 1)):
        every = [
            rank_test(np.array(scores)[list(chosen)], np.delete(scores, chosen))
            for chosen in combinations(range(len(scores)), number)
        ]
        for found in (np.array([each.p for each in every]), [each.p_lower for each in every]):
            assert all(np.mean(np.array(found) <= p + 1e-9) <= p + 1e-9 for p in found)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(40, 60), (400, 900)])
def test_level_and_interval_by_simulation(sizes: tuple[int, int]) -> None:
    random, runs = np.random.default_rng(7), 400
    null = [
        rank_test(random.normal(size=sizes[0]), random.normal(size=sizes[1])) for _ in range(runs)
    ]
    for level in (0.05, 0.2):
        rejected = np.mean([each.p <= level for each in null])
        assert rejected <= level + 3 * np.sqrt(level * (1 - level) / runs)
    # normal scores one standard deviation apart: AUC = Phi(1 / sqrt 2)
    shifted = [
        rank_test(random.normal(1, size=sizes[0]), random.normal(size=sizes[1]))
        for _ in range(runs)
    ]
    assert np.mean([each.low <= 0.76025 <= each.high for each in shifted]) >= 0.95
    assert np.mean([each.p <= 1e-3 for each in shifted]) >= 0.85
