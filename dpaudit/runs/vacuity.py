"""Texts that say nothing, by rules that look at a released text and at public text alone.

The rules look at no record and no logit: applying them to released texts is post-processing, and
costs no epsilon.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from dpaudit.runs.manifest import Manifest

#: How a text says nothing, in the order in which the rules are tried; the first counts.
Vacuity: TypeAlias = Literal[
    "empty", "very_short", "digits", "lists", "repetitions", "prompts", "other_language"
]
VACUITIES: tuple[Vacuity, ...] = get_args(Vacuity)

#: A text of fewer tokens before its end is very short.
VERY_SHORT = 5
#: The words of the paper's instruction template, which texts may repeat.
IT_HEAD = "Here are texts with Label: {label}.\n\n"
IT_REQUEST = "Please give another one. No formatting or explanations."
#: Least share of letters among the characters of a text that are no white space.
_LETTERS = 0.5
#: Least share of words that are numbers or single letters, of so many words at least, from which
#: these say nothing: no text of 45,528 by people is such a one (seven corpora, 2026-11-27).
_SIGNS, _FEWEST_SIGNS = 2 / 3, 5
#: A list has so many items; an item has at most so many words, or begins with a mark.
_ITEMS, _WORDS_OF_ITEM = 5, 2
#: Lines that make a list.
_LINES = 3
#: Share of items or lines that look like those of a list, from which a text is one.
_MOST_ITEMS = 0.8
#: A text of so many words repeats itself where fewer of its pairs of words are distinct, or where
#: one word makes more of it: 10 of 80,058 texts by people that have five words or more do (nine
#: corpora, 2026-11-28).
_FEWEST_WORDS, _DISTINCT, _ONE_WORD = 4, 0.6, 1 / 2
#: Words in a row that a text shares with the prompt's own words, and with a public example.
_RUN, _EXAMPLE_RUN = 5, 8
#: With so many words, one at least is among those of the public examples, in their language.
_COMMON = 10
#: Share of the public examples' letters that make a script one of theirs.
_SCRIPT = 0.1

_WORD = re.compile(r"\w+")
#: Words, with what an apostrophe joins.
_JOINED = re.compile(r"\w+(?:['’]\w+)*")
#: Marks on both sides of a template's label.
_FRAME = re.compile(r"([(\[<\"'])\{label\}([)\]>\"'])")
#: What a line that asks for something ends with; texts that say something hardly do.
_ASKING = ":"
_ITEM = re.compile(r"[,;|\n•]")
_NAME = re.compile(r"[@#]\w|https?://")
_MARKED = re.compile(r"^\s*(?:[-*•#>]|\(?[0-9A-Za-z]{1,3}[.)](?:\s|$))")


class PublicText(NamedTuple):
    """The public text of a run, as the rules need it.

    Attributes:
        runs: runs of words that no text should repeat: of the prompt's own words, and of public
            examples.
        words: all words of the public examples and the prompt; empty without examples.
        framed: the labels, each as the request shows it between marks, such as "(theft)".
        ending: the mark that ends the request, such as ":"; empty without one, or where a public
            example ends so, too.
        scripts: the scripts of the public examples' letters.
        usual: rules that a public example breaks, too: of such records they tell nothing.
    """

    runs: frozenset[tuple[str, ...]]
    words: frozenset[str]
    framed: frozenset[str]
    ending: str
    scripts: frozenset[str]
    usual: frozenset[Vacuity]

    @classmethod
    def of(cls, manifest: Manifest) -> PublicText:
        """Return a run's, from its prompt, its public examples and its labels."""
        prompt = manifest.prompt
        template = prompt.text or (IT_HEAD + IT_REQUEST if prompt.template == "it" else "")
        examples = [text for texts in prompt.public_examples.values() for text in texts]
        asked = [
            _words(line.replace("{label}", label).replace("{example}", ""))
            for line in template.split("\n")
            for label in manifest.data.groups
        ]
        runs = {run for words in asked for run in _runs(words, _RUN)}
        runs |= {run for text in examples for run in _runs(_words(text), _EXAMPLE_RUN)}
        known = {word for words in (*asked, *map(_words, examples)) for word in words}
        usual = {name for text in examples for name, breaks in _RULES.items() if breaks(text)}
        return cls(
            frozenset(runs),
            frozenset(known if examples else ()),
            _framed(template, manifest.data.groups, examples),
            _ending(template, examples),
            _main_scripts(examples),
            frozenset(usual),
        )


