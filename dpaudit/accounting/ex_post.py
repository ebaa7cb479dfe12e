"""The data-dependent ex-post cost of sampled tokens, per step, batch and run: Theorem 1, and exact.

Every neighbour's aggregate lies in a box around the one that was sampled from. Theorem 1 of the
paper bounds the log-ratio of the token's probabilities from the box's two corners; the exact cost
is its supremum over the box, which is smaller because the token's own logit cannot be high in the
numerator and low in the normaliser at once. Proofs are in docs/mathematics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.accounting.renyi import rounded_sum
from dpaudit.mechanisms import (
    Box,
    ContextChange,
    Mechanism,
    ReducedSteps,
    Spans,
)
from dpaudit.mechanisms.interfaces import Doubles, Floats


def theorem1_cost(
    lower: Floats, center: Floats, upper: Floats, token: ArrayLike, temperature: float
) -> Any:
    """Return gamma of a step, in nats (the paper, Definition "per-token privacy cost").

    Both directions of the log-ratio between the step's distribution and any neighbour's lie below
    it.

    Args:
        lower: [..., S] lower bounds on the neighbours' aggregates; leading axes are steps.
        center: [..., S] the aggregate that was sampled from.
        upper: [..., S] upper bounds on the neighbours' aggregates.
        token: [...] index of the sampled token along S.
        temperature: tau > 0.

    Returns:
        A float, or float64 [...] for several steps; inf if a bound is infinite.

    Raises:
        ValueError: a value is not a number, the vectors are not in order, a token is not among
            them, or the temperature is not positive and finite: no bound follows from such a
            record.
    """
    theorem1, _, _ = _in_shape((lower, center, upper), token, temperature)
    return theorem1


def exact_cost(
    lower: Floats,
    center: Floats,
    upper: Floats,
    token: ArrayLike,
    temperature: float,
) -> tuple[Any, Any]:
    """Return the suprema over the box of the token's log-ratios in both directions, in nats.

    They are those of log p'(token) - log p(token) and of log p(token) - log p'(token). The larger
    one never exceeds `theorem1_cost`. With the bounds of an added or removed context it is attained
    by contributions that the clip allows, so no smaller bound follows from the clip alone
    (docs/mathematics.md, "Exact cost"; there, too, which of them differences of log-probabilities
    can be).

    Args, Raises:
        As for `theorem1_cost`.

    Returns:
        (rise, fall), each a float, or float64 [...] for several steps; non-negative, inf if a
            bound is infinite.
    """
    _, rise, fall = _in_shape((lower, center, upper), token, temperature)
    return rise, fall


def rounding_allowances(
    lower: Floats, upper: Floats, steps: ReducedSteps, temperature: float
) -> Doubles:
    """Return how far float64 may put each step's cost below its true value, in nats: [k].

    The bounds are [M].

    Scaled logits of size R are off by R * 2^-53, and so is each exponential's exponent; a sum of S
    exponentials by another S * 2^-53 at most. A sampler adds up S weights, cumulates them and
    divides: each token is drawn with a probability that is off by some 6 S * 2^-53, for this data
    set and for its neighbour. The factors are generous: they hold in whatever order the S
    exponentials are added up, and for the logarithm of a part of the sum, which is at most R + log
    S and is rounded three times.
    """
    spans = steps.spans
    farthest = np.maximum(-spans.smallest(lower), spans.largest(upper)).astype(np.float64)
    largest = np.maximum(farthest, steps.largest) / temperature
    allowances: Doubles = (32 * largest + 16 * (spans.lengths + steps.columns) + 128) * 2.0**-53
    return allowances


class Cost(NamedTuple):
    """Ex-post cost of a token, a batch or a run, in nats.

    It is by Theorem 1, and exactly in either direction.
    """

    theorem1: float
    rise: float
    fall: float

    @property
    def exact(self) -> float:
        """The smallest bound.

        Rises and falls are summed apart, since no neighbour takes both at once.
        """
        return max(self.rise, self.fall)


class StepCosts(NamedTuple):
    """What k steps cost under one change, in nats.

    Attributes:
        costs: [k, 3] as in `Cost`, as float64 has them.
        allowances: [k] `rounding_allowances`.
        eps: of the precision of the vectors that they follow from.
    """

    costs: Doubles
    allowances: Doubles
    eps: float

    @property
    def rounded_up(self) -> Doubles:
        """[k, 3] bounds on the true costs."""
        up: Doubles = np.nextafter(self.costs + self.allowances[:, None], math.inf)
        return up


def step_costs(mechanism: Mechanism, change: ContextChange, steps: ReducedSteps) -> StepCosts:
    """Return what steps cost under a change.

    Raises:
        ValueError: the record does not bound it, or no bound follows from such a record.
    """
    box = mechanism.box(steps.arrays, change)
    costs = _costs(box, steps.tokens, steps.spans, mechanism.temperature, steps.log_sums)
    allowances = rounding_allowances(box[0], box[2], steps, mechanism.temperature)
    return StepCosts(np.stack(costs, axis=-1), allowances, float(np.finfo(box[1].dtype).eps))


class ExPostAccountant:
    """The sum of a run's ex-post cost, a step at a time. Every figure is rounded up.

    A batch costs the sum of its tokens. A run costs the worst batch, or the worst way of spreading
    the contexts that one unit's difference changes over several batches (parallel composition over
    disjoint batches). Rounds, each of which has the unit's contexts anew, add up.
    """

    def __init__(
        self, mechanism: Mechanism, change: ContextChange | None, per_round: int | None = None
    ) -> None:
        """Start with nothing spent.

        Args:
            mechanism: what draws.
            change: how one unit's difference changes the contexts of a round.
            per_round: how many batches a round has, numbered round by round; None if there is one
                round.

        Raises:
            ValueError: no change of neighbouring batches is given, or rounds have no batches.
        """
        if change is None:
            raise ValueError(
                "nothing bounds how one unit changes the contexts, so nothing bounds the cost"
            )
        if per_round is not None and per_round < 1:
            raise ValueError(f"a round has at least one batch, not {per_round}")
        self._mechanism, self.change, self._per_round = mechanism, change, per_round
        #: By batch, for each number of contexts and measure: the totals after 0, 1, ... tokens.
        self._open: dict[int, list[list[float]]] = {}
        # Of each, as bytes, for floats take twice as much: Theorem 1, rise and fall.
        self._closed: dict[int, bytes] = {}
        # By round, [measure, j, t]: the largest total of j changed contexts in its closed batches,
        # cut to t tokens.
        self._worst: dict[int, Doubles] = {}

    def charge(self, batch: int, steps: ReducedSteps) -> Doubles:
        """Add k steps in order, as `Mechanism.reduced` gives them.

        Threads may charge for different batches at a time.

        Returns:
            [k, 3] what each step costs, as in `Cost`, for a change that falls on this batch as a
            whole.

        Raises:
            ValueError: a value is not a finite number, the record does not bound the change, or the
                batch is closed. Then none of them is added.
        """
        if batch in self._closed:
            raise ValueError(f"batch {batch} is closed")
        return self.add(batch, self.costs(steps))

    def costs(
        self, steps: ReducedSteps, of_change: Callable[[ContextChange], StepCosts] | None = None
    ) -> Doubles:
        """Return [k, contexts + 1, 3] what steps cost where 0, 1, ... contexts of the change fall.

        Nothing is charged. Steps may be of several batches. `of_change` gives their `step_costs`
        where somebody keeps these.

        Raises:
            ValueError: a value is not a finite number, or the record does not bound the change.
        """
        if not (np.isfinite(steps.largest).all() and not np.isnan(steps.log_sums).any()):
            raise ValueError("a value is not a finite number")
        of_change = of_change or partial(step_costs, self._mechanism, steps=steps)
        costs = np.zeros((len(steps.spans), self.change.contexts + 1, 3))
        for contexts in range(1, self.change.contexts + 1):
            change = ContextChange(self.change.relation, contexts)
            costs[:, contexts] = of_change(change).rounded_up
        return costs

    def add(self, batch: int, costs: Doubles) -> Doubles:
        """Add k steps' `costs` to a batch that is not closed, in order; return them as `charge`."""
        sums = self._open.setdefault(batch, [[0.0] for _ in costs[0].flat])
        for totals, steps in zip(sums, costs.reshape(len(costs), -1).T.tolist(), strict=True):
            totals += accumulate(steps, rounded_sum, initial=totals.pop())
        return costs[:, -1]

    def close(self, batch: int) -> Doubles | None:
        """Keep the sums only of a batch that is over, and return them as `detach` does."""
        spent = self.detach(batch)
        if spent is not None:
            self.attach(batch, spent)
        return spent

    def detach(self, batch: int) -> Doubles | None:
        """Return and forget an open batch's costs, for another accountant of the same change.

        Returns:
            float64 [contexts + 1, 3, T + 1] Theorem 1, rise and fall after 0 .. T tokens, in nats,
                where 0, 1, ... contexts of the change fall on this batch. None if it has no steps.
        """
        return self._sums(self._open.pop(batch)) if batch in self._open else None

    def attach(self, batch: int, sums: Doubles) -> None:
        """Add a batch from the sums that another accountant detached. It takes no more steps.

        Raises:
            ValueError: the batch has steps here already, or the sums are of another change.
        """
        if batch in self._closed or batch in self._open:
            raise ValueError(f"batch {batch} has steps here already")
        if sums.shape[:2] != (self.change.contexts + 1, 3):
            raise ValueError(
                f"sums of shape {sums.shape} are not those of {self.change.contexts} contexts"
            )
        round_ = self._round_number(batch)
        self._worst[round_] = _fold_batch(self._worst.get(round_, self._no_batches), sums)
        self._closed[batch] = sums[-1, :, -1].tobytes()

    def batch_cost(self, batch: int) -> Cost:
        """Return one batch's cost so far when the whole change falls on it."""
        if batch in self._open:
            return Cost(*self._sums(self._open[batch])[-1, :, -1].tolist())
        if batch in self._closed:
            return Cost(*np.frombuffer(self._closed[batch]).tolist())
        return Cost(0.0, 0.0, 0.0)

    @property
    def cost(self) -> Cost:
        """The run's cost so far."""
        worst = {round_: closed[..., -1:] for round_, closed in self._worst.items()}
        for batch, steps in self._open.items():
            round_ = self._round_number(batch)
            sums = self._sums(steps)[..., -1:]
            worst[round_] = _fold_batch(worst.get(round_, self._no_batches), sums)
        return Cost(*_sum_rounds(worst.values())[:, -1].tolist())

    @property
    def epsilon(self) -> float:
        """The run's exact ex-post epsilon so far, in nats."""
        return self.cost.exact

    def by_tokens(self) -> list[Cost]:
        """Return the closed batches' cost had each ended after 0, 1, 2, ... tokens."""
        return [Cost(*totals) for totals in _sum_rounds(self._worst.values()).T.tolist()]

    @property
    def _no_batches(self) -> Doubles:
        return np.zeros((3, self.change.contexts + 1, 1))

    def _sums(self, totals: list[list[float]]) -> Doubles:
        """Return an open batch's totals, as `detach` does."""
        return np.reshape(totals, (self.change.contexts + 1, 3, -1))

    def _round_number(self, batch: int) -> int:
        return 0 if self._per_round is None else batch // self._per_round


