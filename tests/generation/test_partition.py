import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.generation.config import Config
from dpaudit.generation.manifest import declared_batching
from dpaudit.generation.partition import (
    Batch,
    Layout,
    Partition,
    groups_of,
    partition,
    partition_as_recorded,
)
from dpaudit.generation.records import Record
from dpaudit.runs import Assigned, Clusters, InputError, KeyedHash
from tests.nesting import nested

KEY = bytes(range(32))
LABELS = ("a", "b")
NONE = Clusters()

record_sets = st.sets(
    st.builds(
        Record,
        st.sampled_from(LABELS),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    ),
    min_size=1,
    max_size=30,
)


def rule(batching: dict[str, Any], examples: int = 1, unit: str = "record") -> Layout:
    config = Config.model_validate(
        {
            "data": {"path": "x.csv", "labels": list(LABELS)},
            "model": {"name": "m"},
            "prompt": {"examples_per_context": examples},
            "batching": batching,
            "mechanism": nested({"aggregator": "median", "clip": 1.0, "temperature": 1.0}),
            "decoding": {"max_tokens": 1},
            "privacy": {"unit": unit},
            "chosen_from": {"batching": "public", "settings": "public"},
        }
    )
    batching = declared_batching(config, NONE, KEY.hex(), secret=False)
    return Layout(batching, LABELS, examples)


def changed(layout: Layout, **change: Any) -> Layout:
    """Return a layout with another batching."""
    return replace(layout, batching=layout.batching.model_copy(update=change))


HASHED = rule({"batches_per_label": 3, "generate_per_label": 2})
SLOTS = rule({"batches_per_label": 2, "generate_per_label": 2, "slots": 3}, examples=2)
CELLS = rule({"batches_per_label": 2, "generate_per_label": 2, "cells": 3}, examples=2)
SLICES = rule(
    {"rule": "paper-slices", "generate_per_label": 2, "slots": 2}, examples=2, unit="context"
)


def told(parts: Partition) -> tuple[tuple[Batch, ...], tuple[Assigned, ...]]:
    """All of a partition."""
    return tuple(parts.batches), parts.assignment


def digest_of(record: Record) -> str:
    return KeyedHash(KEY).digest(record.label, record.text)


@given(record_sets, st.data())
def test_a_hashed_place_depends_on_that_record_alone(
    records: set[Record], data: st.DataObject
) -> None:
    removed = data.draw(st.sampled_from(sorted(records)))
    for settings in (HASHED, CELLS):
        before, after = (
            partition(settings, NONE, rows).assignment for rows in (records, records - {removed})
        )
        assert set(before) - set(after) == {a for a in before if a.digest == digest_of(removed)}
        assert set(after) <= set(before)


@given(record_sets, st.data())
def test_removing_a_record_removes_one_context_of_a_hashed_batch(
    records: set[Record], data: st.DataObject
) -> None:
    removed = data.draw(st.sampled_from(sorted(records)))
    for old, new in zip(
        partition(HASHED, NONE, records).batches,
        partition(HASHED, NONE, records - {removed}).batches,
        strict=True,
    ):
        assert new.contexts == tuple(context for context in old.contexts if context != (removed,))


@given(record_sets, st.data())
def test_removing_a_record_changes_at_most_one_slot(
    records: set[Record], data: st.DataObject
) -> None:
    removed = data.draw(st.sampled_from(sorted(records)))
    old, new = (
        [c for b in partition(SLOTS, NONE, rows).batches for c in b.contexts]
        for rows in (records, records - {removed})
    )
    assert len(old) == len(new) == 2 * 2 * 3
    assert sum(a != b for a, b in zip(old, new, strict=True)) <= 1


@given(record_sets)
def test_assignment_and_batches_tell_the_same(records: set[Record]) -> None:
    for settings in (HASHED, SLOTS, SLICES):
        parts = partition(settings, NONE, records)
        assert sorted(a.digest for a in parts.assignment) == sorted(map(digest_of, records))
        shown = {
            digest_of(r): b.id for b in parts.batches for context in b.contexts for r in context
        }
        assert shown == {a.digest: a.batch for a in parts.assignment if a.batch is not None}
        assert [b.id for b in parts.batches] == list(range(4))
        assert [b.label for b in parts.batches] == ["a", "a", "b", "b"]
        assert all(
            r.label == b.label for b in parts.batches for context in b.contexts for r in context
        )
        for batch in parts.batches:
            assert all(len(context) <= settings.examples for context in batch.contexts)
            for context in batch.contexts:
                assert list(context) == sorted(context, key=digest_of)


def test_slices_fill_one_batch_after_another() -> None:
    records = [Record("a", str(number)) for number in range(11)]
    batches = partition(SLICES, NONE, records).batches
    assert [[len(context) for context in batch.contexts] for batch in batches] == [
        [2, 2],
        [2, 2],
        [],
        [],
    ]
    assert [r for b in batches for c in b.contexts for r in c] == sorted(records, key=digest_of)[:8]
    short = partition(SLICES, NONE, records[:5]).batches
    assert [[len(context) for context in batch.contexts] for batch in short] == [
        [2, 2],
        [1],
        [],
        [],
    ]


