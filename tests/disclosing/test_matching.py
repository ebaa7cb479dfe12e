"""Unique runs and 3-grams against definitions that compare everything with everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.disclosing.matching import SharedRuns, shared_runs
from dpaudit.disclosing.words import CHARACTERS, WORDS, Measure

#: Short enough for texts of a few words.
SHORT = Measure("words", (2, 3), 3, 2)
SHORT_CHARACTERS = Measure("characters", (2, 3), 2, 3)


class Case(NamedTuple):
    """What is compared, in which groups, and the order of texts."""

    texts: list[str]
    units: list[list[str]]
    public: list[str]
    text_groups: list[int]
    unit_groups: list[int]
    order: list[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    word = st.sampled_from(draw(st.sampled_from(["ab", "abc", "abcdefgh"])))
    text = st.lists(word, max_size=draw(st.sampled_from([4, 12]))).map(" ".join)
    texts = draw(st.lists(text, max_size=4))
    units = draw(st.lists(st.lists(text, min_size=1, max_size=2), max_size=5))
    group = st.integers(0, draw(st.integers(0, 1)))
    return Case(
        texts,
        units,
        draw(st.lists(text, max_size=1)),
        [draw(group) for _ in texts],
        [draw(group) for _ in units],
        draw(st.permutations(range(len(texts)))),
    )


def grams(text: Sequence[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(text[at : at + length]) for at in range(len(text) - length + 1)}


def all_grams(text: Sequence[str]) -> set[tuple[str, ...]]:
    return {gram for length in range(1, len(text) + 1) for gram in grams(text, length)}


class Reference:
    """The definitions, word by word."""

    def __init__(self, case: Case, measure: Measure) -> None:
        self.case, self.measure = case, measure
        self.texts = [measure.split(text) for text in case.texts]
        has = [
            set().union(*(all_grams(measure.split(record)) for record in unit))
            for unit in case.units
        ]
        known = set().union(*(all_grams(measure.split(text)) for text in case.public))
        self.own = [
            unit - known - set().union(*has[:at], *has[at + 1 :]) for at, unit in enumerate(has)
        ]

    def pairs(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return the longest run and the number of 3-grams, by text and unit."""
        found = {}
        for at, text in enumerate(self.texts):
            for unit, own in enumerate(self.own):
                shared = all_grams(text) & own
                if shared and self.case.text_groups[at] == self.case.unit_groups[unit]:
                    short = sum(len(gram) == self.measure.gram for gram in shared)
                    found[at, unit] = max(map(len, shared)), short
        return found

    def best(self, unit: int, first: int) -> tuple[int, int]:
        """Return a unit's largest length (0) or number of 3-grams (1), and its text."""
        ranked = [
            (scores[first], scores[1 - first], -self.case.order[text], text)
            for (text, other), scores in self.pairs().items()
            if other == unit and scores[first]
        ]
        return (max(ranked)[0], max(ranked)[-1]) if ranked else (0, -1)

    def covered(self) -> set[tuple[int, int, int]]:
        """Return text, unit and place of the words of all runs that are long enough."""
        return {
            (text, unit, at + offset)
            for (text, unit), (length, _) in self.pairs().items()
            for size in range(self.measure.span, length + 1)
            for at in range(len(self.texts[text]) - size + 1)
            if tuple(self.texts[text][at : at + size]) in self.own[unit]
            for offset in range(size)
        }


def runs_of(case: Case, measure: Measure) -> SharedRuns:
    groups = np.array(case.text_groups, np.int64), np.array(case.unit_groups, np.int64)
    return shared_runs(case.texts, case.units, case.public, *groups, measure)


@pytest.mark.parametrize("measure", [SHORT, SHORT_CHARACTERS])
@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_finds_what_comparing_everything_finds(measure: Measure, case: Case) -> None:
    assert_finds_what_comparing_everything_finds(measure, case)


@pytest.mark.slow  # the same, for thousands of cases
@settings(max_examples=4_000, deadline=None)
@given(measure=st.sampled_from([SHORT, SHORT_CHARACTERS]), case=cases())
def test_always_finds_what_comparing_everything_finds(measure: Measure, case: Case) -> None:
    assert_finds_what_comparing_everything_finds(measure, case)


def assert_finds_what_comparing_everything_finds(measure: Measure, case: Case) -> None:
    expected, found = Reference(case, measure), runs_of(case, measure)
    pairs = zip(found.text, found.unit, strict=True)
    scores = zip(found.length, found.grams, strict=True)
    assert dict(zip(pairs, scores, strict=True)) == expected.pairs()
    matches = found.matches(np.array(case.order, np.int64))
    for unit in range(len(case.units)):
        assert (matches.lengths[unit], matches.where[unit]) == expected.best(unit, 0)
        assert (matches.grams[unit], matches.grams_where[unit]) == expected.best(unit, 1)


@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_spans_cover_all_long_runs_and_nothing_else(case: Case) -> None:
    covered = set[tuple[int, int, int]]()
    for span in runs_of(case, SHORT).spans:
        cut = case.texts[span.text][span.start : span.end].split()
        assert len(cut) == span.words >= SHORT.span
        at = len(case.texts[span.text][: span.start].split())
        places = {(span.text, span.unit, at + offset) for offset in range(span.words)}
        assert not places & covered
        covered |= places
    assert covered == Reference(case, SHORT).covered()


@pytest.mark.parametrize(
    ("measure", "record", "text", "shared"),
    [
        (
            WORDS,
            "An A\u0308rger of 12 Stra\u00dfen",
            "\uff21n: \u00c4RGER of, \uff11\uff12 STRASSEN!",
            5,
        ),
        (CHARACTERS, "\u4eca\u5929\u5929\u6c14\u5f88\u597d", "\u5929\u6c14\uff0c\u5f88 \u597d", 4),
    ],
)
def test_writing_differently_hides_no_run(
    measure: Measure, record: str, text: str, shared: int
) -> None:
    found = shared_runs(["x", text], [["x"], ["y", record]], measure=measure._replace(span=2))
    assert found.length.tolist() == [1, shared]
    (span,) = found.spans
    assert (text[span.start : span.end], span.unit) == (text.rstrip("!"), 1)


def test_a_round_has_its_own_texts() -> None:
    found = shared_runs(["a b c", "a b c d", "c d"], [["a b c d e"], ["f"]])
    order = np.array([0, 1, 2])
    assert found.matches(order).where.tolist() == [1, -1]
    first = found.matches(order, np.array([0, 2]))
    assert (first.lengths.tolist(), first.where.tolist()) == ([3, 0], [0, -1])


def test_tells_units_read() -> None:
    told = list[tuple[int, int]]()
    shared_runs(["a"], [["a"]] * 501, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 501), (500, 501), (501, 501)]
