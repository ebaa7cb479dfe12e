"""The release-level profile of one round: its limits, its order, and what other accountants say."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from dpaudit.accounting.allocation import MOST_BATCHES, allocated, allocated_cost
from dpaudit.accounting.composition import privacy_profile
from dpaudit.accounting.profiles import Profile, epsilon_of_profile
from dpaudit.accounting.renyi import Doubles
from tests.accounting.toys import at_losses

LEAST = 1e-6


@cache
def batch_profile(eta: float, steps: int) -> Profile:
    found = privacy_profile(eta, steps, LEAST)
    assert found is not None
    return found


@cache
def release_profile(eta: float, steps: int, batches: int, generated: int) -> Doubles:
    return at_losses(allocated(batch_profile(eta, steps), batches, generated, LEAST))


def test_more_batches_never_cost_more_and_fewer_texts_neither() -> None:
    by_batches = [release_profile(1.0, 3, batches, 2) for batches in (2, 3, 5, 9)]
    by_texts = [release_profile(1.0, 3, 9, generated) for generated in (9, 5, 2, 1, 0)]
    for more, fewer in [*pairwise(by_batches), *pairwise(by_texts)]:
        assert (fewer <= more * (1 + 1e-4) + 1e-9).all()


def test_one_batch_is_its_own_profile() -> None:
    profile = batch_profile(1.0, 3)
    assert allocated(profile, 1, 1, LEAST) is profile


def test_more_batches_than_powers_reach_cost_what_so_many_do() -> None:
    profile = batch_profile(1.0, 3)
    for most, generated in ((MOST_BATCHES, 2), (MOST_BATCHES, MOST_BATCHES)):
        found, more = (allocated(profile, each, generated, LEAST) for each in (most, 3 * most))
        assert found.step == more.step and (found.deltas == more.deltas).all()
    everything = allocated(profile, 3 * MOST_BATCHES, 3 * MOST_BATCHES, LEAST)
    assert (at_losses(everything) == at_losses(found)).all()


def test_a_profile_that_never_becomes_small_ends_within_reach_of_exponentials() -> None:
    found = allocated(Profile(0.5, np.full(3000, 0.3)), 4, 4, LEAST)
    assert len(found.deltas) * found.step < 50
    assert (found.deltas <= 0.3 * (1 + 1e-9)).all()


#: eta, tokens, delta, B, and an epsilon just below and just above what finer grids tend to
#: (test_release_oracles.py).
KNOWN = [
    (0.125, 64, 1e-5, 38, 0.2970, 0.2974),
    (0.125, 64, 1e-5, 4, 1.0290, 1.0299),
    (0.1875, 367, 108000**-1.1, 28, 5.915, 5.93),  # beyond what a coarse grid shows
]


def test_known_releases_cost_what_finer_grids_say() -> None:
    for eta, tokens, delta, batches, least, most in KNOWN:
        found = privacy_profile(eta, tokens, delta)
        assert found is not None
        epsilon = epsilon_of_profile(allocated(found, batches, batches, delta), delta)
        assert least <= epsilon <= most


def test_allocated_ex_post_cost_is_that_of_one_batch_where_there_is_one() -> None:
    costs = np.array([[0.7, 0.4]])
    assert allocated_cost(costs, 1) == pytest.approx(0.7)
    assert allocated_cost(costs, 14) < 0.1
    assert math.isinf(allocated_cost(np.array([[0.7, math.inf]]), 3))
    for wrong in (np.array([[-0.1, 0.2]]), np.array([[math.nan, 0.2]]), np.ones((4, 2))):
        with pytest.raises(ValueError, match=r"^costs "):
            allocated_cost(wrong, 3)
