"""Embeddings on disk, found again by what was embedded and how."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.generation.models import CACHE_VARIABLE, cache_folder
from dpaudit.runs import InputError, KeyedHash

_SUFFIX = ".safetensors"
_DIGESTS, _VECTORS = "digests", "vectors"


class VectorCache:
    """Vectors of texts, by digests of the texts and of the settings that made them.

    An embedding tells of its text nearly all there is to tell: files with embeddings of private texts are as sensitive
    as the texts. Files and folder are their owner's alone. Digests may have a key, so that without it nobody can look
    up a text that they guess. Whoever reads the vectors needs no digest: they can embed the guess, and so the private
    caches of commands have no key. Delete the folder with the data.

    Vectors lie in parts that are written once and never changed. A part is named after the digest of its bytes; one
    that does not have its name's digest is deleted and never used. Several processes may write at once.
    """

    def __init__(self, key: bytes = b"", folder: Path | None = None) -> None:
        """Open the cache; it is made when it is first written to.

        Args:
            key: up to 64 bytes that digests of texts and settings are taken under; empty for public texts.
            folder: where it is; None for `models.cache_folder()` / "embeddings".
        """
        self._hash = KeyedHash(key)
        self._folder = cache_folder() / "embeddings" if folder is None else folder

    def find(self, settings: str, texts: Sequence[str], into: Vectors) -> NDArray[np.bool_]:
        """Copy the vectors that are known.

        Args:
            settings: names model, pooling and all else that vectors depend on.
            texts: n texts.
            into: float32 [n, d]; rows of known texts are written, the others left alone.

        Returns:
            Which rows are known: bool [n].
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
        digests = np.frombuffer(b"".join(map(self._digest, texts)), dtype=np.uint8).reshape(len(texts), -1)
        content = save({_DIGESTS: digests, _VECTORS: np.ascontiguousarray(vectors, dtype=np.float32)})
        folder = self._settings_folder(settings)
        try:
            for made in (self._folder, folder):
                made.mkdir(mode=0o700, parents=True, exist_ok=True)
                made.chmod(0o700)
            _write(folder / (_digest_of(content) + _SUFFIX), content)
        except OSError as error:
            remedy = f"Set {CACHE_VARIABLE} to a folder that can be written to, or embed without a cache."
            raise InputError(str(folder), f"embeddings cannot be kept there ({error.strerror}).", remedy) from error

    def _parts(self, settings: str, dimensions: int) -> Iterator[tuple[NDArray[np.uint8], Vectors]]:
        """Digests uint8 [m, 32] and vectors float32 [m, d] of every sound part."""
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
    """A part. Raises ValueError when it is not what was written."""
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


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read: whole, or not at all."""
    handle, partial = tempfile.mkstemp(prefix="partial-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


def _digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()
