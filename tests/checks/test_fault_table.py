"""docs/faults.md lists every planted fault with the checks that it fails, and stays as the tests make it.

After a change of faults or messages: DPAUDIT_UPDATE_DOCS=1 pytest tests/checks/test_fault_table.py
After a change of one fault, in seconds: the same with -k "name_of_the_fault or page_lists"
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

from dpaudit.checks import registered

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
UPDATE = "DPAUDIT_UPDATE_DOCS"
FEWEST = 40
LONGEST = 160
#: The last digits of these depend on the processor.
_LONG = re.compile(r"\d+\.\d{9,}")

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


FAULTS = planted()
#: The lines of the faults that this process has planted, for the page that is written anew.
LINES: dict[str, str] = {}


def line(name: str, result, path: Path) -> str:
    """The fault's line of the table."""
    failed = [check for check in result.checks if check.status in ("fail", "error")]
    checks = ", ".join(f"`{check.id}`" for check in failed)
    message = " ".join(failed[0].measured.replace(str(path), "RUN_DIR").split())
    message = _LONG.sub(lambda found: f"{float(found[0]):.9g}", message)
    message = message if len(message) <= LONGEST else f"{message[:LONGEST]} …"
    message = message.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return f"| {called(name)} | {checks} | {message} |"


def called(name: str) -> str:
    return name.replace("_", " ")


def place(line: str) -> int:
    """Of a line: where its first check stands in the catalogue."""
    return list(registered()).index(line.split("`")[1]) if line else -1


def table(names, lines: dict[str, str]) -> str:
    """The lines of these faults, in the catalogue's order of checks."""
    rows = sorted((lines[name] for name in names), key=place)
    return "\n".join(["", "| fault | checks that fail | message |", "|---|---|---|", *rows, ""])


def page(lines: dict[str, str]) -> str:
    return HEAD + table(FAULTS.FAULTS, lines) + REPLAYED + table(FAULTS.FINDINGS, lines)


def on_page() -> dict[str, str]:
    """The page's line for each fault, or ""."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    return {name: found.get(called(name), "") for name in [*FAULTS.FAULTS, *FAULTS.FINDINGS]}


def require_on_page(name: str, result, path: Path) -> None:
    LINES[name] = line(name, result, path)
    assert "/tmp" not in LINES[name]
    if not os.environ.get(UPDATE):
        assert on_page()[name] == LINES[name], f"run {UPDATE}=1 pytest {Path(__file__).name}"


# In the order of kinds of runs: two workers then seldom audit the same kind without a fault.
@pytest.mark.parametrize("name", sorted(FAULTS.FAULTS, key=lambda name: repr(FAULTS.FAULTS[name].kind)))
def test_fault_fails_its_checks_and_is_on_the_page(make_run, name):
    require_on_page(name, *FAULTS.failing(make_run, name))


@pytest.mark.parametrize("name", FAULTS.FINDINGS)
def test_finding_of_a_replay_fails_its_checks_and_is_on_the_page(make_run, name):
    require_on_page(name, *FAULTS.failing_replay(make_run, name))


def test_page_lists_exactly_these_faults():
    lines = on_page()
    if os.environ.get(UPDATE):
        PAGE.write_text(page(lines | LINES), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(on_page()), f"run {UPDATE}=1 pytest {Path(__file__).name}"
    missing = [name for name, line in on_page().items() if not line]
    assert not missing
    assert len(lines) >= FEWEST
