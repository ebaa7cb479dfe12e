"""The kind of claim that public settings fix at a delta."""

from __future__ import annotations

from typing import ClassVar, Literal

from dpaudit.mechanisms.claims.kind import ClaimKind, Guarantee, KindOfClaim


class ApproximateClaim(KindOfClaim):
    """(epsilon, delta)-DP, fixed before the data are seen."""

    id: ClassVar[ClaimKind] = "approximate"
    name: ClassVar[str] = "approximate"
    title: ClassVar[str] = "Approximate DP"
    meaning: ClassVar[str] = (
        "Fixed by public settings and δ beforehand. It covers every text that could come out."
    )
    beforehand: ClassVar[bool] = True
    delta: ClassVar[Literal["none", "needed", "optional"]] = "needed"
    guarantee: ClassVar[Guarantee] = "approximate"
    epsilons: ClassVar[Guarantee] = "approximate"
    adds_up: ClassVar[bool] = False
    risk: ClassVar[str] = "risk.any-conclusion"
