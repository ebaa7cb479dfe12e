"""Theorem 1 and exact costs by hand, against brute force over neighbours, and summed over runs."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpaudit.accounting import Cost, ExPostAccountant, exact_cost, median_bounds, theorem1_cost
from dpaudit.accounting.ex_post import rounding_allowances
from dpaudit.mechanisms import (
    ContextChange,
    ReducedSteps,
    Spans,
    central_order_statistics,
    context_change,
    mean_box,
)
from tests.nesting import mechanism_with

# Logits in units of log 2 and temperature 1, so that exp(logit) is a power of 2; clip 2 log 2.
LOG2 = math.log(2)
CLIP = 2 * LOG2
FOUR = np.array([[2, 0, -2], [2, -2, 0], [0, 2, -2], [2, 2, -2]]) * LOG2
FIVE = np.vstack([FOUR, np.array([[-2, 2, 0]]) * LOG2])


def one_step(arrays: dict[str, np.ndarray], token: int) -> ReducedSteps:  # type: ignore[type-arg]
    """A step with all its columns."""
    columns = next(iter(arrays.values())).shape[-1]
    return ReducedSteps.whole(arrays, np.array([token]), Spans([columns]))


class MedianAccountant(ExPostAccountant):
    """Charges steps by their central values."""

    def __init__(
        self, change: ContextChange | None, temperature: float, clip: float = CLIP
    ) -> None:
        flat = {"aggregator": "median", "clip": clip, "temperature": temperature}
        self.mechanism = mechanism_with(flat)
        super().__init__(self.mechanism, change)

    def take(self, batch: int, central: np.ndarray, token: int) -> Cost:  # type: ignore[type-arg]
        reduced = self.mechanism.reduced({"central": central}, token)
        return Cost(*self.charge(batch, reduced)[0].tolist())


class MeanAccountant(ExPostAccountant):
    """Charges steps by their means."""

    def __init__(
        self, change: ContextChange | None, temperature: float, clip: float, divisor: float
    ) -> None:
        flat = {"aggregator": "mean", "clip": clip, "temperature": temperature, "divisor": divisor}
        super().__init__(mechanism_with(flat), change)

    def take(self, batch: int, aggregate: np.ndarray, token: int) -> Cost:  # type: ignore[type-arg]
        return Cost(*self.charge(batch, one_step({"aggregate": aggregate}, token))[0].tolist())


def rounding_allowance(
    low: np.ndarray,  # type: ignore[type-arg]
    high: np.ndarray,  # type: ignore[type-arg]
    temperature: float,
    columns: int = 0,
    largest: float = 0.0,
) -> float:
    """Of one step; `largest` of so many further columns."""
    whole = one_step({"aggregate": low}, 0)
    steps = whole._replace(columns=np.array([columns]), largest=np.array([largest]))
    return float(rounding_allowances(low, high, steps, temperature)[0])


def gamma(values: np.ndarray, token: int) -> float:  # type: ignore[type-arg]
    return theorem1_cost(*median_bounds(values, "add_remove", clip=CLIP), token, 1.0)


def test_four_contexts_by_hand() -> None:
    """Sorted columns, n = 4: (0 2 2 2), (-2 0 2 2), (-2 -2 -2 0), in units of log 2.

    lower = (2, 0, -2), center = (2, 1, -2), upper = (2, 2, -2); sums of exponentials: 4 + 1 + 1/4 =
    21/4, 4 + 2 + 1/4 = 25/4, 4 + 4 + 1/4 = 33/4. Token 1: log 1/alpha = log(2 * 25/21) =
    log(50/21), log beta = log(2 * 33/25) = log(66/25), the larger. Token 0: log 1/alpha =
    log(25/21), log beta = log(33/25), the larger.
    """
    assert gamma(FOUR, 1) == pytest.approx(0.970778917158225, rel=1e-14)  # log(66/25)
    assert gamma(FOUR, 0) == pytest.approx(0.277631736598280, rel=1e-14)  # log(33/25)


def test_five_contexts_by_hand() -> None:
    """Sorted columns, n = 5: (-2 0 2 2 2), (-2 0 2 2 2), (-2 -2 -2 0 0), in units of log 2.

    lower = (1, 1, -2), center = (2, 2, -2), upper = (2, 2, -1), bounds half-way to the next value;
    sums of exponentials: 2 + 2 + 1/4 = 17/4, 4 + 4 + 1/4 = 33/4, 4 + 4 + 1/2 = 34/4.
    Token 2: log 1/alpha = log(2 * 33/17) = log(66/17), the larger; log beta = log(34/33).
    Token 0: log 1/alpha = log(33/17), log beta = log(2 * 34/33) = log(68/33), the larger.
    """
    assert gamma(FIVE, 2) == pytest.approx(1.3564413979702095, rel=1e-14, abs=0)  # log(66/17)
    assert gamma(FIVE, 0) == pytest.approx(0.7230001437096262, rel=1e-14, abs=0)  # log(68/33)


def test_exact_costs_by_hand() -> None:
    """The boxes above, by hand.

    Token 1 of FOUR: p = (2 * 4 / 25). It rises to 4 / (4 + 4 + 1/4) (upper at 1, lower at 0 and 2),
    a factor (16/33) / (8/25) = 50/33, and falls to 1 / (4 + 1 + 1/4), a factor (8/25) / (4/21) =
    42/25.
    """
    rise, fall = exact_cost(*median_bounds(FOUR, "add_remove", clip=CLIP), 1, 1.0)
    assert rise == pytest.approx(math.log(50 / 33), rel=1e-14)
    assert fall == pytest.approx(math.log(42 / 25), rel=1e-14)


def test_two_steps_add_up_and_the_worst_batch_counts() -> None:
    accountant = MedianAccountant(context_change("record", "add_remove", "hashed-records"), 1.0)
    for batch, values, tokens in ((0, FOUR, (1, 0)), (1, FIVE, (2, 0))):
        for token in tokens:
            accountant.take(batch, central_order_statistics(values, CLIP), token)
        if batch == 0:
            accountant.close(batch)
    # log(66/25 * 33/25) = 1.2484106537565043 and log(66/17 * 68/33) = log 8, and never less for
    # rounding.
    assert 1.2484106537565043 < accountant.batch_cost(0).theorem1 < 1.2484106537565043 + 1e-12
    assert 3 * LOG2 < accountant.batch_cost(1).theorem1 < 3 * LOG2 + 1e-12
    worst = Cost(
        accountant.batch_cost(1).theorem1,
        accountant.batch_cost(1).rise,
        accountant.batch_cost(0).fall,
    )
    assert accountant.cost == worst
    accountant.close(1)
    assert accountant.cost == worst


def test_rises_and_falls_are_summed_apart() -> None:
    accountant = MedianAccountant(ContextChange("add_remove"), 1.0)
    steps = [
        accountant.take(0, central_order_statistics(values, CLIP), token) for values, token in STEPS
    ]
    cost = accountant.cost
    assert cost.rise == pytest.approx(sum(step.rise for step in steps), rel=1e-12)
    assert cost.fall == pytest.approx(sum(step.fall for step in steps), rel=1e-12)
    assert (
        cost.exact == max(cost.rise, cost.fall) < sum(step.exact for step in steps) < cost.theorem1
    )


STEPS = [(values, token) for values in (FOUR, FIVE) for token in (0, 1, 2)]


def every_spread(
    accountant: MedianAccountant, boxes: dict[int, list[tuple]], contexts: int
) -> tuple[float, float]:  # type: ignore[type-arg]
    """The largest rise and fall over all ways to spread the contexts over the batches, naively."""
    totals = []
    for split in itertools.product(range(contexts + 1), repeat=len(boxes)):
        if sum(split) <= contexts:
            costs = [boxes[batch][j] for batch, j in enumerate(split)]
            totals.append((sum(c[0] for c in costs), sum(c[1] for c in costs)))
    return max(t[0] for t in totals), max(t[1] for t in totals)


def test_a_group_is_charged_for_its_worst_spread_over_batches() -> None:
    for contexts, relation in itertools.product((1, 2, 3, 4), ("add_remove", "replace")):
        check_spread(contexts, relation)


def check_spread(contexts: int, relation: str) -> None:
    random = np.random.default_rng(contexts)
    accountant = MedianAccountant(ContextChange(relation, contexts), 1.0)  # type: ignore[arg-type]
    naive: dict[int, list[tuple]] = {}  # type: ignore[type-arg]
    for batch in range(4):
        sums = [(0.0, 0.0)] * (contexts + 1)
        for token in range(3):
            values = random.uniform(-CLIP, CLIP, (random.integers(0, 9), 3))
            accountant.take(batch, central_order_statistics(values, CLIP, 6), token)
            for j in range(1, contexts + 1):
                rise, fall = exact_cost(
                    *median_bounds(values, relation, clip=CLIP, group=j), token, 1.0
                )  # type: ignore[arg-type]
                sums[j] = sums[j][0] + rise, sums[j][1] + fall
        naive[batch] = sums
        if batch % 2:
            accountant.close(batch)
    rise, fall = every_spread(accountant, naive, contexts)
    assert accountant.cost.rise == pytest.approx(rise, rel=1e-10)
    assert accountant.cost.fall == pytest.approx(fall, rel=1e-10)


def test_costs_by_tokens_are_those_of_shorter_batches() -> None:
    random = np.random.default_rng(5)
    batches = [
        [(random.uniform(-CLIP, CLIP, (5, 3)), 0) for _ in range(length)] for length in (4, 1, 6)
    ]
    change = ContextChange("add_remove", 2)

    def run(most: int) -> MedianAccountant:
        accountant = MedianAccountant(change, 1.0)
        for batch, steps in enumerate(batches):
            for values, token in steps[:most]:
                accountant.take(batch, central_order_statistics(values, CLIP), token)
            accountant.close(batch)
        return accountant

    assert run(6).by_tokens() == [run(most).cost for most in range(7)]


def test_a_short_batch_that_cost_more_than_a_longer_one_counts_to_the_end() -> None:
    dear, cheap = np.zeros((2, 3, 2)), np.zeros((2, 3, 4))
    dear[1, :, 1:] = 5.0
    cheap[1, :, 1:] = 1.0, 2.0, 3.0
    for batches in itertools.permutations((dear, cheap)):
        accountant = MedianAccountant(ContextChange("add_remove"), 1.0)
        for batch, sums in enumerate(batches):
            accountant.attach(batch, sums)
        assert accountant.epsilon == 5.0
        assert [cost.exact for cost in accountant.by_tokens()] == [0.0, 5.0, 5.0, 5.0]


def test_a_closed_batch_takes_no_more_steps() -> None:
    accountant = MedianAccountant(ContextChange("add_remove"), 1.0)
    accountant.take(0, central_order_statistics(FOUR, CLIP), 0)
    accountant.close(0)
    with pytest.raises(ValueError, match="closed"):
        accountant.take(0, central_order_statistics(FOUR, CLIP), 0)


def test_a_mean_step_costs_what_its_neighbours_can_do() -> None:
    """A mean's box is reached by the arriving contexts (c at x, -c elsewhere) and (-c at x, c)."""
    values, divisor = FIVE, 4.0
    aggregate = values.sum(axis=0) / divisor
    for token in range(3):
        towards = np.where(np.arange(3) == token, CLIP, -CLIP)
        rise, fall = exact_cost(*mean_box(aggregate, CLIP, divisor), token, 1.0)
        changes = [
            log_softmax(aggregate + context / divisor, 1.0)[token]
            - log_softmax(aggregate, 1.0)[token]
            for context in (towards, -towards, *-values, np.full(3, CLIP))
        ]
        assert rise == pytest.approx(max(changes), rel=3e-8)
        assert fall == pytest.approx(-min(changes), rel=3e-8)
    accountant = MeanAccountant(ContextChange("replace"), 1.0, CLIP, divisor)
    doubled = exact_cost(*mean_box(aggregate, CLIP, divisor, half_steps=2), 0, 1.0)
    cost = accountant.take(0, aggregate, 0)
    assert (cost.rise, cost.fall) == pytest.approx(doubled, rel=1e-12)


