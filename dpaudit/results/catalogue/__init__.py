"""The catalogue: every word that a reader of a result sees, by the code of the finding.

Checks, caveats and verdicts are codes with values. This package holds the sentences for them, as
data, and renders them. Nothing else compares, searches or cuts sentences.
"""

from dpaudit.results.catalogue.entries import (
    Entry,
    Sentence,
    Wording,
    catalogue,
    entry,
    require_words,
    wording,
)
from dpaudit.results.catalogue.rendering import is_public, message, render, sentence

__all__ = [
    "Entry",
    "Sentence",
    "Wording",
    "catalogue",
    "entry",
    "is_public",
    "message",
    "render",
    "require_words",
    "sentence",
    "wording",
]
