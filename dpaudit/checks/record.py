"""Does each step's record agree with itself and with the mechanism's definition?"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import central_order_statistics, movable
from dpaudit.checks.registry import step_check
from dpaudit.checks.view import StepView
from dpaudit.runs import Manifest, Step, aggregate_digest

_REGENERATE = "The record is not what a correct generator writes. Generate the run again; do not release this one."
_DOCS = "docs/run-directory.md"
#: Agreement of float64 log-probabilities that were computed in different orders of summation.
_LOG_TOLERANCE = 1e-9


@step_check(
    check_id="record.range",
    title="Recorded values are finite, within the clip and in order",
    failed="Recorded values are not finite, beyond the clip or out of order",
    evidence=1,
    expected="finite values in [-clip, clip], central values ascending, support ids ascending",
    why=(
        "Every bound assumes clipped values in order. Beyond the clip, one record can move a score further "
        "than is charged."
    ),
    remedy=_REGENERATE,
    reference=_DOCS,
)
def values_in_range(view: StepView) -> str | None:
    """Every array of the step against the range that clipping gives it."""
    manifest, step = view.manifest, view.step
    clip = manifest.mechanism.clip
    if step.central is not None and not view.in_range and not _within(step.central, clip):
        return f"central holds a value that is not finite or outside [-{clip:g}, {clip:g}]"
    if step.contexts is not None and not _within(step.contexts, clip):
        return f"contexts holds a value that is not finite or outside [-{clip:g}, {clip:g}]"
    if step.aggregate is not None:
        largest = clip * view.header.contexts / (manifest.mechanism.divisor or math.nan)
        if not _within(step.aggregate, largest * (1 + 1e-6)):
            return f"the aggregate holds a value that is not finite or beyond {largest:g}"
    if step.central is not None and not view.ascending:
        return "central values are not in ascending order"
    if step.support is not None:
        ids = step.support.astype(np.int64)
        if ids[0] < 0 or ids[-1] >= manifest.record.vocabulary or not (np.diff(ids) > 0).all():
            return "support ids are doubled, out of order or outside the vocabulary"
    return None


@step_check(
    check_id="record.aggregate",
    title="Tokens were sampled from the aggregate that the record defines",
    failed="Tokens were not sampled from the aggregate that the record defines",
    evidence=1,
    expected="digest and log-probability of the sampled vector equal those of the recorded aggregate",
    why=(
        "Costs are worked out from the record. If tokens were drawn from something else, no figure here is "
        "about these texts."
    ),
    remedy=_REGENERATE,
    reference=_DOCS,
)
def aggregate_is_defined(view: StepView) -> str | None:
    """The recorded digest and log-probability against the aggregate recomputed from the record."""
    step = view.step
    if step.contexts is not None or view.header.contexts == 0:
        problem = _differs_from_contexts(view.manifest, step)
        if problem:
            return problem
    if aggregate_digest(view.aggregate) != step.aggregate_digest:
        return "the vector that was sampled from differs from the recorded one"
    right = view.log_probability
    if right is None:
        return None  # sampling.support objects
    if not abs(right - step.log_probability) <= _LOG_TOLERANCE * max(1.0, abs(right)):
        return (
            f"the sampler gave its token log-probability {step.log_probability:.6g}, "
            f"softmax(aggregate / temperature) gives {right:.6g}"
        )
    return None


@step_check(
    check_id="record.sides",
    title="Leave-one-out sides agree with the number of contexts and the central values",
    failed="Leave-one-out sides contradict the number of contexts or the central values",
    evidence=1,
    expected="floor(n / 2) contexts below every median, one holder for odd n, -clip and clip where contexts run out",
    why="Leave-one-out losses follow from these bits. Where they are wrong, so is the evidence that the bounds hold.",
    remedy=_REGENERATE,
    reference=_DOCS,
    applies=lambda manifest: manifest.mechanism.aggregator == "median",
    otherwise="Only median runs record sides.",
)
def sides_are_consistent(view: StepView) -> str | None:
    """Counts of the side bits, the holder of an odd median, and the padding of small batches."""
    step, n, clip = view.step, view.header.contexts, view.manifest.mechanism.clip
    assert step.central is not None and step.sides is not None  # the reader gives both for median runs
    padding = max(0, view.manifest.record.width - n // 2)
    if padding and not ((step.central[:padding] == -clip).all() and (step.central[-padding:] == clip).all()):
        return f"{n} contexts leave {padding} places on each side, which are not -{clip:g} and {clip:g}"
    below = np.bitwise_count(step.sides).sum(axis=0, dtype=np.uint32)
    if not (below == view.movable * np.uint32(n // 2)).all():
        return f"the number of contexts below a median that can move is not {n // 2}, or another has some"
    if n % 8 and (step.sides[-1] & (0xFF >> n % 8)).any():
        return f"a context beyond the {n} is marked as below a median"
    if step.holder is not None:
        if step.holder.max() >= n or step.holder[~view.movable].any():
            return f"a median is held by a context outside 0 .. {n - 1}, or one that cannot move is held"
        if _bits_at(step.sides, step.holder).any():
            return "a context that holds the median is marked as below it"
    if step.contexts is not None and not _sides_fit(step):
        return "a context's side, or the holder of a median, contradicts the recorded logits"
    return None


@step_check(
    check_id="sampling.support",
    title="Every sampled token lies in the support it was sampled from",
    failed="A sampled token lies outside the support it was sampled from",
    evidence=1,
    expected="sampled tokens in the recorded support, with positive probability",
    why="A token that could not have been drawn came from somewhere else, and its cost has no bound.",
    remedy=_REGENERATE,
    reference=_DOCS,
)
def token_in_support(view: StepView) -> str | None:
    """The sampled token against the recorded support."""
    if view.index is None:
        return f"token {view.step.token} is outside the support"
    if not math.isfinite(view.step.log_probability):
        return f"token {view.step.token} has probability 0"
    return None


def _within(values: NDArray[np.floating], limit: float) -> bool:
    # A comparison with NaN is false, so this refuses NaN too.
    return bool((np.abs(values) <= limit).all())


def _differs_from_contexts(manifest: Manifest, step: Step) -> str | None:
    """Recompute median or mean from the contexts' own logits, where there are none or all are recorded."""
    mechanism = manifest.mechanism
    dtype = np.dtype(manifest.record.dtype)
    contexts = step.contexts
    if contexts is None:
        contexts = np.zeros((0, manifest.support_size), dtype=dtype)
    if step.central is not None:
        if not _within(contexts, mechanism.clip):
            return "contexts lie beyond the clip, so their median is not defined"
        again = central_order_statistics(contexts, mechanism.clip, manifest.record.width)
        return None if np.array_equal(again, step.central) else "central values are not those of the recorded contexts"
    assert step.aggregate is not None
    mean = contexts.sum(axis=0, dtype=np.float64) / (mechanism.divisor or math.nan)
    rounding = (4 + len(contexts)) * mechanism.clip * float(np.finfo(dtype).eps)
    if np.allclose(mean, step.aggregate, rtol=0, atol=rounding):
        return None
    return "the aggregate is not the sum of the recorded contexts over the declared divisor"


