"""Every planted fault fails exactly its checks, and docs/reference/faults.md names each set.

After a change of faults: DPAUDIT_UPDATE_DOCS=1 pytest tests/checks/test_fault_table.py -k page
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from dpaudit.auditing.checks import registered

PAGE = Path(__file__).parents[2] / "docs/reference/faults.md"
UPDATE = "DPAUDIT_UPDATE_DOCS"
FEWEST = 40
#: Faults that a row of the page names.
NAMED = 3

HEAD = f"""# Faults and the checks that catch them

The tests take clean runs, plant one fault in each, forge the digests \
(unless the fault is about them), and expect
exactly these checks to fail. `tests/checks/test_faults.py` has all of them.

`neighbors.addition`, and `neighbors.removal` without a replay, hold dpaudit's own bounds \
against actual neighbours:
only wrong accounting can fail them. Other tests narrow the bounds and see both fail.

`{UPDATE}=1 pytest tests/checks/test_fault_table.py -k page` writes this page.
"""
REPLAYED = """
## Found by a replay

What recomputing with the model and the data may find, in a run whose record alone passes.
"""


def planted():
    """The tests' registry of faults, loaded by its file's path, as tests are no package."""
    spec = importlib.util.spec_from_file_location(
        "planted_faults", Path(__file__).with_name("test_faults.py")
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


FAULTS = planted()


def table(faults: dict[str, Iterable[str]]) -> str:
    """A row for each set of checks that fail together, with its faults, in catalogue order."""
    order = list(registered())
    rows = defaultdict(list)
    for name, fails in faults.items():
        rows[tuple(sorted(fails, key=order.index))].append(name.replace("_", " "))
    in_order = sorted(rows, key=lambda checks: [order.index(check) for check in checks])
    lines = [
        f"| {', '.join(f'`{check}`' for check in checks)} | {named(rows[checks])} |"
        for checks in in_order
    ]
    return "\n".join(["", "| checks that fail | faults |", "|---|---|", *lines, ""])


def named(faults: list[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(faults) - NAMED
    return "; ".join([*faults[:NAMED], f"{more} more"] if more > 1 else faults)


def page() -> str:
    found_in_the_record = {name: planted.fails for name, planted in FAULTS.FAULTS.items()}
    found_by_a_replay = {name: fails for name, (_, _, fails) in FAULTS.FINDINGS.items()}
    return HEAD + table(found_in_the_record) + REPLAYED + table(found_by_a_replay)


# In the order of kinds of runs: two workers then seldom audit the same kind without a fault.
@pytest.mark.parametrize(
    "name", sorted(FAULTS.FAULTS, key=lambda name: repr(FAULTS.FAULTS[name].kind))
)
def test_fault_fails_exactly_its_checks(make_run, name):
    FAULTS.failing(make_run, name)


@pytest.mark.parametrize("name", FAULTS.FINDINGS)
def test_finding_of_a_replay_fails_exactly_its_checks(make_run, name):
    FAULTS.failing_replay(make_run, name)


def test_page_lists_exactly_these_faults():
    if os.environ.get(UPDATE):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), (
        f"run {UPDATE}=1 pytest {Path(__file__).name} -k page"
    )
    assert len(FAULTS.FAULTS) >= FEWEST
