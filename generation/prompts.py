"""The paper's two prompt templates (appendix "Prompts") and the token sequences that end a text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from transformers import PreTrainedTokenizerBase

FENCE = "```"
END_OF_TURN = "<end_of_turn>"

_PT_EXAMPLE = FENCE + "\n{label}\n{example}\n" + FENCE + "\n\n"
_PT_END = FENCE + "\n"
_IT_HEAD = "Here are texts with Label: {label}.\n\n"
_IT_EXAMPLE = "Text: {example}\n\n"
_IT_REQUEST = "Please give another one. No formatting or explanations."
_IT_TURNS = "<start_of_turn>user\n{request}<end_of_turn>\n<start_of_turn>model\n"
_IT_END = "Text: "


class Template(Protocol):
    """A prompt template for one tokenizer."""

    def text(self, label: str, examples: Sequence[str]) -> str:
        """The prompt. Without examples it is the public prompt: nothing private in it."""
        ...

    def tokens(self, label: str, examples: Sequence[str]) -> list[int]:
        """The prompt's token ids."""
        ...

    @property
    def stop_sequences(self) -> tuple[tuple[int, ...], ...]:
        """The template's own end token, in every way the tokenizer may write it."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of the template's wording, 64 hexadecimal digits."""
        ...


class PretrainedTemplate:
    """Fenced examples under a label line; the model goes on after an opening fence."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def text(self, label: str, examples: Sequence[str]) -> str:
        """A fenced block an example, then an opening fence."""
        blocks = (_PT_EXAMPLE.replace("{label}", label).replace("{example}", example) for example in examples)
        return "".join(blocks) + _PT_END

    def tokens(self, label: str, examples: Sequence[str]) -> list[int]:
        """With the special tokens that the tokenizer puts first."""
        return _encode(self._tokenizer, self.text(label, examples), special=True)

    @property
    def stop_sequences(self) -> tuple[tuple[int, ...], ...]:
        """The closing fence."""
        return written_forms(self._tokenizer, FENCE)

    @property
    def digest(self) -> str:
        """Of the wording."""
        return _digest(_PT_EXAMPLE, _PT_END)


class InstructionTemplate:
    """A request for one more text, in the tokenizer's chat format, or in Gemma's where it has none."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def text(self, label: str, examples: Sequence[str]) -> str:
        """The request as the user's turn, then the beginning of the model's."""
        texts = "".join(_IT_EXAMPLE.replace("{example}", example) for example in examples)
        request = _IT_HEAD.replace("{label}", label) + texts + _IT_REQUEST
        return self._turns(request) + _IT_END

    def tokens(self, label: str, examples: Sequence[str]) -> list[int]:
        """A chat format writes the special tokens itself."""
        return _encode(self._tokenizer, self.text(label, examples), special=not self._tokenizer.chat_template)

    @property
    def stop_sequences(self) -> tuple[tuple[int, ...], ...]:
        """`<end_of_turn>` where Gemma's turns are used; a chat format's own end of turn is among the model's."""
        known = END_OF_TURN in self._tokenizer.get_vocab()
        return () if self._tokenizer.chat_template and not known else written_forms(self._tokenizer, END_OF_TURN)

    @property
    def digest(self) -> str:
        """Of the wording, and of the chat format where there is one."""
        turns = self._tokenizer.chat_template or _IT_TURNS
        return _digest(_IT_HEAD, _IT_EXAMPLE, _IT_REQUEST, _IT_END, str(turns))

    def _turns(self, request: str) -> str:
        if not self._tokenizer.chat_template:
            return _IT_TURNS.replace("{request}", request)
        messages = [{"role": "user", "content": request}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def template(name: str, tokenizer: PreTrainedTokenizerBase) -> Template:
    """The template of a config's name, "pt" or "it"."""
    return PretrainedTemplate(tokenizer) if name == "pt" else InstructionTemplate(tokenizer)


def cut(tokenizer: PreTrainedTokenizerBase, text: str, most: int) -> str:
    """The text's first `most` tokens, as text. Depends on this text alone."""
    ids = _encode(tokenizer, text, special=False)
    return text if len(ids) <= most else str(tokenizer.decode(ids[:most], clean_up_tokenization_spaces=False))


def written_forms(tokenizer: PreTrainedTokenizerBase, mark: str) -> tuple[tuple[int, ...], ...]:
    """Token sequences that write a mark after a word, a space or a line break; none ends in another of them."""
    anchor = "x"
    start = _encode(tokenizer, anchor, special=False)
    forms: list[tuple[int, ...]] = []
    for before in ("", " ", "\n"):
        ids = _encode(tokenizer, anchor + before + mark, special=False)
        form = tuple(ids[len(start) :] if ids[: len(start)] == start else _encode(tokenizer, mark, special=False))
        if not any(ends_with(form, known) for known in forms):
            forms.append(form)
    return tuple(forms)


def ends_with(tokens: Sequence[int], sequence: Sequence[int]) -> bool:
    """Whether token ids end in a sequence."""
    return len(tokens) >= len(sequence) and tuple(tokens[len(tokens) - len(sequence) :]) == tuple(sequence)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool) -> list[int]:
    # verbose=False: the tokenizer warns about long texts, and a cut follows anyway.
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
