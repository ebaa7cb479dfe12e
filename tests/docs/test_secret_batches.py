"""Cells of docs/secret-batches.md and examples/paper/README.md, by the script that made them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.secret_batches import DELTA, SIZE, TOKENS, accountant, levels, paper_tokens
from dpaudit.accounting.allocation import release_cost
from dpaudit.mechanisms import ContextChange, bounded_range
from dpaudit.results.rounding import bound

ROOT = Path(__file__).parents[2]
PAGE = "".join(
    (ROOT / page).read_text("utf-8")
    for page in ("docs/secret-batches.md", "examples/paper/README.md")
)
ETA = bounded_range(2.0, 1.0, SIZE, ContextChange("add_remove"))


def line(begins: str) -> str:
    (found,) = (line for line in PAGE.splitlines() if line.startswith(begins))
    return found


def test_rows_of_the_paper_are_those_of_the_script() -> None:
    eta, tokens, delta = paper_tokens(504_000, 2.9)
    release, batch = levels(accountant(eta, 984), tokens, delta)
    shown = line("| Yelp | 2.9 |")
    assert f"| {bound(batch, 4)} |" in shown and f"{bound(release, 3)} (984)" in shown


def test_units_of_several_records_are_those_of_the_script() -> None:
    release, batch = levels(accountant(ETA, 38, users=3), TOKENS, DELTA)
    assert line("| a person with 3 records |").endswith(
        f"| {bound(batch, 3)} | {bound(release, 3)} |"
    )


@pytest.mark.slow
def test_yields_are_those_of_the_script() -> None:
    assert accountant(ETA, 38).most_rounds_within(2.0, TOKENS, DELTA) * 38 == 1254
    assert "1,254" in line("| 1,230 (38) |")


def test_the_ex_post_rows_are_of_the_costs_that_were_kept() -> None:
    """Rises and falls of the batches of one run each, in nats, as their audits found them."""
    kept = {"bbc_median": "| ex post, the example run", "central_demo": "| ex post, a central run"}
    for name, row in kept.items():
        file = Path(__file__).parents[1] / f"accounting/data/{name}_costs.json"
        run = json.loads(file.read_text("utf-8"))
        costs = {(0, group): np.array(found) for group, found in enumerate(run["costs"].values())}
        release = release_cost(costs, dict.fromkeys(range(len(run["costs"])), run["batches"]))
        batch = max(float(found.max()) for found in costs.values())
        shown = line(row)
        assert f"| {bound(batch, 3)} |" in shown
        assert shown.endswith(f"| {bound(release, 2).removeprefix('0')} |")
