"""Exactly-k cells: a record's or a user's effect on actual data sets' contexts, and its cost."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpaudit.accounting import ExPostAccountant
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.partition import Layout, Partition, partition
from dpaudit.generation.records import Record
from dpaudit.generation.replay import replay_run
from dpaudit.mechanisms import ContextChange, Mechanism, Relation, Unit, context_change
from dpaudit.runs import Batching, Clusters, KeyedHash
from tests.nesting import mechanism_with
from tests.trials import trial

NONE, LABELS = Clusters(), ("a", "b")
#: Few enough that cells are full, and that an exchanged record meets itself, its cell's others, and
#: other batches.
POOL = [Record(label, str(number)) for label in LABELS for number in range(12)]
CLIP, TEMPERATURE, TOKENS = 2.0, 0.7, 3
AGGREGATORS: tuple[dict[str, Any], ...] = (
    {"aggregator": "median"},
    {"aggregator": "central", "central": 2},
    {"aggregator": "mean", "divisor": 2.0},
)


def cells_of(examples: int, cells: int = 3, key: int = 0) -> Layout:
    batching = Batching(
        rule="hashed-cells",
        batches=4,
        batches_per_label=3,
        generate_per_label=2,
        cells=cells,
        key=f"{key:064x}",
    )
    return Layout(batching, LABELS, examples)


data_sets = st.frozensets(st.sampled_from(POOL), max_size=len(POOL))
rules = st.builds(cells_of, st.integers(2, 3), st.integers(1, 3), st.integers(0, 99))


def test_a_cell_is_a_context_where_it_holds_exactly_k() -> None:
    """By a reading of its own: records by the hash's batch and cell, counted."""
    seen: Counter[bool] = Counter()
    for examples, key in itertools.product((2, 3), range(20)):
        layout = cells_of(examples, key=key)
        keyed, parts = (
            KeyedHash(bytes.fromhex(layout.batching.key or "")),
            partition(layout, NONE, POOL),
        )
        cells: dict[tuple[int, int], set[Record]] = {}
        for record in POOL:
            digest = keyed.digest(record.label, record.text)
            if (number := keyed.of_round(0).batch(digest, 3)) < 2:
                place = 2 * LABELS.index(record.label) + number, keyed.of_round(0).slot(digest, 3)
                cells.setdefault(place, set()).add(record)
        for batch in parts.batches:
            wanted = {
                frozenset(cell)
                for (b, _), cell in cells.items()
                if b == batch.id and len(cell) == examples
            }
            assert {frozenset(context) for context in batch.contexts} == wanted
            assert len(batch.contexts) == len(wanted)
        placed = {(a.batch, a.slot): a for a in parts.assignment if a.batch is not None}
        assert placed.keys() == cells.keys(), "a record's cell is recorded, shown or not"
        seen.update({len(cell) > examples: 1 for cell in cells.values() if len(cell) != examples})
    assert seen.keys() == {True, False}, "cells of more and of fewer"


def moves(before: Partition, after: Partition) -> tuple[tuple[int, int], ...]:
    """How many contexts go from each batch and how many come. Those that stay keep their order."""
    found = []
    for old, new in zip(before.batches, after.batches, strict=True):
        gone, come = set(old.contexts) - set(new.contexts), set(new.contexts) - set(old.contexts)
        assert [c for c in old.contexts if c not in gone] == [
            c for c in new.contexts if c not in come
        ]
        found.append((len(gone), len(come)))
    return tuple(found)


def most_of(unit: Unit, relation: Relation, records: int) -> int:
    change = context_change(unit, relation, "hashed-cells", records_per_user=records)
    assert change is not None and change.relation == "add_remove"
    return change.contexts


def exchanged(records: frozenset[Record]) -> Iterator[frozenset[Record]]:
    """Each data set with one record replaced, once.

    A replacement that is already there leaves one fewer.
    """
    pairs = itertools.product(sorted(records), POOL)
    yield from dict.fromkeys((records - {gone}) | {come} for gone, come in pairs)


