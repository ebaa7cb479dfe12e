"""report.json's schema ships with the package and is the one the types give."""

from __future__ import annotations

import json
import math
from importlib import resources

import jsonschema
import pytest

from dpaudit.results import AuditResult, Empirical, Guarantees, report_schema


def shipped_schema() -> dict[str, object]:
    text = (resources.files("dpaudit") / "schemas" / "report.schema.json").read_text(encoding="utf-8")
    schema: dict[str, object] = json.loads(text)
    return schema


def result(loss: float) -> AuditResult:
    guarantees = Guarantees(
        ex_post=None, approximate=None, empirical=Empirical(leave_one_out_max=loss, contexts=0, worst=())
    )
    return AuditResult(
        verdict="error",
        evidence=2,
        guarantee="none",
        caveats=(),
        claim=None,
        guarantees=guarantees,
        ledger=(),
        batches=(),
        tokens=None,
        checks=(),
        not_checked=(),
        run={},
    )


def test_the_shipped_schema_is_current() -> None:
    assert shipped_schema() == report_schema(), "write json.dumps(report_schema(), indent=2) to the shipped file"


def test_numbers_that_are_not_finite_travel_as_text() -> None:
    for loss, written in [(0.5, 0.5), (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")]:
        document = json.loads(result(loss).to_json(), parse_constant=pytest.fail)
        jsonschema.validate(document, shipped_schema())
        assert document["guarantees"]["empirical"]["leave_one_out_max"] == written
