"""The columns of a median step that a neighbour can move, apart from all others, which enter every sum alike.

Where all central values of a column are equal, so is its median in every neighbouring batch that they bound. In a large
vocabulary most columns are such, at the floor of the clip. The sum of their exponentials is worked out once and stands
for them in the log-sum-exp of center, lower and upper, and of every batch less one context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.medians import Floats


@dataclass(frozen=True)
class Still:
    """Columns in which all neighbours agree, as one term of a sum.

    Attributes:
        log_sum: logarithm of the sum of exp(value / tau) over them; -inf where there are none.
        columns: how many they are.
        largest: the largest absolute value among them.
    """

    log_sum: float
    columns: int
    largest: float


#: No such columns.
NONE_STILL = Still(-math.inf, 0, 0.0)


@dataclass(frozen=True)
class Moving:
    """A step's columns that a neighbour can move, and its token's.

    Attributes:
        columns: intp [M] their places along S, ascending.
        central: [2w + n % 2, M] their central values.
        token: the token's place among them.
        still: all other columns.
    """

    columns: NDArray[np.intp]
    central: Floats
    token: int
    still: Still


def moving_columns(central: Floats, token: int, temperature: float) -> Moving:
    """Part the columns of central order statistics [2w + n % 2, S] by whether their values differ.

    Args:
        central: central order statistics. Whatever a corrupt record holds, the columns that are left out have one
            value each: NaN differs from itself.
        token: index of the sampled token along S; its column is kept.
        temperature: tau > 0.
    """
    moves = (central[1:] != central[:-1]).any(axis=0)
    moves[token] = True
    columns = np.flatnonzero(moves)
    values = central[0].take(np.flatnonzero(~moves))
    largest = float(max(-values.min(), values.max())) if len(values) else 0.0
    still = Still(log_sum_exp(values, temperature), len(values), largest)
    return Moving(columns, central.take(columns, axis=1), int(np.searchsorted(columns, token)), still)


def log_sum_exp(values: Floats, temperature: float) -> float:
    """Logarithm of the sum of exp(value / temperature) over values [S]; -inf where there are none."""
    if not len(values):
        return -math.inf
    scaled = values.astype(np.float64)
    scaled /= temperature
    largest = float(scaled.max())
    scaled -= largest
    return largest + math.log(float(np.exp(scaled, out=scaled).sum()))
