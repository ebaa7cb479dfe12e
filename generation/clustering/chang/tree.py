"""A tree of hash prefixes with noisy counts, and the noisy sums of its leaves: all that private records let through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.centers import ChangScales
from dpaudit.generation.clustering.grid import RADIUS, UNIT, Doubles
from dpaudit.generation.clustering.noise import Noise

Integers: TypeAlias = NDArray[np.int64]

#: A node branches at this many times the count that a leaf must have.
BRANCHING = 3


@dataclass(frozen=True)
class Level:
    """Nodes of one level.

    Attributes:
        prefixes: the first bits of their records' hashes, as numbers: int64 [m].
        counts: noisy: int64 [m].
    """

    prefixes: Integers
    counts: Integers

    def where(self, chosen: NDArray[np.bool_]) -> Level:
        """Some of the nodes."""
        return Level(self.prefixes[chosen], self.counts[chosen])


@dataclass(frozen=True)
class Tree:
    """What is let through.

    Attributes:
        levels: every node's noisy count, from the root down.
        leaves: of each level, those of a noisy count that is high enough. Records in the others are lost.
        sums: of the leaves' records, in the order of `leaves`, noisy, in steps of radius / RADIUS: int64 [m, p].
    """

    levels: tuple[Level, ...]
    leaves: tuple[Level, ...]
    sums: Integers

    def coreset(self) -> tuple[Doubles, Integers]:
        """Noisy averages of the leaves in radii [m, p], none longer than 1, and their noisy counts [m] as weights."""
        counts = np.concatenate([level.counts for level in self.leaves])
        points = self.sums / RADIUS / counts[:, None]
        return points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1.0), counts


def hyperplanes(depth: int, dimensions: int, generator: np.random.Generator) -> Doubles:
    """Normals of random planes through the origin, one for each bit of a hash: whole numbers [depth, p]."""
    return np.rint(generator.standard_normal((depth, dimensions)) * UNIT)


def paths(whole: Doubles, planes: Doubles) -> Integers:
    """SimHash (Charikar, 2002): the side of each plane that a record lies on, as bits, the first one highest [n]."""
    sides = whole @ planes.T >= 0
    bits = 1 << np.arange(len(planes), dtype=np.int64)[::-1]
    return np.asarray(sides @ bits, dtype=np.int64)


def grow(whole: Doubles, hashes: Integers, scales: ChangScales, least: Callable[[int], int], noise: Noise) -> Tree:
    """Let through noisy counts from the root down, and then noisy sums of the leaves.

    Args:
        whole: records, from `grid.on_grid` or a projection of it [n, p].
        hashes: their `paths` [n], of as many bits as the tree is deep.
        scales: of the noise; and the depth.
        least: what a leaf's noisy count must be, given the root's: at least 1.
        noise: of counts and sums.
    """
    depth, order = scales.depth, np.argsort(hashes, kind="stable")
    records = _Records(whole[order], hashes[order], depth)
    levels = [_counted(records, 0, np.zeros(1, dtype=np.int64), scales, noise)]
    threshold = least(int(levels[0].counts[0]))
    for bits in range(1, depth + 1):
        parents = levels[-1].where(_branch(levels[-1], threshold)).prefixes
        if not len(parents):
            break
        children = np.stack([2 * parents, 2 * parents + 1], axis=1).ravel()
        levels.append(_counted(records, bits, children, scales, noise))
    leaves = _leaves(levels, depth, threshold)
    sums = [records.sum(bits, prefix) for bits, level in enumerate(leaves) for prefix in level.prefixes]
    return Tree(tuple(levels), leaves, _noisy(sums, whole.shape[1], scales, noise))


@dataclass(frozen=True)
class _Records:
    """Records in the order of their hashes: those of a node are neighbours. Nothing of it is noised."""

    whole: Doubles
    hashes: Integers
    depth: int

    def counts(self, bits: int, prefixes: Integers) -> Integers:
        """How many have each of these prefixes [m]."""
        return self._place(bits, prefixes + 1) - self._place(bits, prefixes)

    def sum(self, bits: int, prefix: np.int64) -> Doubles:
        """Of those that have this prefix [p], exact."""
        first, end = self._place(bits, np.array([prefix, prefix + 1]))
        return np.asarray(self.whole[first:end].sum(axis=0))

    def _place(self, bits: int, prefixes: Integers) -> Integers:
        return np.searchsorted(self.hashes, prefixes << (self.depth - bits)).astype(np.int64)


def _branch(level: Level, least: int) -> NDArray[np.bool_]:
    """Which nodes have children [m]."""
    return level.counts >= BRANCHING * least


def _leaves(levels: list[Level], depth: int, least: int) -> tuple[Level, ...]:
    """Those without children whose noisy counts are high enough."""
    childless = [level.where(~_branch(level, least) | (bits == depth)) for bits, level in enumerate(levels)]
    return tuple(level.where(level.counts >= least) for level in childless)


def _counted(records: _Records, bits: int, prefixes: Integers, scales: ChangScales, noise: Noise) -> Level:
    return Level(prefixes, records.counts(bits, prefixes) + noise.rounded_laplace(scales.count_scale, len(prefixes)))


def _noisy(sums: list[Doubles], dimensions: int, scales: ChangScales, noise: Noise) -> Integers:
    exact = np.array(sums).reshape(-1, dimensions)
    return (exact + np.rint(noise.gaussian(scales.sum_sd * RADIUS, exact.shape))).astype(np.int64)
