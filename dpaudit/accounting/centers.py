"""The cost of noised cluster centres, by the scales of their noise alone.

Making and auditing share this implementation.

Both methods let through Laplace-noised counts of cells that a record falls into one of, level by
level, and then Gaussian-noised sums of the records of the final cells. How far one record can move
these is proved here; how each method keeps to it (clipping, exact arithmetic, choices by noisy
numbers only) in `dpaudit.generation.clustering`.

**Chang's tree.** Cells of a level are prefixes of a hash of the record alone, `depth` + 1 levels
with the root's.

- A record that comes or goes moves one count by 1 on every level, and one sum by the radius. - A
record that is exchanged for one of another path: up to the level where the paths part, no count
moves, and what is
  let through has the same law for both neighbours. If the tree goes on to there, two counts move by
      1 each on every
  further level, of which there are `depth` at most, and the two lie in two leaves: both sums move
      by the radius,
  together by sqrt(2) radii. If it does not, both lie in one leaf, whose sum moves by two radii, and
      no count ever
  moves. As the law up to there is the same, delta(epsilon) is a mean of these two cases', hence at
      most the larger.

Each case is a composition of Laplace and Gaussian mechanisms of fixed scales, whatever came before.
So its delta is at most that of their fixed composition (Zhu, Dong, Wang: Optimal Accounting of
Differential Privacy via Characteristic Function, on dominating pairs), which dp-accounting bounds
from above by privacy loss distributions.

**DPM.** Cells are split at places that the exponential mechanism chooses, `depth` times at most. A
split's log-ratios lie in an interval of length e, its epsilon (bounded range), so it is e^2 / 8
zero-concentrated DP (Cesar and Rogers, arXiv 2004.07223). A record that comes or goes is in one
cell per level: every level's count and split, and one sum. For an exchanged one the root's count is
the same, and so is everything but splits and sums as long as the old and the new record share a
cell. At some split they part. If that split does not stand, two counts have moved, and one sum by
twice the radius; if it stands, all counts and splits below are paid twice, and two sums have moved
by a radius each. What follows depends on what was released, so at each Renyi order the costliest
course counts: the moment of the privacy loss from a level on is at most the level's own times the
largest that can follow, level by level from the last.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms import Relation

CentersMethod: TypeAlias = Literal["chang", "dpm"]
Doubles: TypeAlias = NDArray[np.float64]

#: The range of deltas: rounding in the accountant's Fourier transforms stays below a thousandth of
#: the least.
LEAST_DELTA, MOST_DELTA = 1e-10, 0.1
#: Levels below the root: a path fits into an int64 with a bit to spare.
MOST_DEPTH = 62
#: The range of noise scales. Outside it, a sum with its noise, on a grid of 2^18 steps a radius,
#: would leave the 53 bits of a double, or a count with its noise the 63 of an integer; or privacy
#: losses the range where they are computed well.
LEAST_SCALE, MOST_SUM_SD, MOST_COUNT_SCALE = 2.0**-30, 2.0**31, 2.0**50

#: The share of delta that is set aside for the rounding of Fourier transforms.
DELTA_ROOM = 1e-13
#: Relative room for all other rounding.
ROOM = 2.0**-40
#: Steps of the accountant's grid of losses per epsilon; and the epsilon above which it has no room.
STEPS, LARGE = 1 << 12, 1e5
#: Renyi orders: those beyond 64 are 9 % apart, and reach so far that every epsilon above 0 can be
#: certified.
ORDERS: Doubles = np.concatenate(
    [1 + np.arange(1, 100) / 10, np.arange(11, 64), 2 ** np.arange(6, 40, 1 / 8)]
)


@dataclass(frozen=True)
class _Scales(ABC):
    depth: int
    count_scale: float

    def __post_init__(self) -> None:
        # NaN fails these comparisons.
        if not 1 <= self.depth <= MOST_DEPTH:
            raise ValueError(f"depth must lie between 1 and {MOST_DEPTH}, not be {self.depth}")
        most = {
            "count_scale": MOST_COUNT_SCALE,
            "split_epsilon": 1 / LEAST_SCALE,
            "sum_sd": MOST_SUM_SD,
        }
        least = {
            "count_scale": LEAST_SCALE,
            "split_epsilon": 1 / MOST_COUNT_SCALE,
            "sum_sd": LEAST_SCALE,
        }
        for field in fields(self)[1:]:
            name, value = field.name, getattr(self, field.name)
            if not least[name] <= value <= most[name]:
                raise ValueError(
                    f"{name} must lie between {least[name]:.2g} and {most[name]:.2g}, not be "
                    f"{value}"
                )

    def epsilon(self, delta: float, relation: Relation) -> float:
        """Return the cost of the noisy numbers for one record, in nats: an upper bound.

        Args:
            delta: in [LEAST_DELTA, MOST_DELTA].
            relation: whether records come and go, or are exchanged.

        Raises:
            ValueError: delta is out of its range, or the relation unknown.
        """
        if not LEAST_DELTA <= delta <= MOST_DELTA:
            raise ValueError(
                f"delta must lie between {LEAST_DELTA} and {MOST_DELTA}, not be {delta}"
            )
        return self._epsilon(delta, relation)

    @abstractmethod
    def _epsilon(self, delta: float, relation: Relation) -> float: ...


@dataclass(frozen=True)
class ChangScales(_Scales):
    """The noise in Chang's tree.

    Attributes:
        depth: the number of levels below the root, 1 to MOST_DEPTH.
        count_scale: of the Laplace noise on every count, in records.
        sum_sd: standard deviation of the Gaussian noise on every component of a leaf's sum, in
            radii.

    Raises:
        ValueError: a number is out of its range.
    """

    sum_sd: float

    def _epsilon(self, delta: float, relation: Relation) -> float:
        return max(self._epsilon_of(change, delta) for change in changes(relation, self.depth)) * (
            1 + ROOM
        )

    def rho(self, relation: Relation) -> float:
        """Return rho of zero-concentrated DP: a rougher measure.

        Pure epsilon e is e^2 / 2 (Bun and Steinke, 2016).
        """
        return max(self._rho(change) for change in changes(relation, self.depth))

    def _rho(self, change: Change) -> float:
        return change.counts / (2 * self.count_scale**2) + change.distance**2 / (2 * self.sum_sd**2)

    def _epsilon_of(self, change: Change, delta: float) -> float:
        from dp_accounting import (
            ComposedDpEvent,
            GaussianDpEvent,
            LaplaceDpEvent,
            SelfComposedDpEvent,
        )
        from dp_accounting.pld import PLDAccountant

        rho = self._rho(change)
        # Bun and Steinke, proposition 1.3
        rough = (rho + 2 * math.sqrt(rho * -math.log(delta))) * (1 + ROOM)
        if rough > LARGE:
            return rough
        accountant = PLDAccountant(value_discretization_interval=rough / STEPS)
        sums = GaussianDpEvent(self.sum_sd / change.distance * (1 - ROOM))
        counts = SelfComposedDpEvent(LaplaceDpEvent(self.count_scale * (1 - ROOM)), change.counts)
        events = ComposedDpEvent([sums, counts] if change.counts else [sums])
        return float(accountant.compose(events).get_epsilon(delta - DELTA_ROOM))


@dataclass(frozen=True)
class DpmScales(_Scales):
    """The noise in DPM. From level to level, counts and splits get less of it by sqrt(2).

    Attributes:
        depth: how often a cell can have been split, 1 to MOST_DEPTH.
        count_scale: of the Laplace noise on the root's count, in records.
        split_epsilon: of the root's split, in nats.
        sum_sd: standard deviation of the Gaussian noise on every component of a final cell's sum,
            in radii.

    Raises:
        ValueError: a number is out of its range.
    """

    split_epsilon: float
    sum_sd: float

    @property
    def count_scales(self) -> tuple[float, ...]:
        """Scale of the noise on a count of each level, in records: [depth + 1]."""
        return tuple(self.count_scale / growth(level) for level in range(self.depth + 1))

    @property
    def split_epsilons(self) -> tuple[float, ...]:
        """Epsilon of a split of each level's cells, in nats: [depth]."""
        return tuple(self.split_epsilon * growth(level) for level in range(self.depth))

    def _epsilon(self, delta: float, relation: Relation) -> float:
        """Convert Renyi divergences (Canonne et al., arXiv 2004.00010, proposition 12)."""
        divergence = np.max(list(self._courses(relation)), axis=0) * (1 + ROOM)
        share = (math.log(delta) + np.log(ORDERS) - ROOM) / (ORDERS - 1)
        return max(0.0, float((divergence + np.log1p(-1 / ORDERS) - share).min()))

    def _courses(self, relation: Relation) -> Iterator[Doubles]:
        """Yield the Renyi divergences [orders] of every course that neighbours can take.

        Courses that another one exceeds are left out.
        """
        counts = [_laplace_divergence(1 / scale) for scale in self.count_scales]
        splits = [ORDERS * (epsilon * epsilon / 8) for epsilon in self.split_epsilons]
        moved_sum = ORDERS / (2 * self.sum_sd**2)
        if _known(relation) == "add_remove":
            yield np.sum([*counts, *splits, moved_sum], axis=0)
            return
        for level in range(self.depth):
            shared, below = np.sum(splits[: level + 1], axis=0), level + 1
            # A gaussian's divergence grows with the square of the shift: one sum by two radii, or
            # two by one.
            yield shared + 2 * counts[below] + 4 * moved_sum
            yield shared + 2 * np.sum([*counts[below:], *splits[below:], moved_sum], axis=0)


