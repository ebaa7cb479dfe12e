"""A model that was trained on all records: no coin can tell, and the level holds."""

from __future__ import annotations

import numpy as np
import pytest

from dpaudit.accounting.coins import ABSTAIN, SplitCoins
from dpaudit.accounting.control_test import TOP_UNITS, Statistic, control_test
from dpaudit.disclosing.matching import shared_runs

RECORDS, SHOWN, COPIES, SPLITS = 300, 100, 60, 600


@pytest.mark.slow
def test_copies_of_all_records_are_named_and_never_blamed_on_the_split() -> None:
    random = np.random.default_rng(11)
    records = [
        (" ".join(f"w{word}" for word in random.integers(0, 4000, 20)),) for _ in range(RECORDS)
    ]
    texts = [records[place][0] for place in random.permutation(RECORDS)[:COPIES]]
    found = shared_runs(texts, records).matches(random.permutation(COPIES))
    runs, grams = (np.where(each >= 0, 1, ABSTAIN) for each in (found.where, found.grams_where))
    assert (found.lengths >= 16).sum() == COPIES
    coins = SplitCoins(np.zeros(RECORDS, dtype=np.int64), np.array([SHOWN]))
    statistics = (
        Statistic("runs", runs, found.lengths, (6, 8, 10, 12, 16), "at least"),
        Statistic("grams", grams, found.grams, TOP_UNITS, "top"),
    )
    tails = []
    for split in range(SPLITS):
        values = random.permutation(np.arange(RECORDS) < SHOWN).astype(np.int64)
        tested = control_test(coins, values, statistics, 199, split)
        tails.append((tested.p, tested.p_lower))
    rejected = (np.array(tails) <= 0.05).mean(axis=0)
    # the level holds in both tails, and no split but by chance is blamed: there is no power
    assert (rejected <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / SPLITS)).all()
    assert (rejected >= 0.005).all()
