"""What tests of generation on Ray share: a cluster, its workers, and what their runs must equal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpaudit.runs import RunReader
from dpaudit.runs.engines import RayEngine
from dpaudit.runs.engines.ray import connected


@contextmanager
def two_workers() -> Iterator[None]:
    """Connect to one cluster for all tests, of two CPUs however many there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_worker_niceness", "0")  # by default its workers wait for all other tests
        with connected(RayEngine(workers=2)):
            yield


def record(location: Path | str) -> dict[str, str]:
    """Digests of all files but run.json, which says when the run was made."""
    found = RunReader(location).hashes().digests.items()
    return {name: digest for name, digest in found if name != "run.json"}


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def actors() -> list[int]:
    """Processes of this cluster's actors: children of a child of this process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"ray::Worker" in (folder / "cmdline").read_bytes()
                and parent(parent(int(folder.name))) == os.getpid()
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found
