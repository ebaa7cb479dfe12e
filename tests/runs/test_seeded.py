"""Many seeds at once give what the libraries' own generators give, one at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dpaudit.auditing.checks.seeds import KNOWN, MOST_SEEDED, _of_batch, _of_draws
from dpaudit.runs.known_keys import KNOWN_SEEDS
from dpaudit.runs.seeded import doubles_of, modern_words

#: Of one generator at a time, as the libraries document them.
ONE = {
    "numpy.random.seed": lambda seed: np.random.RandomState(seed).random_sample(MOST_SEEDED),
    "numpy.random.default_rng": lambda seed: np.random.default_rng(seed).random(MOST_SEEDED),
    "random.seed": lambda seed: [
        each.random() for each in [random.Random(seed)] for _ in range(MOST_SEEDED)
    ],
}


@pytest.mark.parametrize("batch", [0, 17, 63, 1000, 1 << 24])
def test_numbers_of_a_batch_are_those_of_the_generators(batch):
    for (name, seed), plus, listed, child in zip(KNOWN, *_of_batch(batch, KNOWN), strict=True):
        assert plus.tolist() == list(ONE[name](seed + batch))
        if name != "numpy.random.default_rng":
            assert np.isnan([listed, child]).all()
            continue
        spawned = np.random.SeedSequence(seed, spawn_key=(batch,))
        for found, source in ((listed, [seed, batch]), (child, spawned)):
            assert found.tolist() == np.random.default_rng(source).random(MOST_SEEDED).tolist()


def test_first_numbers_of_draws_are_those_of_the_generators():
    found = _of_draws(KNOWN)
    for row in range(0, len(KNOWN), 7):
        name, seed = KNOWN[row]
        assert found[row].tolist() == [ONE[name](seed + draw)[0] for draw in range(MOST_SEEDED)]


def test_words_of_hard_seeds_are_those_of_the_generator():
    seeds = [0, 1, 1 << 31, (1 << 32) - 1, *KNOWN_SEEDS, *range(0, 1 << 32, 7919 << 10)]
    words = modern_words(np.array(seeds, dtype=np.int64)[:, None], 5)
    for seed, found in zip(seeds, words, strict=True):
        assert found.tolist() == np.random.PCG64(seed).random_raw(5).tolist()
        assert (doubles_of(found) == np.random.default_rng(seed).random(5)).all()
    for beyond in (-1, 1 << 32):
        with pytest.raises(OverflowError):
            modern_words(np.array([[beyond]], dtype=np.int64), 1)
