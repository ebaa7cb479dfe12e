"""How a token follows from an aggregate: the third part of a mechanism."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple, Protocol

import numpy as np
from pydantic import Field

from dpaudit.claims import ApproximateClaim, ClaimKind
from dpaudit.mechanisms.interfaces import (
    NO_FIXED_COLUMNS,
    Aggregator,
    Arrays,
    Doubles,
    Fields,
    FixedColumns,
    Floats,
    Positive,
    Problem,
    StepArray,
    blocks,
    log_probability,
)
from dpaudit.mechanisms.mean import Mean
from dpaudit.mechanisms.probabilities import Probabilities

#: By how much more than the clip, relatively, recorded probabilities may add up to, with room (`Probabilities`).
_SUM_ROOM = 2.0**-12
#: The highest of some sums with noise is this many standard deviations below the largest sum at least, and evaluated at
#: so many points.
_REACH, _POINTS = 9.0, 192
#: A step's array of what was added to its aggregate.
NOISE = "noise"
#: Why checks are not about draws of some kind: codes of the catalogue.
ALL_IN, NO_TESTS = "mechanisms.every-context-drawn", "mechanisms.no-tests"
NO_EX_POST_COST = dict.fromkeys(
    ("neighbors.addition", "neighbors.removal", "neighbors.regenerated", "replay.lower-bound", "canaries.lower-bound"),
    "mechanisms.no-ex-post-cost",
)


class GaussianDraws(NamedTuple):
    """What draws by noise cost: a Gaussian mechanism each, of contexts that are sampled by coins of their own.

    Attributes:
        multiplier: the noise's standard deviation, in units of how far one context moves the sum (l2).
        rate: the probability with which a context is in a draw.
    """

    multiplier: float
    rate: float


class Order(Protocol):
    """What one batch's steps were, where that says what may come next."""

    def objection(self, arrays: Arrays) -> Problem | None:
        """Return why a step with these arrays cannot come next; None where it can. It has come now."""


class Draw(Fields, ABC):
    """How a token follows from an aggregate.

    Attributes:
        name: as configs and run.json have it.
        likely: whether tokens have probabilities, given all of the record.
        ex_post: whether a text has an ex-post cost. Where noise is on record it has none of its own.
        needs: what other fields of its mechanism must be, None for absent.
        not_applicable: checks that are not about it, with the reason, a code of the catalogue.
    """

    name: ClassVar[str]
    likely: ClassVar[bool] = True
    ex_post: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, str | float | None]] = {}
    not_applicable: ClassVar[Mapping[str, str]] = {
        "sampling.noise": "mechanisms.no-noise",
        "sampling.subsets": ALL_IN,
        **dict.fromkeys(("sampling.test", "sampling.threshold"), NO_TESTS),
    }

    def kinds(self, of_aggregator: tuple[ClaimKind, ...]) -> tuple[ClaimKind, ...]:
        """Of claims that its runs support, where those of the aggregator are these."""
        return of_aggregator if self.ex_post else (ApproximateClaim.id,)

    def arrays(self) -> dict[str, StepArray]:
        """What a step records of the draw, by name."""
        return {}

    @property
    def rate(self) -> float:
        """The probability with which a context is in a draw, by a coin of its own."""
        return 1.0

    @property
    def gaussian(self) -> GaussianDraws | None:
        """What a draw by noise costs where one context comes or goes; None of one by probabilities."""
        return None

    def rho(self, eta: float, aggregator: Aggregator) -> float | None:
        """zCDP of any number of tokens where one context comes or goes, rounded up; None where each one costs.

        Args:
            eta: bounded range of one draw by softmax, in nats.
            aggregator: what contributions became one vector by.
        """
        return None

    def quantiles(
        self, arrays: Arrays, before: Arrays | None, aggregator: Aggregator, clip: float
    ) -> Mapping[str, Doubles]:
        """Of a step's new noise, [k] of each kind, in its declared distribution: uniform in [0, 1] if it is of that.

        NaN of what is no number. A kind is what is drawn for one purpose, in words.

        Args:
            arrays: the step's.
            before: those of the batch's step before; None at its first.
            aggregator: the mechanism's.
            clip: the mechanism's.
        """
        return {}

    def order(self) -> Order | None:
        """Of a new batch; None where any step may come after any other."""
        return None

    def test_problem(self, arrays: Arrays, contributions: Floats, aggregator: Aggregator) -> Problem | None:
        """Return why a step's test is not of its contributions [n, S]; None where it is, or there is none."""
        return None

    def scores(self, aggregate: Floats, arrays: Arrays, temperature: float) -> Floats:
        """What the token was drawn from, [S], at a temperature, for an aggregate [S] and a step's arrays."""
        return aggregate

    def odds(
        self, aggregate: Floats, arrays: Arrays, temperature: float, aggregator: Aggregator, clip: float
    ) -> Floats:
        """What softmax at a temperature gives each token's probability of, [S], over the noise that chooses the token.

        Arguments are those of `scores` and `quantiles`.
        """
        return self.scores(aggregate, arrays, temperature)

    def outcome(self, arrays: Arrays) -> tuple[bool, float] | None:
        """Whether a step's test asked for a private token, and the probability over the test's own noise that it would.

        None where there is no test.
        """
        return None

    @abstractmethod
    def log_probability(
        self, scores: Floats, token: int, temperature: float, fixed: FixedColumns = NO_FIXED_COLUMNS
    ) -> float:
        """Logarithm of a token's probability, in nats, given scores [S] and further columns."""


