"""docs/faults.md lists every planted fault with the checks that it fails, and stays as the tests make it.

After a change of faults or messages: DPAUDIT_UPDATE_DOCS=1 pytest tests/checks/test_fault_table.py
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from dpaudit.checks import CATALOGUE

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
UPDATE = "DPAUDIT_UPDATE_DOCS"
FEWEST = 40
LONGEST = 160

HEAD = f"""# Faults and the checks that catch them

The tests take clean runs, plant one fault in each, forge the digests, and expect exactly these checks to fail. The
message is that of the first one. Digests are left alone where the fault is about them.

`neighbors.addition`, and `neighbors.removal` without a replay, hold dpaudit's own bounds against actual neighbours: no
run can fail them, only an accounting that is wrong. Other tests narrow the bounds and see both fail.

This page is made by the tests: `{UPDATE}=1 pytest tests/checks/test_fault_table.py` writes it anew.
"""
REPLAYED = """
## Found by a replay

What recomputing with the model and the data may find, in a run whose record alone passes.
"""


def planted():
    """The tests' own registry of faults. Tests are no package, so the file is loaded by its path."""
    spec = importlib.util.spec_from_file_location("planted_faults", Path(__file__).with_name("test_faults.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def row(name: str, result, path: Path) -> tuple[int, str]:
    """A line of the table, with the place of its first check in the catalogue."""
    failed = [check for check in result.checks if check.status in ("fail", "error")]
    checks = ", ".join(f"`{check.id}`" for check in failed)
    message = " ".join(failed[0].measured.replace(str(path), "RUN_DIR").split())
    message = message if len(message) <= LONGEST else f"{message[:LONGEST]} …"
    message = message.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return CATALOGUE.index(failed[0].id), f"| {name.replace('_', ' ')} | {checks} | {message} |"


def table(rows: list[tuple[int, str]]) -> str:
    lines = [line for _, line in sorted(rows, key=lambda row: row[0])]
    return "\n".join(["", "| fault | checks that fail | message |", "|---|---|---|", *lines, ""])


def page(make_run) -> str:
    """The whole page, from faults planted anew, each of which must fail exactly its checks."""
    faults = planted()
    recorded = [row(name, *faults.failing(make_run, name)) for name in faults.FAULTS]
    found = [row(name, *faults.failing_replay(make_run, name)) for name in faults.FINDINGS]
    return HEAD + table(recorded) + REPLAYED + table(found)


@pytest.fixture
def generated(make_run) -> str:
    text = page(make_run)
    if os.environ.get(UPDATE):
        PAGE.write_text(text, encoding="utf-8")
    return text


def test_page_is_what_the_faults_do(generated):
    assert PAGE.read_text(encoding="utf-8") == generated, f"run {UPDATE}=1 pytest {Path(__file__).name}"
    assert generated.count("\n| ") - 4 >= FEWEST
    assert "/tmp" not in generated
