"""Canaries: made-up records, each in the data or out of it by a secret fair coin, and what is committed to of them.

The file `canaries` is written before the first token, and run.json holds its digest. Salt and coins are drawn from the
operating system's entropy, so the digest tells nobody the coins. Whoever was given the run's commitment in time can
tell that they are those of then.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import Field

from dpaudit.mechanisms import Fields
from dpaudit.runs.manifest import MAX_BATCHES, MAX_CANARIES, CanaryCoins, Digest, Name

SALT_BYTES = 32


class Canary(Fields):
    """One canary.

    Attributes:
        label: empty without labels.
        text: made up, and nobody's.
        batch: where its hash sends it; no other canary is there.
        included: its coin. Where it is False, no aggregate has it, and its contribution is recorded beside them.
    """

    label: Name
    text: Name
    batch: Annotated[int, Field(ge=0, lt=MAX_BATCHES)]
    included: bool


class Canaries(Fields):
    """The file `canaries`.

    Attributes:
        salt: 32 secret random bytes in hexadecimal, without which coins could be guessed from the digest.
        canaries: in the order of their batches.
    """

    salt: Digest
    canaries: Annotated[tuple[Canary, ...], Field(min_length=1, max_length=MAX_CANARIES)]

    @property
    def line(self) -> str:
        """The whole file: the one way in which format 1 writes it."""
        return f"{self.model_dump_json()}\n"

    @property
    def committed(self) -> CanaryCoins:
        """What run.json says of them."""
        return CanaryCoins(count=len(self.canaries), digest=hashlib.sha256(self.line.encode()).hexdigest())