logits = hnp.arrays(
    np.float64, st.tuples(st.integers(0, 6), st.integers(1, 4)), elements=st.floats(-3, 3)
)


def log_softmax(values: np.ndarray, temperature: float) -> np.ndarray:  # type: ignore[type-arg]
    scaled = values / temperature
    return scaled - np.logaddexp.reduce(scaled)  # type: ignore[no-any-return]


def test_agreement_costs_nothing_and_no_contexts_cost_the_whole_clip() -> None:
    agreed = np.tile([3.0, -1.0, 0.0], (4, 1))
    assert theorem1_cost(*median_bounds(agreed, "add_remove", clip=3.0), 0, 1.0) == 0.0
    nobody = np.zeros((0, 2))
    assert theorem1_cost(*median_bounds(nobody, "add_remove", clip=3.0), 0, 1.0) == pytest.approx(
        6.0
    )


BAD = [(np.nan, 0), (np.nan, 1), (np.nan, 2), (np.inf, 0), (np.inf, 1), (-np.inf, 1), (-np.inf, 2)]


def test_values_that_bound_nothing_are_refused() -> None:
    for (bad, place), cost in itertools.product(BAD, (theorem1_cost, exact_cost)):
        bounds = [np.zeros(3) for _ in range(3)]
        bounds[place][1] = bad
        with pytest.raises(ValueError, match=r"not a number|between its bounds"):
            cost(*bounds, 0, 1.0)


