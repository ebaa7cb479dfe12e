"""One step as the checks and the sums see it: what several of them need of its arrays is worked out once."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import Moving, log_probability, median_of, movable, moving_columns
from dpaudit.runs import BatchHeader, Manifest, Step


class StepView:
    """A step, its batch's header, and what follows from them. Values are computed when they are first asked for.

    Attributes:
        manifest: the run's.
        header: the batch's.
        step: the record.
    """

    def __init__(self, manifest: Manifest, header: BatchHeader, step: Step) -> None:
        self.manifest, self.header, self.step = manifest, header, step

    @cached_property
    def index(self) -> int | None:
        """Where the sampled token stands among the support's tokens, or None when it is not there."""
        step = self.step
        if step.support is None:
            return step.token if 0 <= step.token < self.manifest.record.vocabulary else None
        found = np.flatnonzero(step.support == step.token)
        return int(found[0]) if len(found) else None

    @cached_property
    def aggregate(self) -> NDArray[np.floating]:
        """The vector [S] that the record says was sampled from."""
        if self.step.aggregate is not None:
            return self.step.aggregate
        assert self.step.central is not None  # the reader gives one of the two
        return median_of(self.step.central)

    @cached_property
    def movable(self) -> NDArray[np.bool_]:
        """Where the removal of one context can move the median: bool [S]. Median runs only."""
        assert self.step.central is not None
        return movable(self.step.central)

    @cached_property
    def moving(self) -> Moving | None:
        """The columns that a neighbour can move; None for a mean, and where the token has no place."""
        if self.step.central is None or self.index is None:
            return None
        return moving_columns(self.step.central, self.index, self.manifest.mechanism.temperature)

    @cached_property
    def log_probability(self) -> float | None:
        """Logarithm of the sampled token's probability by the record's aggregate; None where it has no place."""
        if self.index is None:
            return None
        temperature = self.manifest.mechanism.temperature
        if self.moving is None:
            return log_probability(self.aggregate, self.index, temperature)
        return log_probability(median_of(self.moving.central), self.moving.token, temperature, self.moving.still)

    @cached_property
    def ascending(self) -> bool:
        """Whether the central values are numbers in ascending order. Median runs only."""
        assert self.step.central is not None
        # A comparison with NaN is false, so this refuses NaN too.
        return bool((self.step.central[1:] >= self.step.central[:-1]).all())

    @cached_property
    def in_range(self) -> bool:
        """Whether the central values are ascending and within the clip. Median runs only."""
        assert self.step.central is not None
        clip = self.manifest.mechanism.clip
        return self.ascending and bool(self.step.central[0].min() >= -clip and self.step.central[-1].max() <= clip)
