"""Names inside a run directory, and the one way files are made there: private to their owner, whole or absent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

MANIFEST = "run.json"
SAMPLES = "samples.jsonl"
STEPS = "steps"
ASSIGNMENT = "assignment"
CLUSTERS = "clusters"
TOKENIZER = "tokenizer.json"
HASHES = "hashes"
#: Where `dpaudit report` writes unless told otherwise; not part of the record.
REPORT = "report"

_STEPS_FILE = re.compile(r"^(\d{8})\.zip$")
PARTIAL = ".part"


def steps_file(batch: int) -> str:
    """Path of a batch's step file, relative to the run directory."""
    return f"{STEPS}/{batch:08d}.zip"


def batch_of(name: str) -> int | None:
    """Batch id of a file name inside steps/, or None when it is no whole batch's name."""
    match = _STEPS_FILE.match(name)
    return int(match.group(1)) if match else None


def private_opener(path: str, flags: int) -> int:
    """`opener` for open(): only the owner may read what is created."""
    return os.open(path, flags, 0o600)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[str]]:
    """Write a text file that appears under its name only once all of it is on disk."""
    partial = path.with_name(path.name + PARTIAL)
    with open(partial, "w", encoding="utf-8", opener=private_opener) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    publish(partial, path)


def publish(partial: Path, path: Path) -> None:
    """Rename a finished file to its name and make the rename durable."""
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
