"""Laws of how many guesses are right, and their tails, rounded up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]

#: The level of a test of coins where it decides something.
LEVEL = 1e-3
#: Relative errors of sums over a million coins are below this in float64.
ROUNDING = 1e-9
#: What far tails can lose to underflow.
_UNDERFLOW = 1e-305


def binomial_law(n: int, chance: float) -> Floats:
    """Return P[Bin(n, chance) = k] for k from 0 to n."""
    if chance in (0.0, 1.0):
        sure: Floats = (np.arange(n + 1) == n * chance).astype(np.float64)
        return sure
    k = np.arange(n, dtype=np.float64)
    return _law_of_ratios((n - k) / (k + 1) * (chance / (1 - chance)))


def hypergeometric_law(units: int, shown: int, guessed: int) -> Floats:
    """Return the law of how many of `guessed` units are among `shown` of `units`, from 0 up.

    Returns:
        Probabilities [guessed + 1].
    """
    law = np.zeros(guessed + 1)
    least, most = max(0, guessed - (units - shown)), min(guessed, shown)
    k = np.arange(least, most, dtype=np.float64)
    ratios = (shown - k) * (guessed - k) / ((k + 1) * (units - shown - guessed + k + 1))
    law[least : most + 1] = _law_of_ratios(ratios)
    return law


def poisson_binomial_law(chances: ArrayLike) -> Floats:
    """Return the law of the number of independent right guesses with these chances [n].

    Returns:
        Probabilities of 0 to n [n + 1].
    """
    values, counts = np.unique(np.asarray(chances, dtype=np.float64), return_counts=True)
    laws = [
        binomial_law(int(count), float(value)) for value, count in zip(values, counts, strict=True)
    ]
    return sum_law(laws)


def _law_of_ratios(ratios: Floats) -> Floats:
    """Return the unimodal law whose neighbouring probabilities have these falling ratios [n].

    It is built from its mode outwards: small probabilities keep their digits, and nothing
    overflows.
    """
    mode = int(np.count_nonzero(ratios >= 1))
    below = np.cumprod(1 / ratios[:mode][::-1])[::-1]
    weights = np.concatenate((below, [1.0], np.cumprod(ratios[mode:])))
    law: Floats = weights / weights.sum()
    return law


def sum_law(laws: Sequence[Floats]) -> Floats:
    """Return the law of a sum of independent numbers, each with its law from 0 up."""
    rest = list(laws) or [np.ones(1)]
    while len(rest) > 1:
        odd = rest[2 * (len(rest) // 2) :]
        rest = [np.convolve(*pair) for pair in zip(rest[::2], rest[1::2], strict=False)] + odd
    return rest[0]


def upper_tails(law: Floats) -> Floats:
    """Return the probability of k or more for every k of a law [n + 1], rounded up."""
    # From the small end, so that small tails keep their digits.
    tails = np.cumsum(law[::-1])[::-1] * (1 + ROUNDING) + _UNDERFLOW
    tails[0] = 1.0
    return np.minimum(tails, 1.0)


def lower_tails(law: Floats) -> Floats:
    """Return the probability of k or fewer for every k of a law [n + 1], rounded up."""
    return upper_tails(law[::-1])[::-1]


def tail(chances: ArrayLike, right: int) -> float:
    """Return the probability that at least `right` independent guesses are right, rounded up.

    Args:
        chances: of each guess to be right, in [0, 1] [n].
        right: 0 to n.
    """
    return float(upper_tails(poisson_binomial_law(chances))[right])


def lower_tail(chances: ArrayLike, right: int) -> float:
    """Return the probability that at most `right` independent guesses are right, rounded up."""
    return float(lower_tails(poisson_binomial_law(chances))[right])


def least_right(chances: ArrayLike, level: float) -> int | None:
    """Return how many right guesses, and no wrong one, reach a level; None if no number does.

    Args:
        chances: of the guesses that may be made; the smallest count first [n].
        level: in (0, 1).
    """
    (enough,) = np.nonzero(np.cumprod(np.sort(chances)) * (1 + ROUNDING) <= level)
    return int(enough[0]) + 1 if len(enough) else None


def right_to_reject(law: Floats, level: float) -> int | None:
    """Return the fewest right guesses whose tail in a law reaches a level; None if none does."""
    (enough,) = np.nonzero(upper_tails(law) <= level)
    return int(enough[0]) if len(enough) else None
