"""Canaries.

Made-up records, each in the data or out of it by a secret fair coin, and their commitment.

The file `canaries` is written before the first token, and run.json holds its digest. Salt and coins
are drawn from the operating system's entropy, so the digest tells nobody the coins. With the run's
commitment, received in time, a reader can tell that the canaries were not changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from dpaudit.mechanisms import Fields
from dpaudit.runs.assignment import KeyedHash
from dpaudit.runs.manifest import MAX_CANARIES, Batching, CanaryCoins, Digest, Name

SALT_BYTES = 32


class Canary(Fields):
    """One canary. Its hash gives it to batches, like any record's.

    No other canary is in one of them.

    Attributes:
        label: empty without labels.
        text: made up, and nobody's.
        included: its coin, for all rounds. If it is False, no aggregate has it, and its
            contribution is recorded beside them.
    """

    label: Name
    text: Name
    included: bool

    def batches(self, batching: Batching, labels: Sequence[str], rounds: int) -> tuple[int, ...]:
        """Return the ids of the generated batches that its hash gives it to, ascending.

        It is in at most one batch a round. `batching` has a key, and numbers of batches per label;
        `labels` are all of the run's (`DataSettings.groups`).
        """
        hashing, count = (
            KeyedHash(bytes.fromhex(batching.key or "")),
            batching.batches_per_label or 1,
        )
        digest, generated = hashing.digest(self.label, self.text), batching.generate_per_label or 1
        first = 0
        if self.label in labels:
            first = labels.index(self.label) * generated
        numbers = (hashing.of_round(number).batch(digest, count) for number in range(rounds))
        return tuple(
            number * batching.per_round + first + place
            for number, place in enumerate(numbers)
            if place < generated
        )


class Canaries(Fields):
    """The file `canaries`.

    Attributes:
        salt: 32 secret random bytes in hexadecimal, without which coins could be guessed from the
            digest.
        canaries: in any order; batches name theirs by its place.
    """

    salt: Digest
    canaries: Annotated[tuple[Canary, ...], Field(min_length=1, max_length=MAX_CANARIES)]

    @property
    def line(self) -> str:
        """The whole file, in the one way in which dpaudit writes it."""
        return f"{self.model_dump_json()}\n"

    @property
    def committed(self) -> CanaryCoins:
        """The canaries' commitment in run.json."""
        return CanaryCoins(
            count=len(self.canaries), digest=hashlib.sha256(self.line.encode()).hexdigest()
        )
