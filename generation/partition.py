"""Records to contexts and batches. Under the hashed rules a record's place depends on that record alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dpaudit.generation.config import NO_LABELS
from dpaudit.generation.records import Record
from dpaudit.runs import Assigned, Batching, Clusters, InputError, KeyedHash, Manifest, allowances
from dpaudit.runs.layout import ASSIGNMENT

#: One context: the records that a prompt shows, in hash order. Empty where a slot holds none.
Context = tuple[Record, ...]


@dataclass(frozen=True)
class Group:
    """Records that share their batches: those of a label, or of one cluster within it.

    Attributes:
        label: theirs; empty without labels.
        cluster: index of their centre; None where labels alone group records.
        batches: how many they are hashed into; None where slices are cut instead.
        ids: of the batches that are generated, the first ones.
    """

    label: str
    cluster: int | None
    batches: int | None
    ids: range


def groups_of(batching: Batching, clusters: Clusters) -> Iterator[Group]:
    """The groups of a run in order of their batches' ids, as `cluster_places` numbers these.

    Args:
        batching: with the number of batches that each group generates. Without labels all records are of one.
        clusters: the file of that name, which fits run.json; without any, labels alone group records.
    """
    first, generated = 0, batching.generate_per_cluster or batching.generate_per_label or 1
    for number, label in enumerate(batching.labels or NO_LABELS):
        parts: Iterable[tuple[int | None, int | None]] = [(None, batching.batches_per_label)]
        if clusters.kept:
            parts = zip(clusters.kept[number], clusters.batches[number], strict=True)
        for cluster, batches in parts:
            ids = range(first, first + min(generated, batches or generated))
            yield Group(label, cluster, batches, ids)
            first = ids.stop


@dataclass(frozen=True)
class PlacedCanary:
    """A batch's canary: its number in the file `canaries`, its context, and whether that is among the batch's."""

    number: int
    context: Context
    included: bool


@dataclass(frozen=True)
class Batch:
    """One batch to generate, of one group.

    Attributes:
        label: empty without labels.
        cluster: index of the group's centre, None where it has none.
        budgets: see `BatchHeader`.
        canary: None where it has none.
    """

    id: int
    label: str
    cluster: int | None
    contexts: tuple[Context, ...]
    budgets: tuple[float, ...] | None = None
    canary: PlacedCanary | None = None

    @property
    def shown(self) -> tuple[Context, ...]:
        """All that the model is shown: the contexts, and behind them a canary that is none of them."""
        out = self.canary is not None and not self.canary.included
        return (*self.contexts, self.canary.context) if self.canary is not None and out else self.contexts

    @property
    def canary_row(self) -> int | None:
        """Where the canary stands among `shown`; None without one."""
        return None if self.canary is None else self.shown.index(self.canary.context)

    @property
    def public_label(self) -> str | None:
        """The label as the run directory has it: None without labels."""
        return self.label or None


@dataclass(frozen=True)
class Partition:
    """All batches in order of id, and every record's place in hash order."""

    batches: tuple[Batch, ...]
    assignment: tuple[Assigned, ...]

    @property
    def unused(self) -> int:
        """How many records of the generated batches no context shows: those of cells with fewer or more than k."""
        placed = sum(place.batch is not None for place in self.assignment)
        return placed - sum(len(context) for batch in self.batches for context in batch.contexts)


