"""Prompt templates, a run's prompts, and the ends of a text.

Two templates are the paper's (appendix "Prompts"), another is a user's own.
"""

from __future__ import annotations

import copy
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain, takewhile

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from dpaudit.generation.head import Head
from dpaudit.generation.model_probe import passes_for, public_passes
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.partition import Context
from dpaudit.generation.passes import CachedPrompts, OwnCache, Passes, Prompt
from dpaudit.generation.prompt_encoding import PromptEncoder, encode
from dpaudit.generation.wording import Part, Wording, WordingError, require_seen
from dpaudit.runs import ForbiddenTokens, InputError
from dpaudit.runs.rules import Ids
from dpaudit.runs.vacuity import IT_HEAD, IT_REQUEST

FENCE = "```"
END_OF_TURN = "<end_of_turn>"

_PT_EXAMPLE = FENCE + "\n{label}\n{example}\n" + FENCE + "\n\n"
_PT_END = FENCE + "\n"
_IT_EXAMPLE = "Text: {example}\n\n"
#: Where the request stands in a chat format.
_REQUEST = "{request}"
_IT_END = "Text: "
#: Texts that begin in different ways: what prompts with each of them begin with, all prompts of a
#: label do.
_PROBES = ("a", "The", "1", '"', "(", "é")
#: What may stand before the mark that ends a text: nothing, and what some tokenizers join with a
#: mark.
_BEFORE = ("", " ", "\n")
_BEFORE_OWN = (*_BEFORE, ".", "!", "?", '"', ")", ",", ":", ";", "…", '."', "'", "”")


class Template(ABC):
    """A prompt template for one tokenizer.

    Attributes:
        digest: SHA-256 of the template's wording, 64 hexadecimal digits.
        stop_sequences: the template's own end token, in every way the tokenizer may write it.
        shows_label: whether a prompt says its label.
        encoder: of its prompts.
    """

    shows_label = True

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end: str | None, *wording: str) -> None:
        """Args: the mark that `end`s a text, None for none; all parts of the `wording`."""
        self._tokenizer, self.encoder = tokenizer, PromptEncoder(tokenizer)
        self.digest = hashlib.sha256("\0".join(wording).encode()).hexdigest()
        self.stop_sequences = () if end is None else written_forms(tokenizer, end)

    @abstractmethod
    def parts(self, label: str, examples: Sequence[str]) -> list[Part]:
        """Return the prompt in pieces. Without private examples it is the public prompt."""

    def text(self, label: str, examples: Sequence[str]) -> str:
        """Return the prompt."""
        return "".join(part.text for part in self.parts(label, examples))

    def tokens(self, label: str, examples: Sequence[str]) -> list[int]:
        """Return the prompt's token ids, with the special tokens that the tokenizer puts first."""
        return self.encoder.ids(self.parts(label, examples), special=True)


