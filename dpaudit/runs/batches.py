"""One batch's steps on disk: a zarr group in a zip file, written a step at a time and read a step at a time.

A zip file without its closing directory cannot be opened, so a batch that was cut short can never be read as whole.

Arrays (T steps, S tokens in the support, n contexts, w = record.width):

    central           [max_tokens, 2w + n % 2, S]  central order statistics, ascending (median)
    sides             [max_tokens, ceil(n / 8), S] uint8, bits of contexts packed along axis 1 (median, n > 0)
    holder            [max_tokens, S] uint32, context that holds the median (median, odd n)
    aggregate         [max_tokens, S]              (mean)
    contexts          [max_tokens, n, S]           clipped logits of every context (record.contexts, n > 0)
    support           [max_tokens, S] int32        token ids, ascending (public-top-k)
    token             [T] int32                    sampled token ids; written last
    log_probability   [T] float64                  of the sampled token, as the sampler had it
    aggregate_digest  [T, 32] uint8                SHA-256 of the aggregate that was sampled from

Rows at and past T were never written.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import zarr
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError
from zarr.codecs import BloscCodec
from zarr.storage import ZipStore

from dpaudit.runs.errors import InputError
from dpaudit.runs.layout import private_opener
from dpaudit.runs.manifest import MAX_CONTEXTS, Manifest, StopReason

AnyArray = NDArray[Any]

CODEC = BloscCodec(cname="zstd", clevel=3, shuffle="shuffle")
DIGEST_BYTES = 32
#: Under other keys zarr would not find the chunks and read fill values in their place.
CHUNK_KEYS = {"name": "default", "configuration": {"separator": "/"}}
#: No step's row of one array may be larger, decompressed; a hostile file cannot make the reader allocate more.
MAX_ROW_BYTES = 1 << 30
MAX_METADATA_BYTES = 1 << 24
#: More than a zip file spends on the headers of one entry, beside its name.
_ENTRY_BYTES = 256
REGENERATE = "Restore the file from a copy, or generate this batch again."


@dataclass(frozen=True)
class BatchHeader:
    """What is known of a batch before its first step. `contexts` is n, the number of private contexts."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    id: int
    contexts: int
    label: str | None = None
    cluster: int | None = None


@dataclass(frozen=True)
class Step:
    """One step's record. Shapes as in the module's docstring, without the leading axis.

    Attributes:
        token: sampled token id.
        log_probability: natural logarithm of the probability the sampler gave it.
        aggregate_digest: `aggregate_digest` of the vector that was sampled from.
        sides: uint8 [ceil(n / 8), S]; bit i of a column, packed along axis 0, is set where context i ranks below the
            median, so that its removal moves the median up. None are set where no removal moves it.
        holder: int [S]; for odd n the context whose value is the median, 0 where no removal moves it.
    """

    token: int
    log_probability: float
    aggregate_digest: bytes
    central: NDArray[np.floating] | None = None
    sides: NDArray[np.uint8] | None = None
    holder: NDArray[np.integer] | None = None
    aggregate: NDArray[np.floating] | None = None
    contexts: NDArray[np.floating] | None = None
    support: NDArray[np.integer] | None = None


@dataclass(frozen=True)
class Sample:
    """A line of samples.jsonl: what would be released of one batch. `text` is None where only tokens are."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    id: int
    label: str | None
    cluster: int | None
    tokens: tuple[int, ...]
    text: str | None
    stop: StopReason

    def line(self) -> str:
        """The sample's line, with its end: the one way in which format 1 writes it."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


def without_stop(tokens: Sequence[int], sequences: Iterable[Sequence[int]]) -> list[int]:
    """The tokens that a released text is decoded from: all but the longest stop sequence that they end in."""
    for sequence in sorted(sequences, key=len, reverse=True):
        if sequence and list(tokens[-len(sequence) :]) == list(sequence):
            return list(tokens[: -len(sequence)])
    return list(tokens)


def aggregate_digest(aggregate: NDArray[np.floating]) -> bytes:
    """SHA-256 of a vector's bytes, little-endian in its own dtype: equal digests mean equal bit for bit."""
    array = np.ascontiguousarray(aggregate)
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()).digest()


@dataclass(frozen=True)
class ArraySpec:
    """Dtype and shape of one step's row of an array."""

    dtype: str
    shape: tuple[int, ...]


