"""Settings that a report for readers outside would publish, or that act on every text: which of them tell something."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: The most pairs of a label and a text that are tried as records: a second or two of hashing.
MOST_PAIRS = 1 << 20
#: The longest text that may be anybody's: a word of a setting, or a label. A record may be that very word, and to say
#: so would tell of it; a longer one is no coincidence.
LONGEST_WORD = 32
LONGEST_LABEL = 64
LABELS = "batching.labels"

#: Where machines keep files: r/science/ and /yes/ are none, as a template or a mark may have them.
_ROOTS = (
    "Users|Volumes|afs|app|cluster|content|data|etc|export|gpfs|home|lustre|media|mnt|net|nfs|opt|private|proc|project"
    "|projects|root|run|scratch|share|srv|storage|tmp|usr|var|work|workspace"
)
PATH = re.compile(
    rf"""(?:^|[\s"'=(,;:])(?:/(?:{_ROOTS})\d*/|/(?:[\w.~-]+/)+[\w-]+\.[A-Za-z]\w|~\w*/|[A-Za-z]:[\\/]|\\\\\w)|file:/"""
)


def acting_texts(template: str | None, examples: Iterable[str], banned: Iterable[str]) -> list[tuple[str, str]]:
    """Texts that every prompt or text follows from, with their fields: as they are, and as white space hides them.

    A template is taken as a whole and by its lines.

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
    """Whether a text may be a record's by coincidence: one word, or a label."""
    if field.startswith(LABELS):
        return len(text) <= LONGEST_LABEL
    return len(text) <= LONGEST_WORD and len(text.split()) < 2
