"""One suite that every contribution and every aggregator of the registry passes.

What each of them is stands here once more, written naively, a column at a time. Columns are
aggregated one by one, so that many batches are aggregated at once by standing side by side: [n,
batches * tokens].
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from dpaudit.accounting import exact_cost, theorem1_cost
from dpaudit.accounting.ex_post import step_costs
from dpaudit.mechanisms import (
    AGGREGATORS,
    ANCHOR,
    CONTRIBUTIONS,
    Arrays,
    ContextChange,
    Mechanism,
    Problem,
    Recomputed,
    ReducedSteps,
    Relation,
    Spans,
    Support,
    with_anchor,
)
from dpaudit.runs import (
    BatchHeader,
    Batching,
    Data,
    Decoding,
    Manifest,
    Model,
    Prompt,
    Record,
    Step,
)
from dpaudit.runs.batches import BatchArrays, BatchReader, BatchWriter
from tests.nesting import mechanism_with

CLIP, GRID = 3.0, 0.5
RELATIONS: tuple[Relation, ...] = ("add_remove", "replace")
SIZES, GROUPS, DTYPES = range(10), (1, 2, 3), ("float32", "float64")
#: Rounding of two logarithms of sums of at most eight terms.
SLACK = 1e-12

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Case:
    """An aggregator, and what it is by its definition.

    Attributes:
        name: in the registry.
        record: a step's arrays from contributions [n, S], the clip and the width.
        aggregate: the vector [S] from contributions [n, S].
        fields: of its own.
        rounding: how far recorded reals may be off the definition's; 0 where they are the same to
            the last bit.
        reaches: whether added contexts reach the exact cost, to within `reached` nats.
        reached: see there.
        from_record: whether losses follow from the record without contributions.
    """

    name: str
    record: Callable[[Floats, float, int], Arrays]
    aggregate: Callable[[Floats], Floats]
    fields: dict[str, Any] = field(default_factory=dict)
    rounding: float = 0.0
    reaches: bool = True
    reached: float = 1e-10
    from_record: bool = False

    def mechanism(self, temperature: float = 1.0, **fields: Any) -> Mechanism:
        flat = {
            "aggregator": self.name,
            "clip": CLIP,
            "temperature": temperature,
            **self.fields,
            **fields,
        }
        return mechanism_with(flat)


def median(values: Floats) -> Floats:
    """The middle value, the midpoint of two in the values' own precision, or 0 for no value."""
    ordered, n = np.sort(values, axis=0), len(values)
    if n % 2:
        return ordered[n // 2]
    return (
        (ordered[n // 2 - 1] + ordered[n // 2]) * values.dtype.type(0.5)
        if n
        else np.zeros_like(values[:0].sum(0))
    )


def median_record(values: Floats, clip: float, width: int) -> Arrays:
    """Columns, each sorted between sentinels; the contexts' ranks have ties in their order."""
    n, size = values.shape
    central = np.empty((2 * width + n % 2, size), dtype=values.dtype)
    below, holder = np.zeros((n, size), dtype=np.bool_), np.zeros(size, dtype=np.uint32)
    for column in range(size):
        padded = [-clip] * width + sorted(values[:, column]) + [clip] * width
        central[:, column] = padded[n // 2 : n // 2 + 2 * width + n % 2]
        if central[width - 1, column] != central[width + n % 2, column]:
            ranked = np.argsort(values[:, column], kind="stable")
            below[ranked[: n // 2], column] = True
            holder[column] = ranked[n // 2] if n % 2 else 0
    arrays: Arrays = {"central": central}
    if n:
        arrays["sides"] = np.packbits(below, axis=0)
    if n % 2:
        arrays["holder"] = holder
    return arrays


def central_mean(values: Floats, m: int) -> Floats:
    """The mean of the 2m middle halves of the sorted values between sentinels, summed as it sums.

    Every sorted value counts as two halves, and pairs of halves are added up. They are added in the
    mechanism's order, the first half of all pairs to the last, and so on: it rounds as they do.
    """
    n, ends = len(values), np.full_like(values, CLIP, shape=(m, values.shape[1]))
    halves = np.repeat(np.concatenate([-ends, np.sort(values, axis=0), ends]), 2, axis=0).astype(
        np.float64
    )
    pairs = [halves[i] + halves[i + 1] for i in range(n + m, n + 3 * m, 2)]
    while (left := len(pairs)) > 1:
        low, between, high = (
            pairs[: left // 2],
            pairs[left // 2 : -(left // 2)],
            pairs[-(left // 2) :],
        )
        pairs = [one + other for one, other in zip(low, high, strict=True)] + between
    return (pairs[0] / (2 * m)).astype(values.dtype)


def central_record(values: Floats, clip: float, width: int, m: int) -> Arrays:
    """Columns, each sorted between sentinels; the contexts' ranks have ties in their order."""
    (n, size), kept = values.shape, width + m // 2
    held = min(m if (n - m) % 2 == 0 else m - 1, n)
    first, central = (n - held) // 2, np.empty((2 * kept + n % 2, size), dtype=values.dtype)
    below, holder = np.zeros((n, size), dtype=np.bool_), np.zeros((held, size), dtype=np.uint32)
    for column in range(size):
        ranked = sorted(range(n), key=lambda context: (values[context, column], context))
        padded = [-clip] * (kept + 1) + sorted(values[:, column]) + [clip] * (kept + 1)
        central[:, column] = padded[n // 2 + 1 : n // 2 + 1 + 2 * kept + n % 2]
        if padded[kept + first] != padded[kept + 1 + first + held]:
            below[ranked[:first], column] = True
            holder[:, column] = ranked[first : first + held]
    arrays: Arrays = {"central": central}
    if n:
        arrays["sides"] = np.packbits(below, axis=0)
    if held:
        arrays["holder"] = holder
    return arrays


def central_case(m: int) -> Case:
    return Case(
        "central",
        lambda values, clip, width: central_record(values, clip, width, m),
        lambda values: central_mean(values, m),
        {"central": m},
        from_record=True,
    )


DIVISOR = 3.7
CASES = (
    Case("median", median_record, median, from_record=True),
    central_case(4),
    Case(
        "mean",
        lambda values, clip, width: {"aggregate": values.sum(axis=0, dtype=np.float64) / DIVISOR},
        lambda values: values.sum(axis=0, dtype=np.float64) / DIVISOR,
        {"divisor": DIVISOR},
        rounding=1e-13,
        reached=1e-6,
    ),
)
every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def test_the_suite_knows_every_aggregator_and_every_contribution() -> None:
    assert {case.name for case in CASES} == AGGREGATORS.keys()
    assert CONTRIBUTIONS.keys() == DEFINITIONS.keys()


# --- batches and their neighbours -----------------------------------------------------------------


def contexts(
    random: np.random.Generator,
    n: int,
    size: int,
    dtype: str = "float64",
    grid: float | None = None,
) -> Any:
    """Contributions [n, S]: ties and floors are common, and every context's largest is the clip."""
    logits = random.normal(0, random.choice([0.5, 2.0, 8.0]), (n, size))
    if random.integers(2):
        logits = np.round(logits)
    values = np.maximum(
        -CLIP, logits - logits.max(axis=1, keepdims=True, initial=-np.inf) + CLIP
    ).astype(dtype)
    values[:, random.random(size) < 0.2] = -CLIP
    if grid is not None:
        values = np.rint(values / np.array(grid, dtype)) * np.array(grid, dtype)
    return values + np.array(0, dtype)  # no -0.0


def some_anchor(random: np.random.Generator, batches: int, size: int) -> NDArray[np.float32]:
    """Log-probabilities of public prompts side by side, [batches * size]."""
    logits = random.normal(0, random.choice([0.3, 2.0, 6.0]), (batches, size))
    return (
        (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32).reshape(-1)
    )


def recorded(
    mechanism: Mechanism, values: Floats, width: int, random: np.random.Generator
) -> Arrays:
    """A step's arrays: those of the aggregator, and an anchor where there is one."""
    arrays = mechanism.aggregator.step(values, CLIP, width)
    anchored = mechanism.contribution.anchored
    return arrays | ({ANCHOR: some_anchor(random, 1, values.shape[1])} if anchored else {})


@dataclass
class Block:
    """Random batches of one shape side by side, and the tools to make their neighbours.

    They are the same for every contribution: what aggregators make of them is worked out once.
    """

    case: Case
    n: int
    change: ContextChange
    dtype: str
    grid: float | None
    seed: int
    batches: int = 48

    def __post_init__(self) -> None:
        self.random = np.random.default_rng([self.seed, self.n, self.change.half_steps])
        self.size = int(self.random.integers(2, 7))
        self.temperature = float(self.random.choice([0.5, 1.0, 2.5]))
        self.values = self.some(self.n)
        self.anchor = some_anchor(self.random, self.batches, self.size)

    @cached_property
    def aggregates(self) -> list[Floats]:
        """The neighbours' vectors by the definition, without an anchor."""
        return [self.case.aggregate(neighbour) for neighbour in self.neighbours()]

    def some(self, n: int) -> Floats:
        """Random contexts of every batch, [n, batches * size]."""
        parts = [
            contexts(self.random, n, 12 * self.size, self.dtype, self.grid)
            for _ in range(self.batches // 12)
        ]
        return np.concatenate(parts, axis=1)

    def newcomers(self) -> Iterator[Floats]:
        """Possible new contexts [1, batches * size]: for and against tokens, flat, and random."""
        for token in range(self.size):
            towards = np.where(np.arange(self.size) == token, CLIP, -CLIP).astype(self.dtype)
            yield np.tile(towards, self.batches)[None]
            yield np.tile(-towards, self.batches)[None]
        yield np.full_like(self.values[:1], CLIP, shape=(1, self.values.shape[1]))
        yield self.some(1)

    def kept(self, gone: int) -> Iterator[Floats]:
        for places in itertools.combinations(range(self.n), gone):
            yield np.delete(self.values, places, axis=0)

    def neighbours(self) -> Iterator[Floats]:
        """Batches within the change: removals, extreme and random additions, exchanges."""
        most = self.change.contexts
        removals = [kept for gone in range(1, min(most, self.n) + 1) for kept in self.kept(gone)]
        chosen = [removals[i] for i in self.random.permutation(len(removals))[:3]]
        if self.change.relation == "add_remove":
            yield from removals
            yield from (
                np.concatenate([self.values, *[coming] * most]) for coming in self.newcomers()
            )
            yield from (
                np.concatenate([kept, self.some(most - self.n + len(kept))]) for kept in chosen
            )
        else:
            for kept in chosen:
                yield from (
                    np.concatenate([kept, *[one] * (self.n - len(kept))])
                    for one in self.newcomers()
                )
            yield from (np.concatenate([kept, self.some(self.n - len(kept))]) for kept in removals)

    def side_by_side(self, vector: Floats) -> Floats:
        return vector.reshape(self.batches, self.size)

    def log_probabilities(self, aggregate: Floats) -> NDArray[np.float64]:
        scaled = self.side_by_side(aggregate).astype(np.float64) / self.temperature
        found: NDArray[np.float64] = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
        return found

    def check(self, contribution: str) -> None:
        """Every neighbour is in the box and within the exact cost; added contexts reach it."""
        mechanism = self.case.mechanism(self.temperature, grid=self.grid, contribution=contribution)
        width = max(2, mechanism.aggregator.width_for(self.change))
        arrays = mechanism.aggregator.step(self.values, CLIP, width)
        if mechanism.contribution.anchored:
            arrays[ANCHOR] = self.anchor
        box = lower, center, upper = mechanism.box(arrays, self.change)
        own = with_anchor(arrays, self.case.aggregate(self.values))
        np.testing.assert_allclose(center, own, rtol=0, atol=self.case.rounding)
        assert np.array_equal(center, mechanism.aggregate(arrays))
        movable = mechanism.aggregator.movable(arrays)
        if movable is not None:
            assert np.array_equal(lower[~movable], upper[~movable])
        spread = [self.side_by_side(vector)[:, None, :] for vector in box]
        tokens = np.broadcast_to(np.arange(self.size), (self.batches, self.size))
        theorem1 = theorem1_cost(*spread, tokens, self.temperature)
        rise, fall = exact_cost(*spread, tokens, self.temperature)
        assert (np.maximum(rise, fall) <= theorem1 + SLACK).all()
        here = self.log_probabilities(center)
        most, least, eta = np.zeros_like(here), np.zeros_like(here), mechanism.eta(self.change)
        for unanchored in self.aggregates:
            aggregate = with_anchor(arrays, unanchored)
            assert (lower <= aggregate).all()
            assert (aggregate <= upper).all()
            change = self.log_probabilities(aggregate) - here
            np.maximum(most, change, out=most)
            np.minimum(least, change, out=least)
            assert eta is None or (np.ptp(change, axis=1) <= eta + SLACK).all()
        assert (most <= rise + SLACK).all()
        assert (-least <= fall + SLACK).all()
        if self.change.relation == "add_remove" and self.case.reaches:
            np.testing.assert_allclose(most, rise, rtol=0, atol=self.case.reached)
            np.testing.assert_allclose(-least, fall, rtol=0, atol=self.case.reached)


def check_neighbours(
    case: Case, seed: int = 0, batches: int = 24, *, every_group: bool = False
) -> int:
    """Check all contributions, relations, sizes, precisions and grids; count the batches.

    The count is that of batches per relation. Each combination meets one of the groups, by turns,
    or every one.
    """
    checked, precisions = 0, enumerate(itertools.product(DTYPES, (None, GRID)))
    settings = itertools.product(SIZES, RELATIONS, precisions, GROUPS)
    for n, relation, (turn, (dtype, grid)), group in settings:
        if not every_group and GROUPS[(n + turn) % len(GROUPS)] != group:
            continue
        block = Block(case, n, ContextChange(relation, group), dtype, grid, seed, batches)
        for contribution in CONTRIBUTIONS:
            block.check(contribution)
        checked += batches
    return checked // len(RELATIONS)


@every
def test_no_neighbour_leaves_the_box_or_exceeds_the_costs_and_added_contexts_reach_them(
    case: Case,
) -> None:
    assert check_neighbours(case) == 24 * len(SIZES) * len(DTYPES) * 2


@pytest.mark.slow
@every
def test_nor_does_any_of_a_hundred_thousand_batches(case: Case) -> None:
    """Of each contribution and relation."""
    checked = (check_neighbours(case, seed, 192, every_group=True) for seed in range(1, 6))
    assert sum(checked) > 100_000


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.reaches], ids=lambda case: case.name
)
def test_the_suite_finds_bounds_that_are_too_narrow_or_too_wide(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = AGGREGATORS[case.name]
    honest = kind.box

    def scaled(factor: float) -> Callable[..., Any]:
        def box(self: Any, *arguments: Any) -> Any:
            lower, center, upper = honest(self, *arguments)
            return center + (lower - center) * factor, center, center + (upper - center) * factor

        return box

    for factor in (0.5, 0.999, 1.01):
        monkeypatch.setattr(kind, "box", scaled(factor))
        with pytest.raises(AssertionError):
            Block(case, 4, ContextChange("add_remove"), "float64", None, seed=0).check(
                "differences"
            )


def check_width(case: Case) -> None:
    """A record that is too narrow bounds nothing, and says so.

    For an odd number of contexts a little less may do.
    """
    mechanism, random = case.mechanism(), np.random.default_rng(0)
    for relation, group, width, n in itertools.product(
        RELATIONS, (1, 2, 3, 4), range(1, 7), (4, 5)
    ):
        change = ContextChange(relation, group)
        arrays = mechanism.aggregator.step(contexts(random, n, 4), CLIP, width)
        if mechanism.bounds(change, width):
            mechanism.box(arrays, change)
        elif n % 2 == 0:
            with pytest.raises(ValueError, match="larger width"):
                mechanism.box(arrays, change)


# --- one step -------------------------------------------------------------------------------------


def steps(case: Case) -> st.SearchStrategy[tuple[Mechanism, Floats, int]]:
    """A mechanism, contributions [n, S] and a width."""

    def draw(
        name: str,
        n: int,
        size: int,
        dtype: str,
        grid: float | None,
        temperature: float,
        seed: int,
        width: int,
    ) -> Any:
        mechanism = case.mechanism(temperature, grid=grid, contribution=name)
        return mechanism, contexts(np.random.default_rng(seed), n, size, dtype, grid), width

    sizes = st.one_of(st.integers(0, 9), st.sampled_from([16, 31, 63, 64, 65, 200]))
    grids, temperatures = (
        st.sampled_from([None, GRID, 2.0**-10]),
        st.sampled_from([0.02, 0.3, 1.0, 2.0]),
    )
    columns, dtypes, names = (
        st.integers(1, 30),
        st.sampled_from(DTYPES),
        st.sampled_from(list(CONTRIBUTIONS)),
    )
    return st.builds(
        draw, names, sizes, columns, dtypes, grids, temperatures, st.integers(0), st.integers(2, 4)
    )


def same(one: Arrays, other: Arrays) -> bool:
    """To the last bit."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def check_definition(case: Case) -> None:
    """Arrays have the defined values and shapes; column blocks and other devices change nothing."""
    try:
        import torch
    except ImportError:  # the auditor alone is installed
        torch = None  # type: ignore[assignment]

    @given(steps(case), st.integers(0, 30))
    @settings(max_examples=120)
    def check(step: tuple[Mechanism, Floats, int], edge: int) -> None:
        mechanism, values, width = step
        aggregator, before = mechanism.aggregator, values.copy()
        arrays = aggregator.step(values, CLIP, width)
        assert values.tobytes() == before.tobytes()
        described = aggregator.arrays(len(values), width, CLIP)
        assert arrays.keys() == described.keys()
        wanted = case.record(values, CLIP, width)
        for name, array in arrays.items():
            assert array.shape == (*described[name].rows, values.shape[1])
            if described[name].dtype == "real":
                np.testing.assert_allclose(array, wanted[name], rtol=0, atol=case.rounding)
                if array.size:
                    assert np.abs(array).max() * described[name].divisor <= described[
                        name
                    ].largest * (1 + 1e-9)
            else:
                np.testing.assert_array_equal(array, wanted[name])
        edge = min(edge, values.shape[1])
        blocks = [
            aggregator.step(values[:, part], CLIP, width)
            for part in (slice(edge), slice(edge, None))
        ]
        assert same(
            arrays,
            {name: np.concatenate([block[name] for block in blocks], axis=-1) for name in arrays},
        )
        if torch is not None and len(values):
            single = values.astype(np.float32)
            there = aggregator.step_on_device(torch.from_numpy(single), CLIP, width)
            assert same(there, aggregator.step(single, CLIP, width))

    check()


def check_reduced(case: Case) -> None:
    """A step without its fixed columns costs the same; losses are those of removing a context."""

    def log_probability(values: Floats, token: int, temperature: float) -> float:
        scaled = values.astype(np.float64) / temperature
        return float(scaled[token] - np.logaddexp.reduce(scaled))

    @given(steps(case), st.sampled_from(RELATIONS), st.integers(0, 29))
    @settings(max_examples=120)
    def check(step: tuple[Mechanism, Floats, int], relation: Relation, token: int) -> None:
        mechanism, values, width = step
        arrays, n = recorded(mechanism, values, width, np.random.default_rng(token)), len(values)
        token %= values.shape[1]
        reduced = mechanism.reduced(arrays, token)
        spans = Spans([values.shape[1]])
        whole = ReducedSteps.whole(arrays, np.array([token]), spans)
        columns = mechanism.aggregate(reduced.arrays)
        assert len(columns) + reduced.columns[0] == values.shape[1]
        assert columns[reduced.tokens[0]] == mechanism.aggregate(arrays)[token]
        change = ContextChange(relation)
        costs = exact_cost(*mechanism.box(arrays, change), token, mechanism.temperature)
        found = step_costs(mechanism, change, reduced).costs[0, 1:].tolist()
        assert found == pytest.approx(costs, rel=1e-12, abs=1e-12)
        here = log_probability(
            with_anchor(arrays, case.aggregate(values)), token, mechanism.temperature
        )
        without = [
            with_anchor(arrays, case.aggregate(np.delete(values, i, axis=0))) for i in range(n)
        ]
        right = [here - log_probability(left, token, mechanism.temperature) for left in without]
        for taken in (reduced, whole):
            losses = mechanism.losses(taken, values, n)
            assert losses is not None
            assert losses.shape == (n, 1)
            np.testing.assert_allclose(
                losses[:, 0], right, rtol=1e-9, atol=1e-9 / mechanism.temperature
            )
            alone = mechanism.losses(taken, None, n)
            assert (alone is not None) == case.from_record
            if alone is not None:
                np.testing.assert_array_equal(alone, losses)
        if relation == "add_remove":
            assert all(-costs[0] - 1e-9 <= loss <= costs[1] + 1e-9 for loss in right)

    check()


def check_joined(case: Case) -> None:
    """The aggregate once a context joins, where the record shows it."""
    random = np.random.default_rng(0)
    for n, grid, name in itertools.product(SIZES, (None, 1.0), CONTRIBUTIONS):
        values, newcomer = contexts(random, n, 200, grid=grid), contexts(random, 1, 200, grid=grid)
        mechanism = case.mechanism(contribution=name)
        arrays = recorded(mechanism, values, 2, random)
        found = mechanism.with_context(arrays, newcomer[0])
        if found is not None:
            joined = case.aggregate(np.concatenate([values, newcomer]))
            np.testing.assert_array_equal(found, with_anchor(arrays, joined))


# --- its record -----------------------------------------------------------------------------------


def manifest_of(mechanism: Mechanism, vocabulary: int, dtype: str, *, recorded: bool) -> Manifest:
    return Manifest(
        created="2025-01-01T00:00:00+00:00",
        mechanism=mechanism,
        batching=Batching(rule="hashed-records", batches=1),
        decoding=Decoding(max_tokens=3),
        record=Record(dtype=dtype, vocabulary=vocabulary, contexts=recorded, width=2),
        data=Data(records=9),
        model=Model(name="none"),
        prompt=Prompt(template="none"),
    )


def check_round_trip(case: Case, folder: Path) -> None:
    """Recorded steps come back bit for bit, for all batch sizes and supports of several sizes."""
    random, aggregator = np.random.default_rng(0), AGGREGATORS[case.name]
    dtypes = [dtype for dtype in DTYPES if dtype >= aggregator.dtype]
    some = itertools.cycle(itertools.product(CONTRIBUTIONS, ({}, {"margin": 0.5})))
    for n, dtype, grid, kept in itertools.product(
        SIZES, dtypes, (None, GRID, 2.0**-18), (False, True)
    ):
        name, margin = next(some)
        support = {"support": {"kind": "public-top-k", "size": 6, **margin}} if margin else {}
        mechanism = case.mechanism(grid=grid, contribution=name, **support)
        manifest, path = manifest_of(mechanism, 21, dtype, recorded=kept), folder / "batch.zip"
        sizes = (
            manifest.most_support,
            manifest.least_support,
            13 if margin else manifest.most_support,
        )
        batches = [contexts(random, n, size, dtype, grid) for size in sizes]
        arrays = [recorded(mechanism, values, 2, random) for values in batches]
        supports = [
            np.sort(random.permutation(21)[:size]).astype(np.int32) if margin else None
            for size in sizes
        ]
        writer = BatchWriter(path, manifest, BatchHeader(id=0, contexts=n))
        for given_arrays, values, ids in zip(arrays, batches, supports, strict=True):
            writer.write(
                Step(3, -1.0, bytes(32), given_arrays, values if kept and n else None, ids)
            )
        writer.finish(text=None, stop="max-tokens")
        with BatchReader(
            path.open("rb"), "batch.zip", manifest, 0, partial(BatchArrays, manifest)
        ) as read:
            for step, given_arrays, values, ids in zip(
                read.steps(), arrays, batches, supports, strict=True
            ):
                assert same(dict(step.arrays), given_arrays)
                assert step.contexts is None or step.contexts.tobytes() == values.tobytes()
                assert (step.contexts is None) == (not kept or n == 0)
                assert (step.support is None) == (ids is None)
                assert ids is None or np.array_equal(step.support, ids)


def problems(mechanism: Mechanism, arrays: Arrays, values: Floats) -> list[Problem]:
    """Whatever the record contradicts, with the contributions at hand."""
    aggregator, contribution = mechanism.aggregator, mechanism.contribution
    found = [
        aggregator.range_problem(arrays, len(values), contribution),
        aggregator.definition_problem(arrays, values, 2, contribution),
        aggregator.divisor_problem(arrays, values, contribution),
        aggregator.sides_problem(arrays, values, len(values), CLIP),
        aggregator.sides_problem(arrays, None, len(values), CLIP),
    ]
    return [problem for problem in found if problem is not None]


def check_problems(case: Case) -> None:
    """No problem is found in honest records, and one in each altered entry of each array."""
    random = np.random.default_rng(0)
    for n, grid in itertools.product(SIZES, (None, GRID)):
        mechanism, values = case.mechanism(grid=grid), contexts(random, n, 40, grid=grid)
        aggregator = mechanism.aggregator
        arrays = aggregator.step(values, CLIP, 2)
        assert problems(mechanism, arrays, values) == []
        # without ties, which may be broken in several ways
        values = random.uniform(-CLIP, CLIP, (n, 40))
        arrays = aggregator.step(values, CLIP, 2)
        described = mechanism.arrays(n, 2)
        for name, _ in itertools.product(arrays, range(20)):
            array, faults = arrays[name], list[Any]()
            place = tuple(int(random.integers(length)) for length in array.shape)
            if described[name].dtype == "real":
                beyond = described[name].largest / described[name].divisor + 0.01
                for impossible in (np.nan, np.inf, beyond, -beyond):
                    altered = {**arrays, name: with_entry(array, place, impossible)}
                    assert aggregator.range_problem(altered, n, mechanism.contribution), (
                        n,
                        name,
                        place,
                        impossible,
                    )
                faults += [array[place] - 0.01, array[place] + 0.01]
            elif name == "sides":
                faults += [array[place] ^ np.uint8(1 << int(random.integers(8)))]
            else:
                faults += [array[place] + 1, max(n, 1), 1000]
            for fault in faults:
                altered = {**arrays, name: with_entry(array, place, fault)}
                assert problems(mechanism, altered, values), (n, name, place, fault)


def with_entry(array: NDArray[Any], place: tuple[int, ...], value: Any) -> NDArray[Any]:
    altered = array.copy()
    altered[place] = value
    return altered


def check_replay(case: Case) -> None:
    """What rounding in a model makes of a step is excused, and no more."""
    random = np.random.default_rng(0)
    for n, grid, rounding in itertools.product(range(1, 10), (None, GRID, 2.0**-10), (1e-4, 1e-2)):
        mechanism = case.mechanism(grid=grid)
        aggregator, contribution = mechanism.aggregator, mechanism.contribution
        free = contexts(random, n, 60).astype(np.float32)

        def aggregate_of(values: Floats, aggregator: Any = aggregator) -> Floats:
            found: Floats = aggregator.aggregate(aggregator.step(values, CLIP, 2))
            return found

        def again_recorded(
            values: Floats, aggregator: Any = aggregator, contribution: Any = contribution
        ) -> Arrays:
            rounded = np.clip(values.astype(np.float32), -CLIP, CLIP)
            contribution.rounded(rounded)
            found: Arrays = aggregator.step(rounded, CLIP, 2)
            return found

        again = Recomputed(
            free, rounding, contribution, aggregate_of, aggregator.aggregate(again_recorded(free))
        )
        assert aggregator.deviation(again_recorded(free), again) == (0.0, None)
        least, greatest = again.ends
        tolerance = aggregator.tolerance(again)
        for _ in range(8):
            shifts = random.choice([-rounding, 0.0, rounding], (n, 60)) * random.uniform(0, 0.99)
            arrays = again_recorded(free + shifts)
            difference, problem = aggregator.deviation(arrays, again)
            assert difference <= tolerance + 1e-6  # shifts are rounded to float32
            assert problem is None
            aggregate = aggregator.aggregate(arrays)
            assert (least - 1e-6 <= aggregate).all()
            assert (aggregate <= greatest + 1e-6).all()
        found = 0
        for column in random.permutation(60)[:8]:
            # by more than half a grid step, in every context, away from the nearer end
            moved = free.copy()
            moved[:, column] += -1.5 if aggregate_of(free)[column] > 0 else 1.5
            if abs(aggregate_of(moved) - aggregate_of(free))[column] > 0.3:
                assert objected(aggregator.deviation(again_recorded(moved), again), tolerance), (
                    n,
                    grid,
                    column,
                )
                found += 1
        for name, array in again_recorded(free).items():
            altered = {**again_recorded(free), name: array}
            if array.dtype.kind == "f":
                altered[name] = with_entry(array, (len(array) // 2, 0)[-array.ndim :], np.nan)
            if np.isnan(aggregator.aggregate(altered)).any():
                found += 1
                assert objected(aggregator.deviation(altered, again), tolerance)
        assert found > 1 or n < 3


def objected(deviation: Any, tolerance: float) -> bool:
    return deviation.problem is not None or not deviation.difference <= tolerance


CHECKS: tuple[Callable[[Case], None], ...] = (
    check_width,
    check_definition,
    check_reduced,
    check_joined,
    check_problems,
    check_replay,
)


@every
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@every
def test_steps_come_back_from_a_batch_file(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


# --- contributions --------------------------------------------------------------------------------


def clipped(logits: Floats, grid: float | None) -> Floats:
    """The paper's contribution by its definition, in float32 throughout."""
    c = np.float32(CLIP)
    with np.errstate(over="ignore"):
        values = np.maximum(-c, (logits - logits.max(axis=1, keepdims=True)) + c)
    return values if grid is None else np.rint(values / np.float32(grid)) * np.float32(grid)


def differences(logits: Floats, anchor: Floats, grid: float | None) -> Floats:
    """The anchored contribution defined: float64 log-probabilities, float32 differences."""
    wide = logits.astype(np.float64)
    largest = logits.max(axis=1, keepdims=True)
    sums = np.log(np.exp(wide - largest).sum(axis=1, keepdims=True)).astype(np.float32)
    values = np.clip(logits - largest - sums - anchor, -np.float32(CLIP), np.float32(CLIP))
    return values if grid is None else np.rint(values / np.float32(grid)) * np.float32(grid)


def raw_differences(logits: Floats, anchor: Floats, grid: float | None) -> Floats:
    """Of logits as they are, in float32 throughout."""
    values = np.clip(logits - anchor, -np.float32(CLIP), np.float32(CLIP))
    return values if grid is None else np.rint(values / np.float32(grid)) * np.float32(grid)


def probabilities(logits: Floats, _: Any, grid: float | None) -> Floats:
    """Each row's exponentials over their sum, times the clip."""
    largest = logits.max(axis=1, keepdims=True).astype(np.float64)
    rest = np.log(np.exp(logits.astype(np.float64) - largest).sum(axis=1, keepdims=True)).astype(
        np.float32
    )
    values = np.exp(logits - largest.astype(np.float32) - rest) * np.float32(CLIP)
    values = np.minimum(values, np.float32(CLIP))
    return values if grid is None else np.rint(values / np.float32(grid)) * np.float32(grid)


DEFINITIONS: dict[str, Callable[[Floats, Any, float | None], Floats]] = {
    "logits": lambda logits, _, grid: clipped(logits, grid),
    "differences": differences,
    "raw-differences": raw_differences,
    "probabilities": probabilities,
}


@pytest.mark.parametrize("name", CONTRIBUTIONS)
def test_a_contribution_is_its_definition_wherever_it_is_worked_out(name: str) -> None:
    @given(
        st.integers(1, 20),
        st.integers(1, 30),
        st.sampled_from([None, GRID, 2.0**-10]),
        st.integers(0),
    )
    @settings(max_examples=150)
    def check(n: int, size: int, grid: float | None, seed: int) -> None:
        random = np.random.default_rng(seed)
        logits = random.normal(0, 4, (n, size)).astype(np.float32)
        logits[random.random((n, size)) < 0.2] = -np.inf
        logits[:, random.integers(size)] = random.normal(0, 4)
        # a model may add what a softmax takes away again
        logits += np.float32(random.choice([0, 3e3, -1e5]))
        contribution = CONTRIBUTIONS[name](clip=CLIP, grid=grid)
        anchor = contribution.anchor(random.normal(0, 3, size).astype(np.float32))
        assert (anchor is not None) == contribution.anchored
        arrays: Arrays = {} if anchor is None else {ANCHOR: anchor}
        wanted = DEFINITIONS[name](logits, anchor, grid)
        row_constants, found = contribution.row_constants(logits), np.empty_like(logits)
        edge = int(random.integers(size + 1))
        for part in (slice(edge), slice(edge, None)):
            out = np.empty_like(logits[:, part])
            contribution.write(
                logits[:, part], row_constants, None if anchor is None else anchor[part], out
            )
            found[:, part] = out
        np.testing.assert_array_equal(found, wanted)
        assert contribution.range_problem("contexts", found) is None
        spans = Spans([found.shape[1]])
        assert contribution.anchor_problem(arrays, spans) is None
        assert contribution.clip_problem(arrays, found, spans) is None
        on_device(contribution, logits, wanted, random)

    check()


def on_device(
    contribution: Any, logits: Floats, wanted: Floats, random: np.random.Generator
) -> None:
    try:
        import torch
    except ImportError:
        return
    support = np.flatnonzero(random.random(logits.shape[1]) < 0.5)
    for kept in (None, support):
        found = contribution.on_device(torch.from_numpy(logits), kept)
        assert (found is None) == contribution.over_support
        if found is not None:
            np.testing.assert_array_equal(
                found.numpy(), wanted if kept is None else wanted[:, kept]
            )


@pytest.mark.parametrize("name", CONTRIBUTIONS)
def test_a_contribution_objects_to_what_cannot_be_one(name: str) -> None:
    contribution, logits = CONTRIBUTIONS[name](clip=CLIP), np.zeros((3, 4), dtype=np.float32)
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="NaN or infinite"):
            contribution.row_constants(with_entry(logits, (1, 2), bad))
    with pytest.raises(ValueError, match="NaN or infinite"):
        contribution.row_constants(np.full((1, 4), -np.inf, dtype=np.float32))
    for bad in (np.nan, np.inf, -np.inf, CLIP + 1e-5, -CLIP - 1e-5):
        assert contribution.range_problem("contexts", with_entry(logits, (1, 2), bad))


def test_logits_reach_the_clip() -> None:
    contribution, logits = CONTRIBUTIONS["logits"](clip=CLIP), np.zeros((3, 4), dtype=np.float32)
    found = contribution.clip_problem({}, logits, Spans([4]))
    assert found == Problem("mechanisms.other-maximum", {"wrong": 3, "contexts": 3, "clip": CLIP})


def test_a_raw_anchor_is_no_larger_than_float64_adds_to() -> None:
    contribution = CONTRIBUTIONS["raw-differences"](clip=CLIP)
    public = np.array([3.0, -1024.0, 1024.0], dtype=np.float32)
    anchor = contribution.anchor(public)
    assert anchor is not None
    np.testing.assert_array_equal(anchor, public)
    for bad in (np.nan, np.inf, -np.inf, 1024.5, -1e31):
        with pytest.raises(ValueError, match="are not finite"):
            contribution.anchor(with_entry(public, (0,), bad))


def test_differences_are_of_log_probabilities_and_of_an_anchor_that_is_such() -> None:
    """Raw logits in either place show.

    So does a difference that was taken before or without the clip.
    """
    contribution, random = CONTRIBUTIONS["differences"](clip=CLIP), np.random.default_rng(0)
    public, logits = (random.normal(5, 0.6, shape).astype(np.float32) for shape in (40, (6, 40)))
    anchor = contribution.anchor(public)
    assert anchor is not None
    spans = Spans([40])
    assert contribution.anchor_problem({ANCHOR: anchor}, spans) is None
    for wrong in (
        public,
        anchor + np.float32(0.01),
        with_entry(anchor, (3,), np.nan),
        with_entry(anchor, (3,), -np.inf),
    ):
        assert contribution.anchor_problem({ANCHOR: wrong}, spans)
    values = np.empty_like(logits)
    contribution.write(logits, contribution.row_constants(logits), anchor, values)
    assert contribution.clip_problem({ANCHOR: anchor}, values, spans) is None
    raw = np.clip(logits - public, -CLIP, CLIP)
    shifted = np.clip(values + np.float32(0.1), -CLIP, CLIP)
    for wrong, count in (
        (raw, 6),
        (shifted, 6),
        (values * 0.5, 6),
        (np.concatenate([values[:5], raw[:1]]), 1),
    ):
        found = contribution.clip_problem({ANCHOR: anchor}, wrong, spans)
        assert found is not None
        assert found.values == {"wrong": count, "contexts": 6}
    # What a context has at the clip stands for any value below, whatever the anchor says there.
    endless, below = with_entry(anchor, (3,), np.inf), with_entry(values, (0, 3), -CLIP)
    found = contribution.clip_problem({ANCHOR: endless}, below, spans)
    assert found is not None and found.values == {"wrong": 5, "contexts": 6}
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="public prompt"):
            contribution.anchor(with_entry(public, (7,), bad))


# --- how it is written ----------------------------------------------------------------------------


@every
def test_mechanism_is_written_by_its_parts_and_comes_back(case: Case) -> None:
    supports: list[dict[str, Any]] = [
        {"kind": "public-top-k", "size": 5, "margin": margin} for margin in (None, 0.5)
    ]
    for fields in ({}, {"grid": GRID}, *({"support": support} for support in supports)):
        mechanism = case.mechanism(1.5, **fields)
        written = json.loads(mechanism.model_dump_json())
        assert written["aggregator"] == {"kind": case.name, **case.fields}
        assert written["contribution"] == {
            "kind": "logits",
            "clip": CLIP,
            "grid": fields.get("grid"),
        }
        assert written["draw"] == {"kind": "softmax"}
        assert (
            Mechanism.model_validate(written)
            == Mechanism.model_validate_json(json.dumps(written))
            == mechanism
        )
        assert mechanism.model_dump() == written
        del written["draw"]
        assert Mechanism.model_validate(written) == mechanism
    assert case.mechanism().model_dump()["support"] == {
        "kind": "full",
        "size": None,
        "margin": None,
        "limit": None,
    }
    anchored = case.mechanism(contribution="differences")
    assert Mechanism.model_validate(json.loads(anchored.model_dump_json())) == anchored


@every
def test_what_is_no_mechanism_is_refused(case: Case) -> None:
    others = {
        name: 1.0
        for other in AGGREGATORS.values()
        for name in other.model_fields
        if name not in case.fields
    }
    refused: list[dict[str, Any]] = [
        {"aggregator": "mode"},
        {"aggregator": None},
        {"aggregator": 3},
        {"contribution": "ranks"},
        {"unknown": 1},
        *({name: value} for name, value in others.items()),
        *({name: None} for name in case.fields),
        *(
            {name: value}
            for name in ("clip", "temperature")
            for value in (0.0, -1.0, math.nan, math.inf, "1", None)
        ),
        *({"grid": grid} for grid in (0.3, 0.0, -0.5, 2.0, 2.0**-30, math.nan)),
        {"support": {"kind": "public-top-k"}},
        {"support": {"kind": "full", "size": 3}},
        {"support": {"kind": "full", "margin": 0.1}},
        *(
            {"support": {"kind": "public-top-k", "size": 3, "margin": margin}}
            for margin in (0.0, -1.0, math.inf)
        ),
        {"support": {"kind": "public-top-k", "size": 0}},
        {"support": {"kind": "public-top-k", "size": (1 << 22) + 1}},
    ]
    for change in refused:
        with pytest.raises(ValidationError):
            case.mechanism(**change)
    with pytest.raises(ValidationError, match="'median' or 'mean'"):
        case.mechanism(aggregator="mode")
    for part, name in (
        ("aggregator", "kind"),
        ("contribution", "clip"),
        *(("aggregator", name) for name in case.fields),
    ):
        written = case.mechanism().model_dump()
        del written[part][name]
        with pytest.raises(ValidationError):
            Mechanism.model_validate(written)
    for name in ("aggregator", "contribution", "temperature"):
        written = case.mechanism().model_dump()
        del written[name]
        with pytest.raises(ValidationError):
            Mechanism.model_validate(written)
    for flat in (case.name, None, [case.name]):
        with pytest.raises(ValidationError):
            Mechanism.model_validate(case.mechanism().model_dump() | {"aggregator": flat})


def test_a_support_is_the_public_prompts_top_and_what_is_close_to_it() -> None:
    """Ids ascend, and ties go to lower ids.

    A margin adds tokens less than that below, up to a limit.
    """
    logits = np.array([1.0, 5.0, 1.0, 7.0, 4.5, 4.0, 6.9], dtype=np.float32)
    for fields, wanted in (
        ({"kind": "full"}, None),
        ({"kind": "public-top-k", "size": 2}, [3, 6]),
        ({"kind": "public-top-k", "size": 6}, [0, 1, 3, 4, 5, 6]),
        ({"kind": "public-top-k", "size": 9}, [*range(7)]),
        ({"kind": "public-top-k", "size": 3, "margin": 0.5}, [1, 3, 6]),
        ({"kind": "public-top-k", "size": 3, "margin": 0.51}, [1, 3, 4, 6]),
        ({"kind": "public-top-k", "size": 1, "margin": 100.0}, [1, 3, 4, 6]),
    ):
        support = Support.model_validate(fields)
        found = support.tokens(logits)
        assert found is wanted is None or (found is not None and found.tolist() == wanted)
        assert support.most(7) >= (7 if found is None else len(found))


def test_an_anchored_mean_that_rounding_could_move_too_far_is_refused() -> None:
    """A neighbour's anchored sums, rounded in float64, stay within eta down to the least clip."""
    temperature, divisor = 0.8, 1024.0
    flat = {
        "aggregator": "mean",
        "contribution": "differences",
        "temperature": temperature,
        "divisor": divisor,
    }
    least = divisor * (1 + temperature) * 2**-16
    change = ContextChange("add_remove")
    allowed = mechanism_with({**flat, "clip": least})
    # Of tokens that can be drawn: the likeliest of 2^22, what 2^20 contexts add to it, and 2^-200
    # of its probability.
    largest = np.log(2**22) + 2**20 * least / divisor + 200 * np.log(2) * temperature
    # of anchors; of 2^20 contexts' sums
    rounding = 12 * largest * 2.0**-53 + 60 * 2**20 * 2.0**-53 * 2 * least / divisor
    eta = allowed.eta(change)
    assert eta is not None
    assert 2 * least / divisor + rounding <= eta * temperature
    mechanism_with({**flat, "clip": least / 2, "contribution": "logits"})
    mechanism_with({**flat, "clip": least / 2, "aggregator": "median", "divisor": None})
    for clip in (least * 0.999, 1e-300):
        with pytest.raises(ValidationError, match="bounded range"):
            mechanism_with({**flat, "clip": clip})
