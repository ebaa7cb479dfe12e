"""What a batch's own tokens lost or gained by each of its contexts: realised, exact, and without a model.

The log-ratios are those of actual neighbours, a batch less one context. They bound nothing: other neighbours, above
all added contexts, can lose more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.columns import NONE_STILL, Still
from dpaudit.accounting.medians import Floats, median_of

#: Which bits each byte sets, the highest first, as `numpy.packbits` packs them: float64 [256, 8].
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float64)


def median_losses(
    central: Floats,
    sides: NDArray[np.uint8],
    holder: NDArray[np.integer] | None,
    contexts: int,
    token: int,
    temperature: float,
    still: Still = NONE_STILL,
) -> NDArray[np.float64]:
    """log p(token) - log p(token without context i), in nats, for every context of a median step.

    Removing a context moves each component's median to one of two places (three for odd n), and its side says which
    (docs/mathematics.md, "Leave-one-out").

    Args:
        central: [2w + n % 2, S] central order statistics.
        sides: uint8 [ceil(n / 8), S], bits of the contexts that rank below the median (`median_sides`).
        holder: [S], for odd n the context that is the median, else None.
        contexts: n.
        token: index of the sampled token along S.
        temperature: tau > 0.
        still: further columns, which no removal moves.

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
    largest = max(float(without_lower.max()) / temperature, still.log_sum)
    base = np.exp(without_upper.astype(np.float64) / temperature - largest)
    gain = np.exp(without_lower.astype(np.float64) / temperature - largest) - base  # never negative
    rest = float(np.exp(still.log_sum - largest))
    sums = rest + base.sum() + _sums_of_bits(sides, gain)[:contexts]
    below = np.unpackbits(sides[:, token], count=contexts).view(np.bool_)
    at_token = np.where(below, without_lower[token], without_upper[token]).astype(np.float64)
    if holder is not None and without_holder is not None:
        held = np.exp(without_holder.astype(np.float64) / temperature - largest) - base
        sums += np.bincount(holder, weights=held, minlength=contexts)
        at_token[holder[token]] = without_holder[token]
    without: NDArray[np.float64] = at_token / temperature - largest - np.log(sums)
    return log_probability(center, token, temperature, still) - without


def _sums_of_bits(packed: NDArray[np.uint8], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each bit row of packed [r, S], the sum of the weights [S] where it is set: float64 [8 r].

    Weights are gathered by the bytes' values first, so that eight rows take one pass and no bit is unpacked. The sums
    do not go through BLAS, whose results may depend on the number of its threads.
    """
    by_value = np.array([np.bincount(row, weights=weights, minlength=256) for row in packed])
    sums: NDArray[np.float64] = np.einsum("rv,vb->rb", by_value.reshape(-1, 256), _BITS)
    return sums.reshape(-1)


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


def log_probability(values: Floats, token: int, temperature: float, still: Still = NONE_STILL) -> float:
    """log softmax(values / temperature) at a token, in nats, of values [S] and further columns."""
    scaled = values.astype(np.float64) / temperature
    largest = max(float(scaled.max()), still.log_sum)
    total = float(np.exp(scaled - largest).sum()) + float(np.exp(still.log_sum - largest))
    return float(scaled[token]) - largest - float(np.log(total))
