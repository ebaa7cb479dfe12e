"""The cost of noised centres agrees with other derivations, and no recorded value breaks it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from dp_accounting import LaplaceDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, stats

from dpaudit.accounting import ChangScales, DpmScales, centers_epsilon, zcdp_epsilon
from dpaudit.accounting.centers import (
    LEAST_DELTA,
    MOST_DEPTH,
    ORDERS,
    Change,
    _laplace_divergence,
    changes,
)
from dpaudit.generation.clustering.chang import Chang
from dpaudit.generation.clustering.dpm import Dpm
from dpaudit.mechanisms import Relation

Doubles = NDArray[np.float64]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
CHANG = ChangScales(12, 20.0, 6.0)
DPM = DpmScales(7, 120.0, 0.012, 6.0)
PRECISE = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)

# --- Chang's tree ---------------------------------------------------------------------------------


def laplace_losses(epsilon: float, cells: int, up: bool) -> Doubles:
    """Probabilities of losses -epsilon .. epsilon in 2 * cells + 1 places.

    A loss between two places is moved to one of them. Both ends have an atom, and between them the
    density is exp((loss - epsilon) / 2) / 4.
    """
    masses = np.zeros(2 * cells + 1)
    edges = np.linspace(-epsilon, epsilon, 2 * cells + 1)
    between = np.diff(np.exp((edges - epsilon) / 2)) / 2
    masses[1:] += between * up
    masses[:-1] += between * (not up)
    masses[0] += math.exp(-epsilon) / 2
    masses[-1] += 0.5
    return masses


def independent_epsilon(
    scales: ChangScales, change: Change, delta: float, up: bool, cells: int = 300
) -> float:
    """epsilon of the same noise: convolved losses of counts, then the Gaussian's own profile.

    The profile is that of Balle and Wang (2018).

    Nothing but rounding of losses, up or down, parts it from the truth.
    """
    masses = np.ones(1)
    for _ in range(change.counts):
        masses = np.convolve(masses, laplace_losses(1 / scales.count_scale, cells, up))
    losses = np.arange(-change.counts * cells, change.counts * cells + 1) / (
        cells * scales.count_scale
    )
    shift = change.distance / scales.sum_sd

    def excess(epsilon: float) -> float:
        left = epsilon - losses
        profile = stats.norm.cdf(shift / 2 - left / shift) - np.exp(
            left + stats.norm.logcdf(-shift / 2 - left / shift)
        )
        return float(masses @ profile) - delta

    return float(optimize.brentq(excess, 0.0, 200.0, xtol=1e-9))


def test_changs_cost_against_an_independent_accountant() -> None:
    for relation, (epsilon, delta, depth, share) in itertools.product(
        RELATIONS,
        [
            (0.1, 1e-6, 12, 0.5),
            (1.0, 1e-6, 12, 0.5),
            (1.0, 1e-10, 20, 0.1),
            (3.0, 0.1, 3, 0.9),
            (10.0, 1e-5, 6, 0.3),
        ],
    ):
        method = Chang(5, epsilon, delta, 4, depth=depth, counts_share=share)
        cost = method.scales.epsilon(delta, relation)
        # One level below the root: three counts, of which a record's path has two.
        cases = (
            [(depth + 1, 1.0)]
            if relation == "add_remove"
            else [(2 * depth, math.sqrt(2)), (0, 2.0)]
        )
        tight, loose = (
            max(independent_epsilon(method.scales, Change(*case), delta, up=up) for case in cases)
            for up in (False, True)
        )
        assert tight <= cost <= 1.005 * loose
        assert loose <= 1.02 * tight


def test_cases_of_each_relation() -> None:
    assert changes("add_remove", 1) == (Change(2, 1.0),)
    assert changes("replace", 1) == (Change(2, math.sqrt(2)), Change(0, 2.0))


def test_an_epsilon_that_protects_nobody_is_bounded_too() -> None:
    assert replace(CHANG, sum_sd=1e-3).epsilon(1e-6, "add_remove") > 1e5


# --- DPM ------------------------------------------------------------------------------------------

#: Epsilons of Laplace noise and of splits, and the square of a sum's shift in units of its noise's
#: deviation.
Course = tuple[tuple[float, ...], tuple[float, ...], float]


def courses(scales: DpmScales, relation: str) -> Iterator[Course]:
    """All that can happen to neighbours, by walking down the tree."""
    if relation == "replace":
        yield from together(scales, 0)
    else:
        yield from alone(scales, 0, 1)


def count(scales: DpmScales, level: int) -> float:
    """Epsilon of a level's count for a record more: sqrt(2) times its parent's."""
    return math.sqrt(2) ** level / scales.count_scale


def split(scales: DpmScales, level: int) -> float:
    return math.sqrt(2) ** level * scales.split_epsilon


def alone(scales: DpmScales, level: int, cells: int) -> Iterator[Course]:
    """The neighbours differ in so many cells, each by a record that one of them has."""
    counts, squares = (count(scales, level),) * cells, cells / scales.sum_sd**2
    yield counts, (), squares
    if level < scales.depth:
        splits = (split(scales, level),) * cells
        yield (
            (*counts, *(count(scales, level + 1),) * cells),
            splits,
            squares,
        )  # too few on one side
        for below, further, square in alone(scales, level + 1, cells):
            yield counts + below, splits + further, square


def together(scales: DpmScales, level: int) -> Iterator[Course]:
    """Both records of an exchange are in one cell, whose count is the same."""
    squares = 4 / scales.sum_sd**2
    yield (), (), squares
    if level < scales.depth:
        first = (split(scales, level),)
        yield (count(scales, level + 1),) * 2, first, squares  # parted, but too few on one side
        for counts, splits, square in itertools.chain(
            together(scales, level + 1), alone(scales, level + 1, 2)
        ):
            yield counts, first + splits, square


def renyi_epsilon(course: Course, delta: float) -> float:
    counts, splits, squares = course
    return zcdp_epsilon(
        squares / 2 + sum(epsilon * epsilon / 8 for epsilon in splits), delta, laplace=counts
    )


def pld_epsilon(course: Course, delta: float, step: float) -> float:
    """By privacy loss distributions, of one mechanism that each step may be: tight for it."""
    counts, splits, squares = course
    loss = pld.from_gaussian_mechanism(1 / math.sqrt(squares), value_discretization_interval=step)
    for epsilon in counts:
        loss = loss.compose(
            pld.from_laplace_mechanism(1 / epsilon, value_discretization_interval=step)
        )
    # two places, of which a record makes one better and one worse by the sensitivity
    for epsilon in splits:
        lie = 2 / (math.exp(epsilon / 2) + 1)
        loss = loss.compose(
            pld.from_randomized_response(lie, 2, value_discretization_interval=step)
        )
    return float(loss.get_epsilon_for_delta(delta))


def test_dpms_cost_agrees_with_an_independent_composition() -> None:
    for relation, (scales, delta) in itertools.product(
        RELATIONS,
        [
            (DPM, 1e-6),
            (DpmScales(2, 5.0, 0.3, 0.7), 1e-5),
            (DpmScales(3, 700.0, 0.004, 60.0), 1e-6),
        ],
    ):
        stated = scales.epsilon(delta, relation)
        renyi, most_expensive = max(
            (renyi_epsilon(course, delta), course) for course in set(courses(scales, relation))
        )
        assert 0.99 * renyi <= stated <= 1.02 * renyi  # orders differ
        tight = pld_epsilon(most_expensive, delta, stated / 4000)
        assert tight <= stated <= 1.25 * tight


def exact_divergence(order: Decimal, epsilon: Decimal) -> Decimal:
    """Mironov (2017), proposition 6, as printed."""
    first = order / (2 * order - 1) * ((order - 1) * epsilon).exp()
    return (first + (order - 1) / (2 * order - 1) * (-order * epsilon).exp()).ln() / (order - 1)


def test_laplace_divergence_is_never_below_the_exact_one_and_hardly_above() -> None:
    for epsilon in [1e-12, 1e-9, 1e-6, 1e-3, 0.1, 1.0, 30.0]:
        found = _laplace_divergence(epsilon)
        with localcontext(PRECISE):
            exact = [exact_divergence(Decimal(float(order)), Decimal(epsilon)) for order in ORDERS]
            assert all(
                value
                <= Decimal(float(mine)) * (1 + Decimal("1e-15"))
                <= value * Decimal("1.0001") + Decimal("1e-30")
                for value, mine in zip(exact, found, strict=True)
            )


def test_laplace_divergence_is_dp_accountings() -> None:
    library = RdpAccountant(list(ORDERS)).compose(LaplaceDpEvent(1 / 0.7)).rdp
    np.testing.assert_allclose(_laplace_divergence(0.7), library, rtol=1e-9)


def test_small_epsilons_are_certified() -> None:
    """By Renyi divergences, converted in 60 digits: no epsilon is 0 through cancellation."""
    for epsilon, delta in [(1e-3, 1e-8), (1e-3, 1e-10), (1e-6, 1e-8), (1e-2, 1e-6)]:
        scales = Dpm(epsilon, delta, depth=3).scales
        stated = scales.epsilon(delta, "add_remove")
        assert 0.999 * epsilon <= stated <= epsilon
        with localcontext(PRECISE):
            proven = min(
                certified(scales, Decimal(float(order)), Decimal(delta)) for order in ORDERS
            )
        assert proven <= stated <= float(proven) * (1 + 1e-6)


def certified(scales: DpmScales, order: Decimal, delta: Decimal) -> Decimal:
    """Of a record that comes or goes, at one order."""
    counts = sum(exact_divergence(order, Decimal(1 / scale)) for scale in scales.count_scales)
    splits = sum(order * Decimal(epsilon) ** 2 / 8 for epsilon in scales.split_epsilons)
    divergence = counts + splits + order / (2 * Decimal(scales.sum_sd) ** 2)
    return divergence + (1 - 1 / order).ln() - (delta * order).ln() / (order - 1)


def test_levels_have_less_and_less_noise() -> None:
    assert DPM.count_scales[0] == DPM.count_scale
    assert DPM.split_epsilons[0] == DPM.split_epsilon
    assert (len(DPM.count_scales), len(DPM.split_epsilons)) == (8, 7)
    assert DPM.count_scales[6] == pytest.approx(DPM.count_scale / 8)
    assert DPM.split_epsilons[6] == pytest.approx(DPM.split_epsilon * 8)


# --- both -----------------------------------------------------------------------------------------


@cache
def calibrated(relation: Relation) -> tuple[Chang | Dpm, ...]:
    return (
        Chang(5, 0.7, 1e-6, 4, relation=relation),
        Chang(5, 5.0, 1e-3, 4, depth=3, relation=relation),
        Dpm(0.7, 1e-6, relation),
        Dpm(5.0, 1e-3, relation, depth=3, projection=4),
    )


def test_settings_that_went_through_a_file_give_the_methods_cost() -> None:
    for relation, calibrated_for in itertools.product(RELATIONS, RELATIONS):
        for method in calibrated(calibrated_for):
            recorded = json.loads(json.dumps(method.settings))
            assert (
                centers_epsilon(method.name, recorded, method.delta, relation)
                == method.cost(relation).epsilon
            )  # type: ignore[arg-type]
            assert len(recorded) < 40


def test_every_setting_counts() -> None:
    for relation, (scales, field, more) in itertools.product(
        RELATIONS,
        [
            *[
                (CHANG, name, more)
                for name, more in (("depth", 13), ("count_scale", 15.0), ("sum_sd", 5.0))
            ],
            *[
                (DPM, name, more)
                for name, more in (("depth", 8), ("count_scale", 90.0), ("sum_sd", 5.0))
            ],
            (DPM, "split_epsilon", 0.02),
        ],
    ):
        method = "chang" if isinstance(scales, ChangScales) else "dpm"
        dearer = {**asdict(scales), field: more}
        # Chang's most expensive case under replace can be that without counts, or that with them.
        before = centers_epsilon(method, asdict(scales), 1e-6, relation)
        assert centers_epsilon(method, dearer, 1e-6, relation) > before
        assert centers_epsilon(method, asdict(scales), 1e-8, relation) > before


def test_what_is_no_scale_is_refused_by_its_name() -> None:
    for (method, good), bad in itertools.product(
        [("chang", asdict(CHANG)), ("dpm", asdict(DPM))],
        [
            None,
            "6",
            True,
            0,
            -1,
            MOST_DEPTH + 1e300,
            math.nan,
            math.inf,
            -math.inf,
            10**400,
            1e-300,
            [1],
            1j,
        ],
    ):
        for name in good:
            with pytest.raises(ValueError, match=name):
                centers_epsilon(method, {**good, name: bad}, 1e-6, "replace")
            with pytest.raises(ValueError, match=name):
                centers_epsilon(
                    method,
                    {key: value for key, value in good.items() if key != name},
                    1e-6,
                    "replace",
                )


def test_other_arguments_out_of_range_are_refused() -> None:
    for method, good in [("chang", asdict(CHANG)), ("dpm", asdict(DPM))]:
        for depth in (2.0, 0, MOST_DEPTH + 1, 10**9):
            with pytest.raises(ValueError, match="depth"):
                centers_epsilon(method, {**good, "depth": depth}, 1e-6, "replace")
        for delta in (0.0, -1e-6, LEAST_DELTA / 2, 0.5, 1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match="delta"):
                centers_epsilon(method, good, delta, "replace")
        unknown: Any = "both"
        with pytest.raises(ValueError, match="relation"):
            centers_epsilon(method, good, 1e-6, unknown)
        with pytest.raises(ValueError, match="k-means"):
            centers_epsilon("k-means", good, 1e-6, "replace")  # type: ignore[arg-type]


ANYTHING = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(1e-12, 1e12),
    st.integers(-3, 70),
    st.integers(),
    st.text(max_size=4),
    st.booleans(),
)
NAMES = st.sampled_from(["depth", "count_scale", "split_epsilon", "sum_sd", "epsilon"])


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["chang", "dpm"]),
    st.dictionaries(NAMES, ANYTHING),
    st.one_of(st.just(1e-6), st.floats()),
    st.sampled_from(RELATIONS),
)
def test_garbage_gives_a_cost_or_a_refusal(
    method: Any, found: dict[str, Any], delta: float, relation: Any
) -> None:
    cost_or_refusal(method, found, delta, relation)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["chang", "dpm"]),
    st.integers(1, MOST_DEPTH),
    *[st.floats(-35, 55)] * 3,
    st.floats(-10, -1),
    st.sampled_from(RELATIONS),
)
def test_any_scales_give_a_cost_or_a_refusal(
    method: Any, depth: int, counts: float, splits: float, sums: float, delta: float, relation: Any
) -> None:
    found = {
        "depth": depth,
        "count_scale": 2.0**counts,
        "split_epsilon": 2.0**splits,
        "sum_sd": 2.0**sums,
    }
    cost_or_refusal(method, found, 10.0**delta, relation)


def cost_or_refusal(method: Any, found: dict[str, Any], delta: float, relation: Any) -> None:
    try:
        assert 0 <= centers_epsilon(method, found, delta, relation) < math.inf
    except ValueError as error:
        assert "must" in str(error)


# --- calibration ----------------------------------------------------------------------------------


def test_a_budget_is_met_or_refused_by_its_name() -> None:
    for method, epsilon, delta in itertools.product(
        [lambda *budget: Chang(5, *budget, 4), Dpm], [1e-300, 1e-6, 1e-3, 1e6, 1e300], [1e-10, 0.1]
    ):
        try:
            found = method(epsilon, delta)
        except ValueError as error:
            assert f"epsilon {epsilon}" in str(error)
            assert not 1e-3 <= epsilon <= 1e6
        else:
            assert epsilon / 2 <= found.cost("add_remove").epsilon <= epsilon
