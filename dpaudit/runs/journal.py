"""The digests of a run's files, in the order in which they became whole, chained to each other.

While a run is written they stand in the file `journal`; the finished run has them, and two more, as
`hashes`. An entry is two lines:

    # SHA-256 of all bytes of the file before this line
    SHA-256 of a file  its name

The second is in the format of sha256sum, which takes the first for a comment. So the digest of the
file up to the end of any entry, a *running head*, binds all entries until then, and `sha256sum` of
the file is the latest one. In place of the digest of nothing, the first entry has one of the
manifest's nonce and commitment: with a running head nobody can test a guess of what is private, and
it belongs to one run.

A batch that was drawn again after it was finished has a second entry; its last one is of the file
that is there.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator

from dpaudit.runs import layout
from dpaudit.runs.manifest import Manifest


class Journal:
    """The entries so far.

    Attributes:
        digests: SHA-256 of each file in hexadecimal, by name, as its last entry has it.
        redrawn: ids of the batches that have several entries, in the order in which the second ones
            came.
    """

    def __init__(self, manifest: Manifest) -> None:
        """Start the empty journal of a run, which has its nonce and its commitment."""
        self.digests: dict[str, str] = {}
        self.redrawn: list[int] = []
        self._batches, self._bytes = 0, hashlib.sha256()
        # Of each entry: the running head after it, and how many batches had an entry by then.
        self._heads, self._batches_by = bytearray(), array("q")
        self._before = hashlib.sha256(
            f"{manifest.nonce} {manifest.commitment}".encode()
        ).hexdigest()

    @property
    def head(self) -> str:
        """The running head: SHA-256 of the file so far."""
        return self._bytes.hexdigest()

    def entry(self, digest: str, name: str) -> str:
        """Return the lines of the next entry, if it is of this file."""
        return f"# {self._before}\n{digest}  {name}\n"

    def add(self, digest: str, name: str) -> None:
        """Add the next entry.

        Raises:
            ValueError: a file that is no batch's has an entry already.
        """
        batch = layout.batch_of(name.removeprefix(f"{layout.STEPS}/"))
        if name in self.digests:
            if batch is None:
                raise ValueError(f"{name} has two entries")
            if batch not in self.redrawn:
                self.redrawn.append(batch)
        elif batch is not None:
            self._batches += 1
        self._bytes.update(self.entry(digest, name).encode())
        self.digests[name], self._before = digest, self.head
        self._heads += self._bytes.digest()
        self._batches_by.append(self._batches)

    def batches_by(self, head: str) -> int | None:
        """Return how many batches had an entry by a running head; None if it is none of them."""
        size = self._bytes.digest_size
        for place, batches in enumerate(self._batches_by):
            if self._heads[size * place : size * (place + 1)].hex() == head:
                return batches
        return None


def whole_entries(text: str, where: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a journal's whole entries, each with its place.

    A crash may have cut the last entry short.
    """
    lines = text.split("\n")[:-1]
    for number, line in enumerate(lines[: len(lines) // 2 * 2], start=1):
        yield f"{where}, line {number}", line
