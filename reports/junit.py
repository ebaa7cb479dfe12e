"""junit.xml: the checks as test cases, for whatever shows test results. It is green where the verdict is a pass."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET  # only written here, never parsed

from dpaudit.reports import outline
from dpaudit.reports.text import LABEL_LENGTH, one_line, printable
from dpaudit.reports.wording import evidence
from dpaudit.results import AuditResult, CheckResult

#: XML 1.0 has no way to write these, not even as references; `printable` has shown the others as escapes.
_NO_XML = re.compile("[\ufffe\uffff]")


def render_junit(result: AuditResult) -> str:
    """The whole document: a suite for each family of checks, a case for each check."""
    families: dict[str, list[CheckResult]] = {}
    for check in result.checks:
        families.setdefault(_line(check.id).partition(".")[0], []).append(check)
    needed = {check.id for group in outline.unmade(result) if group.needed for check in group.checks}
    root = ET.Element("testsuites", name="dpaudit")
    for family, checks in families.items():
        suite = ET.SubElement(root, "testsuite", name=family)
        for check in checks:
            _add_case(suite, check, check.id in needed, result)
        _count(suite, [suite])
    _count(root, list(root))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_case(suite: ET.Element, check: CheckResult, needed: bool, result: AuditResult) -> None:
    case = ET.SubElement(suite, "testcase", classname=f"dpaudit.{suite.get('name')}", name=_line(check.id), time="0")
    said = _said(check, result)
    if check.status == "skip":
        why = outline.why_skipped(result, check)
        if needed:
            _add(case, "failure", why, said, "not made")
        else:
            _add(case, "skipped", why, said)
    elif check.status in ("fail", "error"):
        tag = "failure" if check.status == "fail" and check not in outline.causes(result) else "error"
        _add(case, tag, check.title, said, tag)
    elif check.status == "warn":
        ET.SubElement(case, "system-out").text = _text(f"Warning: {said}")


def _add(case: ET.Element, tag: str, message: str, said: str, kind: str = "") -> None:
    found = ET.SubElement(case, tag, {"message": _line(message), **({"type": kind} if kind else {})})
    found.text = _text(said)


def _said(check: CheckResult, result: AuditResult) -> str:
    parts = (*outline.findings(result, check), ("Detail", check.detail))
    said = [check.title, *(f"{name}: {text}" for name, text in parts if text)]
    return "\n".join([*said, f"Evidence: {evidence(check.evidence)}", f"Reference: {check.reference}"])


def _count(element: ET.Element, suites: list[ET.Element]) -> None:
    """Write on `element` how the cases of `suites` came out."""
    cases = [case for suite in suites for case in suite.iter("testcase")]
    element.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(tag) is not None for case in cases)))


def _line(text: str) -> str:
    return _NO_XML.sub("\ufffd", one_line(text, LABEL_LENGTH * 4))


def _text(text: str) -> str:
    return _NO_XML.sub("\ufffd", printable(text))
