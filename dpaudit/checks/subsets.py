"""Draws from some of the contexts: is every context in a draw by a coin of its own?

Every test is exact or a proved bound, and alarms on an honest run with probability ALARM at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpaudit.checks.alternatives import TILTS, Doubles, tilted
from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.noise import ALARM
from dpaudit.checks.randomness import Draw
from dpaudit.checks.registry import Outcome, RunCheck
from dpaudit.checks.seeds import MOST_DRAWS
from dpaudit.results import Value

#: Draws tell enough where samples of a fixed size would have this evidence: twice what is an alarm, in nats.
ENOUGH = 2 * (math.log(len(TILTS)) - math.log(ALARM))


@dataclass
class SubsetFacts:
    """What some steps show of who was in their draws.

    Attributes:
        trials, drawn: contexts over all steps, and how many of them were in the draw.
        pairs, both: contexts over every second step, and how many were in this draw and in the one before.
        sizes: [TILTS] log-likelihood ratios of how many contexts draws had.
        telling: the evidence, in nats, that as many draws of the likeliest number of contexts would have.
        uneven: log-probability of a context's number of draws, or a rarer one, for the rarest, times contexts.
        batches: how many there are.
        coins: of the first steps, whether each context was in, as draws; MOST_DRAWS of them at most.
    """

    trials: int = 0
    drawn: int = 0
    pairs: int = 0
    both: int = 0
    sizes: Doubles = field(default_factory=lambda: np.zeros(len(TILTS)))
    telling: float = 0.0
    uneven: float = 0.0
    batches: int = 0
    coins: list[Draw] = field(default_factory=list)

    def merge(self, other: SubsetFacts) -> None:
        """Take in what another batch shows, but for its coins."""
        self.uneven = min(self.uneven, other.uneven)
        for name in ("trials", "drawn", "pairs", "both", "sizes", "telling", "batches"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class SubsetSums:
    """Gathers the facts of one batch, a step at a time."""

    def __init__(self, rate: float, contexts: int) -> None:
        """`rate`: with which each of so many contexts is in a draw."""
        self._rate, self._facts = rate, SubsetFacts(batches=1)
        # In where a number is below the rate, or else where it is above 1 - rate.
        self._coins = Draw(0, rate, rate, 0.0, 1 - rate), Draw(1, 0.0, 0.0, 1 - rate, rate)
        self._times = np.zeros(contexts, dtype=np.int64)
        self._before: NDArray[np.bool_] | None = None
        self._steps = 0
        self._sizes = np.zeros(contexts + 1, dtype=np.int64)

    def add(self, view: StepView) -> None:
        """Take in one step."""
        facts = self._facts
        if view.contributions is None or len(view.contributions) != len(self._times):
            return
        shown: NDArray[np.bool_] = (view.contributions != 0).any(axis=1)
        self._times += shown
        self._steps += 1
        self._sizes[int(shown.sum())] += 1
        facts.coins += [self._coins[in_draw] for in_draw in shown[: MOST_DRAWS - len(facts.coins)].tolist()]
        if self._before is not None:
            facts.pairs, facts.both = facts.pairs + len(shown), facts.both + int((shown & self._before).sum())
        self._before = shown if self._before is None else None

    def result(self) -> SubsetFacts:
        """Of a batch that has no more steps."""
        from scipy.stats import binom  # type: ignore[import-untyped]  # slow to load, and few runs draw subsets

        facts, contexts, steps = self._facts, len(self._times), self._steps
        facts.trials, facts.drawn = contexts * steps, int(self._times.sum())
        if contexts and steps:
            logarithms = binom.logpmf(np.arange(contexts + 1), contexts, self._rate)
            facts.sizes = tilted(logarithms, self._sizes)
            facts.telling = -steps * float(logarithms.max())
            tails = [_two_sided(int(times), steps, self._rate) for times in (self._times.min(), self._times.max())]
            facts.uneven = min(tails) + math.log(contexts)
        return facts


def _two_sided(count: int, trials: int, rate: float) -> float:
    """Logarithm of an upper bound on the probability of a binomial count that is as far out; at most 0."""
    from scipy.stats import binom

    low, high = float(binom.cdf(count, trials, rate)), float(binom.sf(count - 1, trials, rate))
    return math.log(min(1.0, 2 * max(min(low, high), 1e-300)))


@RunCheck(id="sampling.subsets")
def subsets_are_by_coins(facts: Facts) -> Outcome:
    """Hold the contexts of each draw, of two draws in a row and of all draws against coins of the declared rate."""
    rate, found = facts.manifest.mechanism.draw.rate, facts.subsets
    values: dict[str, Value] = {"rate": rate}
    if found is None or not found.trials:
        return Outcome("skip", "contexts-unrecorded", values)
    values |= {"drawn": found.drawn, "trials": found.trials, "both": found.both, "pairs": found.pairs}
    for code in _uncommon(found, rate):
        return Outcome("fail", code, values)
    return Outcome("skip", "too-few-draws", values) if found.telling < ENOUGH else Outcome("pass", "by-coins", values)


def _uncommon(found: SubsetFacts, rate: float) -> Iterator[str]:
    """Yield the codes of outcomes that fair coins hardly have."""
    least = math.log(ALARM)
    if _two_sided(found.drawn, found.trials, rate) <= least:
        yield "other-rate"
    if float(np.logaddexp.reduce(found.sizes)) - math.log(len(TILTS)) >= -least:
        yield "sizes-too-close" if TILTS[int(found.sizes.argmax())] > 0 else "sizes-too-far-apart"
    if _two_sided(found.both, found.pairs, rate**2) <= least:
        yield "pairs-at-other-rate"
    if found.uneven + math.log(max(1, found.batches)) <= least:
        yield "uneven-contexts"
