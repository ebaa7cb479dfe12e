"""A recorded step against the model: its logits recomputed, and the most that rounding explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpaudit.generation.aggregation import Floats, aggregated, contributions
from dpaudit.generation.config import LEAST_WIDTH
from dpaudit.mechanisms import (
    ANCHOR,
    FLOAT64_ROUNDING,
    MASKED,
    Mechanism,
    PublicPart,
    Recomputed,
    largest_absolute,
    log_probability,
    with_anchor,
)
from dpaudit.results import Finding, Quantity, Value, finding_of
from dpaudit.results.replay import ReplayedStep
from dpaudit.runs import InputError, Step

#: How far beyond their root-mean-square size rounding errors are taken to reach.
REACH = 2.0
#: Largest relative error of rounding once (IEEE 754; bfloat16 has 8 significant bits).
UNIT_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8}


def rounding_tolerance(scale: float, layers: int, width: int, dtype: str) -> float:
    """Return how far rounding can put a model's logits apart when it computes them twice.

    It is in logit units. Padding, the other rows of a batch and the hardware change the order of
    sums and nothing else. Rounding errors are then independent with mean zero for all we know, and
    grow like the root of their number (Higham and Mary, "A new approach to probabilistic rounding
    error analysis", SIAM J. Sci. Comput. 41, 2019): 2 `layers` blocks add to the residual stream,
    each rounded to the model's dtype, and each a sum of `width` products that is kept in float32.

    Args:
        scale: the largest number around: the raw logits' absolute maximum, or the clip.
        layers: L, hidden layers.
        width: d, the hidden size.
        dtype: of weights and activations, "float32" or "bfloat16".
    """
    stored = UNIT_ROUNDOFF[dtype] * math.sqrt(2 * layers)
    summed = UNIT_ROUNDOFF["float32"] * math.sqrt(2 * layers * width)
    return REACH * scale * (stored + summed)


class ModelStep:
    """The model's side of a recorded step, over the recorded support.

    Attributes:
        public: the recorded support and anchor.
        index: the sampled token's place in the support.
        rounding: how far a logit may be off by rounding, in logit units.
        problem: why the step cannot be compared; None if it can.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        raw: Floats,
        step: Step,
        rounding: float,
        batch: int,
        position: int,
        problem: Finding | None = None,
        without: int | None = None,
    ) -> None:
        """Compute a batch's `step` from the model's logits, with the recorded support and anchor.

        Args:
            mechanism: the run's.
            raw: float32 [n, V]; over the recorded support, [n, S], for a mechanism that looks at no
                other.
            step: the record.
            rounding: how far a logit may be off by rounding, in logit units.
            batch, position: of the step.
            problem: of its support (`support_problem`).
            without: the slot of a context that the logits leave out.

        Raises:
            InputError: the logits are no numbers.
        """
        self.mechanism, self.raw, self.recorded, self.rounding = mechanism, raw, step, rounding
        self._batch, self._position, self.problem = batch, position, problem
        active = np.ones(len(raw), dtype=np.bool_) if step.active is None else step.active
        self._active = active
        if without is not None and step.active is not None:
            self._active = np.delete(active, without)
        support, self.index = step.support, step.token
        if support is not None and not problem:
            self.index = int(np.searchsorted(support, step.token))
            if self.index == len(support) or support[self.index] != step.token:
                self.problem = Finding(code="replay.token-outside-support")
        self.public = PublicPart(
            None if mechanism.over_support else support, step.arrays.get(ANCHOR)
        )
        if self.problem:
            return
        try:
            self._aggregate = mechanism.aggregator.aggregate(
                aggregated(raw[self._active], self.public, mechanism)
            )
        except ValueError as error:
            where = f"batch {batch}, step {position}"
            raise InputError(
                where, f"{error}.", "Replay on a machine like the one that made the run."
            ) from None

    @cached_property
    def recomputed(self) -> Recomputed:
        """The recomputed contributions to compare a recorded step with."""
        contribution, aggregator = self.mechanism.contribution, self.mechanism.aggregator
        free = contribution.model_copy(update={"grid": None})

        def aggregate_of(values: Floats) -> NDArray[np.floating]:
            return aggregator.aggregate(
                aggregator.step(values[self._active], contribution.clip, LEAST_WIDTH)
            )

        values = contributions(self.raw, self.public, free)
        return Recomputed(values, self.rounding, contribution, aggregate_of, self._aggregate)

    @cached_property
    def tolerance(self) -> float:
        """The largest distance that rounding explains, in logit units."""
        if self.problem:
            return self.rounding
        return self.mechanism.aggregator.tolerance(self.recomputed)

    @property
    def nats(self) -> float:
        """Bound a log-probability's error: the token's logit goes one way, all others the other."""
        if self.mechanism.contribution.grid is None or self.problem:
            return 2 * self.tolerance / self.mechanism.temperature
        x, tau = self.index, self.mechanism.temperature
        least, greatest = (self._sampled_from(end) for end in self.recomputed.ends)
        likeliest, unlikeliest = least.copy(), greatest.copy()
        likeliest[x], unlikeliest[x] = greatest[x], least[x]
        return log_probability(likeliest, x, tau) - log_probability(unlikeliest, x, tau)

    def log_probability(self) -> float:
        """Return the sampled token's log-probability, in nats; NaN if it cannot be compared."""
        if self.problem:
            return math.nan
        return log_probability(
            self._sampled_from(self._aggregate), self.index, self.mechanism.temperature
        )

    def compared(self) -> ReplayedStep:
        """Hold the recorded step against the model's."""
        step, place = self.recorded, (self._batch, self._position)
        if self.problem:
            return ReplayedStep(*place, math.inf, self.tolerance, (self.problem,))
        found = self.mechanism.aggregator.deviation(dict(step.arrays), self.recomputed)
        problems = [finding_of(found.problem)]
        if step.contexts is not None:
            gap = largest_absolute(step.contexts - self.recomputed.free) - self.recomputed.half
            if not gap <= self.rounding:
                problems.append(Finding(code="replay.contexts-apart", values={"difference": gap}))
        gap = abs(self.log_probability() - step.log_probability)
        if not gap <= self.nats + FLOAT64_ROUNDING:
            off: dict[str, Value] = {"difference": Quantity(value=gap, unit="nats")}
            problems.append(Finding(code="replay.probability-apart", values=off))
        return ReplayedStep(*place, found.difference, self.tolerance, tuple(filter(None, problems)))

    def recorded_losses(self, slots: Sequence[int]) -> NDArray[np.float64]:
        """Return the recorded losses of leaving each slot out, in nats; NaN if not recorded."""
        step, losses, n = self.recorded, None, len(self.raw)
        if not self.problem:
            with np.errstate(all="ignore"):  # a record may hold any numbers
                reduced = self.mechanism.reduced(dict(step.arrays), self.index)
                losses = self.mechanism.losses(reduced, step.given, n)
                if losses is None and step.contexts is None:
                    # Where the aggregate alone is recorded, what goes is the model's.
                    contexts = contributions(self.raw, self.public, self.mechanism.contribution)
                    losses = self.mechanism.losses(reduced, contexts, n)
        return np.full(len(slots), math.nan) if losses is None else losses[np.array(slots), 0]

    def _sampled_from(self, aggregate: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return aggregated contributions plus the recorded anchor."""
        return with_anchor(dict(self.recorded.arrays), aggregate)


def support_problem(support: NDArray[np.integer] | None, vocabulary: int) -> Finding | None:
    """Return why a recorded support cannot be one, or None if it can or none is recorded."""
    if support is None or (
        (np.diff(support) > 0).all() and 0 <= support[0] <= support[-1] < vocabulary
    ):
        return None
    return Finding(code="replay.no-support")


def largest_kept(logits: Floats, mechanism: Mechanism) -> float:
    """Return the largest absolute raw logit that a contribution depends on.

    The logits that clipping cuts cannot be off.
    """
    if not logits.size:
        return 0.0
    kept = logits > MASKED
    if not mechanism.contribution.over_support:  # there, all of them are in the normaliser
        kept &= logits >= logits.max(axis=1, keepdims=True) - 2 * mechanism.clip
    return float(np.abs(logits[kept]).max(initial=0.0))
