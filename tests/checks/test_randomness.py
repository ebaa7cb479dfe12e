"""The independence test: its bets by definition, its alarms on honest runs, and what it detects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.auditing.checks.draws import Draw, DrawnSteps
from dpaudit.auditing.checks.randomness import (
    LAGS,
    PLACES,
    STRETCH,
    TEXTS,
    VIEWS,
    IndependenceTest,
    _Intervals,
    _log_ratios,
    _shares,
)

#: The random numbers of a run: [batches, draws].
Uniforms = NDArray[np.float64]


def distribution(random: np.random.Generator, size: int, scale: float = 2.0) -> NDArray[np.float64]:
    weights = np.exp(random.normal(0, scale, size))
    return weights / weights.sum()


def draw_of(chances: NDArray[np.float64], u: float) -> Draw:
    """By the order of ids, what every order is here."""
    ends = np.cumsum(chances)
    token = min(int(np.searchsorted(ends, u)), len(chances) - 1)
    low = float(ends[token] - chances[token])
    return Draw(token, low, low, low, float(chances[token]))


def evidence_of(
    uniforms: Uniforms, size: int = 60, seed: int = 0, scale: float = 2.0
) -> IndependenceTest:
    """Texts of one distribution a place, as those of one prompt are, nearly."""
    random = np.random.default_rng([seed, 9])
    places = [distribution(random, size, scale) for _ in range(uniforms.shape[1])]
    test = IndependenceTest(*uniforms.shape)
    for batch, row in enumerate(uniforms):
        own = [place * np.exp(random.normal(0, 0.5, size)) for place in places]
        test.take(
            batch,
            [draw_of(p / p.sum(), u) for p, u in zip(own, row.tolist(), strict=True)],
            [len(row)],
        )
    return test


def independent(random: np.random.Generator, batches: int, steps: int) -> Uniforms:
    return random.random((batches, steps))


def shared(random: np.random.Generator, batches: int, steps: int) -> Uniforms:
    return np.repeat(random.random((1, steps)), batches, axis=0)


def shared_by_two(random: np.random.Generator, batches: int, steps: int) -> Uniforms:
    uniforms = random.random((batches, steps))
    uniforms[-2] = uniforms[1]
    return uniforms


def offset(random: np.random.Generator, batches: int, steps: int) -> Uniforms:
    stream = random.random(steps + 3 * batches)
    return np.array([stream[3 * batch :][:steps] for batch in range(batches)])


def antithetic(random: np.random.Generator, batches: int, steps: int) -> Uniforms:
    uniforms = random.random((batches, steps))
    uniforms[1::2] = 1 - uniforms[: batches - 1 : 2]
    return uniforms


def antithetic_along(random: np.random.Generator, batches: int, steps: int) -> Uniforms:
    return np.ascontiguousarray(antithetic(random, steps, batches).T)


def stratified(random: np.random.Generator, batches: int, steps: int) -> Uniforms:
    strata = np.array([random.permutation(batches) for _ in range(steps)]).T
    return (strata + random.random((batches, steps))) / batches


def stratified_along(random: np.random.Generator, batches: int, steps: int) -> Uniforms:
    return np.ascontiguousarray(stratified(random, steps, batches).T)


def golden(random: np.random.Generator, batches: int, steps: int) -> Uniforms:
    """The additive recurrence of the golden ratio across batches."""
    return (random.random(steps) + np.arange(batches)[:, None] * (5**0.5 - 1) / 2) % 1


@pytest.mark.parametrize(
    "dependent",
    [
        shared,
        shared_by_two,
        offset,
        antithetic,
        antithetic_along,
        stratified,
        stratified_along,
        golden,
    ],
)
@pytest.mark.parametrize(("batches", "steps"), [(20, 40), (12, 100)])
def test_dependent_draws_are_found(
    dependent: Callable[..., Uniforms], batches: int, steps: int
) -> None:
    for seed in range(3):
        found = evidence_of(
            dependent(np.random.default_rng(seed), batches, steps), seed=seed
        ).dependences()
        assert found, dependent.__name__


def test_the_batch_that_repeats_another_is_named() -> None:
    found = evidence_of(shared_by_two(np.random.default_rng(0), 20, 40)).dependences()
    assert (found[0].hypothesis.code, found[0].batch) == ("randomness.earlier-text", 18)


@pytest.mark.parametrize("runs", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_honest_draws_pass(runs: int) -> None:
    """Below 5e-5 of honest runs alarm: not one is to be expected."""
    for (batches, steps), size in itertools.product([(1, 30), (8, 10), (3, 70)], [2, 60]):
        for seed in range(runs // 6):
            random = np.random.default_rng([seed, batches, size])
            assert not evidence_of(
                independent(random, batches, steps), size=size, seed=seed
            ).dependences()


@pytest.mark.parametrize("kind", ["texts", "distances", "across", "along"])
def test_no_bet_expects_more_than_one(kind: str) -> None:
    """The premise of Markov's inequality: after any past, the next ratio's mean is at most 1."""
    random = np.random.default_rng(4)
    for chances in (
        distribution(random, 2),
        distribution(random, 30),
        distribution(random, 300, 8.0),
    ):
        expected = 0.0
        # Earlier draws that could be anything.
        earlier = [
            [draw_of(distribution(random, 20), u) for u in random.random(number).tolist()]
            for number in (4, 1, 6)
        ]
        for token, chance in enumerate(chances.tolist()):
            low = float(chances[:token].sum())
            last = Draw(token, low, low, 1 - low - chance, chance)
            test = IndependenceTest(5, 6)
            for number, text in enumerate(earlier):
                test.take(number, text, [len(text)])
            # The last draw of the last text: the bets on the ones before it are a factor of their
            # own.
            found = []
            for text in ([*earlier[0][:2], last], earlier[0][:2]):
                intervals = _Intervals.of(text)
                before = test._before
                filled = {strata: kept.copy() for strata, kept in test._filled.items()}
                found.append(
                    {
                        "texts": test._bets_on_texts,
                        "distances": test._bets_on_distances,
                        "across": test._bets_across,
                        "along": test._bets_along,
                    }[kind](intervals)
                )
                test._before, test._filled = before, filled
            expected += chance * np.exp(found[0])
            without = np.exp(found[1])
        assert (expected <= without * (1 + 1e-6)).all(), expected / without


def pairs(past: list[Draw], now: list[Draw], distance: int) -> Iterator[tuple[Draw | None, Draw]]:
    for at, draw in enumerate(now):
        yield (past[at - distance] if 0 <= at - distance + len(past) < len(past) else None), draw


def ratio(view: str, before: Draw, draw: Draw) -> float:
    """|A and B| / (|A| |B|) by its definition."""
    if view == "the same tokens":
        return (before.token == draw.token) / draw.chance
    low, mine = {
        "id": (before.by_id, draw.by_id),
        "ascending score": (before.ascending, draw.ascending),
        "descending score": (before.descending, draw.descending),
    }[view.split(" by ")[1]]
    if view.startswith("1 - u"):
        low = 1 - low - before.chance
    common = min(low + before.chance, mine + draw.chance) - max(low, mine)
    return max(common, 0.0) / (before.chance * draw.chance)


def test_bets_are_those_of_the_definitions() -> None:
    random = np.random.default_rng(2)

    def texts(*lengths: int) -> list[list[Draw]]:
        made = []
        for length in lengths:
            places = random.random((length, 3)).tolist()
            made.append(
                [Draw(int(random.integers(4)), *(0.7 * u for u in row), 0.3) for row in places]
            )
        return made

    made = texts(5, 3, 4)
    test = IndependenceTest(3, 5)
    for number, text in enumerate(made[:2]):
        test.take(number, text, [len(text)])
    for place, view in enumerate(VIEWS):
        by_text = [
            np.prod([(1 + ratio(view, a, b)) / 2 for a, b in zip(past, made[2], strict=False)])
            for past in made[:2]
        ]
        found = test._bets_on_texts(_Intervals.of(made[2]))
        assert found[place] == pytest.approx(np.log(np.mean(by_text)))
        row = [*made[0], *made[1], *made[2]]
        by_distance = [
            np.prod(
                [
                    (1 + ratio(view, row[at - lag], row[at])) / 2 if at >= lag else 1.0
                    for at in range(8, 12)
                ]
            )
            for lag in range(1, 8 + STRETCH)
        ]
        before = test._before
        found = test._bets_on_distances(_Intervals.of(made[2]))
        test._before = before
        assert found[place] == pytest.approx(np.log(np.mean(by_distance)))


def test_strata_that_had_their_draw_are_bet_against() -> None:
    draws = _Intervals.of([Draw(0, 0.1, 0.1, 0.1, 0.2), Draw(0, 0.6, 0.6, 0.6, 0.4)])
    shares = _shares(draws, 4)
    np.testing.assert_allclose(shares[0], [[0.75, 0.25, 0, 0], [0, 0, 0.375, 0.625]])
    filled = np.zeros((3, 2, 4))
    filled[:, 1] = shares[:, 0]
    free = np.array([0.25, 0.75, 1, 1])
    np.testing.assert_allclose(
        _log_ratios(filled, shares)[0], [0, np.log(0.02 + 0.98 * 4 / free.sum())], atol=1e-12
    )


@pytest.mark.parametrize("grid", [None, 1.0])
def test_intervals_are_those_of_the_three_orders(grid: float | None) -> None:
    random = np.random.default_rng(1)
    values = random.normal(0, 3, 40).astype(np.float32)
    values = values if grid is None else np.rint(values / grid) * np.float32(grid)
    chances = np.exp(values.astype(np.float64) / 1.5)
    chances /= chances.sum()
    orders = [np.arange(40), np.argsort(values, kind="stable"), np.argsort(-values, kind="stable")]
    for token in range(40):
        step = DrawnSteps.alone(values, 1.5, token)
        assert step is not None
        found = Draw(*step.draws(np.array([token + 100]))[0])
        assert found.token == token + 100
        assert found.chance == pytest.approx(chances[token])
        for low, order in zip(found[1:4], orders, strict=True):
            first = int(np.flatnonzero(order == token)[0])
            assert low == pytest.approx(chances[order[:first]].sum(), abs=1e-12)


def test_memory_and_comparisons_are_bounded() -> None:
    random = np.random.default_rng(0)
    test = IndependenceTest(TEXTS + 40, 6)
    chances = distribution(random, 5)
    uniforms = random.random((TEXTS + 40, 6))
    for batch, row in enumerate(uniforms.tolist()):
        test.take(batch, [draw_of(chances, u) for u in row], [4, 2])
    assert test._kept.token.shape == (PLACES, TEXTS)
    assert len(test._before.token) == LAGS
    assert (test.texts, test.draws) == (2 * len(uniforms), 6 * len(uniforms))
    assert STRETCH < PLACES


def test_draws_too_improbable_for_float64_are_no_evidence() -> None:
    test = IndependenceTest(3, 40)
    draws = [Draw(1, 0.5, 0.5, 0.5, 1e-17)] * 40
    for batch in range(3):
        test.take(batch, draws, [40])
    assert not test.dependences()
    assert test.repeated == float("inf")
