"""Draws by noise: is it what is declared, new, and of no pattern?

Every test is exact or a proved bound, and alarms on an honest run with probability ALARM at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.alternatives import TILTS, tilted
from dpaudit.auditing.checks.draws import Doubles
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.registry import Outcome, RunCheck
from dpaudit.auditing.checks.steps import BatchView, StepView
from dpaudit.mechanisms import Arrays, Mechanism
from dpaudit.results import Finding, Quantity, Value

#: Of each test.
ALARM = 1e-5
#: Of a run's noise, the first so many numbers are kept to be held against seeds.
MOST_NOISE = 64
BINS = 256
#: Noise is held against noise that is smaller, by 1 plus each of these where it is Laplace noise.
SMALLER = np.array([0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
#: With fewer numbers of a kind on record, Laplace noise of half the size would pass more often than
#: once in a hundred.
FEWEST = 130
#: Honest noise may have no more sizes than 2 to this: generators in single precision have twice as
#: many.
VALUE_BITS = 22
#: How many numbers are kept to be told when they come again.
MOST_KEPT = 1 << 16
#: What is looked at of each kind: its numbers; those of one step in other directions; and each
#: step's along the last's.
OWN, TURNED, ALONG = "noise.each-number", "noise.over-one-step", "noise.from-step-to-step"
#: Quantiles are kept this far from 0 and 1, which no honest noise comes near.
_EDGE = 2.0**-52


@dataclass
class NoiseTally:
    """The facts about one kind of noise.

    Attributes:
        counts: [BINS] of its quantiles in its declared distribution.
        size: sum of -log of how likely as much noise or more is: 1 each on average.
    """

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    size: float = 0.0

    def take(self, quantiles: Doubles) -> None:
        """Take in new noise: its quantiles [k]."""
        self.counts += np.bincount(
            np.minimum((quantiles * BINS).astype(np.int64), BINS - 1), minlength=BINS
        )
        tails = 2 * np.minimum(quantiles, 1 - quantiles)
        self.size += float(-np.log(np.maximum(tails, _EDGE)).sum())

    def merge(self, other: NoiseTally) -> None:
        """Take in what another batch shows."""
        self.counts += other.counts
        self.size += other.size

    @property
    def number(self) -> int:
        """The number of values that were added."""
        return int(self.counts.sum())

    @property
    def apart(self) -> float:
        """The largest distance of their distribution function from the declared one."""
        reached = np.cumsum(self.counts) / self.number
        return float(np.abs(reached - np.arange(1, BINS + 1) / BINS).max())

    @property
    def alarm(self) -> Outcome | None:
        """Why this is not the declared noise; None if it may be.

        How many numbers there are may itself depend on them, as where a test decides whether
        another is made. By Ville's inequality the likelihood of smaller noise bounds alarms at any
        number; for the distribution all numbers n share the rate, 1 / (n (n + 1)) each.
        """
        n = self.number
        smaller = float(
            np.logaddexp.reduce(n * np.log1p(SMALLER) - SMALLER * self.size)
        ) - math.log(len(SMALLER))
        if smaller >= -math.log(ALARM):
            return Outcome(
                "fail",
                "too-small",
                {"numbers": n, "evidence": Quantity(value=smaller, unit="nats")},
            )
        if math.log(2 * n * (n + 1)) - 2 * n * self.apart**2 <= math.log(ALARM):
            return Outcome("fail", "other-distribution", {"numbers": n, "apart": self.apart})
        return None


@dataclass
class Repeats:
    """Repetitions of noise sizes in a run.

    They are counted in a sample that has every occurrence of those that are in it.

    Attributes:
        width: how many numbers in a row are compared: 1 or 2.
        halvings: how often the sample was halved: it has the keys below 2^(64 - halvings).
        kept: those keys, in pieces.
    """

    width: int
    halvings: int = 0
    kept: list[NDArray[np.uint64]] = field(default_factory=list)

    def take(self, quantiles: Doubles) -> None:
        """Take in noise that was drawn at once, [width] or more: numbers apart from their signs."""
        sizes = np.minimum(np.abs(2 * quantiles - 1) * 2.0**32, 2.0**32 - 1).astype(np.uint64)
        self._keep(_mixed(sizes if self.width == 1 else sizes[:-1] << np.uint64(32) | sizes[1:]))

    def merge(self, other: Repeats) -> None:
        """Take in what another batch shows."""
        self.halvings = max(self.halvings, other.halvings)
        self.kept = [self._sampled(piece) for piece in self.kept]
        for piece in other.kept:
            self._keep(piece)

    def _keep(self, keys: NDArray[np.uint64]) -> None:
        self.kept.append(self._sampled(keys))
        while sum(map(len, self.kept)) > MOST_KEPT:
            self.halvings += 1
            self.kept = [self._sampled(np.concatenate(self.kept))]

    def _sampled(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return keys[keys >> np.uint64(64 - self.halvings) == 0] if self.halvings else keys

    @property
    def alarm(self) -> Outcome | None:
        """Why this noise is not new; None if it may be.

        One of the numbers in the sample is one of those before it with probability (how many there
        are) / 2^(VALUE_BITS width - halvings) at most, so k of n are with (n^2 / 2 of that)^k / k!.
        All k share the rate, 2^-k each, for n may depend on the noise; and so do all halvings.
        """
        keys = np.concatenate(self.kept)
        n, repeated = len(keys), len(keys) - len(np.unique(keys))
        expected = 2 * math.log(max(1, n)) - (VALUE_BITS * self.width - self.halvings) * math.log(2)
        chance = (
            repeated * expected
            - math.lgamma(repeated + 1)
            + math.log((self.halvings + 1) * (self.halvings + 2))
        )
        if not repeated or chance > math.log(ALARM):
            return None
        return Outcome(
            "fail",
            f"repeated-{'numbers' if self.width == 1 else 'pairs'}",
            {"of": n, "repeated": repeated},
        )


def _mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return distinct keys for distinct keys, spread over 64 bits (the finalizer of SplitMix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ keys >> np.uint64(shift)) * np.uint64(factor)
    mixed: NDArray[np.uint64] = keys ^ keys >> np.uint64(31)
    return mixed


@dataclass
class NoiseEvidence(Evidence):
    """The evidence about noise in the draws of a run, or of some of its steps.

    Attributes:
        tallies: of each kind of noise, and of OWN, TURNED and ALONG.
        repeats: by width.
        outcomes: [3, TILTS] log-likelihood ratios of what tests said: of all of them, and of those
            that are likelier to ask for a public token or for a private one.
        finite: whether all of it is numbers.
        early: quantiles of the run's first noise, MOST_NOISE of them at most.
    """

    tallies: dict[tuple[str, str], NoiseTally] = field(default_factory=dict)
    repeats: dict[int, Repeats] = field(default_factory=dict)
    outcomes: Doubles = field(default_factory=lambda: np.zeros((3, len(TILTS))))
    finite: bool = True
    early: Doubles = field(default_factory=lambda: np.empty(0))

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        mechanism = batch.manifest.mechanism
        return _BatchNoise(mechanism) if mechanism.draw.arrays() else None

    @override
    def merge(self, batch: int, found: NoiseEvidence) -> None:
        for kind, tally in found.tallies.items():
            self.tallies.setdefault(kind, NoiseTally()).merge(tally)
        for width, repeats in found.repeats.items():
            self.repeats.setdefault(width, Repeats(width)).merge(repeats)
        self.outcomes += found.outcomes
        self.finite = self.finite and found.finite
        self.early = np.concatenate([self.early, found.early])[:MOST_NOISE]

    def take(self, kind: str, quantiles: Doubles, before: Doubles | None) -> Doubles:
        """Take in a step's new noise of a kind; return its normal scores, next step's `before`."""
        from scipy.fft import dct  # type: ignore[import-untyped]  # slow to load, and few runs have noise
        from scipy.special import ndtr, ndtri  # type: ignore[import-untyped]

        scores: Doubles = ndtri(np.clip(quantiles, _EDGE, 1 - _EDGE))
        seen = {OWN: quantiles}
        if len(scores) > 1:
            seen[TURNED] = ndtr(dct(scores, norm="ortho"))
        if before is not None and (length := float(np.linalg.norm(before[: len(scores)]))) > 0:
            along = float(scores[: len(before)] @ before[: len(scores)]) / length
            seen[ALONG] = ndtr(np.array([along]))
        for view, numbers in seen.items():
            self.tallies.setdefault((kind, view), NoiseTally()).take(numbers)
        width = min(2, len(quantiles))
        self.repeats.setdefault(width, Repeats(width)).take(quantiles)
        if len(self.early) < MOST_NOISE:
            self.early = np.concatenate([self.early, quantiles])[:MOST_NOISE]
        return scores

    def take_outcome(self, private: bool, chance: float) -> None:
        """Take in what a test said, which has this probability of asking for a private token."""
        chances = np.maximum([1 - chance, chance], np.finfo(np.float64).tiny)
        found = tilted(np.log(chances), np.array([not private, private]))
        self.outcomes[[0, 1 + (chance > 1 / 2)]] += found


class _BatchNoise(BatchEvidence):
    """The evidence about one batch's noise."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._found, self._mechanism = NoiseEvidence(), mechanism
        self._arrays: Arrays | None = None
        self._before: dict[str, Doubles] = {}

    @override
    def step(self, view: StepView) -> None:
        mechanism = self._mechanism
        found = mechanism.draw.quantiles(
            view.arrays, self._arrays, mechanism.aggregator, mechanism.clip
        )
        self._arrays = view.arrays
        if not all(np.isfinite(quantiles).all() for quantiles in found.values()):
            self._found.finite = False
            return
        for kind, quantiles in found.items():
            if len(quantiles):
                self._before[kind] = self._found.take(kind, quantiles, self._before.get(kind))
        if (outcome := mechanism.draw.outcome(view.arrays)) is not None:
            self._found.take_outcome(*outcome)

    @override
    def result(self) -> NoiseEvidence:
        return self._found


