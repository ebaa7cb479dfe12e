"""One batch's steps on disk: written a step at a time, and read some steps at a time.

A zip file without its closing directory cannot be opened, so a batch that was cut short can never
be read as whole.

Arrays (T steps of all texts, S tokens in the support at most, n contexts, w = record.width); codes
are those of `dpaudit.runs.encoding`:

    ...               [T, ..., S]               the mechanism's (`Mechanism.arrays`)
    constant          [T, ceil(S / 8)] uint8    bits of the tokens whose ascending values are all
                                                equal (where the aggregator has an array of such
                                                values)
    contexts          [T, n, S]                 codes of every context's contribution
                                                (record.contexts, n > 0)
    canary            [T, S]                    codes of its canary's contribution (header.canary)
    spent             [T, n] float64            what every context has spent after the step
                                                (mechanism.budget, n > 0)
    support           [T, S] int32              token ids, ascending, then -1 where there are fewer
                                                (public-top-k, or decoding rules)
    token             [T] int32                 sampled token ids, one text's after another's;
                                                written last
    log_probability   [T] float64               of the sampled token, as the sampler had it
    aggregate_digest  [T, 32] uint8             SHA-256 of the aggregate that was sampled from

The last three are one chunk each. A chunk of the others has the same number of steps
(`BatchArrays.together`), and zeros behind the last step. What each text is, and how many tokens it
has, are attributes of `token`. With `constant`, the columns of the aggregator's arrays and of
contexts are those of the tokens that are not constant, in ascending order, and then those of the
tokens that are. A step of fewer tokens has zeros behind them.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from dpaudit.errors import InputError
from dpaudit.mechanisms import MAX_NUMBER, Fields, StepArray
from dpaudit.runs import encoding
from dpaudit.runs.archive import ArchiveReader, ArchiveWriter, ArraySpec
from dpaudit.runs.encoding import AnyArray
from dpaudit.runs.manifest import (
    MAX_BATCHES,
    MAX_CANARIES,
    MAX_CONTEXTS,
    MAX_TOKENS,
    Manifest,
    Name,
    StopReason,
    Token,
)

DIGEST_BYTES = 32
#: The most memory of a step's arrays: 64 contexts of 256,000 tokens in float64. An audit takes up
#: to three times as much.
MAX_STEP_BYTES = 1 << 27
#: Of the largest array's chunk, decompressed, unless one step has more: as many steps are one chunk
#: as fit, a power of two. Larger ones are no faster to read, and writers hold one in memory.
CHUNK_BYTES = 1 << 19
MAX_TEXT = 1 << 22
REGENERATE = (
    "Restore the file from a copy. Only if it never was whole: delete it and generate again."
)
_REAL = {"float32": "<f4", "float64": "<f8"}
#: The arrays that are written once all of a batch's steps are known, as one chunk each: name, dtype
#: and shape of a step's.
_AT_THE_END: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("log_probability", "<f8", ()),
    ("aggregate_digest", "|u1", (DIGEST_BYTES,)),
    ("token", "<i4", ()),
)
_CONTEXTS, _SUPPORT, _CONSTANT, _SPENT, _CANARY = (
    "contexts",
    "support",
    "constant",
    "spent",
    "canary",
)


#: The number of a batch, a text in it, or a centre.
Number = Annotated[int, Field(ge=0, lt=MAX_BATCHES)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Budget = Annotated[float, Field(ge=0, le=MAX_NUMBER)]


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The facts about a batch that are known before its first step.

    Attributes:
        contexts: n, the number of private contexts.
        budgets: what each of them may spend, [n], in nats of rho; None if each has
            `mechanism.budget`, if any.
        canary: number of the canary that the batch has, in or out, in the file `canaries`; None for
            most batches.
    """

    __pydantic_config__ = Fields.model_config

    id: Number
    contexts: Annotated[int, Field(ge=0, le=MAX_CONTEXTS)]
    label: Name | None = None
    cluster: Number | None = None
    budgets: Annotated[tuple[Budget, ...], Field(max_length=MAX_CONTEXTS)] | None = None
    canary: Annotated[int, Field(ge=0, lt=MAX_CANARIES)] | None = None

    def problem(self, manifest: Manifest) -> str | None:
        """Return why no batch of a run can begin with this header, or None."""
        wanted = self.contexts if manifest.own_allowances and self.contexts else None
        given = None if self.budgets is None else len(self.budgets)
        canaries = 0 if manifest.canaries is None else manifest.canaries.count
        if self.canary is not None and self.canary >= canaries:
            return f"it has canary {self.canary} of {canaries}"
        if given == wanted:
            return None
        return f"there are {given} budgets of contexts, and {wanted} by run.json"


