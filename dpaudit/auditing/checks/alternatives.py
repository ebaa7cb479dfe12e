"""Alternatives to the declared sampling: every alternative's likelihood against the distribution.

A family of alternatives is one small class: its names, and the likelihood ratios of a step. One
line of FAMILIES makes the test try it. Under the declared distribution a ratio's expectation is 1
at most, whatever was drawn before: the bound on false alarms needs no more
(docs/mathematics.md#the-sampling-test).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.draws import Doubles, DrawnSteps
from dpaudit.mechanisms import blocks
from dpaudit.results import Finding

#: Outcomes are held against their probabilities to the power of 1 plus each of these: too likely
#: ones, and too rare.
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


class Ratios(NamedTuple):
    """A family's log-likelihood ratios at some steps, in nats.

    Attributes:
        found: [settings, steps] log q(token) - log p(token); -inf where an alternative could not
            have drawn the token.
        mean: [settings, steps] what the alternative itself expects of it.
        variance: [settings, steps] likewise.
    """

    found: Doubles
    mean: Doubles
    variance: Doubles


class Family(ABC):
    """Alternatives of one kind, with several settings.

    Attributes:
        code: what the catalogue has their name by.
    """

    code: ClassVar[str]

    def __init__(self, *settings: float) -> None:
        self.settings = np.array(settings, dtype=np.float64)

    def names(self, temperature: float) -> list[Finding]:
        """Return each alternative with its setting, at this declared temperature."""
        return [
            Finding(code=self.code, values={"setting": setting})
            for setting in self.settings.tolist()
        ]

    @abstractmethod
    def ratios(self, steps: DrawnSteps) -> Ratios:
        """Return each alternative's likelihood ratio against the declared distribution."""


class Temperatures(Family):
    """Other temperatures, as multiples of the declared one."""

    code = "sampling.temperature"

    @override
    def names(self, temperature: float) -> list[Finding]:
        return [
            Finding(code=self.code, values={"setting": each * temperature})
            for each in self.settings.tolist()
        ]

    @override
    def ratios(self, steps: DrawnSteps) -> Ratios:
        """Return the ratios: a level's is linear in its score, so moments follow from scores."""
        levels, below, factors = steps.levels, steps.below, self.settings[:, None]
        total, mean, square = (np.empty((len(factors), len(steps))) for _ in range(3))
        parts = list(blocks(len(factors), 8 * len(below)))
        spare = np.empty((len(factors[parts[0]]), len(below)))
        for rows in parts:
            weights = np.multiply(below, 1 / factors[rows], out=spare[: len(factors[rows])])
            np.exp(weights, out=weights)
            weights *= steps.counts
            total[rows] = levels.sums(weights)
            weights *= below
            mean[rows] = levels.sums(weights) / total[rows]
            weights *= below
            square[rows] = levels.sums(weights) / total[rows]
        slope, shift = 1 / factors - 1, np.log(total) - steps.log_totals
        found = slope * below[steps.level] - shift
        return Ratios(found, slope * mean - shift, slope**2 * np.maximum(square - mean**2, 0.0))


class Truncations(Family):
    """Only so many of the most probable tokens, in their declared proportions."""

    @abstractmethod
    def kept(self, steps: DrawnSteps) -> Doubles:
        """Return how many tokens each alternative keeps at each step, [settings, steps or 1].

        As many as the step has, or more, are all of them.
        """

    @override
    def ratios(self, steps: DrawnSteps) -> Ratios:
        kept = np.minimum(self.kept(steps), steps.spans.lengths)
        gain = -np.log(steps.mass_of(kept))
        return Ratios(np.where(steps.ranks < kept, gain, -np.inf), gain, np.zeros(gain.shape))


class TopK(Truncations):
    """The k most probable tokens."""

    code = "sampling.top-k"

    @override
    def names(self, temperature: float) -> list[Finding]:
        named = super().names(temperature)
        return [
            GREEDY if k == 1 else name
            for k, name in zip(self.settings.tolist(), named, strict=True)
        ]

    @override
    def kept(self, steps: DrawnSteps) -> Doubles:
        return self.settings[:, None]


