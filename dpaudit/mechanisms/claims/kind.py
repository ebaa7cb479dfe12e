"""The base class of kinds of claims.

Beside the formats, this package alone names kinds by their literals.
"""

from __future__ import annotations

from abc import ABC
from typing import ClassVar, Literal, Protocol, TypeAlias

#: What a claim can be, as configs, run.json and results write it.
ClaimKind: TypeAlias = Literal["ex-post", "approximate", "zcdp"]
#: And what a figure can be: those, or a loss that was seen, which guarantees nothing.
Kind: TypeAlias = Literal["ex-post", "approximate", "zcdp", "empirical"]
#: Fields of a result's guarantees that hold figures which a claim may be held against.
Guarantee: TypeAlias = Literal["ex_post", "approximate", "zcdp"]


class Figures(Protocol):
    """The figures of a claim, in nats; None if it does not state one."""

    @property
    def epsilon(self) -> float | None:
        """Epsilon at the release level."""

    @property
    def batch_epsilon(self) -> float | None:
        """Epsilon at the batch level."""

    @property
    def rho(self) -> float | None:
        """The rho of zCDP, at the batch level."""


class KindOfClaim(ABC):
    """A kind of claim. Its classes are never instantiated: a kind is what they say.

    Attributes:
        id: as configs, run.json and results write it.
        name: as sentences call it.
        title: above its figures.
        meaning: of a figure of this kind, in one sentence or two.
        beforehand: whether public settings fix its figures before the data are seen. They then
            cover every text that could come out, and what is recomputed may be shown wherever the
            claim may. Else they are functions of the private data, for the text that did come out.
        delta: whether its claims have a delta: "none" but that of noised centres, "needed", or
            "optional", to work an epsilon out at.
        figures: the figures that its claims state. The first is the one that it promises, and is
            always stated.
        symbol: of that one.
        guarantee: the recomputed figures that it is held against, a field of the result's
            guarantees.
        epsilons: the recomputed epsilons at both levels, another such field, or the same.
        adds_up: whether figures of several releases of the same records add up. Else they are
            composed jointly.
        risk: the sentence of the catalogue that says, without a formula, what a claim means for a
            person.
    """

    id: ClassVar[ClaimKind]
    name: ClassVar[str]
    title: ClassVar[str]
    meaning: ClassVar[str]
    beforehand: ClassVar[bool]
    delta: ClassVar[Literal["none", "needed", "optional"]]
    figures: ClassVar[tuple[str, ...]] = ("epsilon", "batch_epsilon")
    symbol: ClassVar[str] = "ε"
    guarantee: ClassVar[Guarantee]
    epsilons: ClassVar[Guarantee]
    adds_up: ClassVar[bool]
    risk: ClassVar[str]

    @classmethod
    def misfit(cls, claim: Figures) -> tuple[str, str] | None:
        """Return a figure that a claim lacks or cannot state, and what is allowed; or None."""
        promised = cls.figures[0]
        if getattr(claim, promised) is None:
            return promised, f"a number of at least 0 for the kind {cls.id}"
        for name in ("epsilon", "batch_epsilon", "rho"):
            if name not in cls.figures and getattr(claim, name) is not None:
                return name, f"left out for the kind {cls.id}"
        return None

    @classmethod
    def stated(cls, claim: Figures) -> float:
        """Return the figure that a claim promises, in nats."""
        figure: float = getattr(claim, cls.figures[0])
        return figure

    @classmethod
    def tested_delta(cls, delta: float) -> float:
        """Return the delta at which samples are held against a claim that states this one."""
        return delta

    @classmethod
    def covers(cls, stated: float, recomputed: float) -> bool:
        """Return whether a stated figure covers a recomputed one. Nothing covers a NaN."""
        return recomputed <= stated
