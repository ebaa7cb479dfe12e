"""Runs that may be released, folders that were, and what these hold."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpaudit.auditing.run import Question, audit_run
from dpaudit.releasing.folder import write_release
from dpaudit.releasing.keys import make_key, read_signer
from dpaudit.results import AuditResult
from dpaudit.runs import RunReader

Run = Any


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the key that signs, and another one that does not."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("key", "other"):
        make_key(folder / name)
    return folder


@pytest.fixture(scope="session")
def releases() -> dict[str, tuple[Path, Path, AuditResult, object]]:
    """Runs and the folders that were released, by what was asked for: nobody changes them."""
    return {}


@pytest.fixture
def released(
    make_run: Callable[..., Run],
    releases: dict[str, tuple[Path, Path, AuditResult, object]],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    keys: Path,
    empty_figures: None,
) -> Callable[..., tuple[Path, AuditResult]]:
    """A function that releases and signs a run of some kind, and returns the folder and the audit.

    Each kind is released once, and handed out in copies beside its run. `release`: arguments of
    `write_release`.
    """
    pytest.importorskip("pyarrow")

    def make(
        question: Question | None = None, *, release: dict[str, Any] | None = None, **kind: Any
    ) -> Any:
        asked = repr((question, release, kind))
        if asked not in releases:
            run = make_run(**{"aggregator": "mean", "sizes": (3, 4, 5, 4)} | kind)
            result = audit_run(run.path, question)
            kept = tmp_path_factory.mktemp("released")
            written = kept / "texts"
            write_release(
                result,
                RunReader(run.path),
                written,
                **{"signer": read_signer(keys / "key")} | (release or {}),
            )
            # with what was asked: nothing else gets its place in memory, and so its repr
            own = Path(shutil.move(run.path, kept / "run"))
            releases[asked] = own, written, result, (question, release, kind)
        own, written, result, _ = releases[asked]
        number = len(list(tmp_path.iterdir()))
        shutil.copytree(own, tmp_path / f"released{number}")
        folder = tmp_path / f"texts{number}"
        return Path(shutil.copytree(written, folder)), result

    return make


@pytest.fixture
def contents() -> Callable[[Path], dict[str, str]]:
    """All contents of a folder as text by file, including the insides of Parquet and envelopes."""

    def read(folder: Path) -> dict[str, str]:
        found = {}
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            text = path.read_bytes().decode("utf-8", "replace")
            if path.suffix == ".parquet":
                table = pytest.importorskip("pyarrow.parquet").read_table(path)
                text += json.dumps(table.to_pylist(), ensure_ascii=False) + str(table.schema)
            if path.name.endswith(".intoto.jsonl"):
                lines = (json.loads(line) for line in path.read_text().splitlines())
                text += "".join(base64.b64decode(line["payload"]).decode() for line in lines)
            found[path.relative_to(folder).as_posix()] = text
        return found

    return read
