"""Were tokens drawn independently of each other?

A sampler that turns one uniform number u into a token gives away an interval in which u lies: the
probabilities of the tokens before the sampled one, and with it. Which tokens are before depends on
the sampler: by id, by ascending score (ours), or by descending score. Samplers that add noise to
every score, or divide by it (Gumbel-max, PyTorch's multinomial), have no u: there the same noise
shows in the same tokens.

Evidence is a bet: before a draw is looked at, some density of its u is laid down, made of what was
drawn before; the bet's ratio is that density's share of the interval over the interval's length.
Its expectation is 1 at most, whatever went before, so that products of bets, and averages of
products, exceed e^a with probability e^-a at most (Markov).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.draws import ORDERS, Doubles, Draw, Draws
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.registry import Outcome, RunCheck
from dpaudit.auditing.checks.sampling import SHARE, RunSampling
from dpaudit.auditing.checks.steps import BatchView, StepsView
from dpaudit.results import Finding, Place, Quantity, Value

#: In these places the same u may show: as it is and as 1 - u in each order; and as the same token.
VIEWS = (*(f"{how} by {order}" for order in ORDERS for how in ("u", "1 - u")), "the same tokens")
#: Each text is compared with so many texts before it, at the same places, of which it has so many.
TEXTS, PLACES = 1024, 64
#: Each stretch of so many draws of a text is compared with so many draws before it, at every
#: distance.
STRETCH, LAGS = 32, 1024
#: How many draws in a row may share out [0, 1) among them.
STRATA = (2, 4, 8, 16, 32, 64, 128, 256)
#: The largest number of strata that is tried where a run's own numbers name it.
_MOST_STRATA = 1024
#: What is left of a bet on a stratum that has had its draw, and the share of every such bet that is
#: kept back.
_FLOOR, _KEPT_BACK = 0.05, 0.02
#: Draws whose bets are worked out at a time: a core's cache holds them, with TEXTS or LAGS earlier
#: ones each, and float64 their products, since twice a bet is below 2^31.
_FACTORS = 16
#: Bets on strata that are worked out at a time: so many that a core's cache holds them.
_CACHED = 1 << 14
#: Texts that are taken in together, at most, and their draws if all are of the longest.
_TOGETHER, _DRAWS_TOGETHER = 32, 1 << 13
#: Draws less probable than this are taken for no evidence: their intervals are too short for
#: float64.
_LEAST = 2.0**-30
#: Ends of intervals that are farther apart differ by more than rounding.
_ROUNDING = 2.0**-50


class _Intervals(NamedTuple):
    """Draws as bets see them.

    Attributes:
        low, high: [6, ...] ends of the intervals of u and of 1 - u, in each order.
        inverse: [...] inverse lengths; 0 of draws that are no evidence.
        token: [...] ids; -inf if there is no draw.
        tied: [...] whether the descending order is no mirror image of the ascending one there, as
            equal scores make it.
    """

    low: Doubles
    high: Doubles
    inverse: Doubles
    token: Doubles
    tied: NDArray[np.bool_]

    @classmethod
    def of(cls, draws: Draws) -> _Intervals:
        """Return the intervals of some draws in a row."""
        table = np.array(draws, dtype=np.float64).reshape(-1, 5).T
        token, low, chance = table[0], table[1:4], table[4]
        high = low + chance
        inverse = np.where(chance >= _LEAST, 1 / np.maximum(chance, _LEAST), 0.0)
        views = (2 * len(ORDERS), len(token))
        return cls(
            np.stack([low, 1.0 - high], axis=1).reshape(views),
            np.stack([high, 1.0 - low], axis=1).reshape(views),
            inverse,
            token,
            np.abs(low[2] - (1.0 - high[1])) > _ROUNDING,
        )

    @classmethod
    def none(cls, *shape: int) -> _Intervals:
        """Return places without a draw."""
        views = (2 * len(ORDERS), *shape)
        return cls(
            np.zeros(views),
            np.ones(views),
            np.zeros(shape),
            np.full(shape, -np.inf),
            np.zeros(shape, dtype=np.bool_),
        )

    def at(self, *place: slice | int | NDArray[np.int64]) -> _Intervals:
        """Return some places along the last axes."""
        return _Intervals._make(part[..., *place] for part in self)

    def put(self, other: _Intervals, *place: slice | int) -> None:
        """Put other draws into some places along the last axes."""
        for part, others in zip(self, other, strict=True):
            part[..., *place] = others

    def then(self, other: _Intervals) -> _Intervals:
        """Return this row of draws followed by another."""
        return _Intervals._make(
            np.concatenate(pair, axis=-1) for pair in zip(self, other, strict=True)
        )

    def windows(self, width: int) -> _Intervals:
        """Return each `width` draws in a row, along a last axis."""
        return _Intervals._make(
            np.lib.stride_tricks.sliding_window_view(part, width, axis=-1) for part in self
        )


class _Strata:
    """The strata of [0, 1) at some places, and what is left of a bet on each.

    Several numbers of strata lie side by side.
    """

    def __init__(self, numbers: Sequence[int], places: int) -> None:
        self._numbers = np.array(numbers)
        self._starts = np.cumsum(self._numbers) - self._numbers
        self._low = np.concatenate([np.arange(number) / number for number in numbers])
        self._high = np.concatenate([np.arange(1, number + 1) / number for number in numbers])
        # By id and by ascending score, as long as the descending order is the mirror image of that.
        self._left = np.ones((places, 2, len(self._low)))

    def empty(self, at: int) -> None:
        """Forget earlier draws where so many have all had their stratum."""
        for number, start in zip(self._numbers.tolist(), self._starts.tolist(), strict=True):
            if at % number == 0:
                self._left[..., start : start + number] = 1.0

    def bets(self, draws: _Intervals) -> Doubles:
        """Return [k, numbers, orders] logs of bets that draws avoid strata that had one.

        Then they have these, too. There is one draw for each of the first k places.
        """
        if self._left.shape[1] == 2 and draws.tied.any():
            self._tell_orders_apart()
        orders = self._left.shape[1]
        low, high = (ends[: 2 * orders : 2].T[..., None] for ends in (draws.low, draws.high))
        inverse = draws.inverse[:, None, None]
        ratios = np.empty((len(inverse), orders, len(self._numbers)))
        each = max(1, _CACHED // self._left[0].size)
        for first in range(0, len(inverse), each):
            some = slice(first, min(first + each, len(inverse)))
            left = self._left[some]
            shares = np.minimum(high[some], self._high)
            shares -= np.maximum(low[some], self._low)
            np.maximum(shares, 0.0, out=shares)
            shares *= inverse[some]
            free = np.maximum(left, _FLOOR)
            totals = np.add.reduceat(free, self._starts, axis=-1)
            free *= shares
            np.divide(np.add.reduceat(free, self._starts, axis=-1), totals, out=ratios[some])
            left -= shares
        ratios *= self._numbers
        logs: Doubles = np.log(_KEPT_BACK + (1 - _KEPT_BACK) * ratios).swapaxes(1, 2)
        return logs if orders == len(ORDERS) else logs[..., [0, 1, 1]]

    def _tell_orders_apart(self) -> None:
        """Keep the descending order's strata from now on, too: so far, the ascending one's."""
        starts = np.repeat(self._starts, self._numbers)
        mirrored = starts + np.repeat(self._starts + self._numbers, self._numbers) - 1
        mirrored -= np.arange(len(self._low))
        self._left = np.concatenate([self._left, self._left[:, 1:, mirrored]], axis=1)


class _Evidence:
    """Log of what bets have made, for hypotheses: that all units are dependent, and that some are.

    A unit is what one bet is about: a text, or a stretch of one.
    """

    def __init__(self, hypotheses: Sequence[Finding]) -> None:
        self.hypotheses, self.units = tuple(hypotheses), 0
        number = len(hypotheses)
        self.every, self.some = np.zeros(number), np.zeros(number)
        self.largest, self.batch = np.full(number, -np.inf), np.zeros(number, dtype=np.int64)

    def take(self, found: Doubles, batches: NDArray[np.int64], stake: float = 1.0) -> None:
        """Take in log-ratios [units, hypotheses] of the next units, and the batch of each.

        The hypothesis about all units stakes this part of what it has.
        """
        if not len(found):
            return
        numbers = self.units + np.arange(1, len(found) + 1)
        self.units += len(found)
        self.every += (found if stake == 1.0 else _staked(found, stake)).sum(axis=0)
        # Of the first n units 1 in n + 1 is never staked, so that honest ones cost log(n + 1) in
        # all.
        self.some += _staked(found, 1 / (numbers[:, None] + 1)).sum(axis=0)
        first = found.argmax(axis=0)
        largest = found[first, np.arange(len(self.largest))]
        better = largest > self.largest
        self.largest[better], self.batch[better] = largest[better], batches[first[better]]


def _staked(found: Doubles, stake: float | Doubles) -> Doubles:
    """Log of 1 - stake + stake * exp(found)."""
    return np.asarray(np.logaddexp(np.log1p(-stake), found + np.log(stake)))


class Dependence(NamedTuple):
    """A hypothesis that explains the draws far better than independence does.

    Attributes:
        evidence: in nats.
        batch: the one that it explains best.
    """

    hypothesis: Finding
    evidence: float
    batch: int


class BatchDraws(BatchEvidence):
    """The draws of one batch, in order.

    Attributes:
        draws: [steps, 5] a row (`Draw`) for each of those steps whose aggregate is of numbers.
        lengths: how many tokens each of its texts has.
    """

    def __init__(self, batch: BatchView) -> None:
        self._blocks = [np.empty((0, len(Draw._fields)))]
        self.lengths = [len(span) for span in batch.record.spans]

    @override
    def look(self, view: StepsView) -> None:
        if view.draws is not None:
            self._blocks.append(view.draws)

    @cached_property
    def draws(self) -> Doubles:
        """The rows of all blocks."""
        return np.concatenate(self._blocks)


class _Texts:
    """Texts that are taken in together: their draws in a row, and how many each of them has."""

    def __init__(self, texts: Sequence[Draws]) -> None:
        self.row = _Intervals.of(np.concatenate(texts))
        self.lengths = np.array([len(text) for text in texts])
        self.starts = np.cumsum(self.lengths) - self.lengths

    def __iter__(self) -> Iterator[_Intervals]:
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield self.row.at(slice(start, start + length))


class IndependenceTest(Evidence):
    """The evidence of a run's batches, in ascending order.

    Bets on several texts are worked out together, always the same ones. Memory does not grow with
    the run.
    """

    partial = True

    def __init__(self, batches: int, longest: int) -> None:
        """`batches`: how many the run declares; `longest`: the most tokens of a text."""
        self.draws = self.texts = 0
        self._informative = 0.0
        self._waiting = list[tuple[int, Draws]]()
        self._together = max(1, min(_TOGETHER, _DRAWS_TOGETHER // longest))
        self._bet_on_texts = self._bet_on_draws = 0
        self._kept, self._before = _Intervals.none(PLACES, TEXTS), _Intervals.none(LAGS)
        across, along = _strata(batches), _strata(longest, at_most=longest)
        self._across, self._along = _Strata(across, PLACES), _Strata(along, self._together)
        self._same_places = _Evidence([_in_view("randomness.earlier-text", view) for view in VIEWS])
        self._at_distance = _Evidence(
            [_in_view("randomness.some-way-before", view) for view in VIEWS]
        )
        self._even_across = _Evidence(
            [_in_order("randomness.even-texts", n, order) for n in across for order in ORDERS]
        )
        self._even_along = _Evidence(
            [_in_order("randomness.even-draws", n, order) for n in along for order in ORDERS]
        )

    @override
    @classmethod
    def begin(cls, run: AuditedRun) -> Self:
        return cls(run.manifest.batches, run.manifest.decoding.max_tokens)

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence:
        return BatchDraws(batch)

    @override
    def merge(self, batch: int, found: BatchDraws) -> None:
        self.take(batch, found.draws, found.lengths)

    def take(self, batch: int, draws: Draws, lengths: Sequence[int]) -> None:
        """Take in one batch: its draws, and how many of them each of its texts has."""
        first = 0
        for length in lengths:
            if len(text := draws[first : first + length]):
                self.texts, self.draws = self.texts + 1, self.draws + len(text)
                self._waiting.append((batch, text))
                if len(self._waiting) == self._together:
                    self._bet()
            first += length

    def _bet(self) -> None:
        """Bet on the texts that wait."""
        if not self._waiting:
            return
        texts = _Texts([text for _, text in self._waiting])
        batches = np.array([batch for batch, _ in self._waiting])
        self._waiting.clear()
        self._informative += float(np.log((1 + texts.row.inverse) / 2).sum())
        on_texts = self._bets_on_texts(texts)
        self._same_places.take(on_texts, batches[len(batches) - len(on_texts) :], stake=0.5)
        stretches = batches.repeat(-(-texts.lengths // STRETCH))
        self._at_distance.take(self._bets_on_distances(texts), stretches, stake=0.5)
        self._even_across.take(self._bets_across(texts), batches)
        self._even_along.take(self._bets_along(texts), batches)
        self._bet_on_texts += len(batches)
        self._bet_on_draws += len(texts.row.token)

    def _bets_on_texts(self, texts: _Texts) -> Doubles:
        """Return logs [texts, views] of the mean bet on earlier texts: all draws are the same.

        The mean is over texts, of products over places. There is none on a run's first text.
        """
        found = list[Doubles]()
        for number, text in enumerate(texts, start=self._bet_on_texts):
            beginning = text.at(slice(PLACES))
            places, at = slice(len(beginning.token)), number % TEXTS
            if number:
                past = self._kept.at(places, slice(min(number, TEXTS)))
                found.append(_log_mean(past, beginning))
            self._kept.put(_Intervals.none(PLACES), slice(None), at)
            self._kept.put(beginning, places, at)
        return np.reshape(found, (-1, len(VIEWS)))

    def _bets_on_distances(self, texts: _Texts) -> Doubles:
        """Return logs [stretches, views] of the mean bet on distances: draws are those before.

        The mean is over distances, of products over draws.
        """
        row = self._before.then(texts.row)
        self._before, windows = row.at(slice(-LAGS, None)), row.at(slice(-1)).windows(LAGS)
        found = list[Doubles]()
        for start, length in zip(texts.starts.tolist(), texts.lengths.tolist(), strict=True):
            for first in range(start, start + length, STRETCH):
                stretch = slice(first, min(first + STRETCH, start + length))
                # Fixed before the stretch is looked at, whose own length tells where its text ends.
                lags = min(LAGS, self._bet_on_draws + first + STRETCH - 1)
                past = windows.at(stretch, slice(LAGS - lags, None))
                found.append(_log_mean(past, texts.row.at(stretch)))
        return np.array(found)

    def _bets_across(self, texts: _Texts) -> Doubles:
        """Return bets [texts, hypotheses] that a draw avoids the last texts' at its place."""
        found = list[Doubles]()
        for number, text in enumerate(texts, start=self._bet_on_texts):
            self._across.empty(number)
            found.append(self._across.bets(text.at(slice(PLACES))).sum(axis=0).ravel())
        return np.array(found)

    def _bets_along(self, texts: _Texts) -> Doubles:
        """Return bets [texts, hypotheses] that a draw avoids the last ones of its text."""
        found = np.zeros((len(texts.lengths), len(self._even_along.hypotheses)))
        longest_first = np.argsort(-texts.lengths, kind="stable")
        for place in range(texts.lengths.max()):
            some = longest_first[: np.count_nonzero(texts.lengths > place)]
            self._along.empty(place % _MOST_STRATA)
            draws = texts.row.at(texts.starts[some] + place)
            found[some] += self._along.bets(draws).reshape(len(some), -1)
        return found

    @override
    def end(self) -> None:
        self._bet()
        del self._kept, self._before, self._across, self._along

    def dependences(self) -> list[Dependence]:
        """List hypotheses, strongest first, that alarm for an honest run once in 1 / SHARE runs."""
        self._bet()
        found = [
            Dependence(hypothesis, evidence, int(each.batch[place]))
            for each in self._gathered()
            for sums in (each.every, each.some)
            for place, (hypothesis, evidence) in enumerate(
                zip(each.hypotheses, sums.tolist(), strict=True)
            )
        ]
        return sorted(
            (d for d in found if d.evidence >= self.threshold), key=lambda found: -found.evidence
        )

    @property
    def threshold(self) -> float:
        """The evidence that is an alarm, in nats."""
        return math.log(2 * sum(len(each.hypotheses) for each in self._gathered()) / SHARE)

    def _gathered(self) -> Iterator[_Evidence]:
        yield from (self._same_places, self._at_distance, self._even_across, self._even_along)

    @property
    def repeated(self) -> float:
        """The draws that one text must repeat from another, of a like law, for an alarm."""
        self._bet()
        needed = self.threshold + 2 * math.log(max(2, min(self.texts, TEXTS)))
        return needed * self.draws / self._informative if self._informative > 0 else math.inf


