"""A run before it begins: generation plans it, `dpaudit.auditing.checks.preflight` judges it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpaudit.results.replay import SharedText
from dpaudit.runs import Claim, Clusters, Manifest


@dataclass(frozen=True)
class PlannedRun:
    """The settings of a run that has not begun, and what the data tell of them.

    Attributes:
        manifest: all settings. What only the model tells is left out, or as wide as it may be.
        claim: the config's own. Without one its figures are None, for they follow from what is
            found.
        clusters: those of the public number of batches.
        shared: what public settings have in common with records; None if the data were not read.
        names: fields of the manifest under whose names a config does not have them, with the
            config's.
    """

    manifest: Manifest
    claim: Claim
    clusters: Clusters
    shared: tuple[SharedText, ...] | None
    names: Mapping[str, str]
