"""The experiment on homogeneous batches: two runs that differ in nothing else, and their ratios."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.homogeneity import Arm, arms, estimates, matched_ratio, mean_ratio
from dpaudit.generation.config import load_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "agnews-clustered.yaml"


def arm(factor: float, contexts: float, seed: int, spread: float = 0.2) -> Arm:
    """Costs in proportion to factor / contexts, twice as high for one of two labels."""
    random = np.random.default_rng(seed)
    labels = np.repeat(["a", "b"], 60)
    sizes = contexts * np.exp(spread * random.normal(size=120))
    costs = (
        factor / sizes * np.where(labels == "a", 1.0, 2.0) * np.exp(0.1 * random.normal(size=120))
    )
    return Arm(costs, sizes, labels, np.full(120, 8.0))


def test_the_two_runs_differ_in_their_batches_alone() -> None:
    config = load_config(EXAMPLE)
    found = arms(config, 100, 3)
    clustered, by_label = found["clustered"], found["by label"]
    assert clustered.clustering == config.clustering and by_label.clustering is None
    assert by_label.batching.generate_per_label == 12 and by_label.batching.batches_per_label == 100
    left = clustered.model_copy(update={"clustering": None, "batching": by_label.batching})
    assert left == by_label
    assert clustered.sampling.seed == 3


def test_the_matched_ratio_does_not_see_the_sizes_of_batches() -> None:
    clustered, by_label = arm(0.8, 40, 1), arm(1.0, 50, 2)
    # cheaper, but in smaller batches
    assert mean_ratio(clustered, by_label) == pytest.approx(1.0, abs=0.1)
    assert matched_ratio(clustered, by_label) == pytest.approx(0.8, abs=0.05)


def test_intervals_hold_the_truth_and_are_narrow() -> None:
    found = estimates(arm(0.8, 50, 1), arm(1.0, 50, 2))
    for estimate in found.values():
        assert estimate.low <= 0.8 <= estimate.high
        assert estimate.low <= estimate.ratio <= estimate.high
        assert estimate.high - estimate.low < 0.2
