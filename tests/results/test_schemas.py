"""The schemas that ship are those of the types, and what dpaudit writes and reads is valid by them.

evaluation.json's documents are in test_quality_file.py, those of policies and attestations in
tests/releasing.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dpaudit.auditing.comparison import compare_runs
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.results import AuditResult, Empirical, Guarantees, Message, RunSummary
from dpaudit.results.schemas import SCHEMAS, json_schema, schema_text

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "dpaudit" / "schemas"
EXAMPLE = ROOT / "examples" / "runs" / "bbc-median"
#: Kinds of runs whose run.json differ in shape.
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"aggregator": "mean", "top_k": 5},
    {"aggregator": "mean", "unit": "user", "records_per_user": 2},
    {"contribution": "differences", "tokens_per_batch": 6},
    {"aggregator": "mean", "budget": 1.0},
    {"clusters": "chang", "sizes": (3, 4, 5, 4)},
)


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        json.loads(
            (resources.files("dpaudit") / "schemas" / f"{name}.schema.json").read_text(
                encoding="utf-8"
            )
        )
    )


def unreadable(loss: float) -> AuditResult:
    empirical = Empirical(leave_one_out_max=loss, contexts=0, worst=())
    return AuditResult(
        verdict="error",
        evidence=2,
        guarantee=Message(code="verdict.unreadable", words="none"),
        caveats=(),
        claim=None,
        guarantees=Guarantees(ex_post=None, approximate=None, empirical=empirical),
        ledger=(),
        batches=(),
        tokens=None,
        checks=(),
        not_checked=(),
        run=RunSummary(dpaudit="0.1.0"),
    )


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_shipped_schema_is_current(name: str) -> None:
    if os.environ.get("DPAUDIT_UPDATE_SCHEMAS"):
        (FOLDER / f"{name}.schema.json").write_text(schema_text(name), encoding="utf-8")
    shipped = (FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")
    assert shipped == schema_text(name), (
        "DPAUDIT_UPDATE_SCHEMAS=1 pytest tests/results/test_schemas.py writes it"
    )
    jsonschema.Draft202012Validator.check_schema(json_schema(name))


def test_every_shipped_schema_is_of_a_type_and_versioned() -> None:
    assert {path.name.removesuffix(".schema.json") for path in FOLDER.iterdir()} == set(SCHEMAS)
    for name, kind in SCHEMAS.items():
        assert json_schema(name)["$id"] == f"urn:dpaudit:{name}:{kind.version}"
        stated = kind.model.model_fields.get("format_version") or kind.model.model_fields.get(
            "schema_version"
        )
        assert stated is None or str(stated.default) == str(kind.version)


def test_the_page_of_schemas_has_their_numbers() -> None:
    page = (FOLDER.parents[1] / "docs/schemas.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"\((?:[./\w-]*/)?(\w+)\.schema\.json\) \| [^|]*?(\d+)", page))
    assert rows == {name: str(kind.version) for name, kind in SCHEMAS.items()}


def runs(make_run: Callable[..., Any]) -> Iterator[Any]:
    return (make_run(**kind) for kind in KINDS)


def test_run_json(make_run: Callable[..., Any]) -> None:
    check = validator("run")
    both = {"kind": "central", "central": 2, "divisor": 2.0}
    for manifest in (EXAMPLE / "run.json", *(run / "run.json" for run in runs(make_run))):
        fields = json.loads(manifest.read_text(encoding="utf-8"))
        check.validate(fields)
        settings, made = fields["settings"], fields["made"]
        wrong_settings = (
            {"mechanism": settings["mechanism"] | {"new": 1}},
            {"mechanism": settings["mechanism"] | {"aggregator": both}},
            {"data": settings["data"] | {"records": 5}},
        )
        for wrong in (
            fields | {"new": 1},
            fields | {"format": 1},
            *(fields | {"settings": settings | each} for each in wrong_settings),
            fields | {"made": {name: value for name, value in made.items() if name != "record"}},
        ):
            assert not check.is_valid(wrong)


def test_report_json(make_run: Callable[..., Any]) -> None:
    check = validator("report")
    for result in (audit_run(EXAMPLE), *(run.audit() for run in runs(make_run))):
        check.validate(json.loads(result.to_json()))
        check.validate(json.loads(public_form(result).to_json()))
        assert not check.is_valid(json.loads(result.to_json()) | {"new": 1})


def test_comparison_json(make_run: Callable[..., Any]) -> None:
    results = {f"run {number}": run.audit() for number, run in enumerate(runs(make_run))}
    document = json.loads(compare_runs(results).to_json())
    validator("comparison").validate(document)
    assert not validator("comparison").is_valid(document | {"schema_version": "1"})


def test_numbers_that_are_not_finite_travel_as_text() -> None:
    for loss, written in [(0.5, 0.5), (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")]:
        document = json.loads(unreadable(loss).to_json(), parse_constant=pytest.fail)
        validator("report").validate(document)
        assert document["guarantees"]["empirical"]["leave_one_out_max"] == written
