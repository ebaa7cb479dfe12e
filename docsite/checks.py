"""The catalogue of checks as a page, and the page of faults, which tests make, with links to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from dpaudit.auditing.checks.registry import listed
from dpaudit.results.evidence import EVIDENCE_LEVELS

#: Planted faults that a check's section names.
_MOST_FAULTS = 3
_ROW = re.compile(r"^\| (?P<checks>`[^|]+`) \| (?P<faults>[^|]+) \|$", re.MULTILINE)
_CHECK = re.compile(r"`([a-z.-]+)`")
#: Ends a row that does not name all of its faults.
_MORE = re.compile(r"(\d+) more")
_ABOUT = """\
# Checks

What an audit checks, family by family, in the order of reports; `dpaudit checks` prints the same. What a check rests
on is its evidence:

| level | evidence |
|---|---|
{ladder}

A run passes when no check fails, and none up to the level that was asked for (`--evidence`, 2 unless told otherwise) is
left out though it is about the run. Levels 3 and 4 need [a replay](../replay.md).

"""  # noqa: E501


def catalogue(docs: Path) -> str:
    """Return the page, with the faults that tests show each check on.

    `docs` holds the documents that checks refer to.
    """
    rows = _ROW.findall((docs / "reference/faults.md").read_text(encoding="utf-8"))
    faults = [
        (fault, _CHECK.findall(checks)) for checks, named in rows for fault in named.split("; ")
    ]
    page = _ABOUT.format(
        ladder="\n".join(f"| {level} | {said} |" for level, said in enumerate(EVIDENCE_LEVELS))
    )
    for family, entries in groupby(listed(), key=lambda row: str(row["id"]).split(".")[0]):
        page += f"## {family} {{: #{family} }}\n\n"
        for row in entries:
            found = [(fault, checks) for fault, checks in faults if row["id"] in checks]
            said = {
                "Compares": escaped(str(row["compares"])),
                "Evidence": f"{row['evidence']}, {EVIDENCE_LEVELS[int(row['evidence'])]}",
                "When it fails": escaped(f"{row['fails']}."),
                "Why it matters": escaped(str(row["why"])),
                "What to do": escaped(str(row["remedy"])),
                "Reference": "".join(_linked(str(row["reference"]), docs)),
                "Shown on": _shown_on(found),
            }
            page += f"### {row['id']} {{: #{row['id']} }}\n\n{escaped(str(row['title']))}.\n\n"
            page += "".join(f"- **{name}**: {text}\n" for name, text in said.items() if text) + "\n"
    return page


def with_links_to_checks(markdown: str) -> str:
    """Give each row of the page of faults an anchor, and link each check to the catalogue."""

    def linked(match: re.Match[str]) -> str:
        checks = _CHECK.sub(r"[`\1`](checks.md#\1)", match["checks"])
        anchor = _anchor(_CHECK.findall(match["checks"]))
        return f"| {checks} {{: #{anchor} }} | {match['faults']} |"

    return _ROW.sub(linked, markdown)


def escaped(text: str) -> str:
    """Return plain words as one line of Markdown, with code between backticks unchanged."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    parts[::2] = [
        re.sub(r"[\\*_\[\]|]", r"\\\g<0>", part).replace("<", "&lt;") for part in parts[::2]
    ]
    return "".join(parts)


def _anchor(checks: list[str]) -> str:
    return "fails-" + "-".join(checks).replace(".", "-")


def _shown_on(found: list[tuple[str, list[str]]]) -> str:
    """Put the faults that few other checks find first."""
    unnamed = [int(match[1]) for fault, _ in found if (match := _MORE.fullmatch(fault))]
    names = [(fault, checks) for fault, checks in found if not _MORE.fullmatch(fault)]
    first = sorted(names, key=lambda fault: len(fault[1]))[:_MOST_FAULTS]
    named = "; ".join(f"[{fault}](faults.md#{_anchor(checks)})" for fault, checks in first)
    left = sum(unnamed) + len(names) - len(first)
    more = f" and {left} more" if left else ""
    return f"runs with a planted fault: {named}{more}" if found else ""


def _linked(reference: str, docs: Path) -> Iterator[str]:
    """Yield a check's reference, with links to the documentation by its pages' titles."""
    for i, part in enumerate(re.split(r"docs/([\w-]+\.md(?:#[\w-]+)?)", reference)):
        title = (
            (docs / part.split("#")[0]).read_text(encoding="utf-8").split("\n", 1)[0]
            if i % 2
            else ""
        )
        yield f"[{title.removeprefix('# ')}](../{part})" if i % 2 else part
