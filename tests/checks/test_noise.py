"""Recorded noise: honest noise rarely alarms, whenever one looks, and half of it surely does."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr

from dpaudit.auditing.checks import noise
from dpaudit.auditing.checks.noise import (
    ALONG,
    FEWEST,
    OWN,
    TURNED,
    NoiseEvidence,
    NoiseTally,
    Repeats,
    _not_declared,
)


def tally(quantiles: np.ndarray) -> NoiseTally:
    found = NoiseTally()
    found.take(quantiles)
    return found


def laplace(random: np.random.Generator, size: int, scale: float) -> np.ndarray:
    """Quantiles in the Laplace distribution of scale 1 of noise that is `scale` as large."""
    values = random.laplace(scale=scale, size=size)
    tails = np.exp(-np.abs(values)) / 2
    return np.where(values < 0, tails, 1 - tails)


def test_half_the_noise_is_seen_in_as_few_numbers_as_are_enough() -> None:
    random = np.random.default_rng(1)
    seen = [bool(tally(laplace(random, FEWEST, 0.5)).alarm) for _ in range(1000)]
    assert np.mean(seen) > 0.98


def test_honest_noise_never_alarms_whenever_one_looks() -> None:
    random = np.random.default_rng(2)
    for _ in range(30):
        found = NoiseTally()
        for each in random.random(300):
            found.take(np.array([each]))
            assert not found.alarm


@pytest.mark.parametrize("wrong", [lambda u: 0.5 + u / 2, lambda u: u**2, lambda u: np.round(u)])
def test_noise_of_another_distribution_alarms(wrong: Callable[[np.ndarray], np.ndarray]) -> None:
    alarm = tally(wrong(np.random.default_rng(3).random(800))).alarm
    assert alarm is not None
    assert alarm.code == "other-distribution"


def sampled(*quantiles: np.ndarray, width: int = 1) -> Repeats:
    found = Repeats(width)
    for each in quantiles:
        found.take(each)
    return found


def test_a_bound_on_repetitions_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk over numbers of distinct values tells the repetitions in draws of 64 values."""
    bits, most = 6, 40
    distinct = np.zeros(most + 2)
    distinct[0] = 1.0
    monkeypatch.setattr(noise, "VALUE_BITS", bits)
    for draws in range(1, most + 1):
        before = distinct.copy()
        distinct = before * np.arange(most + 2) / 2**bits
        distinct[1:] += before[:-1] * (1 - np.arange(most + 1) / 2**bits)
        for repeated in range(1, draws):
            exact = float(distinct[: draws - repeated + 1].sum())
            keys = np.concatenate([np.arange(draws - repeated), np.zeros(repeated)]).astype(
                np.uint64
            )
            monkeypatch.setattr(noise, "ALARM", exact * (1 - 1e-9))
            assert not Repeats(1, kept=[keys]).alarm
    assert not Repeats(1, kept=[np.arange(10**6, dtype=np.uint64)]).alarm


def test_single_precision_repeats_itself_and_shared_noise_does_so_more() -> None:
    random = np.random.default_rng(4)
    drawn = random.random(20_000, dtype=np.float32).astype(np.float64)
    assert len(drawn) - np.unique(drawn).size > 3
    assert not sampled(drawn).alarm
    for again in (drawn[:4000], 1 - drawn[:4000]):  # with the other sign
        alarm = sampled(drawn, again).alarm
        assert alarm is not None
        assert (alarm.code, alarm.values["of"]) == ("repeated-numbers", 24_000)
    assert not sampled(drawn[:1000], drawn[:1]).alarm
    pairs = sampled(drawn[:1000], drawn[:8], width=2).alarm
    assert pairs is not None
    assert pairs.code == "repeated-pairs"


def test_what_is_kept_of_a_long_run_is_bounded_and_still_tells() -> None:
    random = np.random.default_rng(5)
    first = random.random((40, 5000))
    honest, shared = (
        sampled(*first, *then, width=2) for then in (random.random((40, 5000)), first)
    )
    assert not honest.alarm
    assert shared.alarm
    parts = [sampled(*first[part], width=2) for part in (slice(3), slice(3, 30))]
    parts[0].merge(parts[1])
    whole = sampled(*first[:30], width=2)
    assert parts[0].halvings == whole.halvings > 0
    assert sorted(np.concatenate(parts[0].kept)) == sorted(np.concatenate(whole.kept))
    assert sum(map(len, whole.kept)) <= noise.MOST_KEPT


def test_honest_noise_alarms_in_no_view() -> None:
    """No pattern appears by chance among a thousand or so steps of few numbers, or of one."""
    random = np.random.default_rng(6)
    for size in (1, 2, 9):
        found, before = NoiseEvidence(), None
        for _ in range(3000 // size):
            before = found.take("noise", random.random(size), before)
        assert len(found.tallies) == (2 if size == 1 else 3)
        assert not any(tally.alarm for tally in found.tallies.values())
        assert not any(repeats.alarm for repeats in found.repeats.values())
        for tally in found.tallies.values():
            assert abs(tally.size / tally.number - 1) < 5 / math.sqrt(tally.number)


def test_each_view_tells_its_pattern() -> None:
    random = np.random.default_rng(7)
    common, drifting, shrunk = NoiseEvidence(), NoiseEvidence(), NoiseEvidence()
    before: dict[str, np.ndarray | None] = dict.fromkeys(
        ("common", "drifting", "thresholds", "distances")
    )
    last = random.normal(size=3)
    for step in range(400):
        one = 0.95 * random.normal() + math.sqrt(1 - 0.95**2) * random.normal(size=8)
        before["common"] = common.take("sums", ndtr(one), before["common"])
        last = 0.8 * last + 0.6 * random.normal(size=3)
        before["drifting"] = drifting.take("sums", ndtr(last), before["drifting"])
        before["distances"] = shrunk.take("distances", random.random(1), before["distances"])
        if step % 4 == 0:
            before["thresholds"] = shrunk.take(
                "thresholds", laplace(random, 1, 0.3), before["thresholds"]
            )
    told = [
        {kind for kind, tally in facts.tallies.items() if tally.alarm}
        for facts in (common, drifting, shrunk)
    ]
    assert ("sums", TURNED) in told[0] and ("sums", OWN) not in told[0]
    assert ("sums", ALONG) in told[1] and ("sums", TURNED) not in told[1]
    assert {kind for kind, _ in told[2]} == {"thresholds"}


def test_what_tests_say_is_held_against_their_chances() -> None:
    """Chances bound the tests' evidence.

    By Ville's inequality honest tests seldom have evidence; tests that mostly say the likelier
    outcome have it soon.
    """
    random = np.random.default_rng(8)
    honest, agreeing, never = NoiseEvidence(), NoiseEvidence(), NoiseEvidence()
    for chance in random.random(1000):
        honest.take_outcome(random.random() < chance, chance)
        agreeing.take_outcome(
            (chance > 0.5) if random.random() < 0.5 else random.random() < chance, chance
        )
        never.take_outcome(chance > 0.5 and random.random() < chance, chance)
    assert not list(_not_declared(honest))
    for facts in (agreeing, never):
        assert next(_not_declared(facts)).code == "tests-agree-too-often"
    assert honest.outcomes[0].tolist() != honest.outcomes[1].tolist()
    assert np.allclose(honest.outcomes[0], honest.outcomes[1:].sum(axis=0))
