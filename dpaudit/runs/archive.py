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
from typing import Any

import numpy as np
from numcodecs import Blosc, blosc
from numcodecs.blosc import decompress

from dpaudit.runs.encoding import AnyArray
from dpaudit.runs.storage import writing

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
#: Some 250,000 entries: more than there are where each of the most tokens has chunks of its own.
MAX_DIRECTORY_BYTES = 1 << 24
#: The most that a Blosc buffer adds to its contents.
_BLOSC_BYTES = 16
#: Parts of a zip file, by PKWARE's APPNOTE: what stands before an entry's contents; an entry of the
#: directory, some fields that both have, and what is behind the name of one beyond 2 GiB; the end,
#: and before it, of a large file, the same in longer numbers, and where that is.
_HEADER = struct.Struct("<4s2x22sH")
_LISTED, _FIELDS, _FAR = struct.Struct("<4s2xH22s2H8xI"), struct.Struct("<2H4x3IH"), "<2HQ"
_ENDING, _ENDING64 = struct.Struct("<4s4H2IH"), struct.Struct("<4sQ2H2I4Q")
_PLACE64 = struct.Struct("<4sIQI")
#: What a number says that is too long for its place.
_LONG, _VERY_LONG = 0xFFFF, 0xFFFFFFFF
#: The last place that is written as it is.
_NEAR = (1 << 31) - 1
#: The versions of zip that readers must know for what is written here.
_VERSIONS = (20, 45)
#: What a group's and an array's zarr.json say before their attributes, and behind them.
_ATTRIBUTES = b'"attributes": '
_OF_GROUP: Mapping[str, Any] = {"zarr_format": 3, "node_type": "group"}
_OF_ARRAY: Mapping[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "storage_transformers": [],
}
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
            **_OF_ARRAY,
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


