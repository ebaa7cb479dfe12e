"""One step from raw logits to what it samples from: clipping, truncation, mean or median, and the public support."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import central_order_statistics, median_of
from dpaudit.runs import Mechanism

Floats = NDArray[np.float32]

#: Tokens whose means are taken in one go, which bounds the memory for their float64 copies.
COLUMNS = 4096


class Aggregated(NamedTuple):
    """A step before its draw.

    Attributes:
        values: float32 [n, S], every context's clipped logits over the support.
        central: [2 width + n % 2, S], the central order statistics; None for the mean.
        aggregate: [S], what the step samples from.
    """

    values: Floats
    central: NDArray[np.floating] | None
    aggregate: NDArray[np.floating]


def aggregated(logits: Floats, support: NDArray[np.integer] | None, mechanism: Mechanism, width: int) -> Aggregated:
    """Clip, truncate, aggregate (Algorithm 1, lines 6 and 7). Generation, replay and attack all do it here.

    Args:
        logits: float32 [n, V].
        support: ids of the tokens to sample from, ascending: int [S]; None for the whole vocabulary.
        mechanism: aggregator, clip and divisor.
        width: central order statistics to keep on each side of the median.

    Raises:
        ValueError: see `clip_logits`.
    """
    values = clip_logits(logits, mechanism.clip)
    if support is not None:
        # Columns are aggregated one by one, so this equals truncating the aggregate.
        values = np.ascontiguousarray(values[:, support])
    if mechanism.divisor is not None:
        return Aggregated(values, None, mean(values, mechanism.divisor))
    central = central_order_statistics(values, mechanism.clip, width)
    return Aggregated(values, central, median_of(central))


def clip_logits(logits: Floats, clip: float) -> Floats:
    """Move each row's maximum to `clip` and cut at -clip: max(-c, (l - max l) + c) (paper, section 3).

    Args:
        logits: float32 [n, V]; -inf marks tokens that a model rules out.
        clip: c, in logit units.

    Returns:
        float32 [n, V] in [-c, c], each row's maximum exactly c.

    Raises:
        ValueError: a logit is NaN or +inf, or a row has no finite logit.
    """
    if not len(logits):
        return logits
    c = np.float32(clip)
    top = logits.max(axis=1, keepdims=True)  # NaN wins over every number
    if not np.isfinite(top).all():
        raise ValueError("the model gave NaN or infinite logits")
    result: Floats = np.maximum(-c, (logits - top) + c)
    return result


def mean(values: Floats, divisor: float) -> NDArray[np.float64]:
    """Sum over contexts over a fixed public divisor: float64 [S] from float32 [n, S].

    In float32, or added up one by one, rounding could move a mean of many contexts by more than its guarantee allows
    for (`dpaudit.accounting.mean.ROUNDING`). Numpy adds contiguous values pairwise.
    """
    sums = np.empty(values.shape[1])
    for start in range(0, len(sums), COLUMNS):
        block = np.ascontiguousarray(values[:, start : start + COLUMNS].T, dtype=np.float64)
        sums[start : start + COLUMNS] = block.sum(axis=1)
    result: NDArray[np.float64] = sums / divisor
    return result


def top_tokens(logits: Floats, size: int) -> NDArray[np.int32]:
    """Ids of the `size` largest logits of a public prompt, ascending: int32 [size] from float32 [V]."""
    largest = np.argsort(-logits, kind="stable")[:size]
    return np.sort(largest).astype(np.int32)
