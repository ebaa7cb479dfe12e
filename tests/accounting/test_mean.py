"""The mean baseline: the paper's token counts, sensitivities against actual neighbours, composition and refusals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import SelfComposedDpEvent, ZCDpEvent
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from dpaudit.accounting import (
    Method,
    affordable_tokens,
    composition,
    exponential_mechanism_epsilon,
    mean_epsilon,
    zcdp_epsilon,
    zcdp_rho,
)
from dpaudit.mechanisms import ContextChange, DivisorKind, bounded_range, mean_sensitivity

ADDED, REPLACED = ContextChange("add_remove"), ContextChange("replace")

# The paper, Table "Hyperparameters for epsilon = 3 and 10": (epsilon, divisor) -> tokens on AGNews, Yelp, NYT Topics.
RECORDS = (108_000, 504_000, 230_400)
PAPER = {
    (10.0, 64): (373, 337, 355),
    (9.9, 64): (367, 331, 349),
    (3.0, 256): (733, 642, 686),
    (2.9, 256): (689, 604, 645),
}


@pytest.mark.parametrize(("budget", "tokens"), PAPER.items())
def test_token_counts_of_the_paper(budget: tuple[float, int], tokens: tuple[int, ...]) -> None:
    epsilon, divisor = budget
    found = tuple(affordable_tokens(epsilon, 9.0, 1.5, divisor, n**-1.1, ADDED) for n in RECORDS)
    assert found == tokens


@pytest.mark.parametrize("method", ["rdp", "optimal"])
@pytest.mark.parametrize(("target", "laplace"), [(0.2, ()), (2.0, ()), (2.0, (0.3,))])
def test_affordable_tokens_are_the_most(method: Method, target: float, laplace: tuple[float, ...]) -> None:
    most = affordable_tokens(target, 9.0, 1.5, 64, 1e-5, REPLACED, laplace=laplace, method=method)
    within, beyond = (
        mean_epsilon(9.0, 1.5, 64, tokens, 1e-5, REPLACED, laplace=laplace, method=method)
        for tokens in (most, most + 1)
    )
    assert within <= target < beyond


def test_optimal_composition_affords_more_and_rebalancing_takes_some_away() -> None:
    def afford(method: Method, *laplace: float) -> int:
        return affordable_tokens(3.0, 9.0, 1.5, 64, 1e-5, REPLACED, laplace=laplace, method=method)

    assert afford("rdp", 1.0) < afford("rdp", 0.3) < afford("rdp") < afford("optimal", 0.3) < afford("optimal")


def test_no_tokens_are_affordable_when_one_is_too_dear() -> None:
    assert affordable_tokens(0.001, 9.0, 0.1, 1, 1e-5, ADDED) == 0


def test_composition_is_the_librarys() -> None:
    """One event of r * rho costs what r composed events of rho cost."""
    rho, tokens, delta = 0.0044, 367, 1e-6
    composed = RdpAccountant().compose(SelfComposedDpEvent(ZCDpEvent(rho), tokens)).get_epsilon(delta)
    assert zcdp_epsilon(tokens * rho, delta) == pytest.approx(composed, rel=1e-12)


def test_eta_and_rho_grow_with_what_changes() -> None:
    assert 0.1875 < bounded_range(9.0, 1.5, 64, ADDED) < 0.1875 * (1 + 2e-8)  # rounding is allowed for
    assert bounded_range(9.0, 1.5, 64, REPLACED) == 2 * bounded_range(9.0, 1.5, 64, ADDED)
    one = zcdp_rho(9.0, 1.5, 64, 100, ADDED)
    assert zcdp_rho(9.0, 1.5, 64, 100, REPLACED) == pytest.approx(4 * one)
    assert zcdp_rho(9.0, 1.5, 64, 100, ContextChange("add_remove", 3)) == pytest.approx(9 * one)
    assert zcdp_rho(9.0, 1.5, 64, 100, ADDED, "actual") == pytest.approx(4 * one)


def neighbours(
    batch: NDArray[np.float64], others: NDArray[np.float64], change: ContextChange
) -> list[NDArray[np.float64]]:
    """Batches that differ from `batch` by what `change` says: contexts go, come from `others`, or are exchanged."""
    g, n = change.contexts, len(batch)
    kept = [batch[list(rows)] for rows in itertools.combinations(range(n), n - g)]
    come = [others[list(rows)] for rows in itertools.combinations_with_replacement(range(len(others)), g)]
    if change.relation == "replace":
        return [np.concatenate([k, c]) for k in kept for c in come]
    fewer = [batch[list(rows)] for rows in itertools.combinations(range(n), n - g // 2)] if g > 1 else []
    exchanged = [np.concatenate([k, c[: g // 2]]) for k in fewer for c in come]
    return kept + [np.concatenate([batch, c]) for c in come] + exchanged


@pytest.mark.parametrize("kind", ["fixed", "actual"])
@pytest.mark.parametrize(
    "change", [ADDED, REPLACED, ContextChange("add_remove", 2), ContextChange("replace", 2)], ids=str
)
def test_sensitivity_covers_every_neighbour_and_is_attained(kind: DivisorKind, change: ContextChange) -> None:
    """All batches of extreme contexts in two components, with every neighbour that also has extreme contexts."""
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
            means = [x.sum(0) / (floor if kind == "fixed" else max(len(x), 1)) for x in (batch, other)]
            logs = [m / temperature - np.log(np.exp(m / temperature).sum()) for m in means]
            furthest = max(furthest, abs(means[0] - means[1]).max())
            widest = max(widest, np.ptp(logs[0] - logs[1]))
    sensitivity = mean_sensitivity(change, kind).multiple * clip / floor
    assert furthest <= sensitivity * (1 + 1e-12)
    assert widest <= bounded_range(clip, temperature, floor, change, kind)
    assert furthest == pytest.approx(sensitivity)
    assert widest == pytest.approx(2 * sensitivity / temperature)


def test_all_of_a_change_on_one_batch_is_the_worst_way_of_spreading_it() -> None:
    """Two batches with one context each, token by token or one after the other, cost less than one batch with both."""
    one, both = (bounded_range(9.0, 1.5, 64, ContextChange("add_remove", g)) for g in (1, 2))
    spread = exponential_mechanism_epsilon(one, 2 * 30, 1e-5)
    together = exponential_mechanism_epsilon(both, 30, 1e-5)
    assert together.epsilon_lower is not None
    assert spread.epsilon < together.epsilon_lower
    assert zcdp_rho(9.0, 1.5, 64, 60, ADDED) < zcdp_rho(9.0, 1.5, 64, 30, ContextChange("add_remove", 2))


def test_sensitivity_in_words() -> None:
    assert mean_sensitivity(ADDED).text == "fixed divisor s, add_remove: c/s per context"
    assert (
        mean_sensitivity(ContextChange("replace", 3)).text == "fixed divisor s, replace: 2c/s per context, 3 contexts"
    )
    actual = "divisor the number of contexts, at least s, add_remove: 2c/s per context"
    assert mean_sensitivity(ADDED, "actual").text == actual


def test_zero_tokens_cost_nothing_and_settings_beyond_the_floats_everything() -> None:
    assert mean_epsilon(9.0, 1.5, 64, 0, 1e-5, ADDED) == 0.0
    for settings in ((math.inf, 1.5, 64), (1e200, 1e-200, 1e-200), (9.0, 1e-300, 1e-300)):
        assert bounded_range(*settings, ADDED) == math.inf
        assert mean_epsilon(*settings, 10, 1e-5, ADDED) == math.inf
        assert affordable_tokens(1.0, *settings, 1e-5, ADDED, method="optimal") == 0


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("name", ["clip", "temperature", "divisor"])
def test_settings_that_are_not_positive_are_refused(name: str, bad: float) -> None:
    good = {"clip": 9.0, "temperature": 1.5, "divisor": 64.0}
    with pytest.raises(ValueError, match=name):
        mean_epsilon(**(good | {name: bad}), tokens=10, delta=1e-5, change=ADDED)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_a_delta_outside_the_open_interval_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        mean_epsilon(9.0, 1.5, 64, 10, delta, ADDED)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="rho"):
        zcdp_epsilon(math.nan, 1e-5)
    with pytest.raises(ValueError, match="tokens"):
        zcdp_rho(9.0, 1.5, 64, -1, ADDED)
    with pytest.raises(ValueError, match="epsilon"):
        affordable_tokens(math.nan, 9.0, 1.5, 64, 1e-5, ADDED)
    with pytest.raises(ValueError, match="nothing bounds"):
        mean_epsilon(9.0, 1.5, 64, 10, 1e-5, None)
    with pytest.raises(ValueError, match="divisor_kind"):
        bounded_range(9.0, 1.5, 64, ADDED, "any")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2\\^40"):
        affordable_tokens(10.0, 1e-9, 1.5, 1e9, 1e-5, ADDED)


@pytest.mark.parametrize("method", ["rdp", "optimal"])
def test_rebalancing_that_leaves_nothing_for_tokens(method: Method) -> None:
    with pytest.raises(ValueError, match="rebalancing"):
        affordable_tokens(1.0, 9.0, 1.5, 64, 1e-5, ADDED, laplace=(2.0,), method=method)


def test_rho_and_epsilon_are_never_below_the_exact_value() -> None:
    random = np.random.default_rng(0)
    for eta, steps in zip(random.uniform(1e-3, 3, 2000).tolist(), random.integers(1, 5000, 2000).tolist(), strict=True):
        rho = composition.zcdp_of_range(eta, steps)
        exact = steps * Fraction(eta) ** 2 / 8
        assert exact <= Fraction(rho) <= exact * (1 + Fraction(1, 10**12))
