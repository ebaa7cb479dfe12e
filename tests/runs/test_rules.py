"""The decoding rules' bans against texts decoded and searched, and with hostile numbers."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from dpaudit.runs import DecodingRules, ForbiddenTokens, InputError, without_stop
from dpaudit.runs.rules import LINE_BREAKS, _distinct
from dpaudit.runs.text import pieces_of

CORPUS = [
    "the zebra went to the sea, and the zebras saw an été\n",
    "a line\r\nand another line\u2028of one zebra's diary: «déjà vu»\n\n```\n",
    "the sea the sea the sea",
]
#: More than any of the tokenizers has.
VOCABULARY = 420
PHRASES = ("zebra", "sea", "the s", "été", "t", "a z", "«")


@cache
def tokenizer(kind: str) -> Tokenizer:
    """A small tokenizer like GPT-2's, Llama's or Gemma's, or one of words, trained here."""
    if kind == "words":
        words = ["zebra", "sea", "the", "s", "line\nbreak", "«", "<end>"]
        made = Tokenizer(
            models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="s")
        )
        made.add_special_tokens(["<end>"])
        return made
    if kind == "bytes":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        made.normalizer = normalizers.Replace(" ", "▁")
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        made.decoder = decoders.Sequence(
            [*steps, decoders.Strip(" ", 1, 0)] if kind == "stripped" else steps
        )
        alphabet = []
    fallback = [] if kind == "bytes" else ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<end>", *fallback]
    )
    made.train_from_iterator(CORPUS, trainer)
    if fallback:  # bytes are no special tokens, whose text is left out
        given = json.loads(made.to_str())
        given["added_tokens"] = [
            added for added in given["added_tokens"] if added["content"] == "<end>"
        ]
        made = Tokenizer.from_str(json.dumps(given))
    made.add_tokens([AddedToken("le café", normalized=False)])
    return made


KINDS = ("bytes", "fused", "stripped", "words")
tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)