def _fold_batch(worst: Doubles, sums: Doubles) -> Doubles:
    """Return the largest totals over all ways of spreading a change over batches, with one more.

    Args:
        worst: [measure, contexts, tokens + 1] of the batches so far.
        sums: [contexts, measure, T + 1] cost of the batch after 0 .. T tokens (contexts from 0).
    """
    costs = np.swapaxes(sums, 0, 1)
    length = max(costs.shape[-1], worst.shape[-1])
    costs, before = _lengthen(costs, length), _lengthen(worst, length)
    after = before.copy()
    for contexts in range(1, before.shape[1]):
        for here in range(1, contexts + 1):
            total = _add_up(before[:, contexts - here], costs[:, here])
            np.maximum(after[:, contexts], total, out=after[:, contexts])
    return after


def _sum_rounds(worst: Iterable[Doubles]) -> Doubles:
    """Return the cost of all rounds when the whole change falls on each: [measure, tokens + 1]."""
    total = np.zeros((3, 1))
    for each in worst:
        length = max(total.shape[-1], each.shape[-1])
        total = _add_up(_lengthen(total, length), _lengthen(each[:, -1], length))
    return total


def _lengthen(array: Doubles, length: int) -> Doubles:
    """Return the array with its last column repeated: a batch that has ended costs no more."""
    missing = length - array.shape[-1]
    if not missing:
        return array
    return np.concatenate([array, np.repeat(array[..., -1:], missing, axis=-1)], axis=-1)