def centers_epsilon(
    method: CentersMethod,
    settings: Mapping[str, int | float | str],
    delta: float,
    relation: Relation,
) -> float:
    """Return the cost of a method's centres for one record, from recorded scales of noise.

    Args:
        method: "chang" or "dpm".
        settings: by name, those of `ChangScales` or `DpmScales` among them; others are not looked
            at.
        delta: in [LEAST_DELTA, MOST_DELTA].
        relation: whether records come and go, or are exchanged, whichever the noise was calibrated
            for.

    Returns:
        epsilon in nats, an upper bound.

    Raises:
        ValueError: the method or relation is unknown, or a number is missing, no number, or out of
            its range.
    """
    kinds: Mapping[str, type[ChangScales | DpmScales]] = {"chang": ChangScales, "dpm": DpmScales}
    if method not in kinds:
        raise ValueError(f"centres of the method {method!r} have no noise that is known here")
    scales = kinds[method](*(_setting(settings, field.name) for field in fields(kinds[method])))
    return scales.epsilon(delta, relation)


class Change(NamedTuple):
    """The reach of one record in Chang's tree: counts that move by 1 each, and sums, in radii."""

    counts: int
    distance: float


def changes(relation: Relation, depth: int) -> tuple[Change, ...]:
    """Return the cases of which one holds, as derived above.

    Raises:
        ValueError: the relation is unknown.
    """
    if _known(relation) == "add_remove":
        return (Change(depth + 1, 1.0),)
    return Change(2 * depth, math.sqrt(2)), Change(0, 2.0)


