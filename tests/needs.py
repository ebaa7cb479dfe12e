"""What tests need beyond Python's packages: skipped where it is missing, but never in .ci/run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

#: Not CI, at which hypothesis would try the same examples every time.
NO_SKIP = "DPAUDIT_NEEDS_ALL"


def needed(there: bool, reason: str) -> None:
    """Skip if something is missing; fail in .ci/run, where a skip would hide the thing tested."""
    if not there:
        pytest.fail(reason) if os.environ.get(NO_SKIP) else pytest.skip(reason)


def npm_part(name: str) -> Path:
    """Return where `make setup` put a package of tests/npm/package.json, which may be missing."""
    return Path(sys.prefix) / "share/node_modules" / name
