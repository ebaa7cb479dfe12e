"""The rule by which a token follows from an aggregate: the third part of a mechanism."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from typing_extensions import override

from dpaudit.mechanisms.claims import ApproximateClaim, ClaimKind
from dpaudit.mechanisms.interfaces import (
    Aggregator,
    Arrays,
    Doubles,
    Floats,
    Part,
    Problem,
    ReducedSteps,
    StepArray,
    log_probabilities,
)

#: The name of a step's array of noise, which was added to its aggregate.
NOISE = "noise"
#: Reasons why checks do not apply to draws of some kind: codes of the catalogue.
ALL_IN = "mechanisms.every-context-drawn"
NO_EX_POST_COST = dict.fromkeys(
    (
        "neighbors.addition",
        "neighbors.removal",
        "neighbors.regenerated",
        "replay.lower-bound",
        "canaries.lower-bound",
    ),
    "mechanisms.no-ex-post-cost",
)


class GaussianDraws(NamedTuple):
    """The cost of draws by noise.

    Each is a Gaussian mechanism over contexts sampled by their own coins.

    Attributes:
        multiplier: the noise's standard deviation, in units of how far one context moves the sum
            (l2).
        rate: the probability with which a context is in a draw.
    """

    multiplier: float
    rate: float


class Draw(Part):
    """The rule by which a token follows from an aggregate.

    Attributes:
        likely: whether tokens have probabilities, given all of the record.
        ex_post: whether a text has an ex-post cost. It has none of its own where noise is recorded.
        in_blocks: whether `scores` and `odds` of a column hang on that column alone. Then they are
            asked about the columns of several steps at once.
        needs: what other fields of its mechanism must be, None for absent.
        not_applicable: checks that do not apply to it, with the reason, a code of the catalogue.
        paid_for, proof: what a run's cost is for, where `rho` bounds all of its tokens together,
            and where that is proved.
    """

    likely: ClassVar[bool] = True
    ex_post: ClassVar[bool] = True
    in_blocks: ClassVar[bool] = False
    needs: ClassVar[Mapping[str, str | float | None]] = {}
    not_applicable: ClassVar[Mapping[str, str]] = {
        "sampling.noise": "mechanisms.no-noise",
        "sampling.subsets": ALL_IN,
    }

    paid_for: ClassVar[str] = "its draws"
    proof: ClassVar[str] = "docs/plugins.md#a-mechanism"

    def kinds(self, of_aggregator: tuple[ClaimKind, ...]) -> tuple[ClaimKind, ...]:
        """Return the kinds of claims that its runs support, given those of the aggregator."""
        return of_aggregator if self.ex_post else (ApproximateClaim.id,)

    def arrays(self) -> dict[str, StepArray]:
        """Return the arrays that a step records of the draw, by name."""
        return {}

    def absent(self, name: str) -> Doubles | None:
        """Return the array to record in a step that has none of this name.

        It is None if it must have one.
        """
        return None

    @property
    def rate(self) -> float:
        """The probability with which a context is in a draw, by a coin of its own."""
        return 1.0

    @property
    def gaussian(self) -> GaussianDraws | None:
        """The cost of a draw by noise when one context comes or goes.

        It is None for draws by probabilities.
        """
        return None

    def rho(self, eta: float, aggregator: Aggregator) -> float | None:
        """Return the zCDP of any number of tokens when one context comes or goes, rounded up.

        It is None if each token costs.

        Args:
            eta: bounded range of one draw by softmax, in nats.
            aggregator: the rule that made one vector of the contributions.
        """
        return None

    def quantiles(
        self, arrays: Arrays, before: Arrays | None, aggregator: Aggregator, clip: float
    ) -> Mapping[str, Doubles]:
        """Return the quantiles of a step's new noise in its declared distribution, [k] a kind.

        They are uniform in [0, 1] if the noise has that distribution, and NaN of a value that is no
        number. A kind is what is drawn for one purpose, in words.

        Args:
            arrays: the step's.
            before: those of the batch's step before; None at its first.
            aggregator: the mechanism's.
            clip: the mechanism's.
        """
        return {}

    def test_problem(
        self, arrays: Arrays, contributions: Floats, aggregator: Aggregator
    ) -> Problem | None:
        """Return why a step's test contradicts its contributions [n, S].

        It is None without a problem or a test.
        """
        return None

    def scores(self, aggregate: Floats, arrays: Arrays, temperature: float) -> Floats:
        """Return the scores [S] to draw the token from, given an aggregate [S]."""
        return aggregate

    def odds(
        self,
        aggregate: Floats,
        arrays: Arrays,
        temperature: float,
        aggregator: Aggregator,
        clip: float,
    ) -> Floats:
        """Return scores [S] whose softmax at a temperature gives the tokens' probabilities.

        Those are the probabilities over the noise that chooses the token. Arguments are those of
        `scores` and `quantiles`.
        """
        return self.scores(aggregate, arrays, temperature)

    def outcome(self, arrays: Arrays) -> tuple[bool, float] | None:
        """Return whether a step's test asked for a private token, and how probable that was.

        The probability is over the test's own noise. Without a test it returns None.
        """
        return None

    @abstractmethod
    def log_probabilities(self, scores: Floats, steps: ReducedSteps, temperature: float) -> Doubles:
        """Return [k] log-probabilities of the steps' tokens, in nats, given scores [columns]."""


class Softmax(Draw):
    """A token has the probability softmax(aggregate / temperature)."""

    name: ClassVar[str] = "softmax"
    in_blocks: ClassVar[bool] = True

    @override
    def log_probabilities(self, scores: Floats, steps: ReducedSteps, temperature: float) -> Doubles:
        return log_probabilities(scores, steps.tokens, steps.spans, temperature, steps.log_sums)
