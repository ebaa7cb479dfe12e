"""The bounds against actual neighbours: more than 100,000 random batches, each with every neighbour of a wide set.

One hypothesis example is a block of random batches of one shape, which are checked together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.accounting import exact_cost, median_bounds, theorem1_cost

CLIP, BLOCK, EXAMPLES = 3.0, 512, 400
#: Rounding of two logarithms of sums of at most eight terms.
SLACK = 1e-12

Bounds = Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]


class Block:
    """Random batches [BLOCK, n, V] in one of several styles, and the tools to make their neighbours."""

    def __init__(self, n: int, size: int, group: int, relation: str, temperature: float, seed: int) -> None:
        self.n, self.size, self.group, self.relation, self.temperature = n, size, group, relation, temperature
        self.random = np.random.default_rng(seed)
        self.values = np.stack([self.contexts(n) for _ in range(BLOCK // 64)]).reshape(BLOCK, n, size)

    def contexts(self, n: int) -> np.ndarray:
        """[64, n, V]: every context's largest logit is the clip; ties and floors are common."""
        style = self.random.integers(3)
        logits = self.random.normal(0, (0.5, 2.0, 8.0)[style], (64, n, self.size))
        if self.random.integers(2):
            logits = np.round(logits)
        return np.maximum(-CLIP, logits - logits.max(axis=2, keepdims=True, initial=-np.inf) + CLIP)

    def newcomers(self) -> Iterator[np.ndarray]:
        """[BLOCK, 1, V] contexts that may come: towards each token, against it, indifferent, and at random."""
        for token in range(self.size):
            towards = np.where(np.arange(self.size) == token, CLIP, -CLIP)
            yield np.broadcast_to(towards, (BLOCK, 1, self.size))
            yield np.broadcast_to(-towards, (BLOCK, 1, self.size))
        yield np.full((BLOCK, 1, self.size), CLIP)
        yield self.contexts_at_random()

    def contexts_at_random(self) -> np.ndarray:
        return np.concatenate([self.contexts(1) for _ in range(BLOCK // 64)])

    def neighbours(self) -> Iterator[np.ndarray]:
        """Batches that differ by at most `group` contexts: all removals, extreme and random additions, exchanges."""
        removals = [kept for gone in range(1, min(self.group, self.n) + 1) for kept in self.kept(gone)]
        if self.relation == "add_remove":
            for kept in removals:
                yield self.values[:, kept]
            for coming in self.newcomers():
                yield np.concatenate([self.values] + [coming] * self.group, axis=1)
            for kept in self.some(removals):
                room = self.group - (self.n - len(kept))
                yield np.concatenate([self.values[:, kept], *(self.contexts_at_random() for _ in range(room))], axis=1)
        else:
            for coming in self.newcomers():
                for kept in self.some(removals):
                    yield np.concatenate([self.values[:, kept]] + [coming] * (self.n - len(kept)), axis=1)
            for kept in removals:
                others = [self.contexts_at_random() for _ in range(self.n - len(kept))]
                yield np.concatenate([self.values[:, kept], *others], axis=1)

    def kept(self, gone: int) -> Iterator[list[int]]:
        for places in itertools.combinations(range(self.n), gone):
            yield [i for i in range(self.n) if i not in places]

    def some(self, items: list[list[int]], most: int = 3) -> list[list[int]]:
        return [items[i] for i in self.random.permutation(len(items))[:most]]

    def log_probabilities(self, values: np.ndarray) -> np.ndarray:
        """[BLOCK, V] log softmax of the component-wise median; the median of nothing is 0."""
        n = values.shape[1]
        ordered = np.sort(values, axis=1)
        middle = (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2 if n else np.zeros((BLOCK, self.size))
        scaled = middle / self.temperature
        return scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)

    def costs(self, bounds: Bounds) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Theorem 1, rise and fall of every token: [BLOCK, V] each."""
        box = [b[:, None, :] for b in bounds(self.values, self.relation, clip=CLIP, group=self.group)]
        tokens = np.broadcast_to(np.arange(self.size), (BLOCK, self.size))
        return theorem1_cost(*box, tokens, self.temperature), *exact_cost(*box, tokens, self.temperature)

    def check(self, bounds: Bounds = median_bounds) -> None:
        """Every neighbour stays within the costs, and added contexts reach them."""
        theorem1, rise, fall = self.costs(bounds)
        assert (np.maximum(rise, fall) <= theorem1 + SLACK).all()
        here = self.log_probabilities(self.values)
        most, least = np.zeros_like(here), np.zeros_like(here)
        for neighbour in self.neighbours():
            change = self.log_probabilities(neighbour) - here
            np.maximum(most, change, out=most)
            np.minimum(least, change, out=least)
        assert (most <= rise + SLACK).all()
        assert (-least <= fall + SLACK).all()
        if self.relation == "add_remove":
            np.testing.assert_allclose(most, rise, rtol=0, atol=1e-10)
            np.testing.assert_allclose(-least, fall, rtol=0, atol=1e-10)


blocks = st.builds(
    Block,
    n=st.integers(0, 9),
    size=st.integers(2, 8),
    group=st.integers(1, 3),
    relation=st.sampled_from(["add_remove", "replace"]),
    temperature=st.sampled_from([0.5, 1.0, 2.5]),
    seed=st.integers(0, 2**32 - 1),
)


def test_no_neighbour_exceeds_the_costs_and_the_exact_cost_is_attained() -> None:
    seen: list[tuple[int, str, int]] = []

    @given(blocks)
    @settings(max_examples=EXAMPLES)
    def check(block: Block) -> None:
        seen.append((block.n, block.relation, block.group))
        block.check()

    check()
    assert len(seen) * BLOCK >= 100_000
    assert {n for n, _, _ in seen} == set(range(10))
    assert {kind[1:] for kind in seen} == set(itertools.product(["add_remove", "replace"], (1, 2, 3)))


def paper_bounds_for_even_n(values: np.ndarray, relation: str, *, clip: float, group: int):  # type: ignore[no-untyped-def]
    """What Theorem 1 says of a replaced context when n is even: the two middle values."""
    assert (relation, group, values.shape[1] % 2) == ("replace", 1, 0)
    return median_bounds(values, "add_remove", clip=clip, definition="theorem1")


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_suite_finds_that_theorem_1_fails_for_replaced_contexts_and_even_n(n: int) -> None:
    block = Block(n, size=4, group=1, relation="replace", temperature=1.0, seed=n)
    block.check()
    with pytest.raises(AssertionError):
        block.check(paper_bounds_for_even_n)
    theorem1, _, _ = block.costs(paper_bounds_for_even_n)
    exceeded = np.zeros_like(theorem1, dtype=bool)
    here = block.log_probabilities(block.values)
    for neighbour in block.neighbours():
        exceeded |= np.abs(block.log_probabilities(neighbour) - here) > theorem1 + SLACK
    assert exceeded.any(axis=1).mean() > 0.5  # most batches, not a few


@pytest.mark.parametrize("n", [1, 3, 5, 9])
@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_theorem_1_as_the_paper_defines_it_holds_for_odd_n(n: int, relation: str) -> None:
    block = Block(n, size=4, group=1, relation=relation, temperature=1.0, seed=n)
    paper = [b[:, None, :] for b in median_bounds(block.values, relation, clip=CLIP, definition="theorem1")]
    tokens = np.broadcast_to(np.arange(4), (BLOCK, 4))
    theorem1 = theorem1_cost(*paper, tokens, 1.0)
    here = block.log_probabilities(block.values)
    for neighbour in block.neighbours():
        assert (np.abs(block.log_probabilities(neighbour) - here) <= theorem1 + SLACK).all()