def test_an_infinite_bound_costs_infinitely_much() -> None:
    for infinite, place in ((-np.inf, 0), (np.inf, 2)):
        bounds = [np.zeros(3) for _ in range(3)]
        bounds[place][1] = infinite
        assert theorem1_cost(*bounds, 0, 1.0) == math.inf
        assert exact_cost(*bounds, 0, 1.0) == (math.inf, math.inf)


def test_tokens_temperatures_and_bounds_that_are_none_are_refused() -> None:
    zeros, ones = np.zeros(3), np.ones(3)
    for cost in (theorem1_cost, exact_cost):
        for token in (-1, 3):
            with pytest.raises(ValueError, match="not among the 3 tokens"):
                cost(zeros, zeros, zeros, token, 1.0)
        with pytest.raises(ValueError, match="between its bounds"):
            cost(ones, zeros, ones, 0, 1.0)
        for temperature in (0.0, -1.0, np.nan, np.inf):
            with pytest.raises(ValueError, match="temperature"):
                cost(zeros, zeros, zeros, 0, temperature)


def test_nothing_is_added_up_without_a_bound() -> None:
    with pytest.raises(ValueError, match="nothing bounds"):
        MedianAccountant(context_change("record", "add_remove", "paper-slices"), 1.0)


def decimal_costs(
    bounds: list[list[float]], token: int, temperature: float
) -> tuple[Decimal, Decimal, Decimal]:
    """Theorem 1, rise and fall with 60 digits, by the definitions."""
    with localcontext() as context:
        context.prec = 60
        low, mid, high = (
            [Decimal(value) / Decimal(temperature) for value in row] for row in bounds
        )

        def log_probability(values: list[Decimal]) -> Decimal:
            return values[token] - sum((v.exp() for v in values), Decimal(0)).ln()

        log_sum = [sum((v.exp() for v in row), Decimal(0)).ln() for row in (low, mid, high)]
        theorem1 = max(
            high[token] - mid[token] + log_sum[1] - log_sum[0],
            mid[token] - low[token] + log_sum[2] - log_sum[1],
        )
        up, down = list(low), list(high)
        up[token], down[token] = high[token], low[token]
        return (
            theorem1,
            log_probability(up) - log_probability(mid),
            log_probability(mid) - log_probability(down),
        )