def _add_up(left: Doubles, right: Doubles) -> Doubles:
    """Return left + right, rounded up; exact where one of them is zero."""
    total = left + right
    return np.where((left == 0) | (right == 0), total, np.nextafter(total, np.inf))


def _in_shape(box: Box, token: ArrayLike, temperature: float) -> tuple[Any, Any, Any]:
    """Return Theorem 1, rise and fall of steps [...], floats for one.

    The columns of all of them are put into a row.
    """
    index = np.asarray(token)
    *leading, size = np.broadcast_shapes(*(np.shape(values) for values in box))
    shape = np.broadcast_shapes(index.shape, tuple(leading))
    low, mid, high = (np.broadcast_to(values, (*shape, size)).reshape(-1) for values in box)
    spans = Spans([size] * math.prod(shape))
    tokens = np.broadcast_to(index, shape).reshape(-1) + spans.starts
    found = _costs((low, mid, high), tokens, spans, temperature, np.full(len(spans), -np.inf))
    theorem1, rise, fall = (cost.reshape(shape) if shape else float(cost[0]) for cost in found)
    return theorem1, rise, fall


def _costs(
    box: Box, tokens: NDArray[np.intp], spans: Spans, temperature: float, log_sums: Doubles
) -> tuple[Doubles, Doubles, Doubles]:
    """Return Theorem 1, rise and fall of k steps in nats, [k]; inf if a bound or sum is not finite.

    Args:
        box: [columns], each step's behind another's.
        tokens: [k] the columns of the sampled tokens.
        spans: which columns each step has.
        temperature: tau.
        log_sums: [k] of each step's further columns, in which the three vectors are equal.

    Raises:
        ValueError: no bound follows from one of them.
    """
    scaled = _scaled(box, temperature)
    if tokens.dtype.kind not in "iu":
        raise ValueError("a token is a whole number")
    for step in np.flatnonzero((tokens < spans.starts) | (tokens >= spans.ends)):
        place, size = tokens[step] - spans.starts[step], spans.lengths[step]
        raise ValueError(f"token {place} is not among the {size} tokens")
    low_x, mid_x, high_x = scaled[:, tokens]
    with np.errstate(all="ignore"):  # what infinite bounds give is put right below
        bounded = np.isfinite(spans.smallest(scaled[0])) & np.isfinite(spans.largest(scaled[2]))
        others_low, others_mid, others_high = np.logaddexp(
            _log_sums_of_others(scaled, tokens, spans), log_sums
        )
        lse_mid = np.logaddexp(others_mid, mid_x)
        up, down = high_x - mid_x + lse_mid, mid_x - low_x - lse_mid
        theorem1 = np.maximum(
            up - np.logaddexp(others_low, low_x), down + np.logaddexp(others_high, high_x)
        )
        rise = np.maximum(up - np.logaddexp(others_low, high_x), 0.0)
        fall = np.maximum(down + np.logaddexp(others_high, low_x), 0.0)
    bounded &= np.isfinite(theorem1) & np.isfinite(rise) & np.isfinite(fall)
    theorem1, rise, fall = (np.where(bounded, cost, np.inf) for cost in (theorem1, rise, fall))
    return theorem1, rise, fall


