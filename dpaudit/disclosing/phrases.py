"""Names and numbers: which released texts, records and public texts have them.

A phrase is a sequence of words (or characters, which may be part of a longer word). No recogniser
of names is here: users list them, or ask about one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import regex

from dpaudit.disclosing.automaton import Integers
from dpaudit.disclosing.matching import Progress, read_units
from dpaudit.disclosing.words import WORDS, Measure, normalized, words

#: Digits with what stands inside amounts, dates and ids.
_NUMBER = regex.compile(r"\d(?:[\d.,:/\-\u2010-\u2015]*\d)?")
#: Numbers of fewer digits are in everybody's texts.
_LEAST_DIGITS = 4


class Phrase(NamedTuple):
    """Where a name or number stands. Private.

    Attributes:
        phrase: as it was asked for.
        places: text and place, [start, end) in characters of that released text.
        units: int64, ascending: the units with a record that has it.
        public: whether a public text has it.
    """

    phrase: str
    places: tuple[tuple[int, int, int], ...]
    units: Integers
    public: bool


def find_phrases(
    phrases: Sequence[str],
    texts: Sequence[str],
    units: Sequence[Sequence[str]],
    public: Iterable[str] = (),
    measure: Measure = WORDS,
    progress: Progress = lambda done, total: None,
) -> tuple[Phrase, ...]:
    """Look for each phrase in released texts, in records and in public texts, of all groups.

    A phrase without letters and digits is nowhere.

    Args:
        phrases: such as "Diane Keaton".
        texts: the released ones.
        units: the records of each, shown and held out alike.
        public: texts that everybody has.
        measure: words or characters.
        progress: called with units read and all.
    """
    index = _PhraseIndex([measure.split(phrase) for phrase in phrases])
    places: list[list[tuple[int, int, int]]] = [[] for _ in phrases]
    for number, text in enumerate(texts):
        found = list(index.found(measure.split(text)))
        where = measure.places(text) if found else []
        for phrase, start, end in found:
            places[phrase].append((number, where[start][0], where[end - 1][1]))
    known = {phrase for text in public for phrase, _, _ in index.found(measure.split(text))}
    having: list[list[int]] = [[] for _ in phrases]
    for unit, records in read_units(units, measure, progress):
        for phrase in {phrase for record in records for phrase, _, _ in index.found(record)}:
            having[phrase].append(unit)
    return tuple(
        Phrase(phrase, tuple(places[at]), np.array(having[at], np.int64), at in known)
        for at, phrase in enumerate(phrases)
    )


def numbers_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the different numbers of four digits or more in texts, normalised and sorted."""
    found = {tuple(words(number)): number for text in texts for number in _numbers(text)}
    return tuple(sorted(found.values()))


def _numbers(text: str) -> Iterator[str]:
    for number in _NUMBER.findall(normalized(text)):
        if sum(map(str.isdigit, number)) >= _LEAST_DIGITS:
            yield number


class _PhraseIndex:
    """Phrases by their first words."""

    def __init__(self, phrases: Sequence[Sequence[str]]) -> None:
        self._phrases: defaultdict[str, list[tuple[int, Sequence[str]]]] = defaultdict(list)
        for number, phrase in enumerate(phrases):
            if phrase:
                self._phrases[phrase[0]].append((number, phrase))

    def found(self, text: Sequence[str]) -> Iterator[tuple[int, int, int]]:
        """Yield each phrase's number, and where it begins and ends in the text."""
        if self._phrases.keys().isdisjoint(text):
            return
        for start, word in enumerate(text):
            for number, phrase in self._phrases.get(word, ()):
                end = start + len(phrase)
                if text[start:end] == phrase:
                    yield number, start, end
