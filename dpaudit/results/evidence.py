"""The levels of evidence, from the weakest: what the checks of a level rest on."""

from __future__ import annotations

from typing import Final

#: A level's number is its place here.
EVIDENCE_LEVELS: Final = (
    "declared by the run",
    "arithmetic on the record",
    "record and released texts compared",
    "recomputed with the model and the data",
    "tested on actual neighbours",
)
#: The family of the checks that a policy asks for, before the dot of their ids.
POLICY: Final = "policy"
#: The highest level.
HIGHEST: Final = len(EVIDENCE_LEVELS) - 1


def level_meaning(level: int) -> str:
    """Return what checks of a level rest on; a report may come from a later version."""
    return EVIDENCE_LEVELS[level] if 0 <= level <= HIGHEST else "unknown to this version"
