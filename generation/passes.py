"""Forward passes that several batches share: every context is a row with a key-value cache of its own columns.

A pass has a fixed number of rows and of columns, both public. A row's prompt ends at the same column in every row, and
the t-th token after it always goes to the t-th column after that, whenever its batch began: what a row computes then
depends on its own tokens, and neither on who sits beside it nor on when it came. Batches leave when they end, and
others take their rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from dpaudit.generation.decoding import Decoder, forward, parameters_of
from dpaudit.generation.models import LanguageModel

#: Prompt tokens that go through the network in one go. It bounds the memory for activations.
PREFILL_TOKENS = 4096
#: On a CPU a pass has as many rows as are in use, rounded up to this. For one to three rows matrix products take other
#: kernels there, which add up in another order; from four on it is the same for any number.
ROWS_STEP = 4
#: Places of a prompt, and tokens after it, in the passes that are tried out.
_TRIAL = 6
#: Logits of a shared pass may differ by this share of their spread from those of a pass alone. A cache that the model
#: misreads gives other logits altogether.
AGREEMENT = {torch.float32: 0.01, torch.bfloat16: 0.25}

Prompt = Sequence[int]


class Seat(Protocol):
    """n prompts that are continued with the same tokens. Works for n = 0."""

    @property
    def scores(self) -> torch.Tensor:
        """Logits of the next token on the model's device: float32 [n, V], V as the model scores it."""
        ...

    def append(self, token: int) -> None:
        """Continue every prompt with the same token, in a pass of its own."""
        ...

    def fork(self) -> Seat:
        """The same place in the text, to go on from apart from this one."""
        ...


class Passes(Protocol):
    """Where batches sit while they are generated."""

    def room(self, prompts: int) -> bool:
        """Whether so many prompts fit beside those that sit here. The first to come always do."""
        ...

    def seat(self, prompts: Sequence[Prompt], prefix: Prompt = ()) -> Seat:
        """Take in a batch. `prefix`: what prompts begin with; where they do, it is computed once.

        Raises:
            ValueError: a prompt leaves no padding in its places.
            torch.OutOfMemoryError, MemoryError, RuntimeError: see `out_of_memory`.
        """
        ...

    def advance(self, tokens: Sequence[tuple[Seat, int]]) -> None:
        """Continue each batch with its own token, together where that can be."""
        ...

    def leave(self, seat: Seat) -> None:
        """A batch has ended: its rows are free."""
        ...


def logits(seat: Seat) -> NDArray[np.float32]:
    """A seat's scores as an array: float32 [n, V]."""
    result: NDArray[np.float32] = seat.scores.cpu().numpy()
    return result


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; PyTorch's CPU allocator says so in words only."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and re.search(r"(not enough|allocate|out of) memory", str(error)) is not None


