"""junit.xml and SARIF: well-formed whatever the run says, and as green or red as the verdict."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dpaudit.reports.machine import render_junit, render_sarif
from dpaudit.results import AuditResult, Finding, Place, Value

Samples = Mapping[str, Callable[[], AuditResult]]


def _cases(result: AuditResult) -> dict[str, ET.Element]:
    return {
        case.get("name") or "": case
        for case in ET.fromstring(render_junit(result)).iter("testcase")
    }


def _sarif(result: AuditResult) -> dict[str, Any]:
    (run,) = json.loads(render_sarif(result))["runs"]
    return dict(run)


# --- JUnit ----------------------------------------------------------------------------------------


def test_junit_parses_and_its_counts_are_true(results: dict[str, AuditResult]) -> None:
    for result in results.values():
        root = ET.fromstring(render_junit(result).encode())
        assert root.tag == "testsuites"
        assert len(list(root.iter("testcase"))) == len(result.checks)
        for suite in (root, *root):
            counted = [
                ("failures", "failure"),
                ("errors", "error"),
                *[("skipped", "skipped")] * (suite is not root),
            ]
            for attribute, tag in counted:
                assert int(suite.get(attribute) or -1) == len(list(suite.iter(tag)))
            assert int(suite.get("tests") or -1) == len(list(suite.iter("testcase")))


def test_public_findings_say_what_is_compared(samples: Samples) -> None:
    checks = tuple(
        check.model_copy(update={"measured": "", "detail": ""})
        for check in samples["failed"]().checks
    )
    public = samples["failed"]().model_copy(update={"audience": "public", "checks": checks})
    for text in (render_junit(public), render_sarif(public)):
        assert "Compares: at most 2.5 nats" in text
        assert "Expected" not in text
    skipped = tuple(check.model_copy(update={"detail": ""}) for check in samples["public"]().checks)
    cases = _cases(samples["public"]().model_copy(update={"checks": skipped}))
    messages = {
        name: found.get("message")
        for name, case in cases.items()
        if (found := case.find("skipped")) is not None
    }
    assert messages == {
        "rebalancing.noise": "Does not apply.",
        "replay.logits": "Not made.",
        "replay.lower-bound": "Not made.",
    }


def test_junit_is_red_where_a_pass_needed_a_check_that_was_not_made(samples: Samples) -> None:
    result = samples["median"]().model_copy(update={"evidence": 3, "verdict": "fail"})
    failure = _cases(result)["replay.logits"].find("failure")
    assert failure is not None
    assert "evidence level 3 was asked for. Run `dpaudit report 'runs/bbc median'" in (
        failure.get("message") or ""
    )
    assert _cases(result)["replay.lower-bound"].find("skipped") is not None


def test_junit_holds_no_character_that_xml_forbids(samples: Samples) -> None:
    text = render_junit(samples["hostile"]())
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", text)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\ufffd" in text


# --- SARIF ----------------------------------------------------------------------------------------


def test_sarif_has_the_structure_of_the_standard(results: dict[str, AuditResult]) -> None:
    for result in results.values():
        log = json.loads(render_sarif(result), parse_constant=pytest.fail)
        assert log.keys() == {"$schema", "version", "runs"}
        assert log["version"] == "2.1.0"
        run = _sarif(result)
        rules = run["tool"]["driver"]["rules"]
        ids = [rule["id"] for rule in rules]
        assert len(set(ids)) == len(ids)
        for rule in rules:
            assert rule["shortDescription"]["text"]
            assert rule["help"]["text"]
        for found in run["results"]:
            assert rules[found["ruleIndex"]]["id"] == found["ruleId"]
            assert (found["kind"], found["level"]) in [("fail", "error"), ("fail", "warning")]
            assert found["message"]["text"]
            (location,) = found["locations"]
            place = location["physicalLocation"]["artifactLocation"]
            assert place["uriBaseId"] in run["originalUriBaseIds"]
            assert not place["uri"].startswith(("/", "file:"))
        (invocation,) = run["invocations"]
        assert invocation["executionSuccessful"] == (result.verdict != "error")
        notes = invocation["toolExecutionNotifications"]
        for note in notes:
            assert note["level"] == "note"
            assert note["message"]["text"].startswith(("Not made", "Does not apply"))
            assert rules[note["associatedRule"]["index"]]["id"] == note["associatedRule"]["id"]
        assert len(run["results"]) + len(notes) == sum(
            check.status != "pass" for check in result.checks
        )


def test_sarif_leads_to_the_named_file_of_the_run(samples: Samples) -> None:
    nested = Finding(code="release.other-line", values={"file": "samples.jsonl", "line": 3})
    named: list[tuple[dict[str, Value], str]] = [
        ({"file": "steps/00000003.zip"}, "steps/00000003.zip"),
        ({"place": Place(batch=3, step=1)}, "steps/00000003.zip"),
        ({"differences": 1, "first": nested}, "samples.jsonl"),
        ({"found": (Finding(code="other.finding"), nested)}, "samples.jsonl"),
        ({"file": "a note?.txt"}, "a%20note%3F.txt"),
        ({"field": "samples.jsonl"}, "run.json"),
        ({"file": "/home/me/run/samples.jsonl"}, "run.json"),
        ({}, "run.json"),
    ]
    for values, uri in named:
        result = samples["failed"]()
        failed = next(check for check in result.checks if check.status == "fail").model_copy(
            update={"values": values}
        )
        (found,) = _sarif(result.model_copy(update={"checks": (failed,)}))["results"]
        assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_sarif_holds_the_verdict_and_no_path_of_the_run(samples: Samples) -> None:
    result = samples["failed"]()
    run = _sarif(result)
    assert run["properties"]["verdict"] == "fail"
    assert run["tool"]["driver"]["version"] == "0.1.0"
    assert result.run.path not in render_sarif(result)
