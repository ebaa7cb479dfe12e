"""Renyi accounting: zCDP and tables of divergences.

zCDP alone is converted here, with dp-accounting's orders and formula, to the same bits: to import
the library takes seconds. Beside pure events and tables dp-accounting composes and converts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Doubles: TypeAlias = NDArray[np.float64]

#: Of float64: the distance from 1 to the next number, and a number negligible beside every delta.
ULP, TINY = 2.0**-52, 2.0**-1000
#: A cost beyond this leaves float64 no room, and bounds nothing.
LARGEST = 1e100
#: A smaller delta has lost digits of its own, and its multiples with it: it bounds nothing, too.
_LEAST_DELTA = 2.0**-1022
#: dp-accounting computes the Renyi divergence of a pure event to some 2^-50.
RENYI_ROOM = 2.0**-46
#: Relative room for a dozen operations.
_ROOM = 2.0**-40
#: Those of dp-accounting.
_ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
#: Beside pure events, these orders too: the library's own, which reproduce the paper's counts, are
#: 0.001 too coarse.
_MORE_ORDERS = tuple(order / 50 for order in range(51, 500))
#: A lie less probable than e^-700 is none to float64.
_MOST_RESPONSE = 700


@dataclass(frozen=True)
class RenyiTable:
    """Upper bounds on the Renyi divergences of neighbours, in both directions, in nats.

    Attributes:
        epsilons: (order, bound) pairs; the orders lie above 1 and ascend.

    Raises:
        ValueError: a bound is negative or none, or the orders do not ascend from above 1.
    """

    epsilons: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.epsilons or not all(0 <= epsilon < math.inf for _, epsilon in self.epsilons):
            raise ValueError("Renyi divergences are finite numbers of at least 0")
        if not all(low < high < math.inf for low, high in pairwise([1.0, *self.orders])):
            raise ValueError("the orders of Renyi divergences lie above 1 and ascend")

    @property
    def orders(self) -> tuple[float, ...]:
        """Ascending, all above 1."""
        return tuple(order for order, _ in self.epsilons)

    def at(self, orders: Doubles) -> Doubles:
        """Return the bound at each order above 1; infinite beyond the last order.

        (order - 1) times the divergence is convex in the order, and 0 at 1, so between two orders
        it lies below its chord.
        """
        known, bounds = map(np.array, zip(*self.epsilons, strict=True))
        scaled = np.interp(orders, [1.0, *known], [0.0, *(known - 1) * bounds], right=math.inf)
        return np.asarray(scaled / (orders - 1) * (1 + _ROOM), dtype=np.float64)


def zcdp_epsilon(
    rho: float,
    delta: float,
    *,
    laplace: Sequence[float] = (),
    pure: Sequence[float] = (),
    renyi: Sequence[RenyiTable] = (),
) -> float:
    """Return epsilon of a rho-zCDP sequence beside pure-DP events, by Renyi accounting.

    The conversion is dp-accounting's. `rho` is of everything but the events and what `renyi` has;
    the other arguments are as for `exponential_mechanism_epsilon`.

    Raises:
        ValueError: delta is not in (0, 1), or another argument is negative or not a number.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta}")
    if math.isnan(rho) or rho < 0:
        raise ValueError(f"rho must be non-negative, not {rho}")
    shifts, responses = epsilons_of_events("laplace", laplace), epsilons_of_events("pure", pure)
    if not (rho or shifts or responses or renyi):
        return 0.0
    if max(rho, *shifts, *responses, 0.0) > LARGEST or delta < _LEAST_DELTA:
        return math.inf
    if not (shifts or responses or renyi):
        return _of_rho(rho, delta)
    return _converted(rho, delta, tuple(shifts), tuple(responses), tuple(renyi))


def _of_rho(rho: float, delta: float) -> float:
    """Return epsilon at delta of a rho-zCDP sequence, as dp-accounting's `compute_epsilon` does.

    Source: Canonne, Kamath and Steinke 2020, Proposition 12 (https://arxiv.org/abs/2004.00010), at
    the best of _ORDERS. Where a divergence is below -log(1 - delta^2), all of it is within delta
    (Bretagnolle and Huber).
    """
    found = math.inf
    for order in _ORDERS:
        bound = rho * order
        if delta**2 + math.expm1(-bound) > 0:
            return 0.0
        epsilon = bound + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        found = min(found, epsilon)
    return max(0.0, found) * (1 + RENYI_ROOM)