@given(data_sets, rules)
@hypothesis.settings(max_examples=150)
def test_a_record_changes_no_more_contexts_than_declared(
    records: frozenset[Record], layout: Layout
) -> None:
    here = partition(layout, NONE, records)
    for record in POOL:
        there = partition(layout, NONE, records ^ {record})
        assert sum(map(sum, moves(here, there))) <= most_of("record", "add_remove", 1) == 1
    for neighbour in exchanged(records):
        found = moves(here, partition(layout, NONE, neighbour))
        assert sum(map(sum, found)) <= most_of("record", "replace", 1) == 2


def test_an_exchange_changes_contexts_in_every_way_that_the_bound_allows() -> None:
    """No smaller bound holds: two go, two come, or one of each, in one batch and in two.

    Changes are by (gone, come) of a batch.
    """
    random, seen = np.random.default_rng(0), Counter[tuple[tuple[int, int], ...]]()
    for key in range(40):
        layout = cells_of(2 + key % 2, key=key)
        records = frozenset(record for record in POOL if random.random() < 0.6)
        here = partition(layout, NONE, records)
        for neighbour in exchanged(records):
            found = moves(here, partition(layout, NONE, neighbour))
            seen[tuple(sorted(pair for pair in found if any(pair)))] += 1
    one_batch = {((0, 1),), ((1, 0),), ((0, 2),), ((2, 0),), ((1, 1),)}
    two_batches = {((0, 1), (0, 1)), ((0, 1), (1, 0)), ((1, 0), (1, 0))}
    assert seen.keys() == {(), *one_batch, *two_batches}
    assert seen.total() > 5_000


def test_within_one_cell_an_exchange_replaces_a_context() -> None:
    """One goes and another comes, in one batch, with as many records as before."""
    layout = cells_of(2)
    groups: dict[tuple[int | None, int | None], list[Record]] = {}
    keyed = KeyedHash(bytes.fromhex(layout.batching.key or ""))
    of = {keyed.digest(record.label, record.text): record for record in POOL}
    for place in partition(layout, NONE, POOL).assignment:
        if place.batch is not None:
            groups.setdefault((place.batch, place.slot), []).append(of[place.digest])
    one, two, three = next(members for members in groups.values() if len(members) >= 3)[:3]
    found = moves(partition(layout, NONE, [one, two]), partition(layout, NONE, [one, three]))
    assert sorted(found) == [(0, 0), (0, 0), (0, 0), (1, 1)]


@given(
    data_sets,
    st.lists(st.sampled_from(POOL), min_size=2, max_size=6, unique=True),
    rules,
    st.integers(1, 3),
)
@hypothesis.settings(max_examples=1000)
def test_a_user_changes_no_more_contexts_than_declared(
    others: frozenset[Record], owned: Sequence[Record], layout: Layout, each: int
) -> None:
    """Users of up to `each` records, some of which other users may have too."""
    one, other = frozenset(owned[:each]), frozenset(owned[each : 2 * each])
    alone, here, there = (
        partition(layout, NONE, rows) for rows in (others, others | one, others | other)
    )
    assert sum(map(sum, moves(alone, here))) <= most_of("user", "add_remove", each) == each
    assert sum(map(sum, moves(here, there))) <= most_of("user", "replace", each) == 2 * each


# --- what it costs --------------------------------------------------------------------------------

Doubles = NDArray[np.float64]


def values(batch_contexts: Sequence[tuple[Record, ...]], position: int, dtype: str) -> Doubles:
    """Contributions [n, tokens] by each context's records alone, many for or against token 0."""
    rows = []
    for context in batch_contexts:
        name = "/".join(f"{record.label}{record.text}" for record in context)
        random = np.random.default_rng([*name.encode(), position])
        extreme = CLIP * np.array([1.0, -1.0, -1.0]) * random.choice([-1, 1])
        rows.append(extreme if random.random() < 0.7 else random.uniform(-CLIP, CLIP, TOKENS))
    return np.array(rows, dtype=dtype).reshape(len(rows), TOKENS)


