"""A step's draw: its declared distribution, and the place of the random number behind its token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]

NO_TOKENS: Ids = np.zeros(0, dtype=np.int64)
#: Probability that penalties are taken to leave alone beside what they do: it lowers their likelihood, which is safe.
_REST = 2.0**-40
#: How the samplers that are told apart order the tokens.
ORDERS = ("id", "ascending score", "descending score")


@dataclass(frozen=True)
class DrawnStep:
    """One step: its token, and the declared distribution over its tokens in levels of equal scores.

    Attributes:
        aggregate: [S] what was sampled from.
        temperature: the declared one.
        token: index of the sampled token along S.
        before: [m] the indices, without repetition, of the tokens that the text has before this step.
        times: [m] how often it has each.
        values: [L] scores of the levels, the highest first, in logit units.
        below: [L] the same over the temperature, less the highest: in nats.
        counts: [L] how many tokens each level has.
        level: that of the sampled token.
    """

    aggregate: NDArray[np.floating]
    temperature: float
    token: int
    before: Ids
    times: Ids
    values: Doubles
    below: Doubles
    counts: Doubles
    level: int

    @classmethod
    def of(
        cls, aggregate: NDArray[np.floating], temperature: float, token: int, before: Ids = NO_TOKENS
    ) -> DrawnStep | None:
        """Make a step of a text with the tokens `before`, indices along S.

        Return None where a score is no number.
        """
        lowest, highest = (float(end) / temperature for end in (aggregate.min(), aggregate.max()))
        if not (math.isfinite(lowest) and math.isfinite(highest)):  # as they are where any value is not
            return None
        values, counts = _levels(aggregate)
        level = len(values) - 1 - int(np.searchsorted(values[::-1], aggregate[token]))
        scores = values.astype(np.float64)
        seen, times = np.unique(before, return_counts=True)
        return cls(
            aggregate, temperature, token, seen, times, scores, (scores - scores[0]) / temperature, counts, level
        )

    @cached_property
    def weights(self) -> Doubles:
        """[L] exp(below) * counts."""
        return np.asarray(np.exp(self.below) * self.counts)

    @cached_property
    def log_total(self) -> float:
        """Logarithm of the sum of the weights."""
        return math.log(float(self.weights.sum()))

    @cached_property
    def each(self) -> Doubles:
        """[L] probability of one token of each level."""
        return self.weights / self.counts / float(self.weights.sum())

    @cached_property
    def ends(self) -> Doubles:
        """[L] how many tokens lie in a level or above it."""
        return np.cumsum(self.counts)

    @cached_property
    def mass(self) -> Doubles:
        """[L] probability of a level and of all above it."""
        return np.cumsum(self.each * self.counts)

    @cached_property
    def place(self) -> int:
        """The number of tokens of the sampled one's level with a smaller index."""
        return int(np.count_nonzero(self.aggregate[: self.token] == self.aggregate[self.token]))

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The ends of the token's interval of (0, 1], as dpaudit samples: the least likely first.

        Of equal ones the first is that of the smallest index. Right to a relative error of about S * 2^-53, however
        small it is. Scores are scaled as the sampler scales them, operation by operation.
        """
        scores = self.values[::-1] / self.temperature
        weights = np.exp(scores - scores[-1])
        line = np.cumsum(weights * self.counts[::-1])
        at = len(line) - 1 - self.level
        low = (float(line[at - 1]) if at else 0.0) + self.place * float(weights[at])
        return low / float(line[-1]), (low + float(weights[at])) / float(line[-1])

    @cached_property
    def rank(self) -> int:
        """The number of tokens before the sampled one, by probability and then by index."""
        return int(self.counts[: self.level].sum()) + self.place

    @cached_property
    def seen(self) -> tuple[Doubles, float]:
        """The probabilities [m] of the tokens before, and that of all others.

        The latter is kept from being too small.
        """
        scores = (self.aggregate[self.before].astype(np.float64) - float(self.aggregate.max())) / self.temperature
        found = np.exp(scores - self.log_total)
        return found, max(1.0 - float(found.sum()), 0.0) + _REST

    def mass_of(self, tokens: Doubles) -> Doubles:
        """Return the probability of the `tokens` most probable ones, from 1 to S."""
        at = np.searchsorted(self.ends, tokens)
        return np.asarray(np.minimum(1.0, self.mass[at] - (self.ends[at] - tokens) * self.each[at]))


def _levels(aggregate: NDArray[np.floating]) -> tuple[NDArray[np.floating], Doubles]:
    """Return an aggregate's [S] distinct values, highest first, and each one's tokens: both [L].

    Most of a large vocabulary lies at the floor of the clip, so only the others are sorted.
    """
    floor = aggregate.min()
    above = np.sort(aggregate.take(np.flatnonzero(aggregate > floor)))
    firsts = np.flatnonzero(np.concatenate([[True], above[1:] != above[:-1]])) if len(above) else np.arange(0)
    counts = np.diff(firsts, append=len(above))
    values = np.concatenate([[floor], above[firsts]])
    return values[::-1], np.concatenate([[len(aggregate) - len(above)], counts])[::-1].astype(np.float64)


class Draw(NamedTuple):
    """A draw: its token's id, where its u's interval begins in each of ORDERS, and its length."""

    token: int
    by_id: float
    ascending: float
    descending: float
    chance: float

    @classmethod
    def of(cls, step: DrawnStep, token: int) -> Draw:
        """Return a step's draw; `token` is the sampled one's id."""
        chance = float(step.each[step.level])
        highest = float(step.aggregate.max())
        earlier = step.aggregate[: step.token].astype(np.float64)
        earlier -= highest
        earlier /= step.temperature
        by_id = float(np.exp(earlier, out=earlier).sum()) * math.exp(-step.log_total)
        above = float(step.mass[step.level - 1]) if step.level else 0.0
        lower = 1.0 - float(step.mass[step.level])
        own = step.place * chance
        return cls(token, by_id, lower + own, above + own, chance)
