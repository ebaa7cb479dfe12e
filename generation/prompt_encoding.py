"""Prompts as token ids: a template's own words may be control tokens; what it shows may not.

Tokenizers read `<|im_end|>` in a record as they read it in the template. A record could then end
its turn, give the model another instruction, or begin a text of its own. So what a prompt shows is
spelled: its text stays as it is, and its tokens are those of plain text. Markers that are plain
text to the tokenizer, such as "### User:", are beyond this.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AddedToken, PreTrainedTokenizerBase

from dpaudit.generation.wording import Part

#: Spelled tokens follow it. By itself some tokenizers would put a blank before a text.
_ANCHOR = "x"


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool) -> list[int]:
    """Return a text's token ids, with control tokens as such.

    With `special`, they include what the tokenizer puts around a text.
    """
    # verbose=False: the tokenizer warns about long texts, and a cut follows anyway.
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


class PromptEncoder:
    """Token ids of prompts for one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        added: dict[int, AddedToken] = getattr(tokenizer, "added_tokens_decoder", {})
        self._control = frozenset(number for number, token in added.items() if _is_control(token))
        self._own: dict[str, list[int]] = {}
        self._spellings: dict[str, list[int]] = {}
        bare, whole = self._encoded(_ANCHOR), encode(tokenizer, _ANCHOR, special=True)
        at = next(
            (at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), len(whole)
        )
        self._before, self._after = whole[:at], whole[at + len(bare) :]

    def ids(self, parts: Sequence[Part], *, special: bool) -> list[int]:
        """Return the token ids of a prompt.

        `special` adds what the tokenizer puts around a text. If no shown text writes a control
        token, these are the ids of the prompt's whole text.
        """
        ids = self._with_shown_spelled(parts)
        wanted = [
            token for part in parts if not part.shown for token in self._controls_of(part.text)
        ]
        # a control token took letters from what stands beside it, say
        if self._controls_in(ids) != wanted:
            pieces = (
                self._spelled(part.text) if part.shown else self._encoded(part.text)
                for part in parts
            )
            ids = [token for piece in pieces for token in piece]
        return [*self._before, *ids, *self._after] if special else ids

    def cut(self, text: str, most: int) -> str:
        """Return the first `most` tokens of a shown text, as text, from this text alone."""
        ids = self.ids([Part(text, True)], special=False)
        if len(ids) <= most:
            return text
        return str(self._tokenizer.decode(ids[:most], clean_up_tokenization_spaces=False))

    def _encoded(self, text: str) -> list[int]:
        return encode(self._tokenizer, text, special=False)

    def _controls_in(self, ids: Sequence[int]) -> list[int]:
        return [token for token in ids if token in self._control]

    def _controls_of(self, own: str) -> list[int]:
        """Return the control tokens in a template's own words."""
        if own not in self._own:
            self._own[own] = self._controls_in(self._encoded(own))
        return self._own[own]

    def _with_shown_spelled(self, parts: Sequence[Part]) -> list[int]:
        """Return the whole text's ids.

        Control tokens that shown text has a part in are replaced by their letters' ids.
        """
        text = "".join(part.text for part in parts)
        if not self._tokenizer.is_fast:  # others do not say where a token stands
            return self._encoded(text)
        found = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        if self._control.isdisjoint(found["input_ids"]):
            return list(found["input_ids"])
        shown = b"".join(bytes([part.shown]) * len(part.text) for part in parts)
        ids: list[int] = []
        for token, (start, end) in zip(found["input_ids"], found["offset_mapping"], strict=True):
            foreign = token in self._control and 1 in shown[start:end]
            ids += self._spelled(text[start:end]) if foreign else [token]
        return ids

    def _spelled(self, text: str) -> list[int]:
        """Return a text's ids without control tokens: it is split until none is left."""
        if text not in self._spellings:
            start, ids = self._encoded(_ANCHOR), self._encoded(_ANCHOR + text)
            ids = ids[len(start) :] if ids[: len(start)] == start else self._encoded(text)
            middle = len(text) // 2
            if middle and self._controls_in(ids):
                ids = [*self._spelled(text[:middle]), *self._spelled(text[middle:])]
            self._spellings[text] = ids
        return self._spellings[text]


def _is_control(token: AddedToken) -> bool:
    """Return whether an added token may steer the model.

    Makers do not mark all of them as special. White space, single characters, and words that
    somebody added to a vocabulary are text.
    """
    visible = [letter for letter in token.content if not (letter.isspace() or letter == "▁")]
    return len(token.content) > 1 and (
        token.special or any(not letter.isalnum() for letter in visible)
    )
