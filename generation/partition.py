"""Records to contexts and batches. Under the hashed rules a record's place depends on that record alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpaudit.generation.config import Config
from dpaudit.generation.records import Record
from dpaudit.mechanisms import BatchingRule
from dpaudit.runs import Assigned, Clusters, InputError, KeyedHash, Manifest

#: One context: the records that a prompt shows, in hash order. Empty where a slot holds none.
Context = tuple[Record, ...]


@dataclass(frozen=True)
class Group:
    """Records that share their batches: those of a label, or of one cluster within it.

    Attributes:
        label: theirs.
        cluster: index of their centre; None where labels alone group records.
        batches: how many they are hashed into; None where slices are cut instead.
        ids: of the batches that are generated, the first ones.
    """

    label: str
    cluster: int | None
    batches: int | None
    ids: range


@dataclass(frozen=True)
class Rule:
    """How records become contexts and batches: all that decides it beside the key. Fields as in run.json.

    Attributes:
        groups: in order of their batches' ids.
    """

    name: BatchingRule
    labels: tuple[str, ...]
    groups: tuple[Group, ...]
    slots: int | None
    examples_per_context: int

    @classmethod
    def of_config(cls, config: Config, clusters: Clusters | None = None) -> Rule:
        """The rule that a config asks for.

        Args:
            config: all settings.
            clusters: those of each label, where the config asks for a clustering.
        """
        batching, labels = config.batching, config.data.labels
        if clusters is None:
            groups = _of_labels(labels, batching.batches_per_label, batching.generate_per_label)
        else:
            groups = _of_clusters(labels, clusters, batching.generate_per_cluster)
        return cls(config.rule, labels, tuple(groups), batching.slots, config.prompt.examples_per_context)

    @classmethod
    def of_manifest(cls, manifest: Manifest, clusters: Clusters, where: str) -> Rule:
        """The rule that a run declares.

        Args:
            manifest: run.json.
            clusters: the file of that name, which fits run.json (`grouping.recorded_centers`).
            where: names run.json.

        Raises:
            InputError: it declares less than this generator does.
        """
        batching, labels = manifest.batching, manifest.batching.labels
        clustered = manifest.clustering.method != "none"
        part = "cluster" if clustered else "label"
        generated = batching.generate_per_cluster if clustered else batching.generate_per_label
        hashed = batching.rule != "paper-slices" and not clustered
        missing = {
            "labels": not labels,
            f"generate_per_{part}": generated is None,
            "batches_per_label": hashed and batching.batches_per_label is None,
        }
        for field in (name for name, lacks in missing.items() if lacks):
            remedy = "Only runs of `dpaudit generate` can be replayed."
            raise InputError(f"{where}: batching.{field}", "the run does not say this.", remedy)
        if clustered:
            groups = tuple(_of_clusters(labels, clusters, generated or 1))
        else:
            groups = tuple(_of_labels(labels, batching.batches_per_label, generated or 1))
        if sum(len(group.ids) for group in groups) != batching.batches:
            problem = f"this is {batching.batches}, which is not generate_per_{part} for each of the {part}s."
            raise InputError(f"{where}: batching.batches", problem, "Restore the run, or generate it again.")
        return cls(batching.rule, labels, groups, batching.slots, batching.examples_per_context)


def _of_labels(labels: Sequence[str], batches: int | None, generated: int) -> Iterator[Group]:
    for number, label in enumerate(labels):
        yield Group(label, None, batches, range(number * generated, (number + 1) * generated))


def _of_clusters(labels: Sequence[str], clusters: Clusters, generated: int) -> Iterator[Group]:
    """As `ClusterPlaces` numbers batches, one cluster at a time: there may be far more batches than clusters."""
    first = 0
    for label, centers, counts in zip(labels, clusters.kept, clusters.batches, strict=True):
        for center, count in zip(centers, counts, strict=True):
            ids = range(first, first + min(generated, count))
            yield Group(label, center, count, ids)
            first = ids.stop


@dataclass(frozen=True)
class Batch:
    """One batch to generate, of one group. `cluster`: index of the group's centre, None where it has none."""

    id: int
    label: str
    cluster: int | None
    contexts: tuple[Context, ...]


@dataclass(frozen=True)
class Partition:
    """All batches in order of id, and every record's place."""

    batches: tuple[Batch, ...]
    assignment: tuple[Assigned, ...]


