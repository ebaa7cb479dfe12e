"""Secrecy of batches: a record's batch must be uniform, independent of all others and secret.

The release level rests on that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dpaudit.mechanisms import Unit
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.known_keys import known_key

if TYPE_CHECKING:
    from dpaudit.runs.manifest import Clusters, Manifest


class NotSecret(StrEnum):
    """A reason why a record's batch is no secret that a release level may rest on."""

    #: paper-slices cuts records into batches, so that one record's place hangs on the others.
    SLICED = "sliced"
    #: Batches of a fixed size were drawn, which ties records' places to each other.
    FIXED_SIZE = "fixed-size"
    #: Records went to batches by their order.
    BY_ORDER = "by-order"
    #: The run does not say how records were given to batches.
    UNDECLARED = "undeclared"
    #: Key or draws were given, or are of an earlier run.
    KNOWN = "known"
    #: The key has fewer than KEY_BYTES bytes.
    SHORT_KEY = "short-key"
    #: Numbers of the run's generator follow from a seed.
    SEEDED = "seeded"
    #: The key is one that a common seed or word gives, a text, or bytes that repeat or count.
    COMMON_KEY = "common-key"
    #: There is no key that records were hashed with.
    UNKEYED = "unkeyed"
    #: What records may spend hangs on other records' batches, or on those of earlier runs.
    SHARED_BUDGETS = "shared-budgets"
    #: Contexts of the rule are not given to batches one by one, and the claim is per context.
    PER_CONTEXT = "per-context"
    #: No public number says into how many batches a cluster's records go at least.
    CLUSTERS_UNCOUNTED = "clusters-uncounted"
    #: No public number says into how many batches a label's records go.
    LABELS_UNCOUNTED = "labels-uncounted"
    #: No rule says which batches of a label are generated.
    GENERATED_UNCOUNTED = "generated-uncounted"
    #: The records of some group all go to one batch.
    SINGLE_BATCH = "single-batch"
    #: The config asks for none (privacy.amplification).
    SWITCHED_OFF = "switched-off"


class NoGain(StrEnum):
    """A reason why secret batches make a release no cheaper for readers."""

    #: Nothing bounds what one batch tells.
    UNBOUNDED = "unbounded"
    #: One batch tells nothing by itself.
    NOTHING_TOLD = "nothing-told"
    #: A group has one batch, so nobody wonders which batch its records are in.
    ONE_BATCH = "one-batch"
    #: So large an epsilon, or so small a delta among so many batches and rounds, is beyond the
    #: bound's precision.
    BEYOND_PRECISION = "beyond-precision"


#: The longest chain of records whose release level is worked out: beyond it both levels are equal.
MOST_RECORDS = 1 << 8


@dataclass(frozen=True)
class SecretBatches:
    """The number of batches that a record's batch is secretly drawn from, and the number of draws.

    Attributes:
        groups: how many batches B the records of a group are hashed into, and how many g of them
            are generated, in a round: each pair of numbers once, ascending.
        rounds: how many are accounted for, under fresh keys.

    Raises:
        ValueError: there is no group or round, or a pair is none of a group.
    """

    groups: tuple[tuple[int, int], ...]
    rounds: int = 1

    def __post_init__(self) -> None:
        if not self.groups or self.rounds < 1:
            raise ValueError("there is at least one group, and one round")
        for batches, generated in self.groups:
            if batches < 1 or not 0 <= generated <= batches:
                raise ValueError(f"{generated} of {batches} batches cannot be generated")


