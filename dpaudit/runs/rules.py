"""Public decoding rules: tokens that a text may not continue with.

They follow from settings, public prompts and released tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Annotated, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import Field

from dpaudit.errors import InputError
from dpaudit.mechanisms import Fields
from dpaudit.runs.text import pieces_of

#: The most that a manifest may declare: an audit's time for a step grows with each.
MAX_NGRAM = 64
MAX_WORDS = 1 << 10
MAX_WORD = 64
#: What `str.splitlines` breaks at.
LINE_BREAKS = tuple("\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029")

Word = Annotated[str, Field(pattern=r"\S", max_length=MAX_WORD)]
Ids: TypeAlias = NDArray[np.intp]


class DecodingRules(Fields):
    """The rules about what no text may hold, as a config asks for them and run.json declares them.

    Attributes:
        least_tokens: the fewest tokens that a text has before the sequence that ends it.
        no_line_breaks: whether a text is one line.
        no_repeated_ngram: n, where no n tokens in a row may come again, neither of the public
            prompt nor of the text.
        banned_words: what no text holds, letter by letter, inside longer words too.
    """

    least_tokens: Annotated[int, Field(ge=0, le=1 << 15)] = 0
    no_line_breaks: bool = False
    no_repeated_ngram: Annotated[int, Field(ge=2, le=MAX_NGRAM)] | None = None
    banned_words: Annotated[tuple[Word, ...], Field(max_length=MAX_WORDS, strict=False)] = ()

    @property
    def any(self) -> bool:
        """Whether there is a rule."""
        return bool(
            self.least_tokens or self.no_line_breaks or self.no_repeated_ngram or self.banned_words
        )


class ForbiddenTokens:
    """The tokens that a run's rules forbid next, after any public prompt and text.

    A token that completes a stop sequence is cut off with it, so `least_tokens` alone judges it.
    The rule of n-grams gives way in a step in which it would leave too few tokens; the others never
    leave too few.
    """

    def __init__(
        self,
        rules: DecodingRules,
        sequences: Iterable[Sequence[int]],
        vocabulary: int,
        fewest: int,
        tokenizer_json: str | bytes | None,
    ) -> None:
        """Work out everything that does not depend on a text.

        Args:
            rules: the run's.
            sequences: token ids that end a text.
            vocabulary: V, the number of tokens that the model scores.
            fewest: how many tokens must be left to sample from.
            tokenizer_json: the tokenizer that texts are decoded with; needed by rules about what
                tokens say.

        Raises:
            InputError: names the rule that cannot be kept with this tokenizer, or says that too few
                tokens are left.
        """
        self._rules, self._vocabulary, self._fewest = rules, vocabulary, fewest
        # What the model does not score can end no text.
        self._ends = [tuple(s) for s in sequences if s and min(s) >= 0 and max(s) < vocabulary]
        written = {
            "no_line_breaks": LINE_BREAKS * rules.no_line_breaks,
            "banned_words": rules.banned_words,
        }
        asked = {
            field: [text.encode() for text in texts] for field, texts in written.items() if texts
        }
        self._phrases: dict[str, _Phrases] = {}
        if asked:
            pieces = None
            if tokenizer_json is not None:
                pieces = pieces_of(tokenizer_json, vocabulary)
            if pieces is None:
                problem = (
                    "the model's tokenizer does not say what text each of its tokens stands for."
                )
                raise InputError(
                    f"decoding.{next(iter(asked))}",
                    problem,
                    "Leave this rule out, or take another model.",
                )
            spelling = _Spelling(pieces)
            self._phrases = {field: _Phrases(phrases, spelling) for field, phrases in asked.items()}
        self._require_choice()

    def after(self, prompt: Sequence[int], text: Sequence[int]) -> dict[str, Ids]:
        """Return the tokens that may not come next, by the name of the rule.

        Args:
            prompt: token ids of the public prompt; only the rule of n-grams reads them.
            text: all tokens that were sampled after it so far.

        Returns:
            Ids, distinct and ascending, int [..]; a rule that forbids none is left out.
        """
        if not self._rules.any:
            return {}
        ending = self._ending(text)
        early = [token for token, kept in ending.items() if kept < self._rules.least_tokens]
        going_on = {field: phrases.completing(text) for field, phrases in self._phrases.items()}
        going_on["no_repeated_ngram"] = self._repeating(prompt, text)
        late = np.array([*(ending.keys() - early)], dtype=np.intp)
        found = {"least_tokens": np.array(sorted(early), dtype=np.intp)}
        found |= {field: np.setdiff1d(ids, late) for field, ids in going_on.items()}
        if self._vocabulary - len(_distinct([*found.values()])) < self._fewest:
            del found["no_repeated_ngram"]
        return {field: ids for field, ids in found.items() if len(ids)}

    def _ending(self, text: Sequence[int]) -> dict[int, int]:
        """Return the tokens that complete a stop sequence, and the text's length before it."""
        ending: dict[int, int] = {}
        for sequence in self._ends:
            begun = len(sequence) - 1
            if len(text) >= begun and tuple(text[len(text) - begun :]) == sequence[:-1]:
                ending[sequence[-1]] = min(ending.get(sequence[-1], len(text)), len(text) - begun)
        return ending

    def _repeating(self, prompt: Sequence[int], text: Sequence[int]) -> Ids:
        """Return the tokens that would make the last n tokens a repetition."""
        n = self._rules.no_repeated_ngram
        if n is None or len(prompt) + len(text) < n:
            return np.empty(0, dtype=np.intp)
        tokens = np.concatenate([np.asarray(part, dtype=np.intp) for part in (prompt, text)])
        grams = sliding_window_view(tokens, n)
        again: Ids = grams[(grams[:, :-1] == tokens[len(tokens) - n + 1 :]).all(axis=1), -1]
        # a record may hold any number for a token
        known: Ids = again[(again >= 0) & (again < self._vocabulary)]
        return known

    def _require_choice(self) -> None:
        """Refuse rules that may leave too few tokens, that of n-grams aside.

        Raises:
            InputError: they may.
        """
        ends = [sequence[-1] for sequence in self._ends] if self._rules.least_tokens else []
        ever = [
            np.array(ends, dtype=np.intp),
            *(phrases.ever() for phrases in self._phrases.values()),
        ]
        forbidden = len(_distinct(ever))
        if forbidden and self._vocabulary - forbidden < self._fewest:
            problem = (
                f"its rules may forbid {forbidden:,} of the model's {self._vocabulary:,} tokens, "
                "and a support needs "
                f"{self._fewest:,} of them."
            )
            raise InputError(
                "decoding", problem, "Ban fewer words, or lower mechanism.support.size."
            )


