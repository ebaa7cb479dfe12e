"""A remedy that changes rows, records or users' data keeps the claim true of the data before it.

A rule that looks at one row, or at one user's rows, alone is sound; one
that looks at other people's is not (docs/sharp-edges.md, "Cleaning across users").
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import dpaudit

SOURCES = Path(dpaudit.__file__).parent
#: Imperatives that change data, and what they change.
CHANGES = re.compile(
    r"(?:^|[.:;,] |\bor |\band )(?:do not )?"
    r"(?:keep|drop|remove|delete|thin|leave out|take out|fill in|mend|merge"
    r"|convert|clean|deduplicate|exchange|replace|balance|sort|shuffle)"
    r"\b[^.;]*\b(?:rows?|records?|users?|texts?|labels?)\b",
    re.IGNORECASE,
)
#: What makes such a remedy sound, in its own words.
SOUND = (
    "each by itself",
    "each by what it says itself",
    "user's alone",
    "records alone",
    "would void the claim",
)
#: Others that match, and why they are sound.
ELSE = {
    "Keep every context's sum from a batch's first token": "of a generator's code, not of data",
    "Leave out the section, and give batching.batches_per_label": "of a config's section",
    "Keep fewer, or give more public texts": "of centres and public texts",
    "Convert the column to text": "of every row of a column, by its value alone",
    "Mend it: a text that holds": "of a file's quotes: the rows are what they were",
    "Replace all of these texts by others that contain no record": "of public texts",
    "For readers outside, leave out all": "of a report",
    "Mend the row, or take it out.": "of the one row of an evaluation that is named, by itself",
    "Keep it elsewhere, as private as the records.": "of a file's place",
    "Name one of the files, or keep the records in": "of a file's place",
    "Leave out such texts, or --label.": "of released texts, by the labels of all records",
    "Leave out --label: a user is one unit": "of an option",
    "Mend the data set, or write its rows to a "
    "file": "of a class number that the data set does not name",
}


def messages() -> Iterator[tuple[str, str]]:
    """Every text in the code that is no docstring, by file and line."""
    for file in sorted(SOURCES.rglob("*.py")) + sorted((SOURCES / "generation").rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        holders = (ast.Module, ast.ClassDef, ast.FunctionDef)
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, holders) and node.body and isinstance(node.body[0], ast.Expr)
        }
        parts = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                said = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "{}"
                    for part in node.values
                )
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in docs | parts
            ):
                said = node.value
            else:
                continue
            yield f"{file.relative_to(SOURCES)}:{node.lineno}", said


def test_remedies_that_change_data_look_at_one_row_or_one_user_alone() -> None:
    touching = {place: said for place, said in messages() if CHANGES.search(said)}
    assert sum(any(words in said for words in SOUND) for said in touching.values()) >= 5, (
        "the pattern finds none"
    )
    unsound = {
        place: said
        for place, said in touching.items()
        if not any(words in said for words in SOUND)
        and not any(said.strip().startswith(known) for known in ELSE)
    }
    assert unsound == {}
