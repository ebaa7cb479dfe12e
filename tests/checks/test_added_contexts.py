"""neighbors.addition joins a context to the central values: against sorting all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpaudit.mechanisms import Median, central_order_statistics

CLIP = 3.0


@given(st.integers(0, 9), st.integers(1, 3), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=400)
def test_median_with_a_context_is_that_of_all_contexts_sorted(n: int, width: int, seed: int, ties: bool) -> None:
    random = np.random.default_rng(seed)
    values = random.uniform(-CLIP, CLIP, (n, 6))
    newcomer: NDArray[np.float64] = random.uniform(-CLIP, CLIP, 6)
    if ties:
        values, newcomer = np.round(values), np.round(newcomer)
    newcomer[:2] = -CLIP, CLIP
    joined = np.sort(np.vstack([values, newcomer]), axis=0)
    right = (joined[n // 2] + joined[(n + 1) // 2]) / 2
    found = Median().joined({"central": central_order_statistics(values, CLIP, width)}, newcomer)
    np.testing.assert_array_equal(found, right)
