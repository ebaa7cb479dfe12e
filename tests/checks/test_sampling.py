"""The sampling test: how often it alarms on honest runs, and what it detects."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.auditing.checks.alternatives import FAMILIES, GREEDY, Family
from dpaudit.auditing.checks.draws import NO_TOKENS, DrawnSteps
from dpaudit.auditing.checks.sampling import (
    BINS,
    FALSE_ALARMS,
    MIXED,
    THRESHOLD,
    Detectable,
    RunSampling,
    SamplingTest,
)
from dpaudit.mechanisms import Spans

TEMPERATURE = 1.5
#: Steps that are looked at together.
AT_ONCE = 30
Draw = Callable[[NDArray[np.float64], np.random.Generator], int]


def softmax(values: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    weights = np.exp((values - values.max()) / temperature)
    return weights / weights.sum()


def at(temperature: float) -> Draw:
    return lambda values, random: int(random.choice(len(values), p=softmax(values, temperature)))


def among(k: int) -> Draw:
    """Private top-k: the k largest entries of the aggregate only."""

    def draw(values: NDArray[np.float64], random: np.random.Generator) -> int:
        kept = np.argsort(-values, kind="stable")[:k]
        return int(kept[random.choice(k, p=softmax(values[kept], TEMPERATURE))])

    return draw


def nucleus(share: float) -> Draw:
    def draw(values: NDArray[np.float64], random: np.random.Generator) -> int:
        order = np.argsort(-values, kind="stable")
        size = int(np.searchsorted(np.cumsum(softmax(values, TEMPERATURE)[order]), share)) + 1
        return int(order[random.choice(size, p=softmax(values[order[:size]], TEMPERATURE))])

    return draw


@lru_cache(maxsize=1)  # several samplers draw from the same ones
def aggregates(steps: int, size: int, seed: int) -> NDArray[np.float64]:
    """Aggregates like a model's medians: few tokens stand out; most are at the clip's floor."""
    random = np.random.default_rng(seed)
    values = np.full((steps, size), -9.0)
    likely = min(size, 400)
    for row in values:
        places = random.choice(size, likely, replace=False)
        row[places] = np.clip(9.0 - np.sort(random.gamma(2.0, 3.0, likely)), -9.0, 9.0)
    values.flags.writeable = False
    return values


def drawn(row: NDArray[np.floating], token: int, before: list[int] | None = None) -> DrawnSteps:
    step = DrawnSteps.alone(
        row, TEMPERATURE, token, np.array(before, dtype=np.int64) if before else NO_TOKENS
    )
    assert step is not None
    return step


def sampled(draw: Draw, steps: int, size: int, seed: int) -> SamplingTest:
    random, rows = np.random.default_rng([seed, 1]), aggregates(steps, size, seed)
    tokens = np.array([draw(row, random) for row in rows])
    test = SamplingTest()
    for some in np.array_split(np.arange(steps), -(-steps // AT_ONCE)):
        shifts = np.arange(len(some)) * size
        before = [tokens[:step] + shift for step, shift in zip(some, shifts, strict=True)]
        found = DrawnSteps.of(
            rows[some].ravel(),
            Spans([size] * len(some)),
            TEMPERATURE,
            tokens[some] + shifts,
            np.concatenate(before),
        )
        assert found is not None
        test.add(found, [bytes([seed % 256, step % 256]) for step in some.tolist()])
    return test


def run_of(*batches: SamplingTest) -> RunSampling:
    run = RunSampling(TEMPERATURE, len(batches))
    for number, batch in enumerate(batches):
        run.merge(number, batch)
    return run


def test_a_run_of_the_demos_size_betrays_another_sampler() -> None:
    for draw, named in (
        (at(1.0), ("sampling.temperature", None)),
        (at(2.5), ("sampling.temperature", None)),
        (among(1), ("sampling.greedy", None)),
        (among(50), ("sampling.top-k", 50)),
        (nucleus(0.9), ("sampling.top-p", 0.9)),
    ):
        alarms = run_of(sampled(draw, steps=300, size=49_152, seed=0)).alarms()
        code, setting = named
        found = [alarm.alternative for alarm in alarms if alarm.alternative.code == code]
        assert any(setting in (None, each.values.get("setting")) for each in found)


@pytest.mark.parametrize("runs", [100, pytest.param(660, marks=pytest.mark.slow)])
def test_honest_runs_pass(runs: int) -> None:
    """At most FALSE_ALARMS of honest runs alarm.

    Of all 1,980 none is to be expected; two would be a finding.
    """
    for size in (2, 30, 2000):
        alarmed = sum(
            bool(run_of(sampled(at(TEMPERATURE), steps=25, size=size, seed=seed)).alarms())
            for seed in range(runs)
        )
        assert alarmed <= 1
        assert FALSE_ALARMS * 660 < 0.1


@pytest.mark.parametrize(("runs", "most"), [(20, 1), pytest.param(100, 5, marks=pytest.mark.slow)])
def test_the_stated_power_is_the_power(runs: int, most: int) -> None:
    """Of runs at the smallest temperature error that is said to be detected, 99 of 100 alarm."""
    low = run_of(sampled(at(TEMPERATURE), steps=120, size=300, seed=0)).detectable.lower
    assert low is not None
    missed = sum(
        not run_of(sampled(at(low), steps=120, size=300, seed=seed)).alarms()
        for seed in range(runs)
    )
    assert missed <= most


def test_ties_and_a_token_at_the_floor() -> None:
    test = SamplingTest()
    for token in range(8):
        test.add(drawn(np.zeros(8), token), [bytes([token])])
    run = run_of(test)
    assert run.steps == 8
    assert not run.alarms()
    assert THRESHOLD > 12


def chances(
    family: Family, place: int, values: NDArray[np.float64], before: list[int]
) -> NDArray[np.float64]:
    """An alternative's whole distribution, by its definition."""
    setting, name, here = (
        float(family.settings[place]),
        type(family).__name__,
        softmax(values, TEMPERATURE),
    )
    order = np.argsort(-here, kind="stable")
    if name == "Temperatures":
        return softmax(values, setting * TEMPERATURE)
    if name in ("Repetition", "Presence", "Frequency"):
        other = values.copy()
        for token in set(before):
            score, times = values[token], before.count(token)
            other[token] = {
                "Repetition": score / setting if score > 0 else score * setting,
                "Presence": score - setting,
                "Frequency": score - setting * times,
            }[name]
        return softmax(other, TEMPERATURE)
    if name == "Typical":
        distance = np.abs(-np.log(here) - -(here * np.log(here)).sum()).round(9)
        order = np.argsort(distance, kind="stable")
        last = order[min(int(np.searchsorted(np.cumsum(here[order]), setting)), len(here) - 1)]
        kept = distance <= distance[last]
    elif name == "MinP":
        kept = here >= setting * here.max() * (1 - 1e-12)
    else:
        size = (
            int(setting)
            if name == "TopK"
            else int(np.searchsorted(np.cumsum(here[order]), setting)) + 1
        )
        kept = np.zeros(len(here), dtype=bool)
        kept[order[:size]] = True
    return np.where(kept, here, 0.0) / here[kept].sum()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
