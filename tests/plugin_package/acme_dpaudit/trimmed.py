"""The sum of all contributions but the smallest and the largest."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms import (
    ROUNDING,
    Aggregator,
    Arrays,
    Box,
    ContextChange,
    Contribution,
    Positive,
    Problem,
    ReducedSteps,
    StepArray,
    log_probabilities,
)

Floats = NDArray[np.floating[Any]]


class TrimmedSum(Aggregator):
    """The sum of all contributions but the smallest and the largest, over a fixed public scale.

    Attributes:
        scale: that number.
    """

    name: ClassVar[str] = "trimmed-sum"

    scale: Positive

    def arrays(self, contexts: int, width: int, clip: float) -> dict[str, StepArray]:
        """The sum over the scale, and what was left out of it: the smallest and the largest."""
        left = max(contexts - 2, 0)
        found = {"trimmed": StepArray("real", largest=clip * left, divisor=self.scale)}
        if contexts:
            found["extremes"] = StepArray("real", (2,), clip, ascending=True)
        return found

    def step(self, values: Floats, clip: float, width: int) -> Arrays:
        if not len(values):
            return {"trimmed": np.zeros(values.shape[1])}
        ordered = np.sort(values.astype(np.float64), axis=0)
        # Row by row, so that a column's sum does not depend on the columns beside it.
        total = np.zeros(values.shape[1])
        for row in ordered[1:-1]:
            total += row
        return {"trimmed": total / self.scale, "extremes": ordered[[0, -1]]}

    def aggregate(self, arrays: Arrays) -> Floats:
        return arrays["trimmed"]

    def box(self, arrays: Arrays, change: ContextChange, clip: float) -> Box:
        """Bounds: each context adds or removes a value between two contributions, or none."""
        reach = change.half_steps * clip / self.scale * (1 + ROUNDING)
        center = arrays["trimmed"]
        return center - reach, center, center + reach

    def losses(
        self, steps: ReducedSteps, contributions: Floats | None, contexts: int, temperature: float
    ) -> NDArray[np.float64] | None:
        if contributions is None:
            return None

        def likely(sums: Floats) -> NDArray[np.float64]:
            at = steps.tokens, steps.spans, temperature, steps.log_sums
            return log_probabilities(steps.anchored(sums), *at)

        left = [np.delete(contributions, i, axis=0) for i in range(contexts)]
        without = [likely(self.step(each, 0.0, 0)["trimmed"]) for each in left]
        return likely(steps.arrays["trimmed"]) - np.reshape(without, (contexts, len(steps.spans)))

    def range_problem(
        self, arrays: Arrays, contexts: int, contribution: Contribution
    ) -> Problem | None:
        largest = contribution.clip * max(contexts - 2, 0) / self.scale
        if not (np.abs(arrays["trimmed"]) <= largest * (1 + 1e-9)).all():
            return Problem("mechanisms.mean-too-large", {"most": largest})
        if "extremes" not in arrays:
            return None
        if not (arrays["extremes"][0] <= arrays["extremes"][1]).all():
            return Problem("acme.not-ascending")
        return contribution.range_problem("extremes", arrays["extremes"])

    def definition_problem(
        self, arrays: Arrays, contributions: Floats, width: int, contribution: Contribution
    ) -> Problem | None:
        again = self.step(contributions, contribution.clip, width)
        alike = all(
            np.allclose(array, arrays[name], rtol=0, atol=1e-12) for name, array in again.items()
        )
        return None if alike else Problem("acme.other-sum", {"left": 2})
