"""Public texts against private records, whatever was done to case, marks, spaces or some words.

Two texts of different sources have phrases in common; nobody can say of a text alone whose it is.
The thresholds here were chosen so that no such pair is taken for a copy (measured in
docs/sharp-edges.md#records-in-public-texts).
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from dpaudit.results.replay import SharedText
from dpaudit.runs import Manifest
from dpaudit.runs.disclosed import acting_texts, is_anybodys

#: Letters and digits in a row that are looked up; what a text has in common with another is made of
#: runs of so many.
SEED = 9
#: Every so many places of a record are tried first: a run of SEED + STRIDE - 1 is always seen.
STRIDE = 4
#: A row so long is told: about six words.
TOLD = 30
#: A row so long is a copy: about ten words. Of 240 public texts of other sources two had one.
COPIED = 50
#: So is half of a record, if that is so many letters, about seven words, in its own order and this
#: much room.
LEAST, SPREAD = 32, 1.5
#: A row of FORM that FORM_RECORDS records have is a form of words, which says nothing of one of
#: them.
FORM, FORM_RECORDS = 20, 10
#: A record that is in a public text but for a tenth of it is in it, form or not.
WHOLE = 0.9
#: Of a list of single words: so many of a record's different words, and this part of them, are the
#: record.
LIST_WORDS, LIST_PART = 8, 0.8
#: A row of letters is looked up at this many of its places in a public text; no text repeats one so
#: often.
_PLACES = 16
#: A character of these scripts says what several letters of others say.
_WIDE = re.compile(r"[぀-ヿ㐀-䶿一-鿿豈-﫿]")
_PLACEHOLDER = re.compile(r"\{(?:example|label)\}")
_NO_LETTER = re.compile(r"[^a-z0-9]+")
_WORD = re.compile(r"\w+")


def letters_of(text: str) -> str:
    """Return letters and digits alone, without case, accents and forms; wide characters thrice."""
    if text.isascii():
        return _NO_LETTER.sub("", text.lower())
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return _WIDE.sub(r"\g<0>\g<0>\g<0>", "".join(filter(str.isalnum, folded)))


class PublicTexts(NamedTuple):
    """All that a run, or a config, declares public and that acts on its texts.

    Attributes:
        template: of the user's own; None for one of the paper's.
        end: the mark that ends texts under it.
        examples: the public ones, of all labels.
        banned: words that no text may hold.
        labels: their names.
        stops: what ends a text.
        canaries: texts of made-up records.
    """

    template: str | None = None
    end: str | None = None
    examples: Sequence[str] = ()
    banned: Sequence[str] = ()
    labels: Sequence[str] = ()
    stops: Sequence[str] = ()
    canaries: Sequence[str] = ()

    def shared_with(self, records: Iterable[str]) -> tuple[SharedText, ...]:
        """Return each setting's share with the records, for settings that have anything of them.

        Args:
            records: texts; gone through twice. Memory grows with the public texts, and by an
                integer a record.
        """
        texts, settings = list(records), list(self._settings())
        for number, text in enumerate(texts):
            letters = letters_of(text)
            for setting in settings:
                setting.look(number, text, letters)
        return tuple(
            shared for setting in settings if (shared := setting.result(texts)) is not None
        )

    def _settings(self) -> Iterator[_Setting]:
        template = _PLACEHOLDER.sub("", self.template or "")
        passages: dict[str, Sequence[str]] = {
            "prompt.text": (template,),
            "prompt.end": (self.end or "",),
            "prompt.public_examples": self.examples,
            "canaries": self.canaries,
        }
        lists = {
            "decoding.banned_words": self.banned,
            "data.labels": self.labels,
            "decoding.sequences": self.stops,
        }
        acting: defaultdict[str, list[str]] = defaultdict(list)
        for field, text in acting_texts(template, (), ()):
            acting[field].append(text)
        for field, texts in (passages | lists).items():
            whole = texts if field in passages else (" ".join(texts),)
            wholes = [text for text in (*texts, *acting[field]) if not is_anybodys(field, text)]
            words = _words(" ".join(texts)) if field in lists else frozenset[str]()
            if any(texts):
                yield _Setting(field, whole, wholes, words)


def shared_texts(
    manifest: Manifest,
    records: Iterable[str],
    stops: Sequence[str] = (),
    canaries: Sequence[str] = (),
) -> tuple[SharedText, ...]:
    """Return what a run's public settings share with records.

    `stops` and `canaries` are as in `PublicTexts`.
    """
    examples = [text for each in manifest.prompt.public_examples.values() for text in each]
    banned, labels = manifest.decoding.banned_words, manifest.data.labels or ()
    public = PublicTexts(
        manifest.prompt.text, manifest.prompt.end, examples, banned, labels, stops, canaries
    )
    return public.shared_with(records)


class _Run(NamedTuple):
    """A common row of letters, from `start` in a record and from `place` in a public text."""

    start: int
    place: int
    length: int


class _Setting:
    """One setting's texts, ready to be looked up."""

    def __init__(
        self, field: str, passages: Sequence[str], wholes: Iterable[str], words: frozenset[str]
    ) -> None:
        """Prepare the texts.

        Args:
            wholes: they are copies if a record equals one.
            words: those of a list, in any order.
        """
        self._field, self._words = field, words
        self._wholes = frozenset(filter(None, map(letters_of, wholes)))
        self._letters = " ".join(map(letters_of, passages))
        self._seeds: dict[str, list[int]] = {}
        for place in range(len(self._letters) - SEED + 1):
            seed = self._letters[place : place + SEED]
            places = self._seeds.setdefault(seed, [])
            if " " not in seed and len(places) < _PLACES:
                places.append(place)

        self._near, self._copied = list[int](), 0
        # changes, from place to place, of how many records have a row
        self._forms = [0] * (len(self._letters) + 1)

    def look(self, number: int, text: str, letters: str) -> None:
        """Take in a record, by its number, and its letters."""
        if letters in self._wholes or self._lists(text):
            self._copied += 1
            return
        runs = self._runs(letters)
        if sum(run.length for run in runs) >= TOLD:
            self._near.append(number)
        for first, past in _joined(run for run in runs if run.length >= FORM):
            self._forms[first] += 1
            self._forms[past] -= 1

    def result(self, records: Sequence[str]) -> SharedText | None:
        """Return what these texts share with all records, or None if it is next to nothing."""
        # How many letters before each place are no form of words.
        own = [0, *accumulate(count < FORM_RECORDS for count in accumulate(self._forms))]
        told, copied, longest = self._copied, self._copied, 0
        for number in self._near:
            letters = letters_of(records[number])
            runs = self._runs(letters)
            row = max(run.length for run in runs)
            longest = max(longest, row)
            is_copy = _is_copy(len(letters), runs, own)
            copied += is_copy
            told += is_copy or row >= TOLD
        if told:
            return SharedText(self._field, longest, told, copied)
        return None

    def _lists(self, text: str) -> bool:
        """Return whether a record's words are on a list, in any order."""
        if len(self._words) < LIST_WORDS:
            return False
        words = _words(text)
        return len(words) >= LIST_WORDS and len(words & self._words) >= LIST_PART * len(words)

    def _runs(self, letters: str) -> list[_Run]:
        """Return the rows of letters that a record shares with these texts, in record order."""
        last = len(letters) - SEED + 1
        if not any(letters[at : at + SEED] in self._seeds for at in range(0, last, STRIDE)):
            return []
        found, at = list[_Run](), 0
        while at < last:
            places = self._seeds.get(letters[at : at + SEED])
            if places is None:
                at += 1
                continue
            length, place = max(
                (_common(letters, at, self._letters, place), -place) for place in places
            )
            found.append(_Run(at, -place, length))
            # the next row may overlap with this one, where words were taken out between them
            at += length - SEED + 1
        return found


