"""The kind of claim that bounds what all draws of a batch tell together, at every delta at once."""

from __future__ import annotations

from typing import ClassVar, Literal

from dpaudit.mechanisms.claims.kind import ClaimKind, Guarantee, KindOfClaim


class ZcdpClaim(KindOfClaim):
    """rho-zCDP: between neighbours, a Renyi divergence of at most rho times its order, at each.

    It is what contexts with budgets of their own promise, however long texts are. It holds against
    everybody, even whoever knows a record's batch. For readers who do not, an (epsilon, delta)
    follows from the run's profile, and never a rho.
    """

    id: ClassVar[ClaimKind] = "zcdp"
    name: ClassVar[str] = "zCDP"
    title: ClassVar[str] = "Zero-concentrated DP"
    meaning: ClassVar[str] = (
        "Fixed by public settings beforehand. ρ covers every text that could come out, at every δ."
    )
    beforehand: ClassVar[bool] = True
    delta: ClassVar[Literal["none", "needed", "optional"]] = "optional"
    figures: ClassVar[tuple[str, ...]] = ("rho",)
    symbol: ClassVar[str] = "ρ"
    guarantee: ClassVar[Guarantee] = "zcdp"
    epsilons: ClassVar[Guarantee] = "approximate"
    adds_up: ClassVar[bool] = True
    risk: ClassVar[str] = "risk.test-for-a-record"

    @classmethod
    def tested_delta(cls, delta: float) -> float:
        """Return the claim's delta, or one in ten million.

        rho gives an epsilon at every delta but 0.
        """
        return delta or 1e-7
