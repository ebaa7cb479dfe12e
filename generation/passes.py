"""A network's forward passes, shared by batches: every context is a row of one key-value cache.

A shared pass has a fixed number of rows and of columns, both public. A row's prompt ends at the
same column in every row, and the t-th token after it always goes to the t-th column after that,
whenever its batch began: a row's computation then depends on its own tokens, and neither on the
other rows nor on when its batch came. Batches that end give up their rows, and others take them.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer
from typing_extensions import override

from dpaudit.generation.head import Head
from dpaudit.generation.models import LanguageModel
from dpaudit.mechanisms import Mechanism, PublicPart

#: Prompt tokens that go through the network in one go. It bounds the memory for activations.
PREFILL_TOKENS = 4096
#: On a CPU a pass has as many rows as are in use, rounded up to this. For one to three rows matrix
#: products take other kernels there, which add up in another order; from four on it is the same for
#: any number.
ROWS_STEP = 4
#: Rows of every pass of a batch's own on a GPU.
OWN_ROWS = 32
#: Public prompts in a pass of theirs. In one pass with private rows, the number of these could
#: reach a support or an anchor through rounding.
PUBLIC_ROWS = 16
#: How architectures name what they keep of earlier tokens.
_CACHES = ("past_key_values", "cache_params")

#: Rows of a pass beyond which a device gains nothing: weights are read once for all rows, and from
#: here on computing takes longer than reading.
MOST_ROWS = {"cpu": 64, "cuda": 1024}
#: The share of free memory that caches and logits may take.
SHARE = 0.6
#: Copies of a row's logits that are around at a time: the network's, in float32, and the
#: aggregation's.
_LOGIT_COPIES = 4
#: Activations of a prompt's token, as multiples of the hidden size: the widest layer and what
#: stands around it.
_ACTIVATIONS = 24
_CGROUP = Path("/sys/fs/cgroup")

Prompt = Sequence[int]


class CachedPrompts(Protocol):
    """A batch in the making: n >= 0 cached prompts, all continued with the same tokens."""

    @property
    def logits(self) -> torch.Tensor:
        """Next token's logits on the model's device: float32 [n, V], V as the model scores it."""
        ...

    def logits_over(self, support: NDArray[np.integer]) -> torch.Tensor:
        """Return the logits of some tokens alone: float32 [n, S]."""
        ...

    def append(self, token: int) -> None:
        """Continue every prompt with the same token, in a pass of its own."""
        ...

    def fork(self) -> CachedPrompts:
        """Return an independent copy at the same place in the text."""
        ...


def next_logits(prompts: CachedPrompts) -> NDArray[np.float32]:
    """Return the logits of the next token as an array: float32 [n, V]."""
    result: NDArray[np.float32] = prompts.logits.cpu().numpy()
    return result


def logits_for(
    prompts: CachedPrompts, public: PublicPart, mechanism: Mechanism
) -> tuple[torch.Tensor, PublicPart]:
    """Return a step's logits, and the rest of `public`: no support if the logits are over it."""
    if mechanism.over_support and public.support is not None:
        return prompts.logits_over(public.support), PublicPart(None, public.anchor)
    return prompts.logits, public


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out.

    PyTorch's CPU allocator says so in words only.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return (
        isinstance(error, RuntimeError)
        and re.search(r"(not enough|allocate|out of) memory", str(error)) is not None
    )


class _Outputs(CachedPrompts):
    """A network's outputs for the next token of n prompts.

    Attributes:
        outputs: float32 [n, V], the logits; with a head apart, hidden states [n, H].
    """

    outputs: torch.Tensor

    def __len__(self) -> int:
        return len(self.outputs)

    def __init__(self, model: LanguageModel, head: Head | None, rows: int) -> None:
        width = model.vocabulary if head is None else head.width
        self.outputs, self._head = (
            torch.empty((rows, width), dtype=torch.float32, device=model.device),
            head,
        )

    @property
    @override
    def logits(self) -> torch.Tensor:
        if self._head is None:
            return self.outputs
        return self._head.logits(self.outputs)

    @override
    def logits_over(self, support: NDArray[np.integer]) -> torch.Tensor:
        if self._head is not None:
            return self._head.logits(self.outputs, support)
        return self.outputs[
            :, torch.as_tensor(support, dtype=torch.long, device=self.outputs.device)
        ]


