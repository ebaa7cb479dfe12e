"""Draws by noise: is it what is declared, and new, and is every context in a draw by a coin of its own?

Every test is exact or a proved bound, and alarms on an honest run with probability ALARM at most.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpaudit.checks.alternatives import Doubles
from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import Outcome, RunCheck
from dpaudit.checks.seeds import MOST_NOISE
from dpaudit.mechanisms import Arrays, Mechanism

#: Of each test.
ALARM = 1e-5
BINS = 256
#: Noise is held against noise that is smaller, by 1 plus each of these where it is Laplace noise.
SMALLER = np.array([0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
#: With fewer numbers of a kind on record, Laplace noise of half the size would pass more often than once in a hundred.
FEWEST = 130
#: Honest noise may have no more than as many values, as that of generators in single precision.
VALUES = 2.0**24
_REFERENCE = "docs/tang-et-al.md"


@dataclass
class NoiseTally:
    """What is known of one kind of noise.

    Attributes:
        counts: [BINS] of its quantiles in its declared distribution.
        size: sum of -log of how likely as much noise or more is: 1 each on average.
    """

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    size: float = 0.0

    def take(self, quantiles: Doubles) -> None:
        """Take in new noise: its quantiles [k]."""
        self.counts += np.bincount(np.minimum((quantiles * BINS).astype(np.int64), BINS - 1), minlength=BINS)
        tails = 2 * np.minimum(quantiles, 1 - quantiles)
        self.size += float(-np.log(np.maximum(tails, 2.0**-52)).sum())

    def merge(self, other: NoiseTally) -> None:
        """Take in what another batch shows."""
        self.counts += other.counts
        self.size += other.size

    @property
    def number(self) -> int:
        """Of values that were taken in."""
        return int(self.counts.sum())

    @property
    def apart(self) -> float:
        """How far their distribution function is from the declared one at most."""
        reached = np.cumsum(self.counts) / self.number
        return float(np.abs(reached - np.arange(1, BINS + 1) / BINS).max())

    @property
    def alarm(self) -> str:
        """Why this is not the declared noise, in words; empty where it may be.

        How many numbers there are may itself depend on them, as where a test decides whether another is made. By
        Ville's inequality the likelihood of smaller noise bounds alarms at any number; for the distribution all
        numbers n share the rate, 1 / (n (n + 1)) each.
        """
        n = self.number
        smaller = float(np.logaddexp.reduce(n * np.log1p(SMALLER) - SMALLER * self.size)) - math.log(len(SMALLER))
        if smaller >= -math.log(ALARM):
            return f"{n:,} numbers are smaller than declared, by the evidence of {smaller:.1f} nats"
        if math.log(2 * n * (n + 1)) - 2 * n * self.apart**2 <= math.log(ALARM):
            return f"{n:,} numbers, whose distribution is {self.apart:.3g} from the declared one at most"
        return ""


@dataclass
class NoiseFacts:
    """What some steps show of their noise and of who was in their draws.

    Attributes:
        tallies: of each kind of noise.
        problem: noise that is no number, or that another batch begins with; empty where none.
        first: digests of batches' first noise.
        early: quantiles of the run's first noise, MOST_NOISE of them at most.
        again: log-probability of the least likely repetition of noise in a batch, and which one it is.
        trials, drawn: contexts over all steps, and how many of them were in the draw.
        pairs, both: contexts over every second step, and how many were in this draw and in the one before.
        same: log-probability that all draws of a batch have as many contexts, for the least likely batch that had it.
        uneven: log-probability of a context's number of draws, or a rarer one, for the rarest, times contexts.
        batches: how many there are.
    """

    tallies: dict[str, NoiseTally] = field(default_factory=dict)
    problem: str = ""
    first: set[bytes] = field(default_factory=set)
    early: Doubles = field(default_factory=lambda: np.empty(0))
    again: tuple[float, str] = (0.0, "")
    trials: int = 0
    drawn: int = 0
    pairs: int = 0
    both: int = 0
    same: float = 0.0
    uneven: float = 0.0
    batches: int = 0

    def merge(self, other: NoiseFacts) -> None:
        """Take in what other batches show."""
        for kind, tally in other.tallies.items():
            self.tallies.setdefault(kind, NoiseTally()).merge(tally)
        again = "" if self.first.isdisjoint(other.first) else "two batches begin with the same noise"
        self.problem = self.problem or other.problem or again
        self.first |= other.first
        self.early = np.concatenate([self.early, other.early])[:MOST_NOISE]
        self.again = min(self.again, other.again)
        self.same, self.uneven = min(self.same, other.same), min(self.uneven, other.uneven)
        for name in ("trials", "drawn", "pairs", "both", "batches"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class NoiseSums:
    """Gathers the facts of one batch, a step at a time."""

    def __init__(self, mechanism: Mechanism, contexts: int) -> None:
        """Of so many contexts. Raises ValueError where the mechanism adds no noise."""
        if not mechanism.draw.arrays():
            raise ValueError(f"draws by {mechanism.draw.name} add no noise")
        self._mechanism, self._facts = mechanism, NoiseFacts(batches=1)
        self._arrays: Arrays | None = None
        self._times = np.zeros(contexts, dtype=np.int64)
        self._before: NDArray[np.bool_] | None = None
        self._sizes: list[int] = []
        # Of each kind: how often it was drawn, how many numbers, and digests of what came.
        self._drawn: dict[str, tuple[int, int]] = {}
        self._seen: dict[str, set[bytes]] = {}

    def add(self, view: StepView) -> None:
        """Take in one step."""
        facts, mechanism = self._facts, self._mechanism
        found = mechanism.draw.quantiles(view.arrays, self._arrays, mechanism.aggregator, mechanism.clip)
        self._arrays = view.arrays
        if not all(np.isfinite(quantiles).all() for quantiles in found.values()):
            facts.problem = facts.problem or "noise holds a value that is not finite"
            return
        for kind, quantiles in found.items():
            self._take(kind, quantiles)
        if found:
            facts.first = facts.first or {_digest(*found.values())}
            if len(facts.early) < MOST_NOISE:
                facts.early = np.concatenate([facts.early, *found.values()])[:MOST_NOISE]
        if view.contributions is None or len(view.contributions) != len(self._times):
            return
        shown: NDArray[np.bool_] = (view.contributions != 0).any(axis=1)
        self._times += shown
        self._sizes.append(int(shown.sum()))
        if self._before is not None:
            facts.pairs, facts.both = facts.pairs + len(shown), facts.both + int((shown & self._before).sum())
        self._before = shown if self._before is None else None

    def _take(self, kind: str, quantiles: Doubles) -> None:
        """A step's new noise of a kind."""
        self._facts.tallies.setdefault(kind, NoiseTally()).take(quantiles)
        self._drawn[kind] = (self._drawn.get(kind, (0, 0))[0] + 1, len(quantiles))
        self._seen.setdefault(kind, set()).add(_digest(quantiles))

    def result(self) -> NoiseFacts:
        """Of a batch that has no more steps."""
        from scipy.stats import binom  # type: ignore[import-untyped]

        facts, contexts, steps = self._facts, len(self._times), len(self._sizes)
        rate = self._mechanism.draw.rate
        for kind, (times, numbers) in self._drawn.items():
            repeated = times - len(self._seen[kind])
            said = f"a batch has the same {kind} in {repeated + 1:,} of {times:,} draws"
            facts.again = min(facts.again, (_repetition(repeated, times, numbers), said))
        facts.trials, facts.drawn = contexts * steps, sum(self._sizes)
        if steps > 1 and len(set(self._sizes)) == 1:
            masses = binom.pmf(np.arange(contexts + 1), contexts, rate)
            facts.same = math.log(max(float((masses**steps).sum()), 1e-300))
        if contexts and steps:
            tails = [_two_sided(int(times), steps, rate) for times in (self._times.min(), self._times.max())]
            facts.uneven = min(tails) + math.log(contexts)
        return facts


