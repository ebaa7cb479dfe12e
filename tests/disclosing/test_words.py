"""Normalisation, and places in the text as it was written."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpaudit.disclosing.words import CHARACTERS, WORDS, Measure, normalized, words

#: What normalisation takes apart, joins, folds or drops, beside anything else.
HARD = "aIİıßﬃ½℀Åé\u0301\u0308\u0345ς٣ـَ\u00ad\u200c\u200d\ufe0fㄱㅏﾡￂｶﾞＡ１中ไ่हि नि_-. \u00a0\t\n"
TEXTS = st.text(st.sampled_from(HARD) | st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't STOP, it's 3.5!", ["don", "t", "stop", "it", "s", "3", "5"]),
        ("Stra\u00dfe STRASSE", ["strasse", "strasse"]),
        ("\uff26\uff55\uff4c\uff4c\uff11\uff12", ["full12"]),
        ("cafe\u0301 caf\u00e9 CAF\u00c9", ["caf\u00e9"] * 3),
        ("re\u00adsearch \ufb01ne", ["research", "fine"]),
        ("\u0130stanbul", ["i\u0307stanbul"]),
        (
            "\u0646\u064e\u0635\u0651 \u0639\u0631\u0628\u064a",
            ["\u0646\u064e\u0635\u0651", "\u0639\u0631\u0628\u064a"],
        ),
        ("\u0928\u092e\u0938\u094d\u0924\u0947", ["\u0928\u092e\u0938\u094d\u0924\u0947"]),
        ("\u4f60\u597d\uff0c\u4e16\u754c", ["\u4f60\u597d", "\u4e16\u754c"]),
        ("\u2121 \u00bd", ["tel", "1", "2"]),
        ("... --", []),
    ],
)
def test_words_are_those_of_the_normalised_text(text: str, expected: list[str]) -> None:
    assert words(text) == expected
    assert CHARACTERS.split(text) == list("".join(expected))


@settings(max_examples=200, deadline=None)
@given(TEXTS)
@example("\u1fb3\u0301")
def test_normalised_texts_stay_and_forms_of_one_text_are_equal(text: str) -> None:
    normal = normalized(text)
    assert normalized(normal) == normal
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert normalized(unicodedata.normalize(form, text)) == normal


@pytest.mark.parametrize("measure", [WORDS, CHARACTERS])
@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
@example(text="\uffa1\uffc2 \u3131\u314f")
@example(text="x \u2100 y")
def test_places_cut_the_text_where_it_can_be_cut(measure: Measure, text: str) -> None:
    places, found = measure.places(text), measure.split(text)
    assert len(places) == len(found)
    for (start, end), word in zip(places, found, strict=True):
        parts = text[:start], text[start:end], text[end:]
        assert "".join(map(normalized, parts)) == normalized(text)
        assert word in measure.split(text[start:end])
    assert places == sorted(places)


@given(st.text(st.sampled_from("ab1_ .-\n"), max_size=20))
def test_places_of_plain_words_are_the_words(text: str) -> None:
    assert [text[start:end] for start, end in WORDS.places(text)] == words(text)
    # The same where a text is not plain elsewhere.
    assert WORDS.places(text + " \u00e9")[:-1] == WORDS.places(text)
