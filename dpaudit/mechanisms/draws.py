"""How a token follows from an aggregate: the third part of a mechanism."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from dpaudit.claims import ApproximateClaim, ClaimKind
from dpaudit.mechanisms.interfaces import (
    NO_FIXED_COLUMNS,
    Aggregator,
    Arrays,
    Doubles,
    Fields,
    FixedColumns,
    Floats,
    Problem,
    ReducedSteps,
    StepArray,
    log_probabilities,
    log_probability,
)

#: A step's array of what was added to its aggregate.
NOISE = "noise"
#: Why checks are not about draws of some kind: codes of the catalogue.
ALL_IN = "mechanisms.every-context-drawn"
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


class Draw(Fields, ABC):
    """How a token follows from an aggregate.

    Attributes:
        name: as configs and run.json have it.
        likely: whether tokens have probabilities, given all of the record.
        ex_post: whether a text has an ex-post cost. Where noise is on record it has none of its own.
        needs: what other fields of its mechanism must be, None for absent.
        not_applicable: checks that are not about it, with the reason, a code of the catalogue.
        paid_for, proof: what a run's cost is for, where `rho` bounds all of its tokens together, and where that is
            proved.
    """

    name: ClassVar[str]
    likely: ClassVar[bool] = True
    ex_post: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, str | float | None]] = {}
    not_applicable: ClassVar[Mapping[str, str]] = {
        "sampling.noise": "mechanisms.no-noise",
        "sampling.subsets": ALL_IN,
    }

    paid_for: ClassVar[str] = "its draws"
    proof: ClassVar[str] = "docs/plugins.md#a-mechanism"

    def kinds(self, of_aggregator: tuple[ClaimKind, ...]) -> tuple[ClaimKind, ...]:
        """Of claims that its runs support, where those of the aggregator are these."""
        return of_aggregator if self.ex_post else (ApproximateClaim.id,)

    def arrays(self) -> dict[str, StepArray]:
        """What a step records of the draw, by name."""
        return {}

    def absent(self, name: str) -> Doubles | None:
        """What a step records as this array of the draw where it has none of its own; None where it must have one."""
        return None

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

    def log_probabilities(self, scores: Floats, steps: ReducedSteps, temperature: float) -> Doubles:
        """The same of k steps, whose columns lie one behind another: [k], in nats, given scores [columns].

        What does not say so itself is asked about one step at a time.
        """
        assert len(steps.spans) == 1
        step = steps.one(0)
        return np.array([self.log_probability(scores, step.token, temperature, step.fixed)])


class Softmax(Draw):
    """A token has the probability softmax(aggregate / temperature)."""

    name: ClassVar[str] = "softmax"

    def log_probability(
        self, scores: Floats, token: int, temperature: float, fixed: FixedColumns = NO_FIXED_COLUMNS
    ) -> float:
        """See `Draw`."""
        return log_probability(scores, token, temperature, fixed)

    def log_probabilities(self, scores: Floats, steps: ReducedSteps, temperature: float) -> Doubles:
        """See `Draw`."""
        return log_probabilities(scores, steps.tokens, steps.spans, temperature, steps.log_sums)