def _digest(*quantiles: Doubles) -> bytes:
    return hashlib.sha256(b"".join(each.tobytes() for each in quantiles)).digest()[:16]


def _repetition(repeated: int, times: int, numbers: int) -> float:
    """Logarithm of an upper bound on the probability of so many draws that came before; at most 0.

    A draw of so many numbers comes again with probability (draws before) / VALUES^numbers at most, so k of n do with
    (n^2 / (2 VALUES^numbers))^k / k!. All k share the rate, 2^-k each, for n may depend on the noise.
    """
    expected = 2 * math.log(max(1, times)) - numbers * math.log(VALUES)
    return min(0.0, repeated * expected - math.lgamma(repeated + 1))


def _two_sided(count: int, trials: int, rate: float) -> float:
    """Logarithm of an upper bound on the probability of a binomial count that is as far out; at most 0."""
    from scipy.stats import binom

    low, high = float(binom.cdf(count, trials, rate)), float(binom.sf(count - 1, trials, rate))
    return math.log(min(1.0, 2 * max(min(low, high), 1e-300)))


@RunCheck(
    id="sampling.noise",
    title="Noise is of the declared distribution, and new in every step",
    fails="Noise is not of the declared distribution, or not new in every step",
    evidence=2,
    why="The guarantee is that of noise of this size, drawn anew for every token. Less, or the same again, hides less.",
    remedy="Draw noise of that distribution from the operating system's entropy for every step. Generate again.",
    reference=_REFERENCE,
)
def noise_is_as_declared(facts: Facts) -> Outcome:
    """How much there is of each kind of noise and how it is distributed; and repetitions."""
    expected = "noise of the declared distribution that no two steps share"
    found = facts.noise
    if found is None or not (found.tallies or found.problem):
        return Outcome("skip", "nothing", expected, "The record has no noise.")
    for said in _not_declared(found):
        return Outcome("fail", said, expected)
    fewest = min(found.tallies, key=lambda kind: found.tallies[kind].number)
    said = "; ".join(
        f"{kind}: {tally.number:,} numbers, {tally.apart:.3g} apart" for kind, tally in found.tallies.items()
    )
    if found.tallies[fewest].number < FEWEST:
        return Outcome("skip", said, expected, f"Of fewer than {FEWEST} numbers even half the {fewest} could pass.")
    return Outcome("pass", said, expected)


