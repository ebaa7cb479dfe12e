"""A user's own prompt template: a text with `{example}`, and `{label}` where there are labels.

Nothing in it is evaluated, and what takes a placeholder's place is not looked at again: a record
may hold `{label}`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

EXAMPLE, LABEL = "{example}", "{label}"
#: A doubled brace, which stands for one; a placeholder; or a brace that is neither.
_MARK = re.compile(r"\{\{|\}\}|\{[^{}\n]*\}|[{}]")
_DOUBLED = {"{{": "{", "}}": "}"}
#: Nobody sees these in a config, a NUL parts what a digest is made of, and a lone surrogate cannot
#: be encoded.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class Part(NamedTuple):
    """A piece of a prompt.

    It is `shown` if it is a label or an example, rather than the template's own words.
    """

    text: str
    shown: bool


class WordingError(ValueError):
    """Why a text is no template.

    Attributes:
        given: the part of it that is wrong.
        allowed: what could stand there, as the end of a sentence.
    """

    def __init__(self, given: str, allowed: str) -> None:
        super().__init__(f"{given!r}: {allowed}")
        self.given, self.allowed = given, allowed


@dataclass(frozen=True)
class _Placeholder:
    """The place of a label or an example, apart from any text, even one that reads the same."""

    name: str


_Line = tuple[str | _Placeholder, ...]
_LABEL, _EXAMPLE = _Placeholder(LABEL), _Placeholder(EXAMPLE)


@dataclass(frozen=True)
class Wording:
    """A template by its lines.

    The line with `{example}` is there once for each example, and not without any.

    Attributes:
        lines: all of them, each in parts.
        shows_label: whether a label is among the parts.
    """

    lines: tuple[_Line, ...]
    shows_label: bool

    @classmethod
    def of(cls, text: str) -> Wording:
        """Parse a template.

        Raises:
            WordingError: the text is none.
        """
        require_seen(text)
        lines = tuple(_parts(line) for line in text.split("\n"))
        parts = [part for line in lines for part in line]
        if (found := parts.count(_EXAMPLE)) != 1:
            raise WordingError(text, f"a text that holds {EXAMPLE} once, and not {found} times")
        if not any(_shows(part) for line in lines if _EXAMPLE not in line for part in line):
            allowed = (
                f"a text with words in a line without {EXAMPLE}: of these a prompt without "
                "examples is made"
            )
            raise WordingError(text, allowed)
        return cls(lines, _LABEL in parts)

    def filled(self, label: str, examples: Sequence[str]) -> str:
        """Return the prompt, in one pass over the template."""
        return "".join(part.text for part in self.parts(label, examples))

    def parts(self, label: str, examples: Sequence[str]) -> list[Part]:
        """Return the prompt in pieces, in one pass over the template."""
        parts: list[Part] = []
        for line in self.lines:
            for example in examples if _EXAMPLE in line else ("",):
                parts += (_said(part, label, example) for part in line)
                parts.append(Part("\n", False))
        return parts[:-1]


def require_seen(text: str) -> None:
    """Refuse control characters, except tabs and line breaks, and lone surrogates.

    Raises:
        WordingError: the text holds such a character.
    """
    if found := _UNSEEN.search(text):
        raise WordingError(
            found.group(), "text without control characters; line breaks and tabs may be there"
        )


def _parts(line: str) -> _Line:
    """Return a line's texts and placeholders."""
    parts: list[str | _Placeholder] = []
    end = 0
    for mark in _MARK.finditer(line):
        parts.append(line[end : mark.start()])
        parts.append(_marked(mark.group()))
        end = mark.end()
    parts.append(line[end:])
    return tuple(part for part in parts if part)


def _marked(mark: str) -> str | _Placeholder:
    if mark in _DOUBLED:
        return _DOUBLED[mark]
    if mark in (EXAMPLE, LABEL):
        return _EXAMPLE if mark == EXAMPLE else _LABEL
    if len(mark) == 1:
        raise WordingError(
            mark, f"{EXAMPLE} and {LABEL}; a brace of the text itself is doubled, {{{{ or }}}}"
        )
    raise WordingError(
        mark, f"{EXAMPLE} and {LABEL}, and no other placeholder; double the braces of plain text"
    )


def _shows(part: str | _Placeholder) -> bool:
    return isinstance(part, _Placeholder) or bool(part.strip())


def _said(part: str | _Placeholder, label: str, example: str) -> Part:
    if isinstance(part, str):
        return Part(part, False)
    return Part(example if part == _EXAMPLE else label, True)
