"""Attacks within a guarantee: the curve of true positives against false positives.

Let d(e) bound delta at e for all neighbours in both directions. Any test about a record with
false-positive rate x has a true-positive rate of at most d(e) + exp(e) x, for every e from minus to
plus infinity; the least of these lines is 1 minus the trade-off function
(https://arxiv.org/abs/1905.02383). A subset of the lines is a bound, too, so nothing is
interpolated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.profiles import Profile, lower_hull
from dpaudit.accounting.renyi import Doubles

if TYPE_CHECKING:
    from dpaudit.runs.limits import MostTruePositives

#: How bounds on attacks are found: by optimal composition of the draws' ranges, by the region of
#: zCDP or of Renyi divergences, by dp-accounting's privacy loss distributions, by hiding a record's
#: batch among others, or by one epsilon and its delta alone.
Way: TypeAlias = Literal["ranges", "zcdp", "pld", "secret-batches", "epsilon-delta"]

#: Relative room for a dozen operations.
_ROOM = 2.0**-40
#: Slopes of larger losses, in nats, would near the largest float.
_LARGEST_LOSS = 500.0
#: False-positive rates at which what is reported of a curve is as close as the curve itself.
_REPORTED = (*np.geomspace(1e-6, 0.1, 31).tolist(), 0.001, 0.01, *np.linspace(0.1, 0.9, 9))
#: Standard deviations beyond which two normal laws cannot be told to be further apart.
_MOST_DEVIATIONS = 70.0


@dataclass(frozen=True)
class AttackCurve:
    """An upper bound on any test's true-positive rate by its false-positive rate: lines' minimum.

    A test is about one unit that comes or goes, or is replaced, as the guarantee says; it may know
    all others. Every figure is an upper bound, rounded up.

    Attributes:
        slopes: of the lines, exp(e) each; positive, the steepest first [n].
        intercepts: the lines' true-positive rates at a false-positive rate of 0 [n].
        ways: how the bounds were found whose lines these are, each once.
    """

    slopes: Doubles
    intercepts: Doubles
    ways: tuple[Way, ...] = ()

    @classmethod
    def of_profile(cls, profile: Profile, *ways: Way) -> AttackCurve:
        """Take both directions: a test's and its complement's."""
        deltas = np.minimum(np.minimum.accumulate(profile.deltas), 1.0)
        losses = np.arange(len(deltas)) * profile.step
        deltas, losses = deltas[losses <= _LARGEST_LOSS], losses[losses <= _LARGEST_LOSS]
        steep, flat = np.exp(losses), np.exp(-losses)
        return cls(
            np.concatenate([steep[::-1], flat[1:]]) * (1 + _ROOM),
            np.concatenate([deltas[::-1], (flat * deltas - np.expm1(-losses))[1:]]) * (1 + _ROOM),
            ways,
        )

    @classmethod
    def of_epsilon(cls, epsilon: float, delta: float) -> AttackCurve:
        """Bound tests by one epsilon, in nats, and its delta alone: looser than any profile."""
        if not 0 < epsilon < _LARGEST_LOSS:
            # Without any loss there is one line; with a very large one, none of use.
            deltas = np.full(2, 1.0 if epsilon else delta)
            return cls.of_profile(Profile(1.0, deltas), "epsilon-delta")
        both = (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1) * (1 + _ROOM)
        return cls.of_profile(Profile(epsilon, np.array([both, delta])), "epsilon-delta")

    def meet(self, *others: AttackCurve) -> AttackCurve:
        """Return the smallest of bounds on the same tests, everywhere."""
        slopes = np.concatenate([self.slopes, *(other.slopes for other in others)])
        intercepts = np.concatenate([self.intercepts, *(other.intercepts for other in others)])
        lowest_first = np.lexsort((intercepts, slopes))
        slopes, first = np.unique(slopes[lowest_first], return_index=True)
        intercepts = intercepts[lowest_first][first]
        # A mean of two lines is a bound, too, so what lies above one is left out.
        corners = lower_hull(slopes, intercepts)[::-1]
        ways = dict.fromkeys(way for curve in (self, *others) for way in curve.ways)
        return AttackCurve(slopes[corners], intercepts[corners], tuple(ways))

    def beside(self, delta: float) -> AttackCurve:
        """Return the bound beside outputs that tell everything, with a probability of `delta`.

        It is an epsilon's delta: delta(e) grows by it at every e, and every line by no more.
        """
        if not delta:
            return self
        intercepts = np.minimum((self.intercepts + delta) * (1 + _ROOM), 1.0)
        return replace(self, intercepts=intercepts)

    def true_positives(self, false_positives: float) -> float:
        """Bound the true-positive rate at a false-positive rate.

        Raises:
            ValueError: the rate does not lie between 0 and 1.
        """
        if not 0 <= false_positives <= 1:
            raise ValueError(f"a false-positive rate lies from 0 to 1, not at {false_positives}")
        least = float((self.intercepts + self.slopes * false_positives).min())
        return min(1.0, least * (1 + _ROOM))

    @property
    def advantage(self) -> float:
        """The most by which true positives exceed false ones: the total variation distance."""
        return float(self._excess(np.ones(1))[0])

    @property
    def auc(self) -> float:
        """The most that the area under a test's ROC curve can be."""
        # Any line over any part of the rates is a bound: the lines change where the envelope does.
        slopes, intercepts = np.append(self.slopes, 0.0), np.append(self.intercepts, 1.0)
        ends = np.concatenate([[0.0], AttackCurve(slopes, intercepts)._corners(), [1.0]])
        middles, widths = (ends[:-1] + ends[1:]) / 2, np.diff(ends)
        heights = np.minimum(intercepts + slopes * middles, 1.0)
        return min(1.0, math.fsum(widths * heights) * (1 + _ROOM))

    def accuracy(self, prior: float = 0.5) -> float:
        """Bound how often a test is right that decides in or out, at a base rate of being in.

        Saying always the likelier is right with max(prior, 1 - prior).

        Raises:
            ValueError: `prior` does not lie between 0 and 1.
        """
        odds = (1 - _base_rate(prior)) / prior * (1 - _ROOM)
        excess = float(self._excess(np.array([odds]))[0])
        return min(1.0, (1 - prior + prior * excess) * (1 + _ROOM))

    def precision(self, prior: float, false_positives: float) -> float:
        """Bound how often a "yes" is right, at a base rate of being in.

        Args:
            prior: the base rate.
            false_positives: the test's rate, or the least that it may have: a test that accuses
                more rarely may be right more often. 0 bounds nothing.

        Raises:
            ValueError: `prior` does not lie between 0 and 1, or `false_positives` not from 0 to 1.
        """
        right = _base_rate(prior) * self.true_positives(false_positives)
        wrong = (1 - prior) * false_positives
        return min(1.0, right / (right + wrong) * (1 + _ROOM)) if wrong else 1.0

    def odds_tail(self, factor: float) -> float:
        """Bound the chance that the odds of being in rise `factor`-fold or more, if she is in.

        If she is not, it is that divided by the factor.

        Raises:
            ValueError: `factor` is not above 1.
        """
        if not factor > 1:
            raise ValueError(f"odds rise by a factor above 1, not {factor}")
        below = self.slopes < factor
        found = self.intercepts[below] * factor / (factor - self.slopes[below])
        return min(1.0, float(found.min(initial=1.0)) * (1 + _ROOM))

    def few(self) -> AttackCurve:
        """Return the bound that is reported, of fewer lines: as close at usual rates.

        So is its advantage. Nowhere is it below this one.
        """
        lines = {int((self.intercepts + self.slopes * rate).argmin()) for rate in _REPORTED}
        # The two whose slopes enclose 1.
        steep = int(np.count_nonzero(self.slopes >= 1))
        lines |= {max(steep - 1, 0), min(steep, len(self.slopes) - 1)}
        places = sorted(lines)
        return replace(self, slopes=self.slopes[places], intercepts=self.intercepts[places])

    def guess(self, blind: float) -> float:
        """Bound how often an attack guesses a secret of hers right.

        Args:
            blind: how often the same attack guesses it from texts written without her record.

        Raises:
            ValueError: `blind` does not lie between 0 and 1.
        """
        return self.true_positives(blind)

    def at(self, false_positives: Doubles) -> Doubles:
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
        with np.errstate(over="ignore"):  # further than any slope reaches
            ratios = np.exp(np.arange(points) * step)
        return Profile(step, self._excess(ratios))

    def _excess(self, ratios: Doubles) -> Doubles:
        """Bound the most that T(x) - ratio x comes to [n], for positive ratios [n].

        It is a mean of the two lines whose slopes enclose the ratio. Beyond the steepest line its
        intercept holds; below the flattest there is the line at 1.
        """
        slopes = np.concatenate([[0.0], self.slopes[::-1]])
        intercepts = np.concatenate([[1.0], self.intercepts[::-1]])
        above = np.searchsorted(slopes, ratios)
        steeper = np.minimum(above, len(slopes) - 1)
        flatter = np.minimum(above, len(slopes)) - 1
        # Weights keep their digits, as differences of given numbers.
        width = slopes[steeper] - slopes[flatter]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found = (
                intercepts[flatter] * (slopes[steeper] - ratios)
                + intercepts[steeper] * (ratios - slopes[flatter])
            ) / width
        found = np.where(steeper > flatter, found, intercepts[flatter])
        return np.asarray(np.minimum(found * (1 + _ROOM), 1.0), dtype=np.float64)

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
        inner_at = np.searchsorted(inner.at(reached), corners, side="right")
        back = np.clip((corners - inner.intercepts[inner_at]) / inner.slopes[inner_at], 0.0, 1.0)
        ends = np.union1d(np.union1d(reached, back), [0.0, 1.0])
        middles = (ends[:-1] + ends[1:]) / 2
        within = inner._line_at(middles)
        outside = self._line_at(inner.at(middles))
        with np.errstate(over="ignore"):
            slopes = self.slopes[outside] * inner.slopes[within] * (1 + _ROOM)
        intercepts = (
            self.intercepts[outside] + self.slopes[outside] * inner.intercepts[within]
        ) * (1 + _ROOM)
        steepest_first = np.argsort(-slopes, kind="stable")
        steepest_first = steepest_first[np.isfinite(slopes[steepest_first])]
        return replace(
            self,
            slopes=slopes[steepest_first],
            intercepts=np.minimum(intercepts, 1.0)[steepest_first],
        )


