import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpaudit.generation.sampling import OsEntropy, RandomBytes, SeededStream, sample
from dpaudit.runs.committed_seed import UNIFORM_BYTES, as_uniform


class Fixed:
    """A source whose next uniform is a given number."""

    def __init__(self, number: float) -> None:
        self._bits = min(int(number * 2 ** (8 * UNIFORM_BYTES)), 2 ** (8 * UNIFORM_BYTES) - 1)

    def take(self, size: int) -> bytes:
        return self._bits.to_bytes(size, "big")


def test_draws_follow_the_softmax() -> None:
    aggregate = np.array([1.0, -1.0, 0.5, 1.0, -4.0], dtype=np.float32)
    for temperature in (0.5, 2.0):
        source = SeededStream(1, 0)
        counts = np.bincount(
            [sample(aggregate, temperature, source).index for _ in range(10_000)], minlength=5
        )
        weights = np.exp(aggregate.astype(float) / temperature)
        assert stats.chisquare(counts, 10_000 * weights / weights.sum()).pvalue > 1e-3


def exact_share(aggregate: list[float], index: int) -> float:
    return math.exp(aggregate[index]) / math.fsum(math.exp(value) for value in aggregate)


def test_unlikely_tokens_have_their_exact_share_of_the_line() -> None:
    """The unlikely token is first on the line, so uniforms near its probability decide on it."""
    aggregate = [0.0] * 1000 + [-60.0]
    share = exact_share(aggregate, 1000)
    values = np.array(aggregate)
    assert share < 1e-28
    assert sample(values, 1.0, Fixed(share * (1 - 1e-12))).index == 1000
    assert sample(values, 1.0, Fixed(share * (1 + 1e-12))).index != 1000


# Multiples of 1/64, so that no two values become equal by rounding.
@given(
    st.lists(st.integers(-3200, 3200).map(lambda value: value / 64), min_size=1, max_size=40),
    st.data(),
)
def test_a_uniform_inside_a_tokens_interval_draws_it_with_its_log_probability(
    values: list[float], data: st.DataObject
) -> None:
    order = sorted(range(len(values)), key=lambda index: values[index])
    place = data.draw(st.integers(0, len(values) - 1))
    below = math.fsum(exact_share(values, index) for index in order[:place])
    share = exact_share(values, order[place])
    draw = sample(np.array(values, dtype=np.float32), 1.0, Fixed(below + share / 2))
    assert draw.index == order[place]
    assert math.isclose(draw.log_probability, math.log(share), rel_tol=1e-12, abs_tol=1e-12)


def test_the_ends_of_the_line_draw_a_token() -> None:
    for number in (0.0, 1.0):
        assert sample(np.zeros(3, dtype=np.float32), 1.0, Fixed(number)).index in range(3)


def test_streams_of_seed_and_batch_are_apart_and_repeatable() -> None:
    def first(seed: int, batch: int) -> bytes:
        return SeededStream(seed, batch).take(32)

    assert first(1, 2) == first(1, 2)
    assert len({first(1, 23), first(12, 3), first(1, 2), first(2, 1)}) == 4
    stream = SeededStream(0, 0)
    assert stream.take(32) != stream.take(32)


def test_uniforms_are_uniform_and_small_ones_keep_their_digits() -> None:
    sources: tuple[RandomBytes, ...] = (OsEntropy(), SeededStream(5, 0))
    for source in sources:
        numbers = [as_uniform(source.take(UNIFORM_BYTES)) for _ in range(2000)]
        assert 0 < min(numbers) <= max(numbers) <= 1
        assert stats.kstest(numbers, "uniform").pvalue > 1e-6
    assert as_uniform(Fixed(0.0).take(UNIFORM_BYTES)) == 2.0**-257
    assert math.isclose(as_uniform(Fixed(1e-40).take(UNIFORM_BYTES)), 1e-40, rel_tol=1e-15)
