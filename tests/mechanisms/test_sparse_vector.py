"""The sparse vector technique: all toy decoders' outcomes, against what accountants say of them.

Outcomes are tests and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dpaudit.accounting import ApproximateAccountant
from dpaudit.contrib.amin.sparse_vector import NO_TEST, TEST, AboveThreshold, SparseVector
from dpaudit.mechanisms import ANCHOR, ContextChange
from tests.nesting import mechanism_with

FIELDS: dict[str, Any] = {
    "contribution": "differences",
    "aggregator": "mean",
    "clip": 1.0,
    "divisor": 2.0,
    "temperature": 0.8,
    "support": {"kind": "public-top-k", "size": 2},
    "draw": "sparse-vector",
    "threshold": 0.4,
    "threshold_noise": 0.7,
    "private_tokens": 2,
    "public_temperature": 1.5,
}
ADDED = ContextChange("add_remove")
#: Thresholds' noise in units of its scale, and how probable each is.
NOISE = np.linspace(-40.0, 40.0, 8001)
DENSITY = np.exp(-np.abs(NOISE)) / np.exp(-np.abs(NOISE)).sum()
#: Of the sums, at the orders below.
ROOM = 1e-9


def above(distance: float, draw: SparseVector, scale: float) -> np.ndarray:
    """The probability that a test asks for a private token, for each threshold."""
    needed = (draw.threshold + scale * NOISE - distance) / (2 * scale)
    tails = np.exp(-np.abs(needed)) / 2
    return np.where(needed > 0, tails, 1 - tails)


class Decoder:
    """Contexts whose contributions follow from the tokens and tests so far."""

    def __init__(self, seed: int, contexts: int, **fields: Any) -> None:
        self.seed, self.contexts = seed, contexts
        self.mechanism = mechanism_with(FIELDS | fields)
        assert isinstance(self.mechanism.draw, SparseVector)
        self.draw = self.mechanism.draw

    def step(
        self, so_far: tuple[int, ...], without: int | None
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Private and public probabilities of the next token, and the distance."""
        random = np.random.default_rng([self.seed, *so_far, 3])
        anchor = np.log(random.dirichlet(np.ones(2))).clip(-8).astype(np.float32)
        # Contexts that agree, at the clip, move the most.
        rows = random.choice([-1.0, 1.0], size=(self.contexts, 1)) * np.array([[1.0, -1.0]])
        rows = np.delete(rows, [] if without is None else without, axis=0)
        arrays = {ANCHOR: anchor, **self.mechanism.aggregator.step(rows, 1.0, 1)}
        private, public = (
            np.exp(
                [
                    self.mechanism.log_probability(
                        self.mechanism.aggregate(arrays | {TEST: test}), token
                    )
                    for token in (0, 1)
                ]
            )
            for test in (np.array([2.0, 0.0, 9.0]), np.array(NO_TEST))
        )
        return private, public, self.draw.distance(rows, anchor, 2.0)

    def outcomes(self, steps: int, without: int | None, scale: float) -> np.ndarray:
        """Probabilities of all tests and tokens."""
        return np.array(
            [*self._after((), steps, DENSITY, self.draw.private_tokens, without, scale)]
        )

    def _after(
        self,
        so_far: tuple[int, ...],
        steps: int,
        weights: np.ndarray,
        left: int,
        without: int | None,
        scale: float,
    ) -> Iterator[float]:
        if not steps:
            yield float(weights.sum())
            return
        private, public, distance = self.step(so_far, without)
        asked = above(distance, self.draw, scale) if left else np.zeros(len(NOISE))
        for token in (0, 1):
            after = (*so_far, token)
            yield from self._after(
                (*after, 0), steps - 1, weights * (1 - asked) * public[token], left, without, scale
            )
            if left:
                fresh = DENSITY * float((weights * asked).sum()) * private[token]
                yield from self._after((*after, 1), steps - 1, fresh, left - 1, without, scale)


def share_of_rho(decoder: Decoder, steps: int, spared: float = 1.0) -> float:
    """The largest Renyi divergence of neighbours' outcomes over what zCDP allows at its order."""
    scale = decoder.draw.threshold_noise * spared
    one, other = (decoder.outcomes(steps, without, scale) for without in (None, 0))
    rho = decoder.mechanism.rho(ADDED)
    assert rho is not None
    worst = 0.0
    for p, q in ((one, other), (other, one)):
        for order in (1.01, 1.5, 2, 4, 8, 16, 64):
            terms = order * np.log(p) + (1 - order) * np.log(q)
            divergence = float(np.logaddexp.reduce(terms)) / (order - 1)
            worst = max(worst, divergence / (order * rho + ROOM))
    return worst


