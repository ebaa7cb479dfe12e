"""Can tokens or noise be told beforehand by whoever tries a seed?

A seed makes a stream of numbers, and a sampler that turns one number into each token takes a
token's number from a known place of the stream. Whether all numbers lie where the tokens'
probabilities put them is a bet that is laid down before a draw is looked at: with an honest sampler
the product of its ratios exceeds e^a with probability e^-a at most (Markov). Noise that is on
record is its number: it is looked for anywhere in the stream.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.draws import ORDERS, Doubles, Draw, Draws
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.noise import MOST_NOISE, NoiseEvidence
from dpaudit.auditing.checks.randomness import BatchDraws
from dpaudit.auditing.checks.registry import Outcome, RunCheck
from dpaudit.auditing.checks.steps import BatchView, StepView
from dpaudit.auditing.checks.subsets import contexts_in_draw
from dpaudit.results import Finding, Value
from dpaudit.runs.known_keys import KNOWN_SEEDS
from dpaudit.runs.manifest import Sampling
from dpaudit.runs.seeded import (
    doubles_of,
    legacy_doubles,
    modern_doubles,
    modern_words,
    python_doubles,
    seeded_legacy,
)

#: Of a run's draws, the first so many are held against each stream.
MOST_DRAWS = 4096
#: So many numbers of each stream are made, as many as the draws of a run need, and of so many
#: streams at a time that they have no more of them.
_STREAM_SIZES = (MOST_DRAWS // 16, MOST_DRAWS // 4, MOST_DRAWS)
_AT_A_TIME = 1 << 16
#: What is kept back of every bet: a number that rounding puts on the other side of an edge does not
#: end it.
_IDLE = 0.1
#: Draws less probable than this are taken for no evidence.
_LEAST = 2.0**-30
#: Probability of an alarm on an honest run.
FALSE_ALARMS = 1e-6
#: The one of the three below whose seed can be a list, and have children.
_MODERN = "numpy.random.default_rng"
#: Streams of numbers in [0, 1), [seeds, size], by the generator's name.
STREAMS: dict[str, Callable[[Sequence[int], int], Doubles]] = {
    "numpy.random.seed": legacy_doubles,
    _MODERN: modern_doubles,
    "random.seed": python_doubles,
}
#: Streams of normal noise of one seed, by the same names. Laplace noise of numpy has the quantiles
#: that the streams above hold.
NORMALS: dict[str, Callable[[int, int], Sequence[float] | Doubles]] = {
    "numpy.random.seed": lambda seed, size: seeded_legacy(seed).standard_normal(size),
    _MODERN: lambda seed, size: np.random.default_rng(abs(seed)).standard_normal(size),
    "random.seed": lambda seed, size: [
        each.gauss()
        for each in [random.Random(seed)]  # noqa: S311
        for _ in range(size)
    ],
}
#: The first MOST_NOISE numbers of a run's noise are looked for. A stream has one of an honest
#: run's, to within what single precision moves a quantile by, with probability 2 * MOST_DRAWS *
#: _MOVED at most, and so many of them with less than FALSE_ALARMS, all streams together.
_NOISE_TOLD, _MOVED = 6, 1e-7
#: Where the numbers of a batch's draws come from. Of the last four, each of which has streams of
#: its own for a batch or a draw, the first MOST_SEEDED draws are looked at, in the first
#: MOST_BATCHES batches.
PLACES = (
    "seeds.one-batch-after-another",
    "seeds.again-in-each-batch",
    "seeds.plus-batch",
    "seeds.with-batch",
    "seeds.child-of-batch",
    "seeds.plus-draw",
)
MOST_SEEDED, MOST_BATCHES = 64, 16
Seed = tuple[str, int]
Drawn: TypeAlias = Literal["tokens", "coins"]
KNOWN: tuple[Seed, ...] = tuple((name, seed) for name in STREAMS for seed in KNOWN_SEEDS)


def _streams(size: int, seeds: tuple[Seed, ...]) -> Doubles:
    """Return [seeds, size] the first numbers that each seed gives."""
    return np.concatenate([STREAMS[name](each, size) for name, each in _by_name(seeds)])


# A process audits many small runs, and most of them are held against the same streams.
@lru_cache(maxsize=4)
def _short_streams(seeds: tuple[Seed, ...]) -> Doubles:
    return _streams(_STREAM_SIZES[0], seeds)


def _by_name(seeds: tuple[Seed, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each generator with its seeds, which stand together."""
    for name, each in groupby(seeds, itemgetter(0)):
        yield name, tuple(seed for _, seed in each)


