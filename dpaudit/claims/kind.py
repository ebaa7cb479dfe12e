"""What a kind of claim is. The only package, beside the formats, that names kinds by their literals."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar, Literal, Protocol, TypeAlias

#: What a claim can be, as configs, run.json and results write it.
ClaimKind: TypeAlias = Literal["ex-post", "approximate"]
#: And what a figure can be: those, or a loss that was seen, which guarantees nothing.
Kind: TypeAlias = Literal["ex-post", "approximate", "empirical"]
#: Fields of a result's guarantees that hold figures which a claim may be held against.
Guarantee: TypeAlias = Literal["ex_post", "approximate"]


class Figures(Protocol):
    """The figures of a claim, in nats, as `dpaudit.runs.Claim` and its like state them."""

    @property
    def epsilon(self) -> float:
        """Epsilon at the release level."""


class KindOfClaim(ABC):
    """A kind of claim. Its classes are never instantiated: a kind is what they say.

    Attributes:
        id: as configs, run.json and results write it.
        name: as sentences call it.
        title: above its figures.
        meaning: of a figure of this kind, in one sentence or two.
        beforehand: whether public settings fix its figures before the data are seen. They then cover every text that
            could come out, and what is recomputed may be shown wherever the claim may. Else they are functions of the
            private data, for the text that did come out.
        guarantee: the recomputed figures that it is held against, a field of the result's guarantees.
        epsilons: the recomputed epsilons at both levels, another such field, or the same.
        accountants: by which its figures are worked out for other lengths of a text, when runs are compared.
        adds_up: whether figures of several releases of the same records add up. Else they are composed jointly.
        risk: the sentence of the catalogue that says, without a formula, what a figure means for a person.
    """

    id: ClassVar[ClaimKind]
    name: ClassVar[str]
    title: ClassVar[str]
    meaning: ClassVar[str]
    beforehand: ClassVar[bool]
    guarantee: ClassVar[Guarantee]
    epsilons: ClassVar[Guarantee]
    accountants: ClassVar[tuple[str, ...]]
    adds_up: ClassVar[bool]
    risk: ClassVar[str]

    @classmethod
    def stated(cls, claim: Figures) -> float:
        """Return the figure that a claim promises, in nats: epsilon at the release level."""
        return claim.epsilon

    @classmethod
    def covers(cls, stated: float, recomputed: float) -> bool:
        """Return whether a stated figure covers a recomputed one. Nothing covers a NaN."""
        return recomputed <= stated

    @classmethod
    def delta_suffices(cls, delta: float, centers: float) -> bool:
        """Return whether a claim's delta covers that of noised centres, and whatever else the kind spends of it."""
        return delta >= centers
