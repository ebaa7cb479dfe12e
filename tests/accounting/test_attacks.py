"""Attacks' lower bounds on mechanisms of known privacy profile, and what no sample may change."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import betainc, ndtr  # type: ignore[import-untyped]

from dpaudit.accounting import LowerBound, epsilon_lower_bound

Doubles = NDArray[np.float64]
#: Losses of n outputs of either side.
Sampler = Callable[[np.random.Generator, int], tuple[Doubles, Doubles]]

losses = st.lists(st.floats(allow_nan=False), min_size=1, max_size=30).map(np.array)
deltas = st.floats(0, 0.99)


def randomised_response(epsilon: float) -> Sampler:
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))

    def sample(generator: np.random.Generator, n: int) -> tuple[Doubles, Doubles]:
        one, other = (np.where(generator.random(n) < truth, epsilon, -epsilon) for _ in range(2))
        return one, other

    return sample


def two_points(eta: float, t: float) -> Sampler:
    """The worst pair of an exponential mechanism of range eta: losses t and t - eta."""
    high = (math.exp(eta) - math.exp(t)) / (math.exp(eta) - 1)

    def sample(generator: np.random.Generator, n: int) -> tuple[Doubles, Doubles]:
        forward = np.where(generator.random(n) < high, t, t - eta)
        backward = np.where(generator.random(n) < high * math.exp(-t), -t, eta - t)
        return forward, backward

    return sample


def gaussian(mu: float) -> Sampler:
    def sample(generator: np.random.Generator, n: int) -> tuple[Doubles, Doubles]:
        one, other = (mu**2 / 2 + mu * generator.standard_normal(n) for _ in range(2))
        return one, other

    return sample


def profile(name: str, epsilon: float) -> float:
    """delta(epsilon) of the three mechanisms below."""
    if name == "response":
        return max(0.0, (math.e - math.exp(epsilon)) / (1 + math.e))
    if name == "points":
        eta, t = 2.0, 1.0
        high = (math.exp(eta) - math.exp(t)) / (math.exp(eta) - 1)
        forward = high * max(0.0, 1 - math.exp(epsilon - t))
        backward = (1 - high * math.exp(-t)) * max(0.0, 1 - math.exp(epsilon - (eta - t)))
        return max(forward, backward)
    return float(ndtr(0.5 - epsilon) - math.exp(epsilon) * ndtr(-0.5 - epsilon))


def true_epsilon(name: str, delta: float) -> float:
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if profile(name, middle) > delta else (low, middle)
    return high


MECHANISMS = {
    "response": randomised_response(1.0),
    "points": two_points(2.0, 1.0),
    "gaussian": gaussian(1.0),
}


@pytest.mark.parametrize("trials", [400, pytest.param(2000, marks=pytest.mark.slow)])
def test_the_bound_exceeds_the_true_epsilon_no_oftener_than_stated(trials: int) -> None:
    for name, (delta, n) in itertools.product(MECHANISMS, [(0.02, 40), (0.1, 200)]):
        truth, generator = true_epsilon(name, delta), np.random.default_rng(5)
        bounds = [
            epsilon_lower_bound(*MECHANISMS[name](generator, n), delta) for _ in range(trials)
        ]
        slack = 4 * math.sqrt(0.05 * 0.95 / trials)
        assert np.mean([bound.epsilon > truth + 1e-12 for bound in bounds]) <= 0.05 + slack
        # The whole curve holds at once.
        over = [
            any(below > profile(name, epsilon) + 1e-12 for epsilon, _, below in bound.curve)
            for bound in bounds
        ]
        assert np.mean(over) <= 0.05 + slack


@pytest.mark.parametrize("outputs", [20_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_many_outputs_come_close_to_the_true_epsilon(outputs: int) -> None:
    for name in MECHANISMS:
        bound = epsilon_lower_bound(*MECHANISMS[name](np.random.default_rng(1), outputs), 0.05)
        truth = true_epsilon(name, 0.05)
        assert (0.97 if outputs > 100_000 else 0.93) * truth < bound.epsilon <= truth
        assert bound.estimate == pytest.approx(truth, rel=0.02)
        for epsilon, estimate, below in bound.curve:
            assert below <= profile(name, epsilon) + 1e-12
            assert estimate == pytest.approx(profile(name, epsilon), abs=0.01)


def brute_force(sides: list[Doubles], delta: float, error: float) -> float:
    """The bound by its definition, term by term: bisection for quantiles, then for epsilon."""

    @cache  # bisection for epsilon asks for the same ones every time
    def quantile(k: int, n: int) -> float:
        low, high = 0.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if betainc(k, n - k + 1, middle) < error / (2 * n) else (low, middle)
            )
        return low

    def shown(losses: Doubles, epsilon: float) -> float:
        n, total, before = len(losses), 0.0, 0.0
        for k, loss in enumerate(sorted(losses, reverse=True), start=1):
            mass = quantile(k, n)
            total += (mass - before) * max(0.0, 1 - math.exp(epsilon - loss))
            before = mass
        return total

    found = 0.0
    for side in sides:
        low, high = 0.0, max(0.0, float(side.max()))
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if shown(side, middle) > delta else (low, middle)
        found = max(found, low)
    return found


def test_the_bound_is_the_one_of_its_definition() -> None:
    for seed in range(2):
        generator = np.random.default_rng(seed)
        forward, backward = generator.normal(1, 2, 9), generator.normal(0.5, 1, 5)
        for delta, confidence in [(0.0, 0.95), (0.01, 0.9), (0.2, 0.5)]:
            bound = epsilon_lower_bound(forward, backward, delta, confidence)
            assert bound.epsilon == pytest.approx(
                brute_force([forward, backward], delta, 1 - confidence), abs=1e-9
            )


@given(losses, losses, deltas, deltas, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_more_delta_and_more_confidence_show_less(
    forward: Doubles,
    backward: Doubles,
    delta: float,
    other: float,
    confidence: float,
    another: float,
) -> None:
    def bound(delta: float, confidence: float) -> LowerBound:
        return epsilon_lower_bound(forward, backward, delta, confidence)

    strong = bound(min(delta, other), min(confidence, another))
    for weak in (
        bound(max(delta, other), min(confidence, another)),
        bound(min(delta, other), max(confidence, another)),
    ):
        assert 0 <= weak.epsilon <= strong.epsilon * (1 + 1e-12) + 1e-9
    assert strong.epsilon <= strong.estimate * (1 + 1e-12) + 1e-9
    epsilons, estimates, below = map(np.array, zip(*strong.curve, strict=True))
    assert epsilons[0] == 0
    assert (np.diff(epsilons) >= 0).all()
    for column in (estimates, below):
        assert (np.diff(column) <= 1e-12).all()
        assert ((column >= 0) & (column <= 1 + 1e-12)).all()


@given(losses, losses)
def test_without_delta_the_largest_loss_is_the_bound(forward: Doubles, backward: Doubles) -> None:
    largest = max(0.0, forward.max(), backward.max())
    bound = epsilon_lower_bound(forward, backward, 0.0)
    assert bound.epsilon == pytest.approx(largest, rel=1e-12)
    assert bound.epsilon <= largest


def test_what_the_other_side_cannot_give_refutes_every_epsilon() -> None:
    impossible = np.full(100, math.inf)
    assert epsilon_lower_bound(impossible, np.array([-1.0]), 0.5).epsilon == math.inf
    # One such output in a hundred is no proof of more than a delta of 1 in 100.
    once = np.append(np.zeros(99), math.inf)
    assert epsilon_lower_bound(once, np.array([-math.inf]), 0.0).epsilon == math.inf
    assert epsilon_lower_bound(once, np.array([-math.inf]), 0.05).epsilon == 0


def test_losses_beyond_the_floats_are_no_infinity() -> None:
    assert epsilon_lower_bound(np.full(50, 2000.0), np.zeros(1), 0.1).epsilon == pytest.approx(
        1999.86, abs=0.1
    )


def test_nonsense_is_refused() -> None:
    for forward, delta, confidence in [
        ([], 0.0, 0.95),
        ([math.nan], 0.0, 0.95),
        ([[1.0]], 0.0, 0.95),
        ([1.0], -0.1, 0.95),
        ([1.0], 1.0, 0.95),
        ([1.0], math.nan, 0.95),
        ([1.0], 0.0, 0.0),
        ([1.0], 0.0, 1.0),
    ]:
        losses = np.array(forward)
        for one, other in ((losses, np.ones(1)), (np.ones(1), losses)):
            with pytest.raises(ValueError, match=r"^(losses|delta) "):
                epsilon_lower_bound(one, other, delta, confidence)
