"""Batch files by themselves: what an array is declared as is what the reader expects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpaudit.runs.archive import ArchiveReader, ArchiveWriter, ArraySpec

EXPECTED = ArraySpec("<u4", (3,), rows=2)


@pytest.mark.parametrize(
    "declared", [replace(EXPECTED, dtype="<i4"), replace(EXPECTED, rows=3), EXPECTED]
)
def test_an_array_without_attributes_is_declared_as_expected(
    tmp_path: Path, declared: ArraySpec
) -> None:
    writer = ArchiveWriter(tmp_path / "batch.zip", {})
    writer.declare("array", declared)
    for row in range(2):
        writer.chunk("array", declared, row, np.full(3, row, dtype=declared.dtype))
    writer.close()
    with (tmp_path / "batch.zip").open("rb") as file:
        reader = ArchiveReader(file)
        if declared == EXPECTED:
            reader.expect({"array": EXPECTED}, 2, ())
            assert reader.rows(["array"], range(1, 2))["array"].tolist() == [[1, 1, 1]]
        else:
            with pytest.raises(ValueError, match="declared"):
                reader.expect({"array": EXPECTED}, 2, ())
