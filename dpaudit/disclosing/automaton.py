"""A suffix automaton of the released texts, and which unit's records have which of its runs.

A state stands for the runs that end at the same places of the texts: those of lengths above
`length[link]` up to `length[state]`, where `link` is the state of the next shorter ones (Blumer et
al. 1985, Theoretical Computer Science 40). A record read through it visits, at each of its words,
the state of the longest run that ends there and stands in a text. All shorter ones are in that
state and its links. So the records are read once, and nothing of them is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
#: The empty run: its own link is nowhere.
ROOT = 0
#: The unit of public texts, and no unit.
PUBLIC, NONE = -2, -1


class UniqueRuns(NamedTuple):
    """Which runs of each state stand in the records of exactly one unit, and in no public text.

    Attributes:
        link: the state of the next shorter runs; -1 for the empty run.
        below: the length of the longest of those: this state's own runs are longer.
        owner: the unit with the longest run, which may be PUBLIC; NONE where nobody has any.
        longest: the length of that run.
        shared: the longest that another unit or a public text has, too: what is longer is the
            owner's alone.
    """

    link: Integers
    below: Integers
    owner: Integers
    longest: Integers
    shared: Integers


class TextRuns:
    """All runs of the texts, each with whether records of exactly one unit have it.

    Memory grows with the texts alone: some 300 bytes a word.
    """

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        """Read the texts, as sequences of words or characters."""
        self._moves: list[dict[int, int]] = [{}]
        self._link, self._length = [-1], [0]
        self._ids: dict[str, int] = {}
        ids = self._ids
        ends = list[int]()
        for text in texts:
            state = ROOT
            for word in text:
                state = self._extended(state, ids.setdefault(word, len(ids)))
                ends.append(state)
        #: The state of each place's longest run: all that ends there. Texts in a row, int64.
        self.ends = np.array(ends, dtype=np.int64)
        states = len(self._link)
        # A unit with the longest run of a state, its length, and that of any other unit.
        self._owner, self._first, self._second = [NONE] * states, [0] * states, [0] * states

    def add_unit(self, unit: int, records: Iterable[Sequence[str]]) -> None:
        """Read all records of a unit, which has a number of its own from 0.

        Public texts are records of the unit PUBLIC.
        """
        ids, moves, link, length_of = self._ids, self._moves, self._link, self._length
        owner, first, second = self._owner, self._first, self._second
        for record in records:
            state = length = 0
            for word in map(ids.get, record):
                if word is None:
                    state = length = 0
                    continue
                while word not in moves[state]:
                    state = link[state]
                    length = length_of[state]
                state = moves[state][word]
                length += 1
                if owner[state] == unit:
                    if length > first[state]:
                        first[state] = length
                elif length > first[state]:
                    owner[state], first[state], second[state] = unit, length, first[state]
                elif length > second[state]:
                    second[state] = length

    def unique(self) -> UniqueRuns:
        """Return the runs that one unit alone has, after all units and public texts."""
        link, length = self._link, self._length
        owner, first, second = self._owner.copy(), self._first.copy(), self._second.copy()
        # Who has a state's run has all runs of its links, so longer states come first.
        for state in np.argsort(np.array(length), kind="stable")[::-1].tolist():
            parent = link[state]
            if parent <= ROOT or not first[state]:
                continue
            full = length[parent]
            if owner[parent] != owner[state]:
                owner[parent], second[parent] = owner[state], first[parent]
            first[parent] = full
            if second[state]:
                second[parent] = full
        longest = np.array(first)
        shared = np.where(np.array(owner) == PUBLIC, longest, np.array(second))
        below = np.array([0, *(length[parent] for parent in link[1:])])
        return UniqueRuns(np.array(link), below, np.array(owner), longest, shared)

    def _extended(self, last: int, word: int) -> int:
        """Return the state of a text that goes on with a word, from the state before it."""
        moves, link, length = self._moves, self._link, self._length
        if word in moves[last]:
            return self._split(last, word)
        state = len(link)
        moves.append({})
        link.append(ROOT)
        length.append(length[last] + 1)
        while last >= 0 and word not in moves[last]:
            moves[last][word] = state
            last = link[last]
        if last >= 0:
            link[state] = self._split(last, word)
        return state

    def _split(self, state: int, word: int) -> int:
        """Return the state of a state's longest run and a word; a new one if there is none."""
        moves, link, length = self._moves, self._link, self._length
        target = moves[state][word]
        if length[target] == length[state] + 1:
            return target
        clone = len(link)
        moves.append(moves[target].copy())
        link.append(link[target])
        length.append(length[state] + 1)
        link[target] = clone
        while state >= 0 and moves[state].get(word) == target:
            moves[state][word] = clone
            state = link[state]
        return clone