@lru_cache(maxsize=2 * len(STREAMS))
def _next_seeds(name: str, seeds: tuple[int, ...]) -> tuple[NDArray[np.intp], Doubles]:
    """Return the first MOST_SEEDED numbers of seeds and of those after them.

    They are [n, MOST_SEEDED], n of them, and rows [seeds, MOST_SEEDED] of each seed plus 0, 1, ...
    """
    wanted, rows = _followers(seeds)
    return rows, STREAMS[name](wanted, MOST_SEEDED)


@lru_cache(maxsize=2)
def _followers(seeds: tuple[int, ...]) -> tuple[list[int], NDArray[np.intp]]:
    """Return seeds plus 0 to MOST_SEEDED - 1, once each, and where each is of these."""
    after = range(MOST_SEEDED)
    wanted = sorted({seed + number for seed in seeds for number in after})
    place = {seed: row for row, seed in enumerate(wanted)}
    return wanted, np.array([[place[seed + number] for number in after] for seed in seeds])


@lru_cache(maxsize=2)
def _lists_and_children(block: int, seeds: tuple[int, ...]) -> Doubles:
    """Return numbers of seeds in a list with a batch's number, and of their children by it.

    They are [2, MOST_BATCHES, seeds, MOST_SEEDED], of batches from `block` * MOST_BATCHES on.
    """
    batches = np.arange(block * MOST_BATCHES, (block + 1) * MOST_BATCHES, dtype=np.int64)
    seed, batch = np.abs(np.array(seeds, dtype=np.int64)), np.repeat(batches, len(seeds))
    zero, seed = np.zeros_like(batch), np.tile(seed, MOST_BATCHES)
    entropy = (np.stack([seed, batch], axis=1), np.stack([seed, zero, zero, zero, batch], axis=1))
    shape = (MOST_BATCHES, len(seeds), MOST_SEEDED)
    return np.array(
        [doubles_of(modern_words(each, MOST_SEEDED)).reshape(shape) for each in entropy]
    )


def _of_batch(batch: int, seeds: tuple[Seed, ...]) -> Doubles:
    """Return seeds' numbers [3, seeds, MOST_SEEDED] by the third to fifth of PLACES, or NaN.

    NaN is where a seed gives nothing.
    """
    found = []
    for name, each in _by_name(seeds):
        numbers = np.full((3, len(each), MOST_SEEDED), np.nan)
        if batch < MOST_SEEDED:
            rows, known = _next_seeds(name, each)
            numbers[0] = known[rows[:, batch]]
        else:
            numbers[0] = STREAMS[name]([seed + batch for seed in each], MOST_SEEDED)
        if name == _MODERN:
            block, place = divmod(batch, MOST_BATCHES)
            numbers[1:] = _lists_and_children(block, each)[:, place]
        found.append(numbers)
    return np.concatenate(found, axis=1)


@lru_cache(maxsize=2)
def _of_draws(seeds: tuple[Seed, ...]) -> Doubles:
    """Return [seeds, MOST_SEEDED] the first number of the seed plus each draw's number."""
    after = (_next_seeds(name, each) for name, each in _by_name(seeds))
    return np.concatenate([known[rows, 0] for rows, known in after])


