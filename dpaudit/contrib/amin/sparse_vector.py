"""Private tokens if a noisy test asks for them, else public ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from pydantic import Field
from typing_extensions import override

from dpaudit.mechanisms import (
    ANCHOR,
    NO_EX_POST_COST,
    Aggregator,
    AnchoredDifferences,
    Arrays,
    Doubles,
    Draw,
    Floats,
    Mean,
    Positive,
    Problem,
    ReducedSteps,
    StepArray,
    blocks,
    log_probabilities,
    zcdp_of_draw,
)

#: A step's array of its test: `AboveThreshold`.
TEST = "test"
#: A recorded distance may be off by this share of its sensitivity, for sums in another order; a
#: test costs more by twice as much.
DISTANCE_ROOM = 2.0**-12


class AboveThreshold(NamedTuple):
    """One test, as recorded.

    Attributes:
        distance: of the contexts' mean probabilities from the public ones, in the l1 norm.
        threshold_noise: added to the threshold, and the same until a private token.
        query_noise: added to the distance; minus infinity where no test is made any more.
    """

    distance: float
    threshold_noise: float
    query_noise: float

    @classmethod
    def of(cls, arrays: Arrays) -> AboveThreshold:
        """Read a step's test."""
        return cls(*map(float, arrays[TEST]))


#: Of a step without one.
NO_TEST = AboveThreshold(0.0, 0.0, -math.inf)


class SparseVector(Draw):
    """Private tokens if a noisy test asks for them, else public ones.

    Source: Amin et al., arXiv 2407.12108.

    A batch tests before every token: is the distance of the contexts' mean probabilities from the
    public prompt's, with Laplace noise of scale 2 threshold_noise, at least the threshold with
    Laplace noise of scale threshold_noise? If so, the token is drawn from softmax(aggregate /
    temperature), the batch has one private token less, and the threshold is noised anew. If not, it
    is drawn from softmax(anchor / public_temperature), at no cost. Once all private tokens are used
    no test is made, and tokens are public.

    Distances are those of softmax(anchor + contribution) over a fixed divisor s, so a context that
    comes or goes moves them by at most 1/s in the l1 norm. All tests up to a private token, and
    with it, are one `above threshold` of pure epsilon 2 / (s threshold_noise) (Dwork and Roth,
    theorem 3.23).

    Attributes:
        threshold: which distance asks for a private token.
        threshold_noise: the scale of the noise on it.
        private_tokens: how many a batch has at most, over all its texts.
        public_temperature: of public tokens.
    """

    name: ClassVar[str] = "sparse-vector"
    ex_post: ClassVar[bool] = False
    needs: ClassVar[Mapping[str, str | float | None]] = {
        "contribution.kind": AnchoredDifferences.name,
        "aggregator.kind": Mean.name,
        "budget": None,
    }
    not_applicable: ClassVar[Mapping[str, str]] = {
        "sampling.subsets": Draw.not_applicable["sampling.subsets"],
        **NO_EX_POST_COST,
    }
    paid_for: ClassVar[str] = "its private tokens and their tests"
    proof: ClassVar[str] = "docs/mathematics.md#sparse-vector"

    threshold: Annotated[float, Field(ge=0, le=2)]
    threshold_noise: Positive
    private_tokens: Annotated[int, Field(ge=1, le=1 << 20)]
    public_temperature: Positive

    @override
    def arrays(self) -> dict[str, StepArray]:
        """Return the array of the test: distance and both noises."""
        return {TEST: StepArray("<f8", (len(AboveThreshold._fields),), columns=False)}

    def is_private(self, tested: AboveThreshold) -> bool:
        """Return whether a test asks for a private token."""
        return tested.distance + tested.query_noise >= self.threshold + tested.threshold_noise

    @override
    def absent(self, name: str) -> Doubles:
        """Return the array for no test, as after the last private token."""
        return np.array(NO_TEST)

    @override
    def test_problem(
        self, arrays: Arrays, contributions: Floats, aggregator: Aggregator
    ) -> Problem | None:
        """Return why a test's distance is not that of its contributions, or None."""
        assert isinstance(aggregator, Mean)  # by `needs`
        test = AboveThreshold.of(arrays)
        if test == NO_TEST:
            return None
        right = self.distance(contributions, arrays[ANCHOR], aggregator.divisor)
        # A comparison with NaN is false.
        if abs(test.distance - right) <= DISTANCE_ROOM / aggregator.divisor:
            return None
        return Problem("mechanisms.other-distance", {"tested": test.distance, "distance": right})

    @override
    def scores(self, aggregate: Floats, arrays: Arrays, temperature: float) -> Floats:
        """Return the aggregate, or public logits scaled so that the temperature cancels."""
        if self.is_private(AboveThreshold.of(arrays)):
            return aggregate
        public: Floats = arrays[ANCHOR].astype(np.float64) * (temperature / self.public_temperature)
        return public

    @override
    def log_probabilities(self, scores: Floats, steps: ReducedSteps, temperature: float) -> Doubles:
        return log_probabilities(scores, steps.tokens, steps.spans, temperature, steps.log_sums)

    @override
    def outcome(self, arrays: Arrays) -> tuple[bool, float] | None:
        tested = AboveThreshold.of(arrays)
        if tested == NO_TEST:
            return None
        gap = self.threshold + tested.threshold_noise - tested.distance
        return self.is_private(tested), float(_quantile(-gap / (2 * self.threshold_noise))[0])

    def distance(self, contributions: Floats, anchor: Floats, divisor: float) -> float:
        """Return the distance that a test reads, float64, in the l1 norm.

        Args:
            contributions: [n, S].
            anchor: [S] public log-probabilities.
            divisor: the mechanism's.
        """
        public, total = anchor.astype(np.float64), np.zeros(len(anchor))
        for rows in blocks(*contributions.shape):
            total += _softmax(public + contributions[rows].astype(np.float64)).sum(axis=0)
        return float(np.abs(total / divisor - _softmax(public[None])[0]).sum())

    def test_epsilon(self, divisor: float) -> float:
        """Return the pure epsilon of all tests up to a private token, in nats, rounded up.

        It is for one context that comes or goes.
        """
        return 2 / (divisor * self.threshold_noise) * (1 + 4 * DISTANCE_ROOM)

    @override
    def rho(self, eta: float, aggregator: Aggregator) -> float:
        """Return the zCDP of the private tokens and their tests.

        A pure epsilon is a bounded range of twice that.
        """
        assert isinstance(aggregator, Mean)  # by `needs`
        costs = zcdp_of_draw([eta, 2 * self.test_epsilon(aggregator.divisor)])
        return math.nextafter(
            self.private_tokens * float(costs.sum()) * (1 + DISTANCE_ROOM**2), math.inf
        )

    @override
    def quantiles(
        self, arrays: Arrays, before: Arrays | None, aggregator: Aggregator, clip: float
    ) -> Mapping[str, Doubles]:
        """Return the quantiles of a test's own noise, and of a threshold's new noise."""
        tested = AboveThreshold.of(arrays)
        if tested == NO_TEST:
            return {}
        found = {"noise on distances": _quantile(tested.query_noise / (2 * self.threshold_noise))}
        if before is None or tested.threshold_noise != AboveThreshold.of(before).threshold_noise:
            found["noise on thresholds"] = _quantile(tested.threshold_noise / self.threshold_noise)
        return found


