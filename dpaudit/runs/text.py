"""Text from tokens, by the tokenizer that a run brings: untrusted, and perhaps endless."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any, TypeAlias, TypeVar

from dpaudit.mechanisms import MAX_VOCABULARY
from dpaudit.runs.strict_json import load

Decode: TypeAlias = Callable[[Sequence[int]], str | None]
_Result = TypeVar("_Result")

#: The most that decoding may lengthen a token, in bytes; the decoders of known tokenizers stay
#: below 4.
MAX_GROWTH = 64
#: The longest token. Known vocabularies have runs of some hundred blanks.
MAX_TOKEN_LENGTH = 1 << 10
MAX_DECODERS = 16
#: The most characters of a text's tokens: 32 letters for each of the most tokens of a text.
MAX_TEXT_LENGTH = 1 << 20
#: The largest tokenizer without its merges. One of 250,000 tokens with scores takes 17 million
#: bytes, and 750,000 values.
MAX_VOCABULARY_BYTES, MAX_VOCABULARY_VALUES = 20 << 20, 800_000

#: Public tokenizers by `Vocabulary.digest`: decoding with one of them adds nothing to the tokens.
KNOWN_TOKENIZERS = {
    "3e6d6bc1d32acd6a1bfadfae99a6eb20e822df7ca1ac2ef993a3076e6e0826cd": "SmolLM2",
    "1ba583f1c7652c7b6afb7586820fe3d188b45d766c96d6c4bd774d348a15255f": "Gemma 3",
}

#: The factor by which a token can grow, by the kind of decoder. Others, and regular expressions,
#: are not run.
_GROWTH = {
    "ByteFallback": 1,
    "ByteLevel": 3,
    "BPEDecoder": 2,
    "CTC": 2,
    "Fuse": 1,
    "Metaspace": 1,
    "WordPiece": 1,
}

#: A list of texts, or of pairs of texts. Nothing is tried twice, so it takes linear time.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_PAIR = rb"\[\s*+" + _STRING + rb"\s*+,\s*+" + _STRING + rb"\s*+\]"
_MERGE = rb"(?:" + _STRING + rb"|" + _PAIR + rb")"
_MERGES = re.compile(
    rb'(?<!\\)"merges"\s*+:\s*+\[\s*+(?:' + _MERGE + rb"(?:\s*+,\s*+" + _MERGE + rb")*+)?+\s*+\]"
)
_BYTE = re.compile(rb"<0x[0-9A-Fa-f]{2}>")
#: Letters for bytes in byte-level tokenizers: visible ones of Latin-1, else those from U+0100 on.
_SEEN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTES = {chr(byte): byte for byte in _SEEN} | {
    chr(0x100 + number): byte for number, byte in enumerate(sorted(set(range(0x100)) - set(_SEEN)))
}


@dataclass(frozen=True)
class Vocabulary:
    """The texts of tokens by a tokenizer.json. Merges and the splitting of texts are not read.

    Attributes:
        tokens: the text of each token id.
        special: texts of tokens such as end-of-text, which a decoded text may leave out.
        decoder: as the file has it.
    """

    tokens: Mapping[int, str]
    special: frozenset[str]
    decoder: Any

    @classmethod
    def of(cls, serialised: str | bytes) -> Vocabulary:
        """Read a tokenizer.json, or return the one that was read last if it has the same bytes.

        Raises:
            ValueError: nothing bounds its decoding, or readers may read it differently.
        """
        return _read(serialised if isinstance(serialised, bytes) else serialised.encode())

    def decode(self, tokens: Sequence[int], *, special: bool) -> str | None:
        """Return the text of tokens; unknown ids are skipped.

        It is None if an id is negative, the text would be longer than any model writes, or the
        decoder cannot be run.

        Args:
            tokens: ids.
            special: whether to keep special tokens, such as end-of-text.
        """
        if min(tokens, default=0) < 0:
            return None
        texts = [self.tokens[token] for token in tokens if token in self.tokens]
        if not special:
            texts = [text for text in texts if text not in self.special]
        if self.decoder is None:
            return " ".join(texts)
        if sum(map(len, texts)) > MAX_TEXT_LENGTH or self._library is None:
            return None
        return _call_or_none(lambda: str(self._library.decode(texts)))

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of everything that makes text of tokens: texts by id, special ones, decoder.

        Two forms of one tokenizer have the same digest, whatever else they say of how texts become
        tokens.
        """
        decoder = self.decoder
        if isinstance(decoder, dict) and decoder.get("type") == "ByteLevel":
            decoder = {"type": "ByteLevel"}  # its other fields are about encoding
        tokens = [*map(self.tokens.get, range(1 + max(self.tokens, default=-1)))]
        said = json.dumps(
            {"tokens": tokens, "special": sorted(self.special), "decoder": decoder}, sort_keys=True
        )
        return hashlib.sha256(said.encode()).hexdigest()

    def piece(self, token: int) -> bytes | None:
        """Return the UTF-8 that a token adds to a text that is decoded without special tokens.

        A text's own bytes are those of its tokens in a row, but for a blank that a decoder takes
        off its beginning. It is None if the decoder does not put texts together so.
        """
        if self._spell is None:
            return None
        said = self.tokens.get(token)
        if said is None or said in self.special:
            return b""
        return self._spell(said.encode())

    @cached_property
    def _spell(self) -> Callable[[bytes], bytes] | None:
        return _spelling(self.decoder)

    @cached_property
    def _library(self) -> Any:
        """The decoder, run by the library of the format; None if the library cannot read it."""
        from tokenizers import Tokenizer

        nothing = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
        bare = json.dumps(
            {"version": "1.0", "added_tokens": [], "model": nothing, "decoder": self.decoder}
        )
        return _call_or_none(lambda: Tokenizer.from_str(bare).decoder)