@dataclass(frozen=True)
class Step:
    """The record of one step. Shapes are those of the module's docstring, without the leading axis.

    Attributes:
        token: sampled token id.
        log_probability: natural logarithm of the probability the sampler gave it.
        aggregate_digest: `aggregate_digest` of the vector that was sampled from.
        arrays: the mechanism's, by name (for a median central, sides and holder; for a mean
            aggregate).
        contexts: real [n, S], every context's contribution, where they are recorded.
        support: int [S], ids of the tokens it was sampled from, ascending, where these are not the
            whole vocabulary.
        spent: [2, n], what every context had spent before the step and has spent after it, where
            contexts have budgets. A batch's first step begins with zeros. Only what is spent after
            a step is stored.
        canary: real [S], the contribution of the batch's canary, whether it is one of the contexts
            or not; None without a canary.
    """

    token: int
    log_probability: float
    aggregate_digest: bytes
    arrays: Mapping[str, AnyArray]
    contexts: NDArray[np.floating] | None = None
    support: NDArray[np.integer] | None = None
    spent: NDArray[np.float64] | None = None
    canary: NDArray[np.floating] | None = None

    @property
    def active(self) -> NDArray[np.bool_] | None:
        """The contexts that took part in the draw, bool [n]: those that paid; None for all."""
        return None if self.spent is None else self.spent[1] > self.spent[0]

    @property
    def given(self) -> NDArray[np.floating] | None:
        """The contributions to the aggregate, [n, S], if recorded.

        0 for contexts that took no part.
        """
        if self.contexts is None or self.active is None:
            return self.contexts
        return np.where(self.active[:, None], self.contexts, 0)


@dataclass(frozen=True)
class RecordedSteps:
    """The records of k steps in a row, each of whose columns lie behind those of the one before.

    Attributes:
        tokens: int [k] sampled token ids.
        log_probabilities: float64 [k] of them, as the sampler had them.
        digests: uint8 [k, 32] `aggregate_digest` of the vectors that were sampled from.
        lengths: int [k] how many columns each step has.
        arrays: the mechanism's, [..., columns], by name.
        contexts, support, canary: [n, columns], [columns] and [columns], as in `Step`.
        spent: float64 [k, 2, n], as in `Step`.
    """

    tokens: NDArray[np.integer]
    log_probabilities: NDArray[np.float64]
    digests: NDArray[np.uint8]
    lengths: NDArray[np.intp]
    arrays: dict[str, AnyArray]
    contexts: NDArray[np.floating] | None = None
    support: NDArray[np.integer] | None = None
    spent: NDArray[np.float64] | None = None
    canary: NDArray[np.floating] | None = None

    @classmethod
    def alone(cls, step: Step, columns: int) -> RecordedSteps:
        """Return one step, which has so many columns."""
        return cls(
            tokens=np.array([step.token]),
            log_probabilities=np.array([step.log_probability]),
            digests=np.frombuffer(step.aggregate_digest, dtype=np.uint8)[None],
            lengths=np.array([columns]),
            arrays=dict(step.arrays),
            contexts=step.contexts,
            support=step.support,
            spent=None if step.spent is None else step.spent[None],
            canary=step.canary,
        )

    def part(self, steps: slice) -> RecordedSteps:
        """Return some of the steps, in the same memory."""
        if len(self.tokens[steps]) == len(self.tokens):
            return self
        stop = int(self.lengths[: steps.stop].sum())
        columns = slice(stop - int(self.lengths[steps].sum()), stop)

        def of_steps(array: AnyArray | None) -> Any:
            return None if array is None else array[..., columns]

        return RecordedSteps(
            tokens=self.tokens[steps],
            log_probabilities=self.log_probabilities[steps],
            digests=self.digests[steps],
            lengths=self.lengths[steps],
            arrays={name: of_steps(array) for name, array in self.arrays.items()},
            contexts=of_steps(self.contexts),
            support=of_steps(self.support),
            spent=None if self.spent is None else self.spent[steps],
            canary=of_steps(self.canary),
        )

    def one(self, place: int) -> Step:
        """Return one of the steps."""
        only = self.part(slice(place, place + 1))

        def of_step(array: AnyArray | None) -> Any:
            return None if array is None else np.ascontiguousarray(array)

        return Step(
            token=int(only.tokens[0]),
            log_probability=float(only.log_probabilities[0]),
            aggregate_digest=only.digests.tobytes(),
            arrays={name: of_step(array) for name, array in only.arrays.items()},
            contexts=of_step(only.contexts),
            support=of_step(only.support),
            spent=None if only.spent is None else only.spent[0],
            canary=of_step(only.canary),
        )


