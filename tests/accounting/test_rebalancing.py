"""Rebalancing: Laplace noise on record counts, against actual changes and loss distributions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.accounting import (
    batches_by_counts,
    exponential_mechanism_epsilon,
    kept_by_counts,
    noise_covers,
    noise_reach,
    noise_tail,
    rebalancing_epsilon,
    rebalancing_events,
    rebalancing_scale,
)
from dpaudit.mechanisms import Relation


def test_noise_of_scale_one_over_epsilon_costs_epsilon() -> None:
    assert rebalancing_epsilon(10.0, "add_remove") == pytest.approx(0.1)
    assert rebalancing_epsilon(10.0, "replace") == pytest.approx(0.2)
    assert rebalancing_epsilon(10.0, "add_remove", records=3) == pytest.approx(0.3)
    assert rebalancing_scale(0.1, "replace", records=3) == pytest.approx(60)


@given(
    epsilon=st.floats(1e-6, 1e3),
    relation=st.sampled_from(["add_remove", "replace"]),
    records=st.integers(1, 50),
)
def test_epsilon_and_scale_are_inverse_and_rounded_up(
    epsilon: float, relation: Relation, records: int
) -> None:
    scale = rebalancing_scale(epsilon, relation, records)
    assert epsilon == pytest.approx(rebalancing_epsilon(scale, relation, records), rel=1e-12)
    events = rebalancing_events(epsilon, relation)
    assert sum(events) == pytest.approx(epsilon, rel=1e-15)


def test_events_cover_every_change_of_the_counts() -> None:
    """However records leave and enter three clusters, exact losses are below the events'."""
    for records, relation in itertools.product([1, 2], ["add_remove", "replace"]):
        scale, delta = 2.0, 0.01
        epsilon = rebalancing_epsilon(scale, relation, records)
        claimed = exponential_mechanism_epsilon(
            [], [], delta, laplace=rebalancing_events(epsilon, relation)
        ).epsilon
        costs = []
        for places in itertools.product(
            range(3), repeat=records * (2 if relation == "replace" else 1)
        ):
            shifts = [0, 0, 0]
            for number, place in enumerate(places):
                shifts[place] += 1 if number < records else -1
            moved = [abs(shift) for shift in shifts if shift]
            losses = pld.identity(value_discretization_interval=1e-3)
            for shift in moved:
                losses = losses.compose(
                    pld.from_laplace_mechanism(scale, shift, value_discretization_interval=1e-3)
                )
            costs.append(losses.get_epsilon_for_delta(delta))
        assert max(costs) <= claimed + 1e-5  # theirs are rounded up too
        assert max(costs) == pytest.approx(claimed, abs=0.01)  # and one of them needs it all


def test_no_rebalancing_is_no_event() -> None:
    assert rebalancing_events(0.0, "replace") == ()


def test_refusals() -> None:
    for bad in [0.0, -1.0, math.nan, math.inf]:
        with pytest.raises(ValueError, match="scale"):
            rebalancing_epsilon(bad, "add_remove")
        with pytest.raises(ValueError, match="epsilon"):
            rebalancing_scale(bad, "add_remove")
        with pytest.raises(ValueError, match="epsilon"):
            rebalancing_events(bad or -0.5, "add_remove")
        with pytest.raises(ValueError, match="records"):
            rebalancing_epsilon(1.0, "replace", 0)


def test_costs_are_never_below_the_exact_quotient() -> None:
    for scale in np.random.default_rng(0).uniform(0.01, 100, 500).tolist():
        for relation, sensitivity in (("add_remove", 1), ("replace", 2)):
            assert Fraction(rebalancing_epsilon(scale, relation, 3)) >= Fraction(
                3 * sensitivity
            ) / Fraction(scale)  # type: ignore[arg-type]


@given(
    epsilon=st.floats(1e-6, 1e3),
    relation=st.sampled_from(["add_remove", "replace"]),
    records=st.integers(1, 50),
)
def test_the_scale_of_an_epsilon_covers_it_and_hardly_any_less(
    epsilon: float, relation: Relation, records: int
) -> None:
    scale = rebalancing_scale(epsilon, relation, records)
    assert noise_covers(scale, epsilon, relation, records)
    assert not noise_covers(scale, epsilon * (1 - 1e-12), relation, records)
    assert not noise_covers(scale, epsilon, relation, records + 1)


def test_covering_noise_is_refused_like_its_epsilon() -> None:
    with pytest.raises(ValueError, match="scale"):
        noise_covers(0.0, 1.0, "add_remove")
    with pytest.raises(ValueError, match="epsilon"):
        noise_covers(1.0, math.inf, "add_remove")


counts = st.integers(1, 8).flatmap(
    lambda k: st.lists(
        st.lists(st.integers(-50, 500), min_size=k, max_size=k), min_size=1, max_size=4
    )
)


@given(counts=counts, data=st.data())
def test_the_highest_counts_are_kept_and_the_lower_index_of_equal_ones(
    counts: list[list[int]], data: st.DataObject
) -> None:
    keep = data.draw(st.integers(1, len(counts[0])))
    kept = kept_by_counts(np.array(counts), keep)
    for row, chosen in zip(counts, kept.tolist(), strict=True):
        assert chosen == sorted(
            sorted(range(len(row)), key=lambda center: (-row[center], center))[:keep]
        )


