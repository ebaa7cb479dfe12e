"""The mean baseline: the paper's token counts, composition, sensitivities and refusals."""

from __future__ import annotations

import math

import pytest
from dp_accounting import SelfComposedDpEvent, ZCDpEvent
from dp_accounting.rdp import RdpAccountant

from dpaudit.accounting import (
    ContextChange,
    affordable_tokens,
    bounded_range,
    context_changes,
    mean_epsilon,
    zcdp_epsilon,
    zcdp_rho,
)

ADDED = ContextChange("add_remove")

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


def test_affordable_tokens_are_the_most() -> None:
    delta = 1e-5
    most = affordable_tokens(2.0, 9.0, 1.5, 64, delta, ADDED)
    spent = [zcdp_epsilon(zcdp_rho(9.0, 1.5, 64, tokens, [ADDED]), delta) for tokens in (most, most + 1)]
    assert spent[0] <= 2.0 < spent[1]


def test_no_tokens_are_affordable_when_one_is_too_dear() -> None:
    assert affordable_tokens(0.001, 9.0, 0.1, 1, 1e-5, ADDED) == 0


def test_composition_is_the_librarys() -> None:
    """One event of r * rho costs what r composed events of rho cost."""
    rho, tokens, delta = 0.0044, 367, 1e-6
    composed = RdpAccountant().compose(SelfComposedDpEvent(ZCDpEvent(rho), tokens)).get_epsilon(delta)
    assert zcdp_epsilon(tokens * rho, delta) == pytest.approx(composed, rel=1e-12)


def test_a_replaced_context_doubles_eta_and_two_batches_double_the_tokens() -> None:
    assert 0.1875 < bounded_range(9.0, 1.5, 64, ADDED) < 0.1875 * (1 + 1e-9)  # rounding is allowed for
    assert bounded_range(9.0, 1.5, 64, ContextChange("replace")) == 2 * bounded_range(9.0, 1.5, 64, ADDED)
    one = zcdp_rho(9.0, 1.5, 64, 100, [ADDED])
    assert zcdp_rho(9.0, 1.5, 64, 100, [ContextChange("replace")]) == pytest.approx(4 * one)
    assert zcdp_rho(9.0, 1.5, 64, 100, [ContextChange("add_remove", batches=2)]) == pytest.approx(2 * one)
    assert zcdp_rho(9.0, 1.5, 64, 100, context_changes("record", "replace", "hashed-records")) == pytest.approx(4 * one)


def test_zero_tokens_cost_nothing_and_an_infinite_clip_everything() -> None:
    assert mean_epsilon(9.0, 1.5, 64, 0, 1e-5) == 0.0
    assert mean_epsilon(math.inf, 1.5, 64, 10, 1e-5) == math.inf


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("name", ["clip", "temperature", "divisor"])
def test_settings_that_are_not_positive_are_refused(name: str, bad: float) -> None:
    good = {"clip": 9.0, "temperature": 1.5, "divisor": 64.0}
    with pytest.raises(ValueError, match=name):
        mean_epsilon(**(good | {name: bad}), tokens=10, delta=1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_a_delta_outside_the_open_interval_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        mean_epsilon(9.0, 1.5, 64, 10, delta)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="rho"):
        zcdp_epsilon(math.nan, 1e-5)
    with pytest.raises(ValueError, match="tokens"):
        zcdp_rho(9.0, 1.5, 64, -1, [ADDED])
    with pytest.raises(ValueError, match="epsilon"):
        affordable_tokens(math.nan, 9.0, 1.5, 64, 1e-5, ADDED)
    with pytest.raises(ValueError, match="nothing bounds"):
        mean_epsilon(9.0, 1.5, 64, 10, 1e-5, rule="paper-slices")