class PretrainedTemplate(Template):
    """Fenced examples under a label line.

    The model goes on after an opening fence, and ends with a closing one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer, FENCE, _PT_EXAMPLE, _PT_END)

    @override
    def parts(self, label: str, examples: Sequence[str]) -> list[Part]:
        """Return a fenced block for each example, then an opening fence."""
        blocks = (
            _fill_placeholders(_PT_EXAMPLE, label=label, example=example) for example in examples
        )
        return [*chain.from_iterable(blocks), Part(_PT_END, False)]


class InstructionTemplate(Template):
    """A request for one more text, in the tokenizer's chat format.

    `<end_of_turn>` ends a text where it is a token; another format's end of turn is among the
    model's.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Read the tokenizer's chat format.

        Raises:
            InputError: there is none, or it does not show what a user says unchanged.
        """
        turns = tokenizer.chat_template
        if not turns:
            remedy = "Write a prompt.text of your own, or take pt, which is for a base model."
            raise InputError("prompt.template", "the model has no chat format for it.", remedy)
        end = END_OF_TURN if END_OF_TURN in tokenizer.get_vocab() else None
        super().__init__(tokenizer, end, IT_HEAD, _IT_EXAMPLE, IT_REQUEST, _IT_END, str(turns))
        self._turns = _chat_turns(tokenizer)

    @override
    def parts(self, label: str, examples: Sequence[str]) -> list[Part]:
        """Return the request as the user's turn, then the beginning of the model's."""
        before, after = self._turns.split(_REQUEST)
        shown = chain.from_iterable(
            _fill_placeholders(_IT_EXAMPLE, example=example) for example in examples
        )
        head = _fill_placeholders(IT_HEAD, label=label)
        return [Part(before, False), *head, *shown, Part(IT_REQUEST + after + _IT_END, False)]

    @override
    def tokens(self, label: str, examples: Sequence[str]) -> list[int]:
        """Return the token ids; a chat format writes the special tokens itself."""
        return self.encoder.ids(self.parts(label, examples), special=False)


class OwnTemplate(Template):
    """A user's own template (`Wording`), whose text is the whole prompt, a chat format included."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: str, end: str | None) -> None:
        """Read the template.

        Raises:
            InputError: prompt.text or prompt.end cannot be used with this tokenizer.
        """
        field = "prompt.text"
        try:
            self._wording = Wording.of(text)
            field = "prompt.end"
            require_seen(end or "")
        except WordingError as error:
            raise InputError(
                field, f"the value holds {error.given[:80]!r}.", f"Allowed: {error.allowed}."
            ) from None
        super().__init__(tokenizer, None, "own", text, end or "")
        self.shows_label = self._wording.shows_label
        if end is not None:
            _require_written(tokenizer, end)
            self.stop_sequences = written_forms(tokenizer, end, _BEFORE_OWN)

    @override
    def parts(self, label: str, examples: Sequence[str]) -> list[Part]:
        """Return the template's lines, the example's line once for each example."""
        return self._wording.parts(label, examples)


def _fill_placeholders(wording: str, **shown: str) -> list[Part]:
    """Return one of the paper's wordings in pieces, with the shown text in its placeholders."""
    pieces = re.split(r"\{(\w+)\}", wording)  # text and names in turn
    return [
        Part(shown[piece] if odd % 2 else piece, bool(odd % 2)) for odd, piece in enumerate(pieces)
    ]


