"""The control-group test keeps its level on honest texts, and planted faults that break it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.accounting.coins import ABSTAIN, ShownCoins
from dpaudit.accounting.control_test import Statistic, control_test
from dpaudit.disclosing.matching import Matches, shared_runs

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
#: Wire stories that two newspapers print, each with changes of its own, and stories of one alone.
WIRE, OWN, TEXTS = 40, 60, 60
LENGTH, LEVEL = 8, 0.05
#: Splits of honest texts, and of those that a fault rejects far more often.
RUNS, FAULTY = 100, 30


class World(NamedTuple):
    """Records and honest texts, which know nothing of any split."""

    records: list[str]
    texts: list[str]


def world() -> World:
    """Write texts that quote the wire, often the same story, and some records of their own."""
    random = np.random.default_rng(46)

    def story(words: int) -> str:
        return " ".join(f"w{word}" for word in random.integers(5_000, size=words))

    wire = [story(12) for _ in range(WIRE)]
    twins = [f"{story(5)} {passage} {story(5)}" for passage in wire for _ in range(2)]
    own = [story(20) for _ in range(OWN)]
    quoted = [*(random.choice(wire, 30)), *(random.choice(own[:12], TEXTS - 30))]
    return World(twins + own, [f"{story(6)} {text} {story(6)}" for text in quoted])


WORLD = world()
UNITS = [[record] for record in WORLD.records]


def named(texts: Sequence[str], records: Sequence[str]) -> Matches:
    units, order = [[record] for record in records], np.arange(len(texts))
    return shared_runs(texts, units).matches(order)


#: Of all, whatever the split.
RUNS_OF_ALL = shared_runs(WORLD.texts, UNITS)
NAMED = named(WORLD.texts, WORLD.records)


def p_of(matches: Matches, shown: Flags, *, top: tuple[int, ...] = ()) -> float:
    """Return the p-value of "shown" guesses, by unique runs or the first units by 3-grams."""
    scores = matches.grams if top else matches.lengths
    guesses = np.where(scores > 0, 1, ABSTAIN)
    by = Statistic("", guesses, scores, top or (LENGTH,), "top" if top else "at least")
    coins = ShownCoins(np.full(len(shown), 0.5))
    return control_test(coins, shown.astype(np.int64), [by], draws=199).p


def as_specified(shown: Flags) -> float:
    return p_of(NAMED, shown)


def held_out_twins_dropped(shown: Flags) -> float:
    """Drop held-out records that are near copies of shown ones, after the split."""
    twin = np.arange(len(shown)) ^ 1
    kept = shown | ~shown[np.where(twin < 2 * WIRE, twin, 0)] | (np.arange(len(shown)) >= 2 * WIRE)
    records = [record for record, keep in zip(WORLD.records, kept, strict=True) if keep]
    return p_of(named(WORLD.texts, records), shown[kept])


def texts_chosen_by_matches(shown: Flags) -> float:
    """Release a text only if it matches no held-out record."""
    runs = RUNS_OF_ALL
    bad = set(runs.text[~shown[runs.unit] & (runs.length >= LENGTH)].tolist())
    texts = [text for at, text in enumerate(WORLD.texts) if at not in bad]
    return p_of(named(texts, WORLD.records), shown)


def unique_among_the_shown(shown: Flags) -> float:
    """Compare a record with those of its own list alone."""
    lengths = np.zeros(len(shown), np.int64)
    for part in (shown, ~shown):
        records = [record for record, keep in zip(WORLD.records, part, strict=True) if keep]
        lengths[part] = named(WORLD.texts, records).lengths
    # A story that stands in both lists is credited to the shown one.
    twin = np.arange(2 * WIRE) ^ 1
    lengths[: 2 * WIRE][~shown[: 2 * WIRE] & shown[twin]] = 0
    empty = np.zeros_like(lengths)
    return p_of(Matches(lengths, empty, empty, empty), shown)


def texts_counted(shown: Flags) -> float:
    """Count texts whose nearest record was shown as if each had a coin of its own."""
    runs = RUNS_OF_ALL
    nearest = runs.unit[runs.length >= LENGTH]
    guessed = np.full(len(nearest), LENGTH)
    return p_of(Matches(guessed, guessed, guessed, guessed), shown[nearest])


def ties_in_file_order(shown: Flags) -> float:
    """Read the list of shown records first, and let the first of equals count."""
    order = np.argsort(~shown, kind="stable")
    matches = named(WORLD.texts, [WORLD.records[at] for at in order])
    return p_of(matches, shown[order], top=(1, 2, 4, 8))


def alarms(p: Callable[[Flags], float], runs: int) -> float:
    random = np.random.default_rng(0)
    shown = random.random((runs, len(WORLD.records))) < 0.5
    return float(np.mean([p(row) <= LEVEL for row in shown]))


def test_honest_texts_are_rejected_at_the_level() -> None:
    assert alarms(as_specified, RUNS) <= LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / RUNS)


@pytest.mark.parametrize(
    "fault",
    [
        held_out_twins_dropped,
        texts_chosen_by_matches,
        unique_among_the_shown,
        texts_counted,
        ties_in_file_order,
    ],
)
def test_faults_break_the_level(fault: Callable[[Flags], float]) -> None:
    assert alarms(fault, FAULTY) > LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / FAULTY)