@given(
    logits.filter(len),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.sampled_from(["float64", "float32", "bfloat16"]),
)
@settings(max_examples=120)
def test_rounding_never_lowers_a_cost(values: np.ndarray, temperature: float, dtype: str) -> None:  # type: ignore[type-arg]
    """Records of every precision against 60 digits.

    Bounds are rounded as the mechanism rounds its medians.
    """
    values = values.astype(np.float64 if dtype == "float64" else np.float32)
    if dtype == "bfloat16":  # as float32, the way a model's bfloat16 logits are recorded
        values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    central = central_order_statistics(values, 3.0)
    bounds = [
        row.astype(np.float64).tolist() for row in median_bounds(values, "add_remove", clip=3.0)
    ]
    accountant = MedianAccountant(ContextChange("add_remove"), temperature)
    total = [Decimal(0)] * 3
    for token in range(values.shape[1]):
        accountant.take(0, central, token)
        total = [
            sum(pair) for pair in zip(total, decimal_costs(bounds, token, temperature), strict=True)
        ]  # type: ignore[misc]
    cost = accountant.cost
    for true, found in zip(total, (cost.theorem1, cost.rise, cost.fall), strict=True):
        assert true <= Decimal(found) <= true + Decimal("1e-10")


@given(
    logits.filter(len),
    logits.filter(len),
    st.sampled_from([0.5, 1.0]),
    st.sampled_from(["float32", "bfloat16"]),
)
@settings(max_examples=100)
def test_rounded_medians_of_neighbours_stay_within_rounded_bounds(
    values, others, temperature, dtype
) -> None:  # type: ignore[no-untyped-def]
    """Midpoints are taken in the record's precision.

    The reference is in float64 and rounds nothing else.
    """

    def rounded(array: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        array = array.astype(np.float32)
        return (
            array
            if dtype == "float32"
            else (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        )

    values = rounded(values)
    neighbours = [np.delete(values, i, axis=0) for i in range(len(values))]
    neighbours += [
        np.vstack([values, rounded(row)]) for row in others if len(row) == values.shape[1]
    ]
    accountant = MedianAccountant(ContextChange("add_remove"), temperature)
    central = central_order_statistics(values, 3.0)
    _, center, _ = median_bounds(values, clip=3.0)
    here = log_softmax(center.astype(np.float64), temperature)
    for token in range(values.shape[1]):
        cost = accountant.take(token, central, token)
        for neighbour in neighbours:
            _, median, _ = median_bounds(neighbour, clip=3.0)
            loss = here[token] - log_softmax(median.astype(np.float64), temperature)[token]
            assert -cost.rise - 1e-14 <= loss <= cost.fall + 1e-14


def test_a_large_vocabulary_with_values_at_both_ends_of_the_clip() -> None:
    for temperature in (0.05, 1.0, 50.0):
        check_large_vocabulary(temperature)


def check_large_vocabulary(temperature: float) -> None:
    """V = 256,000: float64 sums of exponentials, against exact sums of a few distinct values."""
    clip, size = 20.0, 256_000
    low, mid, high = np.full(size, -clip), np.full(size, -clip), np.full(size, -clip)
    mid[:1000], high[:1000] = clip, clip
    mid[1000:3000], high[1000:3000] = 0.25, clip
    for token, (low_x, mid_x, high_x) in {
        0: (-clip, clip, clip),
        1000: (-clip, 0.25, clip),
        size - 1: (-clip,) * 3,
    }.items():
        with localcontext() as context:
            context.prec = 60

            def log_sum(parts: list[tuple[int, float]]) -> Decimal:
                return sum(
                    (count * (Decimal(v) / Decimal(temperature)).exp() for count, v in parts),
                    Decimal(0),
                ).ln()

            mids = log_sum([(1000, clip), (2000, 0.25), (size - 3000, -clip)])
            others_low = log_sum([(size - 1, -clip), (1, high_x)])
            upper = [(1000, clip), (2000, clip), (size - 3000, -clip)]
            others_high = log_sum([*upper, (-1, high_x), (1, low_x)])
            scale = Decimal(temperature)
            rise = (Decimal(high_x) - Decimal(mid_x)) / scale + mids - others_low
            fall = (Decimal(mid_x) - Decimal(low_x)) / scale + others_high - mids
        found = exact_cost(low, mid, high, token, temperature)
        assert found[0] == pytest.approx(float(rise), rel=1e-12, abs=1e-10)
        assert found[1] == pytest.approx(float(fall), rel=1e-12, abs=1e-10)


def test_several_steps_at_once_cost_what_they_cost_one_by_one() -> None:
    values = np.random.default_rng(3).uniform(-CLIP, CLIP, (6, 5, 4))
    tokens = np.array([0, 1, 2, 3, 0, 1])
    box = median_bounds(values, "replace", clip=CLIP)
    theorem1, (rise, fall) = theorem1_cost(*box, tokens, 0.7), exact_cost(*box, tokens, 0.7)
    for step, token in enumerate(tokens):
        one = median_bounds(values[step], "replace", clip=CLIP)
        assert all(np.array_equal(a[step], b) for a, b in zip(box, one, strict=True))
        assert theorem1[step] == pytest.approx(theorem1_cost(*one, int(token), 0.7), rel=1e-14)
        assert (rise[step], fall[step]) == pytest.approx(
            exact_cost(*one, int(token), 0.7), rel=1e-14
        )


GAPS = [
    ([-9.0, -9.0, -9.0], [9.0, -9.0, -9.0], [9.0, 0.0, 0.0]),
    ([-9.0, -9.0, -9.0], [0.0, 9.0, -9.0], [9.0, 9.0, 0.0]),
    ([-9.0, 9.0, -9.0], [-9.0, 9.0, 8.0], [9.0, 9.0, 9.0]),
    ([0.0], [5.0], [9.0]),
]


def test_gaps_beyond_the_exponents_of_float64_lose_nothing() -> None:
    """A token falls from far above all others.

    Their exponentials must not vanish beside its old one.
    """
    for box, temperature in itertools.product(GAPS, (0.05, 0.0257, 0.0122, 0.012, 0.01, 0.001)):
        for token in range(len(box[0])):
            theorem1, rise, fall = (
                float(cost) for cost in decimal_costs(list(box), token, temperature)
            )
            arrays = [np.array(row) for row in box]
            assert theorem1_cost(*arrays, token, temperature) == pytest.approx(
                theorem1, rel=1e-13, abs=1e-9
            )
            assert exact_cost(*arrays, token, temperature) == pytest.approx(
                (rise, fall), rel=1e-13, abs=1e-9
            )


def test_a_group_can_move_a_mean_beyond_the_exponents_of_float64() -> None:
    """100 contexts agree on token 0; 127 that come turn it over."""
    aggregate = np.array([9.0, -9.0, -9.0]) * 100 / 4
    cost = MeanAccountant(ContextChange("add_remove", 127), 0.5, 9.0, 4.0).take(0, aggregate, 0)
    moved = 9.0 * 127 / 4 / 0.5
    # the others, two of them, end up above by this much
    true = math.log(2) + 2 * moved - 2 * 9.0 * 100 / 4 / 0.5
    assert cost.fall == pytest.approx(true, rel=1e-6)


def test_sums_of_many_steps_are_never_below_the_exact_sum() -> None:
    accountant = MedianAccountant(ContextChange("add_remove"), 1.0)
    central = central_order_statistics(FOUR, CLIP)
    total = [Fraction(0)] * 3
    for _ in range(3000):
        step = accountant.take(0, central, 1)
        total = [
            t + Fraction(c)
            for t, c in zip(total, (step.theorem1, step.rise, step.fall), strict=True)
        ]
    cost = accountant.cost
    for exact, found in zip(total, (cost.theorem1, cost.rise, cost.fall), strict=True):
        assert exact <= Fraction(found) <= exact * (1 + Fraction(1, 10**10))


def test_the_allowance_covers_sampler_and_sums_of_any_size() -> None:
    """Rounding of sampler and sums is covered, in units in the last place.

    They are of a distribution function of S weights, and of scaled logits of size R.
    """
    ulp = 2.0**-53
    for size in (1, 1000, 1_000_000):
        assert rounding_allowance(np.zeros(size), np.zeros(size), 1.0) >= 12 * size * ulp
    for largest in (1.0, 1e3, 1e6):
        edges = np.array([-largest]), np.array([largest])
        assert rounding_allowance(*edges, 1.0) >= 16 * largest * ulp
        assert rounding_allowance(*edges, 0.1) >= 160 * largest * ulp


def test_the_box_of_a_mean_leaves_room_for_rounding() -> None:
    lower, center, upper = mean_box(np.zeros(3), 6.0, 8.0)
    assert (upper - center >= 0.75 * (1 + 2.0**-27)).all()
    assert (center - lower >= 0.75 * (1 + 2.0**-27)).all()


CELLS = {
    ("record", "add_remove", "hashed-records"): ("add_remove", 1),
    ("record", "replace", "hashed-records"): ("add_remove", 2),
    ("record", "add_remove", "hashed-slots"): ("replace", 1),
    ("record", "replace", "hashed-slots"): ("replace", 2),
    ("record", "add_remove", "hashed-cells"): ("add_remove", 1),
    ("record", "replace", "hashed-cells"): ("add_remove", 2),
    ("user", "add_remove", "hashed-cells"): ("add_remove", 5),
    ("user", "replace", "hashed-cells"): ("add_remove", 10),
    ("user", "add_remove", "hashed-records"): ("add_remove", 5),
    ("user", "replace", "hashed-records"): ("add_remove", 10),
    ("user", "add_remove", "hashed-slots"): ("replace", 5),
    ("user", "replace", "hashed-slots"): ("replace", 10),
    ("record", "add_remove", "paper-slices"): None,
    ("record", "replace", "paper-slices"): None,
    ("user", "add_remove", "paper-slices"): None,
    ("user", "replace", "paper-slices"): None,
    **{
        ("context", relation, rule): (relation, 1)
        for relation in ("add_remove", "replace")
        for rule in ("hashed-records", "hashed-slots", "hashed-cells", "paper-slices")
    },
}


def test_what_a_unit_changes() -> None:
    """The table of docs/claims.md, for users of five records."""
    for claim, change in CELLS.items():
        expected = None if change is None else ContextChange(*change)  # type: ignore[arg-type]
        assert context_change(*claim, records_per_user=5) == expected, claim  # type: ignore[arg-type]


# --- sums that other accountants worked out, and columns that are left out ------------------------


def test_batches_that_other_accountants_summed_give_the_same_run() -> None:
    random = np.random.default_rng(0)
    for change in (
        ContextChange("add_remove"),
        ContextChange("replace"),
        ContextChange("add_remove", 3),
    ):
        for _ in range(15):
            alone, driver = MedianAccountant(change, 1.0), MedianAccountant(change, 1.0)
            workers = {batch: MedianAccountant(change, 1.0) for batch in range(4)}
            for batch in random.integers(0, 4, random.integers(0, 9)).tolist():
                values = np.round(random.uniform(-1, 1, (random.integers(0, 10), 5)), 1)
                central = central_order_statistics(values, CLIP, width=4)
                alone.take(batch, central, 0)
                workers[batch].take(batch, central, 0)
            for batch, worker in workers.items():
                alone.close(batch)
                sums = worker.detach(batch)
                assert worker.epsilon == 0
                if sums is not None:
                    driver.attach(batch, sums)
                    assert driver.batch_cost(batch) == alone.batch_cost(batch)
            assert driver.cost == alone.cost
            assert driver.by_tokens() == alone.by_tokens()


def test_sums_of_another_change_or_of_a_known_batch_are_refused() -> None:
    central = central_order_statistics(np.zeros((2, 3)), CLIP, width=4)
    worker, driver = (MedianAccountant(ContextChange("add_remove"), 1.0) for _ in range(2))
    assert worker.detach(0) is None
    worker.take(0, central, 0)
    sums = worker.detach(0)
    assert sums is not None
    with pytest.raises(ValueError, match="2 contexts"):
        MeanAccountant(ContextChange("add_remove", 2), 1.0, CLIP, 4.0).attach(0, sums)
    driver.attach(0, sums)
    with pytest.raises(ValueError, match="already"):
        driver.attach(0, sums)
    with pytest.raises(ValueError, match="closed"):
        driver.take(0, central, 0)


def test_values_that_are_no_numbers_bound_nothing() -> None:
    for value, rows in itertools.product((np.nan, np.inf, -np.inf), (slice(None), slice(1, 2))):
        central = np.zeros((4, 5))
        central[rows, 3] = value
        accountant = MedianAccountant(ContextChange("add_remove"), 1.0)
        try:
            assert accountant.take(0, central, 0).exact == math.inf
        except ValueError:
            assert accountant.cost.exact == 0


def test_what_is_left_out_counts_for_rounding() -> None:
    """The sum runs over all columns, and may be as large as the largest of them makes it."""
    low, high = np.array([-1.0, 0.5]), np.array([0.0, 2.0])
    whole = (
        np.concatenate([low, np.full(50_000, 40.0)]),
        np.concatenate([high, np.full(50_000, 40.0)]),
    )
    assert rounding_allowance(low, high, 0.7, 50_000, 40.0) >= rounding_allowance(*whole, 0.7)