@lru_cache(maxsize=256)  # the bound of a problem is asked for many times
def _converted(
    rho: float,
    delta: float,
    shifts: tuple[float, ...],
    responses: tuple[float, ...],
    renyi: tuple[RenyiTable, ...],
) -> float:
    """Return epsilon at delta of what dp-accounting composes."""
    from dp_accounting import LaplaceDpEvent, ZCDpEvent
    from dp_accounting.rdp import RdpAccountant
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS, compute_epsilon

    events, listed = (
        len(shifts) + len(responses),
        (order for table in renyi for order in table.orders),
    )
    orders = DEFAULT_RDP_ORDERS
    if events or renyi:
        orders = sorted({*DEFAULT_RDP_ORDERS, *_MORE_ORDERS, *listed})
    accountant = RdpAccountant(orders)
    accountant.compose(ZCDpEvent(rho, xi=RENYI_ROOM * events))
    for shift, times in Counter(shifts).items():
        accountant.compose(LaplaceDpEvent(1 / shift * (1 - RENYI_ROOM)), times)
    bounds = np.array(accountant.rdp)
    for response, times in Counter(responses).items():
        bounds += times * _response_divergences(response, tuple(orders))
    bounds = sum((table.at(np.array(orders)) for table in renyi), bounds)
    return float(compute_epsilon(orders, bounds.tolist(), delta)[0]) * (1 + RENYI_ROOM)


@lru_cache(maxsize=64)  # a tenth of a second, and the same event counts at every delta and rho
def _response_divergences(epsilon: float, orders: tuple[float, ...]) -> Doubles:
    """Return dp-accounting's Renyi divergences of randomised response [orders], in nats.

    Between two answers, it is the worst event of its epsilon.
    """
    from dp_accounting import NeighboringRelation, RandomizedResponseDpEvent
    from dp_accounting.rdp import RdpAccountant

    lie = 2 / (math.exp(epsilon) + 1) if epsilon < _MOST_RESPONSE else 0.0
    accountant = RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
    accountant.compose(RandomizedResponseDpEvent(lie, 2))
    return np.array(accountant.rdp)


def most_variation(divergence: float) -> float:
    """Return the largest total variation distance of neighbours with these divergences.

    `divergence` bounds both directions, in nats. With v the distance and (x, y) a test's rates that
    show it, both divergences of Kullback and Leibler together are at least v (logit y - logit x),
    which is 4 v atanh v at least. So 2 v atanh v is at most the divergence; randomised response
    attains it. Rounded up.
    """
    low, high = 0.0, 1.0
    while high - low > high * 2.0**-45:
        middle = (low + high) / 2
        if 2 * middle * math.atanh(middle) <= divergence:
            low = middle
        else:
            high = middle
    return min(1.0, high * (1 + _ROOM) + TINY)


def zcdp_of_range(eta: float, steps: int) -> float:
    """Return rho of `steps` draws of bounded range eta, rounded up.

    Each has eta^2 / 8 (https://arxiv.org/abs/2004.07223).
    """
    if not (steps and eta):
        return 0.0
    return math.nextafter(steps * eta * eta / 8 * (1 + 4 * ULP), math.inf)


def zcdp_of_pure(epsilon: float) -> float:
    """Return rho of an event of pure epsilon, epsilon^2 / 2, rounded up.

    Source: https://arxiv.org/abs/1605.02065.
    """
    if not epsilon:
        return 0.0
    return math.nextafter(epsilon * epsilon / 2 * (1 + 4 * ULP), math.inf)


def epsilons_of_events(name: str, epsilons: Sequence[float]) -> list[float]:
    """Return checked epsilons, without those that cost nothing.

    Raises:
        ValueError: one is negative or no number.
    """
    for epsilon in epsilons:
        if math.isnan(epsilon) or epsilon < 0:
            raise ValueError(f"{name} must hold non-negative epsilons, not {epsilon}")
    return [float(epsilon) for epsilon in epsilons if epsilon]


def sum_up(terms: Iterable[float]) -> float:
    """Return the sum, rounded up if it has more than one term."""
    try:
        values = list(terms)
        if len(values) > 1:
            return math.nextafter(math.fsum(values), math.inf)
        return math.fsum(values)
    except OverflowError:  # too many steps, or too large a sum, for the floats
        return math.inf


def rounded_sum(left: float, right: float) -> float:
    """Return the sum of two costs, rounded up; exact where one of them is 0."""
    return math.nextafter(left + right, math.inf) if left and right else left + right
