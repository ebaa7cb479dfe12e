"""Whether a record's batch was uniform, independent of all others and secret: the release level rests on that."""

from __future__ import annotations

from dataclasses import dataclass

from dpaudit.mechanisms import Unit
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.known_keys import known_key
from dpaudit.runs.manifest import Clusters, Manifest

_NOT_SECRET = {
    "paper-slices": "paper-slices cuts records into batches, so that one record's place hangs on the others",
    "fixed-size": "batches of a fixed size were drawn, which ties records' places to each other",
    "by-order": "records went to batches by their order, which is no secret draw",
    "unsaid": "the run does not say how records were given to batches (batching.allocation)",
    "known": "the key or the draws of the batches may be known to others: they were given, or are of an earlier run",
    "short": f"the key of the batches has fewer than {KEY_BYTES} bytes",
    "seeded": "numbers of the run's generator follow from a seed (sampling.generator), and so may its batches or their "
    "key",
    "found": "the key of the batches is one that a common seed or word gives, a text, or bytes that repeat or count",
    "unkeyed": "the run has no key (batching.key) that its records were hashed with",
    "allowances": "what records may spend hangs on other records' batches, or on those of earlier runs",
    "unbatched": "contexts of this rule are not given to batches one by one, and the claim is per context",
    "unclustered": "no public number says into how many batches a cluster's records go at least "
    "(batching.batches_per_cluster or batching.least_batches)",
    "unlabelled": "no public number says into how many batches a label's records go (batching.batches_per_label)",
    "unlisted": "no rule says which batches of a label are generated (batching.generate_per_label)",
    "single": "the records of some group all go to one batch, which is no secret",
}


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


def secret_batches(manifest: Manifest, unit: Unit, clusters: Clusters | None = None) -> SecretBatches | str:
    """What readers of a run's texts cannot know of a record's batch, by public settings.

    Args:
        manifest: the run's.
        unit: of the claim.
        clusters: its file `clusters`, for a number of batches that is the same for all; None where there is none, or it
            cannot be read. What clusters have by counts is not looked at: it is another beside another neighbour.

    Returns:
        What the release level may rest on; or why both levels are equal, as the end of a sentence.
    """
    if (reason := _reason(manifest, unit)) is not None:
        return _NOT_SECRET[reason]
    groups = _clustered(manifest, clusters) if manifest.clustering.method != "none" else _labelled(manifest)
    if isinstance(groups, str):
        return _NOT_SECRET[groups]
    if any(batches == 1 for batches, _ in groups):
        return _NOT_SECRET["single"]
    return SecretBatches(groups, accounted_rounds(manifest))


def accounted_rounds(manifest: Manifest) -> int:
    """How many rounds a claim that was fixed beforehand pays for.

    Whoever stops early by what texts say has spent what all rounds cost, unless delta was split.
    """
    return manifest.rounds if manifest.privacy.split_delta else manifest.batching.rounds


def _reason(manifest: Manifest, unit: Unit) -> str | None:
    """Why places are not uniform, independent and secret; None where they are."""
    batching, allocation = manifest.batching, manifest.batching.allocation
    if batching.rule == "paper-slices":
        return batching.rule
    if allocation is None:
        return "unsaid"
    if allocation.kind in ("fixed-size", "by-order"):
        return allocation.kind
    if not allocation.secret:
        return "known"
    mended = manifest.recorded is not None and "batches" in manifest.recorded.mended
    if manifest.sampling.generator == "mt19937" and not mended:  # a recorder that mends batches draws the key itself
        return "seeded"
    if batching.key is None:
        return "unkeyed" if allocation.kind == "hashed" else _unproved(manifest, unit)
    key = bytes.fromhex(batching.key)
    if len(key) < KEY_BYTES:
        return "short"
    if known_key(key, manifest.sampling.seed):
        return "found"
    return _unproved(manifest, unit)


def _unproved(manifest: Manifest, unit: Unit) -> str | None:
    """Why places hang on each other whatever the draws were, or are no batches; None where neither is so."""
    if manifest.own_allowances:
        return "allowances"
    return "unbatched" if unit == "context" and manifest.batching.rule != "hashed-records" else None


_Groups = tuple[tuple[int, int], ...]


def _labelled(manifest: Manifest) -> _Groups | str:
    """Batches of a label's records, and how many of them a round generates."""
    batching = manifest.batching
    batches, generated = batching.batches_per_label, batching.generate_per_label
    if batches is None and batching.labels:
        return "unlabelled"
    if generated is None and batching.labels:
        return "unlisted"
    generated = generated or batching.per_round
    batches = batches or generated
    # Were only some generated, and no rule said which, somebody may have chosen them by their records.
    return "unlisted" if batching.generate_per_label is None and generated < batches else ((batches, generated),)


def _clustered(manifest: Manifest, clusters: Clusters | None) -> _Groups | str:
    """Batches of a cluster's records at the fewest, which cost the most, and how many of them a round generates."""
    clustering, generated = manifest.clustering, manifest.batching.generate_per_cluster
    if generated is None:
        return "unlisted"
    least = clustering.least_batches
    if clustering.records_per_batch is None:
        counts = {count for row in clusters.batches for count in row} if clusters is not None else set()
        least = counts.pop() if len(counts) == 1 else None
    return "unclustered" if least is None else ((least, min(least, generated)),)
