"""Mechanisms of which Renyi divergences at some orders are all that is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Doubles: TypeAlias = NDArray[np.float64]

#: Relative room for a dozen operations.
_ROOM = 2.0**-40


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
        """The bound at each order above 1; infinite beyond the last, of which nothing is known.

        (order - 1) times the divergence is convex in the order, and 0 at 1, so between two orders it lies below its
        chord.
        """
        known, bounds = map(np.array, zip(*self.epsilons, strict=True))
        scaled = np.interp(orders, [1.0, *known], [0.0, *(known - 1) * bounds], right=math.inf)
        return np.asarray(scaled / (orders - 1) * (1 + _ROOM), dtype=np.float64)
