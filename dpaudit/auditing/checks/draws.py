"""Draws: their declared distributions, and the places of the random numbers behind their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms import Spans

Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]

NO_TOKENS: Ids = np.zeros(0, dtype=np.int64)
#: Probability that penalties are taken to leave alone beside what they do: it lowers their
#: likelihood, which is safe.
_REST = 2.0**-40
#: How the samplers that are told apart order the tokens.
ORDERS = ("id", "ascending score", "descending score")


@dataclass(frozen=True)
class DrawnSteps:
    """Some steps: their tokens, and the declared distributions in levels of equal scores.

    Columns, levels and earlier tokens of k steps lie one behind another. What is said of a step is
    the same bits whichever steps are looked at with it.

    Attributes:
        aggregate: [columns] what was sampled from.
        spans: which columns each step has.
        temperature: the declared one.
        tokens: [k] columns of the sampled tokens.
        before: [m] columns, without repetition, of the tokens that the text has before each step,
            ascending.
        times: [m] how often it has each.
        earlier: which of these each step has; none of them perhaps.
        levels: which levels each step has.
        values: [L] scores of the levels, each step's highest first, in logit units.
        counts: [L] how many tokens each level has.
        level: [k] that of the sampled token.
    """

    aggregate: NDArray[np.floating]
    spans: Spans
    temperature: float
    tokens: NDArray[np.intp]
    before: Ids
    times: Ids
    earlier: Spans
    levels: Spans
    values: Doubles
    counts: Doubles
    level: NDArray[np.intp]

    @classmethod
    def of(
        cls,
        aggregate: NDArray[np.floating],
        spans: Spans,
        temperature: float,
        tokens: NDArray[np.intp],
        before: Ids,
    ) -> DrawnSteps | None:
        """Make steps whose texts have tokens in the columns `before`, each as often as it is there.

        None where a score is no number.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            ends = (
                np.stack([spans.smallest(aggregate), spans.largest(aggregate)]).astype(np.float64)
                / temperature
            )
        if not np.isfinite(ends).all():  # as they are where any value is not
            return None
        levels, values, counts = _levels(aggregate, spans)
        higher = levels.counts(values > levels.spread(aggregate[tokens]))
        seen, times = np.unique(before, return_counts=True)
        earlier = np.diff(np.searchsorted(seen, spans.ends), prepend=0)
        return cls(
            aggregate,
            spans,
            temperature,
            tokens,
            seen,
            times,
            Spans(earlier),
            levels,
            values.astype(np.float64),
            counts,
            levels.starts + higher,
        )

    @classmethod
    def alone(
        cls,
        aggregate: NDArray[np.floating],
        temperature: float,
        token: int,
        before: Ids = NO_TOKENS,
    ) -> DrawnSteps | None:
        """Return one step, with scores [S], or None where one is no number."""
        return cls.of(aggregate, Spans([len(aggregate)]), temperature, np.array([token]), before)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def below(self) -> Doubles:
        """[L] scores over the temperature, less the step's highest: in nats."""
        highest = self.levels.spread(self.values[self.levels.starts])
        return np.asarray((self.values - highest) / self.temperature)

    @cached_property
    def weights(self) -> Doubles:
        """[L] exp(below) * counts."""
        return np.asarray(np.exp(self.below) * self.counts)

    @cached_property
    def totals(self) -> Doubles:
        """[k] sums of the weights."""
        return np.asarray(self.levels.sums(self.weights), np.float64)

    @cached_property
    def log_totals(self) -> Doubles:
        """[k] their logarithms."""
        return np.asarray(np.log(self.totals))

    @cached_property
    def each(self) -> Doubles:
        """[L] probability of one token of each level."""
        return np.asarray(self.weights / self.counts / self.levels.spread(self.totals))

    @cached_property
    def ends(self) -> Doubles:
        """[L] the number of the step's tokens in a level or above it."""
        return np.asarray(self._all_ends - self.levels.spread(self.spans.starts))

    @cached_property
    def mass(self) -> Doubles:
        """[L] probability of a level and of all of the step's above it."""
        return self.levels.totals(self.each * self.counts)

    @cached_property
    def places(self) -> NDArray[np.intp]:
        """[k] the number of tokens of the sampled one's level with a smaller index."""
        ahead = self.aggregate[self._ahead] == self._to_token.spread(self.aggregate[self.tokens])
        return self._to_token.counts(ahead)

    @cached_property
    def ranks(self) -> Doubles:
        """[k] the number of tokens before the sampled one, by probability and then by index."""
        return np.asarray(self.ends[self.level] - self.counts[self.level] + self.places)

    @cached_property
    def masses_before(self) -> Doubles:
        """[k] the probability of these tokens."""
        at = self.level - ((self.places == 0) & (self.level > self.levels.starts))
        found = np.minimum(1.0, self.mass[at] - (self.ends[at] - self.ranks) * self.each[at])
        return np.where(self.ranks > 0, found, 0.0)

    @cached_property
    def seen(self) -> tuple[Doubles, Doubles]:
        """[m] probabilities of the tokens before, and [k] that of all others: not too small."""
        highest = self.spans.largest(self.aggregate).astype(np.float64)
        scores = self.aggregate[self.before].astype(np.float64) - self.earlier.spread(highest)
        found = np.exp(scores / self.temperature - self.earlier.spread(self.log_totals))
        return found, np.maximum(1.0 - self.earlier.sums(found), 0.0) + _REST

    def mass_of(self, tokens: Doubles) -> Doubles:
        """Return [settings, k] the total probability of each step's most probable tokens.

        `tokens` says how many of them, from 1 to S.
        """
        # Whole numbers, so that sums over all steps are exact.
        at = np.searchsorted(self._all_ends, tokens + self.spans.starts)
        return np.asarray(np.minimum(1.0, self.mass[at] - (self.ends[at] - tokens) * self.each[at]))

    @cached_property
    def _all_ends(self) -> Doubles:
        """[L] the number of tokens in a level, or in any before it, of all steps."""
        return np.cumsum(self.counts)

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """The ends of each token's interval of (0, 1], as dpaudit samples: the least likely first.

        Of equal ones the first is that of the smallest index. Right to a relative error of about S
        * 2^-53, however small it is. Scores are scaled as the sampler scales them, operation by
        operation.
        """
        found = []
        for span, level, place in zip(
            self.levels.slices, self.level.tolist(), self.places.tolist(), strict=True
        ):
            scores = self.values[span][::-1] / self.temperature
            weights = np.exp(scores - scores[-1])
            line = np.cumsum(weights * self.counts[span][::-1])
            at = span.stop - 1 - level
            low = (float(line[at - 1]) if at else 0.0) + place * float(weights[at])
            found.append((low / float(line[-1]), (low + float(weights[at])) / float(line[-1])))
        return found

    def draws(self, ids: NDArray[np.integer]) -> Doubles:
        """Return [k, 5] each step's `Draw`; `ids` are the sampled tokens'."""
        chances = self.each[self.level]
        highest = self.spans.largest(self.aggregate).astype(np.float64)
        scores = self.aggregate[self._ahead].astype(np.float64)
        scores -= self._to_token.spread(highest)
        scores /= self.temperature
        by_id = self._to_token.sums(np.exp(scores, out=scores)) * np.exp(-self.log_totals)
        own, first = self.places * chances, self.level == self.levels.starts
        above = np.where(first, 0.0, self.mass[self.level - 1])
        return np.stack(
            [ids, by_id, 1.0 - self.mass[self.level] + own, above + own, chances], axis=-1
        )

    @cached_property
    def _to_token(self) -> Spans:
        """Each step's tokens with a smaller index than the sampled one's."""
        return Spans(self.tokens - self.spans.starts)

    @cached_property
    def _ahead(self) -> NDArray[np.intp]:
        """The columns of these."""
        before = self._to_token
        shifts = before.spread(self.spans.starts - before.starts)
        columns: NDArray[np.intp] = np.arange(int(before.ends[-1])) + shifts
        return columns