@dataclass(frozen=True)
class AttackLimit:
    """The most that attacks may gain: an advantage, or true positives at a rate of false ones.

    Attributes:
        most: the largest advantage or, with `at`, the largest true-positive rate.
        at: the false-positive rate; None to limit the advantage.

    Raises:
        ValueError: a figure does not lie between 0 and 1, or nothing keeps to it: without any
            text, too, a test can have as many true positives as false ones.
    """

    most: float
    at: float | None = None

    def __post_init__(self) -> None:
        if not (0 < self.most < 1 and (self.at is None or 0 < self.at < self.most)):
            raise ValueError(f"attacks cannot be limited by {self}")

    def __str__(self) -> str:
        if self.at is None:
            return f"advantage {self.most:g}"
        return f"true-positive rate {self.most:g} at a false-positive rate of {self.at:g}"

    def reached(self, curve: AttackCurve) -> float:
        """Return the figure that the limit is about, as it is reported of a curve."""
        shown = curve.few()
        return shown.advantage if self.at is None else shown.true_positives(self.at)

    def allows(self, curve: AttackCurve) -> bool:
        """Return whether what is reported of a curve is within the limit."""
        return self.reached(curve) <= self.most

    def deviations(self, reached: float | None = None) -> float:
        """Estimate by how many standard deviations two normal laws differ that reach the limit.

        It begins a search, and bounds nothing.

        Args:
            reached: a figure in place of the limit.
        """
        normal, most = NormalDist(), self.most if reached is None else reached
        if not most < 1:
            return _MOST_DEVIATIONS
        if self.at is None:
            return 2 * normal.inv_cdf((1 + most) / 2)
        return max(0.0, normal.inv_cdf(most) - normal.inv_cdf(self.at))


#: What a run may cost: an epsilon in nats, or what attacks may gain by it.
Limit: TypeAlias = float | AttackLimit


class HasLimits(Protocol):
    """Fields of settings that say what a run may cost: one of them at most is given."""

    @property
    def epsilon(self) -> float | None:
        """In nats."""

    @property
    def advantage(self) -> float | None:
        """The most by which a test's true positives may exceed its false ones."""

    @property
    def true_positives(self) -> MostTruePositives | None:
        """The most true positives at a rate of false ones."""


def limit_of(settings: HasLimits) -> Limit | None:
    """Return what a run may cost by its settings; None if they do not say."""
    if settings.advantage is not None:
        return AttackLimit(settings.advantage)
    if (asked := settings.true_positives) is not None:
        return AttackLimit(asked.most, asked.at)
    return settings.epsilon


def _base_rate(prior: float) -> float:
    if not 0 < prior < 1:
        raise ValueError(f"a base rate lies between 0 and 1, not at {prior}")
    return prior
