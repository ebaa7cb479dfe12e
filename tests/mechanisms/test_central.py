"""The central mean as an integral, against every kind of neighbour, as the median, and in a run."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from dpaudit.accounting import exact_cost, theorem1_cost
from dpaudit.mechanisms import Arrays, Central, ContextChange, Mechanism, Relation
from dpaudit.runs import RunReader, Step, aggregate_digest
from tests.mechanisms import test_conformance as conformance
from tests.mechanisms.test_conformance import (
    CLIP,
    GROUPS,
    RELATIONS,
    Floats,
    central_case,
    contexts,
)
from tests.mechanisms.test_toy_aggregator import dpaudit, replanted
from tests.mechanisms.test_toy_aggregator import settings as config_of
from tests.nesting import read_run

Integers = NDArray[np.int64]


def of(m: int, temperature: float = 1.0, **fields: Any) -> Mechanism:
    return central_case(m).mechanism(temperature, **fields)


# --- the definition -------------------------------------------------------------------------------


def integral(values: list[float], m: int, shift: Fraction = Fraction(0)) -> Fraction:
    """1/m of the sorted values' (a step function's) integral on [n/2 - m/2, n/2 + m/2] + shift."""
    n, ordered = len(values), sorted(values)
    begin = Fraction(n - m, 2) + shift
    total = Fraction(0)
    for cell in range(math.floor(begin), math.ceil(begin + m)):
        value = -CLIP if cell < 0 else CLIP if cell >= n else ordered[cell]
        total += Fraction(value) * (min(cell + 1, begin + m) - max(cell, begin))
    return total / m


@given(
    st.integers(0, 9),
    st.integers(1, 12),
    st.integers(0),
    st.booleans(),
    st.sampled_from(["float32", "float64"]),
)
@settings(max_examples=300)
def test_aggregate_and_box_are_the_integrals(
    n: int, m: int, seed: int, on_grid: bool, dtype: str
) -> None:
    mechanism, grid = of(m), 0.5 if on_grid else None
    values = contexts(np.random.default_rng(seed), n, 5, dtype, grid)
    wanted_of = cache(
        lambda moved: [float(integral(column, m, moved)) for column in values.T.tolist()]
    )
    for relation, group in itertools.product(RELATIONS, GROUPS):
        change = ContextChange(relation, group)
        arrays = mechanism.aggregator.step(
            values, CLIP, max(2, mechanism.aggregator.width_for(change))
        )
        shift = Fraction(change.half_steps, 2)
        for found, moved in zip(
            mechanism.box(arrays, change), (-shift, Fraction(0), shift), strict=True
        ):
            assert found.dtype == dtype
            wanted = np.array(wanted_of(moved)).astype(dtype)
            # On a grid no sum is rounded, so that the quotient is the definition's to the last bit.
            np.testing.assert_allclose(
                found, wanted, rtol=0, atol=0 if on_grid else 8 * CLIP * np.finfo(dtype).eps
            )


def test_places_beyond_all_contexts_are_sentinels() -> None:
    """Without contexts all tokens are equally probable.

    One context says little among many places.
    """
    for m in (1, 2, 3, 8):
        aggregator = of(m).aggregator
        assert (aggregator.aggregate(aggregator.step(np.zeros((0, 3)), CLIP, 2)) == 0).all()
        one = aggregator.aggregate(aggregator.step(np.array([[CLIP, 1.0, -CLIP]]), CLIP, 2))
        np.testing.assert_allclose(one, np.array([CLIP, 1.0, -CLIP]) / m, rtol=0, atol=1e-15)


def test_m_is_a_whole_number_from_1() -> None:
    for wrong in (0, -1, 129, 1.5, 4.0, True, "4", None):
        with pytest.raises(ValidationError):
            of(1, central=wrong)
    assert Mechanism.model_validate_json(of(8).model_dump_json()).aggregator == Central(central=8)


# --- the median -----------------------------------------------------------------------------------


def same(one: Any, other: Any) -> bool:
    """To the last bit."""
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def test_of_one_place_it_is_the_median_to_the_last_bit() -> None:
    random = np.random.default_rng(0)
    central, median = of(1, 0.7), conformance.CASES[0].mechanism(0.7)
    for n, dtype, grid, _ in itertools.product(
        range(10), ("float32", "float64"), (None, 0.5), range(4)
    ):
        values, token = contexts(random, n, 30, dtype, grid), int(random.integers(30))
        for relation, group in itertools.product(RELATIONS, GROUPS):
            change = ContextChange(relation, group)
            width = central.aggregator.width_for(change)
            assert width == median.aggregator.width_for(change)
            found, wanted = (
                each.aggregator.step(values, CLIP, max(2, width)) for each in (central, median)
            )
            assert found.keys() == wanted.keys()
            assert all(
                same(found[name].reshape(wanted[name].shape), wanted[name]) for name in wanted
            )
            assert same(central.aggregator.aggregate(found), median.aggregator.aggregate(wanted))
            boxes = central.box(found, change), median.box(wanted, change)
            assert all(same(*ends) for ends in zip(*boxes, strict=True))
            for cost in (exact_cost, theorem1_cost):
                assert same(*(cost(*box, token, 0.7) for box in boxes))  # type: ignore[operator]
            reduced = central.reduced(found, token), median.reduced(wanted, token)
            assert same(central.losses(reduced[0], None, n), median.losses(reduced[1], None, n))
            newcomer = contexts(random, 1, 30, "float64", grid)[0]
            assert same(
                central.aggregator.with_context(found, newcomer),
                median.aggregator.with_context(wanted, newcomer),
            )


# --- its neighbours -------------------------------------------------------------------------------

TOKENS, BATCHES = 3, 60
LAST = int(2 * CLIP)  # the clip in steps of a half


def whole(values: Integers, m: int) -> Integers:
    """2m times the central mean, as integers: sums of halves.

    Values are whole numbers [n, columns] from -LAST to LAST.
    """
    ends = np.full((m, values.shape[1]), LAST)
    halves = np.repeat(np.concatenate([-ends, np.sort(values, axis=0), ends]), 2, axis=0)
    window: Integers = halves[len(values) + m : len(values) + 3 * m].sum(axis=0)
    return window


def neighbours(
    values: Integers, relation: Relation, most: int, random: np.random.Generator
) -> Iterator[Integers]:
    """Batches side by side, with up to `most` contexts arriving, leaving or being exchanged."""
    (n, columns), eye = values.shape, 2 * np.eye(TOKENS, dtype=np.int64) - 1
    rows = [*LAST * eye, *-LAST * eye, np.full(TOKENS, LAST), np.full(TOKENS, -LAST)]
    newcomers = [np.tile(row, columns // TOKENS) for row in rows] + [
        random.integers(-LAST, LAST + 1, columns)
    ]
    for gone in range(min(most, n) + 1):
        for places in list(itertools.combinations(range(n), gone))[:12]:
            kept = np.delete(values, places, axis=0)
            come = range(most - gone + 1) if relation == "add_remove" else (gone,)
            for coming, row in itertools.product(come, newcomers):
                yield np.concatenate([kept, np.tile(row, (coming, 1))])


def log_probabilities(aggregate: Floats, temperature: float) -> Floats:
    scaled = aggregate.reshape(-1, TOKENS) / temperature
    found: Floats = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
    return found


def test_of_a_hundred_thousand_neighbours_none_leaves_the_box_and_added_ones_cost_exactly_its_cost() -> (  # noqa: E501
    None
):
    """By integers alone: what a sum of halves is, no rounding can blur."""
    random, tried, reached = np.random.default_rng(0), 0, 0
    for m, n, relation, most in itertools.product(
        (1, 2, 3, 4, 7, 16), (0, 1, 2, 5, 6), RELATIONS, (1, 2)
    ):
        mechanism, change = of(m, temperature=0.8, grid=0.5), ContextChange(relation, most)
        values = random.integers(-LAST, LAST + 1, (n, TOKENS * BATCHES))
        arrays = mechanism.aggregator.step(
            values / 2, CLIP, max(2, mechanism.aggregator.width_for(change))
        )
        lower, center, upper = mechanism.box(arrays, change)
        assert np.array_equal(center, whole(values, m) / (4 * m))
        ends = [end.reshape(BATCHES, 1, TOKENS) for end in (lower, center, upper)]
        rise, fall = exact_cost(*ends, np.tile(np.arange(TOKENS), (BATCHES, 1)), 0.8)  # type: ignore[arg-type]
        here, most_up, most_down = (
            log_probabilities(center, 0.8),
            np.zeros_like(rise),
            np.zeros_like(fall),
        )
        for neighbour in neighbours(values, relation, most, random):
            aggregate = whole(neighbour, m) / (4 * m)
            assert ((lower <= aggregate) & (aggregate <= upper)).all()
            ratio = log_probabilities(aggregate, 0.8) - here
            most_up, most_down = np.maximum(most_up, ratio), np.maximum(most_down, -ratio)
            tried += BATCHES
        assert ((most_up <= rise + 1e-12) & (most_down <= fall + 1e-12)).all()
        if relation == "add_remove":
            np.testing.assert_allclose([most_up, most_down], [rise, fall], rtol=0, atol=1e-12)
            reached += rise.size + fall.size
    assert (tried, reached) == (489_240, 21_600)


@given(
    st.integers(0, 8), st.integers(1, 9), st.sampled_from(["float32", "float64"]), st.integers(0)
)
@settings(max_examples=200)
def test_rounding_puts_no_neighbour_outside(n: int, m: int, dtype: str, seed: int) -> None:
    """Sums of values of all magnitudes round in every way, and the box holds to the last bit.

    The boxes of smaller groups lie within those of larger ones.
    """
    random, aggregator = np.random.default_rng(seed), of(m).aggregator
    shape = (n + 3, 40)
    values = (CLIP * random.choice([-1, 1], shape) * 10.0 ** random.uniform(-20, 0, shape)).astype(
        dtype
    )
    values[:, :8] = values[0, :8]  # equal ones, whose sum may not be that many times one
    arrays = [aggregator.step(values[:count], CLIP, 4) for count in range(n + 4)]
    boxes = [
        aggregator.box(arrays[n], ContextChange("add_remove", group), CLIP) for group in (1, 2, 3)
    ]
    for group, (lower, center, upper) in enumerate(boxes, 1):
        assert ((lower <= center) & (center <= upper)).all()
        for count in range(max(0, n - group), n + group + 1):
            aggregate = aggregator.aggregate(arrays[count])
            assert ((lower <= aggregate) & (aggregate <= upper)).all()
    for wider, narrower in itertools.pairwise(reversed(boxes)):
        assert ((wider[0] <= narrower[0]) & (narrower[2] <= wider[2])).all()
    still = ~aggregator.movable(arrays[n])  # type: ignore[operator]
    assert np.array_equal(
        aggregator.aggregate(arrays[n - 1 if n else 0])[still], boxes[0][1][still]
    )


@pytest.mark.parametrize("m", [2, 3, 9])
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_it_conforms_for_other_m(check: Callable[[conformance.Case], None], m: int) -> None:
    check(central_case(m))


@pytest.mark.parametrize("m", [3, 8])
def test_its_neighbours_lie_in_its_box_and_its_steps_come_back(m: int, tmp_path: Path) -> None:
    conformance.check_neighbours(central_case(m), batches=12)
    conformance.check_round_trip(central_case(m), tmp_path)


# --- its record -----------------------------------------------------------------------------------


def test_what_contradicts_a_record_is_seen() -> None:
    mechanism, random = of(4), np.random.default_rng(0)
    for n in (2, 7, 8):
        values = random.uniform(-CLIP, CLIP, (n, 40))
        arrays = mechanism.aggregator.step(values, CLIP, 2)
        assert conformance.problems(mechanism, arrays, values) == []
        rows, holder = arrays["central"], arrays["holder"]
        faults: list[tuple[str, Arrays]] = [
            ("not-ascending", {"central": rows[::-1]}),
            ("other-central-values", {"central": rows[1:-1]}),  # a row too few on either side
            ("other-central-values", mechanism.aggregator.step(values / 2, CLIP, 2)),
            ("two-places", {"holder": np.concatenate([holder[:1], holder[:-1]])}),
            ("sides-contradict-contexts", {"holder": holder[::-1]}),
            ("contexts-below", {"sides": ~arrays["sides"]}),
            ("holder-out-of-place", {"holder": holder + np.uint32(n)}),
        ]
        for code, fault in faults:
            found = conformance.problems(mechanism, {**arrays, **fault}, values)
            assert f"mechanisms.{code}" in {problem.code for problem in found}, (n, code, found)
    with pytest.raises(ValueError, match=r"7 central values .* a replace of 2 context"):
        mechanism.box({"central": np.zeros((7, 1))}, ContextChange("replace", 2))


# --- a run ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and a run of central means and one of medians from it."""
    pytest.importorskip("torch")
    from benchmarks.tiny import save_tiny_model

    folder = tmp_path_factory.mktemp("central")
    save_tiny_model(folder / "model")
    lines = ["label,text", *(f"north,{number} lorem ipsum" for number in range(14))]
    (folder / "records.csv").write_text("\n".join(lines) + "\n")
    for aggregator in ({"aggregator": "central", "central": 4}, {"aggregator": "median"}):
        config = folder / f"{aggregator['aggregator']}.yaml"
        config.write_text(json.dumps(config_of(folder, aggregator)))  # JSON is YAML too
        code, said = dpaudit("generate", config, "--out", folder / str(aggregator["aggregator"]))
        assert code == 0, said
    return folder


