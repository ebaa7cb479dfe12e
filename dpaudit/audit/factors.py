"""What an epsilon does to a probability, in words that never promise more than it does."""

from __future__ import annotations

import math

from dpaudit.results import NEXT_TO_NOTHING, ClaimResult
from dpaudit.results.rounding import exactly

#: Beyond this epsilon, in nats, a factor has five digits and more, and rules out next to nothing.
_MOST_TELLING = 10

_CHANGE = {"add_remove": "added or removed", "replace": "replaced by another"}


def change(claim: ClaimResult) -> str:
    """What the guarantee compares with, as the condition of a sentence."""
    most = claim.records_per_user
    unit = f"one {claim.unit}" + (f" with at most {most} records" if most else "")
    return f"had {unit} been {_CHANGE[claim.relation]}"


def next_to_nothing(epsilon: float) -> str:
    """Says so where an epsilon, in nats, is too large to rule anything out; else empty."""
    if not epsilon > _MOST_TELLING:
        return ""
    size = "without end" if math.isinf(epsilon) else f"with {math.floor(epsilon / math.log(10)) + 1:,} digits"
    return f"{NEXT_TO_NOTHING} the factor e^{exactly(epsilon)} is a number {size}."
