"""A paid worth figure: brute force over neighbours, floats included, and faults that break it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from dpaudit.accounting.worth import (
    CLIP,
    STEPS,
    composed_advantage,
    composed_epsilon,
    composed_rho,
    composed_true_positives,
    cost_for,
    most_noise,
    noise_scale,
    sensitivity,
    steps_of,
)
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.sampling import SeededStream

#: Gains of one batch, as a record could make them: what is no number, and what overflows, too.
HOSTILE = (
    *(math.nan, -math.inf, math.inf, -1e308, 1e308, 5e-324, -0.0, 0.1 + 0.2),
    *(sign * value for sign in (-1, 1) for value in (0.0005, 0.0015, CLIP, 0.2999999)),
    *(math.nextafter(CLIP, 0), math.nextafter(CLIP, 1), math.nextafter(-CLIP, 0)),
)
#: Logarithms of probabilities far out: beyond, both tails fall alike.
FAR = 4000


def log_probability(noise: int, scale: float) -> float:
    """Of Laplace noise that is rounded to an integer."""
    if noise == 0:
        return math.log(-math.expm1(-1 / (2 * scale)))
    return -(abs(noise) - 0.5) / scale + math.log(-math.expm1(-1 / scale) / 2)


def largest_loss(sums: Sequence[int], others: Sequence[int], scale: float) -> float:
    """Of all results of all pairs of sums, in nats."""
    pairs = {abs(one - other) for one, other in zip(sums, others, strict=True)}
    return max(
        abs(log_probability(noise, scale) - log_probability(noise + move, scale))
        for move in pairs
        for noise in range(-FAR, FAR, 7)
    )


def neighbours(count: Callable[[float], int]) -> tuple[list[int], list[int]]:
    """Sums of three batches' gains, and the same with another gain of one batch."""
    pairs = [
        (
            sum(map(count, (changed, *rest))),
            sum(map(count, (other, *rest))),
        )
        for changed, other in itertools.product(HOSTILE, HOSTILE)
        for rest in ((0.1, math.nan), (CLIP, -math.inf))
    ]
    return [one for one, _ in pairs], [other for _, other in pairs]


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1 / 3, 1.0, 7.0])
def test_no_neighbour_tells_more_than_epsilon(epsilon: float) -> None:
    sums, others = neighbours(steps_of)
    assert all(type(one) is int for one in sums)
    found = largest_loss(sums, others, noise_scale(epsilon, 1))
    assert 0.999 * epsilon < found <= epsilon * (1 + 1e-12)


def test_a_replaced_record_and_users_change_so_many_batches() -> None:
    for records in (2, 3, 6):
        worst = [steps_of(CLIP) * records], [steps_of(-CLIP) * records]
        assert abs(worst[0][0] - worst[1][0]) == sensitivity(records)
        assert largest_loss(*worst, noise_scale(0.5, records)) <= 0.5 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("fault", "records"),
    [
        (lambda gain: 0 if math.isnan(gain) else round(min(gain, CLIP) * STEPS), 1),
        (lambda gain: steps_of(gain), 0.5),
        (lambda gain: steps_of(gain) - 1 if math.isnan(gain) else 2 * steps_of(gain), 1),
    ],
    ids=["cut off above alone", "half the sensitivity", "counted twice"],
)
def test_a_planted_fault_tells_more(fault: Callable[[float], int], records: float) -> None:
    finite = [gain for gain in HOSTILE if not math.isinf(gain) and abs(gain) < 1e300]
    gains = [*finite, -3.0]
    sums = [fault(gain) for gain, _ in itertools.product(gains, gains)]
    others = [fault(other) for _, other in itertools.product(gains, gains)]
    scale = noise_scale(0.5, 1) * records
    assert largest_loss(sums, others, scale) > 0.51


def too_high(scale: float, reach: float) -> float:
    """The probability that noise exceeds what a bound leaves for it."""
    return math.exp(-(reach + 0.5) / scale) / 2


def test_the_bound_is_below_the_figure_without_noise_in_19_of_20_cases() -> None:
    """By probabilities, exactly; and by the very noise that is drawn."""
    for epsilon in (0.1, 1.0, 30.0, 2000.0):
        scale = noise_scale(epsilon, 1)
        reach = most_noise(scale, 1)
        assert too_high(scale, reach) <= 0.045
        assert too_high(scale, reach - 2) > 0.045
    scale = noise_scale(1.0, 1)
    drawn = Noise(SeededStream(3, 0)).rounded_laplace(scale, 4000)
    assert 0.03 < np.mean(drawn > most_noise(scale, 1)) < 0.06


def test_paying_again_until_a_bound_pleases_gains_nothing() -> None:
    """No figure of a hundred has a bound that is too high, but once in twenty times.

    Planted: each bound with the first one's confidence, of which nearly always one is too high.
    """
    scale = noise_scale(0.1, 1)
    fails = [too_high(scale, most_noise(scale, figures)) for figures in range(1, 101)]
    assert 0.04 < sum(fails) <= 0.05
    planted = [too_high(scale, most_noise(scale, 1))] * 100
    assert 1 - math.prod(1 - each for each in planted) > 0.9


def test_costs_of_other_neighbours() -> None:
    assert cost_for(0.1, "add_remove", "record", "add_remove", "record") == 0.1
    assert cost_for(0.1, "add_remove", "record", "replace", "record") == 0.2
    assert cost_for(0.1, "replace", "record", "add_remove", "record") == 0.1
    assert cost_for(0.1, "add_remove", "record", "add_remove", "user") == math.inf


def test_the_composition_of_randomised_response_with_the_figure_is_bounded() -> None:
    """Exact laws of both results: epsilon, total variation, and true positives at each rate."""
    first, second = 0.8, 0.3
    truth = math.exp(first) / (1 + math.exp(first))
    scale, move = noise_scale(second, 1), sensitivity(1)
    noises = range(-60_000, 60_000)
    of_noise = np.array([log_probability(noise, scale) for noise in noises])
    moved = np.array([log_probability(noise - move, scale) for noise in noises])
    p = np.concatenate([np.exp(of_noise) * truth, np.exp(of_noise) * (1 - truth)])
    q = np.concatenate([np.exp(moved) * (1 - truth), np.exp(moved) * truth])
    assert np.max(np.log(p / q)) <= composed_epsilon(first, second) + 1e-9
    variation = np.abs(p - q).sum() / 2
    assert variation <= composed_advantage(math.tanh(first / 2), second)
    order = np.argsort(-p / q)
    positives, false = np.cumsum(p[order]), np.cumsum(q[order])
    for rate in (0.001, 0.01, 0.1):
        alone = min(1.0, math.exp(first) * rate)
        reached = float(positives[np.searchsorted(false, rate)])
        assert reached <= composed_true_positives(alone, second) + 1e-4
    assert composed_rho(0.1, 0.2) == pytest.approx(0.12)
