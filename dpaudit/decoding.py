"""Tokens as text, with the tokenizer that a run brings: it may come from anywhere, and may not be readable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from dpaudit.runs import InputError, RunReader

Decode: TypeAlias = Callable[[Sequence[int]], str | None]

_INTERRUPTIONS = (KeyboardInterrupt, SystemExit)


def decoder_of(reader: RunReader, *, special: bool) -> Decode | None:
    """What decodes the run's tokens; None where it has no tokenizer that can be read.

    Args:
        reader: of the run.
        special: whether end-of-text and the like are shown.

    Returns:
        Text, or None for tokens that the tokenizer cannot decode.
    """
    try:
        serialised = reader.tokenizer_json()
    except InputError:  # integrity.format says why
        return None
    if serialised is None:
        return None
    from tokenizers import Tokenizer

    # The library raises plain Exception for what it does not understand, and BaseException where it panics.
    try:
        tokenizer = Tokenizer.from_str(serialised)
    except _INTERRUPTIONS:
        raise
    except BaseException:
        return None

    def decode(tokens: Sequence[int]) -> str | None:
        try:
            return str(tokenizer.decode(list(tokens), skip_special_tokens=not special))
        except _INTERRUPTIONS:
            raise
        except BaseException:  # a negative token id, for one
            return None

    return decode