class Texts:
    """Log-probabilities and costs of one text of two tokens for each batch, under one mechanism."""

    def __init__(self, mechanism: Mechanism, tokens: Sequence[tuple[int, int]]) -> None:
        self.mechanism, self.tokens = mechanism, tokens
        self.dtype = mechanism.aggregator.dtype or "float32"

    def steps(self, parts: Partition, width: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
        for batch, position in itertools.product(parts.batches, range(2)):
            given = values(batch.contexts, position, self.dtype)
            arrays = self.mechanism.aggregator.step(given, CLIP, width)
            yield batch.id, self.tokens[batch.id][position], dict(arrays)

    def log_probability(self, parts: Partition) -> float:
        total = 0.0
        for _, token, arrays in self.steps(parts, 2):
            scores = self.mechanism.aggregator.aggregate(arrays).astype(np.float64) / TEMPERATURE
            total += float(scores[token] - np.logaddexp.reduce(scores))
        return total

    def cost(self, parts: Partition, change: ContextChange) -> tuple[float, float]:
        """Rise and fall of the run."""
        accountant = ExPostAccountant(self.mechanism, change)
        for batch, token, arrays in self.steps(
            parts, max(2, self.mechanism.aggregator.width_for(change))
        ):
            accountant.charge(batch, self.mechanism.reduced(arrays, token))
        return accountant.cost.rise, accountant.cost.fall


@given(
    data_sets,
    rules,
    st.lists(st.tuples(*[st.integers(0, TOKENS - 1)] * 2), min_size=4, max_size=4),
    st.data(),
)
@hypothesis.settings(max_examples=40)
def test_actual_log_ratios_lie_within_the_exact_cost(
    records: frozenset[Record],
    layout: Layout,
    tokens: Sequence[tuple[int, int]],
    data: st.DataObject,
) -> None:
    here = partition(layout, NONE, records)
    neighbours: dict[Relation, list[frozenset[Record]]] = {
        "add_remove": [records ^ {record} for record in POOL],
        "replace": data.draw(st.permutations(list(exchanged(records))))[:24] if records else [],
    }
    for fields in AGGREGATORS:
        mechanism = mechanism_with({"clip": CLIP, "temperature": TEMPERATURE, **fields})
        texts = Texts(mechanism, tokens)
        own = texts.log_probability(here)
        for relation, others in neighbours.items():
            rise, fall = texts.cost(
                here, ContextChange("add_remove", most_of("record", relation, 1))
            )
            for other in others:
                ratio = texts.log_probability(partition(layout, NONE, other)) - own
                assert -fall - 1e-6 <= ratio <= rise + 1e-6


def test_the_costs_of_an_exchange_are_more_than_those_of_a_record_that_goes() -> None:
    """A bound of one context is exceeded: by an exchange in one batch, and by one in two."""
    exceeded: Counter[int] = Counter()
    mechanism = mechanism_with({"clip": CLIP, "temperature": TEMPERATURE, **AGGREGATORS[2]})
    for key in range(8):
        layout, records = cells_of(2, key=key), frozenset(POOL[::2])
        here, texts = partition(layout, NONE, records), Texts(mechanism, [(0, 0)] * 4)
        rise, fall = texts.cost(here, ContextChange("add_remove"))
        own = texts.log_probability(here)
        for neighbour in exchanged(records):
            there = partition(layout, NONE, neighbour)
            if not -fall - 1e-6 <= texts.log_probability(there) - own <= rise + 1e-6:
                exceeded[sum(map(any, moves(here, there)))] += 1
    assert exceeded[1] and exceeded[2]


# --- runs -----------------------------------------------------------------------------------------

#: Under this key batch 0 has two cells of one record each; batch 1 has two of two, and one of
#: three.
CELLS: dict[str, dict[str, Any]] = {
    "prompt": {"examples_per_context": 2},
    "batching": {"cells": 3, "key": "1049" * 16},
}
SINGLES, PAIRS = 0, 1


def cell(parts: Partition, records: Sequence[Record], batch: int, held: int) -> tuple[Record, ...]:
    """The records of a cell of a batch that holds so many."""
    keyed = KeyedHash(bytes.fromhex(CELLS["batching"]["key"]))
    by_digest = {keyed.digest(record.label, record.text): record for record in records}
    cells: dict[int | None, list[Record]] = {}
    for place in parts.assignment:
        if place.batch == batch:
            cells.setdefault(place.slot, []).append(by_digest[place.digest])
    return next(tuple(members) for members in cells.values() if len(members) == held)


@pytest.mark.parametrize(
    ("batch", "held", "instead", "without_data"),
    [(PAIRS, 3, 0, False), (SINGLES, 1, 0, False), (PAIRS, 3, 1, True)],
    ids=["a cell of three too", "a cell of one too", "a cell of three instead"],
)
def test_a_run_that_shows_another_cell_is_caught(
    tmp_path: Path,
    make_config: Callable[..., Config],
    data_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    held: int,
    instead: int,
    without_data: bool,
) -> None:
    """The cell's first two records make one context more, or replace one.

    The latter nobody sees without the data.
    """

    def faulty(
        layout: Layout, clusters: Clusters, records: Sequence[Record], centers: None, **_: Any
    ) -> Partition:
        parts = partition(layout, clusters, records, centers)
        shown = cell(parts, records, batch, held)[:2]
        batches = list(parts.batches)
        batches[batch] = replace(
            batches[batch], contexts=(*batches[batch].contexts[instead:], shown)
        )
        return replace(parts, batches=tuple(batches))

    config = make_config(**CELLS, decoding={"max_tokens": 2, "test_seed": None})
    honest, run = generate(config, tmp_path / "honest"), tmp_path / "run"
    monkeypatch.setattr("dpaudit.generation.algorithm.partition", faulty)
    generate(config, run)
    monkeypatch.undo()
    assert (audit_run(honest).verdict == "pass") and (
        audit_run(run).verdict == "pass"
    ) == without_data
    failing = {check.id for check in audit_run(run).checks if check.status == "fail"}
    assert failing == (set() if without_data else {"partition.disjoint"})
    found = replay_run(run, str(data_file), steps=100, left_out=0, trials=0)
    failing = {check.id for check in audit_run(run, replay=found).checks if check.status == "fail"}
    assert "replay.logits" in failing
    found = replay_run(honest, str(data_file), steps=100, left_out=2, trials=2)
    assert audit_run(honest, evidence=4, replay=found, disclosed=trial()).verdict == "pass"


def test_how_many_records_are_shown_is_in_no_public_report(
    tmp_path: Path, make_config: Callable[..., Config]
) -> None:
    result = audit_run(
        generate(
            make_config(**CELLS, decoding={"max_tokens": 1, "test_seed": None}), tmp_path / "run"
        )
    )
    forms = [
        next(c for c in each.checks if c.id == "partition.disjoint")
        for each in (result, public_form(result))
    ]
    assert forms[0].values == {"records": 10, "shown": 4, "generated": 10}
    assert not forms[1].values and "4 of the" not in forms[1].measured
    assert public_form(result).run.settings.batching.cells == 3


@pytest.mark.parametrize(("examples", "shown"), [(2, 0.368), (3, 0.271), (4, 0.224)])
def test_most_records_are_shown_where_a_cell_holds_one_fewer_on_average(
    examples: int, shown: float
) -> None:
    """As docs/mathematics.md says: (k - 1)^(k - 1) e^(1 - k) / (k - 1)! of them."""
    records = [Record("a", str(number)) for number in range(20_000)]
    found = []
    for mean in (examples - 1.5, examples - 1, examples - 0.5, examples):
        batching = Batching(
            rule="hashed-cells",
            batches=1,
            batches_per_label=1,
            generate_per_label=1,
            cells=round(len(records) / mean),
            key="5e" * 32,
        )
        contexts = partition(Layout(batching, ("a",), examples), NONE, records).batches[0].contexts
        found.append(examples * len(contexts) / len(records))
        expected = mean ** (examples - 1) * math.exp(-mean) / math.factorial(examples - 1)
        assert found[-1] == pytest.approx(expected, abs=0.02)
    assert expected < shown == pytest.approx(found[1], abs=0.02)