def _levels(
    aggregate: NDArray[np.floating], spans: Spans
) -> tuple[Spans, NDArray[np.floating], Doubles]:
    """Return the steps' levels, their values [L], highest first, and each one's tokens [L].

    Most of a large vocabulary lies at the floor of the clip, so only the others are sorted.
    """
    floors = spans.smallest(aggregate)
    higher = aggregate > spans.spread(floors)
    above = Spans(spans.counts(higher))
    # Negated, so that the highest come first.
    row, with_floor = -aggregate.take(np.flatnonzero(higher)), Spans(above.lengths + 1)
    row = above.unpadded(np.sort(above.padded(row, np.inf), axis=-1))
    row = np.insert(row, above.ends, -floors)
    firsts = np.concatenate([[True], row[1:] != row[:-1]])
    firsts[with_floor.starts] = True
    places = np.flatnonzero(firsts)
    counts = np.diff(places, append=len(row)).astype(np.float64)
    levels = Spans(with_floor.counts(firsts))
    counts[levels.ends - 1] = spans.lengths - above.lengths
    return levels, -row[places], counts


class Draw(NamedTuple):
    """A draw: its token's id, where its u's interval begins in each of ORDERS, and its length."""

    token: float
    by_id: float
    ascending: float
    descending: float
    chance: float


#: Draws, one a row.
Draws: TypeAlias = Sequence[Draw] | Doubles
