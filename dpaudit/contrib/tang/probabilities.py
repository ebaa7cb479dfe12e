"""Probabilities over a public support, for few-shot generation (Tang et al., arXiv 2309.11765)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.mechanisms import Arrays, Contribution, Floats, Problem, Spans, log_sums

#: How far from 1 float32 puts the sum of probabilities.
_ROUNDING = 1e-4


class Probabilities(Contribution):
    """clip * softmax(l) over the support: entries of at least 0 that add up to the clip.

    A context that is left out gives 0. So one that comes or goes moves a sum by `clip` at most, in
    the l2 norm too.
    """

    name: ClassVar[str] = "probabilities"
    over_support: ClassVar[bool] = True
    row_numbers: ClassVar[int] = 2

    @override
    def row_constants(self, logits: Floats) -> Floats:
        """Return the largest logit and the logarithm of the rest, as for log-probabilities."""
        constants: Floats = np.concatenate(log_sums(logits), axis=1, dtype=np.float32)
        if not np.isfinite(constants).all():
            raise ValueError("the model gave NaN or infinite logits")
        return constants

    @override
    def write(
        self, logits: Floats, row_constants: Floats, anchor: Floats | None, out: Floats
    ) -> None:
        np.subtract(logits, row_constants[:, :1], out=out)
        out -= row_constants[:, 1:]
        np.exp(out, out=out)
        out *= np.float32(self.clip)
        np.minimum(out, np.float32(self.clip), out=out)
        self.rounded(out)

    @override
    def range_problem(self, name: str, values: Floats) -> Problem | None:
        if values.size and values.min() < 0:  # NaN is seen to below
            return Problem("mechanisms.negative-probability", {"name": name})
        return super().range_problem(name, values)

    @override
    def clip_problem(self, arrays: Arrays, values: Floats, spans: Spans) -> Problem | None:
        """Return why probabilities do not add up to 1, or None."""
        totals = spans.sums(values.astype(np.float64))
        slack = _ROUNDING * self.clip + (self.grid or 0.0) / 2 * spans.lengths
        wrong = int(np.count_nonzero((np.abs(totals - self.clip) > slack) & (totals != 0)))
        if not wrong:
            return None
        found = {"wrong": wrong, "contexts": len(values), "clip": self.clip}
        return Problem("mechanisms.probability-sums", found)

    @override
    def uniform(self, arrays: Arrays, values: Floats) -> NDArray[np.bool_]:
        """Return rows of equal logits, except for contexts that were left out and not scored."""
        return super().uniform(arrays, values) & values.any(axis=1)