class SharedPasses:
    """See `Passes`: one pass for all rows. A row's columns are for its prompt and for the tokens after it."""

    def __init__(self, model: LanguageModel, rows: int, places: int, tokens: int) -> None:
        """Args: `rows` of a pass, `places` of a prompt (with one place of padding), `tokens` after it at most."""
        self._rows, self._model, self._places = rows, model, places
        self._prefilled = max(ROWS_STEP, PREFILL_TOKENS // places)  # prompts that are computed in one go
        self._width = places + tokens + 1  # the last column is for what rows without a token write
        self._blocks: list[_Block] = []
        self._prefixes: dict[tuple[int, ...], DynamicCache] = {}
        self._seated: list[_SharedSeat] = []

    @classmethod
    def fit(cls, model: LanguageModel, rows: int, places: int, tokens: int) -> SharedPasses | None:
        """Passes for this model, or None where its cache is of another kind or they do not give its logits."""
        passes = cls(model, rows, places, tokens)
        plain = _has_plain_cache(model.network, passes._width)
        return passes if plain and cls(model, ROWS_STEP, min(places, _TRIAL), _TRIAL)._agree() else None

    def room(self, prompts: int) -> bool:
        """See `Passes`."""
        return not self._seated or sum(len(seat.places) for seat in self._seated) + prompts <= self._rows

    @torch.inference_mode()
    def seat(self, prompts: Sequence[Prompt], prefix: Prompt = ()) -> Seat:
        """See `Passes`."""
        if any(len(prompt) >= self._places for prompt in prompts):
            raise ValueError(f"prompts must be shorter than the {self._places} places they are padded to")
        while len(self._free()) < len(prompts):
            self._blocks.append(_Block(self._model, self._block_rows, self._places, self._width))
        seat = _SharedSeat(self, self._free()[: len(prompts)], self._model)
        self._seated.append(seat)
        # By itself each prompt decides how it is computed: with the shared prefix, or alone.
        common = tuple(prefix)
        begins = [len(prompt) > len(common) and tuple(prompt[: len(common)]) == common for prompt in prompts]
        for shared, start in ((True, common), (False, ())):
            chosen = [index for index, starts in enumerate(begins) if starts == shared]
            for part in _parts(chosen, self._prefilled):
                self._prefill(seat, prompts, part, start)
        return seat

    @torch.inference_mode()
    def advance(self, tokens: Sequence[tuple[Seat, int]]) -> None:
        """See `Passes`."""
        together = [(seat, token) for seat, token in tokens if isinstance(seat, _SharedSeat)]
        for seat, _ in together:
            seat.catch_up()
        self._feed([(seat, len(seat.tokens), token) for seat, token in together])
        for seat, token in together:
            seat.tokens.append(token)

    def leave(self, seat: Seat) -> None:
        """See `Passes`."""
        self._seated = [other for other in self._seated if other is not seat]

    @property
    def _block_rows(self) -> int:
        return max(ROWS_STEP, self._rows)

    def _free(self) -> list[_Place]:
        taken = {place for seat in self._seated for place in seat.places}
        everywhere = ((number, row) for number in range(len(self._blocks)) for row in range(self._block_rows))
        return [place for place in everywhere if place not in taken]

    def _prefill(self, seat: _SharedSeat, prompts: Sequence[Prompt], part: Sequence[int], prefix: Prompt) -> None:
        """Compute some prompts' caches and first logits, padded between the shared prefix and the rest."""
        fixed = self._prefilled
        # On a GPU kernels are chosen by shape, so there the shape is always the same.
        rows = max(ROWS_STEP, len(part)) if self._model.device.type == "cpu" else fixed
        filled = list(part) + [part[-1]] * (rows - len(part))
        width = self._places - len(prefix)
        rests = [list(prompts[index][len(prefix) :]) for index in filled]
        ids = torch.tensor([[0] * (width - len(rest)) + rest for rest in rests], device=self._model.device)
        padding = [[1] * len(prefix) + [0] * (width - len(rest)) + [1] * len(rest) for rest in rests]
        seen = torch.tensor(padding, device=self._model.device)
        cache = self._started(prefix, len(filled))
        scores, _ = forward(self._model.network, ids, seen, cache)
        seat.scores[list(part)] = scores[: len(part)]
        for number, block in enumerate(self._blocks):
            here = [i for i, index in enumerate(part) if seat.places[index][0] == number]
            if here:
                block.take_in([seat.places[part[i]][1] for i in here], cache, here, seen[here])

    def _started(self, prefix: Prompt, rows: int) -> DynamicCache:
        """A cache that holds the prefix in so many rows."""
        if not prefix:
            return DynamicCache()
        key = tuple(prefix)
        if key not in self._prefixes:
            ids = torch.tensor([list(prefix)], device=self._model.device)
            self._prefixes[key] = DynamicCache()
            forward(self._model.network, ids, torch.ones_like(ids), self._prefixes[key])
        known: list[Any] = self._prefixes[key].layers
        return DynamicCache([(x.keys.expand(rows, -1, -1, -1), x.values.expand(rows, -1, -1, -1)) for x in known])

    def _feed(self, tokens: Sequence[tuple[_SharedSeat, int, int]]) -> None:
        """One pass of each block: (seat, position after its prompt, token)."""
        for number, block in enumerate(self._blocks):
            fed = {
                row: (position, token)
                for seat, position, token in tokens
                for block_number, row in seat.places
                if block_number == number
            }
            if fed:
                scores = block.feed(fed)
                # A view holds the scores of all rows in memory: it is for seats that have most of them.
                whole = 2 * len(fed) >= len(scores)
                for seat, _, _ in tokens:
                    seat.take(number, scores, view=whole)
        for seat, position, token in tokens:
            seat.written[position:] = [token]

    @torch.inference_mode()
    def _agree(self) -> bool:
        """Whether prompts of two lengths, continued here, have the logits that they have alone."""
        end = [token % self._model.vocabulary for token in (7, 5)]
        prompts = [[11 % self._model.vocabulary], [3 % self._model.vocabulary] * min(3, self._places - 1)]
        try:
            seat = self.seat(prompts)
            for token in end:
                seat.append(token)
            self.leave(seat)
            for prompt, found in zip(prompts, seat.scores, strict=True):
                ids = torch.tensor([[*prompt, *end]], device=self._model.device)
                alone = self._model.network(input_ids=ids).logits[0, -1].to(torch.float32)
                if not float((found - alone).abs().max()) <= AGREEMENT[self._model.network.dtype] * float(alone.std()):
                    return False
        except Exception as error:  # whatever another kind of cache makes a model raise
            if out_of_memory(error):
                raise
            return False
        return True


_Place = tuple[int, int]


class _SharedSeat:
    """See `Seat`. Forks share the rows: whoever goes on writes its own tokens where another's stand."""

    def __init__(self, passes: SharedPasses, places: Sequence[_Place], model: LanguageModel) -> None:
        self.passes, self.places = passes, list(places)
        self.tokens: list[int] = []
        self.written: list[int] = []  # what the rows hold after the prompts; the same list in all forks
        self.scores = torch.empty((len(places), model.vocabulary), dtype=torch.float32, device=model.device)

    def append(self, token: int) -> None:
        """See `Seat`."""
        self.passes.advance([(self, token)])

    def fork(self) -> _SharedSeat:
        """See `Seat`."""
        twin = object.__new__(_SharedSeat)
        twin.passes, twin.places, twin.written = self.passes, self.places, self.written
        twin.tokens, twin.scores = list(self.tokens), self.scores.clone()
        return twin

    def take(self, block: int, scores: torch.Tensor, *, view: bool) -> None:
        """Keep this seat's rows of a block's scores [rows, V]; as a view if it may be, and they are in one piece."""
        here = [i for i, (number, _) in enumerate(self.places) if number == block]
        rows = [self.places[i][1] for i in here]
        if view and here and len(here) == len(self.places) and rows == list(range(rows[0], rows[0] + len(rows))):
            self.scores = scores[rows[0] : rows[0] + len(rows)]
        elif here:
            self.scores[here] = scores[rows]

    def catch_up(self) -> None:
        """Write those of this seat's tokens that the rows do not hold any more."""
        pairs = zip(self.tokens, self.written, strict=False)
        same = next((i for i, (own, held) in enumerate(pairs) if own != held), min(len(self.tokens), len(self.written)))
        for position in range(same, len(self.tokens)):
            self.passes._feed([(self, position, self.tokens[position])])


class _Block:
    """The rows of one pass with their cache: keys and values [rows, heads, width, d] in every layer."""

    def __init__(self, model: LanguageModel, rows: int, places: int, width: int) -> None:
        self._network, self._places, self._width = model.network, places, width
        self._full = model.device.type != "cpu"
        device = model.device
        self._prompts = torch.zeros((rows, width), dtype=torch.long, device=device)
        self._prompts[:, 0] = 1  # a row that nobody sits in attends to something, too
        self._lengths = torch.ones(rows, dtype=torch.long, device=device)
        self._columns = torch.arange(width, device=device)
        self._layers: list[_Columns] = []
        self._cache: Cache | None = None

    def take_in(self, rows: Sequence[int], cache: DynamicCache, chosen: Sequence[int], seen: torch.Tensor) -> None:
        """Copy prompts' caches into rows. `seen` [len(rows), places] is 0 on padding."""
        if self._cache is None:
            self._layers = [_Columns(layer, len(self._prompts), self._width) for layer in cache.layers]
            self._cache = Cache(layers=list(self._layers))
        for own, computed in zip(self._layers, cache.layers, strict=True):
            own.take_in(rows, computed, chosen, self._places)
        index = list(rows)
        self._prompts[index] = 0
        self._prompts[index, : self._places] = seen
        self._lengths[index] = seen.sum(dim=1)

    @torch.inference_mode()
    def feed(self, tokens: Mapping[int, tuple[int, int]]) -> torch.Tensor:
        """Next logits float32 [rows, V] after row -> (position, token). Other rows compute what nobody looks at."""
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
        scores, _ = forward(self._network, ids, seen, self._cache, positions[:, None])
        return scores


class _Columns(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer's cache: each row writes its next token to a column of its own, and attends as its mask says."""

    keys: Any
    values: Any

    def __init__(self, like: Any, rows: int, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lazy_initialization(like.keys, like.values)
        self.keys, self.values = (
            torch.zeros((rows, x.shape[1], width, x.shape[3]), dtype=x.dtype, device=x.device)
            for x in (like.keys, like.values)
        )
        self.at = torch.zeros(rows, dtype=torch.long, device=like.keys.device)
        self._width = width

    def take_in(self, rows: Sequence[int], computed: Any, chosen: Sequence[int], places: int) -> None:
        """Copy chosen rows of a prefilled layer."""
        index, picked = list(rows), list(chosen)
        self.keys[index, :, :places] = computed.keys[picked]
        self.values[index, :, :places] = computed.values[picked]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token a row; give all columns of these rows."""
        rows = torch.arange(len(key_states), device=key_states.device)
        self.keys[rows, :, self.at] = key_states[:, :, 0]
        self.values[rows, :, self.at] = value_states[:, :, 0]
        return self.keys[: len(rows)], self.values[: len(rows)]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All columns count; the mask hides those that a row does not have."""
        return self._width, 0

    def get_seq_length(self) -> int:
        """To the model every token is the last one."""
        return self._width - 1


class OwnPasses:
    """See `Passes`: a cache and a pass for each batch, in the model's own way. For models with other caches."""

    def __init__(self, model: LanguageModel, rows: int, places: int) -> None:
        self._rows, self._model, self._places = rows, model, places
        self._seated: list[Seat] = []

    def room(self, prompts: int) -> bool:
        """See `Passes`."""
        return not self._seated or sum(len(seat.scores) for seat in self._seated) + prompts <= self._rows

    def seat(self, prompts: Sequence[Prompt], prefix: Prompt = ()) -> Seat:
        """See `Passes`. The prefix is computed with each prompt."""
        seat = Decoder(self._model, prompts, self._places, fewest=ROWS_STEP)
        self._seated.append(seat)
        return seat

    def advance(self, tokens: Sequence[tuple[Seat, int]]) -> None:
        """See `Passes`."""
        for seat, token in tokens:
            seat.append(token)

    def leave(self, seat: Seat) -> None:
        """See `Passes`."""
        self._seated = [other for other in self._seated if other is not seat]


def passes_for(model: LanguageModel, rows: int, places: int, tokens: int) -> Passes:
    """Shared passes where the model's cache allows them, else one for each batch.

    Args:
        model: the model.
        rows: of a pass: contexts that go through the network together.
        places: of a prompt, with one of padding.
        tokens: after a prompt, at most.
    """
    return SharedPasses.fit(model, rows, places, tokens) or OwnPasses(model, rows, places)


def _parts(items: Sequence[int], size: int) -> list[Sequence[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _has_plain_cache(network: PreTrainedModel, width: int) -> bool:
    """Whether every layer caches keys and values of all columns that a row has."""
    layers: list[Any] = DynamicCache(config=network.config).layers
    plain = all(
        type(layer) is DynamicLayer or (type(layer) is DynamicSlidingWindowLayer and layer.sliding_window >= width)
        for layer in layers
    )
    return plain and "position_ids" in parameters_of(type(network).forward)
