"""Digests of a run that others receive in time, to check it against later.

The commitment is of all that is settled before the first token, the head of every file of the
finished run, and a running head (`dpaudit.runs.journal`) of the batches until then. With none of
them can anybody test a guess of what is private: the manifest's nonce, 32 secret random bytes, is
in all.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import NamedTuple

from dpaudit.runs import layout
from dpaudit.runs.manifest import Manifest

NONCE_BYTES = 32
#: The files beside run.json that are whole before the first token, and change no more.
SETTLED = (layout.ASSIGNMENT, layout.CLUSTERS, layout.TOKENIZER)


class KnownDigests(NamedTuple):
    """Digests of a run that somebody received when they were made, in hexadecimal; None if not.

    Attributes:
        commitment: given before the first token (`commitment_of`).
        head: given at the end of the run: SHA-256 of the file `hashes`, and through it of every
            file. Or given before, of `journal` as it was then, and through it of every batch that
            was finished.
    """

    commitment: str | None = None
    head: str | None = None


def commitment_of(manifest: Manifest, digests: Mapping[str, str]) -> str:
    """Return the SHA-256, in hexadecimal, of all that is settled before a run's first token.

    That is run.json, less the fields of `settled_later`, and the files `SETTLED`.

    Args:
        manifest: run.json at any time from then on.
        digests: SHA-256 of those of these files that the run has, by name, in hexadecimal.
    """
    fields = manifest.parts(without=settled_later(manifest))
    settled = {layout.MANIFEST: fields} | {name: digests.get(name) for name in SETTLED}
    return hashlib.sha256(
        json.dumps(settled, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def settled_later(manifest: Manifest) -> set[str]:
    """Return the fields of run.json that the commitment cannot be over.

    Those are itself, and what the run states at its end.
    """
    later = {"commitment", "redrawn", "stopped_after"}
    if manifest.claim_stated == "beforehand":
        return later
    return later | {"claim"}


def new_nonce() -> str:
    """Return a new nonce, from the operating system's entropy, in hexadecimal."""
    return secrets.token_hex(NONCE_BYTES)