@given(counts=counts, records_per_batch=st.floats(0.5, 200), most=st.integers(1, 60))
def test_batches_share_out_a_labels_records(
    counts: list[list[int]], records_per_batch: float, most: int
) -> None:
    noisy = np.array(counts)
    kept = kept_by_counts(noisy, min(2, noisy.shape[1]))
    for row, chosen, batches in zip(
        counts,
        kept.tolist(),
        batches_by_counts(noisy, kept, records_per_batch, most).tolist(),
        strict=True,
    ):
        positive = [max(row[center], 0) for center in chosen]
        for share, count in zip(positive, batches, strict=True):
            assert 1 <= count <= most
            records = Fraction(max(sum(row), 0) * share, max(sum(positive), 1))
            exact = records / Fraction(records_per_batch)
            assert (
                min(max(exact - Fraction(501, 1000), 1), most)
                <= count
                <= max(exact + Fraction(501, 1000), 1)
            )


@given(scale=st.floats(0.05, 30), counts=st.integers(1, 12), share=st.floats(0, 1))
def test_small_noise_is_no_likelier_than_the_bound(scale: float, counts: int, share: float) -> None:
    """Against the exact distribution of the sum, by convolution."""
    sizes = np.arange(int(40 * scale) + 3)
    one = np.exp(-(sizes - 0.5) / scale) - np.exp(-(sizes + 0.5) / scale)
    one[0] = -math.expm1(-0.5 / scale)
    sums = np.ones(1)
    for _ in range(counts):
        sums = np.convolve(sums, one)
    total = int(share * 2 * counts * scale)
    exact = math.log(sums[: total + 1].sum())
    bound = noise_tail(total, scale, counts)
    assert exact - 1e-9 <= bound <= 0
    # where it decides, Chernoff's bound is loose by the logarithm of a few standard deviations
    if exact < -10:
        assert bound < 0.75 * exact + 3


@given(scale=st.floats(0.05, 30), counts=st.integers(1, 12), share=st.floats(0, 3))
def test_noise_that_reaches_far_is_no_likelier_than_the_bound(
    scale: float, counts: int, share: float
) -> None:
    """Against the exact distribution of the sum, by convolution."""
    most = int(60 * scale) + 3
    sizes = np.abs(np.arange(-most, most + 1))
    one = (np.exp(-(sizes - 0.5) / scale) - np.exp(-(sizes + 0.5) / scale)) / 2
    one[most] = -math.expm1(-0.5 / scale)
    sums = np.ones(1)
    for _ in range(counts):
        sums = np.convolve(sums, one)
    total = int(share * 8 * math.sqrt(counts) * scale)
    found = np.abs(np.arange(len(sums)) - len(sums) // 2) >= total
    exact = math.log(sums[found].sum() or 1e-300)
    bound = noise_reach(total, scale, counts)
    assert exact - 1e-9 <= bound <= 0 or exact < -25  # rounding of the convolution
    if -25 < exact < -10:
        assert bound < 0.75 * exact + 3
    assert noise_reach(-total, scale, counts) == bound


def test_noise_reaches_no_further_than_its_scale_allows() -> None:
    assert noise_reach(0, 8.0, 8) == 0
    assert noise_reach(200, 8.0, 1) < math.log(1e-6)
    assert noise_reach(100, 8.0, 1) > math.log(1e-4)
    assert noise_reach(1, 1e-3, 1000) < -400
    assert noise_reach(1 << 40, 8.0, 8000) < -1e9
    for scale in (1e-320, 1e-9, 1e9, 1e300):
        assert noise_reach(0, scale, 5) == 0 and not math.isnan(noise_reach(1 << 50, scale, 5))
    with pytest.raises(ValueError, match="scale"):
        noise_reach(1, 0.0, 1)


def test_a_bound_for_noise_that_is_missing_or_abundant() -> None:
    assert noise_tail(0, 10.0, 2000) < -5000
    assert noise_tail(15_000, 10.0, 2000) < math.log(1e-6)  # one label of four without any
    assert noise_tail(20_000, 10.0, 2000) > math.log(1e-3)
    assert noise_tail(2**60, 10.0, 2000) == 0
    with pytest.raises(ValueError, match="scale"):
        noise_tail(1, 0.0, 1)


def test_ties_go_to_the_lower_index_and_negative_counts_weigh_nothing() -> None:
    assert kept_by_counts(np.array([[3, 7, 3, 7, 3], [0, 0, 0, 0, 0]]), 3).tolist() == [
        [0, 1, 3],
        [0, 1, 2],
    ]
    counts = np.array([[600, 300, 90, 10], [5, -40, 100, 20]])
    # The first label's 1000 records go to its kept centres 2 : 1; the second's 85 to one that has
    # them all.
    assert batches_by_counts(counts, np.array([[0, 1], [1, 2]]), 32, 50).tolist() == [
        [21, 10],
        [1, 3],
    ]
    assert batches_by_counts(counts, np.array([[0, 1], [1, 2]]), 32, 12, 4).tolist() == [
        [12, 10],
        [4, 4],
    ]


def test_choices_are_refused_where_they_cannot_be_made() -> None:
    noisy = np.array([[3, 1]])
    for keep in (0, 3):
        with pytest.raises(ValueError, match="keep"):
            kept_by_counts(noisy, keep)
    for records_per_batch, most, least in (
        (0.0, 1, 1),
        (math.inf, 1, 1),
        (math.nan, 1, 1),
        (1.0, 0, 1),
        (1.0, 3, 4),
    ):
        with pytest.raises(ValueError, match="records_per_batch"):
            batches_by_counts(noisy, kept_by_counts(noisy, 1), records_per_batch, most, least)
    with pytest.raises(ValueError, match="labels"):
        batches_by_counts(noisy, np.array([[0], [1]]), 1.0, 1)
    assert batches_by_counts(noisy, np.array([[0]]), 1e-320, 7).tolist() == [[7]]
