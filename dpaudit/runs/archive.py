"""A batch file: a zarr group (format 3) in a zip file, with some steps to a chunk.

Any zarr reader opens it.

zarr itself takes half a millisecond per chunk on top of what compressing and decompressing takes,
which is less, so the little of its format that a batch needs is written and read here.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numcodecs import Blosc, blosc
from numcodecs.blosc import decompress

from dpaudit.runs.encoding import AnyArray
from dpaudit.runs.storage import writing
from dpaudit.runs.strict_json import load

#: Level 1 of zstd is within 3% of level 5 here, and four times as fast. Bits of equal weight
#: together, in blocks that fit a core's cache: 5% smaller and faster than bytes in small blocks.
_NUMBERS = {"cname": "zstd", "clevel": 1, "shuffle": "bitshuffle", "blocksize": 1 << 18}
#: Bytes hold bits of eight contexts each, which nothing reorders to advantage.
_BYTES = {"cname": "zstd", "clevel": 1, "shuffle": "noshuffle", "blocksize": 0}
#: Under other keys zarr would not find the chunks and read fill values in their place.
_CHUNK_KEYS = {"name": "default", "configuration": {"separator": "/"}}
#: The largest chunk, decompressed; a hostile file cannot make the reader allocate more.
MAX_CHUNK_BYTES = 1 << 27
MAX_METADATA_BYTES = 1 << 22
#: The largest file that is read once, as a whole: several are open at a time.
MOST_AT_ONCE = 1 << 22
#: The most that an entry has before its contents: numbers, its name and other fields.
MAX_HEADER_BYTES = 1 << 17
#: Some 250,000 entries: more than there are where each of the most tokens has chunks of its own.
MAX_DIRECTORY_BYTES = 1 << 24
#: The most that a Blosc buffer adds to its contents.
_BLOSC_BYTES = 16
#: What a zip file spends on an entry beside its contents and twice its name; and, where it is
#: large, on a far entry's place and on its end.
_HEADER_BYTES = 30
_ENTRY_BYTES, _ENDING_BYTES, _PLACE64_BYTES, _ENDING64_BYTES = _HEADER_BYTES + 46, 22, 28, 56 + 20
#: The earliest date that a zip file can say; when a batch was written is nobody's business.
_NO_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class ArraySpec:
    """An array on disk.

    Attributes:
        dtype: with its byte order, as in "<u4".
        row: shape of a row; `rows` of them make up the array.
        rows: length of the leading axis.
        together: how many rows one chunk has, if there are as many. Zeros fill up the last chunk.
    """

    dtype: str
    row: tuple[int, ...]
    rows: int
    together: int = 1

    @cached_property
    def chunk_shape(self) -> tuple[int, ...]:
        """The shape of a chunk with the leading axis."""
        return (min(self.together, self.rows), *self.row)

    @cached_property
    def chunks(self) -> int:
        """How many chunks there are."""
        return -(-self.rows // self.chunk_shape[0])

    @cached_property
    def chunk_bytes(self) -> int:
        """The size of a chunk in bytes, decompressed."""
        return np.dtype(self.dtype).itemsize * math.prod(self.chunk_shape)

    @cached_property
    def declaration(self) -> bytes:
        """The array's zarr.json where it has no attributes."""
        return _json_bytes(self.metadata({}))

    @property
    def codec(self) -> dict[str, Any]:
        """The settings of Blosc, as zarr writes them."""
        return _NUMBERS if np.dtype(self.dtype).itemsize > 1 else _BYTES

    def metadata(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of the array's zarr.json."""
        dtype = np.dtype(self.dtype)
        as_bytes: dict[str, Any] = {"name": "bytes"}
        if dtype.itemsize > 1:
            as_bytes["configuration"] = {"endian": "little"}
        return {
            "shape": [self.rows, *self.row],
            "data_type": dtype.name,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": list(self.chunk_shape)},
            },
            "chunk_key_encoding": _CHUNK_KEYS,
            "fill_value": 0,
            "codecs": [
                as_bytes,
                {"name": "blosc", "configuration": {"typesize": dtype.itemsize, **self.codec}},
            ],
            "attributes": dict(attributes),
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let Blosc pack in one thread: several put a chunk's blocks in the order they are done in."""
    others = blosc.use_threads
    blosc.use_threads = False
    try:
        yield
    finally:
        blosc.use_threads = others


class ArchiveWriter:
    """A batch file being written. Without `close` it has no directory and cannot be opened."""

    def __init__(self, path: Path, attributes: Mapping[str, Any]) -> None:
        """Start the file with the group's attributes.

        Its permissions are those of the file that is there.
        """
        self._path = str(path)
        with writing(self._path):
            self._zip = zipfile.ZipFile(path, "w")
        self._entry(_metadata_entry(""), _json_bytes(_group(dict(attributes))))

    def declare(
        self, name: str, spec: ArraySpec, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Write an array's metadata."""
        self._entry(_metadata_entry(name), _json_bytes(spec.metadata(attributes or {})))

    def chunk(self, name: str, spec: ArraySpec, index: int, values: AnyArray) -> None:
        """Write one chunk of an array: its rows, of which the last chunk may have fewer."""
        shuffle = getattr(Blosc, spec.codec["shuffle"].upper())
        little = np.zeros(spec.chunk_shape, dtype=spec.dtype)
        little[: len(values)] = values
        with _one_thread():
            packed = Blosc(**spec.codec | {"shuffle": shuffle}).encode(little)
        self._entry(_chunk_entry(name, len(spec.row), index), packed)

    def close(self) -> None:
        """Write the zip's directory and close the file. Raises InputError as `writing` does."""
        with writing(self._path):
            self._zip.close()

    def abandon(self) -> None:
        """Close a file that nobody will read, where it is still open."""
        file, self._zip.fp = (
            self._zip.fp,
            None,
        )  # else it would write its directory, now or when it is collected
        with suppress(OSError):  # what could not be written before cannot be now
            if file is not None:
                file.close()

    def _entry(self, name: str, data: bytes) -> None:
        about = zipfile.ZipInfo(name, _NO_DATE)
        about.external_attr = 0o600 << 16
        with writing(self._path):
            try:
                self._zip.writestr(about, data)
            except OSError:
                self.abandon()
                raise


class _Bounded:
    """A file of which at most `most` bytes are read at once, whatever sizes a zip declares.

    Attributes:
        most: that number of bytes.
    """

    def __init__(self, file: io.BufferedIOBase, most: int) -> None:
        self._file, self.most = file, most
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, or all the rest.

        Raises:
            ValueError: these are more than `most`.
        """
        if size > self.most:
            raise ValueError(f"{size} bytes are to be read at once; at most {self.most} are")
        if size >= 0:
            return self._file.read(size)
        data = self._file.read(self.most + 1)
        if len(data) > self.most:
            raise ValueError(f"{len(data)} bytes are to be read at once; at most {self.most} are")
        return data


class ArchiveReader:
    """A batch file that is read without trusting it.

    A small file is read once, so its digest is that of the very bytes that are decoded.

    Methods raise ValueError, KeyError and whatever decoders raise for damaged bytes.

    Attributes:
        close: closes the file.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        self.close = file.close
        self._file: io.BufferedIOBase = file
        self._size = os.fstat(file.fileno()).st_size
        if self._size <= MOST_AT_ONCE:
            contents = file.read(MOST_AT_ONCE)
            self._file, self._size = io.BytesIO(contents), len(contents)
        self._bounded = _Bounded(self._file, MAX_DIRECTORY_BYTES)
        self._zip = zipfile.ZipFile(cast(IO[bytes], self._bounded))
        self._bounded.most = MAX_CHUNK_BYTES + _BLOSC_BYTES + MAX_HEADER_BYTES
        self._specs: Mapping[str, ArraySpec] = {}
        self._metadata: dict[str, Any] = {}
        self._apart = _lie_apart(self._zip.infolist())
        # Of each array, the chunk of several rows that was read last.
        self._latest: dict[str, tuple[int, AnyArray]] = {}

    def digest(self) -> str:
        """Return the SHA-256 of the file, in hexadecimal."""
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()

    def metadata(self, array: str = "") -> dict[str, Any]:
        """Return the zarr.json of an array, or of the group, parsed once; nothing is checked."""
        found = self._metadata.get(array)
        if found is None:
            found = self._metadata[array] = load(self._metadata_bytes(array))
        if not isinstance(found, dict):
            raise ValueError(f"{_metadata_entry(array)} is not an object")
        return found

    def _metadata_bytes(self, array: str) -> bytes:
        """Return the bytes of a zarr.json."""
        entry = self._zip.getinfo(_metadata_entry(array))
        if entry.file_size > MAX_METADATA_BYTES or _is_compressed(entry):
            raise ValueError(f"{entry.filename} is too large, or compressed by the zip itself")
        return bytes(self._contents(entry))

    def expect(self, specs: Mapping[str, ArraySpec], attributed: Collection[str]) -> None:
        """Compare the file's index with the expected arrays, before any of them is decompressed.

        Args:
            specs: every array by name.
            attributed: arrays that may have attributes; the caller looks at these, and at the
                group's.

        Raises:
            ValueError: an entry is missing, superfluous, doubled, compressed by the zip, or
                declares another shape, dtype, codec or size, or anything else; or the file has more
                bytes than its entries account for.
        """
        listed = self._zip.infolist()
        entries = {entry.filename: entry for entry in listed}
        if len(entries) != len(listed):
            raise ValueError("an entry is doubled")
        if any(_is_compressed(entry) for entry in listed):
            raise ValueError("an entry is compressed by the zip itself")
        self._require_canonical("", _group(self.metadata().get("attributes")))
        wanted = 1 + sum(1 + spec.chunks for spec in specs.values())
        if len(listed) != wanted:  # told before all their names are written out
            raise ValueError(
                f"entries are missing or superfluous: there are {len(listed)} instead of {wanted}"
            )
        expected = {_metadata_entry("")}
        for name, spec in specs.items():
            self._require_declared(name, spec, name in attributed)
            chunks = _chunk_entries(name, len(spec.row), spec.chunks)
            expected.update(chunks)
            expected.add(_metadata_entry(name))
            most = spec.chunk_bytes + _BLOSC_BYTES
            for chunk in chunks:
                if chunk in entries and entries[chunk].file_size > most:
                    raise ValueError(
                        f"{chunk} has {entries[chunk].file_size} bytes for an array of "
                        f"{spec.chunk_bytes}"
                    )
        if entries.keys() != expected:
            odd = sorted(entries.keys() ^ expected)
            raise ValueError(
                f"{len(odd)} entries are missing or superfluous, the first is {odd[0][:100]!r}"
            )
        self._require_no_more_bytes(listed)
        self._specs = specs

    def rows(self, name: str, wanted: range | None = None) -> AnyArray:
        """Return some rows of an expected array, or all of them: [rows, ...], which may be changed.

        Raises:
            ValueError: a chunk is not as declared.
        """
        return np.concatenate(self.pieces(name, wanted))

    def pieces(self, name: str, wanted: range | None = None) -> list[AnyArray]:
        """Return the same in pieces that lie one behind another, and must not be changed.

        Raises:
            ValueError: a chunk is not as declared.
        """
        spec = self._specs[name]
        rows = range(spec.rows) if wanted is None else wanted
        each = spec.chunk_shape[0]
        parts = []
        for index in range(rows.start // each, -(-rows.stop // each)):
            first = each * index
            chunk = self._chunk(name, spec, index)
            parts.append(chunk[max(rows.start - first, 0) : rows.stop - first])
        return parts

    def _chunk(self, name: str, spec: ArraySpec, index: int) -> AnyArray:
        """Return the rows of one chunk, without what fills it up."""
        latest, found = self._latest.get(name, (-1, None))
        if found is not None and latest == index:
            return found
        entry = _chunk_entries(name, len(spec.row), spec.chunks)[index]
        data = self._decompressed(entry, spec.chunk_bytes)
        whole = np.frombuffer(data, dtype=spec.dtype).reshape(spec.chunk_shape)
        chunk = whole[: spec.rows - index * len(whole)]
        # Nobody looks at anything else that stands there.
        if len(chunk) < len(whole) and data[chunk.nbytes :].strip(b"\0"):
            raise ValueError(f"{entry} has more than zeros behind its {len(chunk)} rows")
        if len(whole) > 1:
            self._latest[name] = index, chunk
        return chunk

    def _decompressed(self, entry: str, size: int) -> bytes:
        """Return a chunk's bytes, of this size."""
        data = self._contents(self._zip.getinfo(entry))
        # A Blosc buffer declares its decompressed size, block size and own size. The decoder trusts
        # these, and would read past the end of a shorter buffer.
        declared = struct.unpack_from("<4xI4xI", data)
        if declared != (size, len(data)):
            said = f"{declared[0]} and {declared[1]} bytes instead of {size} and {len(data)}"
            raise ValueError(f"{entry} declares {said}")
        found: bytes = decompress(data)
        return found

    def _contents(self, entry: zipfile.ZipInfo) -> bytes | memoryview:
        """Read an entry: directly where it is as dpaudit writes it.

        The module zipfile takes longer than the decoder.
        """
        name = entry.filename
        if self._apart and not entry.flag_bits:
            self._file.seek(entry.header_offset)
            named = struct.pack("<HH", len(name), 0) + name.encode()
            start = _HEADER_BYTES + len(name)
            found = self._bounded.read(start + entry.file_size)
            data = memoryview(found)[start:]
            written = found.startswith(b"PK\x03\x04") and found.startswith(named, 26)
            if written and len(data) == entry.file_size and zlib.crc32(data) == entry.CRC:
                return data
        return self._zip.read(entry)

    def _require_declared(self, name: str, spec: ArraySpec, attributed: bool) -> None:
        if spec.chunk_bytes > MAX_CHUNK_BYTES:
            raise ValueError(
                f"a row of {name} has {spec.chunk_bytes} bytes; at most {MAX_CHUNK_BYTES} are read"
            )
        if not attributed and self._metadata_bytes(name) == spec.declaration:
            return
        found = self.metadata(name)
        wanted = spec.metadata(found.get("attributes", {}) if attributed else {})
        wrong = next(
            (key for key in [*wanted, *found] if key not in found or found[key] != wanted.get(key)),
            None,
        )
        if wrong is not None:
            problem = f"{name} is declared with {wrong[:100]!r} {str(found.get(wrong))[:100]}"
            raise ValueError(f"{problem}; this run's manifest implies {wanted.get(wrong)}")
        self._require_canonical(name, wanted)

    def _require_canonical(self, array: str, content: Mapping[str, Any]) -> None:
        """Refuse metadata with other bytes than dpaudit writes.

        Other bytes could say the same and more: a field twice, of which one is read, or any number
        of blanks.
        """
        if self._metadata_bytes(array) != _json_bytes(content):
            raise ValueError(f"{_metadata_entry(array)} is not as dpaudit writes it")

    def _require_no_more_bytes(self, listed: list[zipfile.ZipInfo]) -> None:
        """Refuse bytes that belong to no entry.

        Comments, other fields and gaps could hold anything.
        """
        entered = (
            sum(entry.file_size + _ENTRY_BYTES + 2 * len(entry.filename) for entry in listed)
            + _ENDING_BYTES
        )
        large = self._size > zipfile.ZIP64_LIMIT or len(listed) > zipfile.ZIP_FILECOUNT_LIMIT
        most = entered + large * (_ENDING64_BYTES + _PLACE64_BYTES * len(listed))
        if not entered <= self._size <= most:
            raise ValueError(f"the file has {self._size} bytes, and its entries account for {most}")


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return metadata as bytes, in the one way in which dpaudit writes it."""
    return json.dumps(content).encode()


def _group(attributes: Any) -> dict[str, Any]:
    """Return the content of the group's zarr.json."""
    return {"attributes": attributes, "zarr_format": 3, "node_type": "group"}


def _metadata_entry(array: str) -> str:
    """Return the name of the entry for an array's metadata; "" names the group."""
    return f"{array}/zarr.json" if array else "zarr.json"


def _chunk_entry(name: str, axes: int, index: int) -> str:
    """Return the name of a chunk's entry; `axes` counts those beside the leading one."""
    return f"{name}/c/{index}" + "/0" * axes


# A run's batches have the same arrays, and many of them as many steps. A hostile run has 32,768
# names in each.
@lru_cache(maxsize=32)
def _chunk_entries(name: str, axes: int, chunks: int) -> tuple[str, ...]:
    """Return the names of all of an array's chunks, in order."""
    return tuple(_chunk_entry(name, axes, index) for index in range(chunks))


def _lie_apart(listed: list[zipfile.ZipInfo]) -> bool:
    """Return whether no entry's bytes are another's."""
    in_order = sorted(listed, key=lambda entry: entry.header_offset)
    ends = (
        each.header_offset + _HEADER_BYTES + len(each.filename) + each.file_size
        for each in in_order
    )
    return all(end <= entry.header_offset for end, entry in zip(ends, in_order[1:], strict=False))


def _is_compressed(entry: zipfile.ZipInfo) -> bool:
    return entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size
