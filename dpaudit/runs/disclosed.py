"""Settings that a report for readers outside would publish, or that every text follows from."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: The most pairs of a label and a text that are tried as records: a second or two of hashing.
MOST_PAIRS = 1 << 20
#: The longest text that may be anybody's: a word of a setting, or a label. A record may be that
#: very word, and a finding would give it away; a longer one is no coincidence.
LONGEST_WORD = 32
LONGEST_LABEL = 64
LABELS = "data.labels"

#: The usual folders of machines: r/science/ and /yes/ are none; a template may have these.
_ROOTS = (
    "Users|Volumes|afs|app|cluster|content|data|etc|export|gpfs|home|lustre|media|mnt|net|nfs|opt|private|proc|project"
    "|projects|root|run|scratch|share|srv|storage|tmp|usr|var|work|workspace"
)
PATH = re.compile(
    rf"""(?:^|[\s"'=(,;:])(?:/(?:{_ROOTS})\d*/|/(?:[\w.~-]+/)+[\w-]+\.[A-Za-z]\w|~\w*/|[A-Za-z]:[\\/]|\\\\\w)|file:/"""
)


def acting_texts(
    template: str | None, examples: Iterable[str], banned: Iterable[str]
) -> list[tuple[str, str]]:
    """Return the texts that every prompt or text follows from, with their fields.

    Each is returned unchanged, and as white space hides it. A template is taken as a whole and by
    its lines.

    Args:
        template: of the user's own; None for one of the paper's.
        examples: the public ones, of all labels.
        banned: what no text may hold.
    """
    whole = template or ""
    parts = {
        "prompt.text": [whole, *whole.split("\n")],
        "prompt.public_examples": examples,
        "decoding.banned_words": banned,
    }
    forms = {
        (field, form)
        for field, texts in parts.items()
        for text in texts
        for form in (text, text.strip(), " ".join(text.split()))
    }
    return sorted((field, form) for field, form in forms if form)


def is_anybodys(field: str, text: str) -> bool:
    """Return whether a text may be a record's by coincidence: one word, or a label."""
    if field.startswith(LABELS):
        return len(text) <= LONGEST_LABEL
    return len(text) <= LONGEST_WORD and len(text.split()) < 2
