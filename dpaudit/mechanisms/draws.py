"""How a token follows from an aggregate: the third part of a mechanism."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from dpaudit.mechanisms.interfaces import (
    NO_FIXED_COLUMNS,
    Aggregator,
    Arrays,
    ClaimKind,
    Fields,
    FixedColumns,
    Floats,
    Positive,
    StepArray,
    log_probability,
)
from dpaudit.mechanisms.mean import Mean
from dpaudit.mechanisms.probabilities import Probabilities

#: By how much more than the clip, relatively, recorded probabilities may add up to, with room (`Probabilities`).
_SUM_ROOM = 2.0**-12
#: A step's array of what was added to its aggregate.
NOISE = "noise"


class GaussianDraws(NamedTuple):
    """What draws by noise cost: a Gaussian mechanism each, of contexts that are sampled by coins of their own.

    Attributes:
        multiplier: the noise's standard deviation, in units of how far one context moves the sum (l2).
        rate: the probability with which a context is in a draw.
    """

    multiplier: float
    rate: float


class SampledNoise(NamedTuple):
    """Noise that is added to aggregates, of contexts that are sampled by coins of their own.

    Attributes:
        deviation: the standard deviation, in the aggregate's units.
        rate: the probability with which a context is in a draw.
    """

    deviation: float
    rate: float


class Draw(Fields, ABC):
    """How a token follows from an aggregate.

    Attributes:
        name: as configs and run.json have it.
        likely: whether tokens have probabilities, given the record: then a text has an ex-post cost.
        needs: what other fields of its mechanism must be, None for absent.
        not_applicable: checks that are not about it, with the reason.
    """

    name: ClassVar[str]
    likely: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, str | float | None]] = {}
    not_applicable: ClassVar[Mapping[str, str]] = {
        "sampling.noise": "No noise is added.",
        "sampling.subsets": "Every context is in every draw.",
    }

    def kinds(self, of_aggregator: tuple[ClaimKind, ...]) -> tuple[ClaimKind, ...]:
        """Of claims that its runs support, where those of the aggregator are these."""
        return of_aggregator

    def arrays(self) -> dict[str, StepArray]:
        """What a step records of the draw, by name."""
        return {}

    @property
    def gaussian(self) -> GaussianDraws | None:
        """What a draw by noise costs where one context comes or goes; None of one by probabilities."""
        return None

    def noise(self, aggregator: Aggregator, clip: float) -> SampledNoise | None:
        """What is added to aggregates, and how contexts are sampled; None where nothing is."""
        return None

    def scores(self, aggregate: Floats, arrays: Arrays) -> Floats:
        """What the token was drawn from, [S], for an aggregate [S] and a step's arrays."""
        return aggregate

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
    needs: ClassVar[Mapping[str, str | float | None]] = {
        "contribution": Probabilities.name,
        "aggregator": Mean.name,
        "temperature": 1.0,
        "budget": None,
        "grid": None,
    }
    not_applicable: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("sampling.distribution", "sampling.independence", "sampling.seeds"),
            "With the noise on record nothing of a token is left to chance: sampling.noise looks at that.",
        ),
        **dict.fromkeys(
            (
                "neighbors.addition",
                "neighbors.removal",
                "neighbors.regenerated",
                "replay.lower-bound",
                "canaries.lower-bound",
            ),
            "What a token cost is averaged over its noise: no text has an ex-post cost.",
        ),
    }

    noise_multiplier: Positive
    sampling_rate: Annotated[float, Field(gt=0, le=1)]

    def kinds(self, of_aggregator: tuple[ClaimKind, ...]) -> tuple[ClaimKind, ...]:
        """See `Draw`."""
        return ("approximate",)

    def arrays(self) -> dict[str, StepArray]:
        """See `Draw`: the noise in every sum."""
        return {NOISE: StepArray("<f8")}

    def scores(self, aggregate: Floats, arrays: Arrays) -> Floats:
        """See `Draw`."""
        noisy: Floats = aggregate + arrays[NOISE]
        return noisy

    def log_probability(
        self, scores: Floats, token: int, temperature: float, fixed: FixedColumns = NO_FIXED_COLUMNS
    ) -> float:
        """See `Draw`: all or nothing."""
        return 0.0 if scores[token] == scores.max() else -np.inf

    @property
    def gaussian(self) -> GaussianDraws:
        """See `Draw`."""
        return GaussianDraws(self.noise_multiplier * (1 - _SUM_ROOM), self.sampling_rate)

    def noise(self, aggregator: Aggregator, clip: float) -> SampledNoise:
        """See `Draw`."""
        assert isinstance(aggregator, Mean)  # by `needs`
        return SampledNoise(self.noise_multiplier * clip / aggregator.divisor, self.sampling_rate)