def _common(one: str, at: int, other: str, place: int) -> int:
    """Return how many letters two texts share in a row, from these places."""
    length = SEED
    while one[at + length : at + length + 16] == other[place + length : place + length + 16] != "":
        length += 16
    length = min(length, len(one) - at, len(other) - place)
    while (
        at + length < len(one)
        and place + length < len(other)
        and one[at + length] == other[place + length]
    ):
        length += 1
    return length


def _joined(runs: Iterable[_Run]) -> list[tuple[int, int]]:
    """Return the spans of public places that runs cover, none of them twice."""
    spans = list[tuple[int, int]]()
    for first, past in sorted((run.place, run.place + run.length) for run in runs):
        if spans and first <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(past, spans[-1][1])
        else:
            spans.append((first, past))
    return spans


def _is_copy(length: int, runs: Sequence[_Run], own: Sequence[int]) -> bool:
    """Return whether enough of a record of `length` letters is in a text to be taken from there."""
    if any(own[run.place + run.length] - own[run.place] >= COPIED for run in runs):
        return True
    for first in range(len(runs)):
        covered, covered_own = _covered(runs[first:], int(SPREAD * length), own)
        in_forms = covered - covered_own
        if covered_own >= LEAST and 2 * covered_own >= length - in_forms:
            return True
        if length >= LEAST and covered >= WHOLE * length:
            return True
    return False


def _covered(runs: Sequence[_Run], spread: int, own: Sequence[int]) -> tuple[int, int]:
    """Count a record's letters in one place of a public text, in order: all, and those of no form.

    The numbers are of all letters, and of those that are no form. That place begins with the first
    of these runs and is `spread` letters long.
    """
    start, place = runs[0].start, runs[0].place
    limit, covered, covered_own = place + spread, 0, 0
    for run in runs:
        skipped = max(0, start - run.start, place - run.place)
        if skipped >= run.length or run.place + run.length > limit:
            continue
        start, place = run.start + run.length, run.place + run.length
        covered += run.length - skipped
        covered_own += own[place] - own[run.place + skipped]
    return covered, covered_own


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
