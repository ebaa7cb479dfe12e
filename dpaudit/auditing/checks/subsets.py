"""Draws from some of the contexts: is every context in a draw by a coin of its own?

Every test is exact or a proved bound, and alarms on an honest run with probability ALARM at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.alternatives import TILTS, tilted
from dpaudit.auditing.checks.draws import Doubles
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.noise import ALARM
from dpaudit.auditing.checks.registry import Outcome, RunCheck
from dpaudit.auditing.checks.steps import BatchView, StepView
from dpaudit.results import Value

#: Draws tell enough where samples of a fixed size would have this evidence: twice what is an alarm,
#: in nats.
ENOUGH = 2 * (math.log(len(TILTS)) - math.log(ALARM))


@dataclass
class SubsetEvidence(Evidence):
    """The evidence about who was in the draws of a run, or of some of its steps.

    Attributes:
        trials, drawn: contexts over all steps, and how many of them were in the draw.
        pairs, both: contexts over every second step, and how many were in this draw and in the one
            before.
        sizes: [TILTS] log-likelihood ratios of how many contexts draws had.
        telling: the evidence, in nats, that as many draws of the likeliest number of contexts would
            have.
        uneven: log-probability of a context's number of draws, or a rarer one, for the rarest,
            times contexts.
        batches: how many there are.
    """

    trials: int = 0
    drawn: int = 0
    pairs: int = 0
    both: int = 0
    sizes: Doubles = field(default_factory=lambda: np.zeros(len(TILTS)))
    telling: float = 0.0
    uneven: float = 0.0
    batches: int = 0

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        draw = batch.manifest.mechanism.draw
        return None if draw.gaussian is None else _BatchSubsets(draw.rate, batch.header.contexts)

    @override
    def merge(self, batch: int, found: SubsetEvidence) -> None:
        self.uneven = min(self.uneven, found.uneven)
        for name in ("trials", "drawn", "pairs", "both", "sizes", "telling", "batches"):
            setattr(self, name, getattr(self, name) + getattr(found, name))


def contexts_in_draw(view: StepView) -> NDArray[np.bool_] | None:
    """Return which contexts were in a step's draw, [n]; None if the record does not show it."""
    given = view.contributions
    return None if given is None or len(given) != view.header.contexts else (given != 0).any(axis=1)


class _BatchSubsets(BatchEvidence):
    """The evidence about who was in one batch's draws."""

    def __init__(self, rate: float, contexts: int) -> None:
        """`rate`: with which each of so many contexts is in a draw."""
        self._rate, self._found = rate, SubsetEvidence(batches=1)
        self._times = np.zeros(contexts, dtype=np.int64)
        self._before: NDArray[np.bool_] | None = None
        self._steps = 0
        self._sizes = np.zeros(contexts + 1, dtype=np.int64)

    @override
    def step(self, view: StepView) -> None:
        found, shown = self._found, contexts_in_draw(view)
        if shown is None:
            return
        self._times += shown
        self._steps += 1
        self._sizes[int(shown.sum())] += 1
        if self._before is not None:
            found.pairs, found.both = (
                found.pairs + len(shown),
                found.both + int((shown & self._before).sum()),
            )
        self._before = shown if self._before is None else None

    @override
    def result(self) -> SubsetEvidence:
        from scipy.stats import binom  # type: ignore[import-untyped]  # slow to load, and few runs draw subsets

        found, contexts, steps = self._found, len(self._times), self._steps
        found.trials, found.drawn = contexts * steps, int(self._times.sum())
        if contexts and steps:
            logarithms = binom.logpmf(np.arange(contexts + 1), contexts, self._rate)
            found.sizes = tilted(logarithms, self._sizes)
            found.telling = -steps * float(logarithms.max())
            tails = [
                _two_sided(int(times), steps, self._rate)
                for times in (self._times.min(), self._times.max())
            ]
            found.uneven = min(tails) + math.log(contexts)
        return found


def _two_sided(count: int, trials: int, rate: float) -> float:
    """Return the log (at most 0) of an upper bound on a binomial count's two-sided tail."""
    from scipy.stats import binom

    low, high = float(binom.cdf(count, trials, rate)), float(binom.sf(count - 1, trials, rate))
    return math.log(min(1.0, 2 * max(min(low, high), 1e-300)))


@RunCheck(id="sampling.subsets", gathers=(SubsetEvidence,))
def subsets_are_by_coins(run: AuditedRun) -> Outcome:
    """Compare contexts of each draw, of draws in a row and of all draws with the declared coins."""
    rate, found = run.manifest.mechanism.draw.rate, run[SubsetEvidence]
    values: dict[str, Value] = {"rate": rate}
    if not found.trials:
        return Outcome("skip", "contexts-unrecorded", values)
    values |= {
        "drawn": found.drawn,
        "trials": found.trials,
        "both": found.both,
        "pairs": found.pairs,
    }
    for code in _uncommon(found, rate):
        return Outcome("fail", code, values)
    return (
        Outcome("skip", "too-few-draws", values)
        if found.telling < ENOUGH
        else Outcome("pass", "by-coins", values)
    )


def _uncommon(found: SubsetEvidence, rate: float) -> Iterator[str]:
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
