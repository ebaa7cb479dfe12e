"""SARIF 2.1.0: what the checks found, for code scanning, where every result is an alert whatever its kind.

Only what failed, what warned and what a pass lacks are results; the other skips are notifications of the tool.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dpaudit.reports import outline
from dpaudit.reports.text import LABEL_LENGTH, one_line, printable
from dpaudit.reports.wording import evidence
from dpaudit.results import AuditResult, CheckResult

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
#: Stands for the run directory, whose own path is private.
BASE = "RUN_DIR"

_FILE = re.compile(r"\b(?:steps/\d{8}\.zip|samples\.jsonl|tokenizer\.json|run\.json)(?![\w.])")
_MANIFEST = "run.json"


def render_sarif(result: AuditResult) -> str:
    """The log as JSON text: one run, a rule for each check, a result for each that failed, warned or is lacking."""
    needed = {check.id for group in outline.unmade(result) if group.needed for check in group.checks}
    rules = {check.id: _rule(check) for check in result.checks}
    places = {check_id: place for place, check_id in enumerate(rules)}
    run = {
        "tool": {"driver": {"name": "dpaudit", **_version(result), "rules": list(rules.values())}},
        "originalUriBaseIds": {BASE: {"description": {"text": "The run directory."}}},
        "invocations": [
            {
                "executionSuccessful": result.verdict != "error",
                "toolExecutionNotifications": [
                    _notification(check, places[check.id], result)
                    for check in result.checks
                    if check.status == "skip" and check.id not in needed
                ],
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
        },
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _version(result: AuditResult) -> dict[str, str]:
    version = result.run.get("dpaudit")
    return {"version": one_line(version, LABEL_LENGTH)} if version else {}


def _rule(check: CheckResult) -> dict[str, Any]:
    said = f"{evidence(check.evidence)}. Reference: {one_line(check.reference)}. `dpaudit checks ID` explains a check."
    return {
        "id": one_line(check.id, LABEL_LENGTH),
        "shortDescription": {"text": one_line(check.title)},
        "help": {"text": said},
        "properties": {"evidence": check.evidence},
    }


def _notification(check: CheckResult, place: int, result: AuditResult) -> dict[str, Any]:
    return {
        "level": "note",
        "message": {"text": _message(check, result)},
        "associatedRule": {"id": one_line(check.id, LABEL_LENGTH), "index": place},
    }


def _outcome(check: CheckResult, result: AuditResult) -> dict[str, Any]:
    check_id = one_line(check.id, LABEL_LENGTH)
    return {
        "ruleId": check_id,
        "kind": "fail",
        "level": "warning" if check.status == "warn" else "error",
        "message": {"text": _message(check, result)},
        "locations": [_location(check)],
        # The same finding of the next audit is then the same alert.
        "partialFingerprints": {"dpauditCheck/v1": check_id},
    }


def _message(check: CheckResult, result: AuditResult) -> str:
    found = [f"{name}: {text}" for name, text in outline.findings(result, check)]
    said = [check.title, *found, check.detail]
    if check.status == "skip":  # its title states the good outcome, which nobody saw
        said = [outline.why_skipped(result, check), f"Check: {check.title}", *found]
    return "\n".join(printable(text) for text in said if text)


def _location(check: CheckResult) -> dict[str, Any]:
    """The file that the check names, or else the manifest; relative to the run directory."""
    named = _FILE.search(f"{check.measured}\n{check.detail}")
    file = named.group() if named else _MANIFEST
    place: dict[str, Any] = {"artifactLocation": {"uri": file, "uriBaseId": BASE}}
    if not file.endswith(".zip"):
        place["region"] = {"startLine": 1}
    return {"physicalLocation": place}
