"""A worth figure that is paid for: the mean over batches of a gain that is cut off, with noise.

docs/mathematics.md ("A paid worth figure") has the proofs. Gains are added up as integers, so no
rounding of floats can tell more than the noise allows.
"""

from __future__ import annotations

import math

import numpy as np

from dpaudit.mechanisms import Relation, Unit

#: A batch's gain is cut off at this, in nats a token: a mean with a clip of 2 and a temperature of
#: 0.7 had gains of 0.2 to 0.7 (AG News, SmolLM2-135M, 2026-11-27).
CLIP = 0.5
#: Steps of a batch's gain in one nat a token.
STEPS = 1000
#: Of bounds on the figure without noise, however many are paid for before one is shown.
CONFIDENCE = 0.95
#: The first figure's share of what may go wrong; a further one has that share of what is left.
_FIRST = 0.9


def steps_of(gain: float) -> int:
    """Return a batch's gain, in nats a token, as an integer of steps within the cut-off.

    What is no number counts as no gain: no record may stop the count.
    """
    if math.isnan(gain):
        return 0
    return round(min(max(gain, -CLIP), CLIP) * STEPS)


def sensitivity(records: int) -> int:
    """Return how far the sum of all batches' steps moves where `records` records come or go.

    Each changes the gain of one batch at most, from one cut-off to the other.
    """
    return 2 * steps_of(CLIP) * records


def noise_scale(epsilon: float, records: int) -> float:
    """Return the scale of Laplace noise on the sum, in steps, rounded up; epsilon in nats."""
    return math.nextafter(sensitivity(records) / epsilon, math.inf)


def most_noise(scale: float, figures: int) -> float:
    """Return the steps that rounded Laplace noise on the last of some figures rarely exceeds.

    That it exceeds them for any of the figures happens once in twenty times at most: whoever pays
    again until a figure pleases gains nothing. P(noise > t) = exp(-(t + 1/2) / scale) / 2 for
    whole t >= 0.

    Args:
        scale: of the noise, in steps.
        figures: how many were paid for, this one included.
    """
    first = math.log(0.5 / (1 - CONFIDENCE) / _FIRST)
    return float(np.ceil(scale * (first - (figures - 1) * math.log(1 - _FIRST))))


def cost_for(
    spent: float, relation: Relation, unit: Unit, asked_relation: Relation, asked_unit: Unit
) -> float:
    """Return what figures cost for the neighbouring data sets of a claim, in nats.

    Args:
        spent: their cost for their own neighbouring data sets, in nats.
        relation, unit: of those.
        asked_relation, asked_unit: of the claim.
    """
    if unit != asked_unit:
        return math.inf
    # a replaced unit is one that goes and one that comes
    twice = (relation, asked_relation) == ("add_remove", "replace")
    return spent * 2 if twice else spent


def composed_rho(rho: float, epsilon: float) -> float:
    """Return rho of zCDP with an epsilon-DP figure, which is epsilon^2 / 2-zCDP."""
    return math.nextafter(rho + epsilon * epsilon / 2, math.inf) if epsilon else rho


def composed_epsilon(stated: float, epsilon: float) -> float:
    """Return the epsilon of both, at the claim's delta."""
    return math.nextafter(stated + epsilon, math.inf) if epsilon else stated


def composed_advantage(advantage: float, epsilon: float) -> float:
    """Return the bound on an attack's advantage where an epsilon-DP figure is shown, too.

    Total variations add up, and that of an epsilon-DP figure is at most tanh(epsilon / 2).
    """
    found = advantage + math.tanh(epsilon / 2)
    return min(1.0, math.nextafter(found, math.inf)) if epsilon else advantage


def composed_true_positives(rate: float, epsilon: float) -> float:
    """Return the bound on true positives, at the same false positives, with an epsilon-DP figure.

    With it every set is at most exp(epsilon) times as probable as without.
    """
    return min(1.0, math.nextafter(rate * math.exp(epsilon), math.inf)) if epsilon else rate