def test_the_order_of_the_records_does_not_matter() -> None:
    records = [Record("a", str(number)) for number in range(20)]
    for settings in (HASHED, SLOTS, CELLS, SLICES):
        assert told(partition(settings, NONE, records)) == told(
            partition(settings, NONE, records[::-1])
        )


def test_another_key_gives_another_partition() -> None:
    records = [Record("a", str(number)) for number in range(20)]
    assert (
        partition(HASHED, NONE, records).assignment
        != partition(changed(HASHED, key="00" * 32), NONE, records).assignment
    )


def test_label_and_text_are_told_apart() -> None:
    for one, other in [(("ab", "c"), ("a", "bc")), (("", "ab"), ("ab", ""))]:
        assert digest_of(Record(*one)) != digest_of(Record(*other))


def test_places_are_spread_evenly_and_slots_do_not_follow_batches() -> None:
    hashing = KeyedHash(KEY)
    digests = [digest_of(Record("a", str(number))) for number in range(9000)]
    places = Counter((hashing.batch(digest, 3), hashing.slot(digest, 3)) for digest in digests)
    # Nine cells of 1000 expected; five standard deviations are about 150.
    assert len(places) == 9
    assert all(abs(count - 1000) < 150 for count in places.values())


CLUSTERS = Clusters(method="public-centers", kept=((0, 3), (1, 2)), batches=((2, 1), (3, 4)))


def clustered(batching: dict[str, Any], examples: int = 1) -> Layout:
    config = {
        "data": {"path": "x.csv", "labels": list(LABELS)},
        "model": {"name": "m"},
        "prompt": {"examples_per_context": examples},
        "batching": {"batches_per_cluster": 4, "generate_per_cluster": 2, **batching},
        "clustering": {"method": "public-centers", "public": "y.csv", "centers": 4},
        "mechanism": nested({"aggregator": "median", "clip": 1.0, "temperature": 1.0}),
        "decoding": {"max_tokens": 1},
        "chosen_from": {"batching": "public", "settings": "public"},
    }
    read = Config.model_validate(config)
    return Layout(declared_batching(read, CLUSTERS, KEY.hex(), secret=False), LABELS, examples)


IN_CLUSTERS = (
    clustered({}),
    clustered({"slots": 3}, examples=2),
    clustered({"cells": 2}, examples=2),
)


def center_of(record: Record) -> int:
    """Some centre that the record's label keeps, by its text alone."""
    return CLUSTERS.kept[LABELS.index(record.label)][len(record.text) % 2]


def test_ids_of_clusters_go_through_labels_and_their_kept_centres() -> None:
    groups = groups_of(IN_CLUSTERS[0], CLUSTERS)
    found = [(group.label, group.cluster, group.batches, group.ids) for group in groups]
    assert found == [
        ("a", 0, 2, range(2)),
        ("a", 3, 1, range(2, 3)),
        ("b", 1, 3, range(3, 5)),
        ("b", 2, 4, range(5, 7)),
    ]


@given(record_sets, st.data())
def test_a_clustered_place_depends_on_that_record_and_its_centre_alone(
    records: set[Record], data: st.DataObject
) -> None:
    removed = data.draw(st.sampled_from(sorted(records)))
    centers = {record: center_of(record) for record in records}
    for settings in IN_CLUSTERS:
        whole, rest = (
            partition(settings, CLUSTERS, rows, centers) for rows in (records, records - {removed})
        )
        contexts = [
            [c for batch in parts.batches for c in batch.contexts] for parts in (whole, rest)
        ]
        if settings.batching.slots is None:
            assert set(rest.assignment) <= set(whole.assignment)
            assert len(set(contexts[0]) ^ set(contexts[1])) <= 1
        else:
            assert sum(old != new for old, new in zip(*contexts, strict=True)) <= 1
        for batch in whole.batches:
            for record in (record for context in batch.contexts for record in context):
                assert (record.label, center_of(record)) == (batch.label, batch.cluster)


@given(record_sets)
def test_a_partition_is_read_off_its_assignment(records: set[Record]) -> None:
    centers = {record: center_of(record) for record in records}
    for settings in IN_CLUSTERS:
        parts = partition(settings, CLUSTERS, records, centers)
        assert told(
            partition_as_recorded(settings, CLUSTERS, records, parts.assignment, settings)
        ) == told(parts)


