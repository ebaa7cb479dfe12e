"""The columns of a step that a neighbour can move, apart from all others, which enter every sum alike.

In a large vocabulary most columns lie at the floor of the clip in nearly all contexts, and a median stays there
whatever one neighbour does. The sum of their exponentials is worked out once and stands for them in the log-sum-exp of
the aggregate, of its bounds, and of every batch less one context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating]
Doubles: TypeAlias = NDArray[np.float64]
#: A step's arrays by name, each [..., S] with a column for each token of the support.
Arrays: TypeAlias = dict[str, NDArray[Any]]
#: lower, center and upper: the box [..., S] of neighbouring aggregates, and the aggregate that was sampled from.
Box: TypeAlias = tuple[Floats, Floats, Floats]


@dataclass(frozen=True)
class FixedColumns:
    """Columns in which all neighbours agree, as one term of a sum.

    Attributes:
        log_sum: logarithm of the sum of exp(value / tau) over them; -inf where there are none.
        columns: how many they are.
        largest: the largest absolute value among them.
    """

    log_sum: float = -math.inf
    columns: int = 0
    largest: float = 0.0


#: No such columns.
NO_FIXED_COLUMNS = FixedColumns()


@dataclass(frozen=True)
class ReducedStep:
    """A step less the columns that no neighbour can move.

    Attributes:
        arrays: [..., M] the step's arrays in the M columns that are left: those that can move, and the token's.
        token: the token's place among them.
        fixed: all other columns.
    """

    arrays: Arrays
    token: int
    fixed: FixedColumns = NO_FIXED_COLUMNS


def log_sum_exp(values: Floats, temperature: float) -> float:
    """Logarithm of the sum of exp(value / temperature) over values [S]; -inf where there are none."""
    if not len(values):
        return -math.inf
    scaled = values.astype(np.float64)
    scaled /= temperature
    largest = float(scaled.max())
    scaled -= largest
    return largest + math.log(float(np.exp(scaled, out=scaled).sum()))


def log_probability(values: Floats, token: int, temperature: float, fixed: FixedColumns = NO_FIXED_COLUMNS) -> float:
    """log softmax(values / temperature) at a token, in nats, of values [S] and further columns."""
    scaled = values.astype(np.float64) / temperature
    largest = max(float(scaled.max()), fixed.log_sum)
    total = float(np.exp(scaled - largest).sum()) + float(np.exp(fixed.log_sum - largest))
    return float(scaled[token]) - largest - float(np.log(total))
