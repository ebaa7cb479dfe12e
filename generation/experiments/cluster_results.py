"""Clustering methods side by side, as types."""

from __future__ import annotations

from typing import Literal

from dpaudit.results import Number, Result


class ClusteredBy(Result):
    """One clustering method's clusters of the private records.

    Attributes:
        method: as configs name it.
        origin: the data behind its centres: public data, private records through noise, or private
            records.
        centers: how many centres records may go to.
        epsilon, delta: the cost of centres and counts for one record that comes or goes, epsilon in
            nats.
        clusters: how many hold two records or more.
        large: how many hold at least `ClusterComparison.large` records.
        v_measure: against the reference, between 0 and 1.
        sizes: records of each cluster that has any, descending.
        settings: its other settings, by name.
    """

    method: str
    origin: Literal["public", "noised", "private"]
    centers: int
    epsilon: Number
    delta: Number
    clusters: int
    large: int
    v_measure: float
    sizes: tuple[int, ...]
    settings: dict[str, int | float | str]


class ClusterComparison(Result):
    """Clustering methods side by side on the same private records.

    Every figure below `methods` is a private one.

    Attributes:
        embedding: name of the embedding model.
        dimension: of its vectors.
        normalized: whether they were made unit vectors.
        records, public_records: distinct texts.
        reference: the method that V-measures compare with.
        large: from how many records on a cluster counts as large.
    """

    schema_version: Literal["1"] = "1"
    audience: Literal["internal"] = "internal"
    embedding: str
    dimension: int
    normalized: bool
    records: int
    public_records: int
    reference: str
    large: int
    methods: tuple[ClusteredBy, ...]