@settings(max_examples=200)
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([0.3, 0.7, 2.0]),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.sampled_from([0.3, 1.0]),
)
def test_no_outcome_costs_more_than_is_stated(
    seed: int,
    contexts: int,
    steps: int,
    private: int,
    noise: float,
    threshold: float,
    temperature: float,
) -> None:
    chosen = {
        "threshold_noise": noise,
        "threshold": threshold,
        "temperature": temperature,
        "private_tokens": private,
    }
    assert share_of_rho(Decoder(seed, contexts, **chosen), steps) <= 1


def test_it_comes_close_and_a_seventh_of_the_noise_costs_more() -> None:
    # Tokens that cost next to nothing leave the tests alone, whose known bound is far from tight.
    alone = {
        "temperature": 50.0,
        "public_temperature": 50.0,
        "private_tokens": 1,
        "threshold_noise": 3.0,
    }
    decoders = [Decoder(seed, 1, **alone) for seed in range(4)]
    assert 0.04 < max(share_of_rho(decoder, 3) for decoder in decoders) <= 1
    assert max(share_of_rho(decoder, 3, spared=0.15) for decoder in decoders) > 1
    dear = Decoder(7, 1, temperature=1.0, threshold_noise=1e3, threshold=0.0, private_tokens=1)
    assert 0.75 < share_of_rho(dear, 3) <= 1


def test_one_context_moves_a_distance_by_no_more_than_its_share() -> None:
    decoder = Decoder(0, 1)
    for seed in range(2000):
        random = np.random.default_rng(seed)
        contexts, size = int(random.integers(1, 7)), int(random.integers(2, 10))
        anchor = np.log(random.dirichlet(np.full(size, 0.2)).clip(1e-30))
        rows = random.choice([-30.0, -1.0, 0.0, 1.0, 30.0], size=(contexts, size))
        divisor = float(random.choice([0.5, 2.0, 7.0]))
        whole, less = (decoder.draw.distance(given, anchor, divisor) for given in (rows, rows[1:]))
        assert abs(whole - less) <= (1 + 1e-12) / divisor, seed


def test_all_tokens_are_bounded_together_however_many() -> None:
    mechanism = mechanism_with(FIELDS)
    assert mechanism.kinds == ("approximate",) and math.isinf(mechanism.eta(ADDED) or 0)
    accountant = ApproximateAccountant.of(mechanism, ADDED)
    assert accountant is not None
    # By the paper: (c / (s tau))^2 / 2 and 2 / (s sigma)^2 for each private token. A draw's own
    # curve lies below.
    paper = 2 * ((1 / (2 * 0.8)) ** 2 / 2 + 2 / (2 * 0.7) ** 2)
    assert 0.8 * paper < accountant.most_rho < 1.002 * paper
    found = [accountant.epsilon(tokens, 1e-5) for tokens in (1, 10, 10**6)]
    assert {each.epsilon for each in found} == {accountant.budgets_epsilon(1e-5)}
    assert math.isfinite(found[0].epsilon) and accountant.parts(9).rho == accountant.most_rho
    dearer = mechanism_with(FIELDS | {"private_tokens": 3}).rho(ADDED)
    assert dearer == pytest.approx(1.5 * accountant.most_rho)
    for change in (ContextChange("replace"), ContextChange("add_remove", 2), None):
        unknown = ApproximateAccountant.of(mechanism, change)
        assert unknown is not None and math.isinf(unknown.epsilon(1, 1e-5).epsilon)


def test_which_token_is_private_and_whose_noise_is_new() -> None:
    draw = Decoder(0, 1).draw
    tests = [AboveThreshold(0.3, 0.1, 0.2), AboveThreshold(0.3, 0.1, 0.1999), NO_TEST]
    assert [draw.is_private(test) for test in tests] == [True, False, False]
    first, second, last = ({TEST: np.array(test)} for test in tests)

    def quantiles(arrays: Any, before: Any) -> dict[str, float]:
        found = draw.quantiles(arrays, before, Decoder(0, 1).mechanism.aggregator, 1.0)
        return {kind.removeprefix("noise on "): float(of[0]) for kind, of in found.items()}

    seventh = 1 - math.exp(-1 / 7) / 2
    assert quantiles(first, None) == pytest.approx({"distances": seventh, "thresholds": seventh})
    assert list(quantiles(second, first)) == ["distances"] and quantiles(last, second) == {}
    again = {TEST: np.array([0.3, -0.7, 0.0])}
    assert quantiles(again, first) == pytest.approx(
        {"distances": 0.5, "thresholds": math.exp(-1) / 2}
    )
    assert np.isnan([*quantiles({TEST: np.array([0.3, math.nan, math.inf])}, first).values()]).all()


@pytest.mark.parametrize(
    "changed",
    [
        {"contribution": "logits"},
        {"aggregator": "median", "divisor": None},
        {"budget": 1.0},
        {"threshold": -0.1},
        {"threshold_noise": 0.0},
        {"private_tokens": 0},
        {"public_temperature": None},
        {"noise_multiplier": 1.0},
    ],
)
def test_what_is_not_the_mechanism_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises((ValidationError, ValueError)):
        mechanism_with(FIELDS | changed)
