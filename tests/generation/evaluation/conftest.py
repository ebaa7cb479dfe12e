"""A run of forty short texts and real ones beside it, and a folder for scores that is no user's."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dpaudit.generation.joined import CACHE_VARIABLE
from dpaudit.generation.records import Record
from dpaudit.runs import Assigned, KeyedHash, RunReader, data_digest

SECRET = "secret-7f3a"
Rows: TypeAlias = Callable[[int, int], list[Record]]
Write: TypeAlias = Callable[[Path, Iterable[Record]], Path]


@pytest.fixture(autouse=True)
def scores_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where scores are kept; not there yet."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "evaluation-scores"


@pytest.fixture
def rows() -> Rows:
    """Texts whose letters say their label, a or b in turns."""

    def made(first: int, count: int) -> list[Record]:
        numbers = range(first, first + count)
        return [
            Record("ab"[number % 2], f"{'xy'[number % 2] * 9} {SECRET} {number}")
            for number in numbers
        ]

    return made


@pytest.fixture
def write_records() -> Write:
    """Writes a CSV file of records."""

    def written(path: Path, records: Iterable[Record]) -> Path:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["label", "text"])
            writer.writerows([record.label, record.text] for record in records)
        return path

    return written


@pytest.fixture
def make_own() -> Callable[[Any, Iterable[Record]], None]:
    """Makes a run say that it was made from some records."""

    def made(run: Any, records: Iterable[Record]) -> None:
        keyed = KeyedHash(bytes.fromhex(RunReader(run.path).manifest.batching.key))
        digests = sorted(keyed.digest(record.label, record.text) for record in records)
        (run / "assignment").write_text(
            "".join(Assigned(digest, None, None).line() for digest in digests)
        )
        run.edit_manifest({"data.digest": data_digest(digests), "data.records": len(digests)})

    return made


@pytest.fixture
def run(make_run: Callable[..., Any]) -> Any:
    return make_run(sizes=(1,) * 40)


@pytest.fixture
def reference(tmp_path: Path, rows: Rows, write_records: Write) -> Path:
    return write_records(tmp_path / "real.csv", rows(100, 90))


@pytest.fixture
def held_out(tmp_path: Path, rows: Rows, write_records: Write) -> Path:
    return write_records(tmp_path / "held-out.csv", rows(200, 24))
