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

    The p-values are exact for few scores without ties, else by the normal law with ties corrected
    for. The interval is Wilson's for min(n, m) draws: whatever the two distributions are, the
    variance of the AUC is at most A (1 - A) / min(n, m) (van Dantzig 1951; Birnbaum and Klose
    1957). It is wider than it needs to be, and does not shrink to a point where the AUC is 1.

    Args:
        first: finite scores [n], n >= 1.
        second: finite scores [m], m >= 1.
    """
    from scipy.stats import mannwhitneyu  # type: ignore[import-untyped]  # slow to load

    tied = len(np.unique(np.concatenate([first, second]))) < len(first) + len(second)
    few = len(first) * len(second) <= _EXACT
    method = "exact" if few and not tied else "asymptotic"
    upper = mannwhitneyu(first, second, alternative="greater", method=method)
    lower = mannwhitneyu(first, second, alternative="less", method=method)
    auc = float(upper.statistic) / (len(first) * len(second))
    low, high = _wilson(auc, min(len(first), len(second)))
    return RankTest(auc, low, high, float(upper.pvalue), float(lower.pvalue))


def _wilson(share: float, draws: int) -> tuple[float, float]:
    """Return Wilson's interval of a share that need not be a whole number of `draws`."""
    square = _QUANTILE**2 / draws
    middle = share + square / 2
    reach = math.sqrt(square * share * (1 - share) + square**2 / 4)
    return max(0.0, (middle - reach) / (1 + square)), min(1.0, (middle + reach) / (1 + square))
