"""Budgets hold to the last bit: other people's records may decide on anything in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dpaudit.auditing.checks import registered
from dpaudit.auditing.checks.steps import StepView
from dpaudit.runs import RunReader

KIND: dict[str, Any] = {"aggregator": "mean", "sizes": (5, 4), "budget": 0.9, "divisor": 4.0}


def objection(check: str, run: Any, spent: Any, budget: float) -> str | None:
    """What a check says of the run's first step with other sums, under another budget."""
    manifest = RunReader(run.path).manifest
    mechanism = manifest.mechanism.model_copy(update={"budget": budget})
    with RunReader(run.path).batch(0) as batch:
        step = replace(batch.step(0), spent=spent)
        view = StepView(manifest.model_copy(update={"mechanism": mechanism}), batch.header, step)
        return registered()[check].function(view)


def test_who_takes_part_is_a_matter_of_the_last_bit(make_run: Any) -> None:
    run = make_run(**KIND)
    with RunReader(run.path).batch(0) as batch:
        before, after = batch.step(0).spent
    most_expensive = after.max()
    out = np.where(after == most_expensive, before, after)
    for budget, left_out in ((most_expensive, False), (np.nextafter(most_expensive, 0), True)):
        for spent, honest in (
            (np.stack([before, after]), not left_out),
            (np.stack([before, out]), left_out),
        ):
            checks = ("budget.activity", "budget.limit")
            said = [objection(check, run, spent, float(budget)) for check in checks]
            assert any(said) != honest, (budget, left_out, said)


def test_a_batch_that_cannot_be_read_says_nothing_of_budgets(make_run: Any) -> None:
    run = make_run(**KIND)
    for name in ("spent/c/0/0", "contexts/c/0/0/0"):

        def break_off(entries: list[Any], name: str = name) -> list[Any]:
            return [
                each._replace(data=each.data[:-9]) if each.name == name else each
                for each in entries
            ]

        run.rezip(0, break_off)
        result = run.audit()
        assert result.verdict == "error" and result.budgets is not None
        assert result.budgets.contexts == sum(KIND["sizes"]), name


def test_a_sum_that_is_off_by_the_last_bit_is_another(make_run: Any) -> None:
    run = make_run(**KIND)
    with RunReader(run.path).batch(0) as batch:
        before, after = batch.step(0).spent
    for factor in (1 - 5e-10, 1 - 2.0**-53, 1 + 2.0**-52, 1 + 5e-10):
        assert objection("budget.sums", run, np.stack([before, after * factor]), 1.0), factor
    assert objection("budget.sums", run, np.stack([before, after]), 1.0) is None
