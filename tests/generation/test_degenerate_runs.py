"""Honest runs of next to nothing pass every check that applies, at every level of evidence."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpaudit.auditing.run import audit_run
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.replay import replay_run
from dpaudit.runs.reader import RunReader, read_tokenizer
from tests.trials import trial

MEAN = {
    "mechanism": {"aggregator": "mean", "divisor": 4.0},
    "record": {"contexts": True},
    "privacy": {"delta": 1e-3},
}
EMPTY = {"batches_per_label": 5000, "generate_per_label": 1}
ALONE = {"batches_per_label": 1, "generate_per_label": 1}


@pytest.mark.parametrize("sections", [{}, MEAN], ids=["median", "mean"])
@pytest.mark.parametrize("batching", [EMPTY, ALONE], ids=["no contexts", "one record"])
def test_a_run_of_next_to_nothing_passes_level_4(
    make_config: Callable[..., Config],
    tmp_path: Path,
    sections: dict[str, Any],
    batching: dict[str, Any],
) -> None:
    data = tmp_path / "one.csv"
    with data.open("w", newline="") as file:
        csv.writer(file).writerows([["label", "text"], ["north", "a lone record"]])
    decoding, read = {"max_tokens": 1, "test_seed": None}, {"path": str(data), "labels": ["north"]}
    config = make_config(**sections, data=read, batching=batching, decoding=decoding)
    run = Path(generate(config, tmp_path / "run"))
    assert bool(RunReader(run).contexts()) == (batching is ALONE)
    found = replay_run(run, str(data), steps=2, left_out=1, trials=1)
    result = audit_run(
        run,
        evidence=4,
        replay=found,
        disclosed=trial(),
        tokenizers=frozenset({read_tokenizer(run)}),
    )
    assert (result.verdict, result.not_checked) == ("pass", ())
    # Without a replay nobody has seen that the data give no context.
    assert "neighbors.regenerated" in audit_run(run, evidence=4).not_checked
