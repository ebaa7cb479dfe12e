"""junit.xml and SARIF: well-formed whatever the run says, and as green or red as the verdict."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from dpaudit.reports.junit import render_junit
from dpaudit.reports.sarif import render_sarif

from dpaudit.results import AuditResult

Samples = Mapping[str, Callable[[], AuditResult]]


def _cases(result: AuditResult) -> dict[str, ET.Element]:
    return {case.get("name") or "": case for case in ET.fromstring(render_junit(result)).iter("testcase")}


def _sarif(result: AuditResult) -> dict[str, Any]:
    (run,) = json.loads(render_sarif(result))["runs"]
    return dict(run)


# --- JUnit -----------------------------------------------------------------------------------------------------------


def test_junit_parses_and_its_counts_are_true(result: AuditResult) -> None:
    root = ET.fromstring(render_junit(result).encode())
    assert root.tag == "testsuites"
    assert len(list(root.iter("testcase"))) == len(result.checks)
    for suite in (root, *root):
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(attribute) or -1) == len(list(suite.iter(tag)))
        assert int(suite.get("tests") or -1) == len(list(suite.iter("testcase")))


def test_junit_says_what_failed_and_what_would_make_the_rest(samples: Samples) -> None:
    cases = _cases(samples["failed"]())
    failure = cases["claim.epsilon"].find("failure")
    assert failure is not None
    assert failure.get("message") == "The run costs more than it claims"
    for said in ("Measured: 2.413 nats", "Expected: at most 2.5 nats", "Detail: Claim at least 2.5"):
        assert said in (failure.text or "")
    assert cases["record.aggregate"].find("error") is not None
    assert "3 values at the clip" in (cases["record.range"].findtext("system-out") or "")
    skipped = _cases(samples["median"]())["replay.logits"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "Not made. Run `dpaudit report RUN_DIR --data FILE --evidence 4`."
    skipped = _cases(samples["median"]())["rebalancing.noise"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "Not about this run. No counts were noised."


def test_junit_has_an_error_where_the_run_cannot_be_read(samples: Samples) -> None:
    case = _cases(samples["unreadable"]())["integrity.format"]
    assert case.find("error") is not None
    assert case.find("failure") is None


def test_public_findings_say_what_is_compared(samples: Samples) -> None:
    checks = tuple(check.model_copy(update={"measured": "", "detail": ""}) for check in samples["failed"]().checks)
    public = samples["failed"]().model_copy(update={"audience": "public", "checks": checks})
    for text in (render_junit(public), render_sarif(public)):
        assert "Compares: at most 2.5 nats" in text
        assert "Expected" not in text
    skipped = tuple(check.model_copy(update={"detail": ""}) for check in samples["public"]().checks)
    cases = _cases(samples["public"]().model_copy(update={"checks": skipped}))
    messages = {
        name: found.get("message") for name, case in cases.items() if (found := case.find("skipped")) is not None
    }
    assert messages == {
        "rebalancing.noise": "Not about this run.",
        "replay.logits": "Not made.",
        "replay.lower-bound": "Not made.",
    }


def test_junit_is_red_where_a_pass_needed_a_check_that_was_not_made(samples: Samples) -> None:
    result = samples["median"]().model_copy(update={"evidence": 3, "verdict": "fail"})
    failure = _cases(result)["replay.logits"].find("failure")
    assert failure is not None
    assert "evidence level 3 was asked for. Run `dpaudit report RUN_DIR" in (failure.get("message") or "")
    assert _cases(result)["replay.lower-bound"].find("skipped") is not None


def test_junit_holds_no_character_that_xml_forbids(samples: Samples) -> None:
    text = render_junit(samples["hostile"]())
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", text)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\ufffd" in text


# --- SARIF -----------------------------------------------------------------------------------------------------------


def test_sarif_has_the_structure_of_the_standard(result: AuditResult) -> None:
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
        assert note["message"]["text"].startswith("Not ")
        assert rules[note["associatedRule"]["index"]]["id"] == note["associatedRule"]["id"]
    assert len(run["results"]) + len(notes) == sum(check.status != "pass" for check in result.checks)


def test_sarif_tells_failures_from_warnings_and_skips(samples: Samples) -> None:
    found = {each["ruleId"]: (each["kind"], each["level"]) for each in _sarif(samples["failed"]())["results"]}
    assert found == {
        "record.range": ("fail", "warning"),
        "record.aggregate": ("fail", "error"),
        "claim.epsilon": ("fail", "error"),
        "release.text": ("fail", "error"),  # needed for a pass
    }
    (lacking,) = [each for each in _sarif(samples["failed"]())["results"] if each["ruleId"] == "release.text"]
    assert lacking["message"]["text"].startswith("Not made, and evidence level 2 was asked for. The tokenizer is")


def test_sarif_has_no_alert_for_what_a_pass_does_not_need(samples: Samples) -> None:
    run = _sarif(samples["median"]())
    assert run["results"] == []
    notes = run["invocations"][0]["toolExecutionNotifications"]
    said = {note["associatedRule"]["id"]: note["message"]["text"].partition("\n")[0] for note in notes}
    assert said == {
        "rebalancing.noise": "Not about this run. No counts were noised.",
        "replay.logits": "Not made. Run `dpaudit report RUN_DIR --data FILE --evidence 4`.",
        "replay.lower-bound": "Not made. Run `dpaudit report RUN_DIR --data FILE --evidence 4`.",
    }


@pytest.mark.parametrize(
    ("measured", "uri"),
    [
        ("/home/me/run/steps/00000003.zip is cut short", "steps/00000003.zip"),
        ("line 3 of samples.jsonl is not the one that the record implies", "samples.jsonl"),
        ("nothing", "run.json"),
    ],
)
def test_sarif_leads_to_the_named_file_of_the_run(samples: Samples, measured: str, uri: str) -> None:
    result = samples["failed"]()
    failed = next(check for check in result.checks if check.status == "fail").model_copy(update={"measured": measured})
    (found,) = _sarif(result.model_copy(update={"checks": (failed,)}))["results"]
    assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_sarif_holds_the_verdict_and_no_path_of_the_run(samples: Samples) -> None:
    result = samples["failed"]()
    run = _sarif(result)
    assert run["properties"]["verdict"] == "fail"
    assert run["tool"]["driver"]["version"] == "0.1.0"
    assert result.run["path"] not in render_sarif(result)
