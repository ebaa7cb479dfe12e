"""A run of forty short texts and real ones beside it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SECRET = "secret-7f3a"


def write_rows(path: Path, first: int, count: int) -> Path:
    """Rows with the labels a and b."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "text"])
        writer.writerows(
            ["ab"[number % 2], f"{'xy'[number % 2] * 9} {SECRET} {number}"] for number in range(first, first + count)
        )
    return path


@pytest.fixture
def run(make_run: Callable[..., Any]) -> Any:
    return make_run(sizes=(1,) * 40)


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "real.csv", 100, 90)


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "held-out.csv", 200, 24)
