"""Records to contexts and batches.

Under the hashed rules a record's places depend on that record alone.

In each round the records are hashed again, all of them, by that round's key. A round is worked out
when one of its batches is asked for, and forgotten for another: memory does not grow with the
rounds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, overload

from dpaudit.generation.records import Record
from dpaudit.runs import (
    Assigned,
    Batching,
    Canary,
    Clusters,
    InputError,
    KeyedHash,
    Manifest,
    allowances,
)
from dpaudit.runs.layout import ASSIGNMENT

#: One context: the records that a prompt shows, in hash order. Empty where a slot holds none.
Context = tuple[Record, ...]


@dataclass(frozen=True)
class Group:
    """Records that share their batches: those of a label, or of one cluster within it.

    Attributes:
        label: theirs; empty without labels.
        cluster: index of their centre; None if labels alone group records.
        batches: how many they are hashed into; None if slices are cut instead.
        ids: of the batches that are generated in the first round, the first ones.
    """

    label: str
    cluster: int | None
    batches: int | None
    ids: range


@dataclass(frozen=True)
class Layout:
    """All that decides where a record goes, clusters apart.

    Attributes:
        batching: the rule, with its key and the number of batches that each group generates.
        labels: of the groups of records; one without a name where there are none.
        examples: k, the most records that one context shows; under cells each shows so many.
    """

    batching: Batching
    labels: tuple[str, ...]
    examples: int = 1

    @classmethod
    def of(cls, manifest: Manifest) -> Layout:
        """Return a run's."""
        return cls(manifest.batching, manifest.data.groups, manifest.prompt.examples_per_context)

    def batches_of(self, canary: Canary) -> tuple[int, ...]:
        """Return the ids of the generated batches that a canary goes to, of all rounds."""
        return canary.batches(self.batching, self.labels, self.batching.rounds)


def groups_of(layout: Layout, clusters: Clusters) -> Iterator[Group]:
    """Yield the groups of a run in order of their batches' ids, as `cluster_places` numbers these.

    Args:
        layout: without labels all records are of one group.
        clusters: the file of that name, which fits run.json; without any, labels alone group
            records.
    """
    batching, first = layout.batching, 0
    generated = batching.generate_per_cluster or batching.generate_per_label or 1
    for number, label in enumerate(layout.labels):
        parts: Iterable[tuple[int | None, int | None]] = [(None, batching.batches_per_label)]
        if clusters.kept:
            parts = zip(clusters.kept[number], clusters.batches[number], strict=True)
        for cluster, batches in parts:
            ids = range(first, first + min(generated, batches or generated))
            yield Group(label, cluster, batches, ids)
            first = ids.stop


@dataclass(frozen=True)
class PlacedCanary:
    """A batch's canary: its number in the file `canaries`, its context, and its inclusion.

    If included, the context is among the batch's.
    """

    number: int
    context: Context
    included: bool


@dataclass(frozen=True)
class Batch:
    """One batch to generate, of one group.

    Attributes:
        label: empty without labels.
        cluster: index of the group's centre, None if it has none.
        budgets: see `BatchHeader`.
        canary: None if it has none.
    """

    id: int
    label: str
    cluster: int | None
    contexts: tuple[Context, ...]
    budgets: tuple[float, ...] | None = None
    canary: PlacedCanary | None = None

    @property
    def shown(self) -> tuple[Context, ...]:
        """All contexts that the model is shown, and behind them a canary that is none of them."""
        out = self.canary is not None and not self.canary.included
        if self.canary is not None and out:
            return (*self.contexts, self.canary.context)
        return self.contexts

    @property
    def canary_row(self) -> int | None:
        """The canary's place among `shown`; None without one."""
        if self.canary is None:
            return None
        return self.shown.index(self.canary.context)

    @property
    def public_label(self) -> str | None:
        """The label as the run directory has it: None without labels."""
        return self.label or None


