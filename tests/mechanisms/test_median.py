"""The median's bounds as the paper has them, how tight the exact ones are, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.accounting import theorem1_cost
from dpaudit.mechanisms import (
    Median,
    Relation,
    bounds_from_central,
    central_order_statistics,
    median_bounds,
    median_of,
)
from dpaudit.mechanisms.order_statistics import are_central

CLIP, SLACK = 3.0, 1e-12
Floats = NDArray[np.float64]


def neighbours(values: Floats, relation: Relation) -> Iterator[Floats]:
    """[B, m, V] batches less, plus or with another context, which is one of the extreme ones."""
    size, eye = values.shape[-1], np.eye(values.shape[-1])
    removed = [np.delete(values, i, axis=1) for i in range(values.shape[1])]
    if relation == "add_remove":
        yield from removed
    for kept in removed if relation == "replace" else [values]:
        for row in (
            np.full(size, -CLIP),
            np.full(size, CLIP),
            *CLIP * (2 * eye - 1),
            *CLIP * (1 - 2 * eye),
        ):
            yield np.concatenate([kept, np.broadcast_to(row, (len(values), 1, size))], axis=1)


def batches(n: int, seed: int) -> Floats:
    """[300, n, 4] with many ties and floors."""
    random = np.random.default_rng(seed)
    logits = np.where(random.random((300, n, 4)) < 0.5, random.normal(0, 2, (300, n, 4)), -CLIP)
    return np.clip(
        np.where(random.random((300, 1, 1)) < 0.5, np.round(logits), logits), -CLIP, CLIP
    )


def log_probabilities(values: Floats) -> Floats:
    median = median_of(central_order_statistics(values, CLIP))
    found: Floats = median - np.logaddexp.reduce(median, axis=1, keepdims=True)
    return found


def exceeded(values: Floats, relation: Relation, bounds: tuple[Floats, ...]) -> NDArray[np.bool_]:
    """Where a neighbour's log-ratio is beyond Theorem 1's cost: bool [B, V]."""
    tokens = np.broadcast_to(np.arange(4), (len(values), 4))
    costs = theorem1_cost(*[bound[:, None, :] for bound in bounds], tokens, 1.0)  # type: ignore[call-arg, misc, arg-type]
    here, beyond = log_probabilities(values), np.zeros(costs.shape, dtype=np.bool_)
    for neighbour in neighbours(values, relation):
        beyond |= np.abs(log_probabilities(neighbour) - here) > costs + SLACK
    return beyond


def test_theorem_1_as_the_paper_defines_it_fails_for_replaced_contexts_and_even_n_only() -> None:
    for n in (2, 4, 8):
        values = np.maximum(batches(n, n), -CLIP)
        between = median_bounds(values, "add_remove", clip=CLIP, definition="theorem1")
        assert not exceeded(values, "add_remove", between).any()
        # many batches, not a few
        assert exceeded(values, "replace", between).any(axis=1).mean() > 0.3
        assert not exceeded(values, "replace", median_bounds(values, "replace", clip=CLIP)).any()
        with pytest.raises(ValueError, match="replaced context when"):
            median_bounds(values, "replace", clip=CLIP, definition="theorem1")
    for n, relation in itertools.product((1, 3, 5, 9), ("add_remove", "replace")):
        values = batches(n, n)
        paper = median_bounds(values, relation, clip=CLIP, definition="theorem1")
        assert not exceeded(values, relation, paper).any()
        tight = median_bounds(values, relation, clip=CLIP)
        assert all(((paper[0] <= tight[0]).all(), (paper[2] >= tight[2]).all()))


def test_every_bound_is_reached_by_some_neighbour() -> None:
    """Groups come, go or are exchanged for the smallest or the largest there can be."""
    random = np.random.default_rng(0)
    for n, group in itertools.product(range(8), (1, 2, 3)):
        values = np.clip(np.round(random.normal(0, 2, (n, 40))), -CLIP, CLIP)
        for relation, gone in (("add_remove", 0), ("replace", group)):
            if gone > n:
                continue
            lower, center, upper = median_bounds(values, relation, clip=CLIP, group=group)
            kept = [
                np.delete(values, places, axis=0)
                for places in itertools.combinations(range(n), gone)
            ]
            for end, extreme in ((lower, -CLIP), (upper, CLIP)):
                coming = np.full((group, 40), extreme)
                found = [
                    median_of(central_order_statistics(np.concatenate([rest, coming]), CLIP))
                    for rest in kept
                ]
                reached = np.min(found, axis=0) if extreme < 0 else np.max(found, axis=0)
                np.testing.assert_array_equal(reached, end)
            np.testing.assert_array_equal(center, np.median(values, axis=0) if n else np.zeros(40))


def test_midpoints_are_rounded_as_the_mechanism_rounds_them() -> None:
    """The float32 bound is the very number that a neighbour samples from, not its float64 value."""
    values = np.array([[-0.1], [0.7], [1.3]], dtype=np.float32)
    lower, center, upper = median_bounds(values, "add_remove", clip=CLIP)
    assert {lower.dtype, center.dtype, upper.dtype} == {np.dtype(np.float32)}
    assert (lower[0], upper[0]) == ((values[0] + values[1]) / 2, (values[1] + values[2]) / 2)


def test_what_bounds_nothing_is_refused() -> None:
    for value in (np.nan, np.inf, CLIP * 1.01, -CLIP * 1.01):
        with pytest.raises(ValueError, match="clip them first"):
            median_bounds(np.array([[0.0, value], [0.0, 0.0]]), clip=CLIP)
    for clip in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match=r"^clip must be"):
            central_order_statistics(np.zeros((2, 2)), clip)
    narrow: tuple[tuple[Relation, int], ...] = (
        ("replace", 2),
        ("add_remove", 4),
        ("add_remove", 0),
    )
    for relation, group in narrow:
        with pytest.raises(ValueError, match="larger width"):
            bounds_from_central(np.zeros((4, 2)), relation, group)
    with pytest.raises(ValueError, match="covers one context"):
        bounds_from_central(np.zeros((5, 2)), "add_remove", 2, definition="theorem1")


def test_marks_below_are_counted_beyond_a_byte() -> None:
    """A column with 256 marks too many is refused: counts of more contexts need more bits."""
    random, contexts = np.random.default_rng(0), 640
    values = random.uniform(-CLIP, CLIP, (contexts, 3)).astype(np.float32)
    arrays = Median().step(values, CLIP, 2)
    assert Median().sides_problem(arrays, None, contexts, CLIP) is None
    marks = np.unpackbits(arrays["sides"], axis=0)
    marks[np.flatnonzero(marks[:, 1] == 0)[:256], 1] = 1
    forged = {**arrays, "sides": np.packbits(marks, axis=0)}
    problem = Median().sides_problem(forged, None, contexts, CLIP)
    assert problem is not None and problem.code == "mechanisms.contexts-below"


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 8, 300])
def test_only_central_order_statistics_are_central(n: int) -> None:
    """Ties, and ranks that sentinels hold, included; any other value in any place is found."""
    random = np.random.default_rng(n)
    values = random.integers(-3, 4, (n, 40)).astype(np.float64)
    for width in (1, 2, 3):
        central = central_order_statistics(values, CLIP, width)
        assert are_central(central, values, CLIP)
        for row in range(len(central)):
            for other in (np.nan, *np.arange(-3.5, 4, 0.5)):
                wrong = central.copy()
                wrong[row, 7] = other
                assert are_central(wrong, values, CLIP) == (other == central[row, 7])
