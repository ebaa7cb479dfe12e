"""A plugin of pytest: the tests that look at the mutated file come first, and of planted faults those of its checks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

FILE = Path(os.environ["MUTATED"])
CHECKS = frozenset(re.findall(r'id="([a-z.-]+)"', FILE.read_text(encoding="utf-8")))


def _rank(item: Any) -> int:
    """Return 0 for the likeliest test to notice, and 2 for the least likely."""
    faults = getattr(getattr(item.module, "FAULTS", None), "FAULTS", {})
    name = item.callspec.params.get("name") if hasattr(item, "callspec") else None
    if name in faults:
        return 2 if CHECKS.isdisjoint(faults[name].fails) else 0
    if FILE.stem in item.path.stem:
        return 0
    return 1 if re.search(rf"\b{FILE.stem}\b", item.path.read_text(encoding="utf-8")) else 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests."""
    items.sort(key=_rank)
