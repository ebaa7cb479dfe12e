"""Records to contexts and batches. Under the hashed rules a record's place depends on that record alone."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpaudit.runs import Assigned
from generation.config import Config
from generation.records import Record

KEY_BYTES = 32

#: One context: the records that a prompt shows, in hash order. Empty where a slot holds none.
Context = tuple[Record, ...]


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
class KeyedHash:
    """BLAKE2b under a secret key, so that nobody without it can tell or steer where a record goes."""

    key: bytes

    def digest(self, record: Record) -> str:
        """64 hexadecimal digits. Lengths come first, so that no two (label, text) pairs encode alike."""
        parts = [part.encode() for part in (record.label, record.text)]
        message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return self._hash(b"dpaudit.record", message).hex()

    def batch(self, digest: str, count: int) -> int:
        """Number of the batch within the label, uniform on range(count)."""
        return self._below(b"dpaudit.batch", digest, count)

    def slot(self, digest: str, count: int) -> int:
        """Number of the slot within the batch, uniform on range(count)."""
        return self._below(b"dpaudit.slot", digest, count)

    def _below(self, purpose: bytes, digest: str, count: int) -> int:
        # 256 bits: the remainder's bias is below count / 2^256.
        return int.from_bytes(self._hash(purpose, bytes.fromhex(digest)), "big") % count

    def _hash(self, purpose: bytes, message: bytes) -> bytes:
        return hashlib.blake2b(message, key=self.key, person=purpose, digest_size=32).digest()


@dataclass(frozen=True)
class _Placed:
    """A record with its digest and its place: batch id and slot, None where it is in no generated batch."""

    digest: str
    record: Record
    batch: int | None
    slot: int | None


def partition(config: Config, records: Iterable[Record], key: bytes) -> Partition:
    """Place every record (mathematics: a rule that looks at one record alone; `paper-slices` does not)."""
    place = {"hashed-records": _hashed, "hashed-slots": _hashed_slots, "paper-slices": _slices}[config.rule]
    hashing = KeyedHash(key)
    ordered = sorted(((hashing.digest(record), record) for record in records), key=lambda pair: pair[0])
    placed = place(config, hashing, ordered)
    return Partition(_batches(config, placed), tuple(Assigned(p.digest, p.batch, p.slot) for p in placed))


_Ordered = Sequence[tuple[str, Record]]


def _hashed(config: Config, hashing: KeyedHash, ordered: _Ordered) -> list[_Placed]:
    batch_of = _hashed_batch(config, hashing)
    return [_Placed(digest, record, batch_of(digest, record), None) for digest, record in ordered]


def _hashed_slots(config: Config, hashing: KeyedHash, ordered: _Ordered) -> list[_Placed]:
    """Of the records that hash to a slot, the `examples_per_context` of smallest digest are shown."""
    slots, most = config.batching.slots or 1, config.prompt.examples_per_context
    batch_of = _hashed_batch(config, hashing)
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


def _hashed_batch(config: Config, hashing: KeyedHash) -> Callable[[str, Record], int | None]:
    count, generated = config.batching.batches_per_label or 1, config.batching.generate_per_label
    labels = config.data.labels

    def batch_of(digest: str, record: Record) -> int | None:
        number = hashing.batch(digest, count)
        return labels.index(record.label) * generated + number if number < generated else None

    return batch_of


def _slices(config: Config, hashing: KeyedHash, ordered: _Ordered) -> list[_Placed]:
    """The paper's implementation: each label's records, in hash order, cut into slices of fixed size."""
    most, slots = config.prompt.examples_per_context, config.batching.slots or 1
    generated = config.batching.generate_per_label
    seen: dict[str, int] = defaultdict(int)
    placed = []
    for digest, record in ordered:
        number, rest = divmod(seen[record.label], slots * most)
        seen[record.label] += 1
        if number < generated:
            batch = config.data.labels.index(record.label) * generated + number
            placed.append(_Placed(digest, record, batch, rest // most))
        else:
            placed.append(_Placed(digest, record, None, None))
    return placed


def _batches(config: Config, placed: Sequence[_Placed]) -> tuple[Batch, ...]:
    contexts: dict[int, dict[int | str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for p in placed:
        if p.batch is not None:
            # Without slots every record is a context of its own.
            contexts[p.batch][p.digest if p.slot is None else p.slot].append(p.record)
    generated = config.batching.generate_per_label
    labels = (label for label in config.data.labels for _ in range(generated))
    return tuple(Batch(number, label, _filled(config, contexts[number])) for number, label in enumerate(labels))


def _filled(config: Config, contexts: Mapping[int | str, list[Record]]) -> tuple[Context, ...]:
    """A batch's contexts; under `hashed-slots` every slot is one, empty or not."""
    if config.rule == "hashed-slots":
        return tuple(tuple(contexts.get(slot, ())) for slot in range(config.batching.slots or 1))
    return tuple(map(tuple, contexts.values()))
