"""A secret seed that a run commits to.

With it, anybody can recompute the uniform behind every token.

A seed is the exclusive or of its parts, 32 random bytes each, in files of their own: one part for
each party that must not have to trust the others. For each part run.json holds a hash.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpaudit.errors import InputError

#: Bytes of a part, of the seed, and of what one uniform is made of: 2^-256 lies far below every
#: probability that a config's largest range of logits makes likely.
PART_BYTES = UNIFORM_BYTES = 32
#: Parts of one seed.
MAX_PARTS = 16
#: Hashed first, to name the purpose: no hash of a part equals one of anything else.
_PART, _DRAW = b"dpaudit seed part v1\0", b"dpaudit committed draw v1\0"
#: A file of a part has 65 bytes.
_MAX_BYTES = 1 << 10
#: 32 random bytes have this few different ones with probability C(256, 16) (16 / 256)^32 < 1e-13;
#: typed ones often do.
_TOO_FEW = 16
_GIVE = (
    "Give a file that the run began with; for a new run make one with "
    "`dpaudit key --seed --out FILE`."
)


@dataclass(frozen=True, repr=False)
class CommittedSeed:
    """A seed of 256 bits, as secret as the records: this object and its files are its only forms.

    Attributes:
        hashes: of its parts, in their order (`part_hash`).
    """

    hashes: tuple[str, ...]
    _key: bytes

    @classmethod
    def of(cls, parts: Sequence[bytes]) -> CommittedSeed:
        """Make the seed of these parts. Raises ValueError where they cancel each other out."""
        key = 0
        for part in parts:
            key ^= int.from_bytes(part, "big")
        if not key or len(set(parts)) < len(parts):
            raise ValueError("two parts are equal, or all of them cancel each other out")
        return cls(tuple(map(part_hash, parts)), key.to_bytes(PART_BYTES, "big"))

    def random_bytes(self, commitment: str, batch: int, step: int) -> bytes:
        """Return the UNIFORM_BYTES behind one token: HMAC-SHA256 of where it is, under the seed.

        Every field has a fixed length, so no two places have the same encoding.

        Args:
            commitment: of the run, in hexadecimal: another run's numbers are unrelated, under the
                same seed too.
            batch: its id.
            step: the token's place in the batch, from 0, whichever of its texts it is in.
        """
        place = bytes.fromhex(commitment) + batch.to_bytes(8, "big") + step.to_bytes(8, "big")
        return hmac.digest(self._key, _DRAW + place, "sha256")

    def uniform(self, commitment: str, batch: int, step: int) -> float:
        """Return the number in (0, 1] behind one token; arguments as for `random_bytes`."""
        return as_uniform(self.random_bytes(commitment, batch, step))

    def require_hashes(self, hashes: Sequence[str], where: str) -> None:
        """Raise InputError unless these are the hashes of the seed's parts, in any order."""
        if sorted(hashes) != sorted(self.hashes):
            problem = "the hashes of these seed parts are not those that the run recorded."
            raise InputError(where, problem, "Give the files that the run began with.")


def as_uniform(random_bytes: bytes) -> float:
    """Return a number in (0, 1] with full relative precision down to 2^-204.

    Python rounds the quotient once.
    """
    bits = int.from_bytes(random_bytes, "big")
    return (2 * bits + 1) / (1 << (8 * UNIFORM_BYTES + 1))


def part_hash(part: bytes) -> str:
    """Return the hash of a seed's part that run.json holds, in hexadecimal.

    It tells nothing of 256 random bits.
    """
    return hashlib.sha256(_PART + part).hexdigest()


def new_part() -> str:
    """Return a new part's file: 64 hexadecimal digits, from the operating system's entropy."""
    return f"{secrets.token_hex(PART_BYTES)}\n"


def read_seed(files: Sequence[Path | str]) -> CommittedSeed:
    """Read the parts of a seed.

    Raises:
        InputError: a file is missing, is no part, or can be read by others than its owner; or parts
            cancel out.
    """
    parts = [_read_part(Path(file)) for file in files]
    try:
        return CommittedSeed.of(parts)
    except ValueError as error:
        problem = f"{error}: nothing of the seed would be secret."
        raise InputError(
            ", ".join(map(str, files)),
            problem,
            "Give each part once, each party a part of its own.",
        ) from None


def _read_part(file: Path) -> bytes:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise InputError(str(file), "this is no plain file.", _GIVE)
            if found.st_mode & 0o077:
                problem = "users other than the owner may read this part of a seed."
                remedy = "Run `chmod 600` on it, or make a new part if they read it."
                raise InputError(str(file), problem, remedy)
            content = opened.read(_MAX_BYTES)
    except OSError as error:
        raise InputError(str(file), f"cannot be read ({error.strerror}).", _GIVE) from None
    digits = content.strip()
    if not re.fullmatch(rb"[0-9a-fA-F]{64}", digits):
        problem = (
            f"a part of a seed has {2 * PART_BYTES} hexadecimal digits and nothing else; "
            "this file does not."
        )
        raise InputError(str(file), problem, _GIVE)
    part = bytes.fromhex(digits.decode("ascii"))
    if len(set(part)) <= _TOO_FEW:
        raise InputError(
            str(file), "this part of a seed was not drawn at random: its bytes repeat.", _GIVE
        )
    return part