@RunCheck(id="sampling.noise", gathers=(NoiseEvidence,))
def noise_is_as_declared(run: AuditedRun) -> Outcome:
    """Compare each kind of noise with its declared size, distribution and course; find repeats."""
    found = run[NoiseEvidence]
    if found.finite and not found.tallies:
        return Outcome("skip", "none")
    for outcome in _not_declared(found):
        return outcome
    own = {kind: tally for (kind, view), tally in found.tallies.items() if view == OWN}
    kinds = tuple(
        Finding(
            code="noise.kind", values={"kind": kind, "numbers": tally.number, "apart": tally.apart}
        )
        for kind, tally in own.items()
    )
    fewest = min(own, key=lambda kind: own[kind].number)
    if own[fewest].number < FEWEST:
        return Outcome("skip", "too-few", {"kinds": kinds, "least": FEWEST, "fewest": fewest})
    return Outcome("pass", "as-declared", {"kinds": kinds})


def _not_declared(found: NoiseEvidence) -> Iterator[Outcome]:
    """Yield the failures that honest noise hardly has."""
    if not found.finite:
        yield Outcome("fail", "not-finite")
    for repeats in found.repeats.values():
        if alarm := repeats.alarm:
            yield alarm
    for (kind, view), tally in found.tallies.items():
        if alarm := tally.alarm:
            where: dict[str, Value] = {"kind": kind, "view": Finding(code=view)}
            yield replace(alarm, values={**alarm.values, **where})
    evidence = float(np.logaddexp.reduce(found.outcomes, axis=None)) - math.log(found.outcomes.size)
    if evidence >= -math.log(ALARM):
        often = TILTS[found.outcomes.max(axis=0).argmax()] > 0
        values: dict[str, Value] = {"evidence": Quantity(value=evidence, unit="nats")}
        yield Outcome(
            "fail", "tests-agree-too-often" if often else "tests-agree-too-seldom", values
        )
