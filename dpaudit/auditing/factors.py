"""What an epsilon does to a probability, in words that never promise more than it does."""

from __future__ import annotations

import math

from dpaudit.results import NEXT_TO_NOTHING, ClaimResult
from dpaudit.results.rounding import bound_against, exactly, rounded_up

#: Beyond this epsilon, in nats, a factor has five digits and more, and rules out next to nothing.
_MOST_TELLING = 10

#: Whom a guarantee of the release level holds against: one that was fixed beforehand, and one of these very texts, of
#: which nothing shorter is true (docs/mathematics.md, "Secret batches").
NOT_KNOWN = (
    "for whoever does not know which batch a record was in, as readers of the texts do not, even if they know all "
    "other records and their batches"
)
NOT_HERS = "for someone who knows all other records and their batches, but not hers"

_CHANGE = {"add_remove": "added or removed", "replace": "replaced by another"}


def change(claim: ClaimResult) -> str:
    """What the guarantee compares with, as the condition of a sentence."""
    most = claim.records_per_user
    unit = f"one {claim.unit}" + (f" with at most {most} records" if most else "")
    return f"had {unit} been {_CHANGE[claim.relation]}"


def at_batch_level(claimed: float | None, found: float) -> str:
    """What holds against whoever knows the batches, as a sentence: as claimed or, where nothing is, as recomputed."""
    said = (
        rounded_up(found) if claimed is None else f"{exactly(claimed)} (recomputed as {bound_against(found, claimed)})"
    )
    return (
        "It does not hide which batch a used record went to: for whoever has the key, the assignment or the run "
        f"directory, only the batch level holds, epsilon {said}."
    )


def next_to_nothing(epsilon: float) -> str:
    """Says so where an epsilon, in nats, is too large to rule anything out; else empty."""
    if not epsilon > _MOST_TELLING:
        return ""
    size = "without end" if math.isinf(epsilon) else f"with {math.floor(epsilon / math.log(10)) + 1:,} digits"
    return f"{NEXT_TO_NOTHING} the factor e^{exactly(epsilon)} is a number {size}."