class OwnCache(_Outputs):
    """n prompts as one left-padded batch with a cache of its own: `CachedPrompts`.

    The cache has the form that the model keeps. All prompts are padded to a length that the caller
    fixes, not to the longest of them: padding changes how logits are rounded, and one private
    prompt's length must not reach the others' logits that way.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        length: int,
        fewest: int = 1,
        head: Head | None = None,
    ) -> None:
        """Feed the prompts, each padded to `length` places.

        `fewest` rows go through the network, if any do.

        Args:
            model: a loaded model.
            prompts: token ids of each.
            length: places of each.
            fewest: rows that go through the network, if any do.
            head: the model's, to keep it apart: see `passes_for`.

        Raises:
            ValueError: a prompt leaves no padding: a batch without any would take another kernel.
        """
        require_padding(prompts, length)
        super().__init__(model, head, 0)
        self._network, self._device = model.network, model.device
        self._rows = len(prompts)
        # For one to three rows a CPU takes other kernels than for more: what joins or leaves must
        # not choose them.
        prompts = [*prompts, *[prompts[0]] * (fewest - len(prompts))] if prompts else []
        self._cache: Any = None
        self._seen = torch.zeros((len(prompts), 0), dtype=torch.long, device=self._device)
        if prompts:
            ids = torch.tensor([[0] * (length - len(prompt)) + list(prompt) for prompt in prompts])
            seen = torch.tensor(
                [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts]
            )
            self._feed(ids.to(self._device), seen.to(self._device))

    @override
    def append(self, token: int) -> None:
        if self._rows:
            ids = torch.full((len(self._seen), 1), token, device=self._device)
            self._feed(ids, torch.ones_like(ids))

    @override
    def fork(self) -> OwnCache:
        twin = copy.copy(self)
        twin._cache = copy.deepcopy(self._cache)  # the other tensors are replaced and never changed
        return twin

    def _feed(self, ids: torch.Tensor, seen: torch.Tensor) -> None:
        self._seen = torch.cat([self._seen, seen], dim=1)
        outputs, self._cache = forward(self._network, ids, self._seen, self._cache, head=self._head)
        self.outputs = outputs[: self._rows]


def require_padding(prompts: Sequence[Sequence[int]], places: int) -> None:
    """Refuse a prompt that fills all places that it is padded to.

    Raises:
        ValueError: one does.
    """
    if any(len(prompt) >= places for prompt in prompts):
        raise ValueError(f"prompts must be shorter than the {places} places they are padded to")


@cache
def parameters_of(function: Callable[..., object]) -> frozenset[str]:
    """Return the names of a function's arguments."""
    return frozenset(inspect.signature(function).parameters)


