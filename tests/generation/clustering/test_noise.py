"""Noise has the distribution that its guarantee is stated for."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.sampling import OsEntropy, SeededStream

#: Few draws show that a formula is wrong; many, that a figure in it is.
DRAWS = pytest.mark.parametrize("draws", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])


def noise(seed: int = 1) -> Noise:
    return Noise(SeededStream(seed, 0))


def probability(value: int, scale: float) -> float:
    """Of Laplace noise within half of an integer."""
    laplace = stats.laplace(scale=scale)
    return float(laplace.cdf(value + 0.5) - laplace.cdf(value - 0.5))


@DRAWS
def test_rounded_laplace_is_laplace_noise_rounded(draws: int) -> None:
    for scale in [0.3, 1.0, 12.345]:
        drawn = noise().rounded_laplace(scale, draws)
        most = math.ceil(4 * scale)
        counts = Counter(np.clip(drawn, -most, most).tolist())
        inner = {value: probability(value, scale) for value in range(-most + 1, most)}
        tail = (1 - sum(inner.values())) / 2
        expected = {**inner, -most: tail, most: tail}
        found = [counts[value] for value in expected]
        assert stats.chisquare(found, [draws * share for share in expected.values()]).pvalue > 1e-4


def test_rounded_laplace_of_a_large_scale() -> None:
    drawn = noise().rounded_laplace(1e6, 4000)
    assert stats.kstest(drawn, stats.laplace(scale=1e6).cdf).pvalue > 1e-4


@DRAWS
def test_rounded_laplace_has_tails(draws: int) -> None:
    drawn = np.abs(noise().rounded_laplace(3.0, draws))
    for most in [12, 18, 24]:
        beyond = int((drawn > most).sum())
        assert stats.binomtest(beyond, draws, math.exp(-(most + 0.5) / 3)).pvalue > 1e-4


def test_a_scale_that_is_none_is_refused() -> None:
    for scale in [0.0, -1.0, math.inf, math.nan]:
        with pytest.raises(ValueError, match="positive and finite"):
            noise().rounded_laplace(scale, 1)


@DRAWS
def test_coins_that_exponentials_are_made_of(draws: int) -> None:
    for exponent in [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(5, 2)]:
        source = noise()
        heads = sum(source._happens_exp(exponent) for _ in range(draws))
        assert stats.binomtest(heads, draws, math.exp(-exponent)).pvalue > 1e-4


def test_gaussian_noise() -> None:
    drawn = noise().gaussian(2.5, (301, 67))
    assert drawn.shape == (301, 67)
    assert stats.kstest(drawn.ravel(), stats.norm(scale=2.5).cdf).pvalue > 1e-4
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.25


@DRAWS
def test_choices_follow_the_exponential_mechanism(draws: int) -> None:
    scores, source = np.array([0.0, 1.0, 3.0]), noise()
    found = Counter(source.choice(scores, 1.0, 0.5) for _ in range(draws))
    weights = np.exp(scores)
    expected = draws * weights / weights.sum()
    assert stats.chisquare([found[index] for index in range(3)], expected).pvalue > 1e-4


def test_the_operating_system_gives_other_noise_every_time() -> None:
    source = Noise(OsEntropy())
    assert source.rounded_laplace(1e9, 4).tolist() != source.rounded_laplace(1e9, 4).tolist()


class Zeros:
    """A source whose first draws are all zero bits."""

    def __init__(self, draws: int) -> None:
        self._left, self._rest = draws, SeededStream(1, 0)

    def take(self, size: int) -> bytes:
        """See `RandomBytes`."""
        self._left -= 1
        return bytes(size) if self._left >= 0 else self._rest.take(size)


def test_gaussian_noise_has_no_end() -> None:
    """53 zero bits only begin a smaller uniform; otherwise 8.6 deviations would tell a record."""
    for draws in (1, 3):
        uniforms = Noise(Zeros(draws))._uniforms(3)
        assert (uniforms > 0).all()
        assert (uniforms < 2.0 ** (-53 * draws)).all()
        assert len(set(uniforms)) == 3
    assert Noise(SeededStream(1, 0))._uniforms(1000).max() <= 1
