"""JSON of untrusted files: bounded before it is parsed, and read alike by every reader."""

from __future__ import annotations

import json
from typing import Any, NoReturn

#: The most values of a file, unless it has a limit of its own. One takes up to 300 bytes in memory,
#: and an error about it more.
MAX_VALUES = 1 << 17
#: The most digits of a whole number: far beyond every field's bound, so its field can be named.
_MAX_DIGITS = 1 << 10
_ZEROS = bytes.maketrans(b"123456789", b"000000000")


def load(text: str | bytes, most: int = MAX_VALUES) -> Any:
    """Return the content of JSON that all readers read alike: keys come once, numbers are finite.

    Raises:
        ValueError: it is no such JSON, may have more than `most` values, or is too deep.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    # Each value but the first comes after one of these; more of them may stand inside strings.
    if sum(map(data.count, (b"[", b"{", b","))) > most:
        raise ValueError(f"it has more than {most:,} values")
    if isinstance(text, bytes):
        text = text.decode("utf-8")  # else the parser would guess, and take what is none
    # To be asked about each number takes a parser twice as long.
    has_long = b"0" * _MAX_DIGITS in data.translate(_ZEROS)
    try:
        return json.loads(
            text,
            parse_int=_integer if has_long else int,
            parse_constant=_refuse_constant,
            object_pairs_hook=_require_distinct_keys,
        )
    except RecursionError:
        raise ValueError("it is too deep") from None


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has more than {_MAX_DIGITS:,} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _require_distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object without doubled keys."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is doubled")
    return found