def secret_batches(
    manifest: Manifest, unit: Unit, clusters: Clusters | None = None
) -> SecretBatches | NotSecret:
    """Return what readers of a run's texts cannot know of a record's batch, by public settings.

    Args:
        manifest: the run's.
        unit: of the claim.
        clusters: its file `clusters`, for a number of batches that is the same for all; None if
            there is none, or it cannot be read. What clusters have by counts is not looked at: it
            differs beside another neighbour.

    Returns:
        What the release level may rest on; or why both levels are equal.
    """
    if (reason := _not_secret_reason(manifest, unit)) is not None:
        return reason
    groups = _label_groups(manifest)
    if manifest.clustering.method != "none":
        groups = _cluster_groups(manifest, clusters)
    if isinstance(groups, NotSecret):
        return groups
    if any(batches == 1 for batches, _ in groups):
        return NotSecret.SINGLE_BATCH
    return SecretBatches(groups, accounted_rounds(manifest))


def accounted_rounds(manifest: Manifest) -> int:
    """Return the number of rounds that a claim fixed beforehand pays for.

    Stopping early because of what texts say costs as much as all rounds, unless delta was split.
    """
    if manifest.privacy.split_delta:
        return manifest.rounds
    return manifest.batching.rounds


def _not_secret_reason(manifest: Manifest, unit: Unit) -> NotSecret | None:
    """Return why places are not uniform, independent and secret, or None."""
    batching, allocation = manifest.batching, manifest.batching.allocation
    if batching.rule == "paper-slices":
        return NotSecret.SLICED
    if allocation is None:
        return NotSecret.UNDECLARED
    if allocation.kind in ("fixed-size", "by-order"):
        if allocation.kind == "fixed-size":
            return NotSecret.FIXED_SIZE
        return NotSecret.BY_ORDER
    if not allocation.secret:
        return NotSecret.KNOWN
    mended = manifest.recorded is not None and "batches" in manifest.recorded.mended
    # a recorder that mends batches draws the key itself
    if manifest.sampling.generator == "mt19937" and not mended:
        return NotSecret.SEEDED
    if batching.key is None:
        if allocation.kind == "hashed":
            return NotSecret.UNKEYED
        return _dependence_reason(manifest, unit)
    key = bytes.fromhex(batching.key)
    if len(key) < KEY_BYTES:
        return NotSecret.SHORT_KEY
    if known_key(key, manifest.sampling.seed):
        return NotSecret.COMMON_KEY
    return _dependence_reason(manifest, unit)


def _dependence_reason(manifest: Manifest, unit: Unit) -> NotSecret | None:
    """Return why places depend on each other whatever was drawn, or are no batches; or None."""
    if manifest.own_allowances:
        return NotSecret.SHARED_BUDGETS
    by_record = manifest.batching.rule == "hashed-records"
    if unit == "context" and not by_record:
        return NotSecret.PER_CONTEXT
    return None


_Groups = tuple[tuple[int, int], ...]


def _label_groups(manifest: Manifest) -> _Groups | NotSecret:
    """Return the numbers of batches of a label's records, in all and generated in a round."""
    batching = manifest.batching
    batches, generated = batching.batches_per_label, batching.generate_per_label
    if batches is None and manifest.data.labels:
        return NotSecret.LABELS_UNCOUNTED
    if generated is None and manifest.data.labels:
        return NotSecret.GENERATED_UNCOUNTED
    generated = generated or batching.per_round
    batches = batches or generated
    # Were only some generated, and no rule said which, somebody may have chosen them by their
    # records.
    unlisted = batching.generate_per_label is None and generated < batches
    if unlisted:
        return NotSecret.GENERATED_UNCOUNTED
    return ((batches, generated),)


def _cluster_groups(manifest: Manifest, clusters: Clusters | None) -> _Groups | NotSecret:
    """Return the fewest batches of a cluster's records, and how many of them a round generates.

    The fewest cost the most.
    """
    batching, generated = manifest.batching, manifest.batching.generate_per_cluster
    if generated is None:
        return NotSecret.GENERATED_UNCOUNTED
    least = batching.least_batches
    if batching.records_per_batch is None:
        counts = set[int]()
        if clusters is not None:
            counts = {count for row in clusters.batches for count in row}
        least = counts.pop() if len(counts) == 1 else None
    if least is None:
        return NotSecret.CLUSTERS_UNCOUNTED
    return ((least, min(least, generated)),)
