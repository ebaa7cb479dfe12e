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

from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import Outcome, RunCheck
from dpaudit.mechanisms import Arrays, Mechanism

#: Of each test.
ALARM = 1e-5
BINS = 256
#: With fewer numbers on record, noise of half the size could pass.
FEWEST = 400
_REFERENCE = "docs/tang-et-al.md"


@dataclass
class NoiseFacts:
    """What some steps show of their noise and of who was in their draws.

    Attributes:
        counts: [BINS] of the noise's quantiles in its declared distribution.
        problem: noise that is no number, or was added before; empty where none.
        first: digests of batches' first noise.
        trials, drawn: contexts over all steps, and how many of them were in the draw.
        pairs, both: contexts over every second step, and how many were in this draw and in the one before.
        same: log-probability that all draws of a batch have as many contexts, for the least likely batch that had it.
        uneven: log-probability of a context's number of draws, or a rarer one, for the rarest, times contexts.
        batches: how many there are.
    """

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    problem: str = ""
    first: set[bytes] = field(default_factory=set)
    trials: int = 0
    drawn: int = 0
    pairs: int = 0
    both: int = 0
    same: float = 0.0
    uneven: float = 0.0
    batches: int = 0

    def merge(self, other: NoiseFacts) -> None:
        """Take in what other batches show."""
        self.counts += other.counts
        again = "" if self.first.isdisjoint(other.first) else "two batches begin with the same noise"
        self.problem = self.problem or other.problem or again
        self.first |= other.first
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
        self._seen: set[bytes] = set()

    def add(self, view: StepView) -> None:
        """Take in one step."""
        facts, mechanism = self._facts, self._mechanism
        found = mechanism.draw.quantiles(view.arrays, self._arrays, mechanism.aggregator, mechanism.clip)
        self._arrays = view.arrays
        if not np.isfinite(found).all():
            facts.problem = facts.problem or "noise holds a value that is not finite"
            return
        if len(found):
            self._take(found, view.header.id)
        if view.contributions is None or len(view.contributions) != len(self._times):
            return
        shown: NDArray[np.bool_] = (view.contributions != 0).any(axis=1)
        self._times += shown
        self._sizes.append(int(shown.sum()))
        if self._before is not None:
            facts.pairs, facts.both = facts.pairs + len(shown), facts.both + int((shown & self._before).sum())
        self._before = shown if self._before is None else None

    def _take(self, quantiles: NDArray[np.float64], batch: int) -> None:
        """A step's new noise."""
        facts = self._facts
        facts.counts += np.bincount(np.minimum((quantiles * BINS).astype(np.int64), BINS - 1), minlength=BINS)
        digest = hashlib.sha256(quantiles.tobytes()).digest()[:16]
        if digest in self._seen:
            facts.problem = facts.problem or f"a step of batch {batch} has the noise of one before"
        self._seen.add(digest)
        facts.first = facts.first or {digest}

    def result(self) -> NoiseFacts:
        """Of a batch that has no more steps."""
        from scipy.stats import binom  # type: ignore[import-untyped]

        facts, contexts, steps = self._facts, len(self._times), len(self._sizes)
        rate = self._mechanism.draw.rate
        facts.trials, facts.drawn = contexts * steps, sum(self._sizes)
        if steps > 1 and len(set(self._sizes)) == 1:
            masses = binom.pmf(np.arange(contexts + 1), contexts, rate)
            facts.same = math.log(max(float((masses**steps).sum()), 1e-300))
        if contexts and steps:
            tails = [_two_sided(int(times), steps, rate) for times in (self._times.min(), self._times.max())]
            facts.uneven = min(tails) + math.log(contexts)
        return facts


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
    """The distribution of all recorded noise by the inequality of Dvoretzky, Kiefer and Wolfowitz; and repetitions."""
    expected = "noise of the declared distribution that no two steps share"
    found = facts.noise
    if found is None or not (number := int(found.counts.sum())):
        problem = "" if found is None else found.problem
        return Outcome("fail" if problem else "skip", problem or "nothing", expected, "The record has no noise.")
    if found.problem:
        return Outcome("fail", found.problem, expected)
    reached = np.cumsum(found.counts) / number
    apart = float(np.abs(reached - np.arange(1, BINS + 1) / BINS).max())
    said = f"{number:,} numbers, whose distribution is {apart:.3g} from the declared one at most"
    if 2 * math.exp(-2 * number * apart**2) <= ALARM:
        return Outcome("fail", said, expected)
    if number < FEWEST:
        return Outcome("skip", said, expected, f"Of fewer than {FEWEST} numbers even half the noise could pass.")
    return Outcome("pass", said, expected)


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