class Softmax(Draw):
    """A token has the probability softmax(aggregate / temperature)."""

    name: ClassVar[str] = "softmax"

    def log_probability(
        self, scores: Floats, token: int, temperature: float, fixed: FixedColumns = NO_FIXED_COLUMNS
    ) -> float:
        """See `Draw`."""
        return log_probability(scores, token, temperature, fixed)


class NoisyArgmax(Draw):
    """The token with the highest sum once normal noise is added to each (Tang et al., arXiv 2309.11765, algorithm 1).

    For every draw each context is in by a coin of its own, and gives 0 where it is not. The standard deviation of the
    noise is noise_multiplier * clip / divisor, and one context moves the mean by at most clip / divisor in the l2 norm.
    A text has no ex-post cost: with the noise on record nothing is left to chance.

    Attributes:
        noise_multiplier: sigma.
        sampling_rate: the probability with which a context is in a draw.
    """

    name: ClassVar[str] = "noisy-argmax"
    likely: ClassVar[bool] = False
    ex_post: ClassVar[bool] = False
    needs: ClassVar[Mapping[str, str | float | None]] = {
        "contribution": Probabilities.name,
        "aggregator": Mean.name,
        "temperature": 1.0,
        "budget": None,
        "grid": None,
    }
    not_applicable: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("sampling.test", "sampling.threshold"), NO_TESTS),
        **NO_EX_POST_COST,
    }

    noise_multiplier: Positive
    sampling_rate: Annotated[float, Field(gt=0, le=1)]

    def arrays(self) -> dict[str, StepArray]:
        """See `Draw`: the noise in every sum."""
        return {NOISE: StepArray("<f8")}

    def scores(self, aggregate: Floats, arrays: Arrays, temperature: float) -> Floats:
        """See `Draw`."""
        noisy: Floats = aggregate + arrays[NOISE]
        return noisy

    def log_probability(
        self, scores: Floats, token: int, temperature: float, fixed: FixedColumns = NO_FIXED_COLUMNS
    ) -> float:
        """See `Draw`: all or nothing."""
        return 0.0 if scores[token] == scores.max() else -np.inf

    def odds(
        self, aggregate: Floats, arrays: Arrays, temperature: float, aggregator: Aggregator, clip: float
    ) -> Floats:
        """See `Draw`: the temperature is 1, and these are logarithms of probabilities of being the highest."""
        from scipy.special import log_ndtr, logsumexp  # type: ignore[import-untyped]

        means = aggregate.astype(np.float64) / self._size(aggregator, clip)
        # Where the highest sum may be. Of a function as smooth as this one the trapezoidal rule loses nothing.
        highest = means.max() + np.linspace(-_REACH, _REACH + math.sqrt(2 * math.log(len(means))), _POINTS)
        below, each = np.zeros(_POINTS), np.empty(len(means))
        for rows in blocks(len(means), _POINTS):
            below += log_ndtr(highest - means[rows, None]).sum(axis=0)
        for rows in blocks(len(means), _POINTS):
            gaps = highest - means[rows, None]
            each[rows] = logsumexp(below - log_ndtr(gaps) - gaps**2 / 2, axis=1)
        odds: Floats = each
        return odds

    @property
    def rate(self) -> float:
        """See `Draw`."""
        return self.sampling_rate

    @property
    def gaussian(self) -> GaussianDraws:
        """See `Draw`."""
        return GaussianDraws(self.noise_multiplier * (1 - _SUM_ROOM), self.sampling_rate)

    def quantiles(
        self, arrays: Arrays, before: Arrays | None, aggregator: Aggregator, clip: float
    ) -> Mapping[str, Doubles]:
        """See `Draw`: of the normal noise in every sum."""
        from scipy.special import ndtr  # slow to load, and few runs need it

        noise = arrays[NOISE] / self._size(aggregator, clip)
        return {"noise in sums": np.where(np.isfinite(noise), ndtr(noise), np.nan)}

    def _size(self, aggregator: Aggregator, clip: float) -> float:
        """The noise's standard deviation."""
        assert isinstance(aggregator, Mean)  # by `needs`
        return self.noise_multiplier * clip / aggregator.divisor
