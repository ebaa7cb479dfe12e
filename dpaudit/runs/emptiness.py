"""Texts that say nothing, told by rules that look at the texts and at what is public alone.

A model that cannot follow its prompt writes numbers, lists, one phrase again and again, the
request itself, or another language. Records of some kinds look like that, too: a rule that a public
example breaks is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import islice
from typing import Literal, TypeAlias

#: Why a text says nothing.
Emptiness: TypeAlias = Literal["short", "digits", "list", "repeats", "prompt", "language"]

#: A text with fewer letters is short: some three words of English.
_LETTERS = 15
#: A text whose characters, white space apart, are letters to a smaller share is digits or signs.
_LETTER_SHARE = 0.5
#: A text with at least so many items is a list, where most of them have at most so many words.
_ITEMS, _ITEM_WORDS, _ITEM_SHARE = 5, 2, 0.75
#: A text repeats itself if a smaller share of its runs of so many words is new.
_RUN, _NEW_SHARE = 3, 0.5
#: A text repeats the prompt if such a share of its words lies in runs of so many of its words.
_COPIED_RUN, _COPIED_SHARE = 4, 0.5
#: Language is told by the words that several examples share, such as "the": a text of so many
#: words has at least this share of them. Fewer words of examples than these tell no language.
_LANGUAGE_WORDS, _SHARED_SHARE, _EXAMPLE_WORDS = 12, 0.05, 40
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_SEPARATOR = re.compile(r"[\n,;|/•*·]+|\s[-–—]\s|\b\d+[.)]\s")


class EmptinessRules:
    """The rules, as far as they fit a run's public examples."""

    def __init__(self, requests: Iterable[str], examples: Iterable[str]) -> None:
        """Args: the wording of the public prompts without examples; all public examples."""
        shown = tuple(examples)
        public = {run for text in (*requests, *shown) for run in _runs(_words(text), _COPIED_RUN)}
        common = _shared_words(shown)
        rules: dict[Emptiness, Callable[[str], bool]] = {
            "short": _is_short,
            "digits": _is_digits,
            "list": _is_list,
            "repeats": _repeats,
            "language": lambda text: _is_foreign(text, common),
        }
        self._rules = {name: rule for name, rule in rules.items() if not any(map(rule, shown))}
        self._rules["prompt"] = lambda text: _copies(text, public)

    def reason(self, text: str) -> Emptiness | None:
        """Return why a text says nothing, or None."""
        return next((name for name, breaks in self._rules.items() if breaks(text)), None)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _runs(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return list(zip(*(islice(words, start, None) for start in range(length)), strict=False))


def _is_short(text: str) -> bool:
    return sum(map(str.isalpha, text)) < _LETTERS


def _is_digits(text: str) -> bool:
    seen = [character for character in text if not character.isspace()]
    return sum(map(str.isalpha, seen)) < _LETTER_SHARE * len(seen)


def _is_list(text: str) -> bool:
    items = [words for piece in _SEPARATOR.split(text) if (words := _words(piece))]
    few = sum(len(words) <= _ITEM_WORDS for words in items)
    return len(items) >= _ITEMS and few >= _ITEM_SHARE * len(items)


def _repeats(text: str) -> bool:
    runs = _runs(_words(text), _RUN)
    return len(runs) > 1 and len(set(runs)) < _NEW_SHARE * len(runs)


def _copies(text: str, public: Set[tuple[str, ...]]) -> bool:
    words = _words(text)
    copied = {
        place
        for start, run in enumerate(_runs(words, _COPIED_RUN))
        if run in public
        for place in range(start, start + _COPIED_RUN)
    }
    return bool(copied) and len(copied) >= _COPIED_SHARE * len(words)


def _shared_words(examples: Sequence[str]) -> frozenset[str]:
    """Return the words that at least two examples have; none where these are too few to tell."""
    each = [_words(example) for example in examples]
    if sum(map(len, each)) < _EXAMPLE_WORDS:
        return frozenset()
    counts = Counter(word for words in each for word in set(words))
    return frozenset(word for word, count in counts.items() if count > 1)


def _is_foreign(text: str, common: frozenset[str]) -> bool:
    words = _words(text)
    shared = sum(word in common for word in words)
    return bool(common) and len(words) >= _LANGUAGE_WORDS and shared < _SHARED_SHARE * len(words)
