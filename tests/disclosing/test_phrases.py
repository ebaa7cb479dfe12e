"""Names and numbers in texts and records."""

from __future__ import annotations

from dpaudit.disclosing.phrases import Phrase, find_phrases, numbers_in
from dpaudit.disclosing.words import CHARACTERS

TEXTS = ["Actress DIANE  Keaton, 57, said.", "Diane and Keaton", "diane keaton; Diane\nKeaton"]
UNITS = [["Keaton Diane"], ["x", "by Diane Keaton", "Diane-Keaton"], ["diane"], ["DIANE KEATON"]]


def stands(found: Phrase) -> tuple[list[str], list[int], bool]:
    texts = [TEXTS[text][start:end] for text, start, end in found.places]
    return texts, found.units.tolist(), found.public


def test_finds_a_name_word_for_word_in_each_unit_once() -> None:
    expected = ["DIANE  Keaton", "diane keaton", "Diane\nKeaton"], [1, 3]
    names, public = ["Diane Keaton", "Woody"], ["See diane keaton."]
    found, nobody = find_phrases(names, TEXTS, UNITS)
    assert stands(found) == (*expected, False) and stands(nobody) == ([], [], False)
    found, _ = find_phrases(names, TEXTS, UNITS, public)
    assert stands(found) == (*expected, True)


def test_phrases_that_begin_alike_are_all_found() -> None:
    found = find_phrases(["Diane", "--", "diane keaton", "keaton"], TEXTS, UNITS, ["Keaton"])
    assert [phrase.units.tolist() for phrase in found] == [[0, 1, 2, 3], [], [1, 3], [0, 1, 3]]
    assert [len(phrase.places) for phrase in found] == [4, 0, 3, 4]
    assert [phrase.public for phrase in found] == [False, False, False, True]


def test_characters_find_names_in_texts_without_spaces() -> None:
    units = [["王小明"], ["小明说王"]]
    (found,) = find_phrases(["王小明"], ["昨天王小明说"], units, measure=CHARACTERS)
    assert (found.places, found.units.tolist()) == (((0, 2, 5),), [0])


def test_numbers_are_whole_and_long_enough() -> None:
    texts = ["Call 020-7946, pay 1,200.50 (of 999) on 24/11/2004.", "９８７６５ 020–7946 12"]
    assert numbers_in(texts) == ("020–7946", "1,200.50", "24/11/2004", "98765")
