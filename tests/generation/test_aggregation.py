import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dpaudit.accounting.mean import ROUNDING
from generation.aggregation import Floats, clip_logits, mean, top_tokens

logit_arrays = arrays.arrays(np.float32, (3, 5), elements=st.floats(-1e6, 1e6, width=32))


@given(logit_arrays, st.floats(0.125, 100, width=32))
def test_clipped_logits_lie_in_the_clip_and_reach_it(logits: Floats, clip: float) -> None:
    clipped = clip_logits(logits, clip)
    assert clipped.dtype == np.float32
    assert (clipped.max(axis=1) == np.float32(clip)).all()
    assert (clipped >= -np.float32(clip)).all()


def test_clipping_by_hand() -> None:
    logits = np.array([[10.0, 9.0, 1.0, -np.inf]], dtype=np.float32)
    assert clip_logits(logits, 3.0).tolist() == [[3.0, 2.0, -3.0, -3.0]]


@pytest.mark.parametrize("row", [[0.0, np.nan], [0.0, np.inf], [-np.inf, -np.inf], [np.inf, np.nan]])
def test_logits_that_are_no_numbers_are_refused(row: list[float]) -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        clip_logits(np.array([[0.0, 1.0], row], dtype=np.float32), 1.0)


def test_no_contexts_stay_none_and_have_mean_zero() -> None:
    nothing = np.zeros((0, 4), dtype=np.float32)
    assert clip_logits(nothing, 1.0).shape == (0, 4)
    assert mean(nothing, 8.0).tolist() == [0.0] * 4


def test_the_mean_divides_by_the_public_number() -> None:
    values = np.array([[1.0, -1.0], [2.0, -1.0]], dtype=np.float32)
    result = mean(values, 4.0)
    assert result.dtype == np.float64
    assert result.tolist() == [0.75, -0.5]


def test_top_tokens_ascend_and_ties_go_to_lower_ids() -> None:
    assert top_tokens(np.array([1.0, 5.0, 1.0, 7.0], dtype=np.float32), 3).tolist() == [0, 1, 3]


@pytest.mark.parametrize("total", [1, 2**10, 2**16])
def test_the_room_for_rounding_covers_sums_of_many_contexts(total: int) -> None:
    """One context less moves the recorded mean by no more than its sensitivity, with any logits."""
    random = np.random.default_rng(total)
    values = random.uniform(-9, 9, (total, 4)).astype(np.float32)
    values[0] = 9
    moved = np.abs(mean(values, 8.0) - mean(values[1:], 8.0))
    assert (moved <= 9 / 8 * (1 + ROUNDING)).all()