# several parts of one audit ask for the same tokenizer, through more than one reader
@lru_cache(maxsize=1)
def _read(serialised: bytes) -> Vocabulary:
    """Parse a tokenizer.json for `Vocabulary.of`."""
    # Merges are half of a tokenizer, and of no use here: a list of texts or of pairs of them,
    # passed over whole.
    data = _MERGES.sub(b'"merges":[]', serialised)
    if len(data) > MAX_VOCABULARY_BYTES:
        raise ValueError(f"its vocabulary takes more than {MAX_VOCABULARY_BYTES:,} bytes")
    tokenizer = load(data, MAX_VOCABULARY_VALUES)
    if not isinstance(tokenizer, dict):
        raise ValueError("this is not an object")
    if not _growth_factor(tokenizer.get("decoder")) <= MAX_GROWTH:
        raise ValueError("the decoder is not one whose work is bounded")
    ids = _model_tokens(tokenizer.get("model"))
    tokens, special = _add_tokens(ids, tokenizer.get("added_tokens") or [])
    if max(map(len, ids), default=0) > MAX_TOKEN_LENGTH:
        raise ValueError(f"a token is longer than {MAX_TOKEN_LENGTH} characters")
    return Vocabulary(tokens, special, tokenizer.get("decoder"))


def pieces_of(serialised: str | bytes, vocabulary: int) -> list[bytes] | None:
    """Return `Vocabulary.piece` of every token, for ids below `vocabulary`.

    It is None if the tokenizer cannot be read, or has no pieces.
    """
    try:
        known = Vocabulary.of(serialised)
    except ValueError:
        return None
    pieces = [piece for piece in map(known.piece, range(vocabulary)) if piece is not None]
    return pieces if len(pieces) == vocabulary else None


