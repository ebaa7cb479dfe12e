"""What released texts and private records have in common, and no other record has.

Nothing here sees who was shown: texts and all records go in, and matches come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.disclosing.automaton import PUBLIC, ROOT, Integers, TextRuns, UniqueRuns
from dpaudit.disclosing.words import WORDS, Measure

Flags: TypeAlias = NDArray[np.bool_]
#: Called with how many units are read, and the number of all.
Progress: TypeAlias = Callable[[int, int], None]
#: Units between two calls of it.
_TOLD_EVERY = 500


class Span(NamedTuple):
    """A passage of a released text that stands in the records of one unit alone. Private.

    Attributes:
        text: the text's index.
        start, end: its place, [start, end) in characters of the released text.
        words: its length in words or characters, as was measured.
        unit: the unit's index.
    """

    text: int
    start: int
    end: int
    words: int
    unit: int


class Matches(NamedTuple):
    """For each unit, what its best text has of it alone. Arrays of int64, one value a unit.

    Attributes:
        lengths: the longest run of words (or characters) that stands in a text of the unit's group,
            in the unit's records, in no record of another unit of any group, and in no public text.
        where: the text that has it; -1 without one. Of several, the one with the most `grams`, then
            the first in the given order.
        grams: the most different 3-grams, each unique in the same sense, that one text has.
        grams_where: the text that has them; -1 without one. Of several, the one with the longest
            run, then the first in the given order.
    """

    lengths: Integers
    where: Integers
    grams: Integers
    grams_where: Integers


@dataclass(frozen=True)
class SharedRuns:
    """All pairs of a text and a unit of its group that share unique runs.

    Attributes:
        text, unit, length, grams: int64, one value a pair, in order of text and unit: the longest
            unique run, and the number of different unique 3-grams.
        spans: passages of at least `measure.span`, in order of text, place and unit.
        units: the number of all units.
    """

    text: Integers
    unit: Integers
    length: Integers
    grams: Integers
    spans: tuple[Span, ...]
    units: int

    def matches(self, order: Integers, texts: Integers | None = None) -> Matches:
        """Return each unit's best text.

        Args:
            order: int64[texts], the place of each text in an order that was drawn blind to texts,
                records and coins. It decides between equals.
            texts: indices of the texts that count, such as those of one round; all if None.
        """
        kept = np.ones(len(self.text), bool) if texts is None else np.isin(self.text, texts)
        text, unit = self.text[kept], self.unit[kept]
        length, grams = self.length[kept], self.grams[kept]
        lengths, where = self._best(unit, text, (length, grams), order)
        most, grams_where = self._best(unit, text, (grams, length), order)
        return Matches(lengths, where, most, grams_where)

    def _best(
        self, unit: Integers, text: Integers, scores: tuple[Integers, Integers], order: Integers
    ) -> tuple[Integers, Integers]:
        """Return each unit's largest score, and the text that has it; 0 and -1 without one."""
        best, where = np.zeros(self.units, np.int64), np.full(self.units, -1)
        score, second = scores
        ranked = np.lexsort((order[text], -second, -score, unit))
        ranked = ranked[score[ranked] > 0]
        units, firsts = np.unique(unit[ranked], return_index=True)
        best[units], where[units] = score[ranked[firsts]], text[ranked[firsts]]
        return best, where


def shared_runs(
    texts: Sequence[str],
    units: Sequence[Sequence[str]],
    public: Iterable[str] = (),
    text_groups: Integers | None = None,
    unit_groups: Integers | None = None,
    measure: Measure = WORDS,
    progress: Progress = lambda done, total: None,
) -> SharedRuns:
    """Find the unique runs that texts share with units of their group, of all lengths at once.

    Exact. Time grows with the characters of texts and records together, and memory with those of
    the texts: the records are read once, one unit after another.

    Args:
        texts: the released ones.
        units: the records of each, shown and held out alike.
        public: texts that everybody has, such as the prompt's: what stands in one is nobody's.
        text_groups, unit_groups: the label or cluster of each text and unit; one group if None.
        measure: words or characters.
        progress: called with units read and all.

    Raises:
        ValueError: texts have groups and units have none, or the other way round.
    """
    if (text_groups is None) != (unit_groups is None):
        raise ValueError("either both texts and units have groups, or none")
    split = [measure.split(text) for text in texts]
    runs = TextRuns(split)
    runs.add_unit(PUBLIC, map(measure.split, public))
    for unit, records in read_units(units, measure, progress):
        runs.add_unit(unit, records)
    sizes = np.array([len(text) for text in split], np.int64)
    found = _Occurrences.of(runs.unique(), runs.ends, sizes)
    if text_groups is not None and unit_groups is not None:
        found = found.where(text_groups[found.text] == unit_groups[found.unit])
    return _shared(found, texts, len(units), measure)


