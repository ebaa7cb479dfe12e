"""JUnit and SARIF: the checks for programs that show test results or alerts of code scanning.

junit.xml has a test case for each check, and is green where the verdict is a pass. SARIF 2.1.0 is
for code scanning, where every result is an alert whatever its kind: only what failed, what warned
and what a pass lacks are results; the other skips are notifications of the tool.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET  # only written here, never parsed
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from dpaudit.reports import findings
from dpaudit.reports.text import LABEL_LENGTH, grouped, one_line, printable
from dpaudit.reports.wording import evidence
from dpaudit.results import AuditResult, CheckResult, Finding, Place, Value, finite_or_text

#: XML 1.0 has no way to write these, not even as references; `printable` has shown the others as
#: escapes.
_NO_XML = re.compile("[\ufffe\uffff]")


def render_junit(result: AuditResult) -> str:
    """Return the whole document: a suite for each family of checks, a case for each check."""
    families = grouped((_line(check.id).partition(".")[0], check) for check in result.checks)
    needed = findings.needed(result)
    root = ET.Element("testsuites", name="dpaudit")
    for family, checks in families.items():
        suite = ET.SubElement(root, "testsuite", name=family)
        for check in checks:
            _add_case(suite, check, check.id in needed, result)
    for counted in (root, *root):
        cases = list(counted.iter("testcase"))
        counted.set("tests", str(len(cases)))
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            if counted is root and name == "skipped":
                # the schema of Jenkins' xUnit plugin has it of a suite alone, and refuses the whole
                # file
                continue
            counted.set(name, str(sum(case.find(tag) is not None for case in cases)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_case(suite: ET.Element, check: CheckResult, needed: bool, result: AuditResult) -> None:
    case = ET.SubElement(
        suite, "testcase", classname=f"dpaudit.{suite.get('name')}", name=_line(check.id), time="0"
    )
    parts = (*findings.compared(result, check), ("Detail", check.detail))
    found = [check.title, *(f"{name}: {text}" for name, text in parts if text)]
    said = "\n".join(
        [*found, f"Evidence: {evidence(check.evidence)}", f"Reference: {check.reference}"]
    )
    if check.status == "skip":
        why = findings.why_skipped(result, check)
        if needed:
            _add(case, "failure", f"Not verified. {why}", said, "not verified")
        else:
            _add(case, "skipped", why, said)
    elif check.status in ("fail", "error"):
        tag = (
            "failure"
            if check.status == "fail" and check not in findings.causes(result)
            else "error"
        )
        _add(case, tag, check.title, said, tag)
    elif check.status == "warn":
        ET.SubElement(case, "system-out").text = _text(f"Warning: {said}")


def _add(case: ET.Element, tag: str, message: str, said: str, kind: str = "") -> None:
    found = ET.SubElement(
        case, tag, {"message": _line(message), **({"type": kind} if kind else {})}
    )
    found.text = _text(said)


def _line(text: str) -> str:
    return _NO_XML.sub("\ufffd", one_line(text, LABEL_LENGTH * 4))


def _text(text: str) -> str:
    return _NO_XML.sub("\ufffd", printable(text))


#: Characters of a rule's descriptions: GitHub takes 1,024, and what is cut off is counted in words
#: behind it.
_MOST_DESCRIPTION = 960
#: Stands for the run directory, whose own path is private.
BASE = "RUN_DIR"


def render_sarif(result: AuditResult) -> str:
    """Return the log as JSON: a rule for each check, a result for each that is no pass."""
    needed = findings.needed(result)
    explained = "`dpaudit checks ID` explains a check."
    rules = {
        check.id: {
            "id": one_line(check.id, LABEL_LENGTH),
            "shortDescription": {"text": one_line(check.title, _MOST_DESCRIPTION)},
            "fullDescription": {
                "text": one_line(f"{check.title}. {check.why}".strip(), _MOST_DESCRIPTION)
            },
            "help": {
                "text": f"{evidence(check.evidence)}. Reference: {one_line(check.reference)}. "
                f"{explained}"
            },
            "properties": {"evidence": check.evidence},
        }
        for check in result.checks
    }
    places = {check_id: place for place, check_id in enumerate(rules)}
    named = {"name": "dpaudit", "version": one_line(result.run.dpaudit, LABEL_LENGTH)}
    notifications = [
        {
            "level": "note",
            "message": {"text": _message(check, result)},
            "associatedRule": {"id": one_line(check.id, LABEL_LENGTH), "index": places[check.id]},
        }
        for check in result.checks
        if check.status == "skip" and check.id not in needed
    ]
    run = {
        "tool": {"driver": {**named, "rules": list(rules.values())}},
        "originalUriBaseIds": {BASE: {"description": {"text": "The run directory."}}},
        "invocations": [
            {
                "executionSuccessful": result.verdict != "error",
                "toolExecutionNotifications": notifications,
            }
        ],
        "results": [
            {**_outcome(check, result), "ruleIndex": places[check.id]}
            for check in result.checks
            if check.status in ("fail", "error", "warn") or check.id in needed
        ],
        "properties": {
            "verdict": result.verdict,
            "evidence": result.evidence,
            "audience": result.audience,
            "guarantee": one_line(result.guarantee),
            **_claimed(result),
        },
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(log, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _claimed(result: AuditResult) -> dict[str, Any]:
    """Return the claim's epsilons, each by its level; nothing without a claim."""
    if (claim := result.claim) is None:
        return {}
    if claim.epsilon is None:
        return {claim.terms.figures[0]: finite_or_text(claim.stated)}
    return {"releaseEpsilon": finite_or_text(claim.epsilon)} | (
        {} if claim.batch_epsilon is None else {"batchEpsilon": finite_or_text(claim.batch_epsilon)}
    )


def _outcome(check: CheckResult, result: AuditResult) -> dict[str, Any]:
    check_id = one_line(check.id, LABEL_LENGTH)
    named = (_files_in(found) for found in (check.values, *(note.values for note in check.notes)))
    file = quote(next(chain.from_iterable(named), "run.json"))
    # GitHub asks for a region of every file, also of one that has no lines.
    region = {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1}
    place = {"artifactLocation": {"uri": file, "uriBaseId": BASE}, "region": region}
    return {
        "ruleId": check_id,
        "kind": "fail",
        "level": "error"
        if check.status in ("fail", "error")
        else "warning",  # so is what was not made
        "message": {"text": _message(check, result)},
        "locations": [{"physicalLocation": place}],
        # The same finding of the next audit is then the same alert: GitHub looks at the first
        # alone.
        "partialFingerprints": {
            "primaryLocationLineHash": f"{check_id}:1",
            "dpauditCheck/v1": check_id,
        },
    }


def _files_in(values: Mapping[str, Value]) -> Iterator[str]:
    """Yield the files of the run that values name, or whose places they are."""
    for name, value in values.items():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Finding):
                yield from _files_in(each.values)
            elif isinstance(each, Place):
                yield f"steps/{each.batch:08d}.zip"
            elif name == "file" and isinstance(each, str) and not PurePath(each).is_absolute():
                yield each


def _message(check: CheckResult, result: AuditResult) -> str:
    found = [f"{name}: {text}" for name, text in findings.compared(result, check)]
    said = [check.title, *found, check.detail]
    if check.status == "skip":  # its title states the good outcome, which nobody saw
        said = [findings.why_skipped(result, check), f"Check: {check.title}", *found]
    return "\n".join(printable(text) for text in said if text)
