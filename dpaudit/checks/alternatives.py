"""Alternatives to the declared sampling: every alternative's likelihood against the distribution.

A family of alternatives is one small class: its names, and the likelihood ratios of a step. One
line of FAMILIES makes the test try it. Under the declared distribution a ratio's expectation is 1
at most, whatever was drawn before: the bound on false alarms needs no more
(docs/mathematics.md#the-sampling-test).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.checks.draws import Doubles, DrawnStep
from dpaudit.results import Finding

#: Outcomes are held against their probabilities to the power of 1 plus each of these: too likely ones, and too rare.
TILTS = np.array([-0.75, -0.5, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
#: The most probable token always.
GREEDY = Finding(code="sampling.greedy")


def tilted(logarithms: Doubles, counts: NDArray[np.integer]) -> Doubles:
    """Return [TILTS] log-likelihood ratios of outcomes, by their log-probabilities and counts, [K].

    Under a tilt t an outcome of probability p has p^(1 + t) / Z, where Z makes all of them add up
    to 1.
    """
    from scipy.special import logsumexp  # type: ignore[import-untyped]  # slow to load, and few runs need it

    logs = np.maximum(logarithms, -700.0)
    totals = logsumexp((1 + TILTS[:, None]) * logs, axis=1)
    evidence: Doubles = TILTS * float((counts * logs).sum()) - totals * int(counts.sum())
    return evidence


@dataclass(frozen=True)
class Ratios:
    """A family's log-likelihood ratios at one step, in nats.

    Attributes:
        found: [k] log q(token) - log p(token); -inf where an alternative could not have drawn the token.
        mean: [k] what the alternative itself expects of it.
        variance: [k] likewise.
    """

    found: Doubles
    mean: Doubles
    variance: Doubles


class Family(ABC):
    """Alternatives of one kind, k settings of them.

    Attributes:
        code: what the catalogue has their name by.
    """

    code: ClassVar[str]

    def __init__(self, *settings: float) -> None:
        self.settings = np.array(settings, dtype=np.float64)

    def names(self, temperature: float) -> list[Finding]:
        """Return each alternative with its setting, at this declared temperature."""
        return [Finding(code=self.code, values={"setting": setting}) for setting in self.settings.tolist()]

    @abstractmethod
    def ratios(self, step: DrawnStep) -> Ratios:
        """Return each alternative's likelihood ratio against the declared distribution."""


class Temperatures(Family):
    """Other temperatures, as multiples of the declared one."""

    code = "sampling.temperature"

    @override
    def names(self, temperature: float) -> list[Finding]:
        return [Finding(code=self.code, values={"setting": each * temperature}) for each in self.settings.tolist()]

    @override
    def ratios(self, step: DrawnStep) -> Ratios:
        """Return the ratios: a level's log-ratio is linear in its score, so its moments follow."""
        below, weights = step.below, np.empty_like(step.below)
        found, means, variances = (np.empty(len(self.settings)) for _ in range(3))
        for place, factor in enumerate(self.settings.tolist()):
            np.exp(np.multiply(below, 1 / factor, out=weights), out=weights)
            weights *= step.counts
            total = float(weights.sum())
            weights *= below
            mean = float(weights.sum()) / total
            weights *= below
            square = float(weights.sum()) / total
            slope, shift = 1 / factor - 1, math.log(total) - step.log_total
            found[place] = slope * float(below[step.level]) - shift
            means[place] = slope * mean - shift
            variances[place] = slope**2 * max(square - mean**2, 0.0)
        return Ratios(found, means, variances)


class Truncations(Family):
    """Only so many of the most probable tokens, in their declared proportions."""

    @abstractmethod
    def kept(self, step: DrawnStep) -> Doubles:
        """Return how many tokens each alternative keeps; S or more are all of them."""

    @override
    def ratios(self, step: DrawnStep) -> Ratios:
        kept = np.minimum(self.kept(step), step.ends[-1])
        gain = -np.log(step.mass_of(kept))
        return Ratios(np.where(step.rank < kept, gain, -np.inf), gain, np.zeros(len(gain)))


class TopK(Truncations):
    """The k most probable tokens."""

    code = "sampling.top-k"

    @override
    def names(self, temperature: float) -> list[Finding]:
        named = super().names(temperature)
        return [GREEDY if k == 1 else name for k, name in zip(self.settings.tolist(), named, strict=True)]

    @override
    def kept(self, step: DrawnStep) -> Doubles:
        return np.array(self.settings)


