"""The joint cost of releases of the same records, as types."""

from __future__ import annotations

from typing import Literal

from dpaudit.mechanisms import Relation, Unit
from dpaudit.mechanisms.claims import ClaimKind
from dpaudit.results.result import AttackBound, Result
from dpaudit.results.values import Message, Number


class Spent(Result):
    """An epsilon, in nats, with its delta."""

    epsilon: Number
    delta: Number


class Release(Result):
    """One of the releases, with its guarantees taken alone.

    Attributes:
        source: "run" for a run of dpaudit's format; else the form in which another tool's guarantee
            was stated.
        records_per_user: the most that the unit "user" stands for in this run.
        rho: of zCDP, in nats, at the batch level: as another tool states it, or as recomputed for a
            run that claims it.
        approximate: for every output, at the release level; None for a run that has none, and for
            zCDP and Renyi DP, which have no one delta.
        ex_post: for the output that there is, at the release level; depends on the records, and is
            private; None if there is none.
        batch_approximate, batch_ex_post: the same at the batch level.
    """

    name: str
    source: Literal["run", "zcdp", "rdp", "approximate"]
    aggregator: str | None = None
    records_per_user: int | None = None
    rho: float | None = None
    approximate: Spent | None
    ex_post: Spent | None
    batch_approximate: Spent | None = None
    batch_ex_post: Spent | None = None


class Total(Result):
    """The joint cost of some of the releases, by one kind of epsilon.

    Attributes:
        releases: names of those that it is for; empty without one.
        figure: None likewise.
        method: how epsilons were put together: "sum" adds them up, "rdp" and "optimal" are joint
            accounting.
        reason: why it is not for all releases, None if it is.
        attack: what someone can tell of one unit who has all of these releases, composed and not
            added up; None without a figure, and for costs of the outputs that there are, which
            bound no attack in general.
    """

    kind: ClaimKind
    releases: tuple[str, ...] = ()
    figure: Spent | None = None
    method: Literal["sum", "rdp", "optimal"] | None = None
    reason: Message | None = None
    attack: AttackBound | None = None


class TotalRho(Result):
    """The rho of zCDP of some of the releases together, in nats, at the batch level: rhos add up.

    Attributes:
        releases: names of those that it is for, two or more.
        reason: why it is not for all releases; None if it is.
    """

    releases: tuple[str, ...]
    rho: Number
    reason: Message | None = None


class Shared(Result):
    """Clusters that runs have in common, noisy counts and all: they were released once.

    Attributes:
        releases: the runs; the first of them in a total is charged.
        counts: pure epsilon of the counts, in nats.
        centers: epsilon and delta of the centres.
    """

    releases: tuple[str, ...]
    counts: Number
    centers: Spent


class Continued(Result):
    """Runs that went on from what those before them had spent of the same budgets, in their order.

    Nobody pays more than one budget for all of them: the largest.
    """

    releases: tuple[str, ...]


class JointCost(Result):
    """The joint cost of two or more releases of the same records.

    Kinds of epsilon are never added to each other.

    Attributes:
        approximate: a statement about all outputs, whatever the data, at the release level: against
            readers who do not know which batches a record was in. It may be published.
        ex_post: one about the outputs that there are, at that level: for someone who knows all
            other records and their batches in every run, but not hers. Private.
        batch_approximate, batch_ex_post: the same at the batch level, against someone who knows all
            batches.
        zcdp: None if no release states a rho, or fewer than two have one. It may be published.
        continued: runs that have budgets of their records in common.
        no_attack: why nothing bounds attacks on the releases; None where `approximate` does.
        notes: other assumptions of the totals.
    """

    schema_version: Literal["1"] = "1"
    relation: Relation
    unit: Unit
    releases: tuple[Release, ...]
    approximate: Total
    ex_post: Total
    batch_approximate: Total
    batch_ex_post: Total
    zcdp: TotalRho | None = None
    shared: tuple[Shared, ...]
    continued: tuple[Continued, ...] = ()
    no_attack: Message | None = None
    notes: tuple[Message, ...]
