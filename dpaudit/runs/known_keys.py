"""Keys of batches that anybody finds who tries the seeds and texts that people type."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

#: Those that programs come with, and people type.
KNOWN_SEEDS = (
    *(
        *range(32),
        37,
        42,
        64,
        69,
        77,
        88,
        99,
        100,
        101,
        111,
        123,
        128,
        200,
        222,
        256,
        314,
        321,
        333,
        404,
        420,
        444,
        512,
    ),
    *(555, 666, 777, 888, 999, 1000, 1024, 1111, 1234, 1337, 2048, *range(2017, 2031), 3407, 4096, 4242, 5489, 9999),
    *(10000, 12345, 31337, 42424, 54321, 65535, 123456, 271828, 314159, 654321, 1234567, 12345678, 123456789),
)


def known_key(key: bytes, seed: int | None = None) -> str | None:
    """Where a key comes from that a seed gives, or a keyboard, in words; None where it is none of these.

    Random bytes are all printable in one key of 10^13.

    Args:
        key: of the batches.
        seed: a further one to try, beside KNOWN_SEEDS.
    """
    if key.isascii() and key.decode("ascii").isprintable():
        return "a text"
    found = _keys(len(key)).get(key)
    own = {} if seed is None else {made: source for source, made in _of_seed(seed, len(key))}
    return found or own.get(key)


@lru_cache(maxsize=4)
def _keys(size: int) -> dict[bytes, str]:
    """Each key of so many bytes, and its source."""
    return {made: source for seed in KNOWN_SEEDS for source, made in _of_seed(seed, size)}


def _of_seed(seed: int, size: int) -> Iterator[tuple[str, bytes]]:
    """What scripts make of a seed when they need so many bytes."""
    legacy = f"numpy.random.seed({seed})"
    yield legacy, np.random.RandomState(seed % 2**32).bytes(size)
    yield legacy, np.random.RandomState(seed % 2**32).randint(0, 256, size).astype(np.uint8).tobytes()
    modern = f"numpy.random.default_rng({seed})"
    yield modern, np.random.default_rng(abs(seed)).bytes(size)
    yield modern, np.random.default_rng(abs(seed)).integers(0, 256, size).astype(np.uint8).tobytes()
    yield modern, np.random.default_rng(abs(seed)).integers(0, 256, size, dtype=np.uint8).tobytes()
    python = f"random.seed({seed})"
    yield python, random.Random(seed).randbytes(size)  # noqa: S311
    yield python, random.Random(seed).getrandbits(8 * size).to_bytes(size, "big")  # noqa: S311
    drawn = random.Random(seed)  # noqa: S311
    yield python, bytes(drawn.randrange(256) for _ in range(size))
    for name in ("sha256", "sha512", "sha3_256", "blake2b", "blake2s", "md5"):
        yield f"{name} of {seed}", hashlib.new(name, str(seed).encode()).digest()
    yield f"blake2b of {seed}", hashlib.blake2b(str(seed).encode(), digest_size=size).digest()
    for order in ("big", "little"):
        yield f"the number {seed}", abs(seed).to_bytes(size, order)
