"""Noisy maxima of sampled probabilities: all texts of toy decoders, against accountants' bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.special import log_ndtr, logsumexp, ndtr, softmax

from dpaudit.accounting import ApproximateAccountant
from dpaudit.accounting.gaussian import gaussian_epsilon, gaussian_table
from dpaudit.mechanisms import DRAWS, ContextChange, GaussianDraws, Mechanism, Softmax
from tests.nesting import mechanism_with

CLIP, DIVISOR = 3.0, 2.0
FIELDS: dict[str, Any] = {
    "contribution": "probabilities",
    "aggregator": "mean",
    "clip": CLIP,
    "divisor": DIVISOR,
    "temperature": 1.0,
    "support": {"kind": "public-top-k", "size": 2},
    "draw": "noisy-argmax",
    "noise_multiplier": 1.5,
    "sampling_rate": 0.4,
}


def first_token(rows: Sequence[np.ndarray], rate: float, multiplier: float) -> float:
    """The probability of the first of two tokens, over who is in the draw and over the noise."""
    size = math.sqrt(2) * multiplier * CLIP / DIVISOR
    chosen = np.reshape([*itertools.product((0, 1), repeat=len(rows))], (2 ** len(rows), len(rows)))
    chances = np.where(chosen, rate, 1 - rate).prod(axis=1)
    means = chosen @ np.reshape(rows, (-1, 2)) / DIVISOR
    return float(chances @ ndtr((means[:, 0] - means[:, 1]) / size))


def texts(
    seed: int, contexts: int, steps: int, rate: float, multiplier: float, without: int | None
) -> np.ndarray:
    """Probabilities of all texts, where the contexts' predictions depend on the tokens so far."""
    chances = np.ones(1)
    for length in range(steps):
        first = [
            _first_after(prefix, seed, contexts, rate, multiplier, without)
            for prefix in itertools.product((0, 1), repeat=length)
        ]
        chances = np.stack([chances * first, chances * (1 - np.array(first))], axis=1).ravel()
    return chances


def _first_after(
    prefix: Sequence[int],
    seed: int,
    contexts: int,
    rate: float,
    multiplier: float,
    without: int | None,
) -> float:
    """The probability that the first of two tokens follows."""
    random = np.random.default_rng([seed, *prefix, 7])
    # Contexts are sure of themselves, which moves the most.
    likely = (
        random.random((contexts, 1))
        if random.random() < 0.3
        else random.integers(0, 2, (contexts, 1))
    )
    rows = CLIP * np.concatenate([likely, 1 - likely], axis=1)
    return first_token(
        [row for number, row in enumerate(rows) if number != without], rate, multiplier
    )


def share_of_delta(
    seed: int, contexts: int, steps: int, rate: float, multiplier: float, spared: float = 1.0
) -> float:
    """The largest delta of neighbours' texts at the stated epsilon, over the stated delta."""
    worst = 0.0
    with_all = texts(seed, contexts, steps, rate, multiplier * spared, None)
    without = texts(seed, contexts, steps, rate, multiplier * spared, 0)
    for delta in (0.03, 1e-4):
        for method in ("rdp", "optimal"):
            epsilon = gaussian_epsilon(GaussianDraws(multiplier, rate), steps, delta, method)  # type: ignore[arg-type]
            for one, other in ((with_all, without), (without, with_all)):
                worst = max(
                    worst, float(np.maximum(one - math.exp(epsilon) * other, 0).sum()) / delta
                )
    return worst


# Each kind of draws and number of steps is priced once, which takes a second, and less by much
# noise.
@settings(max_examples=120)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.sampled_from([(3, 0.7, 2.0), (3, 1.0, 2.0), (1, 1.0, 2.0)]),
)
def test_no_texts_cost_more_than_is_stated(
    seed: int, contexts: int, draws: tuple[int, float, float]
) -> None:
    assert share_of_delta(seed, contexts, *draws) <= 1 + 1e-9


def test_a_third_of_the_noise_costs_more() -> None:
    assert max(share_of_delta(seed, 1, 3, 1.0, 2.0, spared=0.3) for seed in range(5)) > 1


