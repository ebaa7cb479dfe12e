"""Who is in a draw: how rarely honest coins alarm, and which alternatives are told."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from scipy.stats import binom

from dpaudit.auditing.checks.alternatives import TILTS, tilted


def test_size_evidence_is_a_likelihood_ratio() -> None:
    """Over all outcomes of two draws the ratios of every tilt have the expectation 1."""
    for contexts, rate in ((3, 0.3), (5, 0.9), (2, 0.01)):
        chances, total = binom.pmf(np.arange(contexts + 1), contexts, rate), np.zeros(len(TILTS))
        for outcome in product(range(contexts + 1), repeat=2):
            sizes = np.bincount(outcome, minlength=contexts + 1)
            total += math.prod(chances[size] for size in outcome) * np.exp(
                tilted(np.log(chances), sizes)
            )
        assert np.allclose(total, 1)


def test_coins_of_whole_batches_are_no_evidence_and_certain_ones_are_none() -> None:
    assert np.allclose(tilted(np.array([-np.inf, -np.inf, -np.inf, 0]), np.array([0, 0, 0, 7])), 0)
    random = np.random.default_rng(1)
    for rate in (0.02, 0.3, 0.8):
        logarithms = binom.logpmf(np.arange(31), 30, rate)
        for _ in range(200):
            sizes = np.bincount(random.binomial(30, rate, size=100), minlength=31)
            assert np.logaddexp.reduce(tilted(logarithms, sizes)) - math.log(len(TILTS)) < 8
