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
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
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
#: Draws whose bets' ratios float64 can multiply: each is below 2^30.
_FACTORS = 32
#: Bets that are worked out at a time: so many that a core's cache holds them.
_CACHED = 1 << 13
#: Draws less probable than this are taken for no evidence: their intervals are too short for
#: float64.
_LEAST = 2.0**-30


class _Intervals(NamedTuple):
    """Draws as bets see them: ends of intervals [3, ...], inverse lengths or 0, and ids, [...]."""

    low: Doubles
    high: Doubles
    inverse: Doubles
    token: Doubles

    @classmethod
    def of(cls, draws: Draws) -> _Intervals:
        """Return the intervals of some draws in a row."""
        table = np.array(draws, dtype=np.float64).reshape(-1, 5).T
        chance = table[4]
        inverse = np.where(chance >= _LEAST, 1 / np.maximum(chance, _LEAST), 0.0)
        return cls(table[1:4], table[1:4] + chance, inverse, table[0])

    @classmethod
    def none(cls, *shape: int) -> _Intervals:
        """Return places without a draw."""
        return cls(
            np.zeros((3, *shape)), np.ones((3, *shape)), np.zeros(shape), np.full(shape, -1.0)
        )

    def at(self, place: slice) -> _Intervals:
        """Return some places along the last axis."""
        return _Intervals(*(part[..., place] for part in self))

    def then(self, other: _Intervals) -> _Intervals:
        """Return this row of draws followed by another."""
        low, high, inverse, token = (
            np.concatenate(pair, axis=-1) for pair in zip(self, other, strict=True)
        )
        return _Intervals(low, high, inverse, token)


class _Evidence:
    """Log of what bets have made, for hypotheses: that all units are dependent, and that some are.

    A unit is what one bet is about: a text, or a stretch of one.
    """

    def __init__(self, hypotheses: Sequence[Finding]) -> None:
        self.hypotheses, self.units = tuple(hypotheses), 0
        number = len(hypotheses)
        self.every, self.some = np.zeros(number), np.zeros(number)
        self.largest, self.batch = np.full(number, -np.inf), np.zeros(number, dtype=np.int64)

    def take(self, found: Doubles, batch: int, stake: float = 1.0) -> None:
        """Take in a unit's log-ratios [hypotheses].

        The hypothesis about all units stakes this part of what it has.
        """
        self.units += 1
        self.every += _staked(found, stake)
        # Of the first n units 1 in n + 1 is never staked, so that honest ones cost log(n + 1) in
        # all.
        self.some += _staked(found, 1 / (self.units + 1))
        better = found > self.largest
        self.largest[better], self.batch[better] = found[better], batch


def _staked(found: Doubles, stake: float) -> Doubles:
    """Log of 1 - stake + stake * exp(found)."""
    if stake == 1.0:
        return found
    return np.asarray(np.logaddexp(math.log1p(-stake), found + math.log(stake)))


@dataclass(frozen=True)
class Dependence:
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


