"""A user's own template: its parts, and that nothing of a record is ever taken for one of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dpaudit.generation.models import LanguageModel
from dpaudit.generation.prompts import ends_with, template, written_forms
from dpaudit.generation.wording import Wording, WordingError
from dpaudit.runs import InputError

#: Texts that look like parts of a template, among others.
PIECES = (
    "{label}",
    "{example}",
    "{",
    "}",
    "{{",
    "}}",
    "{0}",
    "{0.__class__}",
    "{label!r:>9}",
    "%s",
    "$label",
    "a",
    "\n",
)
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=6).map("".join)


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(tiny_folder)
    return loaded


def test_the_line_of_the_example_is_there_once_for_each() -> None:
    wording = Wording.of("About {label}, {label}:\n- {label}: {example} ###\n- {label}:")
    assert wording.filled("x", []) == "About x, x:\n- x:"
    assert wording.filled("x", ["one"]) == "About x, x:\n- x: one ###\n- x:"
    assert wording.filled("x", ["one", "two"]) == "About x, x:\n- x: one ###\n- x: two ###\n- x:"
    assert wording.shows_label and not Wording.of("a\n{example}").shows_label


def test_a_doubled_brace_is_one() -> None:
    assert Wording.of('JSON:\n{{"text": {{{example}}}}}\n{{label}}').filled("x", ["one"]) == (
        'JSON:\n{"text": {one}}\n{label}'
    )


@given(label=TEXT, examples=st.lists(TEXT, max_size=3))
def test_no_text_of_a_record_is_expanded(label: str, examples: list[str]) -> None:
    found = Wording.of("({label})\n[{example}|{label}]\nend").filled(label, examples)
    assert found == "\n".join(
        [f"({label})", *(f"[{example}|{label}]" for example in examples), "end"]
    )


@given(before=TEXT, around=TEXT, after=TEXT, examples=st.lists(TEXT, min_size=1, max_size=2))
def test_any_plain_text_can_be_written_with_doubled_braces(
    before: str, around: str, after: str, examples: list[str]
) -> None:
    plain = [text.replace("\n", " ") for text in (before, around, after)]
    plain = ["".join(c for c in text if c.isprintable() or c == " ") for text in plain]
    doubled = [text.replace("{", "{{").replace("}", "}}") for text in plain]
    text = f"a{doubled[0]}\n{doubled[1]}|{{example}}|{doubled[2]}"
    said = [f"{plain[1]}|{example}|{plain[2]}" for example in examples]
    assert Wording.of(text).filled("", examples) == "\n".join([f"a{plain[0]}", *said])


def test_what_is_no_template_is_told() -> None:
    for text, given_, allowed in (
        ("no placeholder", "no placeholder", "once, and not 0 times"),
        ("a\n{example}\n{example}", "{example}", "once, and not 2 times"),
        ("a\n{{example}}", "{{example}}", "once, and not 0 times"),
        ("a {name}\n{example}", "{name}", "no other placeholder"),
        ("a {}\n{example}", "{}", "no other placeholder"),
        ("a {label.__class__}\n{example}", "{label.__class__}", "no other placeholder"),
        ("a\n{example:>9}", "{example:>9}", "no other placeholder"),
        ("a\n{example!r}", "{example!r}", "no other placeholder"),
        ("a { b\n{example}", "{", "doubled"),
        ("a } b\n{example}", "}", "doubled"),
        ("a {label\n} {example}", "{", "doubled"),
        ("{example}", "{example}", "a line without {example}"),
        ("{example}\n \n", "{example}", "a line without {example}"),
        ("a\r\n{example}", "\r", "without control characters"),
        ("a\0\n{example}", "\0", "without control characters"),
        ("a\ud800\n{example}", "\ud800", "without control characters"),
    ):
        with pytest.raises(WordingError) as caught:
            Wording.of(text)
        assert given_ in caught.value.given and allowed in caught.value.allowed, text


def test_the_papers_templates_are_as_they_were(tokenizer: PreTrainedTokenizerBase) -> None:
    assert (
        template("pt", tokenizer).digest
        == "e5767ef843d4e809699c3918411e32d9b448afbf8cf384649b39f06c441886c7"
    )
    assert (
        template("it", tokenizer).digest
        == "bd3657ebd2900ac2ba76f91d5d4af47997aa8a955a6efe34d100697f7a1cb51a"
    )
    assert len(written_forms(tokenizer, "END")) == 1


def test_an_own_template_for_a_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    own = template("own", tokenizer, "A {label}:\n- {example}\n-", "\n")
    assert own.digest == hashlib.sha256(b"own\0A {label}:\n- {example}\n-\0\n").hexdigest()
    assert own.text("x", ["{label}"]) == "A x:\n- {label}\n-"
    assert own.digest != template("own", tokenizer, "A {label}:\n- {example}\n-").digest
    assert own.stop_sequences == (tuple(tokenizer("\n")["input_ids"]),)
    assert template("own", tokenizer, "A:\n- {example}\n-").stop_sequences == ()


def joining() -> PreTrainedTokenizerBase:
    """A tokenizer that joins a full stop to a line break behind it, and that knows no capitals."""
    vocabulary = {
        "<unk>": 0,
        "x": 1,
        ".\n": 2,
        "\n": 3,
        " \n": 4,
        "\n\n": 5,
        "e": 6,
        "n": 7,
        "d": 8,
        ".": 9,
    }
    made = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[. \n]?\n|[^\n]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def test_an_end_mark_is_known_after_punctuation_too() -> None:
    forms = template("own", joining(), "A:\n- {example}", "\n").stop_sequences
    assert {(2,), (3,), (4,), (5,)} <= set(forms)
    assert any(ends_with([1, 2], form) for form in forms)
    assert all(forms), "an empty one would end every text at once"


@pytest.mark.model
def test_smollm2_writes_end_marks_after_anything(smollm2: LanguageModel) -> None:
    tokenizer = smollm2.tokenizer
    for mark in ("\n", "###", "<|im_end|>"):
        forms = template("own", tokenizer, "A:\n- {example}\n-", mark).stop_sequences
        for before in ("end", "end ", "end.", 'so."', "(end)", "end!", "7", "é"):
            ids = tokenizer(before + mark)["input_ids"]
            assert any(ends_with(ids, form) for form in forms), (before, mark)
            assert not any(ends_with(tokenizer(before)["input_ids"], form) for form in forms), (
                before,
                mark,
            )


def test_an_end_mark_that_the_tokenizer_cannot_write_is_told() -> None:
    for mark in ("END", "§"):
        with pytest.raises(InputError, match=r"prompt\.end: .*cannot write"):
            template("own", joining(), "A:\n- {example}", mark)
