"""Differences from a public anchor: what a context's records change in what the model expects without them.

The anchor is the public prompt's next-token distribution. The idea is InvisibleInk's (arXiv 2507.02974), there with
raw logits, whose free constant takes room in the clip; here with log-probabilities. The former are here for the runs of
others that have them.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from dpaudit.mechanisms.interfaces import ANCHOR, MASKED, Arrays, Contribution, Doubles, Floats, Problem, Spans, blocks

#: How far from 1 float32 puts the sum of probabilities.
_ROUNDING = 1e-4
#: Of a raw anchor, in absolute value: up to here float64 adds a mean to it within what `mean.ROUNDING` allows for.
LARGEST_LOGIT = 2.0**10


class AnchoredDifferences(Contribution):
    """clip(l - l0, -c, c): l and l0 are log-probabilities over the support, the context's and the public prompt's.

    A context that says what the public prompt says gives 0, which is what an absent one gives.
    """

    name: ClassVar[str] = "differences"
    anchored: ClassVar[bool] = True
    over_support: ClassVar[bool] = True
    row_numbers: ClassVar[int] = 2

    def anchor(self, public: Floats) -> Floats:
        """See `Contribution`: log softmax of the public prompt's logits over the support."""
        # A comparison with NaN is false. Beside masked tokens float32 tells no differences apart.
        if not (np.isfinite(public).all() and (public > MASKED).all()):
            problem = "the public prompt has NaN, infinite or masked logits: take a support of its likeliest tokens, or"
            raise ValueError(f"{problem} another model")
        largest, rest = log_sums(public[None])
        anchor: Floats = ((public.astype(np.float64) - largest[0]) - rest[0]).astype(np.float32)
        return anchor

    def row_constants(self, logits: Floats) -> Floats:
        """See `Contribution`: the logarithm of each row's sum of exponentials, as its largest logit and the rest.

        float32 holds either well. It would round their sum to 0.0001 and more where all logits lie far from zero.
        """
        constants: Floats = np.concatenate(log_sums(logits), axis=1, dtype=np.float32)
        if not np.isfinite(constants).all():
            raise ValueError("the model gave NaN or infinite logits")
        return constants

    def write(self, logits: Floats, row_constants: Floats, anchor: Floats | None, out: Floats) -> None:
        """See `Contribution`."""
        assert anchor is not None
        clip = np.float32(self.clip)
        np.subtract(logits, row_constants[:, :1], out=out)
        out -= row_constants[:, 1:]
        out -= anchor
        np.clip(out, -clip, clip, out=out)
        self.rounded(out)

    def anchor_problem(self, arrays: Arrays) -> Problem | None:
        """See `Contribution`: probabilities that add up to 1."""
        return self.anchor_problem_of_steps(arrays, Spans([len(arrays[ANCHOR])]))

    def anchor_problem_of_steps(self, arrays: Arrays, spans: Spans) -> Problem | None:
        """See `Contribution`."""
        with np.errstate(all="ignore"):  # whatever a corrupt record holds
            totals = spans.sums(np.exp(arrays[ANCHOR].astype(np.float64)))
        # A comparison with NaN is false. An entry of -inf is no logarithm of what a softmax gives.
        if (np.abs(totals - 1) <= _ROUNDING).all() and np.isfinite(arrays[ANCHOR]).all():
            return None
        return Problem("mechanisms.anchor-sum", {"total": float(totals[0])})

    def clip_problem(self, arrays: Arrays, values: Floats) -> Problem | None:
        """See `Contribution`: with the anchor they are log-probabilities, as far as the clip lets one see.

        A value at -c stands for any below it, and one at c for any above.
        """
        return self.clip_problem_of_steps(arrays, values, Spans([values.shape[1]]))

    def clip_problem_of_steps(self, arrays: Arrays, values: Floats, spans: Spans) -> Problem | None:
        """See `Contribution`."""
        anchor = arrays[ANCHOR].astype(np.float64)
        wrong = sum(self._unlike(anchor, values[rows], spans) for rows in blocks(*values.shape))
        if not wrong:
            return None
        return Problem("mechanisms.no-log-probabilities", {"wrong": wrong, "contexts": len(values)})

    def _unlike(self, anchor: Doubles, values: Floats, spans: Spans) -> int:
        """How many of some contexts are no clipped log-probabilities, over all steps."""
        clip = np.asarray(self.clip).astype(values.dtype)
        with np.errstate(all="ignore"):
            probabilities = np.exp(anchor + values)
        least = spans.sums(np.where(values > -clip, probabilities, 0.0))
        most = np.where(spans.largest(values) < clip, spans.sums(probabilities), np.inf)
        slack = np.exp((self.grid or 0.0) / 2) * (1 + _ROUNDING)
        return int((~((least <= slack) & (most >= 1 / slack))).sum())


class RawDifferences(AnchoredDifferences):
    """clip(l - l0, -c, c): l and l0 are raw logits, the context's and the public prompt's (InvisibleInk).

    Whatever a prompt adds to all its logits, which no text depends on, takes room in the clip.
    """

    name: ClassVar[str] = "raw-differences"

    def anchor(self, public: Floats) -> Floats:
        """See `Contribution`: the public prompt's logits as they are."""
        anchor: Floats = public.astype(np.float32)
        if self.anchor_problem({ANCHOR: anchor}):
            problem = f"the public prompt has logits that are not finite, or beyond {LARGEST_LOGIT:g}"
            raise ValueError(f"{problem}; take another model")
        return anchor

    def row_constants(self, logits: Floats) -> Floats:
        """See `Contribution`: nothing is taken away from a row."""
        tops = logits.max(axis=1)  # NaN wins over every number
        if not np.isfinite(tops).all():
            raise ValueError("the model gave NaN or infinite logits")
        constants: Floats = np.zeros((len(logits), self.row_numbers), dtype=np.float32)
        return constants

    def anchor_problem(self, arrays: Arrays) -> Problem | None:
        """See `Contribution`: logits so small that adding to them in float64 moves no bound."""
        if np.abs(arrays[ANCHOR]).max(initial=0.0) <= LARGEST_LOGIT:  # a comparison with NaN is false
            return None
        return Problem("mechanisms.anchor-too-large", {"most": LARGEST_LOGIT})

    def anchor_problem_of_steps(self, arrays: Arrays, spans: Spans) -> Problem | None:
        """See `Contribution`: each logit is looked at by itself."""
        return self.anchor_problem(arrays)

    def clip_problem(self, arrays: Arrays, values: Floats) -> Problem | None:
        """See `Contribution`: of raw logits any difference may come."""
        return None

    def clip_problem_of_steps(self, arrays: Arrays, values: Floats, spans: Spans) -> Problem | None:
        """See `Contribution`."""
        return None


def log_sums(logits: Floats) -> tuple[Doubles, Doubles]:
    """The largest of each row of logits [n, S], and the logarithm of its sum of exponentials without that.

    Both float64 [n, 1]; of each row alone.
    """
    with np.errstate(all="ignore"):  # what comes of NaN and infinities is refused by its result
        values = logits.astype(np.float64)
        largest: Doubles = values.max(axis=1, keepdims=True)
        values -= largest
        return largest, np.log(np.exp(values, out=values).sum(axis=1, keepdims=True))
