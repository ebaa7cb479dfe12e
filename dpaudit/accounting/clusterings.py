"""The centres of clusterings: origin, settings that a config must give, and cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from dpaudit.accounting.centers import centers_epsilon
from dpaudit.mechanisms import Relation
from dpaudit.plugins import CLUSTERING, Registry

#: The settings of a run's centres beside the texts, by name, as run.json has them.
CentersSettings: TypeAlias = Mapping[str, int | float | str]
#: The fields of a config that a plug-in's clustering may ask for.
FIELDS = ("public", "centers", "epsilon", "delta", "dimension")


class CentersAsked(NamedTuple):
    """The clustering that a config asks for; None if it says nothing.

    Attributes:
        centers: how many are looked for.
        epsilon, delta: the budget of the centres, for `relation`; epsilon in nats.
        dimension: onto which embeddings are projected.
        relation: of the run's claim.
        radius: public, of embeddings: 1 for those of length 1.
        seed: of the search among public texts; no secret.
    """

    centers: int | None
    epsilon: float | None
    delta: float | None
    dimension: int | None
    relation: Relation
    radius: float
    seed: int | None


class Centers(ABC):
    """The origin of a clustering's centres. A plug-in derives from it.

    Attributes:
        name: as configs and run.json have it.
        origin: who had a say in where centres lie: public data alone, or private records through
            noise. Of private records without noise no plug-in can be.
        needs: the fields of `clustering` in a config that it takes, of FIELDS; the others must be
            null.
    """

    name: ClassVar[str]
    origin: ClassVar[Literal["public", "noised", "private"]]
    needs: ClassVar[tuple[str, ...]]

    @classmethod
    def epsilon(cls, settings: CentersSettings, delta: float, relation: Relation) -> float:
        """Return the cost of noised centres for one record, in nats, rounded up.

        It is recomputed from what run.json has of them.

        Raises:
            ValueError: nothing bounds it, or a number is missing or out of its range.
        """
        raise ValueError(f"centres of the method {cls.name!r} have no noise that is known here")

    @classmethod
    @abstractmethod
    def fitting(cls, asked: CentersAsked) -> Any:
        """Return what finds centres, a `dpaudit.generation.clustering.interfaces.ClusteringMethod`.

        Raises:
            ValueError: a number cannot be used.
        """


class _OwnCenters(Centers):
    """An origin of dpaudit's own, which `dpaudit.generation.clustering` fits."""

    @classmethod
    def fitting(cls, asked: CentersAsked) -> Any:
        raise NotImplementedError(cls.name)


class _KMeans(_OwnCenters):
    name, origin, needs = "k-means", "private", ("centers",)


class _Chang(_OwnCenters):
    name, origin, needs = "chang", "noised", ("centers", "epsilon", "delta", "dimension")

    @classmethod
    def epsilon(cls, settings: CentersSettings, delta: float, relation: Relation) -> float:
        return centers_epsilon("chang", settings, delta, relation)


class _Dpm(_OwnCenters):
    name, origin, needs = "dpm", "noised", ("public", "epsilon", "delta")

    @classmethod
    def epsilon(cls, settings: CentersSettings, delta: float, relation: Relation) -> float:
        return centers_epsilon("dpm", settings, delta, relation)


class _Public(_OwnCenters):
    name, origin, needs = "public-centers", "public", ("public", "centers")


class _Rebalanced(_OwnCenters):
    name, origin, needs = (
        "public-centers-rebalanced",
        "public",
        ("public", "centers", "keep", "epsilon"),
    )


def _objection(kind: type[Centers]) -> str:
    """Return why a plug-in's clustering cannot be used, or ""."""
    if getattr(kind, "origin", None) not in ("public", "noised"):
        return "its origin is neither public nor noised."
    strange = sorted({*getattr(kind, "needs", ("nothing",))} - {*FIELDS})
    if strange:
        return f"it needs {', '.join(strange)}, which is none of {', '.join(FIELDS)}."
    return ""


#: All clusterings, by name.
CLUSTERINGS: Registry[Centers] = Registry(
    CLUSTERING,
    Centers,
    {kind.name: kind for kind in (_KMeans, _Chang, _Dpm, _Public, _Rebalanced)},
    _objection,
)
