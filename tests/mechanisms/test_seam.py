"""Nothing outside the package asks which mechanism a run has: CONTRIBUTING.md has the command that would find it."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_nothing_outside_asks_which_mechanism_it_is() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    (command,) = re.findall(r"^git grep .*$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    found = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (1, "", "")
