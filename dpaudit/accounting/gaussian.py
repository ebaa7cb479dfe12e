"""Draws by normal noise among contexts that are sampled by coins.

dp-accounting's own events are composed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dpaudit.accounting.centers import DELTA_ROOM
from dpaudit.accounting.composition import Method
from dpaudit.accounting.profiles import NOTHING, POINTS, Profile
from dpaudit.accounting.recursion import REMOTE
from dpaudit.accounting.renyi import LARGEST, RENYI_ROOM, RenyiTable
from dpaudit.mechanisms import GaussianDraws

if TYPE_CHECKING:
    from dp_accounting import PrivacyAccountant

#: The library's figure is exact, and always available, at whole orders alone.
_ORDERS = (*range(2, 64), 80, 96, 128, 192, 256, 512, 1024)
#: The least noise multiplier: a smaller one bounds next to nothing, and libraries fail.
_LEAST_MULTIPLIER = 0.05
#: Profiles end between these, in nats.
_LEAST_END, _MOST_END = 1e-3, 100.0


def gaussian_epsilon(
    draws: GaussianDraws, steps: int, delta: float, method: Method, laplace: Sequence[float] = ()
) -> float:
    """Return epsilon of draws beside noisy counts, for one context that comes or goes.

    It is rounded up, in nats.

    Args:
        draws: the cost of each draw.
        steps: the most draws there are.
        delta: in (0, 1).
        method: "rdp" is the moments accountant, at whole orders. "optimal" composes privacy loss
            distributions, on a grid that is rounded up (https://arxiv.org/abs/2106.08567).
        laplace: epsilons of noisy counts, one each.

    Returns:
        Infinite if the noise is too little to bound anything.
    """
    if not (steps or laplace):
        return 0.0
    if draws.multiplier < _LEAST_MULTIPLIER or max(laplace, default=0.0) > LARGEST:
        return math.inf
    return _epsilon(draws, steps, delta, method, tuple(laplace))


@lru_cache(maxsize=256)
def _epsilon(
    draws: GaussianDraws, steps: int, delta: float, method: Method, laplace: tuple[float, ...]
) -> float:
    from dp_accounting import LaplaceDpEvent

    accountant = _composed(draws, steps, method)
    if laplace:
        accountant = deepcopy(accountant)
    for shift in laplace:
        accountant.compose(LaplaceDpEvent(1 / shift * (1 - RENYI_ROOM)))
    return float(accountant.get_epsilon(delta)) * (1 + RENYI_ROOM)


@lru_cache(maxsize=16)
def gaussian_profile(draws: GaussianDraws, steps: int, delta: float) -> Profile:
    """Return delta(e) of `steps` draws, to where next to nothing is left of `delta`.

    It is by privacy loss distributions, as "optimal" in `gaussian_epsilon`; rounded up.
    """
    if not steps:
        return NOTHING
    if draws.multiplier < _LEAST_MULTIPLIER:
        return Profile(1.0, np.ones(2))
    found = _composed(draws, steps, "optimal")
    end = float(found.get_epsilon(max(delta * REMOTE, DELTA_ROOM)))
    step = min(max(end, _LEAST_END), _MOST_END) / (POINTS - 1)
    deltas = np.asarray(found.get_delta(np.arange(POINTS) * step))  # of arrays, too
    return Profile(step, np.minimum(deltas * (1 + RENYI_ROOM) + DELTA_ROOM, 1.0))


@lru_cache(maxsize=64)
def gaussian_table(draws: GaussianDraws, steps: int) -> RenyiTable:
    """Return Renyi divergences of `steps` draws, one at least, to compose with other releases."""
    accountant = _composed(draws, steps, "rdp")
    known = zip(accountant.orders.tolist(), accountant.rdp.tolist(), strict=True)
    return RenyiTable(
        tuple((order, bound * (1 + RENYI_ROOM)) for order, bound in known if math.isfinite(bound))
    )


@lru_cache(maxsize=16)
def _composed(draws: GaussianDraws, steps: int, method: Method) -> PrivacyAccountant:
    """Return the accountant of so many draws. Whoever composes more copies it first."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = RdpAccountant(_ORDERS, relation) if method == "rdp" else PLDAccountant(relation)
    if steps:
        accountant.compose(
            PoissonSampledDpEvent(draws.rate, GaussianDpEvent(draws.multiplier)), steps
        )
    return accountant