def _in_view(code: str, view: str) -> Finding:
    return Finding(code=code, values={"view": view})


def _in_order(code: str, number: int, order: str) -> Finding:
    return Finding(code=code, values={"number": number, "order": order})


def _strata(number: int, at_most: float = math.inf) -> tuple[int, ...]:
    """Return the STRATA that go into `at_most` draws, and one for each of `number` draws."""
    own = [number] if 2 <= number <= _MOST_STRATA else []
    return tuple(sorted({2, *own, *(strata for strata in STRATA if strata <= at_most)}))


def _log_mean(past: _Intervals, now: _Intervals) -> Doubles:
    """Return [views] the log of the mean, over N, of products, over draws, of earlier draws' bets.

    A bet is (1 + ratio) / 2. The ratio of two intervals that the same u lies in is their
    intersection over the product of their lengths. Where there is no earlier draw, as behind a
    text's end, nothing is staked. The halves come last: powers of 2 round nothing.

    Args:
        past: N earlier draws for each of the draws, [..., draws, N].
        now: the draws, [..., draws].
    """
    products, logs = np.ones((len(VIEWS), past.token.shape[-1])), np.zeros(len(VIEWS))
    # Both orders by score say the same, where they are mirror images of each other.
    views = [0, 1, 2, 3, *((4, 5) if past.tied.any() or now.tied.any() else ()), -1]
    for first in range(0, len(now.token), _FACTORS):
        some = slice(first, first + _FACTORS)
        there = past.at(some, slice(None))
        for view, each in zip(views, _bets(there, now.at(some), views[:-1]), strict=True):
            products[view] *= each.prod(axis=0)
        if 4 not in views:
            products[4:6] = products[2:4]
        staked = there.token > -np.inf
        number = len(staked) if staked.all() else np.count_nonzero(staked, axis=0)
        products *= np.ldexp(1.0, -number)
        # What float64 then rounds to 0 is nothing beside the largest, which is 1.
        largest = products.max(axis=-1)
        products /= largest[:, None]
        logs += np.log(largest)
    means: Doubles = products.mean(axis=-1)
    return logs + np.log(means)