class TopP(Truncations):
    """The smallest set of the most probable tokens that has this probability."""

    code = "sampling.top-p"

    @override
    def kept(self, step: DrawnStep) -> Doubles:
        mass, ends = step.mass, step.ends
        at = np.searchsorted(mass, self.settings)
        at, rounded = np.minimum(at, len(mass) - 1), at == len(mass)  # rounding may leave the last sum below a share
        before = np.concatenate([[0.0], mass])[at]
        whole = ends[at] - step.counts[at] + np.ceil((self.settings - before) / step.each[at])
        return np.asarray(np.where(rounded, ends[-1], whole))


class MinP(Truncations):
    """Every token with at least this share of the most probable one's probability."""

    code = "sampling.min-p"

    @override
    def kept(self, step: DrawnStep) -> Doubles:
        levels = np.searchsorted(-step.below, -np.log(self.settings), side="right")
        return np.asarray(step.ends[levels - 1])


class Typical(Family):
    """Locally typical sampling, up to this probability.

    It keeps the tokens whose surprise is nearest to the entropy.
    """

    code = "sampling.typical"

    @override
    def ratios(self, step: DrawnStep) -> Ratios:
        """Return the ratios, with whole levels kept, as by a threshold on the distance."""
        share = step.weights / float(step.weights.sum())
        mean = float((share * step.below).sum())
        order = np.argsort(np.abs(step.below - mean), kind="stable")
        mass = np.cumsum(share[order])
        last = np.minimum(np.searchsorted(mass, self.settings), len(mass) - 1)
        gain = -np.log(np.minimum(mass[last], 1.0))
        own = int(np.flatnonzero(order == step.level)[0])
        return Ratios(np.where(own <= last, gain, -np.inf), gain, np.zeros(len(gain)))


class Penalties(Family):
    """Other scores for the tokens that the text has already."""

    @abstractmethod
    def shifts(self, step: DrawnStep) -> Doubles:
        """Return [k, m] what is added to the scores of the tokens before, in logit units."""

    @override
    def ratios(self, step: DrawnStep) -> Ratios:
        """Return the ratios: all other tokens keep their scores, so sums are over those before."""
        if not len(step.before):
            nothing = np.zeros(len(self.settings))
            return Ratios(nothing, nothing, nothing)
        shifts = self.shifts(step) / step.temperature
        declared, rest = step.seen
        shifted = np.exp(shifts)
        shifted *= declared
        total = rest + shifted.sum(axis=1)
        shifted *= shifts
        mean = shifted.sum(axis=1) / total
        shifted *= shifts
        variance = shifted.sum(axis=1) / total - mean**2
        own = shifts[:, step.before == step.token].sum(axis=1)
        total = np.log(total)
        return Ratios(own - total, mean - total, np.maximum(variance, 0.0))


class Repetition(Penalties):
    """Division of scores above 0 by the penalty, and multiplication of others.

    Source: Keskar et al. 2019, as samplers have it.
    """

    code = "sampling.repetition-penalty"

    @override
    def shifts(self, step: DrawnStep) -> Doubles:
        scores, penalty = step.aggregate[step.before].astype(np.float64), self.settings[:, None]
        return np.asarray(np.where(scores > 0, scores / penalty, scores * penalty) - scores)


class Presence(Penalties):
    """The penalty is taken from the scores of tokens that the text has."""

    code = "sampling.presence-penalty"

    @override
    def shifts(self, step: DrawnStep) -> Doubles:
        return np.repeat(-self.settings[:, None], len(step.before), axis=1)


class Frequency(Penalties):
    """The penalty is taken once for every time that the text has the token."""

    code = "sampling.frequency-penalty"

    @override
    def shifts(self, step: DrawnStep) -> Doubles:
        return -self.settings[:, None] * step.times


#: What is tried. The first are those whose power a pass states.
TEMPERATURES = Temperatures(
    0.1, 0.25, 0.5, 0.6, 2 / 3, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 4.0
)
TOP_K = TopK(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
FAMILIES: tuple[Family, ...] = (
    TEMPERATURES,
    TOP_K,
    TopP(0.5, 0.8, 0.9, 0.95, 0.98, 0.99),
    MinP(0.01, 0.02, 0.05, 0.1, 0.2),
    Typical(0.2, 0.5, 0.8, 0.9, 0.95),
    Repetition(1.05, 1.1, 1.2, 1.3, 1.5, 2.0),
    Presence(0.25, 0.5, 1.0, 1.5, 2.0),
    Frequency(0.1, 0.25, 0.5, 1.0, 2.0),
)
