"""(epsilon, delta) of mean aggregation, from public settings alone.

A step samples from softmax(sum of clipped logits / (divisor * temperature)). One added or removed context moves each
logit by at most clip / (divisor * temperature), so a draw is an exponential mechanism of bounded range eta = twice that
(its privacy losses lie in an interval of that length), which gives (eta^2 / 8)-zCDP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpaudit.accounting.medians import Relation
from dpaudit.accounting.neighbors import ContextChange, Rule, Unit, context_changes

MOST_TOKENS = 1 << 40
#: A mean of up to 2^20 contexts, summed and recorded in float64, is off by less than this share of clip / divisor.
ROUNDING = 2.0**-30


def bounded_range(clip: float, temperature: float, divisor: float, change: ContextChange) -> float:
    """eta of one draw, in nats. A replaced context moves twice as far as one that comes or goes."""
    _require_positive(clip=clip, temperature=temperature, divisor=divisor)
    return change.half_steps * 2 * clip / (divisor * temperature) * (1 + ROUNDING)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """epsilon of a rho-zCDP sequence at `delta`, by Renyi accounting in dp-accounting.

    Raises:
        ValueError: delta is not in (0, 1), or rho is negative or not a number.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta}")
    if math.isnan(rho) or rho < 0:
        raise ValueError(f"rho must be non-negative, not {rho}")
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return math.inf
    from dp_accounting import ZCDpEvent
    from dp_accounting.rdp import RdpAccountant

    return float(RdpAccountant().compose(ZCDpEvent(rho)).get_epsilon(delta))


def zcdp_rho(clip: float, temperature: float, divisor: float, tokens: int, changes: Sequence[ContextChange]) -> float:
    """rho of one batch's `tokens` draws, for the worst of `changes`. Several batches compose like one longer one.

    Raises:
        ValueError: no change is given, or a setting is not positive.
    """
    if not changes:
        raise ValueError("no way of changing contexts is given, so nothing bounds the cost")
    if tokens < 0:
        raise ValueError(f"tokens must not be negative, not {tokens}")
    if tokens == 0:
        return 0.0
    try:
        return max(
            change.batches * tokens * bounded_range(clip, temperature, divisor, change) ** 2 / 8 for change in changes
        )
    except ArithmeticError:  # the settings are so extreme that rho is beyond the floats
        return math.inf


def mean_epsilon(
    clip: float,
    temperature: float,
    divisor: float,
    tokens: int,
    delta: float,
    *,
    unit: Unit = "record",
    relation: Relation = "add_remove",
    rule: Rule = "hashed-records",
) -> float:
    """epsilon of a mean run that may sample up to `tokens` tokens in every batch.

    Args:
        clip, temperature: the mechanism's; both positive.
        divisor: the fixed public number the sum of contexts is divided by.
        tokens: the public maximum length, not a realised one.
        delta: in (0, 1).
        unit, relation, rule: what neighbouring data sets differ by, and how records became contexts.
    """
    changes = context_changes(unit, relation, rule)
    return zcdp_epsilon(zcdp_rho(clip, temperature, divisor, tokens, changes), delta)


def affordable_tokens(
    epsilon: float, clip: float, temperature: float, divisor: float, delta: float, change: ContextChange
) -> int:
    """The most tokens a batch of a mean run may have while its epsilon stays within `epsilon`.

    Raises:
        ValueError: a setting is not positive and finite, or the answer is beyond 2^40 tokens.
    """

    def cost(tokens: int) -> float:
        return zcdp_epsilon(zcdp_rho(clip, temperature, divisor, tokens, [change]), delta)

    if math.isnan(epsilon) or math.isinf(epsilon) or epsilon <= 0:
        raise ValueError(f"epsilon must be positive and finite, not {epsilon}")
    beyond = 1
    while cost(beyond) <= epsilon:
        beyond *= 2
        if beyond > MOST_TOKENS:
            raise ValueError(f"epsilon {epsilon:g} affords more than 2^40 tokens under these settings: check them")
    within = beyond // 2
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if cost(middle) <= epsilon:
            within = middle
        else:
            beyond = middle
    return within


def _require_positive(**settings: float) -> None:
    for name, value in settings.items():
        if math.isnan(value) or value <= 0:
            raise ValueError(f"{name} must be positive, not {value}")
