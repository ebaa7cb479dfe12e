"""Attacks within a guarantee: the curve of true positives against false positives.

Let d(e) bound delta at e for all neighbours in both directions. Any test about a record with
false-positive rate x has a true-positive rate of at most d(e) + exp(e) x, for every e from minus to
plus infinity; the least of these lines is 1 minus the trade-off function
(https://arxiv.org/abs/1905.02383). A subset of the lines is a bound, too, so nothing is
interpolated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.profiles import Profile
from dpaudit.accounting.renyi import Doubles

#: Relative room for a dozen operations.
_ROOM = 2.0**-40


@dataclass(frozen=True)
class AttackCurve:
    """An upper bound on any test's true-positive rate by its false-positive rate: lines' minimum.

    Attributes:
        slopes: of the lines, exp(e) each; positive, the steepest first [n].
        intercepts: the lines' true-positive rates at a false-positive rate of 0 [n].
    """

    slopes: Doubles
    intercepts: Doubles

    @classmethod
    def of_profile(cls, profile: Profile) -> AttackCurve:
        """Take both directions: a test's and its complement's."""
        deltas = np.minimum(np.minimum.accumulate(profile.deltas), 1.0)
        losses = np.arange(len(deltas)) * profile.step
        steep, flat = np.exp(losses), np.exp(-losses)
        return cls(
            np.concatenate([steep[::-1], flat[1:]]) * (1 + _ROOM),
            np.concatenate([deltas[::-1], (flat * deltas - np.expm1(-losses))[1:]]) * (1 + _ROOM),
        )

    def true_positives(self, false_positives: Doubles) -> Doubles:
        """Bound the true-positive rate [m] at false-positive rates [m] from 0 to 1."""
        at = self._line_at(false_positives)
        return np.minimum(
            (self.intercepts[at] + self.slopes[at] * false_positives) * (1 + _ROOM), 1.0
        )

    def group(self, size: int) -> AttackCurve:
        """Bound tests about `size` records: along a chain of neighbours the curve is iterated.

        T(T(x)) lies below every line of T after every line of T, so it does not matter that pairs
        of lines are chosen with rounding.

        Raises:
            ValueError: `size` is not positive.
        """
        if size < 1:
            raise ValueError(f"a group has one record at least, not {size}")
        whole = self
        for _ in range(size - 1):
            whole = self._after(whole)
        return whole

    def profile(self, step: float, points: int) -> Profile:
        """Return delta at losses 0, step, ... [points]: the largest T(x) - exp(e) x.

        Between two lines it is a mean of them.
        """
        slopes = np.exp(np.arange(points) * step)
        # Beyond the steepest line its intercept holds.
        deltas = np.interp(slopes, self.slopes[::-1], self.intercepts[::-1]) * (1 + _ROOM)
        return Profile(step, np.minimum(deltas, 1.0))

    def _corners(self) -> Doubles:
        """Return the false-positive rates [n - 1], about, at which the next line takes over."""
        with np.errstate(divide="ignore", invalid="ignore"):
            crossings = np.diff(self.intercepts) / -np.diff(self.slopes)
        return np.maximum.accumulate(np.clip(np.nan_to_num(crossings), 0.0, 1.0))

    def _line_at(self, false_positives: Doubles) -> NDArray[np.int64]:
        return np.searchsorted(self._corners(), false_positives, side="right")

    def _after(self, inner: AttackCurve) -> AttackCurve:
        """Apply this curve to the inner one."""
        corners = self._corners()
        reached = inner._corners()
        # Where the inner curve's value comes to a corner of this one.
        inner_at = np.searchsorted(inner.true_positives(reached), corners, side="right")
        back = np.clip((corners - inner.intercepts[inner_at]) / inner.slopes[inner_at], 0.0, 1.0)
        ends = np.union1d(np.union1d(reached, back), [0.0, 1.0])
        middles = (ends[:-1] + ends[1:]) / 2
        within = inner._line_at(middles)
        outside = self._line_at(inner.true_positives(middles))
        slopes = self.slopes[outside] * inner.slopes[within] * (1 + _ROOM)
        intercepts = (
            self.intercepts[outside] + self.slopes[outside] * inner.intercepts[within]
        ) * (1 + _ROOM)
        steepest_first = np.argsort(-slopes, kind="stable")
        return AttackCurve(slopes[steepest_first], np.minimum(intercepts, 1.0)[steepest_first])