def growth(level: int) -> float:
    """Return a level's share of DPM's budget for counts, or for splits, in units of the root's."""
    return float(2 ** (level / 2))


def _laplace_divergence(epsilon: float) -> Doubles:
    """Return Renyi divergences [orders] of Laplace noise on one number that moves by 1.

    The noise has the scale 1 / epsilon; the divergences are rounded up. Mironov (arXiv 1702.07476,
    proposition 6), so written that nothing cancels but at orders where epsilon^2 / 2 times the
    order, of any mechanism of this epsilon (Bun and Steinke, 2016, proposition 1.4), is as good.
    """
    weights = (ORDERS - 1) / (2 * ORDERS - 1)
    saved = np.log1p(weights * np.expm1(-(2 * ORDERS - 1) * epsilon)) / (ORDERS - 1)
    exact: Doubles = np.minimum(epsilon + saved + ROOM * epsilon, ORDERS * (epsilon * epsilon / 2))
    return exact


def _known(relation: Relation) -> Relation:
    if relation not in ("add_remove", "replace"):
        raise ValueError(f"relation must be add_remove or replace, not {relation!r}")
    return relation


def _setting(settings: Mapping[str, int | float | str], name: str) -> Any:
    value = settings.get(name)
    kind, what = (int, "whole number") if name == "depth" else (int | float, "number")
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ValueError(f"{name} must be a {what}, not {value!r}")
    return value
