"""Clipping, the mean, and the public support. The median is `dpaudit.accounting`'s."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

#: Tokens whose means are taken in one go, which bounds the memory for their float64 copies.
COLUMNS = 4096


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