def _not_declared(found: NoiseFacts) -> Iterator[str]:
    if found.problem:
        yield found.problem
    if found.again[0] + math.log(max(1, found.batches)) <= math.log(ALARM):
        yield found.again[1]
    for kind, tally in found.tallies.items():
        if tally.alarm:
            yield f"{kind}: {tally.alarm}"


@RunCheck(
    id="sampling.subsets",
    title="Contexts are in draws by coins of their own",
    fails="Contexts are not in draws by coins of the declared rate",
    evidence=2,
    why=(
        "The guarantee counts on nobody knowing who was in a draw. Samples of a fixed size, or that stay the same, are "
        "no coins, and cost more."
    ),
    remedy="Toss a coin of the declared rate for every context and step, by the operating system's entropy.",
    reference=_REFERENCE,
)
def subsets_are_by_coins(facts: Facts) -> Outcome:
    """How many contexts were in draws, in one draw after another, in draws of equal size; and each context's draws."""
    rate, found = facts.manifest.mechanism.draw.rate, facts.noise
    expected = f"every context in every draw with probability {rate:g}, by itself"
    if found is None or not found.trials:
        return Outcome("skip", "nothing", expected, "Contexts are not on record: set record.contexts.")
    for said in _uncommon(found, rate):
        return Outcome("fail", said, expected)
    return Outcome("pass", f"{found.drawn:,} of {found.trials:,}", expected)


def _uncommon(found: NoiseFacts, rate: float) -> Iterator[str]:
    least = math.log(ALARM)
    if _two_sided(found.drawn, found.trials, rate) <= least:
        yield f"{found.drawn:,} of {found.trials:,} are in draws"
    if found.same + math.log(max(1, found.batches)) <= least:
        yield "all draws of a batch have as many contexts"
    if _two_sided(found.both, found.pairs, rate**2) <= least:
        yield f"{found.both:,} of {found.pairs:,} are in two draws in a row"
    if found.uneven + math.log(max(1, found.batches)) <= least:
        yield "a context is in far more or fewer draws than others"
