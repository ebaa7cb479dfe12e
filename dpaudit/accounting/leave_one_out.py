"""What a batch's own tokens lost or gained by each of its contexts: realised, exact, and without a model.

The log-ratios are those of actual neighbours, a batch less one context. They bound nothing: other neighbours, above
all added contexts, can lose more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.medians import Floats, median_of

#: Contexts looked at in one go: memory is this many rows of the vocabulary, however many contexts there are.
_ROWS = 64


def median_losses(
    central: Floats,
    sides: NDArray[np.bool_],
    holder: NDArray[np.integer] | None,
    token: int,
    temperature: float,
) -> NDArray[np.float64]:
    """log p(token) - log p(token without context i), in nats, for every context of a median step.

    Removing a context moves each component's median to one of two places (three for odd n), and its side says which
    (docs/mathematics.md, "Leave-one-out").

    Args:
        central: [2w + n % 2, S] central order statistics.
        sides: [n, S], True where the context ranks below the median (`median_sides`).
        holder: [S], for odd n the context that is the median, else None.
        token: index of the sampled token along S.
        temperature: tau > 0.

    Returns:
        float64 [n].
    """
    center = median_of(central)
    middle = central.shape[0] // 2
    if holder is None:
        without_lower, without_upper = central[middle], central[middle - 1]
        without_holder = None
    else:
        half = central.dtype.type(0.5)
        without_lower = (central[middle] + central[middle + 1]) * half
        without_upper = (central[middle - 1] + central[middle]) * half
        without_holder = (central[middle - 1] + central[middle + 1]) * half
    largest = float(without_lower.max()) / temperature
    base = np.exp(without_upper.astype(np.float64) / temperature - largest)
    gain = np.exp(without_lower.astype(np.float64) / temperature - largest) - base  # never negative
    sums = np.full(len(sides), base.sum())
    for start in range(0, len(sides), _ROWS):
        sums[start : start + _ROWS] += sides[start : start + _ROWS] @ gain
    at_token = np.where(sides[:, token], without_lower[token], without_upper[token]).astype(np.float64)
    if holder is not None and without_holder is not None:
        held = np.exp(without_holder.astype(np.float64) / temperature - largest) - base
        sums += np.bincount(holder, weights=held, minlength=len(sides))
        at_token[holder[token]] = without_holder[token]
    without: NDArray[np.float64] = at_token / temperature - largest - np.log(sums)
    return log_probability(center, token, temperature) - without


def mean_losses(
    aggregate: Floats, contexts: Floats, divisor: float, token: int, temperature: float
) -> NDArray[np.float64]:
    """log p(token) - log p(token without context i), in nats, for every context of a mean step.

    Args:
        aggregate: [S] sum of the contexts over the divisor.
        contexts: [n, S] clipped logits of every context.
        divisor: the fixed public divisor s, which stays when a context goes.
        token: index of the sampled token along S.
        temperature: tau > 0.

    Returns:
        float64 [n].
    """
    here = log_probability(aggregate, token, temperature)
    return np.array(
        [here - log_probability(aggregate - row.astype(np.float64) / divisor, token, temperature) for row in contexts],
        dtype=np.float64,
    )


def log_probability(values: Floats, token: int, temperature: float) -> float:
    """log softmax(values / temperature) at a token, in nats."""
    scaled = values.astype(np.float64) / temperature
    largest = float(scaled.max())
    return float(scaled[token]) - largest - float(np.log(np.exp(scaled - largest).sum()))