def _scaled(box: Box, temperature: float) -> Doubles:
    """Return the box over tau in float64, [3, columns].

    Raises:
        ValueError: no bound follows.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, not {temperature}")
    scaled = np.empty((3, len(box[0])))
    with np.errstate(over="ignore"):
        for values, row in zip(box, scaled, strict=True):
            np.divide(values, temperature, out=row, dtype=np.float64)
    low, mid, high = scaled
    # A comparison with NaN is false.
    ordered = (low <= mid).all() and (mid <= high).all()
    if not np.isfinite(mid).all() or (
        not ordered and (np.isnan(low).any() or np.isnan(high).any())
    ):
        raise ValueError("the aggregate or a bound on it is not a number")
    if not ordered:
        raise ValueError("the aggregate does not lie between its bounds")
    return scaled


def _log_sums_of_others(values: Doubles, tokens: NDArray[np.intp], spans: Spans) -> Doubles:
    """Return the logs of the sums of exp of values without the tokens' own entries, [3, k].

    Values are [3, columns], and are overwritten. It is -inf without others. The token's entry is
    left out before the largest is taken: beside an entry that is higher by 745 all others would
    vanish, and with them the bound when that entry is replaced.
    """
    values[:, tokens] = -np.inf
    largest = spans.largest(values)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    values -= spans.spread(shift)
    total: Doubles = shift + np.log(spans.sums(np.exp(values, out=values)))
    return total