@torch.inference_mode()
def forward(
    network: PreTrainedModel,
    ids: torch.Tensor,
    seen: torch.Tensor,
    cache: Any,
    positions: torch.Tensor | None = None,
    head: Head | None = None,
) -> tuple[torch.Tensor, Any]:
    """Feed token ids to a network.

    Args:
        network: the language model.
        ids: int64 [n, L].
        seen: int64 [n, all columns of the cache and of `ids`], 0 on padding.
        cache: what was fed before; None for nothing, in whatever form the model keeps it.
        positions: int64 [n, L]; None if every column that is seen counts as one.
        head: computes the logits, or leaves that for later (`Head.in_pass`); None for the network.

    Returns:
        Logits of the token after the last one, float32 [n, V], or hidden states [n, H] where a
        head is left for later; and the cache.

    Raises:
        ValueError: the network keeps nothing of earlier tokens.
    """
    accepted = parameters_of(type(network).forward)
    kept = next((name for name in _CACHES if name in accepted), None)
    if kept is None:
        raise ValueError("the network keeps no cache of earlier tokens")
    if positions is None:
        positions = (seen.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    # Some architectures know no positions or score every position.
    optional = {"position_ids": positions, "logits_to_keep": 1}
    with nullcontext() if head is None else head.in_pass():
        output = network(
            input_ids=ids,
            # A state has no columns that could be hidden.
            attention_mask=seen if kept == "past_key_values" or cache is None else None,
            use_cache=True,
            **{kept: cache},
            **{name: value for name, value in optional.items() if name in accepted},
        )
    if (cache := getattr(output, kept)) is None:
        raise ValueError("the network keeps no cache of earlier tokens")
    return output.logits[:, -1, :].to(torch.float32), cache


class SeveralCaches(CachedPrompts):
    """n prompts in several caches, which continue together."""

    def __init__(self, parts: Sequence[OwnCache]) -> None:
        """Args: `parts`, at least one, in the prompts' order."""
        self._parts = list(parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    @override
    def logits(self) -> torch.Tensor:
        return torch.cat([part.logits for part in self._parts])

    @override
    def logits_over(self, support: NDArray[np.integer]) -> torch.Tensor:
        return torch.cat([part.logits_over(support) for part in self._parts])

    @override
    def append(self, token: int) -> None:
        for part in self._parts:
            part.append(token)

    @override
    def fork(self) -> SeveralCaches:
        return SeveralCaches([part.fork() for part in self._parts])


class Passes:
    """All batches' forward passes in the model's own way: apart for each batch, or each row."""

    def __init__(
        self,
        model: LanguageModel,
        rows: int,
        places: int,
        head: Head | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """Take the shape of a pass.

        Args:
            model: a loaded model.
            rows: of a pass.
            places: that each prompt is padded to, one of them padding in any case.
            head: the model's, to keep it apart.
            alone: whether every prompt has passes of its own.
        """
        self._model, self._rows, self._places, self._head = model, rows, places, head
        self._together: int | None = 1 if alone else None
        self._fewest = 1 if alone else ROWS_STEP
        # there kernels are chosen by shape, so it is always the same
        if not alone and model.device.type != "cpu":
            self._together = self._fewest = min(rows, OWN_ROWS)
        self._running: list[_Outputs | SeveralCaches] = []

    def fits(self, prompts: int) -> bool:
        """Return whether so many prompts fit beside the running ones.

        The first batch always does.
        """
        return not self._running or sum(map(len, self._running)) + prompts <= self._rows

    def start(
        self, prompts: Sequence[Prompt], prefix: Prompt = (), places: int | None = None
    ) -> CachedPrompts:
        """Feed a batch's prompts.

        Args:
            prompts: token ids of each.
            prefix: what prompts begin with; where it can be, it is computed once for them.
            places: a public length that most of these prompts are shorter than; None for that of
                all batches. Where it can be, less padding is computed.

        Raises:
            ValueError: a prompt leaves no padding in the places of all batches.
            torch.OutOfMemoryError, MemoryError, RuntimeError: see `out_of_memory`.
        """
        each = self._together or max(1, len(prompts))
        parts = [
            OwnCache(
                self._model, prompts[first : first + each], self._places, self._fewest, self._head
            )
            for first in range(0, max(1, len(prompts)), each)
        ]
        batch: OwnCache | SeveralCaches = parts[0] if len(parts) == 1 else SeveralCaches(parts)
        self._running.append(batch)
        return batch

    def advance(self, tokens: Sequence[tuple[CachedPrompts, int]]) -> None:
        """Continue each batch with its own token, together where that can be."""
        for batch, token in tokens:
            batch.append(token)

    def finish(self, prompts: CachedPrompts) -> None:
        """Free the rows of a batch that has ended."""
        self._running = [other for other in self._running if id(other) != id(prompts)]


class SharedPasses(Passes):
    """One pass for the rows of all batches.

    A row's columns are for its prompt and for the tokens after it.
    """

    def __init__(
        self, model: LanguageModel, rows: int, places: int, tokens: int, head: Head | None = None
    ) -> None:
        """Args: as for `passes_for`."""
        super().__init__(model, rows, places, head)
        self._block_rows = max(ROWS_STEP, rows)
        # prompts that are computed in one go
        self._prefilled = max(ROWS_STEP, PREFILL_TOKENS // places)
        self._width = places + tokens + 1  # the last column is for what rows without a token write
        self._blocks: list[_Block] = []
        self._prefixes: dict[tuple[int, ...], DynamicCache] = {}

    @classmethod
    def fit(
        cls, model: LanguageModel, rows: int, places: int, tokens: int, head: Head | None = None
    ) -> SharedPasses | None:
        """Return passes for this model, or None if its cache is of another kind."""
        passes = cls(model, rows, places, tokens, head)
        # Every layer must cache keys and values of all columns that a row has.
        layers: list[Any] = DynamicCache(config=model.network.config).layers
        plain = "position_ids" in parameters_of(type(model.network).forward) and all(
            type(layer) is DynamicLayer
            or (type(layer) is DynamicSlidingWindowLayer and layer.sliding_window >= passes._width)
            for layer in layers
        )
        return passes if plain else None

    @torch.inference_mode()
    @override
    def start(
        self, prompts: Sequence[Prompt], prefix: Prompt = (), places: int | None = None
    ) -> CachedPrompts:
        require_padding(prompts, self._places)
        while len(self._free()) < len(prompts):
            self._blocks.append(
                _Block(self._model, self._block_rows, self._places, self._width, self._head)
            )
        batch = _SharedRows(self, self._free()[: len(prompts)], self._model, self._head)
        self._running.append(batch)
        # By itself each prompt decides how it is computed: with the shared prefix or alone, and in
        # how many places. On a GPU kernels are chosen by shape, so there the shape is always the
        # same.
        common, fewer = tuple(prefix), self._places
        if places is not None and len(common) < places and self._model.device.type == "cpu":
            fewer = min(places, self._places)
        ways = defaultdict[tuple[Prompt, int], list[int]](list)
        for index, prompt in enumerate(prompts):
            begins = len(prompt) > len(common) and tuple(prompt[: len(common)]) == common
            width = fewer if len(prompt) < fewer else self._places
            ways[common if begins else (), width].append(index)
        for (start, width), chosen in ways.items():
            for first in range(0, len(chosen), self._prefilled):
                self._prefill(batch, prompts, chosen[first : first + self._prefilled], start, width)
        return batch

    @torch.inference_mode()
    @override
    def advance(self, tokens: Sequence[tuple[CachedPrompts, int]]) -> None:
        together = [(batch, token) for batch, token in tokens if isinstance(batch, _SharedRows)]
        for batch, _ in together:
            batch.catch_up()
        self.feed([(batch, len(batch.tokens), token) for batch, token in together])
        for batch, token in together:
            batch.tokens.append(token)

    def feed(self, tokens: Sequence[tuple[_SharedRows, int, int]]) -> None:
        """Run one pass of each block: (batch, position after its prompts, token)."""
        for number, block in enumerate(self._blocks):
            fed = {
                row: (position, token)
                for batch, position, token in tokens
                for block_number, row in batch.rows
                if block_number == number
            }
            if fed:
                outputs = block.feed(fed)
                # A view holds the outputs of all rows in memory: it is for batches that have most
                # of them.
                whole = 2 * len(fed) >= len(outputs)
                for batch, _, _ in tokens:
                    batch.take(number, outputs, view=whole)
        for batch, position, token in tokens:
            batch.written[position:] = [token]

    def _free(self) -> list[_Row]:
        taken = {
            row for batch in self._running if isinstance(batch, _SharedRows) for row in batch.rows
        }
        everywhere = (
            (number, row) for number in range(len(self._blocks)) for row in range(self._block_rows)
        )
        return [row for row in everywhere if row not in taken]

    def _prefill(
        self,
        batch: _SharedRows,
        prompts: Sequence[Prompt],
        part: Sequence[int],
        prefix: Prompt,
        places: int,
    ) -> None:
        """Compute prompts' caches and first logits, padded between shared prefix and rest."""
        rows = max(ROWS_STEP, len(part)) if self._model.device.type == "cpu" else self._prefilled
        filled = list(part) + [part[-1]] * (rows - len(part))
        width = places - len(prefix)
        rests = [list(prompts[index][len(prefix) :]) for index in filled]
        ids = torch.tensor(
            [[0] * (width - len(rest)) + rest for rest in rests], device=self._model.device
        )
        padding = [
            [1] * len(prefix) + [0] * (width - len(rest)) + [1] * len(rest) for rest in rests
        ]
        seen = torch.tensor(padding, device=self._model.device)
        cache = self._started(prefix, len(filled))
        outputs, _ = forward(self._model.network, ids, seen, cache, head=self._head)
        batch.outputs[list(part)] = outputs[: len(part)]
        for number, block in enumerate(self._blocks):
            here = [i for i, index in enumerate(part) if batch.rows[index][0] == number]
            if here:
                block.store([batch.rows[part[i]][1] for i in here], cache, here, seen[here])

    def _started(self, prefix: Prompt, rows: int) -> DynamicCache:
        """Return a cache that holds the prefix in `rows` rows."""
        if not prefix:
            return DynamicCache()
        key = tuple(prefix)
        if key not in self._prefixes:
            ids = torch.tensor([list(prefix)], device=self._model.device)
            self._prefixes[key] = DynamicCache()
            seen = torch.ones_like(ids)
            forward(self._model.network, ids, seen, self._prefixes[key], head=self._head)
        known: list[Any] = self._prefixes[key].layers
        return DynamicCache(
            [(x.keys.expand(rows, -1, -1, -1), x.values.expand(rows, -1, -1, -1)) for x in known]
        )


#: A block, and a row of it.
_Row = tuple[int, int]


class _SharedRows(_Outputs):
    """A batch's rows; see `CachedPrompts`.

    Forks share the rows: whoever goes on writes its own tokens where another's stand.
    """

    def __init__(
        self, passes: SharedPasses, rows: Sequence[_Row], model: LanguageModel, head: Head | None
    ) -> None:
        super().__init__(model, head, len(rows))
        self.passes, self.rows = passes, list(rows)
        self.tokens: list[int] = []
        # what the rows hold after the prompts; the same list in all forks
        self.written: list[int] = []

    @override
    def append(self, token: int) -> None:
        self.passes.advance([(self, token)])

    @override
    def fork(self) -> _SharedRows:
        twin = copy.copy(self)
        twin.tokens, twin.outputs = list(self.tokens), self.outputs.clone()
        return twin

    def take(self, block: int, outputs: torch.Tensor, *, view: bool) -> None:
        """Keep this batch's rows of a block's outputs, as a view if allowed and contiguous."""
        here = [i for i, (number, _) in enumerate(self.rows) if number == block]
        rows = [self.rows[i][1] for i in here]
        if (
            view
            and here
            and len(here) == len(self.rows)
            and rows == list(range(rows[0], rows[0] + len(rows)))
        ):
            self.outputs = outputs[rows[0] : rows[0] + len(rows)]
        elif here:
            self.outputs[here] = outputs[rows]

    def catch_up(self) -> None:
        """Write those of this batch's tokens that the rows do not hold any more."""
        pairs = zip(self.tokens, self.written, strict=False)
        same = next(
            (i for i, (own, held) in enumerate(pairs) if own != held),
            min(len(self.tokens), len(self.written)),
        )
        for position in range(same, len(self.tokens)):
            self.passes.feed([(self, position, self.tokens[position])])


class _Block:
    """One pass's rows and their cache: keys and values [rows, heads, width, d] in every layer."""

    def __init__(
        self, model: LanguageModel, rows: int, places: int, width: int, head: Head | None
    ) -> None:
        self._network, self._places, self._width, self._head = model.network, places, width, head
        self._full = model.device.type != "cpu"
        device = model.device
        self._prompts = torch.zeros((rows, width), dtype=torch.long, device=device)
        self._prompts[:, 0] = 1  # a free row attends to something, too
        self._lengths = torch.ones(rows, dtype=torch.long, device=device)
        self._columns = torch.arange(width, device=device)
        self._layers: list[_CachedLayer] = []
        self._cache: Cache | None = None

    def store(
        self, rows: Sequence[int], cache: DynamicCache, chosen: Sequence[int], seen: torch.Tensor
    ) -> None:
        """Copy prompts' caches into rows' last places. `seen` [len(rows), ...] is 0 on padding."""
        if self._cache is None:
            self._layers = [
                _CachedLayer(layer, len(self._prompts), self._width) for layer in cache.layers
            ]
            self._cache = Cache(layers=list(self._layers))
        for own, computed in zip(self._layers, cache.layers, strict=True):
            own.store(rows, computed, chosen, self._places)
        index = list(rows)
        self._prompts[index] = 0
        self._prompts[index, self._places - seen.shape[1] : self._places] = seen
        self._lengths[index] = seen.sum(dim=1)

    @torch.inference_mode()
    def feed(self, tokens: Mapping[int, tuple[int, int]]) -> torch.Tensor:
        """Return outputs after row -> (position, token).

        Other rows compute what nobody looks at.
        """
        rows = len(self._prompts)
        used = rows if self._full else min(rows, -(-(max(tokens) + 1) // ROWS_STEP) * ROWS_STEP)
        ids = torch.zeros((used, 1), dtype=torch.long)
        at = torch.full((used,), self._width - 1)
        for row, (position, token) in tokens.items():
            ids[row, 0], at[row] = token, self._places + position
        ids, at = ids.to(self._prompts.device), at.to(self._prompts.device)
        after = (self._columns >= self._places) & (self._columns <= at[:, None])
        after &= at[:, None] < self._width - 1
        seen = self._prompts[:used] | after
        positions = self._lengths[:used] + at - self._places
        for layer in self._layers:
            layer.at = at
        outputs, _ = forward(self._network, ids, seen, self._cache, positions[:, None], self._head)
        return outputs


class _CachedLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's cache.

    Each row writes its next token to a column of its own, and attends as its mask says.
    """

    keys: Any
    values: Any

    def __init__(self, like: Any, rows: int, width: int) -> None:
        super().__init__()
        self.lazy_initialization(like.keys, like.values)
        self.keys, self.values = (
            torch.zeros((rows, x.shape[1], width, x.shape[3]), dtype=x.dtype, device=x.device)
            for x in (like.keys, like.values)
        )
        self.at = torch.zeros(rows, dtype=torch.long, device=like.keys.device)
        self._width = width

    def store(self, rows: Sequence[int], computed: Any, chosen: Sequence[int], places: int) -> None:
        """Copy chosen rows of a prefilled layer into the last of all prompts' places."""
        index, picked = list(rows), list(chosen)
        first = places - computed.keys.shape[2]
        self.keys[index, :, first:places] = computed.keys[picked]
        self.values[index, :, first:places] = computed.values[picked]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token a row; give all columns of these rows."""
        rows = torch.arange(len(key_states), device=key_states.device)
        self.keys[rows, :, self.at] = key_states[:, :, 0]
        self.values[rows, :, self.at] = value_states[:, :, 0]
        return self.keys[: len(rows)], self.values[: len(rows)]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Count all columns; the mask hides those that a row does not have."""
        return self._width, 0

    def get_seq_length(self) -> int:
        """Return the same length at every token: to the model each is the last one."""
        return self._width - 1


def planned_rows(model: LanguageModel, places: int, tokens: int, free: int | None = None) -> int:
    """Return the number of rows of a pass: a power of two, at least 1.

    As many rows as fit into free memory and serve a purpose. It depends on the model, the machine
    and public lengths; and not on any record, where `free` was measured before the first one was
    read.

    Args:
        model: a loaded model.
        places: of a prompt.
        tokens: after it, at most.
        free: bytes that were free before the model was loaded; None for those that are free beside
            it.
    """
    if free is None:
        free = free_memory(model.device)
    else:
        free -= sum(
            weights.numel() * weights.element_size() for weights in model.network.parameters()
        )
    config = model.network.config.get_text_config()
    item = torch.finfo(model.network.dtype).bits // 8
    cached = _cached_bytes(model)
    row = (places + tokens + 1) * cached + 4 * _LOGIT_COPIES * model.vocabulary
    prefill = PREFILL_TOKENS * (_ACTIVATIONS * config.hidden_size * item + cached)
    fitting = max(1, int((SHARE * free - prefill) // row))
    return min(MOST_ROWS.get(model.device.type, MOST_ROWS["cpu"]), 1 << (fitting.bit_length() - 1))


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a device. On the CPU a container's limit counts too."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # a control group sets no limit, or says "max"
        limit, used = (
            int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current")
        )
        free = min(free, max(0, limit - used))
    return free


def _cached_bytes(model: LanguageModel) -> int:
    """Return the bytes that a model caches for one token in one row.

    It is 0 for a state, which does not grow.
    """
    ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    _, cache = forward(model.network, ids, torch.ones_like(ids), None)
    layers = cache.layers if isinstance(cache, DynamicCache) else []
    tensors = [
        x
        for layer in layers
        for x in (getattr(layer, "keys", None), getattr(layer, "values", None))
    ]
    return sum(x.numel() * x.element_size() for x in tensors if x is not None)