def in_letters(data: bytes | str) -> str:
    """Drop signs for broken letters, and the blank that some decoders take off a beginning."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    return text.replace("\ufffd", "").strip(" ")


@given(st.sampled_from(KINDS), tokens)
def test_pieces_in_a_row_are_the_decoded_text(kind: str, text: list[int]) -> None:
    pieces = pieces_of(tokenizer(kind).to_str(), VOCABULARY)
    assert pieces is not None and len(pieces) == VOCABULARY
    decoded = tokenizer(kind).decode(text, skip_special_tokens=True)
    # where bytes fall back, a broken letter takes others with it
    whole = "\ufffd" not in decoded or kind == "bytes"
    assert not whole or in_letters(b"".join(pieces[token] for token in text)) == in_letters(decoded)


def test_a_decoder_that_does_more_than_put_tokens_in_a_row_has_no_pieces() -> None:
    made, inner = Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), decoders.Replace("__", " ")
    for decoder in (
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.Replace("▁", "-"),
        decoders.Strip(" ", 1, 0),
        decoders.Sequence([inner, decoders.Fuse()]),
        decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]),
    ):
        made.decoder = decoder
        assert pieces_of(made.to_str(), 1) is None
    made.decoder = decoders.Metaspace()
    assert pieces_of(made.to_str(), 2) == [b"a", b""]
    assert pieces_of('{"model": 3}', 2) is None


def test_ids_that_several_rules_forbid_count_once() -> None:
    ids = [np.array(each, dtype=np.intp) for each in ([5, 3], [], [3, 3, 9], [5])]
    assert _distinct(ids).tolist() == [3, 5, 9]
    assert _distinct(ids[1:2]).tolist() == []


def naive(
    rules: DecodingRules, sequences: Any, kind: str, prompt: list[int], text: list[int], token: int
) -> bool:
    """Whether a token is forbidden, by a search of all that it would make."""
    longer = [*text, token]
    kept = len(without_stop(longer, sequences))
    if kept < len(longer):
        return kept < rules.least_tokens
    n, whole = rules.no_repeated_ngram, [*prompt, *longer]
    if n is not None and whole[-n:] in [whole[i : i + n] for i in range(len(whole) - n)]:
        return True
    decoded = " " + tokenizer(kind).decode(longer, skip_special_tokens=True)
    phrases = (*rules.banned_words, *(LINE_BREAKS if rules.no_line_breaks else ()))
    return any(phrase in decoded for phrase in phrases)


rules_of = st.builds(
    DecodingRules,
    least_tokens=st.integers(0, 6),
    no_line_breaks=st.booleans(),
    no_repeated_ngram=st.sampled_from([None, 2, 3]),
    banned_words=st.lists(st.sampled_from(PHRASES), max_size=3, unique=True).map(tuple),
)


@given(st.data(), st.sampled_from(KINDS), rules_of)
@settings(max_examples=40)
def test_what_is_forbidden_is_what_a_search_of_the_decoded_text_finds(
    data: st.DataObject, kind: str, rules: DecodingRules
) -> None:
    known = tokenizer(kind)
    words = [known.encode(text).ids for text in ("zebra", " the sea", "```", "t", "\n", "a z")]
    sequences = [tuple(ids) for ids in words[2:5] if ids] + [
        (known.token_to_id("<end>"),),
        (),
        (-1,),
        (9999,),
    ]
    forbidden = ForbiddenTokens(rules, sequences, VOCABULARY, 1, known.to_str())
    prompt, text = data.draw(tokens), list[int]()
    likely = sorted({token for ids in words for token in ids})
    for _ in range(data.draw(st.integers(1, 8))):
        found = forbidden.after(prompt, text)
        union = {int(token) for ids in found.values() for token in ids}
        searched = {t for t in range(VOCABULARY) if naive(rules, sequences, kind, prompt, text, t)}
        # Where bytes fall back, a broken letter takes whole ones with it, which are forbidden all
        # the same.
        assert searched <= union and (searched == union or kind in ("fused", "stripped"))
        assert all(len(ids) and (np.diff(ids) > 0).all() for ids in found.values())
        allowed = [token for token in likely if token not in union] or [
            min(set(range(VOCABULARY)) - union)
        ]
        text.append(data.draw(st.sampled_from(allowed)))
        if without_stop(text, sequences) != text:
            break


def test_a_word_is_found_in_every_way_of_writing_it() -> None:
    known = tokenizer("bytes")
    rules, word = DecodingRules(banned_words=("été",)), "été".encode()
    forbidden, letters = (
        ForbiddenTokens(rules, (), VOCABULARY, 1, known.to_str()),
        pre_tokenizers.ByteLevel,
    )
    spelt = letters(add_prefix_space=False, use_regex=False).pre_tokenize_str("été")[0][0]
    byte_by_byte = [known.token_to_id(letter) for letter in spelt]
    assert len(byte_by_byte) == len(word) == 5
    for begun in range(5):
        assert (
            byte_by_byte[-1] in forbidden.after((), byte_by_byte[:begun]).get("banned_words", ())
        ) == (begun == 4)
    special = known.token_to_id("<end>")  # which is left out of a text
    assert (
        byte_by_byte[-1]
        in forbidden.after((), [*byte_by_byte[:2], special, *byte_by_byte[2:4]])["banned_words"]
    )


def test_the_end_of_a_text_is_judged_by_its_length_alone() -> None:
    known = tokenizer("bytes")
    newline, end, a = known.token_to_id("Ċ"), known.token_to_id("<end>"), known.token_to_id("a")
    rules = DecodingRules(
        least_tokens=2, no_line_breaks=True, no_repeated_ngram=2, banned_words=("\n \n a",)
    )
    forbidden = ForbiddenTokens(rules, [(newline,), (a, a, end)], VOCABULARY, 1, known.to_str())
    for length in range(4):
        found = forbidden.after((a, newline), [a] * length)
        assert (newline in found.get("least_tokens", ())) == (length < 2)
        assert (newline in found["no_line_breaks"]) == (length < 2)
        assert (newline in found.get("no_repeated_ngram", ())) == (length == 1)
    # The end's own tokens do not count: of "a a <end>" with an a before it one is left.
    assert [
        end in forbidden.after((), [a] * length).get("least_tokens", ()) for length in range(6)
    ] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_the_rule_of_ngrams_gives_way_where_it_leaves_too_few_tokens() -> None:
    rules = DecodingRules(no_repeated_ngram=2, least_tokens=3)
    text = [0, 0, 1, 0, 2, 0]
    for fewest, kept in ((1, True), (2, False), (4, False)):
        found = ForbiddenTokens(rules, [(3,)], 5, fewest, None).after((), text)
        assert ("no_repeated_ngram" in found) == (kept or fewest == 2)
        if "no_repeated_ngram" in found:
            assert found["no_repeated_ngram"].tolist() == [0, 1, 2]


def test_rules_that_leave_too_few_tokens_are_refused() -> None:
    rules = DecodingRules(least_tokens=1)
    assert ForbiddenTokens(rules, [(3,), (4,)], 5, 3, None).after((), ())[
        "least_tokens"
    ].tolist() == [3, 4]
    with pytest.raises(InputError, match=r"^decoding: .* may forbid 2 of .* 5 tokens, .* needs 4"):
        ForbiddenTokens(rules, [(3,), (4,)], 5, 4, None)
    made = Tokenizer(models.WordLevel({"ab": 0, "a": 1, "b": 2}, unk_token="a"))
    made.decoder = decoders.ByteLevel()
    # "b" only after an "a"
    with pytest.raises(InputError, match=r"may forbid 2 of the model's 3 tokens"):
        ForbiddenTokens(DecodingRules(banned_words=("ab",)), (), 3, 2, made.to_str())
    assert ForbiddenTokens(DecodingRules(), [(3,), (4,)], 5, 5, None).after((), ()) == {}


def test_rules_about_letters_need_a_tokenizer() -> None:
    for field, value in (("no_line_breaks", True), ("banned_words", ("a",))):
        for serialised in (None, "{}"):
            with pytest.raises(InputError, match=f"^decoding.{field}: .* not say"):
                ForbiddenTokens(DecodingRules(**{field: value}), (), 3, 1, serialised)


def test_hostile_numbers_are_no_tokens() -> None:
    rules = DecodingRules(no_repeated_ngram=2, banned_words=("zebra",))
    known = tokenizer("bytes")
    forbidden = ForbiddenTokens(rules, [(1 << 40,), (2, -3)], VOCABULARY, 1, known.to_str())
    found = forbidden.after((), [-5, 7, -5, 10**9, -5, VOCABULARY, -5, -1, -5])
    assert found["no_repeated_ngram"].tolist() == [7]


@pytest.mark.parametrize(
    "fields",
    [
        {"least_tokens": -1},
        {"no_repeated_ngram": 1},
        {"no_repeated_ngram": 65},
        {"banned_words": [" "]},
        {"banned_words": [""]},
        {"banned_words": ["a" * 65]},
        {"banned_words": ["a"] * 1025},
        {"banned_words": ["\ud800"]},
        {"no_line_breaks": 1},
    ],
)
def test_what_no_rule_can_be(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DecodingRules.model_validate(fields)
