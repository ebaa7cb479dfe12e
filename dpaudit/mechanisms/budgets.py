"""Individual budgets: every context pays what it could really move, and takes part until its budget is spent.

A context whose contributions z have the range max z - min z over the support moves log-probabilities by no more than an
interval of length eta = (max z - min z) / (s tau), whether it comes or goes. Such a draw satisfies rho-zCDP with
rho = `zcdp_of_draw`. Whether a context takes part in a draw follows from its own contributions and from released tokens
alone, so what it pays in all never exceeds its budget, however many draws there are: a special case of Feldman and
Zrnic (https://arxiv.org/abs/2008.11193). Proofs are in docs/budgets.md, "Individual budgets".
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles: TypeAlias = NDArray[np.float64]

#: Below this range the series is used: its terms alternate and shrink, so that it errs upwards where it is cut.
_SERIES = 1.0
#: Relative room for rounding in the few operations of either formula.
_ROOM = 2.0**-44
_DIGITS = Context(prec=40)


def zcdp_of_draw(eta: ArrayLike) -> Doubles:
    """rho of one draw of bounded range eta, in nats, rounded up: at most eta^2 / 8, but for rounding.

    rho = eta / (e^eta - 1) + ln((e^eta - 1) / eta) - 1, the largest Kullback-Leibler divergence between two draws of
    that range: every Renyi divergence of order alpha is at most alpha times that (https://arxiv.org/abs/2510.25746).

    Who takes part in a draw hangs on the last bit of a sum of these. Only operations are used that have the same result
    on every machine, which float64's exponentials do not.

    Args:
        eta: [...], not negative; infinite where nothing bounds it.
    """
    given = np.asarray(eta, dtype=np.float64)
    ranges = given.reshape(-1)
    with np.errstate(all="ignore"):  # of the ranges that the other formula is for
        squares = ranges * ranges
        rho: Doubles = squares / 8 * (1 - squares / 72 * (1 - squares / 45)) * (1 + _ROOM)
    wide = ~(ranges < _SERIES)
    rho[wide] = [_of_wide(value) for value in ranges[wide].tolist()]
    return rho.reshape(given.shape)


def _of_wide(eta: float) -> float:
    """`zcdp_of_draw` of one range of at least _SERIES."""
    if not eta < np.inf:
        return eta
    exact = Decimal(eta)
    growth = _DIGITS.subtract(1, _DIGITS.exp(-exact))  # 1 - e^-eta
    rest = _DIGITS.multiply(exact, _DIGITS.divide(_DIGITS.exp(-exact), growth))
    rho = _DIGITS.subtract(_DIGITS.add(rest, _DIGITS.add(exact, _DIGITS.ln(growth))), _DIGITS.ln(exact)) - 1
    return float(rho) * (1 + _ROOM)


def range_of_draw(rho: float) -> float:
    """The largest bounded range, in nats, whose draw costs at most rho, rounded down; infinite for no bound."""
    low, high = 0.0, 2 * (1 + rho)  # from 2 (1 + rho) on a draw costs more than that
    while high - low > high * 2.0**-40:
        middle = (low + high) / 2
        low, high = (middle, high) if float(zcdp_of_draw(middle)) <= rho else (low, middle)
    return low


def charged(spent: Doubles, costs: Doubles) -> Doubles:
    """What contexts have spent after a draw that they pay for, [n]: rounded up, so that it grows whatever it costs."""
    after: Doubles = np.nextafter(spent + costs, np.inf)
    return after
