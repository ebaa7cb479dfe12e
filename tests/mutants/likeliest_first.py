"""A plugin of pytest: of the tests those that can tell of the mutated file, the likeliest first.

A test can tell where its file names the mutated file or what that defines, where it plants a fault
for one of its checks, and where it holds honest runs or all mechanisms to their rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

FILE = Path(os.environ["MUTATED"])
_TEXT = FILE.read_text(encoding="utf-8")
CHECKS = frozenset(re.findall(r'id="([a-z.-]+)"', _TEXT))
_NAMES = [FILE.stem, *re.findall(r"^(?:class|def) ([A-Za-z]\w+)", _TEXT, re.MULTILINE)]
NAMED = re.compile(rf"\b(?:{'|'.join(_NAMES)})\b")
#: Tests of every mechanism, every accountant and every kind of honest run.
ALWAYS = ("test_conformance", "test_clean_runs")


def _failing(planted: Any) -> dict[str, Collection[str]]:
    """Return the checks that each planted fault fails, including those only a replay finds."""
    if planted is None:
        return {}
    recorded = {name: fault.fails for name, fault in planted.FAULTS.items()}
    return recorded | {name: fails for name, (_, _, fails) in planted.FINDINGS.items()}


def _rank(item: Any) -> int | None:
    """Return 0 for the likeliest tests to notice, 1 for others, None for those that cannot tell."""
    failing = _failing(getattr(item.module, "FAULTS", None))
    name = item.callspec.params.get("name") if hasattr(item, "callspec") else None
    if name in failing:
        if not CHECKS:
            return 1
        return None if CHECKS.isdisjoint(failing[name]) else 0
    if FILE.stem in item.path.stem:
        return 0
    told = item.path.stem in ALWAYS or NAMED.search(item.path.read_text(encoding="utf-8"))
    return 1 if told else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that cannot tell, and sort the others."""
    ranks = {item: _rank(item) for item in items}
    items[:] = sorted((item for item in items if ranks[item] is not None), key=ranks.__getitem__)
