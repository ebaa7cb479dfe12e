"""Replayed steps of runs whose clipped logits are rounded to a grid: rounding is told from forgery, however coarse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpaudit.audit import audit_run
from dpaudit.generation.aggregation import aggregated, clipped
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.replay import ReplayedStep, _compared, _Computed, replay
from dpaudit.mechanisms import Mechanism, log_probability
from dpaudit.runs import RunReader, Step

Logits = NDArray[np.float32]

TOLERANCE = 1e-4
MEDIAN = Mechanism(aggregator="median", clip=4.0, temperature=0.8, grid=0.25)
MEAN = Mechanism(aggregator="mean", clip=4.0, temperature=0.8, grid=0.25, divisor=3.0)
mechanisms = st.sampled_from(
    [mechanism.model_copy(update={"grid": grid}) for mechanism in (MEDIAN, MEAN) for grid in (1.0, 0.25, 2.0**-6)]
)
contexts = st.integers(1, 9)
seeds = st.integers(0, 2**32 - 1)


def logits_of(n: int, seed: int, size: int = 60) -> Logits:
    random = np.random.default_rng(seed)
    return (random.normal(0, 3, size) + random.normal(0, 1, (n, size))).astype(np.float32)


def computed(mechanism: Mechanism, raw: Logits, token: int) -> _Computed:
    return _Computed(mechanism, raw, None, aggregated(raw, None, mechanism, 2), token, TOLERANCE, "")


def recorded(mechanism: Mechanism, raw: Logits, token: int) -> Step:
    here = aggregated(raw, None, mechanism, 2)
    return Step(
        token=token,
        log_probability=log_probability(here.aggregate, token, mechanism.temperature),
        aggregate_digest=bytes(32),
        central=here.central,
        sides=here.sides,
        holder=here.holder,
        aggregate=here.aggregate if here.central is None else None,
        contexts=clipped(raw, None, mechanism),
    )


def compared(mechanism: Mechanism, step: Step, raw: Logits) -> ReplayedStep:
    return _compared(0, 0, step, computed(mechanism, raw, step.token), None)


def agrees(found: ReplayedStep) -> bool:
    return not found.problem and found.difference <= found.tolerance


@given(mechanism=mechanisms, n=contexts, seed=seeds)
def test_where_the_run_was_made_nothing_is_off(mechanism: Mechanism, n: int, seed: int) -> None:
    raw = logits_of(n, seed)
    found = compared(mechanism, recorded(mechanism, raw, 5), raw)
    assert (found.difference, found.problem) == (0.0, "")


@given(mechanism=mechanisms, n=contexts, seed=seeds)
def test_rounding_of_logits_is_forgiven_also_where_it_crosses_to_another_step(
    mechanism: Mechanism, n: int, seed: int
) -> None:
    raw = logits_of(n, seed)
    values = clipped(raw, None, mechanism.model_copy(update={"grid": None}))
    assert mechanism.grid is not None
    # Every third logit is put on the boundary between two steps, where the least error changes the rounded value.
    boundary = np.floor(values[:, ::3] / mechanism.grid) * mechanism.grid + mechanism.grid / 2
    kept = np.abs(boundary) < mechanism.clip
    raw[:, ::3] += np.where(kept, boundary - values[:, ::3], 0).astype(np.float32)
    noise = np.random.default_rng(seed).uniform(-TOLERANCE / 3, TOLERANCE / 3, raw.shape).astype(np.float32)
    assert agrees(compared(mechanism, recorded(mechanism, raw + noise, 5), raw))


@given(n=contexts, seed=seeds, column=st.integers(0, 59), up=st.booleans())
def test_a_central_value_one_step_off_is_told(n: int, seed: int, column: int, up: bool) -> None:
    raw = logits_of(n, seed)
    step = recorded(MEDIAN, raw, 5)
    assert step.central is not None
    central = step.central.copy()
    central[:, column] += 0.25 if up else -0.25
    found = compared(MEDIAN, replace(step, central=central), raw)
    free = computed(MEDIAN, raw, 5).free[:, column]
    excused = np.abs(np.abs(free - np.round(free / 0.25) * 0.25) - 0.125).min() <= TOLERANCE
    assert excused or not agrees(found)
    assert found.tolerance == TOLERANCE


@given(n=contexts, seed=seeds, column=st.integers(0, 59))
def test_a_mean_one_step_off_is_told(n: int, seed: int, column: int) -> None:
    raw = logits_of(n, seed)
    step, here = recorded(MEAN, raw, 5), computed(MEAN, raw, 5)
    assert step.aggregate is not None
    means = step.aggregate.copy()
    means[column] += 0.25 / 3
    least, greatest = here.ends
    assert (least <= step.aggregate + 1e-9).all() and (step.aggregate <= greatest + 1e-9).all()
    if means[column] > greatest[column] + 1e-6:
        assert "not of the model's logits" in compared(MEAN, replace(step, aggregate=means), raw).problem


@pytest.mark.parametrize("mechanism", [MEDIAN, MEAN], ids=["median", "mean"])
@pytest.mark.parametrize("n", [4, 5])
def test_contexts_sides_and_probabilities_are_told(mechanism: Mechanism, n: int) -> None:
    raw = logits_of(n, 1)
    step = recorded(mechanism, raw, 5)
    assert step.contexts is not None
    other = step.contexts.copy()
    other[0, 7] += 0.25
    assert "recorded contexts are" in compared(mechanism, replace(step, contexts=other), raw).problem
    unlikelier = replace(step, log_probability=step.log_probability - 0.01)
    assert "nats off" in compared(mechanism, unlikelier, raw).problem
    if step.sides is not None:
        below = np.roll(np.unpackbits(step.sides, axis=0, count=n), 1, axis=0)
        assert "sides are not" in compared(mechanism, replace(step, sides=np.packbits(below, axis=0)), raw).problem
    if step.holder is not None:
        moved = ((step.holder + 1) % n).astype(np.uint32)
        assert "does not hold it" in compared(mechanism, replace(step, holder=moved), raw).problem


@pytest.mark.parametrize("mechanism", [MEDIAN, MEAN], ids=["median", "mean"])
def test_values_that_are_no_numbers_are_told(mechanism: Mechanism) -> None:
    raw = logits_of(4, 1)
    step = recorded(mechanism, raw, 5)
    name = "central" if step.aggregate is None else "aggregate"
    values = getattr(step, name).copy()
    values[..., 3] = np.nan
    assert not agrees(compared(mechanism, replace(step, **{name: values}), raw))


@given(mechanism=mechanisms, n=contexts, seed=seeds)
def test_no_probability_lies_beyond_what_its_tolerance_says(mechanism: Mechanism, n: int, seed: int) -> None:
    raw = logits_of(n, seed)
    here = computed(mechanism, raw, 5)
    noise = np.random.default_rng(seed).choice([-TOLERANCE, TOLERANCE], raw.shape).astype(np.float32) / 3
    other = computed(mechanism, raw + noise, 5)
    assert abs(here.log_probability() - other.log_probability()) <= here.nats + 1e-9


@pytest.mark.parametrize("section", [{}, {"aggregator": "mean", "divisor": 4.0}], ids=["median", "mean"])
def test_a_run_on_a_grid_passes_its_audit_and_its_replay(
    tmp_path: Path, make_config: Callable[..., Config], data_file: Path, section: dict[str, Any]
) -> None:
    run = generate(make_config(mechanism={"grid": 2.0**-6, **section}, record={"contexts": True}), tmp_path / "run")
    reader = RunReader(run)
    assert reader.manifest.mechanism.grid == 2.0**-6
    with reader.batch(0) as batch:
        for step in batch.steps():
            assert step.contexts is not None
            assert (step.contexts * 64 % 1 == 0).all()
    found = replay(run, str(data_file), steps=100, left_out=3, trials=1)
    assert {(step.difference, step.problem) for step in found.steps} == {(0.0, "")}
    failed = {check.id for check in audit_run(run, replay=found).checks if check.status in ("fail", "error")}
    assert failed == {"mechanism.randomness"}  # tests generate with a seed
