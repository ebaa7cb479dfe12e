"""A run that is generated straight into a store, gone on with there, and replayed from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.events import BatchDone, Event
from dpaudit.generation.replay import replay_run
from dpaudit.runs import RunReader
from dpaudit.runs.storage import open_storage

URL = "memory://bucket/run"


def record(location: Path | str) -> dict[str, str]:
    """Digests of all files but run.json, which says when the run was made."""
    return {
        name: digest
        for name, digest in RunReader(location).hashes().digests.items()
        if name != "run.json"
    }


def test_store_gets_the_files_that_a_folder_gets(
    tmp_path: Path, make_config: Callable[..., Config], data_file: Path
) -> None:
    MemoryFileSystem.store.clear()
    config = make_config()

    def stop(event: Event) -> None:
        if isinstance(event, BatchDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(config, URL, stop)
    assert len(RunReader(URL).batches) == 1
    assert not open_storage(URL).exists("writer.lock")
    generate(config, URL)
    generate(config, tmp_path / "run")
    assert record(URL) == record(tmp_path / "run")
    found = replay_run(URL, str(data_file), steps=2, left_out=0, trials=0)
    assert found.steps
