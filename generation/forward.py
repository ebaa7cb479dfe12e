"""One forward pass of a network, and prompts with a key-value cache of their own, in the form that the model keeps."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

from dpaudit.generation.models import LanguageModel


class OwnCache:
    """n prompts as one left-padded batch with a cache of its own: `dpaudit.generation.passes.CachedPrompts`.

    All prompts are padded to a length that the caller fixes, not to the longest of them: padding changes how logits
    are rounded, and one private prompt's length must not reach the others' logits that way.

    Attributes:
        logits: of the next token, float32 [n, V] on the model's device, V as the model scores it (it may exceed
            the tokenizer's size).
    """

    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]], length: int, fewest: int = 1) -> None:
        """Feed the prompts.

        Args:
            model: the model.
            prompts: token ids of each.
            length: places that each is padded to.
            fewest: rows that go through the network, if any do.

        Raises:
            ValueError: a prompt leaves no padding: a batch without any would take another kernel.
        """
        require_padding(prompts, length)
        self._network, self._device = model.network, model.device
        self._rows = len(prompts)
        # For one to three rows a CPU takes other kernels than for more: what joins or leaves must not choose them.
        prompts = [*prompts, *[prompts[0]] * (fewest - len(prompts))] if prompts else []
        self._cache: Any = None
        self._seen = torch.zeros((len(prompts), 0), dtype=torch.long, device=self._device)
        self.logits = torch.empty((0, model.vocabulary), dtype=torch.float32, device=self._device)
        if prompts:
            ids = torch.tensor([[0] * (length - len(prompt)) + list(prompt) for prompt in prompts])
            seen = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            self._feed(ids.to(self._device), seen.to(self._device))

    def append(self, token: int) -> None:
        """Continue every prompt with the same token."""
        if self._rows:
            ids = torch.full((len(self._seen), 1), token, device=self._device)
            self._feed(ids, torch.ones_like(ids))

    def fork(self) -> OwnCache:
        """A copy at the same place in the text, which goes on apart from this one."""
        twin = copy.copy(self)
        twin._cache = copy.deepcopy(self._cache)  # the other tensors are replaced and never changed
        return twin

    def _feed(self, ids: torch.Tensor, seen: torch.Tensor) -> None:
        self._seen = torch.cat([self._seen, seen], dim=1)
        logits, self._cache = forward(self._network, ids, self._seen, self._cache)
        self.logits = logits[: self._rows]


def require_padding(prompts: Sequence[Sequence[int]], places: int) -> None:
    """Raises ValueError where a prompt fills all places that it is padded to."""
    if any(len(prompt) >= places for prompt in prompts):
        raise ValueError(f"prompts must be shorter than the {places} places they are padded to")


@cache
def parameters_of(function: Callable[..., object]) -> frozenset[str]:
    """Names of the arguments that a function takes."""
    return frozenset(inspect.signature(function).parameters)


@torch.inference_mode()
def forward(
    network: PreTrainedModel, ids: torch.Tensor, seen: torch.Tensor, cache: Any, positions: torch.Tensor | None = None
) -> tuple[torch.Tensor, Any]:
    """Feed token ids to a network.

    Args:
        network: the language model.
        ids: int64 [n, L].
        seen: int64 [n, all columns of the cache and of `ids`], 0 on padding.
        cache: what was fed before; None for nothing, in whatever form the model keeps it.
        positions: int64 [n, L]; None where every column that is seen counts as one.

    Returns:
        Logits of the token after the last one, float32 [n, V], and the cache.
    """
    accepted = parameters_of(type(network).forward)
    if positions is None:
        positions = (seen.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    # Some architectures know no positions or score every position.
    optional = {"position_ids": positions, "logits_to_keep": 1}
    output = network(
        input_ids=ids,
        attention_mask=seen,
        past_key_values=cache,
        use_cache=True,
        **{name: value for name, value in optional.items() if name in accepted},
    )
    return output.logits[:, -1, :].to(torch.float32), output.past_key_values
