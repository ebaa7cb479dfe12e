"""From contexts to prompts, and to their key-value caches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from dpaudit.generation.forward import OwnCache
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.partition import Context
from dpaudit.generation.passes import CachedPrompts, Prompt, passes_for
from dpaudit.generation.prompts import Template, cut

#: Texts that begin in different ways: what prompts with each of them begin with, all prompts of a label do.
_PROBES = ("a", "The", "1", '"', "(", "é")


class Prompts:
    """The prompts of one run, all with the same public number of places.

    Attributes:
        places: the longest form that a prompt can take, and one place of padding.
    """

    def __init__(
        self, model: LanguageModel, template: Template, labels: Sequence[str], examples: int, most_tokens: int
    ) -> None:
        """A context shows up to `examples` records, each cut to `most_tokens` tokens."""
        self._model, self._template, self._most = model, template, most_tokens
        self._prefixes: dict[str, Prompt] = {}
        frame = max(len(template.tokens(label, [""] * shown)) for label in labels for shown in (0, examples))
        self.places = frame + examples * most_tokens + 1

    def of(self, label: str, contexts: Sequence[Context]) -> list[Prompt]:
        """A prompt for each context."""
        return [self._prompt(label, context) for context in contexts]

    def prefix(self, label: str) -> Prompt:
        """What prompts of a label begin with, whatever they show: known from the template alone."""
        if label not in self._prefixes:
            prompts = [self._template.tokens(label, [probe]) for probe in _PROBES]
            same = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
            self._prefixes[label] = [column[0] for column in same]
        return self._prefixes[label]

    def alone(self, label: str, contexts: Sequence[Context], rows: int, tokens: int) -> CachedPrompts:
        """A batch in passes of its own, with the logits that it has among others. Arguments as for `passes_for`."""
        passes = passes_for(self._model, rows, self.places, tokens)
        return passes.start(self.of(label, contexts), self.prefix(label))

    def public(self, label: str, wanted: bool = True) -> CachedPrompts:
        """The public prompt; no prompt where it is not wanted, because the support is the whole vocabulary.

        It goes apart from the private rows: in one pass with them, their number could reach the support through
        rounding.
        """
        return OwnCache(self._model, [self._template.tokens(label, [])] if wanted else [], self.places)

    def _prompt(self, label: str, context: Context) -> list[int]:
        """A context's prompt. Its examples are cut so that it fits its places, by looking at this context alone."""
        tokenizer = self._model.tokenizer
        for most in range(self._most, -1, -1):
            prompt = self._template.tokens(label, [cut(tokenizer, record.text, most) for record in context])
            # A cut text, written out and read again, may take a token more than it was cut to.
            if len(prompt) < self.places:
                return prompt
        raise ValueError("a prompt with empty examples exceeds its places")