def test_rejects_recorded_places_that_no_batch_has() -> None:
    """A number read back from a file is no index before its bounds are checked.

    Otherwise a record would be left out, or moved.
    """
    records = {Record(label, str(number)) for label in LABELS for number in range(20)}
    parts = partition(
        IN_ROUNDS[3], CLUSTERS, records, {record: center_of(record) for record in records}
    )
    first = parts.assignment[0]
    for change in ({"batch": 4}, {"batch": 3 - first.batch}, {"batch": 999_999_999}, {"slot": 0}):
        assignment = [first._replace(**change), *parts.assignment[1:]]
        with pytest.raises(InputError, match="another label, or"):
            partition_as_recorded(IN_ROUNDS[3], CLUSTERS, records, assignment, IN_ROUNDS[3])
    for settings in IN_CLUSTERS:
        parts = partition(
            settings, CLUSTERS, records, {record: center_of(record) for record in records}
        )
        first = next(place for place in parts.assignment if place.batch is not None)
        total, slots = settings.batching.batches, settings.batching.slots or settings.batching.cells
        for change in (
            {"batch": total},
            {"batch": total - 1 if first.batch in range(3) else 0},  # of the other label
            {"batch": 999_999_999},
            {"slot": 0 if slots is None else slots},
            {"slot": 999_999_999},
        ):
            assignment = [
                first._replace(**change) if place is first else place for place in parts.assignment
            ]
            with pytest.raises(InputError, match="another label, or"):
                partition_as_recorded(settings, CLUSTERS, records, assignment, settings)


IN_ROUNDS = tuple(
    changed(settings, rounds=4, batches=4 * settings.batching.batches)
    for settings in (HASHED, SLOTS, CELLS, *IN_CLUSTERS)
)


def centers_of(settings: Layout, records: set[Record]) -> tuple[Clusters, dict[Record, int] | None]:
    clustered = settings.batching.generate_per_cluster is not None
    return (
        (CLUSTERS, {record: center_of(record) for record in records}) if clustered else (NONE, None)
    )


@given(record_sets, st.data())
def test_each_round_places_all_records_anew(records: set[Record], data: st.DataObject) -> None:
    """Each round has its own key.

    A record that comes or goes changes one context of each round at most.
    """
    removed = data.draw(st.sampled_from(sorted(records)))
    for settings in IN_ROUNDS:
        clusters, centers = centers_of(settings, records)
        parts, rest = (
            partition(settings, clusters, rows, centers) for rows in (records, records - {removed})
        )
        assert len(parts.batches) == settings.batching.batches == 4 * settings.batching.per_round
        assert [batch.id for batch in parts.batches] == list(range(settings.batching.batches))
        groups = [group for group in groups_of(settings, clusters) for _ in group.ids]
        assert [(batch.label, batch.cluster) for batch in parts.batches] == [
            (g.label, g.cluster) for g in groups
        ] * 4
        lines = {digest_of(record): record for record in records}
        for assigned in parts.assignment:
            group = tuple(groups_of(settings, clusters))[assigned.batch]
            record = lines[assigned.digest]
            assert assigned.slot is None
            assert (group.label, group.cluster) == (record.label, centers and centers[record])
        for number in range(4):
            first, keyed = number * settings.batching.per_round, KeyedHash(KEY).of_round(number)
            batches = parts.batches[first : first + settings.batching.per_round]
            shown = [
                record for batch in batches for context in batch.contexts for record in context
            ]
            assert len(shown) == len(set(shown)), "once a round at most"
            for batch, group in zip(batches, groups, strict=True):
                for record in (record for context in batch.contexts for record in context):
                    place = keyed.batch(digest_of(record), group.batches or 1)
                    assert batch.id == first + group.ids[place]
            before = [(b.id, c) for b in batches for c in b.contexts]
            after = [
                (b.id, c)
                for b in rest.batches[first : first + settings.batching.per_round]
                for c in b.contexts
            ]
            moved = {batch for batch, _ in set(before) ^ set(after)}
            assert len(moved) <= 1
            assert settings.batching.slots is None or len(before) == len(after)


def test_rounds_differ_and_the_first_is_that_of_a_run_of_one() -> None:
    records = {Record("a", str(number)) for number in range(40)}
    several, one = (
        partition(settings, NONE, records).batches for settings in (IN_ROUNDS[0], HASHED)
    )
    rounds = [several[first : first + 4] for first in range(0, 16, 4)]
    assert rounds[0] == tuple(one)
    assert len({tuple(batch.contexts for batch in each) for each in rounds}) == 4


@given(record_sets)
def test_rounds_are_read_off_the_records_groups(records: set[Record]) -> None:
    for settings in IN_ROUNDS[3:]:
        clusters, centers = centers_of(settings, records)
        parts = partition(settings, clusters, records, centers)
        again = partition_as_recorded(settings, clusters, records, parts.assignment, settings)
        assert told(again) == told(parts)


def test_memory_does_not_grow_with_rounds() -> None:
    records = [Record(LABELS[number % 2], f"a record, number {number}") for number in range(5_000)]
    peaks = []
    for rounds in (2, 40):
        settings = changed(HASHED, rounds=rounds, batches=rounds * HASHED.batching.batches)
        tracemalloc.start()
        parts = partition(settings, NONE, records)
        assert sum(len(batch.contexts) for batch in parts.batches) > rounds * 3_000
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