@pytest.mark.parametrize(("size", "dtype"), [(1, "f8"), (2, "f4"), (40, "f4"), (900, "f8")])
def test_ratios_are_those_of_the_definitions(family: Family, size: int, dtype: str) -> None:
    """Every alternative's law over all tokens, written out.

    No ratio's mean exceeds 1 under the declared law.
    """
    random = np.random.default_rng(5)
    before = random.integers(size, size=12).tolist()
    # Penalties on all tokens alike leave the rest that is set aside, and push the others down to
    # it.
    allowed = 1e-8 if size > 12 else 1e-3
    assert len(family.names(1.0)) == len(family.settings)
    for row in aggregates(3, size, seed=3).astype(dtype):
        values = row.astype(np.float64)
        if size > 2:
            values[:4] = row[:4] = 9.0  # equal ones among the most probable
        here = softmax(values, TEMPERATURE)
        tokens = [
            0,
            *before,
            *random.choice(size, 5, p=here).tolist(),
            int(values.argmax()),
            int(values.argmin()),
        ]
        found = [family.ratios(drawn(row, token, before)) for token in tokens]
        for place in range(len(family.settings)):
            other = chances(family, place, values, before)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.log(other) - np.log(here)
                moments = np.where(other > 0, other * ratio, 0.0)
                square = np.where(other > 0, other * ratio**2, 0.0).sum()
            np.testing.assert_allclose(
                [ratios.found[place, 0] for ratios in found],
                ratio[tokens],
                rtol=1e-8,
                atol=allowed,
            )
            means, variances = (
                [getattr(ratios, name)[place, 0] for ratios in found]
                for name in ("mean", "variance")
            )
            np.testing.assert_allclose(means, moments.sum(), rtol=1e-8, atol=allowed)
            np.testing.assert_allclose(
                variances, square - moments.sum() ** 2, rtol=1e-6, atol=10 * allowed
            )


@pytest.mark.parametrize("size", [3, 24])
def test_no_ratio_expects_more_than_one(size: int) -> None:
    """The premise of Markov's inequality, over all tokens that could have been drawn."""
    for row in aggregates(4, size, seed=8):
        here = softmax(row, TEMPERATURE)
        ratios = [
            np.concatenate(
                [family.ratios(drawn(row, token, [0, 1, 1])).found[:, 0] for family in FAMILIES]
            )
            for token in range(size)
        ]
        assert (here @ np.exp(ratios) <= 1 + 1e-9).all()
        assert (here @ np.exp(ratios) >= 1 - 1e-9).mean() > 0.9