def _distinct(ids: Sequence[Ids]) -> Ids:
    """Return all of some ids, once each."""
    found: Ids = np.sort(np.concatenate(ids))  # np.unique loads numpy.ma, which takes 20 ms
    first = np.ones(len(found), dtype=np.bool_)
    first[1:] = found[1:] != found[:-1]
    return found[first]


class _Spelling:
    """The bytes that each token adds to a text, and the tokens that hold some bytes."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._order = np.array(sorted(range(len(pieces)), key=pieces.__getitem__), dtype=np.intp)
        self._sorted = [pieces[token] for token in self._order]

    def holding(self, phrases: Sequence[bytes]) -> Ids:
        """Return the tokens that hold one of the phrases whole."""
        found = re.compile(b"|".join(map(re.escape, phrases))).search
        return np.array(
            [token for token, piece in enumerate(self._pieces) if found(piece)], dtype=np.intp
        )

    def beginning(self, rest: bytes) -> Ids:
        """Return the tokens that begin with some bytes."""
        first = bisect_left(self._sorted, rest)
        return self._order[
            first : bisect_right(self._sorted, rest, lo=first, key=lambda piece: piece[: len(rest)])
        ]

    def tail(self, text: Sequence[int], most: int) -> bytes:
        """Return a text's last bytes: `most`, or some more, or all of a short text."""
        tail = b""
        for token in reversed(text):
            if len(tail) >= most:
                break
            if 0 <= token < len(self._pieces):
                tail = self._pieces[token] + tail
        return tail


class _Phrases:
    """The tokens that would complete one of some phrases, wherever it began."""

    def __init__(self, phrases: Sequence[bytes], spelling: _Spelling) -> None:
        self._spelling, self._longest = spelling, max(map(len, phrases)) - 1
        self._whole = spelling.holding(phrases)
        self._rests: dict[bytes, set[bytes]] = {}  # by what a text ends in
        for phrase in phrases:
            for begun in range(1, len(phrase)):
                self._rests.setdefault(phrase[:begun], set()).add(phrase[begun:])

    def completing(self, text: Sequence[int]) -> Ids:
        """Return the tokens that complete a phrase after this text."""
        tail = self._spelling.tail(text, self._longest)
        ends = (
            tail[len(tail) - length :] for length in range(1, min(self._longest, len(tail)) + 1)
        )
        rests = (rest for end in ends for rest in self._rests.get(end, ()))
        return _distinct([self._whole, *map(self._spelling.beginning, rests)])

    def ever(self) -> Ids:
        """Return the tokens that complete a phrase after some text."""
        rests = {rest for rests in self._rests.values() for rest in rests}
        return _distinct([self._whole, *map(self._spelling.beginning, rests)])
