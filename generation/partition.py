"""Records to contexts and batches. Under the hashed rules a record's place depends on that record alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpaudit.runs import Assigned, InputError, KeyedHash, Manifest
from dpaudit.runs.manifest import BatchingRule
from generation.config import Config
from generation.records import Record

#: One context: the records that a prompt shows, in hash order. Empty where a slot holds none.
Context = tuple[Record, ...]


@dataclass(frozen=True)
class Rule:
    """How records become contexts and batches: all that decides it beside the key. Fields as in run.json."""

    name: BatchingRule
    labels: tuple[str, ...]
    batches_per_label: int | None
    generate_per_label: int
    slots: int | None
    examples_per_context: int

    @classmethod
    def of_config(cls, config: Config) -> Rule:
        """The rule that a config asks for."""
        batching = config.batching
        return cls(
            config.rule,
            config.data.labels,
            batching.batches_per_label,
            batching.generate_per_label,
            batching.slots,
            config.prompt.examples_per_context,
        )

    @classmethod
    def of_manifest(cls, manifest: Manifest, where: str) -> Rule:
        """The rule that a run declares.

        Raises:
            InputError: it declares less than this generator does. `where` names its run.json.
        """
        batching = manifest.batching
        generated, per_label = batching.generate_per_label, batching.batches_per_label
        hashed = batching.rule != "paper-slices"
        missing = {
            "labels": not batching.labels,
            "generate_per_label": generated is None,
            "batches_per_label": hashed and per_label is None,
        }
        for field in (name for name, lacks in missing.items() if lacks):
            remedy = "Only runs of `dpaudit generate` can be replayed."
            raise InputError(f"{where}: batching.{field}", "the run does not say this.", remedy)
        if len(batching.labels) * (generated or 1) != batching.batches:
            problem = f"this is {batching.batches}, which is not generate_per_label for each of the labels."
            raise InputError(f"{where}: batching.batches", problem, "Restore the run, or generate it again.")
        return cls(
            batching.rule, batching.labels, per_label, generated or 1, batching.slots, batching.examples_per_context
        )


@dataclass(frozen=True)
class Batch:
    """One batch to generate: `id` is label index * generate_per_label + number within the label."""

    id: int
    label: str
    contexts: tuple[Context, ...]


@dataclass(frozen=True)
class Partition:
    """All batches in order of id, and every record's place."""

    batches: tuple[Batch, ...]
    assignment: tuple[Assigned, ...]


@dataclass(frozen=True)
class _Placed:
    """A record with its digest and its place: batch id and slot, None where it is in no generated batch."""

    digest: str
    record: Record
    batch: int | None
    slot: int | None


def partition(rule: Rule, records: Iterable[Record], key: bytes) -> Partition:
    """Place every record (mathematics: a rule that looks at one record alone; `paper-slices` does not)."""
    place = {"hashed-records": _hashed, "hashed-slots": _hashed_slots, "paper-slices": _slices}[rule.name]
    hashing = KeyedHash(key)
    ordered = sorted(
        ((hashing.digest(record.label, record.text), record) for record in records), key=lambda pair: pair[0]
    )
    placed = place(rule, hashing, ordered)
    return Partition(_batches(rule, placed), tuple(Assigned(p.digest, p.batch, p.slot) for p in placed))


_Ordered = Sequence[tuple[str, Record]]


def _hashed(rule: Rule, hashing: KeyedHash, ordered: _Ordered) -> list[_Placed]:
    batch_of = _hashed_batch(rule, hashing)
    return [_Placed(digest, record, batch_of(digest, record), None) for digest, record in ordered]


def _hashed_slots(rule: Rule, hashing: KeyedHash, ordered: _Ordered) -> list[_Placed]:
    """Of the records that hash to a slot, the `examples_per_context` of smallest digest are shown."""
    slots, most = rule.slots or 1, rule.examples_per_context
    batch_of = _hashed_batch(rule, hashing)
    shown: dict[tuple[int, int], int] = defaultdict(int)
    placed = []
    for digest, record in ordered:
        batch, slot = batch_of(digest, record), hashing.slot(digest, slots)
        if batch is None or shown[batch, slot] == most:
            placed.append(_Placed(digest, record, None, None))
            continue
        shown[batch, slot] += 1
        placed.append(_Placed(digest, record, batch, slot))
    return placed


def _hashed_batch(rule: Rule, hashing: KeyedHash) -> Callable[[str, Record], int | None]:
    count, generated, labels = rule.batches_per_label or 1, rule.generate_per_label, rule.labels

    def batch_of(digest: str, record: Record) -> int | None:
        number = hashing.batch(digest, count)
        return labels.index(record.label) * generated + number if number < generated else None

    return batch_of


def _slices(rule: Rule, hashing: KeyedHash, ordered: _Ordered) -> list[_Placed]:
    """The paper's implementation: each label's records, in hash order, cut into slices of fixed size."""
    most, slots, generated = rule.examples_per_context, rule.slots or 1, rule.generate_per_label
    seen: dict[str, int] = defaultdict(int)
    placed = []
    for digest, record in ordered:
        number, rest = divmod(seen[record.label], slots * most)
        seen[record.label] += 1
        if number < generated:
            batch = rule.labels.index(record.label) * generated + number
            placed.append(_Placed(digest, record, batch, rest // most))
        else:
            placed.append(_Placed(digest, record, None, None))
    return placed


def _batches(rule: Rule, placed: Sequence[_Placed]) -> tuple[Batch, ...]:
    contexts: dict[int, dict[int | str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for p in placed:
        if p.batch is not None:
            # Without slots every record is a context of its own.
            contexts[p.batch][p.digest if p.slot is None else p.slot].append(p.record)
    labels = (label for label in rule.labels for _ in range(rule.generate_per_label))
    return tuple(Batch(number, label, _filled(rule, contexts[number])) for number, label in enumerate(labels))


def _filled(rule: Rule, contexts: Mapping[int | str, list[Record]]) -> tuple[Context, ...]:
    """A batch's contexts; under `hashed-slots` every slot is one, empty or not."""
    if rule.name == "hashed-slots":
        return tuple(tuple(contexts.get(slot, ())) for slot in range(rule.slots or 1))
    return tuple(map(tuple, contexts.values()))
