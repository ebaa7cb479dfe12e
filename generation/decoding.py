"""Next-token logits of many prompts that are continued with the same tokens."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from generation.models import LanguageModel
from generation.partition import Context
from generation.prompts import Template, cut


class Decoder:
    """n prompts as one left-padded batch with a key-value cache. Works for n = 0.

    All prompts are padded to a length that the caller fixes, not to the longest of them: padding changes how logits
    are rounded, and one private prompt's length must not reach the others' logits that way.
    """

    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]], length: int) -> None:
        """Raises ValueError when a prompt leaves no padding: a batch without any would take another kernel."""
        if any(len(prompt) >= length for prompt in prompts):
            raise ValueError(f"prompts must be shorter than the {length} places they are padded to")
        self._network, self._device = model.network, model.device
        self._accepted = inspect.signature(model.network.forward).parameters.keys()
        self._rows = len(prompts)
        self._cache: Any = None
        self._mask = torch.zeros((self._rows, 0), dtype=torch.long, device=self._device)
        self._logits = torch.empty((0, model.vocabulary), dtype=torch.float32)
        if prompts:
            self._prefill(prompts, length)

    def logits(self) -> NDArray[np.float32]:
        """Logits of the next token: float32 [n, V], V as the model scores it (it may exceed the tokenizer's size)."""
        result: NDArray[np.float32] = self._logits.numpy()
        return result

    def append(self, token: int) -> None:
        """Continue every prompt with the same token."""
        if self._rows:
            ids = torch.full((self._rows, 1), token, device=self._device)
            self._forward(ids, torch.ones_like(ids))

    def fork(self) -> Decoder:
        """A decoder at the same place in the text, which goes on apart from this one."""
        twin = copy.copy(self)
        twin._cache = copy.deepcopy(self._cache)  # the other tensors are replaced and never changed
        return twin

    def _prefill(self, prompts: Sequence[Sequence[int]], length: int) -> None:
        ids = torch.tensor([[0] * (length - len(prompt)) + list(prompt) for prompt in prompts], device=self._device)
        seen = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        self._forward(ids, seen.to(self._device))

    @torch.inference_mode()
    def _forward(self, ids: torch.Tensor, seen: torch.Tensor) -> None:
        """Feed token ids [n, L]; `seen` is 0 on padding. Keeps the logits after the last one."""
        self._mask = torch.cat([self._mask, seen], dim=1)
        positions = (self._mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        # Some architectures know no positions or score every position.
        optional = {"position_ids": positions, "logits_to_keep": 1}
        output = self._network(
            input_ids=ids,
            attention_mask=self._mask,
            past_key_values=self._cache,
            use_cache=True,
            **{name: value for name, value in optional.items() if name in self._accepted},
        )
        self._cache = output.past_key_values
        self._logits = output.logits[:, -1, :].to(torch.float32).cpu()


class Prompts:
    """The prompts of one run, all padded to the same public number of places, and the decoders that they start.

    Attributes:
        places: the longest form that a prompt can take, and one place of padding.
    """

    def __init__(
        self, model: LanguageModel, template: Template, labels: Sequence[str], examples: int, most_tokens: int
    ) -> None:
        """A context shows up to `examples` records, each cut to `most_tokens` tokens."""
        self._model, self._template, self._most = model, template, most_tokens
        frame = max(len(template.tokens(label, [""] * shown)) for label in labels for shown in (0, examples))
        self.places = frame + examples * most_tokens + 1

    def private(self, label: str, contexts: Sequence[Context]) -> Decoder:
        """The decoder of a batch: a row for each context."""
        return Decoder(self._model, [self._prompt(label, context) for context in contexts], self.places)

    def public(self, label: str, wanted: bool) -> Decoder:
        """The public prompt's decoder, which has no row when it is not wanted: the support is the whole vocabulary.

        It runs apart from the private rows: in one batch with them, their number and lengths would reach the
        support through rounding.
        """
        return Decoder(self._model, [self._template.tokens(label, [])] if wanted else [], self.places)

    def _prompt(self, label: str, context: Context) -> list[int]:
        """A context's prompt. Its examples are cut so that it fits its places, by looking at this context alone."""
        tokenizer = self._model.tokenizer
        for most in range(self._most, -1, -1):
            prompt = self._template.tokens(label, [cut(tokenizer, record.text, most) for record in context])
            # A cut text, written out and read again, may take a token more than it was cut to.
            if len(prompt) < self.places:
                return prompt
        raise ValueError("a prompt with empty examples exceeds its places")