def _quantile(value: float) -> Doubles:
    """Return the quantile [1] of a number in the Laplace distribution of scale 1."""
    if not math.isfinite(value):
        return np.array([math.nan])
    tail = math.exp(-abs(value)) / 2
    return np.array([tail if value < 0 else 1 - tail])


class Rounds:
    """One batch's tests so far: a round is those up to a private token."""

    def __init__(self, draw: SparseVector) -> None:
        self._draw, self._private = draw, 0
        # The threshold's noise: of this round's tests, None before the first; and of the round
        # before.
        self._noise: float | None = None
        self._before: float | None = None

    def objection(self, arrays: Arrays) -> Problem | None:
        """Return why a step with these arrays cannot come next, or None. It counts as come."""
        test = AboveThreshold.of(arrays)
        found, self._noise = self._problem(test), test.threshold_noise
        if self._draw.is_private(test):
            self._private, self._before, self._noise = self._private + 1, test.threshold_noise, None
        return found

    def _problem(self, test: AboveThreshold) -> Problem | None:
        most = self._draw.private_tokens
        if self._private >= most:
            if test == NO_TEST:
                return None
            return Problem("mechanisms.test-after-last", {"most": most})
        if test.query_noise == NO_TEST.query_noise:
            return Problem("mechanisms.missing-test", {"used": self._private, "most": most})
        if self._noise is not None and test.threshold_noise != self._noise:
            return Problem("mechanisms.early-threshold")
        if self._noise is None and test.threshold_noise == self._before:
            return Problem("mechanisms.kept-threshold")
        return None


def _softmax(logits: Doubles) -> Doubles:
    """Return the softmax of each row."""
    weights: Doubles = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights
