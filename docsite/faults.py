"""docs/faults.md, which the tests make: what it shows of each check, and its rows as places to link to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from docsite.markdown import slug
from docsite.repository import ROOT

PAGE = "faults.md"
_ROW = re.compile(r"^\| (?P<fault>[^|]+) \| (?P<checks>`[^|]+`) \| (?P<message>.*) \|$", re.MULTILINE)
_CHECK = re.compile(r"`([a-z.-]+)`")


@dataclass(frozen=True)
class Fault:
    """A fault that the tests plant, and the checks that fail then."""

    name: str
    checks: tuple[str, ...]

    @property
    def anchor(self) -> str:
        """Of its row."""
        return f"fault-{slug(self.name)}"


def faults_of(check: str) -> list[Fault]:
    """The faults that a check finds, first those that few others find."""
    found = [fault for fault in _faults() if check in fault.checks]
    return sorted(found, key=lambda fault: len(fault.checks))


def with_links(markdown: str) -> str:
    """The page with an anchor for each fault, and each check as a link to the catalogue."""

    def linked(match: re.Match[str]) -> str:
        checks = _CHECK.sub(r"[`\1`](reference/checks.md#\1)", match["checks"])
        return f"| {match['fault']} {{: #{_fault(match).anchor} }} | {checks} | {match['message']} |"

    return _ROW.sub(linked, markdown)


def _faults() -> Iterator[Fault]:
    for match in _ROW.finditer((ROOT / "docs" / PAGE).read_text(encoding="utf-8")):
        yield _fault(match)


def _fault(match: re.Match[str]) -> Fault:
    return Fault(match["fault"], tuple(_CHECK.findall(match["checks"])))
