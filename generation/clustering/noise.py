"""Noise that privacy rests on, from the operating system's generator or, in tests, from a seed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpaudit.generation.sampling import RandomBytes, sample

#: Bytes that a source gives at once.
_PIECE = 64
#: Uniforms below 2^-27 get further digits.
_SMALL = 1 << 26


class Noise:
    """A source of noise.

    Integers are exact; Gaussians are doubles, whose last bits are not to be published.
    """

    def __init__(self, source: RandomBytes) -> None:
        self._source = source

    def rounded_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
        """Draw Laplace noise of this scale, rounded to the nearest integer: int64 [size].

        A count plus this is a rounded count plus Laplace noise, so it has the Laplace mechanism's
        guarantee and all of its accounting. It is drawn in integers (Canonne, Kamath, Steinke: The
        Discrete Gaussian for Differential Privacy, algorithms 1 and 2), so no floating-point
        rounding betrays a count.

        Raises:
            ValueError: the scale is not positive and finite.
        """
        if not 0 < scale < float("inf"):
            raise ValueError(f"the scale must be positive and finite, not {scale}")
        exact = Fraction(scale)
        return np.array([self._rounded_laplace(exact) for _ in range(size)], dtype=np.int64)

    def gaussian(self, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw normal noise of this standard deviation, by Box and Muller, with full tails."""
        count = int(np.prod(shape, dtype=np.int64))
        pairs = -(-count // 2)
        first, second = self._uniforms(pairs), self._uniforms(pairs)
        radius, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
        values: NDArray[np.float64] = np.concatenate(
            [radius * np.cos(angle), radius * np.sin(angle)]
        )[:count]
        return scale * values.reshape(shape)

    def choice(self, scores: NDArray[np.float64], epsilon: float, sensitivity: float) -> int:
        """Draw an index by the exponential mechanism.

        Its probability is in proportion to exp(epsilon score / (2 sensitivity)).

        Args:
            scores: float64 [m], m >= 1.
            epsilon: of the choice, in nats.
            sensitivity: how far one record can move any score.
        """
        return sample(scores, 2 * sensitivity / epsilon, self._source).index

    def seed(self) -> int:
        """Draw a seed, uniform on 32 bits, for a public random choice such as a projection."""
        return int.from_bytes(self._source.take(4), "big")

    def _uniforms(self, count: int) -> NDArray[np.float64]:
        """Draw uniforms on (0, 1], small ones to as many digits as others.

        53 bits alone would end tails at 8.6 deviations.
        """
        pieces = b"".join(self._source.take(_PIECE) for _ in range(-(-8 * count // _PIECE)))
        bits = np.frombuffer(pieces, dtype="<u8", count=count) >> 11
        within, small = np.ones(count), bits < _SMALL
        if small.any():
            within[small] = self._uniforms(int(small.sum()))
        return (bits + within) * 2.0**-53

    def _rounded_laplace(self, scale: Fraction) -> int:
        """Draw zero with probability 1 - exp(-1 / (2 scale)).

        Beyond, both sides fall geometrically.
        """
        if not self._happens_exp(1 / (2 * scale)):
            return 0
        size = 1 + self._geometric(scale)
        return size if self._below(2) else -size

    def _geometric(self, scale: Fraction) -> int:
        """Draw j >= 0 with probability in proportion to exp(-j / scale)."""
        while not self._happens_exp(
            Fraction(rest := self._below(scale.numerator), scale.numerator)
        ):
            pass
        whole = 0
        while self._happens_exp(Fraction(1)):
            whole += 1
        return (rest + scale.numerator * whole) // scale.denominator

    def _happens_exp(self, exponent: Fraction) -> bool:
        """Return True with probability exp(-exponent), exponent >= 0."""
        while exponent > 1:
            if not self._happens_exp(Fraction(1)):
                return False
            exponent -= 1
        drawn = 1
        while self._below(exponent.denominator * drawn) < exponent.numerator:
            drawn += 1
        return drawn % 2 == 1

    def _below(self, bound: int) -> int:
        """Draw uniformly on range(bound)."""
        size = (bound - 1).bit_length()
        if not size:
            return 0
        while True:
            drawn = int.from_bytes(self._source.take((size + 7) // 8), "big") & ((1 << size) - 1)
            if drawn < bound:
                return drawn
