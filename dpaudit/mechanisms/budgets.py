"""Individual budgets: every context pays for what it can move, until its budget is spent.

A context whose contributions z have the range max z - min z over the support moves
log-probabilities by no more than an interval of length eta = (max z - min z) / (s tau), whether it
comes or goes. Such a draw satisfies rho-zCDP with rho = `zcdp_of_draw`. Whether a context takes
part in a draw follows from its own contributions and from released tokens alone, so what it pays in
all never exceeds its budget, however many draws there are: a special case of Feldman and Zrnic
(https://arxiv.org/abs/2008.11193). Proofs are in docs/budgets.md, "Individual budgets".
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles: TypeAlias = NDArray[np.float64]

#: Relative room for rounding in a few operations.
_ROOM = 2.0**-44
#: Where the curve is worked out beyond 1: 32 steps to each doubling. It is convex, so its chords
#: lie above it.
_OCTAVES, _STEPS = 10, 32
_DIGITS = Context(prec=40)


def zcdp_of_draw(eta: ArrayLike) -> Doubles:
    """Return rho of one draw of bounded range eta, in nats, rounded up; it ascends with eta.

    It is at most eta^2 / 8, but for rounding: rho = eta / (e^eta - 1) + ln((e^eta - 1) / eta) - 1,
    the largest Kullback-Leibler divergence between two draws of that range. Every Renyi divergence
    of order alpha is at most alpha times that (https://arxiv.org/abs/2510.25746).

    Whether a context takes part in a draw depends on the last bit of a sum of these. So only
    operations are used that have the same result on every machine, which float64's exponentials do
    not.

    Args:
        eta: [...], not negative; infinite if nothing bounds it.
    """
    ranges = np.asarray(eta, dtype=np.float64)
    with np.errstate(all="ignore"):  # of the ranges that the other formula is for
        narrow = _narrow_rho(ranges * ranges)
        if (ranges <= 1).all():
            return narrow
        at, rho, slopes = _wide_curve()
        place = np.clip(np.searchsorted(at, ranges, side="right") - 1, 0, len(at) - 1)
        wide = (rho[place] + (ranges - at[place]) * slopes[place]) * (1 + _ROOM)
    return np.where(ranges <= 1, narrow, wide)


def _narrow_rho(squares: Doubles) -> Doubles:
    """Return rho of squared ranges up to 1.

    The terms alternate and shrink, so the cut series errs upwards.
    """
    tail = 1 - squares * (27 / 1120) * (1 - squares * (2 / 81))
    rho: Doubles = squares / 8 * (1 - squares / 72 * (1 - squares / 45 * tail)) * (1 + _ROOM)
    return rho


@cache
def _wide_curve() -> tuple[Doubles, Doubles, Doubles]:
    """Return ascending ranges from 1, the curve at them, and its chords' slopes.

    The last slope is the steepest there is.
    """
    octaves = (2.0**octave * (1 + np.arange(_STEPS) / _STEPS) for octave in range(_OCTAVES))
    at = np.concatenate([*octaves])
    rho = np.array([_exact_curve(value) for value in at.tolist()]) * (1 + _ROOM)
    rho[0] = max(rho[0], float(_narrow_rho(np.ones(1))[0]))
    return at, rho, np.append(np.diff(rho) / np.diff(at), 1.0)


def _exact_curve(eta: float) -> float:
    """Return the curve at a range of at least 1, to the nearest float64."""
    exact = Decimal(eta)
    growth = _DIGITS.subtract(1, _DIGITS.exp(-exact))  # 1 - e^-eta
    rest = _DIGITS.multiply(exact, _DIGITS.divide(_DIGITS.exp(-exact), growth))
    return float(
        _DIGITS.subtract(
            _DIGITS.add(rest, _DIGITS.add(exact, _DIGITS.ln(growth))), _DIGITS.ln(exact)
        )
        - 1
    )


def range_of_draw(rho: float) -> float:
    """Return the largest bounded range, in nats, whose draw costs at most rho, rounded down.

    It is infinite for no bound.
    """
    low, high = 0.0, 2 * (1 + rho)  # from 2 (1 + rho) on a draw costs more than that
    while high - low > high * 2.0**-40:
        middle = (low + high) / 2
        if float(zcdp_of_draw(middle)) <= rho:
            low = middle
        else:
            high = middle
    return low


def shares_spent(spent: Doubles, budgets: Doubles) -> Doubles:
    """Return the spent shares of contexts' budgets, [n]; 1 where there is nothing to spend."""
    with np.errstate(all="ignore"):
        return np.where(budgets > 0, spent / budgets, 1.0)


def charged(spent: Doubles, costs: Doubles) -> Doubles:
    """Return what contexts have spent after a draw that they pay for, [n].

    It is rounded up, so that it grows whatever the draw costs.
    """
    after: Doubles = np.nextafter(spent + costs, np.inf)
    return after