class ArchiveReader:
    """A batch file that is read without trusting it.

    A small file is read once, so its digest is that of the very bytes that are decoded.

    Methods raise ValueError, KeyError and whatever decoders raise for damaged bytes.

    Attributes:
        close: closes the file.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        self.close, self._file = file.close, file
        self._size = os.fstat(file.fileno()).st_size
        self._content: memoryview | None = None
        if self._size <= MOST_AT_ONCE:
            self._content = memoryview(file.read(self._size + 1))
            self._size = len(self._content)
        # Of each entry, where it begins, and its fields.
        self._entries: dict[str, tuple[int, bytes]] = {}
        self._read_directory()
        self._specs: Mapping[str, ArraySpec] = {}
        # Of each array, the chunk of several rows that was read last.
        self._latest: dict[str, tuple[int, AnyArray]] = {}

    def digest(self) -> str:
        """Return the SHA-256 of the file, in hexadecimal."""
        if self._content is not None:
            return hashlib.sha256(self._content).hexdigest()
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()

    def attributes(self, array: str = "") -> bytes:
        """Return the JSON of the attributes of an array, or of the group; nothing is checked."""
        return _attributes(array, bytes(self._contents(_metadata_entry(array))))

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
        entries = self._entries
        self._require_declared("", _json_bytes(_group({})), attributed=True)
        wanted = 1 + sum(1 + spec.chunks for spec in specs.values())
        if len(entries) != wanted:  # told before all their names are written out
            raise ValueError(
                f"entries are missing or superfluous: there are {len(entries)} instead of {wanted}"
            )
        expected = {_metadata_entry("")}
        for name, spec in specs.items():
            if spec.chunk_bytes > MAX_CHUNK_BYTES:
                raise ValueError(
                    f"a row of {name} has {spec.chunk_bytes} bytes; at most {MAX_CHUNK_BYTES} are "
                    "read"
                )
            self._require_declared(name, spec.declaration, name in attributed)
            expected.update(_chunk_entries(name, len(spec.row), spec.chunks))
            expected.add(_metadata_entry(name))
        if entries.keys() != expected:
            odd = sorted(entries.keys() ^ expected)
            raise ValueError(
                f"{len(odd)} entries are missing or superfluous, the first is {odd[0][:100]!r}"
            )
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
        data = self._contents(entry, size + _BLOSC_BYTES)
        # A Blosc buffer declares its decompressed size, block size and own size. The decoder trusts
        # these, and would read past the end of a shorter buffer.
        declared = struct.unpack_from("<4xI4xI", data)
        if declared != (size, len(data)):
            said = f"{declared[0]} and {declared[1]} bytes instead of {size} and {len(data)}"
            raise ValueError(f"{entry} declares {said}")
        found: bytes = decompress(data)
        return found

    def _contents(self, name: str, most: int = MAX_METADATA_BYTES) -> memoryview:
        """Return an entry's contents, of so many bytes at most."""
        place, fields = self._entries[name]
        _, _, checksum, size, _, named = _FIELDS.unpack(fields)
        if size > most:
            raise ValueError(f"{name} has {size} bytes; at most {most} are read")
        start = _HEADER.size + named
        found = self._bytes(place, start + size)
        header, data = bytes(found[:start]), found[start:]
        if (b"PK\3\4", fields, 0) != _HEADER.unpack_from(header) or header[
            -named:
        ] != name.encode():
            raise ValueError(f"{name} does not begin as the directory says")
        if zlib.crc32(data) != checksum:
            raise ValueError(f"{name} has another checksum than the directory says")
        return data

    def _bytes(self, place: int, size: int) -> memoryview:
        """Return some of the file's bytes."""
        if self._content is not None:
            found = self._content[place : place + size]
        else:
            self._file.seek(place)
            found = memoryview(self._file.read(size))
        if len(found) != size:
            raise ValueError(f"the file ends within {size} bytes")
        return found

    def _read_directory(self) -> None:
        """Find the entries, which are stored as they are, one behind another.

        Comments, other fields and gaps could hold anything, so there are none.
        """
        place, size, number = self._directory()
        listed, at, end = bytes(self._bytes(place, size)), 0, 0
        for _ in range(number):
            sign, version, fields, extra, comment, begins = _LISTED.unpack_from(listed, at)
            flags, method, _, packed, unpacked, named = _FIELDS.unpack(fields)
            name = listed[at + _LISTED.size : at + _LISTED.size + named]
            at += _LISTED.size + named
            if end > _NEAR:
                *kind, far = struct.unpack_from(_FAR, listed, at)
                at += struct.calcsize(_FAR)
                extra -= struct.calcsize(_FAR) * ((begins, kind) == (_VERY_LONG, [1, 8]))
                begins = far
            if method or packed != unpacked:
                raise ValueError("an entry is compressed by the zip itself")
            known = sign == b"PK\1\2" and version in _VERSIONS
            if not known or (flags, extra, comment, begins) != (0, 0, 0, end):
                raise ValueError("the file has other bytes than its entries account for")
            if self._entries.setdefault(name.decode("ascii"), (end, fields))[0] != end:
                raise ValueError("an entry is doubled")
            end += _HEADER.size + named + unpacked
        if (at, end) != (size, place):
            raise ValueError("the file has other bytes than its entries account for")

    def _directory(self) -> tuple[int, int, int]:
        """Return where the directory begins, how many bytes it has, and how many entries."""
        end = self._size - _ENDING.size
        if end < 0:
            raise ValueError(f"{self._size} bytes are no zip file")
        sign, *disks, here, number, size, place, comment = _ENDING.unpack(
            self._bytes(end, _ENDING.size)
        )
        before, longer = end - _PLACE64.size - _ENDING64.size, False
        if before >= 0:
            parts = self._bytes(before, end - before)
            located = _PLACE64.unpack_from(parts, _ENDING64.size)
            if located == (b"PK\6\7", 0, before, 1):
                end, short, longer = before, (number, size, place), True
                sign64, length, _, _, *more, here, number, size, place = _ENDING64.unpack_from(
                    parts
                )
                disks += more
                long = min(number, _LONG), min(size, _VERY_LONG), min(place, _VERY_LONG)
                if (sign64, length) != (b"PK\6\6", 44) or short != long:
                    sign = b""
        if longer != (number > _LONG or max(size, place) > _NEAR):
            sign = b""
        if size > MAX_DIRECTORY_BYTES:
            raise ValueError(
                f"{size} bytes are to be read at once; at most {MAX_DIRECTORY_BYTES} are"
            )
        if (sign, any(disks), here, comment, place + size) != (b"PK\5\6", False, number, 0, end):
            raise ValueError("the file has other bytes than its entries account for")
        return place, size, number

    def _require_declared(self, array: str, declaration: bytes, attributed: bool) -> None:
        """Refuse an array's zarr.json, or the group's, with other bytes than dpaudit writes.

        Other bytes could say the same and more: a field twice, of which one is read, or any number
        of blanks.
        """
        found = bytes(self._contents(_metadata_entry(array)))
        if attributed:
            given = _attributes(array, found)
            attributes = _ATTRIBUTES + _json_bytes(json.loads(given))
            declaration = declaration.replace(_ATTRIBUTES + b"{}", attributes)
        if found == declaration:
            return
        fields, wanted = json.loads(found), json.loads(declaration)
        for key in (*wanted, *fields):
            if fields.get(key) != wanted.get(key):
                value = str(fields.get(key))[:100]
                problem = f"{array or 'the group'} is declared with {key[:100]!r} {value}"
                raise ValueError(f"{problem}; this run's manifest implies {wanted.get(key)}")
        raise ValueError(f"{_metadata_entry(array)} is not as dpaudit writes it")


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return metadata as bytes, in the one way in which dpaudit writes it."""
    return json.dumps(content).encode()


def _group(attributes: Any) -> dict[str, Any]:
    """Return the content of the group's zarr.json."""
    return {"attributes": attributes, **_OF_GROUP}


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


def _attributes(array: str, metadata: bytes) -> bytes:
    """Return what an array's zarr.json, or the group's, says as attributes."""
    ending = _json_bytes(_OF_ARRAY if array else _OF_GROUP)[1:]
    return metadata.partition(_ATTRIBUTES)[2].removesuffix(b", " + ending)
