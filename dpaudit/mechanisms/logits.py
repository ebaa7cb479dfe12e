"""The paper's contribution: a context's logits, clipped with their maximum at the clip (section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.interfaces import Arrays, Contribution, Floats, Problem, Spans

if TYPE_CHECKING:
    from torch import Tensor

_NOT_FINITE = "the model gave NaN or infinite logits"


class TopClippedLogits(Contribution):
    """max(-c, l - max l + c): the largest logit moves to c, and what falls below -c is cut."""

    name: ClassVar[str] = "logits"

    def row_constants(self, logits: Floats) -> Floats:
        """See `Contribution`: each row's maximum."""
        tops: Floats = logits.max(axis=1, keepdims=True)  # NaN wins over every number
        if not np.isfinite(tops).all():
            raise ValueError(_NOT_FINITE)
        return tops

    def write(self, logits: Floats, row_constants: Floats, anchor: Floats | None, out: Floats) -> None:
        """See `Contribution`."""
        clip = np.float32(self.clip)
        with np.errstate(over="ignore"):  # -inf is cut like any other low value
            np.subtract(logits, row_constants, out=out)
        out += clip
        # Numpy compares two rows faster than a row and a number.
        np.maximum(out, np.full(out.shape[1], -clip), out=out)
        self.rounded(out)

    def on_device(self, logits: Tensor, support: NDArray[np.integer] | None) -> Tensor:
        """See `Contribution`."""
        import torch

        logits = logits.detach().to(torch.float32)
        tops = logits.amax(dim=1, keepdim=True)
        if not bool(tops.isfinite().all()):
            raise ValueError(_NOT_FINITE)
        if support is not None:
            logits = logits[:, torch.as_tensor(support, device=logits.device, dtype=torch.long)]
        clip = float(np.float32(self.clip))
        values = (logits - tops).add_(clip).clamp_(min=-clip)
        self.rounded(values)
        return values

    def clip_problem(self, arrays: Arrays, values: Floats) -> Problem | None:
        """See `Contribution`: every context's largest contribution is the clip."""
        return self.clip_problem_of_steps(arrays, values, Spans([values.shape[1]]))

    def clip_problem_of_steps(self, arrays: Arrays, values: Floats, spans: Spans) -> Problem | None:
        """See `Contribution`."""
        clip = np.asarray(self.clip).astype(values.dtype)
        others = int((spans.largest(values) != clip).sum())
        if not others:
            return None
        found = {"wrong": others, "contexts": len(values), "clip": float(clip)}
        return Problem("mechanisms.other-maximum", found)