#: Every record with its place, in hash order.
_Places = Sequence[tuple[Record, Assigned]]
#: Digests in ascending order, each with its record and the record's group.
_Ordered = Sequence[tuple[str, Record, Group]]


def partition(
    rule: Rule, records: Iterable[Record], key: bytes, clusters: Mapping[Record, int] | None = None
) -> Partition:
    """Place every record (mathematics: a rule that looks at one record alone; `paper-slices` does not).

    Args:
        rule: how.
        records: distinct ones, in any order.
        key: of the hash.
        clusters: the centre that each record goes to, one that its label keeps; None where labels alone group records.
    """
    place = {"hashed-records": _hashed, "hashed-slots": _hashed_slots, "paper-slices": _slices}[rule.name]
    hashing = KeyedHash(key)
    groups = {(group.label, group.cluster): group for group in rule.groups}
    ordered = [
        (digest, record, groups[record.label, None if clusters is None else clusters[record]])
        for digest, record in _by_digest(hashing, records)
    ]
    return _parted(rule, place(rule, hashing, ordered))


def partition_as_recorded(
    rule: Rule, records: Iterable[Record], key: bytes, assignment: Iterable[Assigned]
) -> Partition:
    """The partition of a run that has begun, read off its assignment: no record is clustered twice.

    A record that the assignment lacks goes nowhere; the digest of the data then tells that it is not the run's.
    """
    places = {assigned.digest: assigned for assigned in assignment}
    placed = [
        (record, places.get(digest, Assigned(digest, None, None)))
        for digest, record in _by_digest(KeyedHash(key), records)
    ]
    return _parted(rule, placed)


def _by_digest(hashing: KeyedHash, records: Iterable[Record]) -> list[tuple[str, Record]]:
    digests = ((hashing.digest(record.label, record.text), record) for record in records)
    return sorted(digests, key=lambda pair: pair[0])


def _parted(rule: Rule, placed: _Places) -> Partition:
    return Partition(_batches(rule, placed), tuple(place for _, place in placed))


def _hashed(rule: Rule, hashing: KeyedHash, ordered: _Ordered) -> _Places:
    return [
        (record, Assigned(digest, _hashed_batch(hashing, digest, group), None)) for digest, record, group in ordered
    ]


def _hashed_slots(rule: Rule, hashing: KeyedHash, ordered: _Ordered) -> _Places:
    """Of the records that hash to a slot, the `examples_per_context` of smallest digest are shown."""
    slots, most = rule.slots or 1, rule.examples_per_context
    shown: dict[tuple[int, int], int] = defaultdict(int)
    placed = []
    for digest, record, group in ordered:
        batch, slot = _hashed_batch(hashing, digest, group), hashing.slot(digest, slots)
        if batch is None or shown[batch, slot] == most:
            placed.append((record, Assigned(digest, None, None)))
        else:
            shown[batch, slot] += 1
            placed.append((record, Assigned(digest, batch, slot)))
    return placed


def _hashed_batch(hashing: KeyedHash, digest: str, group: Group) -> int | None:
    number = hashing.batch(digest, group.batches or 1)
    return group.ids[number] if number < len(group.ids) else None


def _slices(rule: Rule, hashing: KeyedHash, ordered: _Ordered) -> _Places:
    """The paper's implementation: each label's records, in hash order, cut into slices of fixed size."""
    most, slots = rule.examples_per_context, rule.slots or 1
    seen: dict[str, int] = defaultdict(int)
    placed = []
    for digest, record, group in ordered:
        number, rest = divmod(seen[record.label], slots * most)
        seen[record.label] += 1
        if number < len(group.ids):
            placed.append((record, Assigned(digest, group.ids[number], rest // most)))
        else:
            placed.append((record, Assigned(digest, None, None)))
    return placed


def _batches(rule: Rule, placed: _Places) -> tuple[Batch, ...]:
    """The batches to generate. Under `hashed-slots` every slot is a context, empty or not."""
    contexts: dict[int, dict[int | str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record, place in placed:
        if place.batch is not None:
            # Without slots every record is a context of its own.
            contexts[place.batch][place.digest if place.slot is None else place.slot].append(record)

    def filled(batch: int) -> tuple[Context, ...]:
        if rule.name == "hashed-slots":
            return tuple(tuple(contexts[batch].get(slot, ())) for slot in range(rule.slots or 1))
        return tuple(map(tuple, contexts[batch].values()))

    return tuple(
        Batch(batch, group.label, group.cluster, filled(batch)) for group in rule.groups for batch in group.ids
    )
