"""The common interface of all ways to find cluster centres: their input, output and cost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.centers import LEAST_DELTA, MOST_DELTA, MOST_DEPTH, ChangScales, DpmScales
from dpaudit.generation.clustering.noise import Noise
from dpaudit.mechanisms import Relation

#: Embeddings or centres: float32 [n, d].
Vectors: TypeAlias = NDArray[np.float32]
#: Who had a say in where the centres lie: public data alone, private records through noise, or
#: private records.
CentersOrigin: TypeAlias = Literal["public", "noised", "private"]
#: What decides a method's centres beside the data, by name: numbers of centres, dimension,
#: projection, budgets.
Settings: TypeAlias = dict[str, int | float | str]


@dataclass(frozen=True)
class ClusteringCost:
    """The cost for one private record of all that a method lets through, centres included.

    It is a guarantee of (epsilon, delta)-DP.

    Attributes:
        epsilon: in nats; inf if nothing bounds it.
        delta: 0 for pure differential privacy.
    """

    epsilon: float
    delta: float = 0.0


class ClusteringMethod(Protocol):
    """A way of finding cluster centres.

    Records then go to the nearest centre (`assignment.nearest`).
    """

    @property
    def name(self) -> str:
        """The name in configs and tables."""

    @property
    def origin(self) -> CentersOrigin:
        """The kind of data that its centres come from."""

    @property
    def settings(self) -> Settings:
        """The settings of its centres beside the data."""

    def cost(self, relation: Relation) -> ClusteringCost:
        """Return the cost of its centres for each private record, fixed before any is seen."""

    def fit(self, private: Vectors, public: Vectors, noise: Noise) -> Vectors:
        """Return centres float32 [k, d], d that of the embeddings.

        Args:
            private: embeddings [n, d] of the private records; n = 0 is allowed.
            public: embeddings [m, d] of public texts.
            noise: the randomness that privacy rests on.
        """


Scales = TypeVar("Scales", ChangScales, DpmScales)


class NoisedMethod(ABC, Generic[Scales]):
    """The common part of methods whose noise is calibrated to a budget.

    Derived ones are frozen dataclasses.

    Attributes:
        epsilon: the budget, in nats, for `relation`. Noise is calibrated to use it up.
        delta: in [LEAST_DELTA, MOST_DELTA].
        relation: the one that `epsilon` is stated for. `cost` gives it for either.
        depth: of the tree of cells, up to MOST_DEPTH.

    Raises:
        ValueError: a number is out of its range, or no noise is right for epsilon.
    """

    origin: ClassVar[CentersOrigin] = "noised"
    epsilon: float
    delta: float
    relation: Relation
    depth: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int | float) and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, not {value}")
        if self.depth > MOST_DEPTH:
            raise ValueError(f"depth must be at most {MOST_DEPTH}, not {self.depth}")
        if not LEAST_DELTA <= self.delta <= MOST_DELTA:
            raise ValueError(
                f"delta must lie in [{LEAST_DELTA}, {MOST_DELTA}], not be {self.delta}"
            )
        self.scales  # noqa: B018  # calibrated now, so that an epsilon that cannot be kept to is refused at once

    @abstractmethod
    def _least(self) -> Scales:
        """Return the least noise that keeps within the budget."""

    @cached_property
    def scales(self) -> Scales:
        """The scales of the noise: the least that keeps within the budget.

        Raises:
            ValueError: no noise is right for epsilon: it would be too much or too little to be
                worked with, or all that is enough costs less than half of it, because epsilon is so
                small beside delta that rounding decides.
        """
        problem = f"no noise is right for epsilon {self.epsilon} and delta {self.delta}"
        try:
            scales = self._least()
            spent = scales.epsilon(self.delta, self.relation)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{problem}: {error}") from None
        if spent < self.epsilon / 2:
            raise ValueError(problem)
        return scales

    def cost(self, relation: Relation) -> ClusteringCost:
        """Return the cost of its centres, derived from the scales of the noise."""
        return ClusteringCost(self.scales.epsilon(self.delta, relation), self.delta)