def _model_tokens(model: Any) -> dict[str, int]:
    """Return the id of each text, whatever the kind of model.

    Raises:
        ValueError: there are none, or two of an id.
    """
    match model:
        case {"vocab": dict(ids)}:
            if set(map(type, ids.values())) - {int} or not (
                0 <= min(ids.values(), default=0) <= max(ids.values(), default=0) < MAX_VOCABULARY
            ):
                raise ValueError("a token's id is no number of a token")
        case {"vocab": list(rows)}:
            if not all(
                isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) for row in rows
            ):
                raise ValueError("a token is not a text and its score")
            ids = {row[0]: number for number, row in enumerate(rows)}
        case _:
            raise ValueError("its model has no vocabulary")
    if len(set(ids.values())) != len(model["vocab"]):
        raise ValueError("two tokens have one id, or one text")
    return dict(ids)


def _add_tokens(ids: dict[str, int], added: Any) -> tuple[dict[int, str], frozenset[str]]:
    """Add a tokenizer's own tokens to the model's; return the text of each id, and special ones.

    Raises:
        ValueError: they are no such tokens.
    """
    special, tokens = set(), dict(zip(ids.values(), ids, strict=True))
    if not isinstance(added, list):
        raise ValueError("added_tokens is not a list")
    for entry in added:
        match entry:
            case {"id": int(number), "content": str(token), "special": bool(hidden)} if (
                type(number) is int
            ):
                # The library would give a token of the model the model's id, whatever is said here.
                if (
                    ids.setdefault(token, number) != number
                    or tokens.setdefault(number, token) != token
                ):
                    raise ValueError("an added token has the id or the text of another")
                if not 0 <= number < MAX_VOCABULARY:
                    raise ValueError("a token's id is no number of a token")
                if hidden:
                    special.add(token)
            case _:
                raise ValueError("an added token is not an id, a text and whether it is special")
    return tokens, frozenset(special)


def _spelling(decoder: Any) -> Callable[[bytes], bytes] | None:
    """Return what a decoder makes of one token among others; None for other decoders."""
    match decoder:
        case None:
            return lambda token: b" " + token
        case {"type": "ByteLevel"}:
            return _decode_byte_level
        case {"type": "ByteFallback"}:
            return lambda token: (
                bytes.fromhex(token[3:5].decode()) if _BYTE.fullmatch(token) else token
            )
        case {"type": "Fuse"}:
            return lambda token: token
        case {"type": "Metaspace", "replacement": str(blank)}:
            return lambda token: token.replace(blank.encode(), b" ")
        case {"type": "Replace", "pattern": {"String": str(blank)}, "content": " "} if (
            len(blank) == 1
        ):
            return lambda token: token.replace(blank.encode(), b" ")
        case {"type": "Sequence", "decoders": [*inner, {"type": "Fuse"}, {"type": "Strip"}]}:
            # what is stripped are the text's own ends
            return _spelling({"type": "Sequence", "decoders": inner})
        case {"type": "Sequence", "decoders": list(inner)}:
            steps = [step for step in map(_spelling, inner) if step is not None]
            if len(steps) == len(inner):
                return lambda token: reduce(lambda made, step: step(made), steps, token)
    return None


def _decode_byte_level(token: bytes) -> bytes:
    """Return the bytes that a token's letters stand for; any other token stands for itself."""
    try:
        return bytes(_BYTES[letter] for letter in token.decode())
    except KeyError:
        return token


def _call_or_none(call: Callable[[], _Result]) -> _Result | None:
    """Call the library, or return None.

    It raises plain Exception for what it does not understand, and BaseException where it panics.
    """
    try:
        return call()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return None


def _growth_factor(decoder: Any) -> float:
    match decoder:
        case None:
            return 1
        case {"type": "Sequence", "decoders": list(inner)} if len(inner) <= MAX_DECODERS:
            return math.prod(map(_growth_factor, inner))
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1.0, len(new.encode("utf-8", "replace")) / len(old))
        # The library runs off the end of a token that is shorter than what is stripped.
        case {"type": "Strip", "start": 0 | 1, "stop": 0 | 1}:
            return 1
        case {"type": str(kind)}:
            return _GROWTH.get(kind, math.inf)
    return math.inf
