"""The catalogue in words: what `dpaudit checks` prints."""

from __future__ import annotations

from collections.abc import Iterator

from dpaudit.checks.registry import About, registered
from dpaudit.results.evidence import EVIDENCE_LEVELS


def listed() -> list[dict[str, str | int]]:
    """Every check of the catalogue, in its order."""
    return [_row(check.about) for check in registered()]


def lines(row: dict[str, str | int]) -> Iterator[str]:
    """One check as lines of text."""
    yield str(row["title"])
    for name in ("id", "evidence", "compares", "fails", "why", "remedy", "reference"):
        if row.get(name) not in (None, ""):
            shown = f"{row[name]}, {EVIDENCE_LEVELS[int(row[name])].compares}" if name == "evidence" else row[name]
            yield f"  {name:<10}{shown}"


def _row(about: About) -> dict[str, str | int]:
    return {
        "id": about.id,
        "title": about.title,
        "evidence": about.evidence,
        "compares": about.compares,
        "fails": about.failed,
        "why": about.why,
        "remedy": about.remedy,
        "reference": about.reference,
    }