def read_units(
    units: Sequence[Sequence[str]], measure: Measure, progress: Progress
) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield each unit's number and its records as words or characters, and tell how many are read.

    Args:
        units: the records of each.
        measure: words or characters.
        progress: called with units read and all.
    """
    for unit, records in enumerate(units):
        if unit % _TOLD_EVERY == 0:
            progress(unit, len(units))
        yield unit, [measure.split(record) for record in records]
    progress(len(units), len(units))


class _Occurrences(NamedTuple):
    """Unique runs where they stand in texts, the longest of each state; int64 arrays.

    Attributes:
        text, unit: who has it.
        end: the place after its last word, in words of its text.
        length: in words.
        state: shorter runs down to `least` words that end here are in it, too, and as unique.
        least: see `state`.
    """

    text: Integers
    unit: Integers
    end: Integers
    length: Integers
    state: Integers
    least: Integers

    @classmethod
    def of(cls, runs: UniqueRuns, ends: Integers, sizes: Integers) -> _Occurrences:
        """Follow the links from every place of every text.

        Args:
            ends: the state of each word of all texts.
            sizes: the number of words of each text.
        """
        text = np.repeat(np.arange(len(sizes)), sizes)
        end = np.arange(1, len(ends) + 1) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        least = np.maximum(runs.below, runs.shared) + 1
        is_unique = runs.longest >= least
        # Skip what is nobody's: a text that repeats itself has as many such states as words.
        stops = is_unique | (runs.shared > 0) | (np.arange(len(least)) <= ROOT)
        parts, state, link = (
            list[_Occurrences](),
            ends,
            _next_of(stops, np.maximum(runs.link, ROOT)),
        )
        while len(state):
            unique = is_unique[state]
            at = state[unique]
            parts.append(
                cls(text[unique], runs.owner[at], end[unique], runs.longest[at], at, least[at])
            )
            # Shorter runs of what is shared are shared, too.
            goes_on = (runs.shared[state] == 0) & (link[state] > ROOT)
            text, end, state = text[goes_on], end[goes_on], link[state[goes_on]]
        if not parts:
            return cls(*(np.zeros(0, np.int64) for _ in cls._fields))
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def where(self, kept: Flags) -> _Occurrences:
        """Return those that a mask keeps."""
        return _Occurrences(*(column[kept] for column in self))


def _next_of(stops: Flags, link: Integers) -> Integers:
    """Return the first state after each one, along the links, at which `stops` is true."""
    following = link
    while (on := np.flatnonzero(~stops[following])).size:
        following = following.copy()
        following[on] = following[following[on]]
    return following


def _shared(found: _Occurrences, texts: Sequence[str], units: int, measure: Measure) -> SharedRuns:
    pairs, pair = np.unique(found.text * units + found.unit, return_inverse=True)
    length = np.zeros(len(pairs), np.int64)
    np.maximum.at(length, pair, found.length)
    is_gram = (found.least <= measure.gram) & (measure.gram <= found.length)
    # A text may have a run twice, but it counts once.
    once = np.unique(np.stack((pair[is_gram], found.state[is_gram])), axis=1)[0]
    grams = np.bincount(once, minlength=len(pairs)).astype(np.int64)
    spans = tuple(_spans(found.where(found.length >= measure.span), texts, measure))
    return SharedRuns(pairs // units, pairs % units, length, grams, spans, units)


def _spans(found: _Occurrences, texts: Sequence[str], measure: Measure) -> Iterator[Span]:
    """Yield passages, overlapping ones of one unit merged."""
    ranked = np.lexsort((found.end - found.length, found.unit, found.text))
    merged = list[tuple[int, int, int, int]]()
    for at in ranked.tolist():
        text, unit, end = int(found.text[at]), int(found.unit[at]), int(found.end[at])
        start = end - int(found.length[at])
        if merged and merged[-1][::3] == (text, unit) and start < merged[-1][2]:
            start, end = merged[-1][1], max(end, merged.pop()[2])
        merged.append((text, start, end, unit))
    places = {text: measure.places(texts[text]) for text in {span[0] for span in merged}}
    for text, start, end, unit in sorted(merged):
        yield Span(text, places[text][start][0], places[text][end - 1][1], end - start, unit)