class Batches(Sequence[Batch]):
    """All batches of a run, in order of id. Those of one round are in memory at a time."""

    def __init__(self, batching: Batching, of_round: Callable[[int], tuple[Batch, ...]]) -> None:
        """Args: `of_round` makes the batches of a round, by its number."""
        self._batching, self._of_round = batching, lru_cache(maxsize=1)(of_round)

    def __len__(self) -> int:
        return self._batching.batches

    @overload
    def __getitem__(self, at: int) -> Batch: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Batch, ...]: ...

    def __getitem__(self, at: int | slice) -> Batch | tuple[Batch, ...]:
        if isinstance(at, slice):
            return tuple(self[number] for number in range(len(self))[at])
        number, place = divmod(range(len(self))[at], self._batching.per_round)
        return self._of_round(number)[place]

    def changed(self, change: Callable[[Batch], Batch]) -> Batches:
        """Return these batches, each changed when it is asked for."""
        of_round = self._of_round
        return Batches(self._batching, lambda number: tuple(map(change, of_round(number))))


@dataclass(frozen=True)
class Partition:
    """All batches by id, and every record's line of the file `assignment`, in hash order.

    Attributes:
        held_out: records that no prompt shows, in hash order, each with the id of the generated
            batch of the first round that it would have been in.
    """

    batches: Batches
    assignment: tuple[Assigned, ...]
    held_out: tuple[tuple[Record, int], ...] = ()


class _Member(NamedTuple):
    """A record to place, and the number of its group in the run, or None if it goes nowhere."""

    digest: str
    record: Record
    group: int | None


#: A record's batch, as an id of the first round, and its slot or cell there; None where it takes
#: part in none.
_Place = tuple[int | None, int | None]


def partition(
    layout: Layout,
    clusters: Clusters,
    records: Iterable[Record],
    centers: Mapping[Record, int] | None = None,
    *,
    users: Mapping[Record, str] | None = None,
    spent: Mapping[str, float] | None = None,
) -> Partition:
    """Place every record; all rules but `paper-slices` look at one record alone (mathematics).

    Args:
        layout, clusters: how; see `groups_of`. A key is among it.
        records: distinct ones, in any order.
        centers: the centre that each record goes to, one that its label keeps; None if labels alone
            group records.
        users: whose each record is, where they share budgets.
        spent: of these before, by `Assigned.payer`; nothing by those that are missing.
    """
    hashing, groups = _hashing(layout.batching), tuple(groups_of(layout, clusters))
    numbers = {(group.label, group.cluster): number for number, group in enumerate(groups)}
    members = [
        _Member(digest, record, numbers[record.label, None if centers is None else centers[record]])
        for digest, record in _by_digest(layout.batching, records)
    ]

    def assigned(member: _Member, place: _Place) -> Assigned:
        user = None if users is None else hashing.user(users[member.record])
        before = 0.0 if spent is None else spent.get(user or member.digest, 0.0)
        return Assigned(member.digest, *place, user, before)

    return _place_members(layout, groups, members, assigned)


def partition_as_recorded(
    layout: Layout,
    clusters: Clusters,
    records: Iterable[Record],
    assignment: Iterable[Assigned],
    begun: Layout,
) -> Partition:
    """Partition a begun run's records by its assignment's groups: none is clustered twice.

    So no record is clustered twice. A record that the assignment lacks goes nowhere; the digest of
    the data then shows that it is not the run's.

    Args:
        layout, clusters, records: as for `partition`.
        assignment: the run's.
        begun: the run's own layout, which its assignment has to fit.

    Raises:
        InputError: the assignment names a batch or a group that its record's label has not, or a
            slot that none has.
    """
    places = {assigned.digest: assigned for assigned in assignment}
    groups, one_round = tuple(groups_of(begun, clusters)), begun.batching.rounds == 1
    of_batch = [
        number for number, group in enumerate(groups) for _ in (group.ids if one_round else [None])
    ]
    slots = begun.batching.slots or begun.batching.cells if one_round else None
    members = []
    for digest, record in _by_digest(layout.batching, records):
        place, number = places.get(digest, Assigned(digest, None, None)), None
        if place.batch is not None:
            number = of_batch[place.batch] if place.batch < len(of_batch) else None
            fits = (place.slot is None) == (slots is None) and (place.slot or 0) < (slots or 1)
            if number is None or groups[number].label != record.label or not fits:
                problem = (
                    "it puts a record into a batch of another label, or into a place that "
                    "no batch has."
                )
                raise InputError(
                    ASSIGNMENT, problem, "Restore the run directory, or generate the run anew."
                )
        members.append(_Member(digest, record, number))
    now = tuple(groups_of(layout, clusters))
    return _place_members(
        layout, now, members, lambda member, place: Assigned(member.digest, *place)
    )


