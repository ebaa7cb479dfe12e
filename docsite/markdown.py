"""Plain words as Markdown."""

from __future__ import annotations

import re


def escaped(text: str) -> str:
    """Words as one line of Markdown that fits a table's cell. Code between backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"[\\*_\[\]|]", r"\\\g<0>", parts[i]).replace("<", "&lt;")
    return "".join(parts)


def slug(text: str) -> str:
    """A text as an anchor."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
