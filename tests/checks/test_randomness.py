"""The independence test: its bets by definition, its alarms on honest runs, and what it detects."""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.auditing.checks import randomness
from dpaudit.auditing.checks.draws import Draw, DrawnSteps
from dpaudit.auditing.checks.randomness import (
    _TOGETHER,
    LAGS,
    PLACES,
    STRETCH,
    TEXTS,
    VIEWS,
    IndependenceTest,
    _Intervals,
    _Strata,
    _strata,
    _Texts,
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
        test = IndependenceTest(5, 6)
        for number, text in enumerate(earlier):
            test.take(number, text, [len(text)])
        test._bet()
        for token, chance in enumerate(chances.tolist()):
            low = float(chances[:token].sum())
            last = Draw(token, low, low, 1 - low - chance, chance)
            # The last draw of the last text: the bets on the ones before it are a factor of their
            # own.
            found = []
            for text in ([*earlier[0][:2], last], earlier[0][:2]):
                now = copy.copy(test)
                now._across = copy.deepcopy(test._across)
                bets = {
                    "texts": now._bets_on_texts,
                    "distances": now._bets_on_distances,
                    "across": now._bets_across,
                    "along": now._bets_along,
                }[kind]
                found.append(bets(_Texts([text]))[0])
            expected += chance * np.exp(found[0])
            without = np.exp(found[1])
        assert (expected <= without * (1 + 1e-6)).all(), expected / without


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


def logs_of_texts(texts: list[list[Draw]]) -> Iterator[list[float]]:
    """Yield the log of the mean, over earlier texts, of products over places."""
    for number, text in enumerate(texts[1:], start=1):
        yield [
            log_mean(
                math.prod((1 + ratio(view, *both)) / 2 for both in zip(past, text, strict=False))
                for past in texts[max(0, number - randomness.TEXTS) : number]
            )
            for view in VIEWS
        ]


def logs_of_stretches(texts: list[list[Draw]]) -> Iterator[list[float]]:
    """Yield the log of the mean, over distances, of products over a stretch's draws."""
    row = [draw for text in texts for draw in text]
    for text, end in zip(texts, itertools.accumulate(map(len, texts)), strict=True):
        for first in range(end - len(text), end, STRETCH):
            stretch = range(first, min(first + STRETCH, end))
            yield [
                log_mean(
                    math.prod(
                        (1 + ratio(view, row[at - lag], row[at])) / 2 for at in stretch if at >= lag
                    )
                    for lag in range(1, min(randomness.LAGS, first + STRETCH - 1) + 1)
                )
                for view in VIEWS
            ]


def log_mean(bets: Iterable[float]) -> float:
    return math.log(np.mean(list(bets)))


class Line:
    """The strata of one order that draws in a row had, by definition."""

    def __init__(self, strata: int) -> None:
        self.filled = [0.0] * strata

    def log_bet(self, low: float, chance: float) -> float:
        """The log of the bet that a draw avoids them; then it has its own, too."""
        strata = len(self.filled)
        shares = [
            max(0.0, min(low + chance, (n + 1) / strata) - max(low, n / strata)) / chance
            for n in range(strata)
        ]
        free = [max(1 - filled, 0.05) for filled in self.filled]
        staked = strata * sum(map(operator.mul, free, shares)) / sum(free)
        self.filled = list(map(operator.add, self.filled, shares))
        return math.log(0.02 + 0.98 * staked)


def logs_across(texts: list[list[Draw]], numbers: Iterable[int]) -> Iterator[list[float]]:
    """Yield the logs of bets that draws avoid the strata of earlier texts at their places."""
    lines: dict[tuple[int, ...], Line] = {}
    for number, text in enumerate(texts):
        found = []
        for strata, order in itertools.product(numbers, range(3)):
            if number % strata == 0:
                lines |= {(strata, order, place): Line(strata) for place in range(PLACES)}
            found.append(
                sum(
                    lines[strata, order, place].log_bet(draw[1 + order], draw.chance)
                    for place, draw in enumerate(text[:PLACES])
                )
            )
        yield found


def logs_along(texts: list[list[Draw]], numbers: Iterable[int]) -> Iterator[list[float]]:
    """Yield the logs of bets that draws avoid the strata of earlier draws of their text."""
    for text in texts:
        found = []
        for strata, order in itertools.product(numbers, range(3)):
            lines = [Line(strata) for _ in range(0, len(text), strata)]
            found.append(
                sum(
                    lines[at // strata].log_bet(draw[1 + order], draw.chance)
                    for at, draw in enumerate(text)
                )
            )
        yield found


def test_bets_are_those_of_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of texts of all lengths, more than are taken in together or kept, and two in a batch."""
    monkeypatch.setattr(randomness, "TEXTS", 8)
    monkeypatch.setattr(randomness, "LAGS", 50)
    random = np.random.default_rng(2)
    lengths = [*random.permutation([1, 2, 3, 5] * 8).tolist(), PLACES + 7, 4, 40, 2]
    assert len(lengths) > _TOGETHER

    def draw(ties: bool) -> Draw:
        by_id, ascending, descending = (0.7 * random.random(3)).tolist()
        token = float(random.integers(4))
        return Draw(token, by_id, ascending, descending if ties else 0.7 - ascending, 0.3)

    # Equal scores from some text on.
    texts = [[draw(number > 20) for _ in range(length)] for number, length in enumerate(lengths)]
    batches, longest = len(texts) // 2, max(lengths)
    test = IndependenceTest(batches, longest)
    for batch in range(batches):
        pair = texts[2 * batch : 2 * batch + 2]
        test.take(batch, [*pair[0], *pair[1]], [len(text) for text in pair])
    stretches = [-(-length // STRETCH) for length in lengths]
    test._bet()
    for found, logs, batch_of in (
        (test._same_places, logs_of_texts(texts), np.arange(1, len(texts)) // 2),
        (test._at_distance, logs_of_stretches(texts), np.arange(len(texts)).repeat(stretches) // 2),
        (test._even_across, logs_across(texts, _strata(batches)), np.arange(len(texts)) // 2),
        (
            test._even_along,
            logs_along(texts, _strata(longest, at_most=longest)),
            np.arange(len(texts)) // 2,
        ),
    ):
        bets = np.array(list(logs))
        stake = 1.0 if found in (test._even_across, test._even_along) else 0.5
        numbers = np.arange(1, len(bets) + 1)[:, None]
        some = np.log((numbers + np.exp(bets)) / (numbers + 1))
        assert found.every == pytest.approx(np.log(1 - stake + stake * np.exp(bets)).sum(axis=0))
        assert found.some == pytest.approx(some.sum(axis=0))
        assert found.batch.tolist() == batch_of[bets.argmax(axis=0)].tolist()


def test_strata_that_had_their_draw_are_bet_against() -> None:
    strata = _Strata([4], places=1)
    first, second = (_Intervals.of([Draw(0, low, low, low, 0.4)]) for low in (0.1, 0.6))
    np.testing.assert_allclose(strata.bets(first), np.zeros((1, 1, 3)), atol=1e-12)
    # What is left: of the first stratum 1 - 0.15 / 0.4, of the second nothing but the floor.
    free = [0.625, 0.375, 1, 1]
    np.testing.assert_allclose(strata.bets(second), np.log(0.02 + 0.98 * 4 / sum(free)))


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
    assert len(test._waiting) < _TOGETHER
    assert (test.texts, test.draws) == (2 * len(uniforms), 6 * len(uniforms))
    assert STRETCH < PLACES


def test_draws_too_improbable_for_float64_are_no_evidence() -> None:
    test = IndependenceTest(3, 40)
    draws = [Draw(1, 0.5, 0.5, 0.5, 1e-17)] * 40
    for batch in range(3):
        test.take(batch, draws, [40])
    assert not test.dependences()
    assert test.repeated == float("inf")
