"""Whether scores of one kind tend to be larger than those of another, by their ranks."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Of the interval of `RankTest`, and its two-sided normal quantile.
CONFIDENCE, _QUANTILE = 0.95, 1.959964
#: Products of the numbers of scores up to which tails are counted exactly: some seconds.
_EXACT = 100_000


class RankTest(NamedTuple):
    """A rank-sum test of two samples (Mann and Whitney 1947).

    Attributes:
        auc: the share of pairs in which the first sample's score is larger; ties count half.
        low, high: its interval at `CONFIDENCE`.
        p: the probability of such an AUC or a larger one if both samples have one distribution.
        p_lower: likewise, of a smaller one.
    """

    auc: float
    low: float
    high: float
    p: float
    p_lower: float


def rank_test(first: NDArray[np.float64], second: NDArray[np.float64]) -> RankTest:
    """Compare two samples by ranks.

    The p-values are exact for few scores, where ties count against them: for p as if all of the
    first sample's were the smaller ones. Of many they are by the normal law, with ties corrected
    for. The interval is Wilson's for min(n, m) draws: whatever the two distributions are, the
    variance of the AUC is at most A (1 - A) / min(n, m) (van Dantzig 1951; Birnbaum and Klose
    1957). It is wider than it needs to be, and does not shrink to a point where the AUC is 1.

    Args:
        first: finite scores [n], n >= 1.
        second: finite scores [m], m >= 1.
    """
    from scipy.stats import mannwhitneyu  # type: ignore[import-untyped]  # slow to load

    few = len(first) * len(second) <= _EXACT
    method = "exact" if few else "asymptotic"
    # The normal law's p-values are too small where few scores tie.
    above, below = (_untied(first, second, sign) if few else (first, second) for sign in (-1, 1))
    upper = mannwhitneyu(*above, alternative="greater", method=method)
    lower = mannwhitneyu(*below, alternative="less", method=method)
    pairs = mannwhitneyu(first, second, method="asymptotic").statistic
    auc = float(pairs) / (len(first) * len(second))
    limits = _wilson(auc, min(len(first), len(second)))
    return RankTest(auc, *limits, float(upper.pvalue), float(lower.pvalue))


def _untied(
    first: NDArray[np.float64], second: NDArray[np.float64], sign: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ranks without ties: of equal scores the first sample's are smaller if `sign` is -1."""
    of_first = np.arange(len(first) + len(second)) < len(first)
    ordered = np.lexsort((sign * of_first, np.concatenate([first, second])))
    ranks = np.empty(len(ordered), dtype=np.int64)
    ranks[ordered] = np.arange(len(ordered))
    return ranks[: len(first)], ranks[len(first) :]


def _wilson(share: float, draws: int) -> tuple[float, float]:
    """Return Wilson's interval of a share that need not be a whole number of `draws`."""
    square = _QUANTILE**2 / draws
    middle = share + square / 2
    reach = math.sqrt(square * share * (1 - share) + square**2 / 4)
    return max(0.0, (middle - reach) / (1 + square)), min(1.0, (middle + reach) / (1 + square))