class Sample(Fields):
    """A line of samples.jsonl: one text of a batch, as it would be released.

    Attributes:
        id: the batch.
        number: of the text within the batch, from 0.
        tokens: the text's own, the end included.
        text: what the tokens say, `as_released`; None if only tokens are released.
        stop: why it ended; "budget" if the batch's public number of tokens was spent.
    """

    id: Number
    number: Number
    label: Name | None
    cluster: Number | None
    tokens: Annotated[tuple[Token, ...], Field(max_length=MAX_TOKENS)]
    text: Text | None
    stop: StopReason

    @property
    def place(self) -> str:
        """The name of the text in messages."""
        return f"batch {self.id}, text {self.number}"

    def line(self) -> str:
        """Return the sample's line, with its end, in the one way in which dpaudit writes it."""
        return json.dumps(self.model_dump(), ensure_ascii=False) + "\n"


def without_stop(tokens: Sequence[int], sequences: Iterable[Sequence[int]]) -> list[int]:
    """Return the tokens that a released text is decoded from.

    Those are all but the longest stop sequence that they end in.
    """
    for sequence in sorted(sequences, key=len, reverse=True):
        if sequence and list(tokens[-len(sequence) :]) == list(sequence):
            return list(tokens[: -len(sequence)])
    return list(tokens)


def as_released(text: str) -> str:
    """Return a text as samples.jsonl has it: without the white space around it (`str.strip`)."""
    return text.strip()


def aggregate_digest(aggregate: NDArray[np.floating]) -> bytes:
    """Return the SHA-256 of a vector's bytes, little-endian in its own dtype.

    Equal digests mean equal bit for bit.
    """
    array = np.ascontiguousarray(aggregate)
    return hashlib.sha256(
        array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    ).digest()