class IndependenceTest(Evidence):
    """The evidence of a run's batches, in ascending order.

    Memory does not grow with the run.
    """

    partial = True

    def __init__(self, batches: int, longest: int) -> None:
        """`batches`: how many the run declares; `longest`: the most tokens of a text."""
        self.draws = self.texts = 0
        self._informative = 0.0
        self._across = _strata(batches)
        self._along = _strata(longest, at_most=longest)
        self._kept = _Intervals.none(PLACES, TEXTS)
        self._before = _Intervals.none(0)
        self._filled = {strata: np.zeros((len(ORDERS), PLACES, strata)) for strata in self._across}
        self._same_places = _Evidence([_in_view("randomness.earlier-text", view) for view in VIEWS])
        self._at_distance = _Evidence(
            [_in_view("randomness.some-way-before", view) for view in VIEWS]
        )
        self._even_across = _Evidence(
            [_in_order("randomness.even-texts", n, order) for n in self._across for order in ORDERS]
        )
        self._even_along = _Evidence(
            [_in_order("randomness.even-draws", n, order) for n in self._along for order in ORDERS]
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
                self._take_text(batch, _Intervals.of(text))
            first += length

    def _take_text(self, batch: int, text: _Intervals) -> None:
        number = len(text.token)
        self.draws += number
        self._informative += float(np.log((1 + text.inverse) / 2).sum())
        beginning = text.at(slice(PLACES))
        if self.texts:
            self._same_places.take(self._bets_on_texts(beginning), batch, stake=0.5)
        self._keep(beginning)
        for first in range(0, number, STRETCH):
            stretch = text.at(slice(first, first + STRETCH))
            self._at_distance.take(self._bets_on_distances(stretch), batch, stake=0.5)
        self._even_across.take(self._bets_across(beginning), batch)
        self._even_along.take(self._bets_along(text), batch)
        self.texts += 1

    def _bets_on_texts(self, text: _Intervals) -> Doubles:
        """Return logs [views] of the mean bet on earlier texts: all draws are the same there.

        The mean is over texts, of products over places.
        """
        texts, places = min(self.texts, TEXTS), len(text.token)
        past = _Intervals(*(part[..., :places, :texts] for part in self._kept))
        return _averaged(_log_products(past, text))

    def _bets_on_distances(self, stretch: _Intervals) -> Doubles:
        """Return logs [views] of the mean bet on distances: all draws are those so far before.

        The mean is over distances, of products over draws.
        """
        # Fixed before the stretch is looked at, whose own length tells where its text ends.
        lags = min(LAGS, len(self._before.token) + STRETCH - 1)
        number, row = len(stretch.token), self._before.then(stretch)
        self._before = row.at(slice(-LAGS, None))
        row = (
            _Intervals.none(max(0, lags + number - len(row.token)))
            .then(row)
            .at(slice(-lags - number, -1))
        )
        windows = _Intervals(
            *(np.lib.stride_tricks.sliding_window_view(part, lags, axis=-1) for part in row)
        )
        return _averaged(_log_products(windows, stretch))

    def _keep(self, text: _Intervals) -> None:
        at, places = self.texts % TEXTS, len(text.token)
        for kept, part in zip(self._kept, text, strict=True):
            kept[..., :places, at] = part
        self._kept.inverse[places:, at], self._kept.token[places:, at] = 0.0, -1

    def _bets_across(self, text: _Intervals) -> Doubles:
        """Return [hypotheses] the bets that a draw avoids those of the last texts at its place."""
        found, places = [], len(text.token)
        for strata, filled in self._filled.items():
            if self.texts % strata == 0:
                filled[:] = 0.0
            shares = _shares(text, strata)
            found.append(_log_ratios(filled[:, :places], shares).sum(axis=-1))
            filled[:, :places] += shares
        return np.concatenate(found)

    def _bets_along(self, text: _Intervals) -> Doubles:
        """Return [hypotheses] the bets that a draw avoids the last ones of its text."""
        found = np.zeros((len(self._along), len(ORDERS)))
        for first in range(0, len(text.token), _MOST_STRATA):
            part = text.at(slice(first, first + _MOST_STRATA))
            number = len(part.token)
            for place, strata in enumerate(self._along):
                shares = np.zeros((len(ORDERS), -(-number // strata) * strata, strata))
                shares[:, :number] = _shares(part, strata)
                blocks = shares.reshape(len(ORDERS), -1, strata, strata)
                filled = np.cumsum(blocks, axis=2) - blocks
                ratios = _log_ratios(filled, blocks).reshape(len(ORDERS), -1)
                found[place] += ratios[:, :number].sum(axis=1)
        return found.ravel()

    def dependences(self) -> list[Dependence]:
        """List hypotheses, strongest first, that alarm for an honest run once in 1 / SHARE runs."""
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


def _log_products(past: _Intervals, now: _Intervals) -> Doubles:
    """Return [views, N] the logs of products, over draws, of idle + (1 - idle) * ratio.

    Each factor is an earlier draw's bet. The ratio of two intervals that the same u lies in is
    their intersection over the product of their lengths. Where there is no earlier draw, as behind
    a text's end, nothing is staked.

    Args:
        past: N earlier draws for each of the draws, [..., draws, N].
        now: the draws, [..., draws].
    """
    number = past.token.shape[-1]
    found = np.empty((len(VIEWS), number))
    each = max(1, _CACHED // len(now.token))
    for first in range(0, number, each):
        place = slice(first, first + each)
        for row, products in zip(found[:, place], _products(past.at(place), now), strict=True):
            row[:] = products
    return found


def _products(past: _Intervals, now: _Intervals) -> Iterator[Doubles]:
    """Yield the rows of `_log_products`."""
    now = _Intervals(*(part[..., None] for part in now))
    idle = np.where(past.token < 0, 1.0, 0.5)
    stake = (1.0 - idle) * now.inverse
    both = stake * past.inverse
    bets, begins = np.empty_like(both), np.empty_like(both)
    for order in range(len(ORDERS)):
        low, high = past.low[order], past.high[order]
        for below, above in ((low, high), (1.0 - high, 1.0 - low)):
            np.minimum(above, now.high[order], out=bets)
            np.maximum(below, now.low[order], out=begins)
            bets -= begins
            np.maximum(bets, 0.0, out=bets)
            bets *= both
            bets += idle
            yield _log_product(bets)
    yield _log_product(idle + stake * (past.token == now.token))


def _log_product(factors: Doubles) -> Doubles:
    """Return [N] logs of products of [draws, N] factors between 1/2 and 2^30."""
    parts = range(0, len(factors), _FACTORS)
    products = [factors[first : first + _FACTORS].prod(axis=0) for first in parts]
    return np.asarray(np.log(products).sum(axis=0))


def _averaged(logs: Doubles) -> Doubles:
    """Return [views] the log of the mean of exp(x) over all x of each row."""
    largest = logs.max(axis=-1)
    means = np.exp(logs - largest[:, None]).mean(axis=-1)
    logs_of_means: Doubles = largest + np.array([math.log(mean) for mean in means.tolist()])
    return logs_of_means


def _shares(text: _Intervals, strata: int) -> Doubles:
    """Return [3, T, strata] the share of each interval in each of the equal strata of [0, 1)."""
    edges = np.arange(strata) / strata
    shares, below = text.high[..., None] - edges, text.low[..., None] - edges
    for each in (shares, below):  # np.clip takes longer than what it calls
        np.maximum(each, 0.0, out=each)
        np.minimum(each, 1 / strata, out=each)
    shares -= below
    shares *= text.inverse[:, None]
    return np.asarray(shares)


def _log_ratios(filled: Doubles, shares: Doubles) -> Doubles:
    """Return log-ratios of bets on what is not filled, along the last axis of both."""
    free = np.maximum(1.0 - filled, _FLOOR)
    ratio = free.shape[-1] * (free * shares).sum(axis=-1) / free.sum(axis=-1)
    return np.asarray(np.log(_KEPT_BACK + (1 - _KEPT_BACK) * ratio))


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