def test_penalties_at_scores_that_leave_nothing_to_others() -> None:
    """A token in the text has all probability.

    To push it down is no evidence beyond float64's rounding.
    """
    step = drawn(np.array([1e9, 1e9, -1e9]), 0, [0, 1])
    found = np.concatenate([family.ratios(step).found for family in FAMILIES])
    assert not np.isnan(found).any()
    assert (found < 1).all()


def test_a_tenth_of_the_steps_is_a_mixture() -> None:
    test = SamplingTest()
    row = np.array([2.0, 1.0, -3.0])
    for number, token in enumerate([0, 0, 2]):
        test.add(drawn(row, token), [bytes([number])])
    here = softmax(row, TEMPERATURE)
    greedy = sum(len(family.settings) for family in FAMILIES[:1])
    inside = np.log(1 - MIXED + MIXED / here[0])
    all_steps, a_tenth = np.split(test.evidence()[:-1], 2)
    assert a_tenth[greedy] == pytest.approx(2 * inside + np.log(1 - MIXED))
    assert all_steps[greedy] == -np.inf
    chance = (1 - MIXED) * here[0] + MIXED
    expected, _ = np.split(test._sums[2 * len(all_steps) :], 2)
    assert expected[-1] / 3 == pytest.approx(chance * inside + (1 - chance) * np.log(1 - MIXED))


def test_transforms_that_all_lie_at_one_end_are_evidence_by_massarts_bound() -> None:
    test = SamplingTest()
    for number in range(20):
        # a token of probability 1: its places are uniform
        test.add(drawn(np.array([30.0, -30.0]), 0), [bytes([number])])
    assert test.steps == test._counts.sum() == 20
    test._counts[:] = [20] + [0] * (BINS - 1)
    assert test._transform_evidence() == pytest.approx(2 * 20 * (1 - 1 / BINS) ** 2)


def test_merged_tests_are_the_test_of_all_steps() -> None:
    whole, parts = SamplingTest(), [SamplingTest() for _ in range(3)]
    random = np.random.default_rng(0)
    for number, row in enumerate(aggregates(30, 200, seed=1)):
        token = at(TEMPERATURE)(row, random)
        for test in (whole, parts[number // 10]):
            test.add(drawn(row, token), [bytes([number])])
    merged = SamplingTest()
    for part in parts:
        merged.merge(part)
    assert merged.steps == whole.steps == 30
    np.testing.assert_allclose(merged._sums, whole._sums, rtol=1e-12)
    np.testing.assert_array_equal(merged._counts, whole._counts)
    assert run_of(merged).detectable == run_of(whole).detectable


@pytest.mark.parametrize(("batches", "greedy"), [(10, (7,)), (40, (3, 12, 13, 25, 39))])
def test_greedy_batches_among_honest_ones_are_named(batches: int, greedy: tuple[int, ...]) -> None:
    tests = [
        sampled(among(1) if number in greedy else at(TEMPERATURE), steps=30, size=300, seed=number)
        for number in range(batches)
    ]
    alarm = run_of(*tests).alarms()[0]
    assert (alarm.alternative, alarm.steps, alarm.batch in greedy) == (GREEDY, 30, True)
    assert alarm.outcome.code == "other-distribution-in-batches"


def test_what_is_shown_of_single_batches_holds_for_the_least_of_them() -> None:
    long, short = (sampled(at(TEMPERATURE), steps=steps, size=300, seed=1) for steps in (200, 2))
    both = run_of(long, short)
    assert both.detectable.top_k is not None
    assert both.detectable_in_each == Detectable(
        lower=None, higher=None, top_k=None, tenth_greedy=False
    )
    assert run_of(long).detectable_in_each is None


def test_batches_without_evidence_and_batches_that_were_not_read_cost_nothing() -> None:
    run = RunSampling(TEMPERATURE, 3)
    run.merge(0, SamplingTest())
    assert run.steps == 0
    assert not run.alarms()


def test_steps_that_are_no_numbers_are_left_to_other_checks() -> None:
    for value in [np.nan, np.inf, -np.inf]:
        assert DrawnSteps.alone(np.array([0.0, value, 1.0]), TEMPERATURE, 0) is None


def test_batches_share_the_transforms_rate_of_false_alarms() -> None:
    odd, even, run = SamplingTest(), SamplingTest(), RunSampling(TEMPERATURE, 100)
    odd.steps, odd._counts[0] = 9, 9
    even.steps, even._counts[:] = 4 * BINS, 4
    run.merge(0, odd)
    run.merge(1, even)
    assert odd.evidence()[-1] > THRESHOLD
    assert not run.alarms()
