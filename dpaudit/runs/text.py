"""Tokens as text, with the tokenizer that a run brings: it may come from anywhere, and may go on for ever."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

Decode: TypeAlias = Callable[[Sequence[int]], str | None]
_Result = TypeVar("_Result")

#: The most that decoding may lengthen a token, in bytes; the decoders of known tokenizers stay below 4.
MAX_GROWTH = 64
#: The longest token. Known vocabularies have runs of some hundred blanks.
MAX_TOKEN_LENGTH = 1 << 10
MAX_DECODERS = 16

#: How much longer a token can become, by the kind of decoder. Others, and regular expressions, are not run.
_GROWTH = {"ByteFallback": 1, "ByteLevel": 3, "BPEDecoder": 2, "CTC": 2, "Fuse": 1, "Metaspace": 1, "WordPiece": 1}


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
