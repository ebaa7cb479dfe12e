"""Drawing a token from softmax(aggregate / temperature), and where the randomness comes from."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.runs import CommittedSeed
from dpaudit.runs.committed_seed import UNIFORM_BYTES, as_uniform


class RandomBytes(Protocol):
    """A source of random bytes."""

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        ...


class OsEntropy(RandomBytes):
    """The operating system's cryptographic generator: what a release needs."""

    @override
    def take(self, size: int) -> bytes:
        return os.urandom(size)


class SeededStream(RandomBytes):
    """BLAKE2b in counter mode over (seed, batch). Repeatable, hence for tests only.

    Each batch has a stream of its own, so a run that is resumed at a batch's start draws what an
    unbroken one draws.
    """

    def __init__(self, seed: int, batch: int) -> None:
        self._prefix = f"dpaudit test stream {seed} {batch} ".encode()
        self._counter = 0

    @override
    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, 64 at most."""
        digest = hashlib.blake2b(self._prefix + str(self._counter).encode(), digest_size=size)
        self._counter += 1
        return digest.digest()


class CommittedStream(RandomBytes):
    """One batch's numbers of a committed seed, one for each step from the batch's first.

    A batch that is begun again gets the same numbers again.
    """

    def __init__(self, seed: CommittedSeed, commitment: str, batch: int) -> None:
        self._seed, self._commitment, self._batch = seed, commitment, batch
        self._step = 0

    @override
    def take(self, size: int) -> bytes:
        """Return the bytes of the next uniform, of which there are UNIFORM_BYTES."""
        if size != UNIFORM_BYTES:
            raise ValueError(f"a step has {UNIFORM_BYTES} bytes, not {size}")
        self._step += 1
        return self._seed.random_bytes(self._commitment, self._batch, self._step - 1)


@dataclass(frozen=True)
class SampledToken:
    """A sampled token: its index in the aggregate and the natural logarithm of its probability."""

    index: int
    log_probability: float


def sample(
    aggregate: NDArray[np.floating], temperature: float, source: RandomBytes
) -> SampledToken:
    """Draw from softmax(aggregate / temperature) by inverse CDF in float64 (Algorithm 1, line 8).

    Weights are added up from the smallest: a sum of j ascending weights is at most j times the last
    one, so each token's share of the line is right to a relative error of about V * 2^-53, down to
    2^-204.

    Args:
        aggregate: float [S].
        temperature: tau.
        source: gives one uniform.
    """
    ascending = np.sort(aggregate)
    scores = ascending.astype(np.float64) / temperature
    scores -= scores[-1]
    line = np.cumsum(np.exp(scores))
    place = int(
        np.searchsorted(line, as_uniform(source.take(UNIFORM_BYTES)) * line[-1], side="right")
    )
    place = min(place, len(line) - 1)
    # Equal values have equal shares, in the order of their indices.
    rank = place - int(np.searchsorted(ascending, ascending[place]))
    index = int(np.flatnonzero(aggregate == ascending[place])[rank])
    return SampledToken(index, float(scores[place] - np.log(line[-1])))
