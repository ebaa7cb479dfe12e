"""(epsilon, delta) of mean aggregation, from public settings alone.

A step samples from softmax(mean of clipped logits / temperature). A neighbour's mean differs by at most the sensitivity
in every component, so a draw is an exponential mechanism of bounded range eta = 2 sensitivity / temperature: its
privacy losses lie in an interval of that length. Proofs are in docs/budgets.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from dpaudit.accounting.composition import (
    Method,
    epsilons_by_steps,
    exponential_mechanism_epsilon,
    steps_within,
    zcdp_of_range,
)
from dpaudit.accounting.neighbors import ContextChange

DivisorKind: TypeAlias = Literal["fixed", "actual"]

MOST_TOKENS = 1 << 40
#: Rounding may move a mean by this share of clip / divisor. Pairwise sums in float64, which numpy takes of contiguous
#: values, keep within it for up to 2^20 contexts (30 n 2^-53, twice), and sums one by one for some 8,000 (n^2 2^-53).
ROUNDING = 2.0**-26


@dataclass(frozen=True)
class MeanSensitivity:
    """How far one unit's difference moves each component of the mean.

    Attributes:
        multiple: in units of clip / divisor.
        text: the same in words, for reports.
    """

    multiple: int
    text: str


def mean_sensitivity(change: ContextChange, divisor_kind: DivisorKind = "fixed") -> MeanSensitivity:
    """The sensitivity of the mean to a change that falls on one batch, which is the worst way of spreading it.

    Args:
        change: what neighbouring batches differ by.
        divisor_kind: "fixed" divides the sum by a public number s. "actual" divides by the number of contexts, and s is
            a public floor under it, in the larger of two neighbouring batches: then a context also changes the weight
            of all others, and counts twice when it comes or goes.

    Raises:
        ValueError: the kind of divisor is unknown.
    """
    if divisor_kind not in get_args(DivisorKind):
        raise ValueError(f"divisor_kind must be fixed or actual, not {divisor_kind!r}")
    multiple = change.half_steps if divisor_kind == "fixed" else 2 * change.contexts
    each = "2c/s" if multiple == 2 * change.contexts else "c/s"
    divisor = "fixed divisor s" if divisor_kind == "fixed" else "divisor the number of contexts, at least s"
    contexts = f", {change.contexts} contexts" if change.contexts > 1 else ""
    return MeanSensitivity(multiple, f"{divisor}, {change.relation}: {each} per context{contexts}")


def bounded_range(
    clip: float, temperature: float, divisor: float, change: ContextChange, divisor_kind: DivisorKind = "fixed"
) -> float:
    """eta of one draw, in nats; infinite where the settings are beyond the floats.

    Raises:
        ValueError: a setting is not positive, or the kind of divisor is unknown.
    """
    _require_positive(clip=clip, temperature=temperature, divisor=divisor)
    sensitivity = mean_sensitivity(change, divisor_kind).multiple * (clip / divisor)
    return 2 * sensitivity / temperature * (1 + ROUNDING)


def zcdp_rho(
    clip: float,
    temperature: float,
    divisor: float,
    tokens: int,
    change: ContextChange,
    divisor_kind: DivisorKind = "fixed",
) -> float:
    """rho of `tokens` draws, eta^2 / 8 each, in all the batches that one unit's difference reaches.

    Raises:
        ValueError: a setting is not positive, or `tokens` is negative.
    """
    if tokens < 0:
        raise ValueError(f"tokens must not be negative, not {tokens}")
    return zcdp_of_range(bounded_range(clip, temperature, divisor, change, divisor_kind), tokens)


def mean_epsilon(
    clip: float,
    temperature: float,
    divisor: float,
    tokens: int,
    delta: float,
    change: ContextChange | None,
    *,
    divisor_kind: DivisorKind = "fixed",
    laplace: Sequence[float] = (),
    method: Method = "rdp",
) -> float:
    """epsilon of a mean run that may sample up to `tokens` tokens in every batch.

    Args:
        clip: the mechanism's c > 0.
        temperature: the mechanism's tau > 0.
        divisor: what the sum of contexts is divided by, or a public floor under it (`mean_sensitivity`).
        tokens: the public maximum length, not a realised one.
        delta: in (0, 1).
        change: what neighbouring data sets differ by; None where nothing bounds it.
        divisor_kind: whether the divisor is a public number or the number of contexts.
        laplace: epsilons of rebalancing counts, one each (`rebalancing_events`), composed jointly.
        method: how to compose (`exponential_mechanism_epsilon`).

    Raises:
        ValueError: nothing bounds the change, or an argument is out of its range.
    """
    if change is None:
        raise ValueError("no way of changing contexts is given, so nothing bounds the cost")
    eta = bounded_range(clip, temperature, divisor, change, divisor_kind)
    return exponential_mechanism_epsilon(eta, tokens, delta, method=method, laplace=laplace).epsilon


def mean_epsilons(
    clip: float,
    temperature: float,
    divisor: float,
    tokens: Sequence[int],
    delta: float,
    change: ContextChange,
    *,
    laplace: Sequence[float] = (),
    method: Method = "rdp",
) -> list[float | None]:
    """`mean_epsilon` at several lengths, positive and ascending, at once; None where "optimal" does not reach.

    Raises:
        ValueError: an argument is out of its range.
    """
    eta = bounded_range(clip, temperature, divisor, change)
    return epsilons_by_steps(eta, tokens, delta, method=method, laplace=laplace)


def affordable_tokens(
    epsilon: float,
    clip: float,
    temperature: float,
    divisor: float,
    delta: float,
    change: ContextChange,
    *,
    divisor_kind: DivisorKind = "fixed",
    laplace: Sequence[float] = (),
    method: Method = "rdp",
) -> int:
    """The most tokens a batch may have while `mean_epsilon`, with the same arguments, stays within `epsilon`.

    Raises:
        ValueError: an argument is out of its range, rebalancing alone exceeds `epsilon`, or the answer is beyond 2^40
            tokens.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, not {epsilon}")
    eta = bounded_range(clip, temperature, divisor, change, divisor_kind)

    def within(tokens: int, by: Method = method) -> bool:
        return exponential_mechanism_epsilon(eta, tokens, delta, method=by, laplace=laplace).epsilon <= epsilon

    if not within(0):
        raise ValueError(f"epsilon {epsilon:g} is less than the rebalancing alone costs")
    if method == "rdp":
        return _largest(within, 0)
    by_rdp = _largest(lambda tokens: within(tokens, "rdp"), 0) if within(0, "rdp") else 0
    # One pass over the recursion comes close; a few calls of the bound itself settle it.
    return _largest(within, max(by_rdp, steps_within(epsilon, eta, by_rdp + by_rdp // 4 + 16, delta, laplace=laplace)))


def _largest(within: Callable[[int], bool], guess: int) -> int:
    """The largest number that is within, near `guess`: strides that double, then bisection. 0 is within."""
    if within(guess):
        low, high = guess, guess + 1
        while within(high):
            low, high = high, 2 * high - guess
            if low > MOST_TOKENS:
                raise ValueError("this epsilon affords more than 2^40 tokens under these settings: check them")
    else:
        low, high = guess - 1, guess
        while not within(low):
            low, high = max(0, 2 * low - guess), low
    return low + bisect_left(range(low + 1, high), True, key=lambda tokens: not within(tokens))


def _require_positive(**settings: float) -> None:
    for name, value in settings.items():
        # An infinite clip has a meaning: it bounds nothing.
        if not value > 0 or (math.isinf(value) and name != "clip"):
            raise ValueError(f"{name} must be positive{'' if name == 'clip' else ' and finite'}, not {value}")
