"""Texts as sequences of words or characters that can be compared, with their places.

Case, compatibility forms (full-width letters, ligatures), composition of accents, characters that
nobody sees, spaces and punctuation do not count.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Literal, NamedTuple, TypeAlias

import regex

MeasureName: TypeAlias = Literal["words", "characters"]

_INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}+")
_CHUNK = regex.compile(r"\s+|\S+")
_GRAPHEME = regex.compile(r"\X")
#: `re` takes a vowel sign of Hindi for the end of a word; `regex` does not.
_WORD = regex.compile(r"\w+")
#: The same for ASCII, three times as fast.
_ASCII_WORD = re.compile(r"[0-9a-z_]+")
_CHARACTER = regex.compile(r"\w")


class Measure(NamedTuple):
    """What is counted in texts, and the lengths that matter.

    Attributes:
        runs: the lengths, in words or characters, at which a unit counts as named.
        gram: the length of the short pieces that show an edited copy.
        span: the shortest run that is listed.
    """

    name: MeasureName
    runs: tuple[int, ...]
    gram: int
    span: int

    def split(self, text: str) -> list[str]:
        """Return the text's words, or the characters of its words, normalised."""
        return words(text) if self.name == "words" else list("".join(words(text)))

    def places(self, text: str) -> list[tuple[int, int]]:
        """Return where each word or character stands: [start, end) in characters of `text`.

        Normalisation may take several characters together ("e" and an accent) or several words
        from one (the sign of "care of"): these then have one place.
        """
        pattern = _WORD if self.name == "words" else _CHARACTER
        matches = pattern.finditer(normalized(text))
        if text.isascii():
            return [match.span() for match in matches]
        pieces = _pieces(text)
        ends = [0, *accumulate(map(len, pieces))]
        normal = [0, *accumulate(len(normalized(piece)) for piece in pieces)]
        return [
            (
                ends[bisect_right(normal, match.start()) - 1],
                ends[bisect_left(normal, match.end())],
            )
            for match in matches
        ]


#: A word has some four letters, so the lengths in characters are four times those in words.
WORDS = Measure("words", (6, 8, 10, 12, 16), 3, 8)
#: For scripts without spaces, such as Chinese or Thai.
CHARACTERS = Measure("characters", (24, 32, 40, 48, 64), 12, 32)
MEASURES = {measure.name: measure for measure in (WORDS, CHARACTERS)}


def normalized(text: str) -> str:
    """Return the text in NFKC, without case (Unicode's casefold) and invisible characters."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", folded))


def words(text: str) -> list[str]:
    r"""Return the words of the normalised text, `\w+` of Unicode."""
    normal = normalized(text)
    return (_ASCII_WORD if normal.isascii() else _WORD).findall(normal)


def _pieces(text: str) -> list[str]:
    """Cut a text so that the normalised pieces, joined, are the normalised text.

    Each normalised character then comes from its piece. Pieces are as small as graphemes, but for
    letters that meet only when they are normalised, as those of half-width Korean do.
    """
    pieces = list[str]()
    for chunk in _CHUNK.findall(text):
        pieces.extend(_checked(_GRAPHEME.findall(chunk), chunk))
    return _checked(pieces, text)


def _checked(pieces: list[str], whole: str) -> list[str]:
    return pieces if "".join(map(normalized, pieces)) == normalized(whole) else [whole]
