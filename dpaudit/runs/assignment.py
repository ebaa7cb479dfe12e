"""The file `assignment`, one private line per record, and the rule that gives records to batches.

In a run with several rounds the file names no batches: a record's batch in each round follows from
its digest, its group and the round's key. So the file, and what a reader must hold, do not grow
with the rounds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

KEY_BYTES = 32
MILLION = 10**6

_LINE = re.compile(
    r"^([0-9a-f]{64})\t(-|\d{1,9})\t(-|\d{1,9})(?:\t(-|[0-9a-f]{64})\t((?:0|[1-9]\d{0,14})(?:\.\d{1,22})?(?:e-\d{1,3})?))?$",
    re.ASCII,
)


class Assigned(NamedTuple):
    """The place of one record, and what sets its budget apart from the others'.

    Attributes:
        digest: of the record, keyed.
        batch, slot: None if it takes part in no generated batch, or is held out, in a run of one
            round. Under `hashed-cells` the slot is the record's cell, whether it is shown or not:
            that follows from how many share it.
            In a run with several rounds `batch` is the record's group instead, a label's or a
            cluster's, by the order of their batches' ids; no slot is given.
        user: keyed digest of the record's user, where a user's records share a budget.
        spent: what the record, or its user where they share, has spent of its budget in earlier
            runs, in nats of rho.
    """

    digest: str
    batch: int | None
    slot: int | None
    user: str | None = None
    spent: float = 0.0

    @property
    def payer(self) -> str:
        """The owner of the budget: the user's digest, or the record's own."""
        return self.user or self.digest

    def line(self) -> str:
        """Return the record's line, with its end: five fields, or three if two are empty."""
        fields = [
            self.digest,
            *("-" if value is None else str(value) for value in (self.batch, self.slot)),
        ]
        if self.user is not None or self.spent:
            fields += [self.user or "-", repr(self.spent)]
        return "\t".join(fields) + "\n"


def parse_assigned(line: str) -> Assigned:
    """Read a line, without its end. Raises ValueError when it is not one."""
    match = _LINE.match(line)
    if not match:
        raise ValueError(
            "this is not a record's digest, batch and slot, with user and what was spent or without"
        )
    digest, batch, slot, user, spent = match.groups()
    return Assigned(
        digest,
        None if batch == "-" else int(batch),
        None if slot == "-" else int(slot),
        None if user == "-" else user,
        float(spent or 0),
    )


def data_digest(digests: Iterable[str]) -> str:
    """Return the SHA-256 over the records' ascending digests, each followed by a line feed.

    `data.digest` holds it.
    """
    total = hashlib.sha256()
    for digest in digests:
        total.update(f"{digest}\n".encode())
    return total.hexdigest()


class KeyedHash(NamedTuple):
    """BLAKE2b under a secret key: without the key nobody can tell or steer a record's batch.

    The hashed rules of run.json mean this hash: an auditor runs it again.
    """

    key: bytes

    def digest(self, label: str, text: str) -> str:
        """Return 64 hexadecimal digits of a record.

        Lengths come first, so that no two (label, text) pairs encode alike.
        """
        parts = [part.encode() for part in (label, text)]
        message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return self._hash(b"dpaudit.record", message).hex()

    def of_round(self, number: int) -> KeyedHash:
        """Return the hash that gives batches and slots in a round, from 0.

        Its key is derived from this one.
        """
        return KeyedHash(self._hash(b"dpaudit.round", number.to_bytes(8, "big")))

    def holds_out(self, digest: str, millionths: int) -> bool:
        """Return whether a record is held out of every batch, in `millionths` of all cases."""
        return self._below(b"dpaudit.hold", digest, MILLION) < millionths

    def user(self, name: str) -> str:
        """Return 64 hexadecimal digits of a user."""
        return self._hash(b"dpaudit.user", name.encode()).hex()

    def batch(self, digest: str, count: int) -> int:
        """Return the number of the batch within the label, uniform on range(count)."""
        return self._below(b"dpaudit.batch", digest, count)

    def slot(self, digest: str, count: int) -> int:
        """Return the number of the slot or cell within the batch, uniform on range(count)."""
        return self._below(b"dpaudit.slot", digest, count)

    def _below(self, purpose: bytes, digest: str, count: int) -> int:
        # 256 bits: the remainder's bias is below count / 2^256.
        return int.from_bytes(self._hash(purpose, bytes.fromhex(digest)), "big") % count

    def _hash(self, purpose: bytes, message: bytes) -> bytes:
        return hashlib.blake2b(message, key=self.key, person=purpose, digest_size=32).digest()
