"""Individual budgets: every context pays what it could really move, and takes part until its budget is spent.

A context whose contributions z have the range max z - min z over the support moves log-probabilities by no more than an
interval of length eta = (max z - min z) / (s tau), whether it comes or goes. Such a draw satisfies rho-zCDP with
rho = `zcdp_of_draw`. Whether a context takes part in a draw follows from its own contributions and from released tokens
alone, so what it pays in all never exceeds its budget, however many draws there are: a special case of Feldman and
Zrnic (https://arxiv.org/abs/2008.11193). Proofs are in docs/budgets.md, "Individual budgets".
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles: TypeAlias = NDArray[np.float64]

#: Below this range the series is used: its terms alternate and shrink, so that it errs upwards where it is cut.
_SERIES = 1.0
#: Relative room for rounding in the few operations of either formula.
_ROOM = 2.0**-44


def zcdp_of_draw(eta: ArrayLike) -> Doubles:
    """rho of one draw of bounded range eta, in nats, rounded up: never more than eta^2 / 8.

    rho = eta / (e^eta - 1) + ln((e^eta - 1) / eta) - 1, the largest Kullback-Leibler divergence between two draws of
    that range: every Renyi divergence of order alpha is at most alpha times that (https://arxiv.org/abs/2510.25746).

    Args:
        eta: [...], not negative; infinite where nothing bounds it.
    """
    ranges = np.asarray(eta, dtype=np.float64)
    with np.errstate(all="ignore"):  # of the ranges that another formula is for
        squares = ranges * ranges
        series = squares / 8 * (1 - squares / 72 * (1 - squares / 45))
        exact = ranges / np.expm1(ranges) + np.log1p(-np.exp(-ranges)) + ranges - np.log(ranges) - 1
        tight = np.where(ranges < _SERIES, series * (1 + _ROOM), exact + (1 + ranges) * _ROOM)
    rho: Doubles = np.where(np.isfinite(tight), np.fmin(tight, squares / 8 * (1 + _ROOM)), squares)
    return rho


def admitted(costs: Doubles, spent: Doubles, budget: float) -> Doubles:
    """What contexts have spent once a draw is paid for by those of them that can afford it, [n], rounded up.

    Args:
        costs: [n] rho of the draw for each context, above 0.
        spent: [n] before the draw.
        budget: the most that any context may have spent after it.
    """
    after = np.nextafter(spent + costs, np.inf)
    return np.where(after <= budget, after, spent)
