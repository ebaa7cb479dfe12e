"""The first numbers of many seeds at once, as generators of numpy and Python make them.

One of `numpy.random.default_rng` takes 30 microseconds to make, and an audit asks 5,000 of them.
Its seeding and its generator are frozen: `numpy.random.SeedSequence`, and `numpy.random.PCG64`
(O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms", 2014,
XSL-RR 128/64). The other two are asked one after another.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint32]
LongWords: TypeAlias = NDArray[np.uint64]
Doubles: TypeAlias = NDArray[np.float64]

#: Words of a pool of entropy.
_POOL = 4
#: Numbers of one generator take less time than steps of many at once from here on.
_MANY = 128
#: PCG's multiplier, of 128 bits.
_HIGH, _LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
_HALF, _MASK = np.uint64(32), np.uint64(0xFFFFFFFF)
#: A thread's generator of numpy's old kind. To seed it takes a hundredth of making another.
_THREAD = threading.local()


def seeded_legacy(seed: int) -> np.random.RandomState:
    """Return this thread's generator, as `np.random.RandomState(seed)` begins."""
    found: np.random.RandomState | None = getattr(_THREAD, "legacy", None)
    if found is None:
        found = _THREAD.legacy = np.random.RandomState()
    found.seed(seed % 2**32)
    return found


def legacy_doubles(seeds: Sequence[int], size: int) -> Doubles:
    """Return [seeds, size] the first numbers of `numpy.random.seed` with each seed."""
    found = np.empty((len(seeds), size))
    for row, seed in enumerate(seeds):
        found[row] = seeded_legacy(seed).random_sample(size)
    return found


def python_doubles(seeds: Sequence[int], size: int) -> Doubles:
    """Return [seeds, size] the first numbers of `random.seed` with each seed."""
    # a number takes two words of the generator, which gives out bytes faster than numbers
    made = b"".join(random.Random(seed).randbytes(8 * size) for seed in seeds)  # noqa: S311
    words = np.frombuffer(made, "<u4").reshape(len(seeds), size, 2)
    high, low = words[..., 0] >> np.uint32(5), words[..., 1] >> np.uint32(6)
    found: Doubles = (high * 2.0**26 + low) / 2.0**53
    return found


def modern_doubles(seeds: Sequence[int], size: int) -> Doubles:
    """Return [seeds, size] the first numbers of `numpy.random.default_rng` with each seed.

    Their signs are left out: it takes none below 0. Raises OverflowError from 2^32 on.
    """
    if size >= _MANY:
        return np.array([np.random.default_rng(abs(seed)).random(size) for seed in seeds])
    return doubles_of(modern_words(np.abs(np.array(seeds, dtype=np.int64))[:, None], size))


def modern_words(entropy: NDArray[np.int64], size: int) -> LongWords:
    """Return [seeds, size] the first words of 64 bits of `numpy.random.default_rng`.

    Args:
        entropy: [seeds, words] from 0, each below 2^32: a seed; several seeds in a list; or a seed
            with zeros up to 4 words, and what `numpy.random.SeedSequence.spawn` adds.
        size: how many.

    Raises:
        OverflowError: a word is not from 0 to 2^32.
    """
    if entropy.size and not 0 <= entropy.min() <= entropy.max() < 2**32:
        raise OverflowError("entropy of more than 32 bits a word")
    seed_high, seed_low, high, low = _states(entropy.astype(np.uint32))
    one = np.uint64(1)
    high, low = (high << one) | (low >> np.uint64(63)), (low << one) | one
    # From 0, a step leads to the increment. The seed is added, and another step is taken.
    state = _added(high, low, seed_high, seed_low)
    state = _added(*_multiplied(*state), high, low)
    found = np.empty((size, len(entropy)), dtype=np.uint64)
    for number in range(size):
        state = _added(*_multiplied(*state), high, low)
        mixed, turned = state[0] ^ state[1], state[0] >> np.uint64(58)
        found[number] = (mixed >> turned) | (mixed << ((np.uint64(64) - turned) & np.uint64(63)))
    return found.T.copy()


def doubles_of(words: LongWords) -> Doubles:
    """Return the numbers in [0, 1) that `default_rng` makes of its words."""
    # exact: 53 bits are left
    return (words >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def _states(entropy: Words) -> tuple[LongWords, LongWords, LongWords, LongWords]:
    """Return [seeds] the four words of 64 bits that `SeedSequence` makes of each row of entropy."""
    constant = 0x43B0D7E5

    def hashed(word: Words, factor: int) -> Words:
        nonlocal constant
        word = word ^ np.uint32(constant)
        constant = constant * factor % 2**32
        word = word * np.uint32(constant)
        found: Words = word ^ (word >> np.uint32(16))
        return found

    def mixed(one: Words, other: Words) -> Words:
        difference = np.uint32(0xCA01F9DD) * one - np.uint32(0x4973F715) * other
        found: Words = difference ^ (difference >> np.uint32(16))
        return found

    words = [*np.ascontiguousarray(entropy.T)]
    words += [np.zeros(len(entropy), dtype=np.uint32)] * (_POOL - len(words))
    pool = [hashed(word, 0x931E8875) for word in words[:_POOL]]
    for source in range(_POOL):
        for place in range(_POOL):
            if place != source:
                pool[place] = mixed(pool[place], hashed(pool[source], 0x931E8875))
    for word in words[_POOL:]:
        for place in range(_POOL):
            pool[place] = mixed(pool[place], hashed(word, 0x931E8875))
    constant = 0x8B51F9DD
    made = [hashed(word, 0x58F38DED).astype(np.uint64) for word in pool * 2]
    first, second, third, fourth = (
        low | (high << _HALF) for low, high in zip(made[::2], made[1::2], strict=True)
    )
    return first, second, third, fourth


def _multiplied(high: LongWords, low: LongWords) -> tuple[LongWords, LongWords]:
    """Return numbers of 128 bits, times PCG's multiplier."""
    a, b = low >> _HALF, low & _MASK
    c, d = _LOW >> _HALF, _LOW & _MASK
    middle = a * d + ((b * d) >> _HALF)
    carried = b * c + (middle & _MASK)
    above = a * c + (middle >> _HALF) + (carried >> _HALF)
    return above + high * _LOW + low * _HIGH, low * _LOW


def _added(
    high: LongWords, low: LongWords, other_high: LongWords, other_low: LongWords
) -> tuple[LongWords, LongWords]:
    """Return sums of numbers of 128 bits."""
    total = low + other_low
    return high + other_high + (total < low), total
