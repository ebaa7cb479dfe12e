"""What all ways of finding cluster centres have in common: what they see, what they give, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.centers import LEAST_DELTA, MOST_DELTA, MOST_DEPTH, ChangScales, DpmScales
from dpaudit.generation.clustering.noise import Noise
from dpaudit.mechanisms import Relation

#: Embeddings or centres: float32 [n, d].
Vectors: TypeAlias = NDArray[np.float32]
#: Who had a say in where the centres lie: public data alone, private records through noise, or private records.
CentersOrigin: TypeAlias = Literal["public", "noised", "private"]
#: What decides a method's centres beside the data, by name: numbers of centres, dimension, projection, budgets.
Settings: TypeAlias = dict[str, int | float | str]


@dataclass(frozen=True)
class ClusteringCost:
    """What centres, and all else that a method lets through, tell of one private record: (epsilon, delta)-DP.

    Attributes:
        epsilon: in nats; inf where nothing bounds it.
        delta: 0 for pure differential privacy.
    """

    epsilon: float
    delta: float = 0.0


class ClusteringMethod(Protocol):
    """A way of finding cluster centres. Records then go to the nearest one (`assignment.nearest`)."""

    @property
    def name(self) -> str:
        """As configs and tables have it."""

    @property
    def origin(self) -> CentersOrigin:
        """Where its centres come from."""

    @property
    def settings(self) -> Settings:
        """What decides its centres beside the data."""

    def cost(self, relation: Relation) -> ClusteringCost:
        """What its centres cost for each private record, fixed before any is seen."""

    def fit(self, private: Vectors, public: Vectors, noise: Noise) -> Vectors:
        """Centres float32 [k, d], d that of the embeddings.

        Args:
            private: embeddings [n, d] of the private records; n = 0 is allowed.
            public: embeddings [m, d] of public texts.
            noise: where randomness that privacy rests on comes from.
        """


Scales = TypeVar("Scales", ChangScales, DpmScales)


def require_ranges(delta: float, depth: int) -> None:
    """Raises ValueError where the accountant takes no such delta, or no tree of this depth."""
    if depth > MOST_DEPTH:
        raise ValueError(f"depth must be at most {MOST_DEPTH}, not {depth}")
    if not LEAST_DELTA <= delta <= MOST_DELTA:
        raise ValueError(f"delta must lie in [{LEAST_DELTA}, {MOST_DELTA}], not be {delta}")


def require_calibrated(search: Callable[[], Scales], epsilon: float, delta: float, relation: Relation) -> Scales:
    """The noise that a search finds for a budget.

    Args:
        search: gives the least noise that keeps within the budget.
        epsilon: in nats.
        delta: in [LEAST_DELTA, MOST_DELTA].
        relation: for which the budget holds.

    Raises:
        ValueError: no noise is right for epsilon: it would be too much or too little to be worked with, or all that is
            enough costs less than half of it, because epsilon is so small beside delta that rounding decides.
    """
    problem = f"no noise is right for epsilon {epsilon} and delta {delta}"
    try:
        scales = search()
        spent = scales.epsilon(delta, relation)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{problem}: {error}") from None
    if spent < epsilon / 2:
        raise ValueError(problem)
    return scales