def test_costs_grow_with_everything_that_leaks() -> None:
    def epsilon(multiplier: float = 3.0, rate: float = 0.3, steps: int = 10) -> list[float]:
        draws = GaussianDraws(multiplier, rate)
        return [gaussian_epsilon(draws, steps, 1e-5, method) for method in ("rdp", "optimal")]

    by_rdp, best = epsilon()
    assert best < by_rdp
    for more in (epsilon(multiplier=2.7), epsilon(rate=0.33), epsilon(steps=11)):
        assert more[0] > by_rdp and more[1] > best
    assert epsilon(steps=0) == [0.0, 0.0]
    assert epsilon(multiplier=0.0) == [math.inf, math.inf]
    table = gaussian_table(GaussianDraws(1.0, 0.1), 10)
    assert all(bound > 0 for _, bound in table.epsilons)


def test_an_accountant_knows_it_where_one_context_comes_or_goes() -> None:
    mechanism = mechanism_with(FIELDS | {"noise_multiplier": 4.0})
    assert (mechanism.kinds, mechanism.claim_kind) == (("approximate",), "approximate")
    accountant = ApproximateAccountant.of(mechanism, ContextChange("add_remove"))
    assert accountant is not None
    found = accountant.epsilon(3, 1e-5)
    draws = GaussianDraws(4.0 * (1 - 2.0**-12), 0.4)
    assert found.epsilon == gaussian_epsilon(draws, 3, 1e-5, "optimal")
    assert accountant.affordable_tokens(found.epsilon, 1e-5, "optimal") == 3
    assert accountant.parts(3).renyi
    for change in (ContextChange("replace"), ContextChange("add_remove", 2), None):
        unknown = ApproximateAccountant.of(mechanism, change)
        assert unknown is not None and math.isinf(unknown.epsilon(1, 1e-5).epsilon)


def test_draws_are_written_flat_and_softmax_is_not_written() -> None:
    assert DRAWS.keys() == {"softmax", "noisy-argmax", "sparse-vector"}
    noisy = mechanism_with(FIELDS)
    assert noisy.model_dump(mode="json")["draw"] == {
        "kind": "noisy-argmax",
        "noise_multiplier": 1.5,
        "sampling_rate": 0.4,
    }
    assert Mechanism.model_validate(noisy.model_dump(mode="json")) == noisy
    plain = mechanism_with({"aggregator": "median", "clip": 1.0, "temperature": 2.0})
    assert plain.draw == Softmax()
    for change in (
        {"contribution": "logits"},
        {"aggregator": "median", "divisor": None},
        {"temperature": 2.0},
        {"grid": 0.5},
        {"budget": 1.0},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.1},
        {"noise_multiplier": 0.0},
        {"draw": "argmax"},
        {"draw": "softmax"},
    ):
        with pytest.raises(ValidationError):
            mechanism_with(FIELDS | change)


def test_odds_of_a_noisy_maximum_are_those_of_its_draws() -> None:
    """The odds are exact for two tokens and agree with many draws for more.

    Far below the noise they stay finite.
    """
    mechanism, random = mechanism_with(FIELDS), np.random.default_rng(3)
    size = 1.5 * CLIP / DIVISOR
    for gap in (0.0, 0.3, -4.0, 12.0):
        odds = mechanism.odds({"aggregate": np.array([gap, 0.0]), "noise": np.zeros(2)})
        wanted = log_ndtr(np.array([gap, -gap]) / (math.sqrt(2) * size))
        assert np.allclose(odds - logsumexp(odds), wanted, rtol=1e-9, atol=1e-12)
    for number in (3, 9, 40):
        means = random.gamma(0.5, size=number)
        chances = softmax(mechanism.odds({"aggregate": means, "noise": np.zeros(number)}))
        drawn = (means + random.normal(0, size, (200_000, number))).argmax(axis=1)
        seen = np.bincount(drawn, minlength=number) / len(drawn)
        assert np.all(np.abs(seen - chances) <= 5 * np.sqrt(chances / len(drawn)) + 1e-5)
    assert np.isfinite(
        mechanism.odds({"aggregate": np.array([0.0, 1e3]), "noise": np.zeros(2)})
    ).all()
