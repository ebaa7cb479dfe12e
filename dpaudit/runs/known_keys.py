"""Batch keys that anybody finds by trying common seeds and words."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from dpaudit.runs.seeded import seeded_legacy

#: Library defaults and commonly typed seeds.
KNOWN_SEEDS = (
    *range(32), 37, 42, 64, 69, 77, 88, 99, 100, 101, 111, 123, 128, 200, 222, 256, 314, 321, 333,
    404, 420, 444, 512, 555, 666, 777, 888, 999, 1000, 1024, 1111, 1234, 1337, *range(2017, 2031),
    2048, 3407, 4096, 4242, 5489, 9999, 10000, 12345, 31337, 42424, 54321, 65535, 123456, 271828,
    314159, 654321, 1234567, 12345678, 123456789
)  # fmt: skip
#: Words commonly typed as a secret, in lower case. Anybody finds the keys that are their digests.
KNOWN_WORDS = (
    "", "admin", "batch", "batches", "batching", "changeme", "default", "dp-audit", "dpaudit",
    "dummy", "example", "foo", "foobar", "hello", "key", "letmein", "master", "my-key", "my-secret",
    "mykey", "mysecret", "null", "passphrase", "passw0rd", "password", "password123", "placeholder",
    "private", "private-key", "qwerty", "random", "release", "round", "salt", "secret",
    "secret-key", "secret_key", "secretkey", "seed", "synthetic", "test", "testing", "todo",
    "token", "xxx"
)  # fmt: skip

_DIGESTS: tuple[tuple[str, Callable[[bytes], Any]], ...] = tuple(
    (name, getattr(hashlib, name))
    for name in (
        "sha256",
        "sha512",
        "sha3_256",
        "sha3_512",
        "blake2b",
        "blake2s",
        "sha384",
        "sha1",
        "md5",
    )
)
#: This many equal bytes are no coincidence: one random key in 2^64 has them.
TELLING_BYTES = 8


def known_key(key: bytes, seed: int | None = None) -> str | None:
    """Name the source of a key that a seed, a word or a keyboard gives; None for other keys.

    Random bytes are all printable in one key of 10^13, and seldom count.

    Args:
        key: of the batches.
        seed: a further one to try, beside KNOWN_SEEDS.
    """
    if key.isascii() and key.decode("ascii").isprintable():
        return "a text"
    if any(key[size:] == key[:-size] for size in range(1, len(key) - TELLING_BYTES + 1)):
        return "a block of bytes, repeated"
    if len(key) - min(len(key.lstrip(b"\0")), len(key.rstrip(b"\0"))) >= TELLING_BYTES:
        return "something shorter, filled up with zeros"
    if len({(after - before) % 256 for before, after in pairwise(key)}) < 2:
        return "bytes that count"
    if found := _common_keys(len(key)).get(key):
        return found
    if seed is None:
        return None
    return {made: source for source, made in _seed_keys(seed, len(key))}.get(key)


@lru_cache(maxsize=4)
def _common_keys(size: int) -> dict[bytes, str]:
    """Return the source of each known key of this many bytes."""
    found = {made: source for seed in KNOWN_SEEDS for source, made in _seed_keys(seed, size)}
    words = (spelled for word in KNOWN_WORDS for spelled in (word, word.upper(), word.capitalize()))
    # `echo` ends a word's line.
    typed = (f"{word}{end}" for word in words for end in ("", "\n"))
    return found | {
        made: source
        for word in typed
        for source, made in _digest_keys(word.encode(), repr(word), size)
    }


def _seed_keys(seed: int, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield the keys that scripts make of a seed, each after its source."""
    legacy = f"numpy.random.seed({seed})"
    yield legacy, seeded_legacy(seed).bytes(size)
    yield legacy, seeded_legacy(seed).randint(0, 256, size).astype(np.uint8).tobytes()
    modern, generator = f"numpy.random.default_rng({seed})", np.random.default_rng(abs(seed))
    start = generator.bit_generator.state  # to set it takes a tenth of making another
    yield modern, generator.bytes(size)
    for dtype in (np.int64, np.uint8):
        generator.bit_generator.state = start
        yield modern, generator.integers(0, 256, size, dtype=dtype).astype(np.uint8).tobytes()
    python = f"random.seed({seed})"
    made = random.Random(seed).randbytes(size)  # noqa: S311
    yield python, made
    yield python, made[::-1]  # getrandbits(8 * size), the greatest byte first
    drawn = random.Random(seed)  # noqa: S311
    yield python, bytes(drawn.randrange(256) for _ in range(size))
    yield from _digest_keys(str(seed).encode(), str(seed), size)
    for order in ("big", "little"):
        yield f"the number {seed}", abs(seed).to_bytes(size, order)
        for width in (4, 8):  # as struct.pack and numpy write one
            if abs(seed) < 256**width:
                yield from _digest_keys(
                    abs(seed).to_bytes(width, order), f"{seed} in {width} bytes", size
                )


def _digest_keys(data: bytes, named: str, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield data's digests by common functions, cut to this many bytes, each after its source."""
    for name, digest in _DIGESTS:
        yield f"{name} of {named}", digest(data).digest()[:size]
    if size <= hashlib.blake2b.MAX_DIGEST_SIZE:
        yield f"blake2b of {named}", hashlib.blake2b(data, digest_size=size).digest()
    if size <= hashlib.blake2s.MAX_DIGEST_SIZE:
        yield f"blake2s of {named}", hashlib.blake2s(data, digest_size=size).digest()
