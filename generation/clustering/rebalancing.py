"""Noisy counts of the records at each centre, and the choice of centres by them.

This is the paper's "Public centers with rebalancing" (section 4.1). `PrivateCounts` is no array,
has no items and no way out but `noised`, so code that would use counts without their noise does not
type-check, and fails if it is run all the same. Which centres are kept and how many batches their
records are hashed into follows from `NoisyCounts`: it is post-processing, and costs nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, SupportsIndex, final

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import batches_by_counts, kept_by_counts, rebalancing_scale
from dpaudit.generation.clustering.noise import Noise
from dpaudit.mechanisms import Relation


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """Records of each label at each centre, plus Laplace noise: safe to look at.

    Attributes:
        values: int64 [labels, k], read-only. Noise can make them negative.
        scale: of the noise, in records.
    """

    values: NDArray[np.int64]
    scale: float

    def kept(self, keep: int) -> NDArray[np.int64]:
        """Return the centres that each label keeps, int64 [labels, keep], by `kept_by_counts`."""
        return kept_by_counts(self.values, keep)

    def batches(
        self, kept: NDArray[np.int64], records_per_batch: float, most: int, least: int
    ) -> NDArray[np.int64]:
        """Return each kept centre's number of batches, int64 [labels, keep].

        See `dpaudit.accounting.batches_by_counts`.
        """
        return batches_by_counts(self.values, kept, records_per_batch, most, least)


@final
class PrivateCounts:
    """Records of each label at each centre, as they are: for `noised` alone, and only once.

    Every look at the same counts through fresh noise would cost epsilon again, and many would
    average the noise away; so the counts are dropped when they have been noised.
    """

    __slots__ = ("__values",)

    def __init__(
        self, labels: NDArray[np.integer], centers: NDArray[np.integer], shape: tuple[int, int]
    ) -> None:
        """Count records.

        Args:
            labels: int [n], the label of each record; zeros where there are none.
            centers: int [n], the centre of each record.
            shape: numbers of labels and of centres, k. Public.

        Raises:
            ValueError: the lengths differ, a number is out of its range, or the shape is empty.
        """
        if min(shape) < 1:
            raise ValueError(f"there must be a label and a centre, not {shape}")
        if labels.shape != centers.shape:
            raise ValueError(
                f"labels {labels.shape} and centres {centers.shape} are not one for each record"
            )
        places = np.ravel_multi_index((labels, centers), shape)
        self.__values: NDArray[np.int64] | None = np.bincount(
            places, minlength=shape[0] * shape[1]
        ).reshape(shape)

    def noised(
        self, epsilon: float, relation: Relation, noise: Noise, records_per_unit: int = 1
    ) -> NoisyCounts:
        """Return all counts, empty ones included, with Laplace noise.

        This is the paper's section 4.1, "Public centers with rebalancing". A record has one label
        and one centre. One that comes or goes moves one count by 1; an exchanged one moves two, or
        one by nothing: L1 sensitivity 1 or 2, for each record of a unit.

        Args:
            epsilon: of all counts together, for one unit, in nats.
            relation: whether records come and go, or are exchanged.
            noise: the source of the noise.
            records_per_unit: how many records one unit has at most.

        Raises:
            ValueError: epsilon is not positive and finite, or `records_per_unit` is below 1.
            RuntimeError: they have been noised before.
        """
        scale = rebalancing_scale(epsilon, relation, records_per_unit)
        values, self.__values = self.__values, None
        if values is None:
            raise RuntimeError(
                "these counts have been noised: a second look would cost their epsilon again"
            )
        noisy = values + noise.rounded_laplace(scale, values.size).reshape(values.shape)
        noisy.flags.writeable = False
        return NoisyCounts(noisy, scale)

    def __repr__(self) -> str:
        """Show nothing of the counts."""
        return "PrivateCounts(hidden)"

    def __getstate__(self) -> NoReturn:
        """Refused: pickles and copies would carry the counts past their noise."""
        raise TypeError("private counts cannot be copied or pickled")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refused, like `__getstate__`."""
        self.__getstate__()
