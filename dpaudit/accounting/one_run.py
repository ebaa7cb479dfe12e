"""The epsilon that secret coins of canaries in one run refute.

The method is that of Steinke, Nasr, Jagielski (arXiv 2305.08846). Each of m canaries was in the
data or out of it by a fair coin of its own. An attacker sees the outputs, knows all other records,
and guesses the coins. An (epsilon, delta) guarantee bounds how often the guesses are right; more
right guesses refute it. Where the exact log-ratio L of the outputs with the canary and without it
is known, the coin is in, given the outputs, with probability sigma(L) = 1 / (1 + exp(-L)), so that
a guess by the sign of L is right with probability sigma(|L|). The proofs are in docs/canaries.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: The probability of refuting a mechanism that keeps its epsilon, in figures that are shown.
REFUTED_AT = 0.05
#: The same in a check, which would fail by it: for either of its two tests.
ALARM_AT = 1e-4 / 2
#: The fewest canaries that refute anything at that level: with fewer, all guesses may be right or
#: wrong by luck.
LEAST_CANARIES = 16
#: Above this the paper's bound with a delta is not relied on.
_MOST_WITH_DELTA = 0.5
#: Relative errors of sums over `MAX_CANARIES` are far below this in float64.
_ROUNDING = 1e-9
#: Halvings of an interval of epsilons, until its ends are neighbouring numbers.
_HALVINGS = 128
#: exp(-700) is still a normal double.
_MOST_EPSILON = 700.0


def tail(chances: Sequence[float], right: int) -> float:
    """Return the probability that at least `right` independent guesses are right, rounded up.

    Args:
        chances: of each guess to be right, in [0, 1].
        right: 0 to len(chances).
    """
    counts = np.ones(1)
    for chance in chances:
        counts = np.append(counts * (1 - chance), 0.0) + np.append(0.0, counts * chance)
    if right <= 0:
        return 1.0
    return min(1.0, float(counts[right:].sum()) * (1 + _ROUNDING))


def chance_of(epsilon: float) -> float:
    """Return sigma(epsilon), the largest chance of a right guess under an epsilon, in nats."""
    return 1 / (1 + math.exp(-min(epsilon, _MOST_EPSILON)))


def p_value(epsilon: float, delta: float, coins: int, guesses: int, right: int) -> float:
    """Return a p-value of an (epsilon, delta) guarantee if `right` guesses are right; rounded up.

    p = beta + 2 m delta max over 1 <= i <= v of (P[Bin(r, sigma(epsilon)) >= v - i] - beta) / i,
    where beta = P[Bin(r, sigma(epsilon)) >= v]: without a delta the most probability of so many,
    and one that randomised response reaches. With one it is the paper's bound, which some
    mechanisms exceed where it is close to 1 (docs/canaries.md). It is taken up to 1/2, where none
    is known that does, and 1 stands for all beyond.

    Args:
        epsilon: in nats, 0 or more.
        delta: in [0, 1].
        coins: m, how many canaries there are.
        guesses: r, how many of their coins were guessed, by a rule that was fixed beforehand.
        right: v, how many of the guesses are right.

    Raises:
        ValueError: the numbers do not fit each other.
    """
    if not (0 <= right <= guesses <= coins and epsilon >= 0 and 0 <= delta <= 1):
        raise ValueError(
            f"{right} of {guesses} guesses of {coins} coins, at epsilon {epsilon} and delta {delta}"
        )
    if not right:
        return 1.0
    tails = _binomial_tails(guesses, chance_of(epsilon))
    beta, steps = float(tails[right]), np.arange(1, right + 1)
    more = float(((tails[right - steps] - beta) / steps).max()) if delta else 0.0
    found = (beta + 2 * coins * delta * max(more, 0.0)) * (1 + _ROUNDING)
    if delta and not found <= _MOST_WITH_DELTA:
        return 1.0
    return min(1.0, found)


def epsilon_refuted(
    coins: int, guesses: int, right: int, delta: float = 0.0, level: float = REFUTED_AT
) -> float:
    """Return the largest epsilon that `right` guesses refute at a level, in nats, rounded down.

    It is refuted itself, and so is every smaller one, which would imply it; 0 if none is.
    Arguments: see `p_value`.
    """
    if p_value(0.0, delta, coins, guesses, right) > level:
        return 0.0
    low, high = 0.0, _MOST_EPSILON
    if p_value(high, delta, coins, guesses, right) <= level:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if p_value(middle, delta, coins, guesses, right) <= level:
            low = middle
        else:
            high = middle
    return low


def most_refutable(coins: int, delta: float = 0.0, level: float = REFUTED_AT) -> float:
    """Return the largest epsilon that `coins` canaries could refute, in nats, rounded down.

    Every guess would be right.
    """
    return epsilon_refuted(coins, coins, coins, delta, level)


def _binomial_tails(n: int, chance: float) -> NDArray[np.float64]:
    """Return P[Bin(n, chance) >= k] for k from 0 to n."""
    logarithms = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(n + 1)
    ]
    k = np.arange(n + 1)
    if chance == 1:
        masses = (k == n).astype(np.float64)
    else:
        masses = np.exp(np.array(logarithms) + k * math.log(chance) + (n - k) * math.log1p(-chance))
    # From the small end, so that small tails keep their digits.
    tails: NDArray[np.float64] = np.minimum(np.cumsum(masses[::-1])[::-1], 1.0)
    return tails
