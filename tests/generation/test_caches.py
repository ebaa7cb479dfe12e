"""Embeddings are found again by text and settings, and nobody but their owner finds them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from dpaudit.generation import caches
from dpaudit.generation.caches import VectorCache
from dpaudit.generation.clustering import embedding
from dpaudit.generation.clustering.embedding import Embedder
from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.generation.joined import CACHE_VARIABLE
from dpaudit.runs import InputError

SETTINGS = "model mean 256 False 3"
TEXTS = ("one", "two", "three")
VECTORS = np.arange(9, dtype=np.float32).reshape(3, 3)


@pytest.fixture
def cache(tmp_path: Path) -> VectorCache:
    return VectorCache(folder=tmp_path / "embeddings")


def find(
    cache: VectorCache, texts: Sequence[str], settings: str = SETTINGS
) -> tuple[list[bool], Vectors]:
    into = np.full((len(texts), 3), -1, dtype=np.float32)
    return cache.find(settings, texts, into).tolist(), into


def parts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_added_is_found(cache: VectorCache) -> None:
    assert find(cache, TEXTS)[0] == [False] * 3
    cache.add(SETTINGS, TEXTS[:2], VECTORS[:2])
    cache.add(SETTINGS, TEXTS[2:], VECTORS[2:])
    known, vectors = find(cache, ["three", "four", "one", "one"])
    assert known == [True, False, True, True]
    assert vectors.tolist() == [[6, 7, 8], [-1, -1, -1], [0, 1, 2], [0, 1, 2]]


def test_other_settings_find_nothing(cache: VectorCache) -> None:
    cache.add(SETTINGS, TEXTS, VECTORS)
    assert find(cache, TEXTS, SETTINGS.replace("False", "True"))[0] == [False] * 3


def test_files_and_folders_are_their_owners_alone(cache: VectorCache, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache.add(SETTINGS, TEXTS, VECTORS)
    finally:
        os.umask(before)
    (part,) = parts(tmp_path)
    assert part.stat().st_mode & 0o777 == 0o600
    assert part.parent.stat().st_mode & 0o777 == part.parent.parent.stat().st_mode & 0o777 == 0o700


def test_a_damaged_part_is_dropped_with_a_warning(cache: VectorCache, tmp_path: Path) -> None:
    for place in [0, 12, -1]:
        cache.add(SETTINGS, TEXTS[:1], VECTORS[:1])
        cache.add(SETTINGS, TEXTS[1:], VECTORS[1:])
        content = bytearray(parts(tmp_path)[0].read_bytes())
        content[place] ^= 1
        parts(tmp_path)[0].write_bytes(content)
        with pytest.warns(UserWarning, match=r"embedding cache: .*damaged"):
            known, vectors = find(cache, TEXTS)
        assert sum(known) in (1, 2)
        assert np.array_equal(vectors[known], VECTORS[known])
        assert len(parts(tmp_path)) == 1
        assert find(cache, TEXTS)[0] == known


def test_a_part_with_other_content_is_dropped(cache: VectorCache, tmp_path: Path) -> None:
    for content in [
        b"nonsense",
        save({"digests": np.zeros((1, 32), np.uint8)}),
        save({"digests": np.zeros((1, 32), np.uint8), "vectors": np.zeros((2, 3), np.float32)}),
        save({"digests": np.zeros((1, 32), np.uint8), "vectors": np.zeros((1, 4), np.float32)}),
        save({"digests": np.zeros((1, 32), np.uint8), "vectors": np.zeros((1, 3), np.float64)}),
    ]:
        cache.add(SETTINGS, TEXTS, VECTORS)
        (part,) = parts(tmp_path)
        foreign = part.with_name(caches._digest_of(content) + ".safetensors")
        foreign.write_bytes(content)
        with pytest.warns(UserWarning, match="dropped"):
            assert find(cache, TEXTS)[0] == [True] * 3
        assert parts(tmp_path) == [part]


def test_what_cannot_be_written_leaves_nothing(
    cache: VectorCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        cache.add(SETTINGS, TEXTS, VECTORS)
    assert parts(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=CACHE_VARIABLE):
        VectorCache(folder=tmp_path / "file" / "embeddings").add(SETTINGS, TEXTS, VECTORS)


def test_it_lies_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    VectorCache().add(SETTINGS, TEXTS, VECTORS)
    assert parts(tmp_path / "embeddings")


class Encoder(Embedder):
    """Embeds a text as its length, and remembers what it was asked."""

    def __init__(self) -> None:
        self.digest, self.dimensions, self.max_tokens = "d", 3, 9
        self.pooling, self.normalized = "mean", False
        self.asked: list[str] = []

    def _passes(self, texts: Sequence[str]):  # type: ignore[no-untyped-def]
        for index, text in enumerate(texts):
            self.asked.append(text)
            if text == "stop":
                raise KeyboardInterrupt
            yield [index], np.full((1, 3), len(text), dtype=np.float32)


def test_only_unknown_texts_are_embedded(cache: VectorCache) -> None:
    encoder, told = Encoder(), list[int]()
    first = encoder.embed(TEXTS, cache)
    assert np.array_equal(
        encoder.embed(["three", "fourth", "one"], cache, lambda done, _: told.append(done)),
        [[5] * 3, [6] * 3, [3] * 3],
    )
    assert encoder.asked == [*TEXTS, "fourth"]
    assert told == [2, 3]
    assert np.array_equal(encoder.embed(TEXTS), first)
    assert encoder.asked == [*TEXTS, "fourth", *TEXTS]


def test_an_interruption_loses_the_last_window_alone(
    cache: VectorCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "_WINDOW", 2)
    encoder = Encoder()
    with pytest.raises(KeyboardInterrupt):
        encoder.embed(["a", "b", "c", "stop"], cache)
    assert find(cache, ["a", "b", "c"], encoder.settings)[0] == [True, True, False]