def partition(
    batching: Batching,
    clusters: Clusters,
    records: Iterable[Record],
    centers: Mapping[Record, int] | None = None,
    *,
    users: Mapping[Record, str] | None = None,
    spent: Mapping[str, float] | None = None,
) -> Partition:
    """Place every record (mathematics: a rule that looks at one record alone; `paper-slices` does not).

    Args:
        batching, clusters: how; see `groups_of`. A key is among it.
        records: distinct ones, in any order.
        centers: the centre that each record goes to, one that its label keeps; None where labels alone group records.
        users: whose each record is, where they share budgets.
        spent: of these before, by `Assigned.payer`; nothing by those that are missing.
    """
    hashing, slots, most = _hashing(batching), batching.slots or 1, batching.examples_per_context
    groups = {(group.label, group.cluster): group for group in groups_of(batching, clusters)}
    seen: Counter[str | tuple[int, int]] = Counter()
    placed = []
    for digest, record in _by_digest(batching, records):
        group = groups[record.label, None if centers is None else centers[record]]
        slot = None
        if batching.rule == "paper-slices":
            # The paper's implementation: each label's records, in hash order, cut into slices of fixed size.
            number, rest = divmod(seen[record.label], slots * most)
            slot = rest // most
            seen[record.label] += 1
        else:
            number = hashing.batch(digest, group.batches or 1)
        batch = group.ids[number] if number < len(group.ids) else None
        if batching.rule == "hashed-slots" and batch is not None:
            # Of the records that hash to a slot, the `examples_per_context` of smallest digest are shown.
            slot = hashing.slot(digest, slots)
            if seen[batch, slot] == most:
                batch = None
            else:
                seen[batch, slot] += 1
        elif batching.cells is not None:
            slot = hashing.slot(digest, batching.cells)
        user = None if users is None else hashing.user(users[record])
        before = 0.0 if spent is None else spent.get(user or digest, 0.0)
        placed.append((record, Assigned(digest, batch, None if batch is None else slot, user, before)))
    return _parted(batching, clusters, placed)


def partition_as_recorded(
    batching: Batching,
    clusters: Clusters,
    records: Iterable[Record],
    assignment: Iterable[Assigned],
    begun: Batching,
) -> Partition:
    """The partition of a run that has begun, read off its assignment: no record is clustered twice.

    A record that the assignment lacks goes nowhere; the digest of the data then tells that it is not the run's.

    Args:
        batching, clusters, records: as for `partition`.
        assignment: the run's.
        begun: the run's own batching, which its assignment has to fit.

    Raises:
        InputError: the assignment names a batch that its record's label has not, or a slot that no batch has.
    """
    places = {assigned.digest: assigned for assigned in assignment}
    ordered = _by_digest(batching, records)
    placed = [(record, places.get(digest, Assigned(digest, None, None))) for digest, record in ordered]
    slots = begun.slots or begun.cells
    of_label: dict[str, range] = {}  # the batches of a label follow each other
    for group in groups_of(begun, clusters):
        of_label[group.label] = range(of_label.get(group.label, group.ids).start, group.ids.stop)
    for record, place in placed:
        fits = (place.slot is None) == (slots is None) and (place.slot or 0) < (slots or 1)
        if place.batch is not None and not (place.batch in of_label.get(record.label, ()) and fits):
            problem = "it puts a record into a batch of another label, or into a place that no batch has."
            raise InputError(ASSIGNMENT, problem, "Restore the run directory, or generate the run anew.")
    return _parted(batching, clusters, placed)


def with_allowances(parts: Partition, manifest: Manifest) -> Partition:
    """The partition with what each context may spend, by what the assignment says of its payer, where that differs."""
    budget = manifest.mechanism.budget
    if budget is None or not manifest.own_allowances:
        return parts
    shares = allowances(parts.assignment, budget)
    batches = (replace(batch, budgets=shares.get(batch.id)) for batch in parts.batches)
    return replace(parts, batches=tuple(batches))


def _hashing(batching: Batching) -> KeyedHash:
    return KeyedHash(bytes.fromhex(batching.key or ""))


def _by_digest(batching: Batching, records: Iterable[Record]) -> list[tuple[str, Record]]:
    hashing = _hashing(batching)
    return sorted((hashing.digest(record.label, record.text), record) for record in records)


def _parted(batching: Batching, clusters: Clusters, placed: Sequence[tuple[Record, Assigned]]) -> Partition:
    """The batches to generate. A slot is a context, empty or not; a cell only if it holds k records."""
    contexts: dict[int, dict[int | str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record, place in placed:
        if place.batch is not None:
            # Without slots every record is a context of its own.
            contexts[place.batch][place.digest if place.slot is None else place.slot].append(record)

    def filled(batch: int) -> tuple[Context, ...]:
        if batching.rule == "hashed-slots":
            return tuple(tuple(contexts[batch].get(slot, ())) for slot in range(batching.slots or 1))
        found = map(tuple, contexts[batch].values())
        if batching.rule == "hashed-cells":
            return tuple(context for context in found if len(context) == batching.examples_per_context)
        return tuple(found)

    groups = groups_of(batching, clusters)
    batches = tuple(Batch(each, group.label, group.cluster, filled(each)) for group in groups for each in group.ids)
    return Partition(batches, tuple(place for _, place in placed))