def with_allowances(parts: Partition, manifest: Manifest) -> Partition:
    """Return the partition with the contexts' own budgets, if they differ.

    The assignment says which payer a context has.
    """
    budget = manifest.mechanism.budget
    if budget is None or not manifest.own_allowances:
        return parts
    shares = allowances(parts.assignment, budget)
    return replace(
        parts,
        batches=parts.batches.changed(lambda batch: replace(batch, budgets=shares.get(batch.id))),
    )


def _hashing(batching: Batching) -> KeyedHash:
    return KeyedHash(bytes.fromhex(batching.key or ""))


def _by_digest(batching: Batching, records: Iterable[Record]) -> list[tuple[str, Record]]:
    hashing = _hashing(batching)
    return sorted((hashing.digest(record.label, record.text), record) for record in records)


def _place_members(
    layout: Layout,
    groups: Sequence[Group],
    members: Sequence[_Member],
    assigned: Callable[[_Member, _Place], Assigned],
) -> Partition:
    """Return the partition of records in hash order.

    With several rounds a line says the group alone.
    """
    batching = layout.batching
    batches = Batches(batching, lambda number: _of_round(layout, groups, members, number))
    places: Iterable[_Place] = _places(layout, groups, members, 0)
    if batching.rounds > 1:
        places = ((member.group, None) for member in members)
    held_out = tuple(_held_out(batching, groups, members))
    return Partition(batches, tuple(map(assigned, members, places)), held_out)


def _held_out(
    batching: Batching, groups: Sequence[Group], members: Iterable[_Member]
) -> Iterator[tuple[Record, int]]:
    """Yield the records that are held out, with the batch that they would have been in."""
    master, share = _hashing(batching), batching.held_out_millionths
    first = master.of_round(0)
    for digest, record, at in members if share else ():
        if at is not None and master.holds_out(digest, share):
            place = first.batch(digest, groups[at].batches or 1)
            if place < len(groups[at].ids):
                yield record, groups[at].ids[place]


def _places(
    layout: Layout, groups: Sequence[Group], members: Iterable[_Member], number: int
) -> Iterator[_Place]:
    """Yield each record's place in a round."""
    batching, most = layout.batching, layout.examples
    master, share = _hashing(batching), batching.held_out_millionths
    hashing, slots = master.of_round(number), batching.slots or 1
    seen: Counter[str | tuple[int, int]] = Counter()
    for digest, record, at in members:
        if at is None or (share and master.holds_out(digest, share)):
            yield None, None
            continue
        group, slot = groups[at], None
        if batching.rule == "paper-slices":
            # The paper's implementation: each label's records, in hash order, cut into slices of
            # fixed size.
            place, rest = divmod(seen[record.label], slots * most)
            slot = rest // most
            seen[record.label] += 1
        else:
            place = hashing.batch(digest, group.batches or 1)
        if place >= len(group.ids):
            yield None, None
            continue
        batch = group.ids[place]
        if batching.rule == "hashed-slots":
            # Of the records that hash to a slot, the k of smallest digest are shown.
            slot = hashing.slot(digest, slots)
            seen[batch, slot] += 1
            if seen[batch, slot] > most:
                yield None, None
                continue
        elif batching.cells is not None:
            slot = hashing.slot(digest, batching.cells)
        yield batch, slot


def _of_round(
    layout: Layout, groups: Sequence[Group], members: Sequence[_Member], number: int
) -> tuple[Batch, ...]:
    """Return the batches of a round.

    A slot is a context, empty or not; a cell only if it holds k records.
    """
    batching = layout.batching
    contexts: dict[int, dict[int | str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for member, (batch, slot) in zip(
        members, _places(layout, groups, members, number), strict=True
    ):
        if batch is not None:
            # Without slots every record is a context of its own.
            contexts[batch][member.digest if slot is None else slot].append(member.record)

    def filled(batch: int) -> tuple[Context, ...]:
        if batching.rule == "hashed-slots":
            return tuple(
                tuple(contexts[batch].get(slot, ())) for slot in range(batching.slots or 1)
            )
        found = map(tuple, contexts[batch].values())
        if batching.rule == "hashed-cells":
            return tuple(context for context in found if len(context) == layout.examples)
        return tuple(found)

    first = number * batching.per_round
    return tuple(
        Batch(first + batch, group.label, group.cluster, filled(batch))
        for group in groups
        for batch in group.ids
    )
