"""Caches by content, in the user's cache folder: embeddings and figures.

Both are as private as what they were computed from, and their files are their owner's alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.generation.joined import CACHE_VARIABLE, cache_folder
from dpaudit.results.quality_file import private_place, require_place, write_private
from dpaudit.runs import KeyedHash

_SUFFIX = ".safetensors"
_DIGESTS, _VECTORS = "digests", "vectors"
_MAX_BYTES = 1 << 12
#: Of the figures' files. What measures them has a number of its own: `bench.PROTOCOL`.
_FORMAT = 2
_REMEDY = f"Set {CACHE_VARIABLE} to a folder that can be written to."

Figures = dict[str, float]


class VectorCache:
    """Vectors of texts, by digests of the texts and of the settings that made them.

    An embedding tells of its text nearly all there is to tell: files with embeddings of private
    texts are as sensitive as the texts. Files and folder are their owner's alone. Delete the folder
    with the data. Digests have no key: who reads the vectors can embed any text that they guess,
    and needs no digest to look it up.

    Vectors lie in parts that are written once and never changed. A part is named after the digest
    of its bytes; one that does not have its name's digest is deleted and never used. Several
    processes may write at once.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Choose the folder, made at the first entry.

        Args:
            folder: None for `joined.cache_folder()` / "embeddings".
        """
        self._hash = KeyedHash(b"")
        self._folder = cache_folder() / "embeddings" if folder is None else folder

    def find(self, settings: str, texts: Sequence[str], into: Vectors) -> NDArray[np.bool_]:
        """Copy known texts' vectors `into` their rows, float32 [n, d]; return the found, bool [n].

        `settings` names model, pooling and all else that vectors depend on.
        """
        known = np.zeros(len(texts), dtype=np.bool_)
        wanted = defaultdict(list)
        for row, text in enumerate(texts):
            wanted[self._digest(text)].append(row)
        for digests, vectors in self._parts(settings, into.shape[1]):
            for digest, vector in zip(digests, vectors, strict=True):
                rows = wanted.pop(digest.tobytes(), [])
                into[rows], known[rows] = vector, True
        return known

    def add(self, settings: str, texts: Sequence[str], vectors: Vectors) -> None:
        """Keep vectors float32 [n, d] of n texts: all of them, or, where writing fails, none.

        Raises:
            InputError: the folder cannot be written to.
        """
        digests = np.frombuffer(b"".join(map(self._digest, texts)), dtype=np.uint8).reshape(
            len(texts), -1
        )
        content = save(
            {_DIGESTS: digests, _VECTORS: np.ascontiguousarray(vectors, dtype=np.float32)}
        )
        path = self._settings_folder(settings) / (_digest_of(content) + _SUFFIX)
        remedy = f"{_REMEDY.removesuffix('.')}, or embed without a cache."
        with private_place(path, remedy):
            for folder in (self._folder, path.parent):
                folder.chmod(0o700)
        write_private(path, content, remedy)

    def _parts(self, settings: str, dimensions: int) -> Iterator[tuple[NDArray[np.uint8], Vectors]]:
        """Yield digests uint8 [m, 32] and vectors float32 [m, d] of every sound part."""
        for path in sorted(self._settings_folder(settings).glob(f"*{_SUFFIX}")):
            try:
                yield _read(path, dimensions)
            except ValueError as error:
                warnings.warn(f"{path} was dropped from the embedding cache: {error}", stacklevel=4)
                path.unlink(missing_ok=True)

    def _settings_folder(self, settings: str) -> Path:
        return self._folder / self._hash.digest("settings", settings)

    def _digest(self, text: str) -> bytes:
        return bytes.fromhex(self._hash.digest("text", text))


def _read(path: Path, dimensions: int) -> tuple[NDArray[np.uint8], Vectors]:
    """Read a part.

    Raises:
        ValueError: it is not what was written.
    """
    try:
        content = path.read_bytes()
        if _digest_of(content) != path.name.removesuffix(_SUFFIX):
            raise ValueError("it was damaged")
        arrays = load(content)
        digests, vectors = arrays[_DIGESTS], arrays[_VECTORS]
    except (OSError, KeyError, SafetensorError) as error:
        raise ValueError("it cannot be read") from error
    if vectors.dtype != np.float32 or vectors.shape != (len(digests), dimensions):
        raise ValueError("it holds other arrays")
    return digests, vectors


def _digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def key_of(**parts: Any) -> str:
    """Return a digest of everything that a figure depends on, by name; values are JSON's."""
    text = json.dumps({"format": _FORMAT, **parts}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class ScoreCache:
    """A folder of small files, one for each key, for their owner alone: the figures are private.

    What is in a file is taken at its word, so the folder is the user's own and no part of any run:
    one that comes from elsewhere must not bring its figures. A file that is another user's, or not
    what was written here, counts as absent.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Choose the folder, made at the first entry.

        Args:
            folder: None for `joined.cache_folder()` / "evaluation-scores".
        """
        self._folder = cache_folder() / "evaluation-scores" if folder is None else folder

    def require(self) -> None:
        """Find out whether figures can be kept. Raises InputError where they cannot."""
        require_place(self._folder / "figures.json", _REMEDY)

    def find(self, key: str, names: tuple[str, ...]) -> Figures | None:
        """Return the figures of these names, all finite; None if they are not known."""
        with suppress(OSError, ValueError, RecursionError):
            handle = os.open(
                self._folder / f"{key}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            )
            with os.fdopen(handle, "rb") as file:
                status = os.fstat(handle)
                if not (stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()):
                    return None
                found = json.loads(file.read(_MAX_BYTES))
            numbers = (int, float)  # and not bool
            sound = isinstance(found, dict) and set(found) == set(names)
            if sound and all(
                type(value) in numbers and math.isfinite(value) for value in found.values()
            ):
                return {name: float(found[name]) for name in names}
        return None

    def keep(self, key: str, figures: Mapping[str, float]) -> None:
        """Keep figures. Raises InputError where they cannot be written."""
        write_private(
            self._folder / f"{key}.json",
            json.dumps(dict(figures), allow_nan=False).encode(),
            _REMEDY,
        )
