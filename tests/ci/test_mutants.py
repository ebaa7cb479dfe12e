"""The packages that faults are planted in are where the table says, and so are their tests."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mutmut")

from tests.mutants.__main__ import TESTS
from tests.mutants.planting import FOLDERS

ROOT = Path(__file__).parents[2]


def test_every_package_has_code_and_tests() -> None:
    assert TESTS.keys() == FOLDERS.keys()
    for package, tests in TESTS.items():
        assert list((ROOT / "dpaudit" / FOLDERS[package]).glob("*.py")), package
        assert all((ROOT / test).exists() for test in tests), package
