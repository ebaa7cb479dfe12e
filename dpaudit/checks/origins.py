"""Where a run's numbers come from, as it declares: what two families of checks say alike."""

from __future__ import annotations

from dpaudit.checks.registry import Outcome
from dpaudit.runs.manifest import Origin


def judge_origin(origin: Origin | None, name: str) -> Outcome:
    """An outcome for a declared origin of settings; `name` is its field under `origins`."""
    expected = "chosen without private records"
    if origin == "public":
        return Outcome("pass", "public", expected)
    if origin == "private":
        return Outcome("fail", "chosen with private records, and not paid for", expected)
    return Outcome("skip", "not declared", expected, f"Declare origins.{name} in run.json: public or private.")