def _chat_turns(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a user's turn and the beginning of the model's in the tokenizer's chat format.

    The format never sees a record.

    Raises:
        InputError: the format fails, or changes what the user says.
    """
    messages = [{"role": "user", "content": _REQUEST}]
    try:
        turns = str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )
    except Exception as error:  # a format is a program of the model's makers
        turns, reason = "", f"ends in an error ({str(error).strip().split(chr(10))[0][:200]})"
    else:
        reason = "does not show what a user says once, as it is"
    if turns.count(_REQUEST) != 1:
        problem = f"the model's chat format {reason}."
        raise InputError(
            "prompt.template",
            problem,
            "Take pt, or write the turns into a prompt.text of your own.",
        )
    return turns


def template(
    name: str, tokenizer: PreTrainedTokenizerBase, text: str | None = None, end: str | None = None
) -> Template:
    """Return the template "pt" or "it" of a config, or "own", the user's, with a `text`.

    Raises:
        InputError: the tokenizer cannot write the end mark.
    """
    if text is not None:
        return OwnTemplate(tokenizer, text, end)
    if name == "pt":
        return PretrainedTemplate(tokenizer)
    return InstructionTemplate(tokenizer)


class Prompts:
    """The prompts of one run, all with the same public number of places.

    Attributes:
        template: the one that makes them.
        places: the longest form that a prompt can take, and one place of padding.
        public_places: likewise, of the public prompts.
    """

    def __init__(
        self,
        model: LanguageModel,
        template: Template,
        labels: Sequence[str],
        examples: int,
        most_tokens: int,
        one_line: bool = False,
        public_examples: Mapping[str, Sequence[str]] | None = None,
        rules: ForbiddenTokens | None = None,
    ) -> None:
        """Prepare prompts that show up to `examples` records each.

        Each record is put on `one_line` if so, and cut to `most_tokens` tokens. Before them every
        prompt of a label shows its `public_examples`, treated likewise. `rules` say what may not
        follow a public prompt; None if anything may.
        """
        self._model, self.template = model, template
        self._each, self._most, self._one_line = examples, most_tokens, one_line
        self.public_examples = {
            label: tuple(texts) for label, texts in (public_examples or {}).items()
        }
        self._rules = rules
        self._prefixes: dict[str, Prompt] = {}
        self._shown = {
            label: self._examples(self.public_examples.get(label, ()), most_tokens)
            for label in labels
        }
        self._public = {label: tuple(self._tokens(label, [])) for label in labels}
        self._places = {
            label: max(len(public), len(self._tokens(label, [""] * examples)))
            + examples * most_tokens
            + 1
            for label, public in self._public.items()
        }
        self.places = max(self._places.values())
        self.public_places = max(map(len, self._public.values()), default=0) + 1

    def of(self, label: str, contexts: Sequence[Context]) -> list[Prompt]:
        """Return a prompt for each context."""
        return [self._prompt(label, context) for context in contexts]

    def without_example(self, place: int) -> Prompts:
        """Return the prompts without each label's public example at a place."""
        others = {
            label: (*texts[:place], *texts[place + 1 :])
            for label, texts in self.public_examples.items()
        }
        labels = tuple(self._public)
        return Prompts(
            self._model, self.template, labels, self._each, self._most, self._one_line, others
        )

    def prefix(self, label: str) -> Prompt:
        """Return the beginning of a label's prompts for any records: known from what is public."""
        if label not in self._prefixes:
            prompts = [self._tokens(label, [probe]) for probe in _PROBES]
            same = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
            self._prefixes[label] = [column[0] for column in same]
        return self._prefixes[label]

    def continuation(self, label: str, text: str, most: int) -> tuple[list[int], int]:
        """Return a real text after a prompt: up to `most` tokens, and how many only lead up to it.

        The template shows its examples so: its label's line, say, leads up to a text, and the mark
        that ends it is its last token if there is room. If examples stand elsewhere, nothing leads
        up to it.
        """
        bare, begun, shown = (
            list(self.public_tokens(label)),
            self.prefix(label),
            self._examples([text], self._most),
        )
        ends = self.template.stop_sequences or [(token,) for token in self._model.end_tokens]
        tokens, lead = self._tokens(label, shown), 0
        if tokens[: len(bare)] == bare:
            if tokens[: len(begun)] == begun:
                lead = max(0, len(begun) - len(bare))
            tokens = tokens[len(bare) :]
        else:
            tokens = [
                *self.template.encoder.ids([Part(shown[0], True)], special=False),
                *chain(*ends[:1]),
            ]
        lengths = range(lead + 1, min(most, len(tokens)))
        last = next(
            (end for end in lengths if any(ends_with(tokens[:end], mark) for mark in ends)), most
        )
        return tokens[:last], lead

    def start(self, passes: Passes, label: str, contexts: Sequence[Context]) -> CachedPrompts:
        """Feed a batch's prompts to passes.

        They are padded to the label's own places, and a longer one, as a cut text can make it, to
        the places of all.
        """
        return passes.start(self.of(label, contexts), self.prefix(label), self._places[label])

    def alone(
        self,
        label: str,
        contexts: Sequence[Context],
        rows: int,
        tokens: int,
        head: Head | None = None,
    ) -> CachedPrompts:
        """Return a batch in passes of its own, with its logits among others.

        Arguments as for `passes_for`.
        """
        passes = passes_for(self._model, rows, self.places, tokens, head)
        return self.start(passes, label, contexts)

    def public(self, label: str, tokens: int, wanted: bool = True) -> CachedPrompts:
        """Return the public prompt in passes of its own, with its logits in a run.

        Up to `tokens` tokens follow. No prompt where it is not wanted, because a step takes nothing
        from it.
        """
        prompt = self.public_tokens(label)
        cached: CachedPrompts = OwnCache(self._model, [], self.public_places)
        if wanted:
            passes = public_passes(self._model, self.public_places, tokens)
            cached = passes.start([prompt], prompt[:-1])
        if self._rules is None:
            return cached
        return RuledPrompt(cached, self._rules, prompt)

    def public_tokens(self, label: str) -> tuple[int, ...]:
        """Return the token ids of a label's public prompt."""
        return self._public[label]

    def allowed(self, label: str, text: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """Set a public prompt's logits [1, V] to -inf for tokens that rules forbid after a text."""
        return (
            logits
            if self._rules is None
            else _mask_forbidden(logits, self._rules.after(self.public_tokens(label), text))
        )

    def _prompt(self, label: str, context: Context) -> list[int]:
        """Return a context's prompt.

        Its examples are cut so that it fits its places, by looking at this context alone.
        """
        texts = [record.text for record in context]
        for most in range(self._most, -1, -1):
            prompt = self._tokens(label, self._examples(texts, most))
            # A cut text, written out and read again, may take a token more than it was cut to.
            if len(prompt) < self.places:
                return prompt
        raise ValueError("a prompt with empty examples exceeds its places")

    def _tokens(self, label: str, examples: Sequence[str]) -> list[int]:
        """Return the prompt with the label's public examples before these."""
        return self.template.tokens(label, [*self._shown[label], *examples])

    def _examples(self, texts: Sequence[str], most: int) -> list[str]:
        """Return texts as examples, cut to `most` tokens each.

        Each depends on its own text alone.
        """
        encoder = self.template.encoder
        return [encoder.cut(in_one_line(text) if self._one_line else text, most) for text in texts]


class RuledPrompt(CachedPrompts):
    """A public prompt (`CachedPrompts`) with logits -inf for exactly the forbidden next tokens."""

    def __init__(
        self, cached: CachedPrompts, rules: ForbiddenTokens, prompt: Sequence[int]
    ) -> None:
        """Args: the public `prompt`'s token ids, which are `cached`; what may not follow it."""
        self._cached, self._rules, self._prompt = cached, rules, prompt
        self._text: tuple[int, ...] = ()

    @property
    @override
    def logits(self) -> torch.Tensor:
        return _mask_forbidden(self._cached.logits, self._rules.after(self._prompt, self._text))

    @override
    def logits_over(self, support: NDArray[np.integer]) -> torch.Tensor:
        return self.logits[:, torch.as_tensor(support, dtype=torch.long)]

    @override
    def append(self, token: int) -> None:
        self._cached.append(token)
        self._text += (token,)

    @override
    def fork(self) -> RuledPrompt:
        twin = copy.copy(self)
        twin._cached = self._cached.fork()
        return twin


def _mask_forbidden(logits: torch.Tensor, forbidden: Mapping[str, Ids]) -> torch.Tensor:
    """Set logits [n, V] to -inf for what rules forbid.

    What the model itself rules out stays above that.
    """
    logits = logits.clamp(min=torch.finfo(torch.float32).min)
    for ids in forbidden.values():
        logits = logits.index_fill(1, torch.from_numpy(ids).to(logits.device), -torch.inf)
    return logits


def in_one_line(text: str) -> str:
    """Return the text with single spaces for white space and line breaks.

    It depends on this text alone.
    """
    return " ".join(text.split())


def _require_written(tokenizer: PreTrainedTokenizerBase, mark: str) -> None:
    """Refuse an end mark that a tokenizer cannot write.

    It would never end a text, or end all at once.

    Raises:
        InputError: the tokenizer cannot write the mark.
    """
    # never by itself: some tokenizers drop the space that a text begins with
    for before in _BEFORE_OWN:
        text = f"x{before}{mark}"
        if mark not in tokenizer.decode(
            encode(tokenizer, text, special=False), clean_up_tokenization_spaces=False
        ):
            problem = (
                f"the value is {mark!r}, which the model's tokenizer cannot write: it "
                "reads back otherwise."
            )
            raise InputError(
                "prompt.end",
                problem,
                "Take another mark, or null for the model's own end of a text.",
            )


def written_forms(
    tokenizer: PreTrainedTokenizerBase, mark: str, befores: Sequence[str] = _BEFORE
) -> tuple[tuple[int, ...], ...]:
    """Return token sequences for a mark after a word and each of `befores`.

    None of them ends in another.
    """
    anchor = "x"
    start = encode(tokenizer, anchor, special=False)
    forms: list[tuple[int, ...]] = []
    for before in befores:
        ids = encode(tokenizer, anchor + before + mark, special=False)
        form = tuple(
            ids[len(start) :]
            if ids[: len(start)] == start
            else encode(tokenizer, mark, special=False)
        )
        if not any(ends_with(form, known) for known in forms):
            forms.append(form)
    return tuple(forms)


def ends_with(tokens: Sequence[int], sequence: Sequence[int]) -> bool:
    """Return whether token ids end in a sequence."""
    return len(tokens) >= len(sequence) and tuple(tokens[len(tokens) - len(sequence) :]) == tuple(
        sequence
    )
