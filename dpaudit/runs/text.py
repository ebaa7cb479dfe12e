"""Tokens as text, with the tokenizer that a run brings: it may come from anywhere, and may go on for ever."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, TypeAlias, TypeVar

Decode: TypeAlias = Callable[[Sequence[int]], str | None]
_Result = TypeVar("_Result")

#: The most that decoding may lengthen a token, in bytes; the decoders of known tokenizers stay below 4.
MAX_GROWTH = 64
#: The longest token. Known vocabularies have runs of some hundred blanks.
MAX_TOKEN_LENGTH = 1 << 10
MAX_DECODERS = 16

#: The largest id of a token that is looked at.
MAX_TOKEN_ID = 1 << 22
#: Public tokenizers by `decoding_digest`: whoever decodes with one of them adds nothing to the tokens.
KNOWN_TOKENIZERS = {
    "d2584cdc9e3c70dd9518a336edd033228e8dddf83ff5030d3ec0c4f6d9ccd224": "SmolLM2",
}

#: How much longer a token can become, by the kind of decoder. Others, and regular expressions, are not run.
_GROWTH = {"ByteFallback": 1, "ByteLevel": 3, "BPEDecoder": 2, "CTC": 2, "Fuse": 1, "Metaspace": 1, "WordPiece": 1}

_BYTE = re.compile(rb"<0x[0-9A-Fa-f]{2}>")
#: How byte-level tokenizers write bytes: as letters of Latin-1 where these can be seen, else as those from U+0100 on.
_SEEN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTES = {chr(byte): byte for byte in _SEEN} | {
    chr(0x100 + number): byte for number, byte in enumerate(sorted(set(range(0x100)) - set(_SEEN)))
}


def decoder_of(serialised: str, *, special: bool) -> Decode | None:
    """What decodes tokens by a tokenizer.json that `require_bounded` lets pass; None where it cannot be read.

    It shows end-of-text and the like where `special`, and gives None for tokens that the tokenizer cannot decode.
    """
    from tokenizers import Tokenizer

    tokenizer = _unless_it_fails(lambda: Tokenizer.from_str(serialised))
    if tokenizer is None:
        return None
    return lambda tokens: _unless_it_fails(  # as for a negative token id
        lambda: str(tokenizer.decode(list(tokens), skip_special_tokens=not special))
    )


def pieces_of(serialised: str, vocabulary: int) -> list[bytes] | None:
    """What each token adds to a text that `decoder_of` decodes without special tokens, in UTF-8; for ids below V.

    A text's own bytes are those of its tokens in a row, but for a blank that a decoder takes off its beginning. None
    where the tokenizer cannot be read, or its decoder does not put texts together so.
    """
    from tokenizers import Tokenizer

    tokenizer = _unless_it_fails(lambda: Tokenizer.from_str(serialised))
    spell = _spelling(json.loads(serialised).get("decoder")) if tokenizer is not None else None
    if tokenizer is None or spell is None:
        return None
    special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    tokens = (None if token in special else tokenizer.id_to_token(token) for token in range(vocabulary))
    return [b"" if token is None else spell(token.encode()) for token in tokens]


def decoding_digest(serialised: str) -> str | None:
    """SHA-256 of all that decides what text tokens are: each id's token, which are special, and the decoder.

    Two forms of one tokenizer have the same digest, whatever else they say of how texts become tokens. None where the
    tokenizer cannot be read.
    """
    from tokenizers import Tokenizer

    tokenizer = _unless_it_fails(lambda: Tokenizer.from_str(serialised))
    if tokenizer is None:
        return None
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    size = max(tokenizer.get_vocab_size(with_added_tokens=True), 1 + max(ids, default=0))
    if size > MAX_TOKEN_ID:
        return None
    special = sorted(token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)
    decoder = json.loads(serialised).get("decoder")
    if isinstance(decoder, dict) and decoder.get("type") == "ByteLevel":
        decoder = {"type": "ByteLevel"}  # its other fields are about encoding
    tokens = [tokenizer.id_to_token(token) for token in range(size)]
    said = json.dumps({"tokens": tokens, "special": special, "decoder": decoder}, sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()


def _spelling(decoder: Any) -> Callable[[bytes], bytes] | None:
    """What a decoder makes of one token among others; None for one of another kind."""
    match decoder:
        case None:
            return lambda token: b" " + token
        case {"type": "ByteLevel"}:
            return _from_byte_level
        case {"type": "ByteFallback"}:
            return lambda token: bytes.fromhex(token[3:5].decode()) if _BYTE.fullmatch(token) else token
        case {"type": "Fuse"}:
            return lambda token: token
        case {"type": "Metaspace", "replacement": str(blank)}:
            return lambda token: token.replace(blank.encode(), b" ")
        case {"type": "Replace", "pattern": {"String": str(blank)}, "content": " "} if len(blank) == 1:
            return lambda token: token.replace(blank.encode(), b" ")
        case {"type": "Sequence", "decoders": [*inner, {"type": "Fuse"}, {"type": "Strip"}]}:
            return _spelling({"type": "Sequence", "decoders": inner})  # what is stripped are the text's own ends
        case {"type": "Sequence", "decoders": list(inner)}:
            steps = [step for step in map(_spelling, inner) if step is not None]
            whole = len(steps) == len(inner)
            return (lambda token: reduce(lambda made, step: step(made), steps, token)) if whole else None
    return None


def _from_byte_level(token: bytes) -> bytes:
    """Letters that each stand for a byte; a token with any other stands for itself."""
    try:
        return bytes(_BYTES[letter] for letter in token.decode())
    except KeyError:
        return token


def _unless_it_fails(call: Callable[[], _Result]) -> _Result | None:
    """The library raises plain Exception for what it does not understand, and BaseException where it panics."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return None


def require_bounded(serialised: str) -> None:
    """Raises ValueError for a tokenizer whose decoding nothing bounds, or that is not JSON with each key once."""
    try:
        tokenizer = json.loads(serialised, object_pairs_hook=each_once)
        if not isinstance(tokenizer, dict):
            raise ValueError("this is not an object")
        if not _growth(tokenizer.get("decoder")) <= MAX_GROWTH:
            raise ValueError("the decoder is not one whose work is bounded")
        if any(isinstance(token, str) and len(token) > MAX_TOKEN_LENGTH for token in _tokens(tokenizer)):
            raise ValueError(f"a token is longer than {MAX_TOKEN_LENGTH} characters")
    except RecursionError:
        raise ValueError("its JSON is too deep") from None


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object whose every reader finds the same in it. Raises ValueError for a doubled key."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is doubled")
    return found


def _growth(decoder: Any) -> float:
    match decoder:
        case None:
            return 1
        case {"type": "Sequence", "decoders": list(inner)} if len(inner) <= MAX_DECODERS:
            return math.prod(map(_growth, inner))
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1.0, len(new.encode("utf-8", "replace")) / len(old))
        # The library runs off the end of a token that is shorter than what is stripped.
        case {"type": "Strip", "start": 0 | 1, "stop": 0 | 1}:
            return 1
        case {"type": str(kind)}:
            return _GROWTH.get(kind, math.inf)
    return math.inf


def _tokens(tokenizer: dict[str, Any]) -> Iterator[Any]:
    """Every token's text, whatever the kind of model."""
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from vocabulary
    for entry in vocabulary if isinstance(vocabulary, list) else ():
        yield from entry if isinstance(entry, list) else ()
    for entry in added if isinstance(added, list) else ():
        yield entry.get("content") if isinstance(entry, dict) else None