def _sides_fit(step: Step) -> bool:
    """Whether no context below a median exceeds it and no other falls short of it."""
    assert step.central is not None and step.sides is not None and step.contexts is not None
    n = len(step.contexts)
    half = step.central.shape[0] // 2
    # For even n the two middle values part the contexts; for odd n both sides border on the median itself.
    top_of_lower, bottom_of_upper = (
        (step.central[half], step.central[half]) if n % 2 else step.central[half - 1 : half + 1]
    )
    below = np.unpackbits(step.sides, axis=0, count=n).view(np.bool_)
    fits = np.where(below, step.contexts <= top_of_lower, step.contexts >= bottom_of_upper)
    if step.holder is not None:
        held = np.take_along_axis(step.contexts, step.holder[None].astype(np.intp), axis=0)[0]
        fits &= held == step.central[half]
    return bool(fits[:, movable(step.central)].all())


def _bits_at(packed: NDArray[np.uint8], rows: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Of each column, the bit of one row: uint8 [S] from packed [ceil(n / 8), S] and rows [S]."""
    octets = np.take_along_axis(packed, (rows >> 3)[None].astype(np.intp), axis=0)[0]
    bits: NDArray[np.uint8] = octets >> (7 - (rows & 7)).astype(np.uint8) & 1
    return bits
