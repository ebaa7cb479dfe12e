"""A mean run's cost beforehand: the paper's token counts, neighbours' sensitivities, refusals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dp_accounting import SelfComposedDpEvent, ZCDpEvent
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from dpaudit.accounting import (
    ApproximateAccountant,
    Method,
    exponential_mechanism_epsilon,
    renyi,
    zcdp_epsilon,
)
from dpaudit.mechanisms import ContextChange, bounded_range, mean_sensitivity
from tests.nesting import mechanism_with

ADDED, REPLACED = ContextChange("add_remove"), ContextChange("replace")


def accountant(
    change: ContextChange | None,
    divisor: float = 64.0,
    *,
    clip: float = 9.0,
    temperature: float = 1.5,
    **more: Any,
) -> ApproximateAccountant:
    flat = {"aggregator": "mean", "clip": clip, "temperature": temperature, "divisor": divisor}
    found = ApproximateAccountant.of(mechanism_with(flat), change, **more)
    assert found is not None
    return found


# The paper, Table "Hyperparameters for epsilon = 3 and 10": (epsilon, divisor) -> tokens on AGNews,
# Yelp, NYT Topics.
RECORDS = (108_000, 504_000, 230_400)
PAPER = {
    (10.0, 64): (373, 337, 355),
    (9.9, 64): (367, 331, 349),
    (3.0, 256): (733, 642, 686),
    (2.9, 256): (689, 604, 645),
}


def test_token_counts_of_the_paper() -> None:
    for (epsilon, divisor), tokens in PAPER.items():
        found = tuple(
            accountant(ADDED, divisor).affordable_tokens(epsilon, n**-1.1) for n in RECORDS
        )
        assert found == tokens


def test_affordable_tokens_are_the_most() -> None:
    for method in ["rdp", "optimal"]:
        for target, laplace, centers in (
            (0.2, (), 0.0),
            (2.0, (), 0.0),
            (2.0, (0.3,), 0.0),
            (2.0, (0.3,), 0.5),
        ):
            clusters = accountant(
                REPLACED, laplace=laplace, centers=centers, centers_delta=1e-6 if centers else 0.0
            )
            most = clusters.affordable_tokens(target, 1e-5, method)
            within, beyond = (
                clusters.epsilon(tokens, 1e-5, method).epsilon for tokens in (most, most + 1)
            )
            assert within <= target < beyond


def test_optimal_composition_affords_more_and_rebalancing_takes_some_away() -> None:
    def afford(method: Method, *laplace: float) -> int:
        return accountant(REPLACED, laplace=laplace).affordable_tokens(3.0, 1e-5, method)

    assert (
        afford("rdp", 1.0)
        < afford("rdp", 0.3)
        < afford("rdp")
        < afford("optimal", 0.3)
        < afford("optimal")
    )


def test_no_tokens_are_affordable_when_one_is_too_dear() -> None:
    assert accountant(ADDED, 1.0, temperature=0.1).affordable_tokens(0.001, 1e-5) == 0


def test_a_cost_is_that_of_composing_its_range_and_centres_are_added() -> None:
    """What `of` takes from a mechanism, and what each method makes of it."""
    eta, laplace = bounded_range(9.0, 1.5, 64.0, REPLACED), (0.2, 0.1)
    clusters = accountant(REPLACED, laplace=laplace, centers=0.25, centers_delta=4e-6)
    assert clusters.eta == eta
    assert clusters.without_clusters() == ApproximateAccountant(eta)
    for method in ("rdp", "optimal"):
        alone = exponential_mechanism_epsilon(eta, 40, 1e-5, method=method)
        assert ApproximateAccountant(eta).epsilon(40, 1e-5, method) == alone
        left = exponential_mechanism_epsilon(
            eta, 40, clusters.delta_left(1e-5), method=method, laplace=laplace
        )
        found = clusters.epsilon(40, 1e-5, method)
        assert (found.delta, found.epsilon_lower) == (1e-5, None)
        assert found.epsilon == pytest.approx(left.epsilon + 0.25, rel=1e-14)
        assert found.epsilon > left.epsilon + 0.25 - 1e-15
    assert clusters.delta_left(4e-6) == 0.0
    assert clusters.epsilon(40, 4e-6).epsilon == math.inf
    assert ApproximateAccountant.of(mechanism_with(MEDIAN), ADDED) is None


MEDIAN = {"aggregator": "median", "clip": 9.0, "temperature": 1.5}


def test_composition_is_the_librarys() -> None:
    """One event of r * rho costs what r composed events of rho cost."""
    rho, tokens, delta = 0.0044, 367, 1e-6
    composed = (
        RdpAccountant().compose(SelfComposedDpEvent(ZCDpEvent(rho), tokens)).get_epsilon(delta)
    )
    assert zcdp_epsilon(tokens * rho, delta) == pytest.approx(composed, rel=1e-12)


def test_eta_and_rho_grow_with_what_changes() -> None:
    # rounding is allowed for
    assert 0.1875 < bounded_range(9.0, 1.5, 64, ADDED) < 0.1875 * (1 + 2e-8)
    assert bounded_range(9.0, 1.5, 64, REPLACED) == 2 * bounded_range(9.0, 1.5, 64, ADDED)
    one = accountant(ADDED).rho(100)
    assert accountant(REPLACED).rho(100) == pytest.approx(4 * one)
    assert accountant(ContextChange("add_remove", 3)).rho(100) == pytest.approx(9 * one)
    actual = bounded_range(9.0, 1.5, 64, ADDED, "actual")
    assert ApproximateAccountant(actual).rho(100) == pytest.approx(4 * one)


def neighbours(
    batch: NDArray[np.float64], others: NDArray[np.float64], change: ContextChange
) -> list[NDArray[np.float64]]:
    """All neighbours of `batch` under `change`.

    Contexts go, come from `others`, or are exchanged.
    """
    g, n = change.contexts, len(batch)
    kept = [batch[list(rows)] for rows in itertools.combinations(range(n), n - g)]
    come = [
        others[list(rows)]
        for rows in itertools.combinations_with_replacement(range(len(others)), g)
    ]
    if change.relation == "replace":
        return [np.concatenate([k, c]) for k in kept for c in come]
    fewer = (
        [batch[list(rows)] for rows in itertools.combinations(range(n), n - g // 2)]
        if g > 1
        else []
    )
    exchanged = [np.concatenate([k, c[: g // 2]]) for k in fewer for c in come]
    return kept + [np.concatenate([batch, c]) for c in come] + exchanged


def test_sensitivity_covers_every_neighbour_and_is_attained() -> None:
    """All batches of extreme contexts in two components, and every neighbour of that kind."""
    for kind, change in itertools.product(
        ["fixed", "actual"],
        [ADDED, REPLACED, ContextChange("add_remove", 2), ContextChange("replace", 2)],
    ):
        clip, temperature, n = 2.0, 0.7, 4
        corners = clip * np.array(list(itertools.product([-1.0, 1.0], repeat=2)))
        floor = n + change.contexts if kind == "actual" and change.relation == "add_remove" else n
        # The floor holds for the larger of two neighbours, so only those that reach it count.
        furthest = widest = 0.0
        for rows in itertools.combinations_with_replacement(range(4), n):
            batch = corners[list(rows)]
            for other in neighbours(batch, corners, change):
                if kind == "actual" and max(len(batch), len(other)) < floor:
                    continue
                means = [
                    x.sum(0) / (floor if kind == "fixed" else max(len(x), 1))
                    for x in (batch, other)
                ]
                logs = [m / temperature - np.log(np.exp(m / temperature).sum()) for m in means]
                furthest = max(furthest, abs(means[0] - means[1]).max())
                widest = max(widest, np.ptp(logs[0] - logs[1]))
        sensitivity = mean_sensitivity(change, kind).multiple * clip / floor
        assert furthest <= sensitivity * (1 + 1e-12)
        assert widest <= bounded_range(clip, temperature, floor, change, kind)
        assert furthest == pytest.approx(sensitivity)
        assert widest == pytest.approx(2 * sensitivity / temperature)


def test_all_of_a_change_on_one_batch_is_the_worst_way_of_spreading_it() -> None:
    """Two batches of one context, interleaved or in turn, cost less than one batch of both."""
    one, both = (bounded_range(9.0, 1.5, 64, ContextChange("add_remove", g)) for g in (1, 2))
    spread = exponential_mechanism_epsilon(one, 2 * 30, 1e-5)
    together = exponential_mechanism_epsilon(both, 30, 1e-5)
    assert together.epsilon_lower is not None
    assert spread.epsilon < together.epsilon_lower
    assert accountant(ADDED).rho(60) < accountant(ContextChange("add_remove", 2)).rho(30)


def test_sensitivity_in_words() -> None:
    assert mean_sensitivity(ADDED).text == "fixed divisor s, add_remove: c/s per context"
    assert (
        mean_sensitivity(ContextChange("replace", 3)).text
        == "fixed divisor s, replace: 2c/s per context, 3 contexts"
    )
    actual = "divisor the number of contexts, at least s, add_remove: 2c/s per context"
    assert mean_sensitivity(ADDED, "actual").text == actual


def test_zero_tokens_cost_nothing_and_settings_beyond_the_floats_everything() -> None:
    assert accountant(ADDED).epsilon(0, 1e-5, "rdp").epsilon == 0.0
    for settings in ((math.inf, 1.5, 64), (1e200, 1e-200, 1e-200), (9.0, 1e-300, 1e-300)):
        unbounded = ApproximateAccountant(bounded_range(*settings, ADDED))
        assert unbounded.eta == math.inf
        assert unbounded.epsilon(10, 1e-5, "rdp").epsilon == math.inf
        assert unbounded.affordable_tokens(1.0, 1e-5, method="optimal") == 0
    assert accountant(None).eta == math.inf


def test_what_is_out_of_its_range_is_refused() -> None:
    for name, bad in itertools.product(("clip", "temperature", "divisor"), (0.0, -1.0, math.nan)):
        with pytest.raises(ValueError, match=name):
            bounded_range(
                **{"clip": 9.0, "temperature": 1.5, "divisor": 64.0, name: bad}, change=ADDED
            )
    for delta in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="delta"):
            accountant(ADDED).epsilon(10, delta)
    with pytest.raises(ValueError, match="rho"):
        zcdp_epsilon(math.nan, 1e-5)
    for tokens in (-1, 1.5):
        with pytest.raises(ValueError, match=r"tokens|steps"):
            accountant(ADDED).epsilon(tokens, 1e-5)  # type: ignore[arg-type]
    for epsilon in (math.nan, 0.0, math.inf):
        with pytest.raises(ValueError, match="epsilon"):
            accountant(ADDED).affordable_tokens(epsilon, 1e-5)
    with pytest.raises(ValueError, match="divisor_kind"):
        bounded_range(9.0, 1.5, 64, ADDED, "any")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2\\^40"):
        ApproximateAccountant(bounded_range(1e-9, 1.5, 1e9, ADDED)).affordable_tokens(10.0, 1e-5)
    for method in ("rdp", "optimal"):
        with pytest.raises(ValueError, match=r"clusters alone|rebalancing alone"):
            accountant(ADDED, laplace=(2.0,)).affordable_tokens(1.0, 1e-5, method)
        with pytest.raises(ValueError, match=r"clusters alone|rebalancing alone"):
            accountant(ADDED, centers=2.0, centers_delta=1e-6).affordable_tokens(1.0, 1e-5, method)


def test_rho_and_epsilon_are_never_below_the_exact_value() -> None:
    random = np.random.default_rng(0)
    for eta, steps in zip(
        random.uniform(1e-3, 3, 2000).tolist(), random.integers(1, 5000, 2000).tolist(), strict=True
    ):
        rho = renyi.zcdp_of_range(eta, steps)
        exact = steps * Fraction(eta) ** 2 / 8
        assert exact <= Fraction(rho) <= exact * (1 + Fraction(1, 10**12))


def test_a_delta_without_all_its_digits_bounds_nothing() -> None:
    """Multiples of 6.7e-319 are rounded by 1e-6 of them, which was missing from 2588.9771818."""
    assert zcdp_epsilon(934.9551002121601, 6.71307e-319) == math.inf
    assert zcdp_epsilon(934.9551002121601, 2.0**-1022) < 2600
