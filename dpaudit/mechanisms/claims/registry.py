"""All kinds of claims, and the names of figures that are no claim."""

from __future__ import annotations

from typing import Final

from dpaudit.mechanisms.claims.approximate import ApproximateClaim
from dpaudit.mechanisms.claims.ex_post import ExPostClaim
from dpaudit.mechanisms.claims.kind import ClaimKind, Kind, KindOfClaim
from dpaudit.mechanisms.claims.zcdp import ZcdpClaim

_ALL: tuple[type[KindOfClaim], ...] = (ExPostClaim, ApproximateClaim, ZcdpClaim)
#: By id, in the order in which pages show them.
CLAIM_KINDS: Final[dict[ClaimKind, type[KindOfClaim]]] = {kind.id: kind for kind in _ALL}

#: The kind of losses that were seen: figures, and no claim.
EMPIRICAL: Final = "empirical"
KIND_TITLES: Final[dict[Kind, str]] = {
    **{kind.id: kind.title for kind in CLAIM_KINDS.values()},
    EMPIRICAL: "Empirical losses",
}
KIND_MEANINGS: Final[dict[Kind, str]] = {
    **{kind.id: kind.meaning for kind in CLAIM_KINDS.values()},
    EMPIRICAL: "Seen when real contexts were left out. It says nothing about neighbours nobody "
    "tried.",
}
