"""Texts that say nothing, by rules about released and public text: a planted example of each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit.runs.vacuity import PublicText, Vacuity, vacuities, vacuity

EXAMPLES = (
    "The lift in the north stair has been stuck since Tuesday, and nobody came.",
    "My parcel was left in the rain; I would like to have the money back.",
)
PROMPT = "Complaints that tenants write on ({label}), one a line:\n- {example}\n-"
TOKENS = (1,) * 20


def public(
    text: str | None = PROMPT, examples: tuple[str, ...] = EXAMPLES, template: str = "own"
) -> PublicText:
    prompt = SimpleNamespace(text=text, template=template, public_examples={"": examples})
    manifest: Any = SimpleNamespace(
        prompt=prompt, data=SimpleNamespace(groups=("heating", "noise"))
    )
    return PublicText.of(manifest)


@pytest.mark.parametrize(
    ("text", "tokens", "said"),
    [
        (" \n", TOKENS, "empty"),
        ("", (), "empty"),
        (None, (), "empty"),
        ("The rain", (5,) * 4, "very_short"),
        (None, (5,), "very_short"),
        ("32:20-32-33:40. 2019-05-22. 14:00:13.", TOKENS, "digits"),
        ("### 2015-01-31 - 17", TOKENS, "digits"),
        ("6.5% alcohol (93.5% by volume), 200 g", TOKENS, "digits"),
        ("@Airways @U.S.A.I.S.I.A.F.T.E.N.T.I.n.c.t.ed.e.", TOKENS, "digits"),
        ("Madrid, Paris, Rome, Berlin, New York, Oslo", TOKENS, "lists"),
        ("@Airports @flyjet lift #North https://t.co/sky", TOKENS, "lists"),
        ("- The lift\n- The door of the house\n- My neighbour's dog", TOKENS, "lists"),
        (
            "1. The lift is old.\n2. The door does not close.\n3. The rain comes in.",
            TOKENS,
            "lists",
        ),
        ("the noise and the noise and the noise and the noise", TOKENS, "repetitions"),
        ("Albert, Albert of Albert", TOKENS, "repetitions"),
        ("The lift the lift the lift", TOKENS, "repetitions"),
        ("I write complaints that tenants write on noise, one a line", TOKENS, "prompts"),
        ("And my parcel was left in the rain; I would like tea", TOKENS, "prompts"),
        ("A lift that is old (Noise), and one that is new", TOKENS, "prompts"),
        ("The tenants of the house wrote about the stairs: ", TOKENS, "prompts"),
        ("Лифт не работает уже неделю", TOKENS, "other_language"),
        (
            "Der Aufzug steht seit Dienstag still, niemand kam, keiner meldet sich",
            TOKENS,
            "other_language",
        ),
    ],
)
def test_a_planted_text_says_nothing(
    text: str | None, tokens: tuple[int, ...], said: Vacuity
) -> None:
    assert vacuity(text, tokens, public()) == said


@pytest.mark.parametrize(
    "text",
    [
        "The heating has been cold for three weeks, in 12 flats of 14.",
        "I couldn't stay, nor can I: it isn't 1 or 2 things.",
        "@SkyNorth the lift is cold again #anger",
        "I waited and waited.",
        "Miss the lift, need the lift, love the lift.",
        "In London, Paris, Rome and Berlin the rents have risen, the paper says.",
        "Water came through the ceiling again. Please send a plumber before the weekend.",
        "Rain again.\nThe roof still leaks, and nobody has answered my letter of 3 May.",
    ],
)
def test_a_text_that_says_something_is_not_counted(text: str) -> None:
    assert vacuity(text, TOKENS, public()) is None


def test_no_language_is_told_without_public_examples() -> None:
    bare = public(examples=())
    assert (
        vacuity("Der Aufzug steht seit Dienstag, und niemand kam zu uns herauf", TOKENS, bare)
        is None
    )


def test_the_papers_request_is_the_prompt_of_its_template() -> None:
    said = "Please give another one. No formatting or explanations."
    assert vacuity(said, TOKENS, public(None, (), "it")) == "prompts"
    assert vacuity(said, TOKENS, public(None, (), "pt")) is None


@pytest.mark.parametrize("text", ["A lift (noise) is old", "The tenants wrote this:"])
def test_marks_of_the_request_tell_nothing_where_an_example_has_them(text: str) -> None:
    said = f"{text} and nobody came."  # with as many marks, and no run of many words in common
    assert vacuity(text, TOKENS, public()) == "prompts"
    shown = "One (noise) of many. All of it said that:"
    assert vacuity(text, TOKENS, public(examples=(*EXAMPLES, shown))) is None
    assert vacuity(said.replace("(noise)", "of noise"), TOKENS, public()) is None
    # a request that says nothing in such a way
    assert vacuity(text, TOKENS, public(text="On {label}\n- {example}\n-")) is None


def test_each_text_counts_once() -> None:
    """A text of digits that also repeats itself is one of digits."""
    texts = [("1 2 1 2 1 2 1 2 1 2", TOKENS), ("", ()), ("The rain is back, I fear.", TOKENS)]
    assert vacuities(texts, public()) == {"digits": 1, "empty": 1}