class BatchArrays:
    """The arrays of a batch, by the manifest, its contexts and its canary, and their codes.

    Attributes:
        given: dtype and shape of a step's arrays in memory, by name, for the most tokens that a
            step can have.
        stored: the same of a step's arrays on disk.
        together: how many steps a chunk has.
        beside: those of `given` without a column for each token, stored as they are.
        step_bytes: the most memory of a step's arrays that have columns.
    """

    def __init__(self, manifest: Manifest, contexts: int, canary: bool = False) -> None:
        """Describe the arrays.

        Raises:
            InputError: a step would take more memory than MAX_STEP_BYTES.
        """
        size, real, grid = (
            manifest.most_support,
            _REAL[manifest.record.dtype],
            manifest.mechanism.contribution.grid,
        )
        described = manifest.mechanism.arrays(contexts, manifest.record.width)
        self._ascending = [name for name, array in described.items() if array.ascending]
        if manifest.record.contexts and contexts:
            described[_CONTEXTS] = StepArray("real", (contexts,), manifest.mechanism.clip)
        if canary:
            described[_CANARY] = StepArray("real", (), manifest.mechanism.clip)
        #: The arrays whose columns are in the stored order.
        self._ordered: list[str] = []
        if self._ascending:
            self._ordered = [name for name, array in described.items() if array.columns]
        if manifest.truncated:
            described[_SUPPORT] = StepArray("<i4")
        self._tokens = size
        self._codes: dict[str, encoding.Code] = {}
        self.beside: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.given: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.stored: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, array in described.items():
            dtype = real if array.dtype == "real" else array.dtype
            shape = (*array.rows, size)
            if not array.columns:
                self.beside[name] = dtype, array.rows
                continue
            self.given[name] = dtype, shape
            if code := _code_for(array, dtype, grid):
                self._codes[name] = code
            self.stored[name] = code.stored if code else dtype, shape
        self.step_bytes = _require_step_size(self.given, contexts, size)
        if self._ascending:
            self.stored[_CONSTANT] = "|u1", ((size + 7) // 8,)
        if manifest.mechanism.budget is not None and contexts:
            self.beside[_SPENT] = "<f8", (contexts,)
        self.given |= self.beside
        self.stored |= self.beside
        self.together = _steps_together(self.stored)
        #: Every array of a batch of so many steps, by name, in the order of the file.
        self.specs = lru_cache(maxsize=128)(self._specs)

    def _specs(self, steps: int) -> Mapping[str, ArraySpec]:
        found = {
            name: ArraySpec(dtype, shape, steps, self.together)
            for name, (dtype, shape) in self.stored.items()
        }
        for name, dtype, shape in _AT_THE_END:
            found[name] = ArraySpec(dtype, shape, steps, steps)
        return found

    def encoded(self, rows: dict[str, AnyArray]) -> dict[str, AnyArray]:
        """Return a step's arrays as they are stored.

        Raises:
            ValueError: storing one would change its values.
        """
        beside = {name: rows[name] for name in rows if name in self.beside}
        stored = {
            name: self._pad_columns(name, row) for name, row in rows.items() if name not in beside
        }
        for name, code in self._codes.items():
            with _naming(name):
                stored[name] = code.encode(stored[name])
        if self._ascending:
            constant = np.logical_and.reduce(
                [encoding.constant_columns(stored[name]) for name in self._ascending]
            )
            stored |= {name: encoding.differences(stored[name]) for name in self._ascending}
            order = encoding.stored_order(constant)
            stored |= {name: encoding.columns(stored[name], order) for name in self._ordered}
            stored[_CONSTANT] = np.packbits(constant)
        return stored | beside

    def decoded(self, stored: dict[str, AnyArray]) -> tuple[dict[str, AnyArray], NDArray[np.intp]]:
        """Undo `encoded` for k steps, whose arrays are `in_a_row`, and are overwritten.

        Returns:
            The arrays [..., columns], with each step's columns one behind another; and [k] how many
            columns each step has.

        Raises:
            ValueError: a support has no token, or one behind the last.
        """
        beside = {
            name: np.concatenate(array, axis=-1)
            for name, array in stored.items()
            if name in self.beside
        }
        rows = {
            name: array.reshape(*array.shape[:-2], -1)
            for name, array in stored.items()
            if name != _CONSTANT and name not in beside
        }
        size = self._tokens
        number = next(iter(rows.values())).shape[-1] // size
        lengths = np.full(number, size)
        if self._ascending:
            rows |= {name: encoding.totals(rows[name]) for name in self._ascending}
            constant = np.unpackbits(stored[_CONSTANT], axis=-1, count=size).view(np.bool_)
            # Without such columns all are in their places.
            if constant.any():
                firsts = size * np.arange(number)[:, None]
                places = (encoding.stored_places(constant) + firsts).ravel()
                rows |= {name: encoding.columns(rows[name], places) for name in self._ordered}
        # Ids are stored as they are, and padding need not be decoded.
        if _SUPPORT in rows and (rows[_SUPPORT] < 0).any():
            there = rows[_SUPPORT].reshape(number, size) >= 0
            lengths = np.count_nonzero(there, axis=-1)
            if not lengths.all() or (there != (np.arange(size) < lengths[:, None])).any():
                raise ValueError(f"{_SUPPORT} has no token, or one behind the last")
            kept = np.flatnonzero(there)
            rows = {name: row.take(kept, axis=-1) for name, row in rows.items()}
        rows |= {name: code.decode(rows[name]) for name, code in self._codes.items()}
        return rows | beside, lengths

    def in_a_row(self, name: str, pieces: Sequence[AnyArray]) -> AnyArray:
        """Return [..., k, S] of pieces [steps, ..., S] of a stored array, one copy of them.

        It is [k, ...] of an array without columns.
        """
        if name in self.beside:
            return np.concatenate(pieces)
        moved = [np.moveaxis(piece, 0, -2) for piece in pieces]
        *rows, _, columns = moved[0].shape
        found = np.empty((*rows, sum(map(len, pieces)), columns), dtype=pieces[0].dtype)
        return np.concatenate(moved, axis=-2, out=found)

    def _pad_columns(self, name: str, row: AnyArray) -> AnyArray:
        """Return a step's array with as many columns as are stored."""
        missing = self._tokens - row.shape[-1]
        if not missing:
            return row
        filling = -1 if name == _SUPPORT else 0
        padding = np.full((*row.shape[:-1], missing), filling, dtype=row.dtype)
        return np.concatenate((row, padding), axis=-1)


def _steps_together(stored: Mapping[str, tuple[str, tuple[int, ...]]]) -> int:
    """Return how many steps a chunk has."""
    largest = max(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in stored.values())
    return 1 << (max(1, CHUNK_BYTES // largest).bit_length() - 1)


def _require_step_size(
    given: Mapping[str, tuple[str, tuple[int, ...]]], contexts: int, tokens: int
) -> int:
    """Return the bytes of a step. Refuse steps that are too large, before one is allocated."""
    taken = sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in given.values())
    if taken > MAX_STEP_BYTES:
        problem = (
            f"a step of {contexts:,} contexts and {tokens:,} tokens takes {taken:,} bytes; at most "
        )
        remedy = "Sample from a public top-k support, or leave contexts out of the record."
        raise InputError("record", f"{problem}{MAX_STEP_BYTES:,} are read.", remedy)
    return taken


@contextmanager
def _naming(array: str) -> Iterator[None]:
    """Let an error say which array it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{array} must hold {error}") from None


def _code_for(array: StepArray, dtype: str, grid: float | None) -> encoding.Code | None:
    """Return the code that stores an array's values; None for a vector of reals.

    It is stored unchanged.
    """
    if np.dtype(dtype).kind != "f":
        return encoding.IntegerCode(dtype, array.largest)
    if grid is not None and math.isfinite(array.largest):
        return encoding.GridCode(dtype, grid, array.largest, array.divisor)
    return encoding.FloatCode(dtype) if array.rows else None


class BatchWriter:
    """One batch being written, a step at a time. `RunWriter.batch` makes it.

    Nothing is published before `finish`.
    """

    def __init__(self, partial: Path, manifest: Manifest, header: BatchHeader) -> None:
        if problem := header.problem(manifest):
            raise ValueError(problem)
        self._manifest = manifest
        self._arrays = BatchArrays(manifest, header.contexts, header.canary is not None)
        written = {
            name: value
            for name, value in asdict(header).items()
            if value is not None or name != "canary"
        }
        self._archive = ArchiveWriter(partial, {"header": written})
        #: The steps of the chunk that is not on disk yet.
        self._rows: dict[str, list[AnyArray]] = {name: [] for name in self._arrays.stored}
        self._sampled: list[tuple[float, bytes, int]] = []
        self._texts: list[_Text] = []
        self.finished = False

    def write(self, step: Step) -> None:
        """Append one step.

        Raises:
            ValueError: an array is missing, superfluous, or of another shape or dtype than the
                manifest implies; values are not multiples of a declared grid; or the batch has all
                its steps already.
        """
        position = len(self._sampled)
        if position >= self._manifest.decoding.most_tokens:
            raise ValueError(f"a batch of this run holds at most {position} steps")
        rows = self._checked(step)
        limits = np.iinfo("<i4")
        if not limits.min <= step.token <= limits.max:
            raise ValueError(f"token {step.token} does not fit int32")
        if len(step.aggregate_digest) != DIGEST_BYTES:
            raise ValueError(
                f"aggregate_digest must have {DIGEST_BYTES} bytes, not {len(step.aggregate_digest)}"
            )
        for name, row in self._arrays.encoded(rows).items():
            self._rows[name].append(row)
        self._sampled.append((step.log_probability, step.aggregate_digest, step.token))
        if len(self._sampled) % self._arrays.together == 0:
            self._write_chunks()

    def _write_chunks(self) -> None:
        """Write the steps that are not on disk yet."""
        steps = len(self._sampled)
        specs, index = self._arrays.specs(steps), (steps - 1) // self._arrays.together
        for name, rows in self._rows.items():
            if rows:
                self._archive.chunk(name, specs[name], index, np.stack(rows))
                rows.clear()

    def end_text(self, *, text: str | None, stop: StopReason) -> None:
        """End a text at the last step; the next step is of another text.

        Arguments are those of `finish`.
        """
        length = len(self._sampled) - sum(ended.length for ended in self._texts)
        if not length:
            raise ValueError("a text has at least one step")
        released = None if text is None else as_released(text)
        self._texts.append(_Text(length=length, stop=stop, text=released))

    def finish(self, *, text: str | None, stop: StopReason) -> None:
        """End the last text and close the batch.

        Args:
            text: what the tokens say, of which `as_released` makes the text to release; None if
                only token ids are released.
            stop: why the text ended.
        """
        self.end_text(text=text, stop=stop)
        log_probabilities, digests, tokens = zip(*self._sampled, strict=True)
        values = {
            "log_probability": np.array(log_probabilities),
            "aggregate_digest": np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(
                -1, DIGEST_BYTES
            ),
            "token": np.array(tokens),
        }
        self._write_chunks()
        ending = {"token": _Ending(texts=tuple(self._texts)).model_dump(mode="json")}
        for name, spec in self._arrays.specs(len(tokens)).items():
            self._archive.declare(name, spec, ending.get(name))
            if name in values:
                self._archive.chunk(name, spec, 0, values[name])
        self._archive.close()
        self.finished = True

    def discard(self) -> None:
        """Close the file, if it is not finished."""
        self._archive.abandon()

    def _checked(self, step: Step) -> dict[str, AnyArray]:
        """Return a step's arrays by name, integers in the dtype that a step has them in."""
        after = None if step.spent is None else step.spent[-1]
        beside = {
            _CONTEXTS: step.contexts,
            _SUPPORT: step.support,
            _SPENT: after,
            _CANARY: step.canary,
        }
        given: dict[str, AnyArray] = {
            name: row for name, row in beside.items() if row is not None
        } | dict(step.arrays)
        expected = self._arrays.given
        if given.keys() != expected.keys():
            raise ValueError(
                f"a step of this run has the arrays {sorted(expected)}, not {sorted(given)}"
            )
        # Only a support that is recorded can be of fewer tokens.
        tokens = given[_SUPPORT].shape[-1:] if _SUPPORT in given else ()
        for name, (dtype, most) in expected.items():
            if np.dtype(dtype).kind in "iu":
                with _naming(name):
                    given[name] = encoding.integers(given[name], dtype)
            fewer = name not in self._arrays.beside and tokens and 0 < tokens[0] <= most[-1]
            shape = (*most[:-1], *tokens) if fewer else most
            if given[name].shape != shape or given[name].dtype != np.dtype(dtype):
                found = f"{given[name].dtype.str} {given[name].shape}"
                raise ValueError(f"{name} must be {dtype} {shape}, not {found}")
        return given


class _Text(Fields):
    """One text.

    Number of tokens, reason of its end, and the text, None if only tokens are released.
    """

    length: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    stop: StopReason
    text: Text | None


class _Beginning(Fields):
    """Attributes of the group."""

    header: BatchHeader


class _Ending(Fields):
    """Attributes of the `token` array: the facts about a batch after its last step."""

    texts: Annotated[tuple[_Text, ...], Field(max_length=MAX_TOKENS)]


class BatchReader:
    """One batch, read a step at a time. `RunReader.batch` opens it.

    Attributes:
        where: the file's name, for messages.
        header: the facts known before the first step.
        tokens: [T] int32 sampled token ids.
        log_probabilities: [T] float64 of them, as the sampler had them.
        spans: the range of tokens of each text.
    """

    def __init__(
        self,
        file: io.BufferedReader,
        where: str,
        manifest: Manifest,
        batch: int,
        arrays_of: Callable[[int, bool], BatchArrays],
    ) -> None:
        """Take over an open file.

        Args:
            file: the file.
            where: its name, for messages.
            manifest: the run's.
            batch: the number that the batch must have.
            arrays_of: gives the arrays of a batch of so many contexts, with or without a canary.

        Raises:
            InputError: it is not a whole batch of this run.
        """
        self.where = where
        with self._reading(), ExitStack() as refused:
            refused.callback(file.close)
            self._archive = archive = ArchiveReader(file)
            self.header = _Beginning.model_validate_json(archive.attributes()).header
            if self.header.id != batch:
                raise ValueError(
                    f"the header is of batch {self.header.id} with {self.header.contexts} contexts"
                )
            if problem := self.header.problem(manifest):
                raise ValueError(problem)
            self._arrays = arrays_of(self.header.contexts, self.header.canary is not None)
            self._texts = _Ending.model_validate_json(archive.attributes("token")).texts
            ends = [0, *accumulate(text.length for text in self._texts)]
            steps, most = ends[-1], manifest.decoding.most_tokens
            if not 1 <= steps <= most:
                raise ValueError(f"its texts have {steps} tokens; the public maximum is {most}")
            archive.expect(self._arrays.specs(steps), attributed=("token",))
            self.spans = [range(*pair) for pair in pairwise(ends)]
            self.tokens: NDArray[np.int32] = archive.rows("token")
            self.log_probabilities: NDArray[np.float64] = archive.rows("log_probability")
            self._digest: NDArray[np.uint8] = archive.rows("aggregate_digest")
            refused.pop_all()

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._archive.close()

    def digest(self) -> str:
        """Return the SHA-256 of the file, in hexadecimal."""
        return self._archive.digest()

    def samples(self) -> Iterator[Sample]:
        """Yield every text, in order: the lines of samples.jsonl that release this batch."""
        header = self.header
        for number, (span, ended) in enumerate(zip(self.spans, self._texts, strict=True)):
            yield Sample(
                id=header.id,
                number=number,
                label=header.label,
                cluster=header.cluster,
                tokens=tuple(self.tokens[span].tolist()),
                text=ended.text,
                stop=ended.stop,
            )

    def before(self, position: int) -> NDArray[np.int32]:
        """Return the tokens before a step in its text."""
        span = self.spans[bisect_right(self.spans, position, key=lambda span: span.start) - 1]
        return self.tokens[span.start : position]

    def likeness(self, span: range) -> bytes:
        """Return the SHA-256 of some steps' aggregates and tokens."""
        return hashlib.sha256(self._digest[span].tobytes() + self.tokens[span].tobytes()).digest()

    def steps(self) -> Iterator[Step]:
        """Return all steps in order; each is loaded when it is asked for."""
        return map(self.step, range(len(self.tokens)))

    def step(self, position: int) -> Step:
        """Return one step's record.

        Raises:
            InputError: it cannot be decoded.
        """
        with self._reading(f", step {position}"):
            return self._steps(range(position, position + 1)).one(0)

    def recorded(self, positions: range) -> RecordedSteps:
        """Return the records of some steps.

        Raises:
            InputError: one of them cannot be decoded.
        """
        with self._reading(f", steps {positions.start} to {positions.stop - 1}"):
            return self._steps(positions)

    def _steps(self, positions: range) -> RecordedSteps:
        return _decoded([(self, positions)])

    @property
    def step_bytes(self) -> int:
        """The most memory that a step's arrays take."""
        return self._arrays.step_bytes

    @contextmanager
    def _reading(self, place: str = "") -> Iterator[None]:
        try:
            yield
        # A decoder may raise anything for hostile bytes; the reader of the message needs the name.
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            if isinstance(error, ValidationError):
                reason = "its header or ending has missing, unknown or mistyped fields"
            raise InputError(
                f"{self.where}{place}", f"this is not a whole batch ({reason}).", REGENERATE
            ) from error


def recorded_together(batches: Sequence[BatchReader]) -> RecordedSteps:
    """Return all steps of several batches, one batch's behind another's.

    They have the same number of contexts, and neither budgets nor canaries.

    Raises:
        InputError: some of them cannot be decoded. Which batch's, each shows when read alone.
    """
    with batches[0]._reading(" or another batch"):
        return _decoded([(batch, range(len(batch.tokens))) for batch in batches])


def _decoded(batches: Sequence[tuple[BatchReader, range]]) -> RecordedSteps:
    """Return some steps of batches that have the same arrays, all of them decoded at once."""
    first, positions = batches[0]
    stored = {
        name: first._arrays.in_a_row(
            name, [piece for batch, at in batches for piece in batch._archive.pieces(name, at)]
        )
        for name in first._arrays.stored
    }
    spent = stored.pop(_SPENT, None)
    if spent is not None:
        before = np.zeros_like(spent[:1])
        if positions.start:
            before = first._archive.rows(_SPENT, range(positions.start - 1, positions.start))
        spent = np.stack([np.concatenate([before, spent[:-1]]), spent], axis=1)
    arrays, lengths = first._arrays.decoded(stored)
    return RecordedSteps(
        tokens=np.concatenate([batch.tokens[at] for batch, at in batches]),
        log_probabilities=np.concatenate([batch.log_probabilities[at] for batch, at in batches]),
        digests=np.concatenate([batch._digest[at] for batch, at in batches]),
        lengths=lengths,
        contexts=arrays.pop(_CONTEXTS, None),
        support=arrays.pop(_SUPPORT, None),
        spent=spent,
        canary=arrays.pop(_CANARY, None),
        arrays=arrays,
    )
