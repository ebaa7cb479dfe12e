"""Tokens by the highest noisy sum, for few-shot generation (Tang et al., arXiv 2309.11765)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from dpaudit.contrib.tang.probabilities import Probabilities
from dpaudit.mechanisms import (
    NO_EX_POST_COST,
    NOISE,
    Aggregator,
    Arrays,
    Doubles,
    Draw,
    Floats,
    GaussianDraws,
    Mean,
    Positive,
    ReducedSteps,
    StepArray,
    blocks,
)

#: By how much more than the clip, relatively, recorded probabilities may add up to, with room
#: (`Probabilities`).
_SUM_ROOM = 2.0**-12
#: The highest of some sums with noise is this many standard deviations below the largest sum at
#: least, and evaluated at so many points.
_REACH, _POINTS = 9.0, 192


class NoisyArgmax(Draw):
    """The token with the highest noisy sum (Tang et al., arXiv 2309.11765, algorithm 1).

    Normal noise is added to each sum. For every draw each context is in by a coin of its own, and
    gives 0 where it is not. The standard deviation of the noise is noise_multiplier * clip /
    divisor, and one context moves the mean by at most clip / divisor in the l2 norm. A text has no
    ex-post cost: with the noise on record nothing is left to chance.

    Attributes:
        noise_multiplier: sigma.
        sampling_rate: the probability with which a context is in a draw.
    """

    name: ClassVar[str] = "noisy-argmax"
    likely: ClassVar[bool] = False
    ex_post: ClassVar[bool] = False
    needs: ClassVar[Mapping[str, str | float | None]] = {
        "contribution.kind": Probabilities.name,
        "aggregator.kind": Mean.name,
        "temperature": 1.0,
        "budget": None,
        "contribution.grid": None,
    }
    not_applicable: ClassVar[Mapping[str, str]] = NO_EX_POST_COST

    noise_multiplier: Positive
    sampling_rate: Annotated[float, Field(gt=0, le=1)]

    @override
    def arrays(self) -> dict[str, StepArray]:
        """Return the array of the noise in every sum."""
        return {NOISE: StepArray("<f8")}

    @override
    def scores(self, aggregate: Floats, arrays: Arrays, temperature: float) -> Floats:
        noisy: Floats = aggregate + arrays[NOISE]
        return noisy

    @override
    def log_probabilities(self, scores: Floats, steps: ReducedSteps, temperature: float) -> Doubles:
        """Return 0 for a token with the step's highest noisy sum, else -inf."""
        return np.where(scores[steps.tokens] == steps.spans.largest(scores), 0.0, -np.inf)

    @override
    def odds(
        self,
        aggregate: Floats,
        arrays: Arrays,
        temperature: float,
        aggregator: Aggregator,
        clip: float,
    ) -> Floats:
        """Return the logarithms of the probabilities of being the highest. The temperature is 1."""
        from scipy.special import log_ndtr, logsumexp  # type: ignore[import-untyped]

        means = aggregate.astype(np.float64) / self._size(aggregator, clip)
        # Where the highest sum may be. Of a function as smooth as this one the trapezoidal rule
        # loses nothing.
        highest = means.max() + np.linspace(
            -_REACH, _REACH + math.sqrt(2 * math.log(len(means))), _POINTS
        )
        below, each = np.zeros(_POINTS), np.empty(len(means))
        for rows in blocks(len(means), _POINTS):
            below += log_ndtr(highest - means[rows, None]).sum(axis=0)
        for rows in blocks(len(means), _POINTS):
            gaps = highest - means[rows, None]
            each[rows] = logsumexp(below - log_ndtr(gaps) - gaps**2 / 2, axis=1)
        odds: Floats = each
        return odds

    @property
    @override
    def rate(self) -> float:
        return self.sampling_rate

    @property
    @override
    def gaussian(self) -> GaussianDraws:
        return GaussianDraws(self.noise_multiplier * (1 - _SUM_ROOM), self.sampling_rate)

    @override
    def quantiles(
        self, arrays: Arrays, before: Arrays | None, aggregator: Aggregator, clip: float
    ) -> Mapping[str, Doubles]:
        """Return the quantiles of the normal noise in every sum."""
        from scipy.special import ndtr  # slow to load, and few runs need it

        noise = arrays[NOISE] / self._size(aggregator, clip)
        return {"noise in sums": np.where(np.isfinite(noise), ndtr(noise), np.nan)}

    def _size(self, aggregator: Aggregator, clip: float) -> float:
        """Return the noise's standard deviation."""
        assert isinstance(aggregator, Mean)  # by `needs`
        return self.noise_multiplier * clip / aggregator.divisor
