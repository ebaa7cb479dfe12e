"""Differences from a public anchor: how a context's records change the model's expectation.

The anchor is the public prompt's next-token distribution. The idea is InvisibleInk's (arXiv
2507.02974), there with raw logits, whose free constant takes room in the clip; here with
log-probabilities. Raw logits are supported for runs of other programs.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from typing_extensions import override

from dpaudit.mechanisms.interfaces import (
    ANCHOR,
    MASKED,
    Arrays,
    Contribution,
    Doubles,
    Floats,
    Problem,
    Spans,
    blocks,
)

#: The rounding of a sum of probabilities by float32.
_ROUNDING = 1e-4
#: The largest raw anchor, in absolute value: adding a mean to it in float64 rounds by no more than
#: `mean.ROUNDING` allows for.
LARGEST_LOGIT = 2.0**10


class AnchoredDifferences(Contribution):
    """clip(l - l0, -c, c) of log-probabilities over the support, the context's and the public's.

    A context that agrees with the public prompt gives 0, which is what an absent one gives.
    """

    name: ClassVar[str] = "differences"
    anchored: ClassVar[bool] = True
    over_support: ClassVar[bool] = True
    row_numbers: ClassVar[int] = 2

    @override
    def anchor(self, public: Floats) -> Floats:
        """Return log softmax of the public prompt's logits over the support."""
        # A comparison with NaN is false. Beside masked tokens float32 tells no differences apart.
        if not (np.isfinite(public).all() and (public > MASKED).all()):
            problem = (
                "the public prompt has NaN, infinite or masked logits: take a support of "
                "its likeliest tokens, or"
            )
            raise ValueError(f"{problem} another model")
        largest, rest = log_sums(public[None])
        anchor: Floats = ((public.astype(np.float64) - largest[0]) - rest[0]).astype(np.float32)
        return anchor

    @override
    def row_constants(self, logits: Floats) -> Floats:
        """Return the logarithm of each row's sum of exponentials, in two parts.

        They are its largest logit and the rest. float32 holds either well. It would round their sum
        to 0.0001 and more where all logits lie far from zero.
        """
        constants: Floats = np.concatenate(log_sums(logits), axis=1, dtype=np.float32)
        if not np.isfinite(constants).all():
            raise ValueError("the model gave NaN or infinite logits")
        return constants

    @override
    def write(
        self, logits: Floats, row_constants: Floats, anchor: Floats | None, out: Floats
    ) -> None:
        assert anchor is not None
        clip = np.float32(self.clip)
        np.subtract(logits, row_constants[:, :1], out=out)
        out -= row_constants[:, 1:]
        out -= anchor
        np.clip(out, -clip, clip, out=out)
        self.rounded(out)

    @override
    def anchor_problem(self, arrays: Arrays, spans: Spans) -> Problem | None:
        """Return why the probabilities do not add up to 1, or None."""
        with np.errstate(all="ignore"):  # whatever a corrupt record holds
            totals = spans.sums(np.exp(arrays[ANCHOR].astype(np.float64)))
        # A comparison with NaN is false. An entry of -inf is no logarithm of what a softmax gives.
        if (np.abs(totals - 1) <= _ROUNDING).all() and np.isfinite(arrays[ANCHOR]).all():
            return None
        return Problem("mechanisms.anchor-sum", {"total": float(totals[0])})

    @override
    def clip_problem(self, arrays: Arrays, values: Floats, spans: Spans) -> Problem | None:
        """Return why contributions plus the anchor are no clipped log-probabilities, or None.

        A value at -c stands for any below it, and one at c for any above.
        """
        anchor = arrays[ANCHOR]
        wrong = sum(
            self._count_unlike(anchor, values[rows], spans) for rows in blocks(*values.shape)
        )
        if not wrong:
            return None
        return Problem("mechanisms.no-log-probabilities", {"wrong": wrong, "contexts": len(values)})

    def _count_unlike(self, anchor: Floats, values: Floats, spans: Spans) -> int:
        """Return how many contexts' values are no clipped log-probabilities, over all steps.

        Exponentials and their sums are float32: that moves a sum by a thirtieth of _ROUNDING at
        most (docs/mathematics.md, "What records attain").
        """
        clip = np.asarray(self.clip).astype(values.dtype)
        probabilities = anchor + values.astype(np.float32, copy=False)
        with np.errstate(all="ignore"):
            np.exp(probabilities, out=probabilities)
            most = np.where(spans.largest(values) < clip, spans.sums(probabilities), np.inf)
            np.copyto(probabilities, 0, where=values <= -clip)
        least = spans.sums(probabilities)
        slack = np.exp((self.grid or 0.0) / 2) * (1 + _ROUNDING)
        return int((~((least <= slack) & (most >= 1 / slack))).sum())


class RawDifferences(AnchoredDifferences):
    """clip(l - l0, -c, c) of raw logits, the context's and the public prompt's (InvisibleInk).

    A constant that a prompt adds to all its logits, which no text depends on, takes room in the
    clip.
    """

    name: ClassVar[str] = "raw-differences"

    @override
    def anchor(self, public: Floats) -> Floats:
        """Return the public prompt's logits unchanged."""
        anchor: Floats = public.astype(np.float32)
        if self.anchor_problem({ANCHOR: anchor}, Spans([len(anchor)])):
            problem = (
                f"the public prompt has logits that are not finite, or beyond {LARGEST_LOGIT:g}"
            )
            raise ValueError(f"{problem}; take another model")
        return anchor

    @override
    def row_constants(self, logits: Floats) -> Floats:
        """Return zeros: nothing is subtracted from a row."""
        tops = logits.max(axis=1)  # NaN wins over every number
        if not np.isfinite(tops).all():
            raise ValueError("the model gave NaN or infinite logits")
        constants: Floats = np.zeros((len(logits), self.row_numbers), dtype=np.float32)
        return constants

    @override
    def anchor_problem(self, arrays: Arrays, spans: Spans) -> Problem | None:
        """Return why a logit is so large that adding to it could move a bound, or None.

        The addition is in float64.
        """
        # a comparison with NaN is false
        if np.abs(arrays[ANCHOR]).max(initial=0.0) <= LARGEST_LOGIT:
            return None
        return Problem("mechanisms.anchor-too-large", {"most": LARGEST_LOGIT})

    @override
    def clip_problem(self, arrays: Arrays, values: Floats, spans: Spans) -> Problem | None:
        """Return None: raw logits can differ by any amount."""
        return None


def log_sums(logits: Floats) -> tuple[Doubles, Doubles]:
    """Return each row's largest logit, and the logarithm of its sum of exponentials without that.

    Args:
        logits: [n, S].

    Returns:
        Two arrays, float64 [n, 1]. Each row counts alone.
    """
    with np.errstate(all="ignore"):  # what comes of NaN and infinities is refused by its result
        values = logits.astype(np.float64)
        largest: Doubles = values.max(axis=1, keepdims=True)
        values -= largest
        return largest, np.log(np.exp(values, out=values).sum(axis=1, keepdims=True))
