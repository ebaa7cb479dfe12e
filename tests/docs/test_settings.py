"""Directions and figures of docs/settings.md, worked out on made-up logits and from settings."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from dpaudit.accounting import ApproximateAccountant, exact_cost, median_bounds
from dpaudit.mechanisms import ContextChange, Mean, Mechanism, Relation, TopClippedLogits, mean_box


@cache
def costs(
    contexts: int = 32,
    spread: float = 1.0,
    clip: float = 12.0,
    temperature: float = 0.8,
    relation: Relation = "add_remove",
    steps: int = 50,
    vocabulary: int = 2000,
) -> np.ndarray:
    """Return the mean exact ex-post cost of a token in nats: the median's, and the mean's."""
    generator, totals = np.random.default_rng(1), np.zeros(2)
    half_steps = 1 if relation == "add_remove" else 2
    for _ in range(steps):
        own = spread * generator.standard_normal((contexts, vocabulary))
        logits = 5 * generator.standard_normal(vocabulary) + own
        values = np.maximum(-clip, logits - logits.max(axis=1, keepdims=True) + clip)
        boxes = (
            median_bounds(values, relation=relation, clip=clip),
            mean_box(values.mean(axis=0), clip, contexts, half_steps=half_steps),
        )
        for which, (lower, center, upper) in enumerate(boxes):
            weights = np.exp((center - center.max()) / temperature)
            token = int(generator.choice(vocabulary, p=weights / weights.sum()))
            totals[which] += max(exact_cost(lower, center, upper, token, temperature))
    return totals / steps


def test_costs_move_as_the_page_says() -> None:
    median, mean = costs()
    assert median < mean / 10
    assert max(costs(contexts=128) / (median, mean)) < 0.3  # both: about as 1 / n
    assert costs(spread=0.25)[0] < median / 3  # the median falls with agreement ...
    assert abs(costs(spread=0.25)[1] / mean - 1) < 0.1  # ... which the mean does not see
    assert costs(clip=24.0)[1] > 2 * mean  # the mean grows with the clip ...
    assert abs(costs(clip=24.0)[0] / median - 1) < 0.01  # ... which the median does not see
    assert 1.9 < costs(relation="replace")[0] / median < 2.1


@pytest.mark.parametrize(
    ("change", "delta", "epsilon"),
    [
        (ContextChange("add_remove"), 108_000**-1.1, 9.89),
        (ContextChange("add_remove", contexts=5), 108_000**-1.1, 84.0),
        (ContextChange("add_remove"), 2.9e-7, 10.72),
    ],
)
def test_epsilons_of_the_page(change: ContextChange, delta: float, epsilon: float) -> None:
    logits, mean = TopClippedLogits(clip=9.0), Mean(divisor=64)
    mechanism = Mechanism(contribution=logits, aggregator=mean, temperature=1.5)
    found = ApproximateAccountant.of(mechanism, change).epsilon(367, delta, "rdp").epsilon
    assert abs(found - epsilon) < 0.01


@pytest.mark.parametrize(
    ("vocabulary", "clip", "temperature", "weight"),
    [
        (49_152, 12, 0.8, 4.6e-9),
        (49_152, 9, 1.5, 0.30),
        (49_152, 6, 1.5, 16),
        (256_000, 9, 1.5, 1.6),
        (256_000, 6, 1.5, 86),
    ],
)
def test_weights_of_the_floor(
    vocabulary: int, clip: float, temperature: float, weight: float
) -> None:
    assert abs(vocabulary * np.exp(-2 * clip / temperature) / weight - 1) < 0.05
