"""One step as the checks and the sums see it: what several of them need of its arrays is worked out once."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms import ReducedStep, log_probability
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
        self.mechanism, self.arrays = manifest.mechanism, dict(step.arrays)

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
        return self.mechanism.aggregator.aggregate(self.arrays)

    @cached_property
    def reduced(self) -> ReducedStep | None:
        """The step less the columns that no neighbour can move; None where the token has no place."""
        return None if self.index is None else self.mechanism.reduced(self.arrays, self.index, self.aggregate)

    @cached_property
    def log_probability(self) -> float | None:
        """Logarithm of the sampled token's probability by the record's aggregate; None where it has no place."""
        if self.reduced is None:
            return None
        aggregate = self.mechanism.aggregator.aggregate(self.reduced.arrays)
        return log_probability(aggregate, self.reduced.token, self.mechanism.temperature, self.reduced.fixed)

    @cached_property
    def contributions(self) -> NDArray[np.floating] | None:
        """Every context's contribution [n, S] where the record shows them: all are recorded, or there are none."""
        if self.step.contexts is not None or self.header.contexts:
            return self.step.contexts
        return np.zeros((0, self.manifest.support_size), dtype=self.manifest.record.dtype)

    @cached_property
    def range_problem(self) -> str | None:
        """Why the recorded values cannot be of clipped contributions (record.range); None where they can."""
        contribution, step = self.mechanism.contribution, self.step
        if problem := self.mechanism.aggregator.range_problem(self.arrays, self.header.contexts, contribution):
            return problem
        if step.contexts is not None and (problem := contribution.range_problem("contexts", step.contexts)):
            return problem
        if step.support is not None:
            ids = step.support.astype(np.int64)
            if ids[0] < 0 or ids[-1] >= self.manifest.record.vocabulary or not (np.diff(ids) > 0).all():
                return "support ids are doubled, out of order or outside the vocabulary"
        return None
