"""Where each record went: a line per record, private, in the file `assignment`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(r"^([0-9a-f]{64})\t(-|\d{1,9})\t(-|\d{1,9})$", re.ASCII)


@dataclass(frozen=True)
class Assigned:
    """Where one record went: its keyed digest, batch and slot. None where it takes part in no generated batch."""

    digest: str
    batch: int | None
    slot: int | None

    def line(self) -> str:
        """The record's line, with its end."""
        batch, slot = ("-" if value is None else str(value) for value in (self.batch, self.slot))
        return f"{self.digest}\t{batch}\t{slot}\n"


def parse_assigned(line: str) -> Assigned:
    """Read a line, without its end. Raises ValueError when it is not one."""
    match = _LINE.match(line)
    if not match:
        raise ValueError("this is not a record's digest, batch and slot")
    batch, slot = (None if text == "-" else int(text) for text in match.group(2, 3))
    return Assigned(match.group(1), batch, slot)


def data_digest(digests: Iterable[str]) -> str:
    """SHA-256 over the records' digests, ascending, each followed by a line feed: what `data.digest` holds."""
    total = hashlib.sha256()
    for digest in digests:
        total.update(f"{digest}\n".encode())
    return total.hexdigest()
