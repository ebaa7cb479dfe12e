"""The levels of evidence, from the weakest: what a level's checks look at.

It is told in the words of those who say it.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Level(NamedTuple):
    """One level; its number is its place in `EVIDENCE_LEVELS`.

    Attributes:
        looks_at: what a check of this level looks at, in the few words that a verdict has room for.
        rests_on: what a passed check of this level rests on, as reports say it.
        compares: how a check of this level comes about, as the catalogue of checks says it.
    """

    looks_at: str
    rests_on: str
    compares: str


EVIDENCE_LEVELS: Final = (
    Level(
        "what the run declares",
        "taken on trust from what the run says about itself",
        "declared in the manifest",
    ),
    Level(
        "the record's arithmetic",
        "worked out from the recorded numbers alone",
        "arithmetic on the record",
    ),
    Level(
        "record and release",
        "record and released text compared with each other",
        "record and release held against each other",
    ),
    Level(
        "model and data",
        "repeated with the model and the private data",
        "recomputed with the model and the data",
    ),
    Level(
        "actual neighbours",
        "tried on actual neighbouring data sets",
        "tested against actual neighbours",
    ),
)
#: The highest level.
HIGHEST: Final = len(EVIDENCE_LEVELS) - 1
