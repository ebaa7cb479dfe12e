"""One suite that every accountant passes.

Ex-post accountants are asked about the one record whose cost is monotone in clip and temperature by
theory: a single indifferent context, between the sentinels at either end of the clip. For other
records those rules do not hold, and need not (docs/sharp-edges.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from dpaudit.accounting import (
    ApproximateAccountant,
    ExPostAccountant,
    Method,
    exponential_mechanism_epsilon,
)
from dpaudit.accounting.blocks import profile_in_blocks
from dpaudit.accounting.profiles import epsilon_of_profile
from dpaudit.accounting.recursion import Problem
from dpaudit.mechanisms import (
    Central,
    ContextChange,
    Mean,
    Mechanism,
    Median,
    ReducedSteps,
    Spans,
    TopClippedLogits,
    bounded_range,
    central_order_statistics,
)

ONE, GROUP = ContextChange("add_remove"), ContextChange("replace", 2)
DELTA, CLIP, TEMPERATURE, DIVISOR = 1e-4, 6.0, 1.2, 16.0
KINDS = {"median": Median(), "mean": Mean(divisor=DIVISOR), "central": Central(central=4)}
#: So few that what is beyond them, the clip, is within a neighbour's reach.
CONTEXTS = {"median": 1, "central": 4}

#: steps, delta, clip, temperature -> epsilon in nats.
Cost = Callable[[int, float, float, float], float]


@dataclass(frozen=True)
class Accountant:
    """An accountant under test. `one_by_one` charges the steps as so many events of their own.

    `refuses` is the one of the two that takes all settings as they are given. `slack`: by how much,
    relatively, a grid that is another one for other settings may turn their order round.
    """

    cost: Cost
    one_by_one: Cost
    refuses: Cost
    settings: tuple[str, ...] = ("steps", "delta", "clip", "temperature")
    slack: float = 1e-9


def ex_post(change: ContextChange, measure: str, aggregator: str) -> Accountant:
    def new(clip: float, temperature: float) -> tuple[ExPostAccountant, ReducedSteps]:
        parts = {"aggregator": KINDS[aggregator], "temperature": temperature}
        # no record has such a clip; what bounds nothing must cost infinitely much all the same
        if clip == math.inf:
            unbounded = TopClippedLogits.model_construct(clip=clip)
            mechanism = Mechanism.model_construct(contribution=unbounded, **parts)
        else:
            mechanism = Mechanism(contribution=TopClippedLogits(clip=clip), **parts)
        arrays = (
            {"aggregate": np.zeros(5)}
            if aggregator == "mean"
            else {"central": central_order_statistics(np.zeros((CONTEXTS[aggregator], 5)), clip, 4)}
        )
        step = ReducedSteps.whole(arrays, np.array([0]), Spans([5]))
        return ExPostAccountant(mechanism, change), step

    def one_by_one(steps: int, _: float, clip: float, temperature: float) -> float:
        if steps < 0 or steps != int(steps):
            raise ValueError("steps are charged one by one, so there is no such number of them")
        accountant, step = new(clip, temperature)
        for _step in range(steps):
            accountant.charge(0, step)
        return float(getattr(accountant.cost, measure))

    def cost(steps: int, _: float, clip: float, temperature: float) -> float:
        """The steps of one batch.

        Their sums are read from the curve by tokens once the batch is closed.
        """
        accountant, step = new(clip, temperature)
        for _step in range(10):
            accountant.charge(0, step)
        accountant.close(0)
        return float(getattr(accountant.by_tokens()[steps], measure))

    return Accountant(cost, one_by_one, one_by_one, ("steps", "clip", "temperature"))


def approximate(method: Method, change: ContextChange, laplace: float = 0.0) -> Accountant:
    """`laplace` > 0: noisy counts of this epsilon for every step, in the same accountant."""

    def cost(steps: int, delta: float, clip: float, temperature: float) -> float:
        counts = (laplace,) * steps if laplace and isinstance(steps, int) else ()
        eta = bounded_range(clip, temperature, DIVISOR, change)
        return ApproximateAccountant(eta, counts).epsilon(steps, delta, method).epsilon

    def one_by_one(steps: int, delta: float, clip: float, temperature: float) -> float:
        eta = bounded_range(clip, temperature, DIVISOR, change)
        counts = (laplace,) * steps if laplace else ()
        return exponential_mechanism_epsilon(
            [eta] * steps, [1] * steps, delta, method=method, laplace=counts
        ).epsilon

    return Accountant(cost, one_by_one, cost)


def in_blocks(change: ContextChange) -> Accountant:
    """Draws that are put together one by one, as many are in blocks."""

    def blocks(eta: float, steps: list[int], delta: float) -> float:
        known = exponential_mechanism_epsilon(
            [eta] * len(steps), steps, delta, method="rdp"
        ).epsilon
        if known in (0, math.inf):
            return known
        problem = Problem(tuple((eta, count) for count in steps if count), (), (), delta)
        return min(known, epsilon_of_profile(profile_in_blocks(problem, budget=1), delta))

    def cost(steps: int, delta: float, clip: float, temperature: float) -> float:
        return blocks(bounded_range(clip, temperature, DIVISOR, change), [steps], delta)

    def one_by_one(steps: int, delta: float, clip: float, temperature: float) -> float:
        return blocks(bounded_range(clip, temperature, DIVISOR, change), [1] * steps, delta)

    return Accountant(cost, one_by_one, cost, slack=2e-3)


ACCOUNTANTS = {
    **{
        f"{aggregator}, {measure}, {change.contexts} {change.relation}": ex_post(
            change, measure, aggregator
        )
        for aggregator in KINDS
        for measure in ("theorem1", "exact", "rise", "fall")
        for change in (ONE, GROUP)
    },
    **{
        f"{method}, {change.contexts} {change.relation}": approximate(method, change)
        for method in ("rdp", "optimal")
        for change in (ONE, GROUP)
    },
    **{
        f"in blocks, {change.contexts} {change.relation}": in_blocks(change)
        for change in (ONE, GROUP)
    },
    **{
        f"{method} beside Laplace": approximate(method, ONE, laplace=0.05)
        for method in ("rdp", "optimal")
    },
}


def test_zero_steps_cost_nothing_and_an_infinite_clip_infinitely_much() -> None:
    for name, accountant in ACCOUNTANTS.items():
        assert accountant.cost(0, DELTA, CLIP, TEMPERATURE) == 0.0, name
        assert accountant.one_by_one(0, DELTA, CLIP, TEMPERATURE) == 0.0, name
        assert accountant.cost(3, DELTA, math.inf, TEMPERATURE) == math.inf, name


def test_n_fold_composition_is_composing_n_times() -> None:
    for (name, accountant), steps in itertools.product(ACCOUNTANTS.items(), (1, 2, 7)):
        together = accountant.cost(steps, DELTA, CLIP, TEMPERATURE)
        apart = accountant.one_by_one(steps, DELTA, CLIP, TEMPERATURE)
        assert together == pytest.approx(apart, rel=1e-9), name


def test_monotone_in_steps_delta_clip_and_temperature() -> None:
    random = np.random.default_rng(0)
    for name, accountant in ACCOUNTANTS.items():
        assert accountant.cost(1, DELTA, CLIP, TEMPERATURE) > 0
        for _ in range(2 if "delta" in accountant.settings else 8):
            steps, more = int(random.integers(1, 9)), int(random.integers(0, 3))
            delta, factor = float(10 ** random.uniform(-8, -1)), float(random.uniform(1, 3))
            clip, temperature = float(random.uniform(0.5, 20)), float(random.uniform(0.2, 5))
            here = accountant.cost(steps, delta, clip, temperature)
            slack = accountant.slack * here
            assert accountant.cost(steps + more, delta, clip, temperature) >= here - slack, name
            assert (
                accountant.cost(steps, min(0.5, delta * factor), clip, temperature) <= here + slack
            ), name
            assert accountant.cost(steps, delta, clip * factor, temperature) >= here - slack, name
            assert accountant.cost(steps, delta, clip, temperature * factor) <= here + slack, name


BAD = {
    "steps": (-1, 1.5, math.nan),
    "delta": (0.0, 1.0, -0.1, math.nan, math.inf),
    "clip": (0.0, -1.0, math.nan, -math.inf),
    "temperature": (0.0, -1.0, math.nan, math.inf),
}


def test_input_that_is_not_finite_or_not_positive_is_refused() -> None:
    good = {"steps": 2, "delta": DELTA, "clip": CLIP, "temperature": TEMPERATURE}
    for accountant in ACCOUNTANTS.values():
        for setting in accountant.settings:
            for bad in BAD[setting]:
                with pytest.raises(
                    ValueError, match=setting if "delta" in accountant.settings else r"."
                ):
                    accountant.refuses(*(good | {setting: bad}).values())  # type: ignore[arg-type]
