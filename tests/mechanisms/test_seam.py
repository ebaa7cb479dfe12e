"""What no product code does, by the commands of CONTRIBUTING.md that would find it."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def found_by(beginning: str) -> list[str]:
    """Files in which one of the commands finds lines, a file for each line."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    commands = re.findall(
        r"^git grep .*$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    (command,) = (
        command for command in map(shlex.split, commands) if command[3].startswith(beginning)
    )
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1) and not found.stderr
    return [line.partition(":")[0] for line in found.stdout.splitlines()]


def test_nothing_outside_asks_which_mechanism_it_is() -> None:
    assert found_by("aggregator") == []


def test_nothing_outside_the_renderer_goes_by_sentences() -> None:
    assert found_by(r"\.(words") == ["generation/passes.py", "generation/rows.py"]