def test_its_run_passes_with_all_evidence_and_has_every_report(made: Path, tmp_path: Path) -> None:
    run = made / "central"
    manifest = read_run(run)
    mechanism = manifest["mechanism"]
    assert (
        mechanism["aggregator"] == {"kind": "central", "central": 4}
        and manifest["record"]["dtype"] == "float32"
    )
    assert (manifest["claim"]["kind"], manifest["claim"]["delta"]) == ("ex-post", 0.0)
    assert dpaudit("verify", run)[0] == 0
    code, said = dpaudit(
        "report", run, "--data", made / "records.csv", "--evidence", 4, "--out", tmp_path
    )
    assert code == 0, said
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "pass"
    assert report["guarantees"]["approximate"] is None
    assert (
        0 < report["guarantees"]["ex_post"]["exact"] <= report["guarantees"]["ex_post"]["theorem1"]
    )
    checks = {check["id"]: check["status"] for check in report["checks"]}
    for check in ("replay.logits", "replay.lower-bound", "record.sides", "record.aggregate"):
        assert checks[check] == "pass"
    for check in ("neighbors.removal", "neighbors.addition", "neighbors.regenerated"):
        assert checks[check] == "pass"
    assert checks["mechanism.divisor"] == "skip"
    assert "Central mean aggregation" in (tmp_path / "report.html").read_text()
    assert dpaudit("report", run, "--audience", "public", "--out", tmp_path / "public")[0] == 0
    code, said = dpaudit("verify", run, "--relation", "replace", "--epsilon", 1e3)
    assert code == 0, said
    code, said = dpaudit("verify", run, "--epsilon", 1e3, "--delta", 1e-3)
    assert code == 1, said  # nothing can be promised beforehand


