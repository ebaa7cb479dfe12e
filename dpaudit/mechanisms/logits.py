"""The paper's contribution: a context's logits, with their maximum at the clip (section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.mechanisms.interfaces import Arrays, Contribution, Floats, Problem, Spans

if TYPE_CHECKING:
    from torch import Tensor

_NOT_FINITE = "the model gave NaN or infinite logits"


class TopClippedLogits(Contribution):
    """max(-c, l - max l + c): the largest logit moves to c, and values below -c are cut."""

    name: ClassVar[str] = "logits"

    @override
    def row_constants(self, logits: Floats) -> Floats:
        """Return each row's maximum."""
        tops: Floats = logits.max(axis=1, keepdims=True)  # NaN wins over every number
        if not np.isfinite(tops).all():
            raise ValueError(_NOT_FINITE)
        return tops

    @override
    def write(
        self, logits: Floats, row_constants: Floats, anchor: Floats | None, out: Floats
    ) -> None:
        clip = np.float32(self.clip)
        with np.errstate(over="ignore"):  # -inf is cut like any other low value
            np.subtract(logits, row_constants, out=out)
        out += clip
        # Numpy compares two rows faster than a row and a number.
        np.maximum(out, np.full(out.shape[1], -clip), out=out)
        self.rounded(out)

    @override
    def on_device(self, logits: Tensor, support: NDArray[np.integer] | None) -> Tensor:
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

    @override
    def clip_problem(self, arrays: Arrays, values: Floats, spans: Spans) -> Problem | None:
        """Return why a context's largest contribution is not the clip, or None."""
        clip = np.asarray(self.clip).astype(values.dtype)
        others = int((spans.largest(values) != clip).sum())
        if not others:
            return None
        found = {"wrong": others, "contexts": len(values), "clip": float(clip)}
        return Problem("mechanisms.other-maximum", found)
