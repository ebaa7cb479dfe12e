"""Whether a record's batch was uniform, independent of all others and secret: the release level rests on that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dpaudit.mechanisms import Unit
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.known_keys import known_key
from dpaudit.runs.manifest import Clusters, Manifest


class NotSecret(StrEnum):
    """Why a record's batch is no secret that a release level may rest on."""

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
    """Why a release costs readers as much as whoever knows the batches, though these are secret."""

    #: Nothing bounds what one batch tells.
    UNBOUNDED = "unbounded"
    #: One batch tells nothing by itself.
    NOTHING_TOLD = "nothing-told"
    #: A group has one batch, so nobody wonders which batch its records are in.
    ONE_BATCH = "one-batch"
    #: So large an epsilon, or so small a delta among so many batches and rounds, is beyond the bound's precision.
    BEYOND_PRECISION = "beyond-precision"


@dataclass(frozen=True)
class SecretBatches:
    """How many batches a record's one is drawn from, in secret, and how often.

    Attributes:
        groups: how many batches B the records of a group are hashed into, and how many g of them are generated, in a
            round: each pair of numbers once, ascending.
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


def secret_batches(manifest: Manifest, unit: Unit, clusters: Clusters | None = None) -> SecretBatches | NotSecret:
    """What readers of a run's texts cannot know of a record's batch, by public settings.

    Args:
        manifest: the run's.
        unit: of the claim.
        clusters: its file `clusters`, for a number of batches that is the same for all; None where there is none, or it
            cannot be read. What clusters have by counts is not looked at: it is another beside another neighbour.

    Returns:
        What the release level may rest on; or why both levels are equal.
    """
    if (reason := _reason(manifest, unit)) is not None:
        return reason
    groups = _clustered(manifest, clusters) if manifest.clustering.method != "none" else _labelled(manifest)
    if isinstance(groups, NotSecret):
        return groups
    if any(batches == 1 for batches, _ in groups):
        return NotSecret.SINGLE_BATCH
    return SecretBatches(groups, accounted_rounds(manifest))


def accounted_rounds(manifest: Manifest) -> int:
    """How many rounds a claim that was fixed beforehand pays for.

    Whoever stops early by what texts say has spent what all rounds cost, unless delta was split.
    """
    return manifest.rounds if manifest.privacy.split_delta else manifest.batching.rounds


def _reason(manifest: Manifest, unit: Unit) -> NotSecret | None:
    """Why places are not uniform, independent and secret; None where they are."""
    batching, allocation = manifest.batching, manifest.batching.allocation
    if batching.rule == "paper-slices":
        return NotSecret.SLICED
    if allocation is None:
        return NotSecret.UNDECLARED
    if allocation.kind in ("fixed-size", "by-order"):
        return NotSecret.FIXED_SIZE if allocation.kind == "fixed-size" else NotSecret.BY_ORDER
    if not allocation.secret:
        return NotSecret.KNOWN
    mended = manifest.recorded is not None and "batches" in manifest.recorded.mended
    if manifest.sampling.generator == "mt19937" and not mended:  # a recorder that mends batches draws the key itself
        return NotSecret.SEEDED
    if batching.key is None:
        return NotSecret.UNKEYED if allocation.kind == "hashed" else _unproved(manifest, unit)
    key = bytes.fromhex(batching.key)
    if len(key) < KEY_BYTES:
        return NotSecret.SHORT_KEY
    if known_key(key, manifest.sampling.seed):
        return NotSecret.COMMON_KEY
    return _unproved(manifest, unit)


def _unproved(manifest: Manifest, unit: Unit) -> NotSecret | None:
    """Why places hang on each other whatever the draws were, or are no batches; None where neither is so."""
    if manifest.own_allowances:
        return NotSecret.SHARED_BUDGETS
    by_record = manifest.batching.rule == "hashed-records"
    return NotSecret.PER_CONTEXT if unit == "context" and not by_record else None


_Groups = tuple[tuple[int, int], ...]


def _labelled(manifest: Manifest) -> _Groups | NotSecret:
    """Batches of a label's records, and how many of them a round generates."""
    batching = manifest.batching
    batches, generated = batching.batches_per_label, batching.generate_per_label
    if batches is None and batching.labels:
        return NotSecret.LABELS_UNCOUNTED
    if generated is None and batching.labels:
        return NotSecret.GENERATED_UNCOUNTED
    generated = generated or batching.per_round
    batches = batches or generated
    # Were only some generated, and no rule said which, somebody may have chosen them by their records.
    unlisted = batching.generate_per_label is None and generated < batches
    return NotSecret.GENERATED_UNCOUNTED if unlisted else ((batches, generated),)


def _clustered(manifest: Manifest, clusters: Clusters | None) -> _Groups | NotSecret:
    """Batches of a cluster's records at the fewest, which cost the most, and how many of them a round generates."""
    batching, generated = manifest.batching, manifest.batching.generate_per_cluster
    if generated is None:
        return NotSecret.GENERATED_UNCOUNTED
    least = batching.least_batches
    if batching.records_per_batch is None:
        counts = {count for row in clusters.batches for count in row} if clusters is not None else set()
        least = counts.pop() if len(counts) == 1 else None
    return NotSecret.CLUSTERS_UNCOUNTED if least is None else ((least, min(least, generated)),)
