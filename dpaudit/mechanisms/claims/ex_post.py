"""The kind of claim that is about the very texts that came out."""

from __future__ import annotations

from typing import ClassVar, Literal

from dpaudit.mechanisms.claims.kind import ClaimKind, Guarantee, KindOfClaim


class ExPostClaim(KindOfClaim):
    """Data-dependent epsilon(D, X): how far a neighbour changes the probability of these texts."""

    id: ClassVar[ClaimKind] = "ex-post"
    name: ClassVar[str] = "ex-post"
    title: ClassVar[str] = "Ex-post epsilon"
    meaning: ClassVar[str] = (
        "Worked out after the run, for the text that did come out. It depends on the private data."
    )
    beforehand: ClassVar[bool] = False
    delta: ClassVar[Literal["none", "needed", "optional"]] = "none"
    guarantee: ClassVar[Guarantee] = "ex_post"
    epsilons: ClassVar[Guarantee] = "ex_post"
    adds_up: ClassVar[bool] = True
    risk: ClassVar[str] = "risk.these-texts"