def test_its_run_is_inspected_and_compared_with_a_median_run(made: Path, tmp_path: Path) -> None:
    code, said = dpaudit("inspect", made / "central", "--batch", 0)
    assert code == 0, said
    code, said = dpaudit(
        "compare", made / "central", made / "median", "--out", tmp_path / "comparison.html"
    )
    assert code == 0, said
    assert "central" in (tmp_path / "comparison.html").read_text()


def altered(**arrays: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Step], Step]:
    """A step with arrays put wrong, whose digest follows them."""

    def fault(step: Step) -> Step:
        found = {
            **step.arrays,
            **{name: change(step.arrays[name].copy()) for name, change in arrays.items()},
        }
        digest = aggregate_digest(Central(central=4).aggregate(found))
        return Step(step.token, step.log_probability, digest, found, step.contexts, step.support)

    return fault


def with_first(value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Rows whose lowest value of the first token is another."""

    def change(rows: NDArray[Any]) -> NDArray[Any]:
        rows[0, 0] = value
        return rows

    return change


def of_another_window(step: Step) -> Step:
    """A step that was sampled from as many places as declared, half a place too high."""
    aggregate = Central(central=4).aggregate({"central": step.arrays["central"][1:]})
    digest = aggregate_digest(aggregate)
    return Step(step.token, step.log_probability, digest, step.arrays, step.contexts, step.support)


def test_a_fault_in_its_run_fails(made: Path, tmp_path: Path) -> None:
    faults = {
        "record.range": altered(central=lambda rows: rows[::-1]),
        "record.aggregate": altered(central=lambda rows: rows / 2),
        "record.sides": altered(holder=lambda holder: np.concatenate([holder[:1], holder[:-1]])),
    }
    impossible = [
        ("record.range", altered(central=with_first(value)))
        for value in (math.nan, math.inf, -3e38)
    ]
    listed = [*faults.items(), ("record.aggregate", of_another_window), *impossible]
    for number, (check, fault) in enumerate(listed):
        run = replanted(made / "central", tmp_path / str(number), fault)
        code, said = dpaudit("verify", run)
        assert code == 1, said
        assert f"FAIL {check}" in said
    assert (
        dpaudit("verify", replanted(made / "central", tmp_path / "honest", lambda step: step))[0]
        == 0
    )


def test_a_record_of_fewer_places_than_declared_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="central must be <f4"):
        replanted(made / "central", tmp_path / "narrow", altered(central=lambda rows: rows[1:-1]))
    for declared in (2, 3, 5, 6):
        run = Path(shutil.copytree(made / "central", tmp_path / str(declared)))
        text = (run / "run.json").read_text()
        (run / "run.json").write_text(text.replace('"central": 4', f'"central": {declared}'))
        assert RunReader(run).manifest.mechanism.aggregator == Central(central=declared)
        code, said = dpaudit("verify", run)
        assert (code == 2 and "not a whole batch" in said) or (
            code == 1 and "FAIL record.aggregate" in said
        ), said
