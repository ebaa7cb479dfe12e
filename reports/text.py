"""Text from run directories made harmless before any format-specific escaping.

Labels, paths and model names come from whoever made the run. Control characters can drive a
terminal, bidirectional overrides can make a line read as something else, and a label of a megabyte
can bury a report.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Item = TypeVar("_Item")

LABEL_LENGTH, PROSE_LENGTH = 120, 2_000

# Bidirectional controls are format characters (Cf) like the joiners that emoji and Indic scripts
# need; only these go.
_BIDIRECTIONAL = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
#: Characters that drive a terminal or reorder a line, apart from line breaks.
DRIVING = re.compile(f"[\x00-\x09\x0b-\x1f\x7f-\x9f{_BIDIRECTIONAL}]")
_QUOTED = re.compile("(?:Run )?`[^`]*`")
_LINE_SEPARATORS = re.compile("[\r\x85\u2028\u2029]")
#: Controls and lone surrogates, apart from tabs and line breaks.
_UNPRINTABLE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{_BIDIRECTIONAL}]")


def printable(text: object, limit: int = PROSE_LENGTH) -> str:
    """Return text with control characters shown as escapes; line breaks and tabs are kept.

    Cut to `limit` characters where that is shorter with what then stands in the place of the rest.
    """
    whole = str(text)
    if len(whole) <= limit and whole.isprintable():
        return whole
    cut = len(whole) - limit
    rest = f"… ({counted(cut, 'more character')})"
    if cut <= len(rest):
        limit, rest = len(whole), ""
    text = _LINE_SEPARATORS.sub("\n", whole[:limit])
    return (
        _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
        + rest
    )


def one_line(text: object, limit: int = PROSE_LENGTH) -> str:
    """Return text as `printable` does, with every run of white space turned into one space."""
    return " ".join(printable(text, limit).split())


def in_a_line(path: object) -> str:
    """Return a file's name in a line, as it is but for what drives a terminal or reorders it."""
    return printable(path).replace("\n", "\\n")


def wrapped(text: str, width: int, indent: str = "") -> str:
    """Return text in lines of this width, without breaking commands; later ones are indented."""
    held = _QUOTED.sub(lambda found: found[0].replace(" ", "\xa0"), text)
    filled = textwrap.fill(
        held, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
    return filled.replace("\xa0", " ")


def fitting(sentences: Sequence[object], elsewhere: str, fits: Callable[[str], bool]) -> str:
    """Return as many sentences as fit, at least one, and how many more are `elsewhere`."""
    for count in range(len(sentences), 0, -1):
        more = f"{len(sentences) - count:,} more: {elsewhere}." if count < len(sentences) else ""
        said = " ".join(filter(None, (*map(one_line, sentences[:count]), more)))
        if count == 1 or fits(said):
            return said
    return ""


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number and noun: `1 batch`, `1,000 batches`; `many` defaults to `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    """Return what goes by the same key, in a list for each, in the order of the pairs."""
    groups: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def span(seconds: float) -> str:
    """Return a time in its largest unit: `3 min`."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1, round(seconds))} s"
