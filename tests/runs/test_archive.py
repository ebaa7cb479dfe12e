"""Batch files by themselves: what an array is declared as is what the reader expects."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpaudit.runs import archive
from dpaudit.runs.archive import ArchiveReader, ArchiveWriter, ArraySpec

EXPECTED = ArraySpec("<u4", (3,), rows=5, together=2)


@pytest.mark.parametrize(
    "declared", [replace(EXPECTED, dtype="<i4"), replace(EXPECTED, rows=6), EXPECTED]
)
def test_an_array_without_attributes_is_declared_as_expected(
    tmp_path: Path, declared: ArraySpec
) -> None:
    writer = ArchiveWriter(tmp_path / "batch.zip", {})
    writer.declare("array", declared)
    rows = np.arange(15, dtype=declared.dtype).reshape(5, 3)
    for index in range(3):
        writer.chunk("array", declared, index, rows[2 * index : 2 * index + 2])
    writer.close()
    with (tmp_path / "batch.zip").open("rb") as file:
        reader = ArchiveReader(file)
        if declared == EXPECTED:
            reader.expect({"array": EXPECTED}, ())
            for wanted in (range(5), range(1, 2), range(1, 4), range(4, 5)):
                found = reader.rows("array", wanted)
                assert found.tolist() == rows[wanted.start : wanted.stop].tolist()
                found[:] = 0  # and the next reader does not see it
        else:
            with pytest.raises(ValueError, match="declared"):
                reader.expect({"array": EXPECTED}, ())


def test_nothing_is_hidden_behind_the_last_row(tmp_path: Path) -> None:
    """Nobody looks at what fills up a chunk; not even a sign may stand there."""
    spec = ArraySpec("<f4", (3,), rows=5, together=2)
    filled = ArraySpec("<f4", (3,), rows=6, together=2)
    for hidden in (0.0, -0.0, 1.0):
        writer = ArchiveWriter(tmp_path / "batch.zip", {})
        writer.declare("array", spec)
        for index in range(3):
            rows = np.zeros((2, 3), dtype=np.float32)
            rows[1, 2] = hidden if index == 2 else 0
            writer.chunk("array", filled, index, rows)
        writer.close()
        with (tmp_path / "batch.zip").open("rb") as file:
            reader = ArchiveReader(file)
            reader.expect({"array": spec}, ())
            if not np.signbit(hidden) and not hidden:
                assert reader.rows("array").shape == (5, 3)
            else:
                with pytest.raises(ValueError, match="zeros"):
                    reader.rows("array")


@pytest.mark.parametrize("most", [archive.MOST_AT_ONCE, 0])
def test_a_small_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Who changes it afterwards changes neither what is decoded nor the digest."""
    monkeypatch.setattr(archive, "MOST_AT_ONCE", most)
    path = tmp_path / "batch.zip"
    writer = ArchiveWriter(path, {})
    writer.declare("array", EXPECTED)
    for index in range(3):
        writer.chunk("array", EXPECTED, index, np.full((2 - index // 2, 3), index, dtype="<u4"))
    writer.close()
    content = path.read_bytes()
    with path.open("rb", buffering=16) as file:
        reader = ArchiveReader(file)
        reader.expect({"array": EXPECTED}, ())
        assert reader.rows("array")[:, 0].tolist() == [0, 0, 1, 1, 2]
        if most:
            path.write_bytes(bytes(len(content)))
        assert reader.rows("array")[:, 0].tolist() == [0, 0, 1, 1, 2]
        assert reader.digest() == hashlib.sha256(content).hexdigest()


def test_a_file_that_grows_as_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "batch.zip"
    writer = ArchiveWriter(path, {})
    writer.declare("array", EXPECTED)
    for index in range(3):
        writer.chunk("array", EXPECTED, index, np.zeros((2 - index // 2, 3), dtype="<u4"))
    writer.close()
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"x")
    monkeypatch.setattr(archive.os, "fstat", lambda _: SimpleNamespace(st_size=size))
    with path.open("rb") as file, pytest.raises(ValueError, match="bytes"):
        ArchiveReader(file).expect({"array": EXPECTED}, ())


@pytest.mark.parametrize("most", [archive.MOST_AT_ONCE, 0])
def test_a_large_file_is_read_by_its_longer_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Of entries behind 2 GiB, here behind 700 bytes; a smaller file has none."""
    path, rows = tmp_path / "batch.zip", np.arange(15, dtype="<u4").reshape(5, 3)
    with monkeypatch.context() as patch:
        patch.setattr(zipfile, "ZIP64_LIMIT", 700)
        writer = ArchiveWriter(path, {})
        writer.declare("array", EXPECTED)
        for index in range(3):
            writer.chunk("array", EXPECTED, index, rows[2 * index : 2 * index + 2])
        writer.close()
    content = path.read_bytes()
    assert b"PK\6\6" in content and b"\1\0\x08\0" in content
    monkeypatch.setattr(archive, "MOST_AT_ONCE", most)
    with path.open("rb") as file, pytest.raises(ValueError, match="account for"):
        ArchiveReader(file)
    monkeypatch.setattr(archive, "_NEAR", 700)
    with path.open("rb") as file:
        reader = ArchiveReader(file)
        reader.expect({"array": EXPECTED}, ())
        assert reader.rows("array").tolist() == rows.tolist()
    # Bytes that neither the longer numbers nor the shorter ones account for.
    end = content.index(b"PK\6\6")
    for hidden in (content[:end] + b"x" + content[end:], content[:-22] + b"x" + content[-22:]):
        path.write_bytes(hidden)
        with path.open("rb") as file, pytest.raises(ValueError, match="account for"):
            ArchiveReader(file)


@pytest.mark.parametrize(
    "place", ["before", "between", "after", "elsewhere", "header", "checksum", "version"]
)
def test_no_byte_of_a_file_is_beside_its_entries(tmp_path: Path, place: str) -> None:
    """Nothing can hide before, between or behind them, nor in what stands before their contents."""
    path = tmp_path / "batch.zip"
    writer = ArchiveWriter(path, {})
    writer.declare("array", replace(EXPECTED, rows=2))
    writer.chunk("array", replace(EXPECTED, rows=2), 0, np.zeros((2, 3), dtype="<u4"))
    writer.close()
    content, hidden = path.read_bytes(), b"hidden"
    listed, end = content.index(b"PK\1\2"), len(content) - 22
    moved = struct.pack("<I", listed + len(hidden))
    second = content.index(b"PK\1\2", listed + 1)
    changed = {
        "before": hidden + content,
        "between": content[:listed]
        + hidden
        + content[listed : end + 16]
        + moved
        + content[end + 20 :],
        "after": content + hidden,
        "elsewhere": content[: second + 42] + bytes(4) + content[second + 46 :],
        "header": content[:10] + b"\1" + content[11:],
        "checksum": content[: listed - 1] + b"\1" + content[listed:],
        "version": content[: listed + 6] + b"\x64" + content[listed + 7 :],
    }[place]
    path.write_bytes(changed)
    with path.open("rb") as file, pytest.raises(ValueError, match=r"account for|zip file|director"):
        reader = ArchiveReader(file)
        reader.expect({"array": replace(EXPECTED, rows=2)}, ())
        reader.rows("array")
