"""The kind of claim that public settings fix at a delta."""

from __future__ import annotations

from typing import ClassVar

from dpaudit.claims.kind import ClaimKind, Guarantee, KindOfClaim


class ApproximateClaim(KindOfClaim):
    """(epsilon, delta)-DP, fixed before the data are seen."""

    id: ClassVar[ClaimKind] = "approximate"
    name: ClassVar[str] = "approximate"
    title: ClassVar[str] = "Approximate DP"
    meaning: ClassVar[str] = "Fixed by public settings and δ beforehand. It covers every text that could come out."
    beforehand: ClassVar[bool] = True
    guarantee: ClassVar[Guarantee] = "approximate"
    epsilons: ClassVar[Guarantee] = "approximate"
    accountants: ClassVar[tuple[str, ...]] = ("rdp", "optimal", "budgets")
    adds_up: ClassVar[bool] = False
    risk: ClassVar[str] = "risk.any-conclusion"

    @classmethod
    def delta_suffices(cls, delta: float, centers: float) -> bool:
        """Return whether something is left of delta for the tokens, once the centres have spent theirs."""
        return delta > centers
