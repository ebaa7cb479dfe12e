"""Names inside a run directory."""

from __future__ import annotations

import re
import secrets
import sys
from typing import Final

MANIFEST = "run.json"
SAMPLES = "samples.jsonl"
STEPS = "steps"
ASSIGNMENT = "assignment"
CLUSTERS = "clusters"
CANARIES = "canaries"
TOKENIZER = "tokenizer.json"
HASHES = "hashes"
#: The name of `hashes` until the run is finished; not part of the record of a finished one.
JOURNAL = "journal"
#: Stands beside texts that were made without any record, in place of run.json.
PUBLIC = "public.json"
#: The attestation of a release folder, which has no run.json either.
ATTESTATION: Final = "attestation.intoto.jsonl"
#: The default output of `dpaudit report`; not part of the record.
REPORT = "report"
#: The config that `dpaudit generate DATA` made; may be edited, and is not part of the record.
CONFIG = "config.yaml"
#: Public-only texts of the run's config, beside its own; not part of the record.
BASELINE = "baseline"
#: Names the writer of a folder that cannot be locked itself; not part of the record.
LOCK = "writer.lock"

MAX_CLUSTERS_BYTES = 1 << 24
#: The most bytes of each file. Those without a number are read line by line or chunk by chunk, and
#: may be large.
_MOST_BYTES = {
    MANIFEST: 1 << 22,
    PUBLIC: 1 << 22,
    CLUSTERS: MAX_CLUSTERS_BYTES,
    #: 4096 of them, each with a label and a text of 1024 characters that JSON escapes.
    CANARIES: 1 << 26,
    #: That of 260,000 tokens and 510,000 merges has 33.4 million.
    TOKENIZER: 34 << 20,
    #: 850,000 batches.
    HASHES: 1 << 27,
    JOURNAL: 1 << 27,
    LOCK: 1 << 12,
    SAMPLES: sys.maxsize,
    ASSIGNMENT: sys.maxsize,
}

_STEPS_FILE = re.compile(r"([0-9]{8})\.zip")
_PARTIAL = re.compile(r"^(.+?)(\.[0-9a-f]{8})?\.part$")


def steps_file(batch: int) -> str:
    """Return the path of a batch's step file, relative to the run directory."""
    return f"{STEPS}/{batch:08d}.zip"


def most_bytes(name: str) -> int | None:
    """Return the most bytes that a file of this name may have.

    It is None if the format has no such name.
    """
    folder, _, last = name.rpartition("/")
    if folder == STEPS:
        return None if batch_of(last) is None else sys.maxsize
    return _MOST_BYTES.get(name)


def batch_of(name: str) -> int | None:
    """Return the batch id of a file name inside steps/; None if it is no whole batch's name."""
    match = _STEPS_FILE.fullmatch(name)
    return int(match.group(1)) if match else None


def partial_name(name: str) -> str:
    """Return a unique name for a file that is not whole yet.

    Two processes may be writing the same batch.
    """
    return f"{name}.{secrets.token_hex(4)}.part"


def whole_name(name: str) -> str | None:
    """Return the final name of a partial file; None if the name is no partial file's."""
    match = _PARTIAL.match(name)
    return match.group(1) if match else None