def _bets(past: _Intervals, now: _Intervals, of_u: Sequence[int]) -> Iterator[Doubles]:
    """Yield twice the bets of `_log_mean` [draws, N] in these views, and for the same tokens.

    Each is in the place of the one before. They are 1 where there is no earlier draw.
    """
    now = _Intervals._make(part[..., None] for part in now)
    both = now.inverse * past.inverse
    bets, begins = np.empty_like(both), np.empty_like(both)
    for view in of_u:
        # The same u, of this draw; of an earlier one it or its mirror image.
        own = view - view % 2
        np.minimum(past.high[view], now.high[own], out=bets)
        np.maximum(past.low[view], now.low[own], out=begins)
        bets -= begins
        np.maximum(bets, 0.0, out=bets)
        bets *= both
        bets += 1.0
        yield bets
    bets[:] = 1.0
    np.copyto(bets, 1.0 + now.inverse, where=past.token == now.token)
    yield bets


@RunCheck(id="sampling.independence", gathers=(IndependenceTest, RunSampling))
def tokens_look_independent(run: AuditedRun) -> Outcome:
    """Compare draws' random numbers with earlier ones: equal, mirrored, or too evenly spread."""
    test = run[IndependenceTest]
    values: dict[str, Value] = {"rate": SHARE}
    if not test.draws:
        return Outcome("skip", "unread", values)
    found, otherwise = test.dependences(), run[RunSampling].alarms()
    if found and otherwise and otherwise[0].evidence >= found[0].evidence:
        return Outcome("skip", "other-distribution", values)
    if found:
        values |= {
            "hypothesis": found[0].hypothesis,
            "evidence": Quantity(value=found[0].evidence, unit="nats"),
            "batch": Place(batch=found[0].batch),
        }
        return Outcome("fail", "dependent", values)
    values |= {"draws": test.draws, "texts": test.texts}
    if not math.isfinite(test.repeated):
        return Outcome("pass", "uninformative", values)
    return Outcome("pass", "independent", values | {"repeated": math.ceil(test.repeated)})