class SeedTest(Evidence):
    """The comparison of a run's draws, in order, with streams of seeds.

    It looks at MOST_DRAWS of them.
    """

    partial = True
    #: Whether draws are of tokens, or of who is in a draw.
    drawn: ClassVar[Drawn] = "tokens"

    def __init__(self, sampling: Sampling) -> None:
        """Prepare the seeds to try.

        Args:
            sampling: what the run declares; a seed of numpy's in it weighs as much as all others.
        """
        self.draws = 0
        seed = sampling.seed if sampling.generator == "mt19937" else None
        self._declared: tuple[Seed, ...] = () if seed is None else (("numpy.random.seed", seed),)
        self._known = [row for row, each in enumerate(KNOWN) if each not in self._declared]
        self.tried = [*self._declared, *(KNOWN[row] for row in self._known)]
        # Half of the weight, where one is declared; all hypotheses together weigh 1.
        weights = np.full(len(self.tried), (0.5 if self._declared else 1.0) / len(self._known))
        weights[: len(self._declared)] = 0.5
        self._weights = np.log(weights / (len(ORDERS) * len(PLACES)))[:, None, None]
        # The draws in order, and of each batch with any, which one it is and how many it has.
        self._draws = np.empty((MOST_DRAWS, len(Draw._fields)))
        self._batches, self._sizes = list[int](), list[int]()

    def _of_all(self, numbers: Callable[[tuple[Seed, ...]], Doubles]) -> Doubles:
        """Return [..., tried, n] the numbers of all seeds that are tried."""
        known = numbers(KNOWN)
        if not self._declared:
            return known
        return np.concatenate([numbers(self._declared), known[..., self._known, :]], axis=-2)

    @override
    @classmethod
    def begin(cls, run: AuditedRun) -> Self:
        return cls(run.manifest.sampling)

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        return BatchDraws(batch)

    @override
    def merge(self, batch: int, found: Any) -> None:
        self.take(batch, found.draws)

    def take(self, batch: int, draws: Draws) -> None:
        """Take in one batch's draws. Batches come in ascending order."""
        looked_at = draws[: MOST_DRAWS - self.draws]
        if len(looked_at):
            self._batches.append(batch)
            self._sizes.append(len(looked_at))
            self._draws[self.draws : self.draws + len(looked_at)] = looked_at
            self.draws += len(looked_at)

    def _numbers(self) -> Iterator[tuple[int, slice, NDArray[np.intp], Doubles]]:
        """Yield numbers [seeds, n] of some seeds, after their place, these seeds, and the n draws.

        The same seeds may come again at the same place, of other draws.
        """
        sizes, every = self._sizes, np.arange(self.draws)
        starts = np.cumsum(sizes) - sizes
        size = next(size for size in _STREAM_SIZES if size >= self.draws)
        made: Callable[[tuple[Seed, ...]], Doubles] = partial(_streams, size)
        if size == _STREAM_SIZES[0]:
            made = _short_streams
        for first in range(0, len(self.tried), _AT_A_TIME // size):
            seeds = slice(first, first + _AT_A_TIME // size)
            streams = made(tuple(self.tried[seeds]))
            yield 0, seeds, every, streams[:, : self.draws]
            yield 1, seeds, every, streams[:, every - np.repeat(starts, sizes)]
        everyone = slice(None)
        for batch, start, here in zip(
            self._batches[:MOST_BATCHES], starts.tolist(), sizes, strict=False
        ):
            of_batch = self._of_all(partial(_of_batch, batch))[..., :here]
            for place, numbers in enumerate(of_batch, 2):
                yield place, everyone, start + np.arange(numbers.shape[-1]), numbers
        yield 5, everyone, every[:MOST_SEEDED], self._of_all(_of_draws)[:, : self.draws]

    def _told(self) -> tuple[Doubles, NDArray[np.int64], NDArray[np.int64]]:
        """Return the evidence for each hypothesis, [tried, orders, places] in nats.

        Also how many draws each tells, and of how many, [places].
        """
        shape = (len(self.tried), len(ORDERS), len(PLACES))
        evidence, told = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        seen = np.zeros(len(PLACES), dtype=np.int64)
        if not self.draws:
            return evidence, told, seen
        table = self._draws[: self.draws].T
        lows, chance, tells = table[1:4], np.maximum(table[4], _LEAST), table[4] >= _LEAST
        gain, idle = np.where(tells, (1 - _IDLE) / chance, 0.0), np.where(tells, _IDLE, 1.0)
        miss = np.log(idle)
        hit = np.log(idle + gain) - miss
        for place, seeds, draws, numbers in self._numbers():
            for order, low in enumerate(lows[:, draws]):
                inside: NDArray[np.bool_] = low <= numbers
                inside &= numbers < low + chance[draws]
                evidence[seeds, order, place] += miss[draws].sum() + inside @ hit[draws]
                # numpy adds up bytes many times as fast as words
                told[seeds, order, place] += inside.view(np.uint8).sum(axis=-1, dtype=np.uint32)
            if seeds.start in (None, 0):
                seen[place] += len(draws)
        return evidence, told, seen

    @property
    def shown(self) -> Finding:
        """The amount that was looked at."""
        return Finding(code=f"seeds.{self.drawn}", values={"number": self.draws})

    def found(self) -> Outcome | None:
        """Return the seed that tells what was drawn, as a failure; None if none does."""
        evidence, told, seen = self._told()
        weighed = evidence + self._weights
        best = np.unravel_index(int(weighed.argmax()), weighed.shape)
        if weighed[best] < -math.log(FALSE_ALARMS):
            return None
        name, seed = self.tried[best[0]]
        values: dict[str, Value] = {
            "told": int(told[best]),
            "of": int(seen[best[2]]),
            "generator": name,
            "seed": seed,
            "where": Finding(code=PLACES[best[2]]),
            "order": ORDERS[best[1]],
        }
        return Outcome("fail", f"{self.drawn}-told", values)


class _BatchCoins(BatchEvidence):
    """Contexts in and out of one batch's first draws, each as a draw, up to MOST_DRAWS of them."""

    def __init__(self, rate: float) -> None:
        """`rate`: with which each context is in a draw."""
        self.draws: list[Draw] = []
        # In where a number is below the rate, or else where it is above 1 - rate.
        self._out, self._in = Draw(0, rate, rate, 0.0, 1 - rate), Draw(1, 0.0, 0.0, 1 - rate, rate)

    @override
    def step(self, view: StepView) -> None:
        shown = contexts_in_draw(view)
        if shown is not None:
            first = shown[: MOST_DRAWS - len(self.draws)].tolist()
            self.draws += [self._in if in_draw else self._out for in_draw in first]


class CoinTest(SeedTest):
    """The same of who is in a draw. There are such coins in draws of some of the contexts alone."""

    partial = False
    drawn = "coins"

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        draw = batch.manifest.mechanism.draw
        return None if draw.gaussian is None else _BatchCoins(draw.rate)


@lru_cache(maxsize=2 * len(KNOWN))
def _ascending(name: str, seed: int) -> tuple[Doubles, Doubles]:
    """Return [MOST_DRAWS] a stream's numbers and its normal noise's quantiles, both ascending."""
    from scipy.special import ndtr  # type: ignore[import-untyped]  # slow to load, and few runs have noise

    return np.sort(STREAMS[name]([seed], MOST_DRAWS)[0]), np.sort(
        ndtr(NORMALS[name](seed, MOST_DRAWS))
    )


def _met(numbers: Doubles, stream: Doubles) -> int:
    """Return how many of some numbers an ascending stream has, up to rounding."""
    above = np.searchsorted(stream, numbers)
    below, above = np.maximum(above - 1, 0), np.minimum(above, len(stream) - 1)
    nearest = np.minimum(np.abs(numbers - stream[below]), np.abs(numbers - stream[above]))
    return int((nearest <= _MOVED).sum())


def seed_of_noise(quantiles: Doubles, tried: Sequence[tuple[str, int]]) -> Outcome | None:
    """Return the seed that tells a run's first noise, as a failure; None if none does.

    Args:
        quantiles: [n] of the noise in its declared distribution; the first MOST_NOISE are looked
            at.
        tried: names of STREAMS, and seeds.
    """
    if not len(quantiles):
        return None
    first = np.unique(quantiles[:MOST_NOISE])  # a number that comes again tells nothing more
    for name, seed in tried:
        for stream in _ascending(name, seed):
            told = _met(first, stream)
            if told >= _NOISE_TOLD:
                values: dict[str, Value] = {
                    "told": told,
                    "of": len(first),
                    "generator": name,
                    "seed": seed,
                }
                return Outcome("fail", "noise-told", values)
    return None


@RunCheck(id="sampling.seeds", gathers=(SeedTest, CoinTest, NoiseEvidence))
def no_seed_tells_the_tokens(run: AuditedRun) -> Outcome:
    """Compare draws' random numbers with streams of common seeds, and of the declared one."""
    tests = [test for test in (run[SeedTest], run[CoinTest]) if test.draws]
    tried = run[SeedTest].tried
    values: dict[str, Value] = {"tried": len(tried), "rate": FALSE_ALARMS}
    noise = run[NoiseEvidence].early
    if not tests and not len(noise):
        return Outcome("skip", "unread", values)
    for found in (*(test.found() for test in tests), seed_of_noise(noise, tried)):
        if found is not None:
            return replace(found, values={**found.values, **values})
    shown = [test.shown for test in tests]
    shown += [Finding(code="seeds.noise", values={"number": len(noise)})] * bool(len(noise))
    return Outcome("pass", "untold", values | {"shown": tuple(shown)})
