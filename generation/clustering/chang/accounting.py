"""What the tree and its sums cost, and how much noise a budget asks for.

A record lies in one node of each level, for its path is a hash of that record alone. What is let through is a noisy
count of every node, level by level, and then a noisy sum of the records of every leaf. Within a level, and among the
leaves, nodes have no record in common; levels and sums compose one after the other, each knowing those before it.

* A record that comes or goes moves one count by 1 on each of the depth + 1 levels, and one sum by the radius.
* A record that is exchanged for one of another path: up to the level where the paths part, no count moves, and what is
  let through has the same law for both neighbours. If the tree goes on to there, two counts move by 1 each on every
  further level, of which there are `depth` at most, and the two lie in two leaves: both sums move by the radius,
  together by sqrt(2) radii. If it does not, both lie in one leaf, whose sum moves by two radii, and no count ever
  moves. As the law up to there is the same, delta(epsilon) is a mean of these two cases', hence at most the larger.

Each case is a composition of Laplace and Gaussian mechanisms of fixed scales, whatever came before. So its delta is at
most that of their fixed composition (Zhu, Dong, Wang: Optimal Accounting of Differential Privacy via Characteristic
Function, on dominating pairs), which dp-accounting bounds from above by privacy loss distributions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, LaplaceDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy import optimize  # type: ignore[import-untyped]

from dpaudit.runs.manifest import Relation

#: Deltas of no use beyond these: rounding in the accountant's Fourier transforms stays below a thousandth of the least.
LEAST_DELTA, MOST_DELTA = 1e-10, 0.1
#: Set aside for that rounding.
DELTA_ROOM = 1e-13
#: Rounding of everything else.
ROOM = 2.0**-40
#: Steps of the accountant's grid of losses per epsilon.
STEPS = 1 << 12
#: How closely noise is calibrated, relatively.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Change:
    """What one record can move at worst: so many counts by 1 each, and sums by a distance, in radii."""

    counts: int
    distance: float

    def rho(self, scales: Scales) -> float:
        """Of zero-concentrated DP, to which pure epsilon e is e^2 / 2 (Bun and Steinke, 2016)."""
        return self.counts / (2 * scales.count**2) + self.distance**2 / (2 * scales.total**2)


def changes(relation: Relation, depth: int) -> tuple[Change, ...]:
    """The cases of which one holds: see above."""
    if relation == "add_remove":
        return (Change(depth + 1, 1.0),)
    return Change(2 * depth, math.sqrt(2)), Change(0, 2.0)


@dataclass(frozen=True)
class Scales:
    """How much noise there is.

    Attributes:
        count: scale of the Laplace noise on every count, in records.
        total: standard deviation of the Gaussian noise on every component of a sum, in radii.
    """

    count: float
    total: float

    def epsilon(self, relation: Relation, depth: int, delta: float) -> float:
        """An upper bound of epsilon at this delta, in nats.

        Args:
            relation: of records.
            depth: of the tree: the number of levels below the root.
            delta: in [LEAST_DELTA, MOST_DELTA].
        """
        return max(self._epsilon(change, delta) for change in changes(relation, depth)) * (1 + ROOM)

    def _epsilon(self, change: Change, delta: float) -> float:
        # Gives the grid its size.
        rough = _zcdp_epsilon(change.rho(self), delta)
        accountant = PLDAccountant(value_discretization_interval=rough / STEPS)
        return float(accountant.compose(self._event(change)).get_epsilon(delta - DELTA_ROOM))

    def _event(self, change: Change) -> DpEvent:
        sums = GaussianDpEvent(self.total / change.distance * (1 - ROOM))
        counts = SelfComposedDpEvent(LaplaceDpEvent(self.count * (1 - ROOM)), change.counts)
        return ComposedDpEvent([sums, counts] if change.counts else [sums])


def calibrated(epsilon: float, delta: float, relation: Relation, depth: int, counts_share: float) -> Scales:
    """The least noise that keeps within a budget, as `Scales.epsilon` has it.

    Args:
        epsilon: in nats.
        delta: in [LEAST_DELTA, MOST_DELTA].
        relation: for which the budget holds.
        depth: of the tree.
        counts_share: of the budget, as zero-concentrated DP measures it under add_remove, that goes into the counts,
            evenly over the levels. The rest goes into the sums.
    """

    def scales(noise: float) -> Scales:
        return Scales(noise * math.sqrt((depth + 1) / counts_share), noise / math.sqrt(1 - counts_share))

    def excess(log_noise: float) -> float:
        spent = scales(math.exp(log_noise)).epsilon(relation, depth, delta)
        return math.log(spent / epsilon) if spent else -math.inf

    most = max(change.rho(scales(1.0)) for change in changes(relation, depth))
    high = math.log(most / _zcdp_rho(epsilon, delta)) / 2
    while excess(high) > 0:
        high += 1
    low = high - 1 / 2
    while excess(low) <= 0:
        low, high = low - 1 / 2, low
    # Nearly a straight line, so this takes few steps.
    noise = optimize.brentq(lambda log_noise: max(excess(log_noise), -1.0), low, high, xtol=TOLERANCE)
    while excess(noise) > 0:
        noise += TOLERANCE
    return scales(math.exp(noise))


def _zcdp_epsilon(rho: float, delta: float) -> float:
    """Of rho-zCDP (Bun and Steinke, 2016, proposition 1.3)."""
    return rho + 2 * math.sqrt(rho * -math.log(delta))


def _zcdp_rho(epsilon: float, delta: float) -> float:
    """The other way."""
    root = math.sqrt(-math.log(delta))
    return (epsilon / (math.sqrt(root**2 + epsilon) + root)) ** 2