def vacuity(text: str | None, tokens: Sequence[int], public: PublicText) -> Vacuity | None:
    """Return how a text says nothing, or None.

    Args:
        text: as released; None if only token ids are.
        tokens: its ids, without what ends it.
        public: of the run.
    """
    if not tokens if text is None else not text.strip():
        return "empty"
    if len(tokens) < VERY_SHORT:
        return "very_short"
    if text is None:
        return None
    for name, breaks in _RULES.items():
        if name not in public.usual and breaks(text):
            return name
    words = _words(text)
    if any(run in public.runs for length in (_RUN, _EXAMPLE_RUN) for run in _runs(words, length)):
        return "prompts"
    if _is_request(text, public):
        return "prompts"
    return "other_language" if _in_other_language(text, words, public) else None


def vacuities(
    texts: Iterable[tuple[str | None, Sequence[int]]], public: PublicText
) -> Counter[Vacuity]:
    """Return how many texts, each with its tokens, say nothing, by how they do."""
    named = (vacuity(text, tokens, public) for text, tokens in texts)
    return Counter(name for name in named if name is not None)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))


def _runs(words: Sequence[str], length: int) -> Iterable[tuple[str, ...]]:
    """Return the runs of so many words in a row."""
    return (tuple(words[at : at + length]) for at in range(len(words) - length + 1))


def _lacks_letters(text: str) -> bool:
    """Return whether most characters are no letters, or nearly all words are numbers or letters."""
    seen = [character for character in text if not character.isspace()]
    if sum(map(str.isalpha, seen)) < _LETTERS * len(seen):
        return True
    words = _JOINED.findall(text)
    signs = sum(len(word) == 1 or word.isdigit() for word in words)
    return len(words) >= _FEWEST_SIGNS and signs >= _SIGNS * len(words)


def _is_list(text: str) -> bool:
    """Return whether most lines, parts between commas or words are items.

    A line with a mark is one, and so is a word that is an account, a hashtag or a link.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    marked = sum(bool(_MARKED.match(line)) or _is_item(line) for line in lines)
    parts = [part for part in _ITEM.split(text) if part.strip()]
    names = sum(bool(_NAME.match(word)) for word in text.split())
    return (
        (len(lines) >= _LINES and marked >= _MOST_ITEMS * len(lines))
        or (len(parts) >= _ITEMS and sum(map(_is_item, parts)) >= _MOST_ITEMS * len(parts))
        or (names > 0 and names >= _MOST_ITEMS * len(text.split()))
    )


def _is_item(part: str) -> bool:
    return len(_words(part)) <= _WORDS_OF_ITEM


def _repeats_itself(text: str) -> bool:
    words = _words(text)
    if len(words) < _FEWEST_WORDS:
        return False
    pairs = list(_runs(words, 2))
    same = max(Counter(words).values())
    return len(set(pairs)) < _DISTINCT * len(pairs) or same > _ONE_WORD * len(words)


#: By the text alone.
_RULES: Final[dict[Vacuity, Callable[[str], bool]]] = {
    "digits": _lacks_letters,
    "lists": _is_list,
    "repetitions": _repeats_itself,
}


def _is_request(text: str, public: PublicText) -> bool:
    """Return whether a text asks for texts, as the request does, and is none itself."""
    shown = text.casefold()
    ends = bool(public.ending) and shown.rstrip().endswith(public.ending)
    return ends or any(label in shown for label in public.framed)


def _framed(template: str, labels: Iterable[str], examples: Iterable[str]) -> frozenset[str]:
    """Return the labels between the marks that the template has around them on both sides."""
    marks = {found.groups() for found in _FRAME.finditer(template)}
    framed = {f"{before}{label}{after}".casefold() for label in labels for before, after in marks}
    return frozenset(
        each for each in framed if not any(each in text.casefold() for text in examples)
    )


def _ending(template: str, examples: Iterable[str]) -> str:
    """Return the mark that ends the template's line of the request, if no example ends so."""
    lines = [line.strip() for line in template.split("\n") if "{example}" not in line]
    mark = next((line[-1] for line in lines if line and line[-1] in _ASKING), "")
    return "" if any(text.rstrip().endswith(mark) for text in examples) else mark


def _in_other_language(text: str, words: Sequence[str], public: PublicText) -> bool:
    """Return whether a text has other letters than the public examples, or none of their words."""
    scripts = _scripts([text])
    own = sum(count for script, count in scripts.items() if script in public.scripts)
    if public.scripts and 2 * own < scripts.total():
        return True
    return bool(public.words) and len(words) >= _COMMON and public.words.isdisjoint(words)


def _main_scripts(texts: Iterable[str]) -> frozenset[str]:
    scripts = _scripts(texts)
    return frozenset(
        script for script, count in scripts.items() if count >= _SCRIPT * scripts.total()
    )


def _scripts(texts: Iterable[str]) -> Counter[str]:
    """Return the number of letters of each script."""
    return Counter(_script(letter) for text in texts for letter in text if letter.isalpha())


@cache
def _script(letter: str) -> str:
    """Return the script of a letter: the first word of its name, such as LATIN."""
    return unicodedata.name(letter, "").partition(" ")[0]
