"""A network's output head apart from the rest: a few tokens' scores take only a few of its rows.

Where a step looks at a hundred tokens alone, scoring all others is a fifth of a small model's work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from typing_extensions import override

#: Hidden states that are scored in one go. Always so many, for their number chooses a kernel, which
#: rounds its own way.
ROWS = 64
#: Likewise, of public prompts, of which a pass has a few.
FEW = 4
#: Scores may differ by this share of their spread from those of the whole network, which adds up in
#: another order.
_AGREEMENT = {torch.float32: 1e-4, torch.bfloat16: 0.05}


class Head:
    """The last linear map of a network, from hidden states [n, H] to logits [n, V].

    Attributes:
        width: H.
    """

    def __init__(self, network: PreTrainedModel) -> None:
        """Take the last layer of a network.

        Raises:
            ValueError: the network's logits are not those of such a map alone.
        """
        layer: Any = network.get_output_embeddings()
        if not isinstance(layer, torch.nn.Linear):
            raise ValueError("the network has no linear head")
        self._layer: Any = layer
        self.width: int = layer.in_features
        with torch.inference_mode():
            ids = torch.tensor([[1, 2, 3], [3, 2, 0]], device=network.device)
            wanted = network(input_ids=ids).logits[:, -1].to(torch.float32)
            with self.in_pass():
                hidden = network(input_ids=ids).logits[:, -1].to(torch.float32)
            found = torch.full_like(wanted, torch.nan)
            if hidden.shape[-1] == self.width:
                found = self.logits(hidden)
        if not float((found - wanted).abs().max()) <= _AGREEMENT[network.dtype] * float(
            wanted.std()
        ):
            raise ValueError("the network does more to its logits than its head does")

    @classmethod
    def of(cls, network: PreTrainedModel) -> Head | None:
        """Return a network's head; None if it cannot be taken apart. It is tried out once."""
        if network not in _TAKEN:
            _TAKEN[network] = cls._taken(network)
        return _TAKEN[network]

    @classmethod
    def _taken(cls, network: PreTrainedModel) -> Head | None:
        try:
            return cls(network)
        except (
            AttributeError,
            KeyError,
            RuntimeError,
            TypeError,
            ValueError,
        ):
            # whatever another architecture raises
            return None

    @contextmanager
    def in_pass(self) -> Iterator[None]:
        """Let the network give what `logits` takes, its last hidden states, in place of logits."""
        self._layer.forward = lambda hidden: hidden
        try:
            yield
        finally:
            del self._layer.forward

    @torch.inference_mode()
    def logits(
        self, hidden: torch.Tensor, support: NDArray[np.integer] | None = None
    ) -> torch.Tensor:
        """Return logits float32 [n, S] of some tokens, or all, from hidden states float32 [n, H].

        Each row of logits is from its own row of hidden states. Those of some are worked out in
        float32, whatever the network's dtype.
        """
        weight, bias = self._layer.weight, self._layer.bias
        if support is not None:
            chosen = torch.as_tensor(support, dtype=torch.long, device=weight.device)
            weight, bias = weight[chosen].float(), None if bias is None else bias[chosen].float()
        found = hidden.new_empty((len(hidden), len(weight)))
        for first in range(0, len(hidden), ROWS):
            rows = hidden[first : first + ROWS]
            padded = torch.nn.functional.pad(rows, (0, 0, 0, ROWS - len(rows))).to(weight.dtype)
            found[first : first + ROWS] = torch.nn.functional.linear(padded, weight, bias)[
                : len(rows)
            ]
        return found


class HeadInFours(Head):
    """A head within its network's passes, for a few rows: a fixed number at a time, and no other.

    A product of weights and hidden states reads the weights once and copies none of them, where
    libraries arrange all anew for hidden states times weights: for four rows and Gemma's 262,144
    tokens it takes 120 ms, not 380 (one core of an AMD EPYC with AVX2, 2026-11-27).

    Attributes:
        width: V.
    """

    def __init__(self, head: Head) -> None:
        """Take a network's head."""
        self._layer = head._layer
        self.width = self._layer.out_features

    @override
    @contextmanager
    def in_pass(self) -> Iterator[None]:
        self._layer.forward = self._scores
        try:
            yield
        finally:
            del self._layer.forward

    @override
    def logits(
        self, hidden: torch.Tensor, support: NDArray[np.integer] | None = None
    ) -> torch.Tensor:
        if support is None:
            return hidden
        return hidden[:, torch.as_tensor(support, dtype=torch.long, device=hidden.device)]

    def _scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [..., V] of hidden states [..., H]."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        found = rows.new_empty((len(rows), self.width))
        for first in range(0, len(rows), FEW):
            some = rows[first : first + FEW]
            padded = torch.nn.functional.pad(some, (0, 0, 0, FEW - len(some)))
            found[first : first + FEW] = torch.mm(self._layer.weight, padded.t()).t()[: len(some)]
        if self._layer.bias is not None:
            found += self._layer.bias
        return found.reshape(*hidden.shape[:-1], self.width)


_TAKEN: WeakKeyDictionary[PreTrainedModel, Head | None] = WeakKeyDictionary()