def step_arrays(manifest: Manifest, contexts: int) -> dict[str, ArraySpec]:
    """The per-step arrays that a batch of `contexts` contexts has, by the manifest alone."""
    size, record = manifest.support_size, manifest.record
    real = {"float32": "<f4", "float64": "<f8"}[record.dtype]
    arrays: dict[str, ArraySpec] = {}
    if manifest.mechanism.aggregator == "median":
        arrays["central"] = ArraySpec(real, (2 * record.width + contexts % 2, size))
        if contexts:
            arrays["sides"] = ArraySpec("|u1", ((contexts + 7) // 8, size))
        if contexts % 2:
            arrays["holder"] = ArraySpec("<u4", (size,))
    else:
        arrays["aggregate"] = ArraySpec(real, (size,))
    if record.contexts and contexts:
        arrays["contexts"] = ArraySpec(real, (contexts, size))
    if manifest.mechanism.support.kind == "public-top-k":
        arrays["support"] = ArraySpec("<i4", (size,))
    return arrays


class BatchWriter:
    """Writes one batch a step at a time. Made by `RunWriter.batch`; nothing is published before `finish`."""

    def __init__(self, partial: Path, manifest: Manifest, header: BatchHeader) -> None:
        self._manifest = manifest
        self._specs = step_arrays(manifest, header.contexts)
        # zarr's zip store creates the file itself; made here first, it is private from the start.
        os.close(private_opener(str(partial), os.O_CREAT | os.O_TRUNC | os.O_WRONLY))
        self._store = ZipStore(partial, mode="w")
        zarr.create_group(self._store, attributes={"header": asdict(header)})
        self._arrays = {name: self._create(name, spec) for name, spec in self._specs.items()}
        self._tokens: list[int] = []
        self._log_probabilities: list[float] = []
        self._digests: list[bytes] = []
        self.finished = False

    def write(self, step: Step) -> None:
        """Append one step.

        Raises:
            ValueError: an array is missing, superfluous, or of another shape or dtype than the manifest implies;
                or the batch already has `stopping.max_tokens` steps.
        """
        position = len(self._tokens)
        if position >= self._manifest.stopping.max_tokens:
            raise ValueError(f"a batch holds at most stopping.max_tokens = {position} steps")
        rows = _rows(step)
        if rows.keys() != self._specs.keys():
            raise ValueError(f"a step of this run has the arrays {sorted(self._specs)}, not {sorted(rows)}")
        for name, spec in self._specs.items():
            if rows[name].shape != spec.shape or rows[name].dtype != np.dtype(spec.dtype):
                raise ValueError(
                    f"{name} must be {spec.dtype} {spec.shape}, not {rows[name].dtype.str} {rows[name].shape}"
                )
        _check_scalars(step)
        for name, row in rows.items():
            self._arrays[name][position] = row
        self._tokens.append(step.token)
        self._log_probabilities.append(step.log_probability)
        self._digests.append(step.aggregate_digest)

    def finish(self, *, text: str | None, stop: StopReason) -> None:
        """Close the batch.

        Args:
            text: the released text, or None when only token ids are released.
            stop: why the sequence ended.
        """
        steps = len(self._tokens)
        if not steps:
            raise ValueError("a finished batch has at least one step")
        digests = np.frombuffer(b"".join(self._digests), dtype=np.uint8).reshape(steps, DIGEST_BYTES)
        self._whole("log_probability", np.array(self._log_probabilities, dtype="<f8"), {})
        self._whole("aggregate_digest", digests, {})
        self._whole("token", np.array(self._tokens, dtype="<i4"), {"stop": stop, "text": text})
        self._store.close()
        self.finished = True

    def discard(self) -> None:
        """Close the file without finishing it."""
        self._store.close()

    def _create(self, name: str, spec: ArraySpec) -> zarr.Array[Any]:
        shape = (self._manifest.stopping.max_tokens, *spec.shape)
        return zarr.create_array(
            self._store,
            name=name,
            shape=shape,
            chunks=(1, *spec.shape),
            dtype=spec.dtype,
            compressors=CODEC,
            # A chunk that is absent must mean a step that was never written, not a step of zeros.
            config={"write_empty_chunks": True},
        )

    def _whole(self, name: str, data: AnyArray, attributes: dict[str, Any]) -> None:
        zarr.create_array(
            self._store,
            name=name,
            data=data,
            chunks=data.shape,
            compressors=CODEC,
            attributes=attributes,
            config={"write_empty_chunks": True},
        )


def _rows(step: Step) -> dict[str, AnyArray]:
    """The arrays of a step as they are stored. Raises ValueError where storing one would change its values."""
    rows: dict[str, AnyArray | None] = {
        "central": step.central,
        "sides": None if step.sides is None or not len(step.sides) else step.sides,
        "holder": None if step.holder is None else _integers("holder", step.holder, "<u4"),
        "aggregate": step.aggregate,
        "contexts": step.contexts,
        "support": None if step.support is None else _integers("support", step.support, "<i4"),
    }
    return {name: row for name, row in rows.items() if row is not None}


def _integers(name: str, values: NDArray[np.integer], dtype: str) -> AnyArray:
    limits = np.iinfo(dtype)
    if values.dtype.kind not in "iu" or (values.size and not limits.min <= values.min() <= values.max() <= limits.max):
        raise ValueError(f"{name} must hold integers that fit {dtype}, not {values.dtype.str}")
    return values.astype(dtype)


def _check_scalars(step: Step) -> None:
    limits = np.iinfo("<i4")
    if not limits.min <= step.token <= limits.max:
        raise ValueError(f"token {step.token} does not fit int32")
    if len(step.aggregate_digest) != DIGEST_BYTES:
        raise ValueError(f"aggregate_digest must have {DIGEST_BYTES} bytes, not {len(step.aggregate_digest)}")


@dataclass(frozen=True)
class _Ending:
    """Attributes of the `token` array: what is known of a batch after its last step."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    stop: StopReason
    text: str | None


class BatchReader:
    """Reads one batch a step at a time. Made by `RunReader.batch`.

    Attributes:
        header: what was known before the first step.
        tokens: [T] int32 sampled token ids.
        stop, text: why the sequence ended, and the text it is released as.
    """

    def __init__(self, path: Path, where: str, manifest: Manifest, batch: int) -> None:
        """Raises InputError when the file is not a whole batch of this run."""
        self._path, self._where = path, where
        with self._reading():
            with zipfile.ZipFile(path) as archive:
                self.header = _HEADER.validate_json(json.dumps(_metadata(archive, "zarr.json")["attributes"]["header"]))
                if self.header.id != batch or not 0 <= self.header.contexts <= MAX_CONTEXTS:
                    raise ValueError(f"the header is of batch {self.header.id} with {self.header.contexts} contexts")
                specs = step_arrays(manifest, self.header.contexts)
                _check_archive(archive, specs, manifest.stopping.max_tokens, path.stat().st_size)
                ending = _ENDING.validate_json(json.dumps(_metadata(archive, "token/zarr.json")["attributes"]))
            self.stop, self.text = ending.stop, ending.text
            self._store = ZipStore(path, mode="r")
            group = zarr.open_group(self._store, mode="r", zarr_format=3)
            self.tokens: NDArray[np.int32] = _array(group, "token")[:]
            self._log_probability: NDArray[np.float64] = _array(group, "log_probability")[:]
            self._digest: NDArray[np.uint8] = _array(group, "aggregate_digest")[:]
            self._arrays = {name: _array(group, name) for name in specs}

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    @property
    def where(self) -> str:
        """The file's name, for messages."""
        return self._where

    def steps(self) -> Iterator[Step]:
        """Every step in order, each loaded when it is asked for."""
        for position in range(len(self.tokens)):
            yield self.step(position)

    def step(self, position: int) -> Step:
        """One step's record. Raises InputError when it cannot be decoded."""
        with self._reading(f", step {position}"):
            rows: dict[str, AnyArray] = {name: np.asarray(array[position]) for name, array in self._arrays.items()}
        if "central" in rows and "sides" not in rows:
            rows["sides"] = np.zeros((0, rows["central"].shape[1]), dtype=np.uint8)
        return Step(
            token=int(self.tokens[position]),
            log_probability=float(self._log_probability[position]),
            aggregate_digest=self._digest[position].tobytes(),
            **rows,
        )

    @contextmanager
    def _reading(self, place: str = "") -> Iterator[None]:
        try:
            yield
        # Whatever a decoder says of corrupt or hostile bytes, the reader of the message needs the file's name.
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            if isinstance(error, ValidationError):
                reason = "its header or ending has missing, unknown or mistyped fields"
            raise InputError(f"{self._where}{place}", f"this is not a whole batch ({reason}).", REGENERATE) from error


_HEADER = TypeAdapter(BatchHeader)
_ENDING = TypeAdapter(_Ending)


def _array(group: zarr.Group, name: str) -> Any:
    array = group[name]
    if not isinstance(array, zarr.Array):
        raise ValueError(f"{name} is not an array")
    return array


def _check_archive(archive: zipfile.ZipFile, specs: dict[str, ArraySpec], max_tokens: int, present: int) -> None:
    """Compare a batch file's index with what the manifest implies, before any array in it is decompressed.

    Raises:
        ValueError: an entry is missing, superfluous, doubled, compressed by the zip, or declares another shape,
            dtype, codec or size; or the file has `present` bytes, more than its entries account for.
    """
    entries = {entry.filename: entry for entry in archive.infolist()}
    if len(entries) != len(archive.infolist()):
        raise ValueError("an entry is doubled")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
        raise ValueError("an entry is compressed by the zip itself")
    steps = _metadata(archive, "token/zarr.json")["shape"][0]
    if type(steps) is not int or not 1 <= steps <= max_tokens:
        raise ValueError(f"{steps!r} steps are declared; the public maximum is {max_tokens}")
    whole = {
        "token": ArraySpec("<i4", (steps,)),
        "log_probability": ArraySpec("<f8", (steps,)),
        "aggregate_digest": ArraySpec("|u1", (steps, DIGEST_BYTES)),
    }
    expected = {"zarr.json"}
    for name, spec in whole.items():
        expected |= _check_array(archive, name, spec, spec.shape, spec.shape, 1)
    for name, spec in specs.items():
        expected |= _check_array(archive, name, spec, (max_tokens, *spec.shape), (1, *spec.shape), steps)
    entered = sum(entry.file_size + _ENTRY_BYTES + 4 * len(entry.filename) for entry in entries.values())
    if present > entered + _ENTRY_BYTES:
        raise ValueError(f"the file has {present} bytes, and its entries at most {entered}")
    if entries.keys() != expected:
        odd = sorted(entries.keys() ^ expected)
        raise ValueError(f"{len(odd)} entries are missing or superfluous, the first is {odd[0][:100]!r}")


def _check_array(
    archive: zipfile.ZipFile, name: str, spec: ArraySpec, shape: tuple[int, ...], chunk: tuple[int, ...], chunks: int
) -> set[str]:
    """Check one array's metadata and the sizes its chunks declare; return the names of its entries."""
    metadata = _metadata(archive, f"{name}/zarr.json")
    dtype = np.dtype(spec.dtype)
    declared = (
        metadata["shape"],
        metadata["chunk_key_encoding"],
        metadata["data_type"],
        metadata["chunk_grid"]["configuration"]["chunk_shape"],
        [codec["name"] for codec in metadata["codecs"]],
    )
    implied = (list(shape), CHUNK_KEYS, dtype.name, list(chunk), ["bytes", "blosc"])
    if declared != implied:
        raise ValueError(f"{name} is declared as {declared}; this run's manifest implies {implied}")
    raw = dtype.itemsize * int(np.prod(chunk, dtype=object))
    if raw > MAX_ROW_BYTES:
        raise ValueError(f"a row of {name} has {raw} bytes; at most {MAX_ROW_BYTES} are read")
    rest = "/0" * (len(chunk) - 1)
    names = {f"{name}/c/{index}{rest}" for index in range(chunks)}
    for entry in names:
        with archive.open(entry) as file:
            # A Blosc buffer declares its decompressed size, block size and own size. The decoder trusts the last one
            # and would read past the end of a shorter buffer.
            size, compressed = struct.unpack("<4xI4xI", file.read(16))
        present = archive.getinfo(entry).file_size
        if (size, compressed) != (raw, present):
            raise ValueError(f"{entry} declares {size} and {compressed} bytes instead of {raw} and {present}")
    return names | {f"{name}/zarr.json"}


def _metadata(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    entry = archive.getinfo(name)
    if entry.file_size > MAX_METADATA_BYTES or entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is too large, or compressed by the zip itself")
    metadata = json.loads(archive.read(entry))
    if not isinstance(metadata, dict):
        raise ValueError(f"{name} is not an object")
    return metadata