class TopP(Truncations):
    """The smallest set of the most probable tokens that has this probability."""

    code = "sampling.top-p"

    @override
    def kept(self, steps: DrawnSteps) -> Doubles:
        mass, ends, levels = steps.mass, steps.ends, steps.levels
        at = levels.starts + levels.counts(mass < self.settings[:, None])
        rounded = at == levels.ends  # rounding may leave the last sum below a share
        at = np.minimum(at, levels.ends - 1)
        before = np.where(at > levels.starts, mass[at - 1], 0.0)
        whole = (
            ends[at]
            - steps.counts[at]
            + np.ceil((self.settings[:, None] - before) / steps.each[at])
        )
        return np.asarray(np.where(rounded, steps.spans.lengths, whole))


class MinP(Truncations):
    """Every token with at least this share of the most probable one's probability."""

    code = "sampling.min-p"

    @override
    def kept(self, steps: DrawnSteps) -> Doubles:
        levels = steps.levels
        likely = levels.counts(-steps.below <= -np.log(self.settings)[:, None])
        return np.asarray(steps.ends[levels.starts + likely - 1])


class Typical(Family):
    """Locally typical sampling, up to this probability.

    It keeps the tokens whose surprise is nearest to the entropy.
    """

    code = "sampling.typical"

    @override
    def ratios(self, steps: DrawnSteps) -> Ratios:
        """Return the ratios, with whole levels kept, as by a threshold on the distance."""
        levels = steps.levels
        shares = steps.weights / levels.spread(steps.totals)
        distances = np.abs(steps.below - levels.spread(levels.sums(shares * steps.below)))
        # NaN is behind all that a step has.
        order = levels.padded(distances, np.nan).argsort(axis=-1, kind="stable")
        rows = np.arange(len(steps))
        mass = levels.padded(shares, 0.0)[rows[:, None], order].cumsum(axis=-1)
        last = (mass < self.settings[:, None, None]).sum(axis=-1)
        last = np.minimum(last, levels.lengths - 1)
        rank = (order == (steps.level - levels.starts)[:, None]).argmax(axis=-1)
        gain = -np.log(np.minimum(mass[rows, last], 1.0))
        return Ratios(np.where(rank <= last, gain, -np.inf), gain, np.zeros(gain.shape))


class Penalties(Family):
    """Other scores for the tokens that the text has already."""

    @abstractmethod
    def shifts(self, steps: DrawnSteps) -> Doubles:
        """Return [settings, m] what is added to the scores of the tokens before, in logit units."""

    @override
    def ratios(self, steps: DrawnSteps) -> Ratios:
        """Return the ratios: all other tokens keep their scores, so sums are over those before."""
        earlier, (declared, rest) = steps.earlier, steps.seen
        shifts = self.shifts(steps) / steps.temperature
        shifted = np.exp(shifts)
        shifted *= declared
        total = rest + earlier.sums(shifted)
        shifted *= shifts
        mean = earlier.sums(shifted) / total
        shifted *= shifts
        variance = earlier.sums(shifted) / total - mean**2
        again = steps.before == earlier.spread(steps.tokens)
        own = np.zeros(total.shape)
        own[:, earlier.counts(again) > 0] = shifts[:, again]
        total = np.log(total)
        some = earlier.lengths > 0
        ratios = (own - total, mean - total, np.maximum(variance, 0.0))
        return Ratios(*(np.where(some, each, 0.0) for each in ratios))


class Repetition(Penalties):
    """Division of scores above 0 by the penalty, and multiplication of others.

    Source: Keskar et al. 2019, as samplers have it.
    """

    code = "sampling.repetition-penalty"

    @override
    def shifts(self, steps: DrawnSteps) -> Doubles:
        scores, penalty = steps.aggregate[steps.before].astype(np.float64), self.settings[:, None]
        return np.asarray(np.where(scores > 0, scores / penalty, scores * penalty) - scores)


class Presence(Penalties):
    """The penalty is taken from the scores of tokens that the text has."""

    code = "sampling.presence-penalty"

    @override
    def shifts(self, steps: DrawnSteps) -> Doubles:
        return np.repeat(-self.settings[:, None], len(steps.before), axis=1)


class Frequency(Penalties):
    """The penalty is taken once for every time that the text has the token."""

    code = "sampling.frequency-penalty"

    @override
    def shifts(self, steps: DrawnSteps) -> Doubles:
        return -self.settings[:, None] * steps.times


#: What is tried. The first are those whose power a pass states.
TEMPERATURES = Temperatures(
    0.1,
    0.25,
    0.5,
    0.6,
    2 / 3,
    0.75,
    0.8,
    0.85,
    0.9,
    0.95,
    0.98,
    1.02,
    1.05,
    1.1,
    1.2,
    1.35,
    1.5,
    2.0,
    4.0,
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
