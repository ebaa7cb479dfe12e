"""What readers cannot know of a record's batch, and each reason why that is nothing."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from dpaudit.runs import Allocation, Clusters, Manifest, NotSecret, SecretBatches, secret_batches

SECRET = Allocation(kind="hashed", secret=True)
NO_LABELS = {"labels": None}


@pytest.fixture
def changed(make_run):
    """The manifest of a run with secret batches and changed sections' fields, and its clusters."""

    def change(
        spec: dict[str, Any] | None = None, **sections: dict[str, Any]
    ) -> tuple[Manifest, Clusters]:
        made = make_run.generator(
            **{"aggregator": "mean", "sizes": (4, 5, 4, 5)} | (spec or {})
        ).spec
        values = made.manifest.model_dump()
        values["batching"]["allocation"] = SECRET.model_dump()
        for name, fields in sections.items():
            values[name] |= fields
        return Manifest.model_validate(values), made.grouping()

    return change


def test_secret_batches_are_those_of_a_label(changed):
    manifest, _ = changed()
    assert secret_batches(manifest, "record") == SecretBatches(((10, 2),))
    assert (
        secret_batches(manifest, "user")
        == secret_batches(manifest, "context")
        == SecretBatches(((10, 2),))
    )


@pytest.mark.parametrize("rule", ["hashed-slots", "hashed-cells"])
def test_records_of_slots_and_cells_are_given_to_batches_one_by_one(changed, rule):
    manifest, _ = changed({"rule": rule})
    assert secret_batches(manifest, "record") == SecretBatches(((10, 2),))
    assert secret_batches(manifest, "context") is NotSecret.PER_CONTEXT


def test_all_batches_are_one_group_where_there_are_no_labels(changed):
    manifest, _ = changed(
        data=NO_LABELS, batching={"batches_per_label": None, "generate_per_label": None}
    )
    assert secret_batches(manifest, "record") == SecretBatches(((4, 4),))
    every, _ = changed(
        data=NO_LABELS, batching={"batches_per_label": 4, "generate_per_label": None}
    )
    assert secret_batches(every, "record") == SecretBatches(((4, 4),))
    some, _ = changed(data=NO_LABELS, batching={"batches_per_label": 9, "generate_per_label": 4})
    assert secret_batches(some, "record") == SecretBatches(((9, 4),))
    chosen, _ = changed(
        data=NO_LABELS, batching={"batches_per_label": 9, "generate_per_label": None}
    )
    assert secret_batches(chosen, "record") is NotSecret.GENERATED_UNCOUNTED


def test_rejects_more_batches_than_all_records_are_hashed_into(changed):
    with pytest.raises(ValueError, match="more batches in"):
        changed(data=NO_LABELS, batching={"batches_per_label": 3, "generate_per_label": None})


def test_rounds_that_were_generated_count_alone_only_where_delta_is_split(changed):
    rounds = {"rounds": 8, "batches": 32}
    assert secret_batches(changed(batching=rounds)[0], "record") == SecretBatches(
        ((10, 2),), rounds=8
    )
    values = changed(batching=rounds)[0].model_dump() | {"stopped_after": 3}
    assert secret_batches(Manifest.model_validate(values), "record") == SecretBatches(
        ((10, 2),), rounds=8
    )
    values["privacy"]["split_delta"] = True
    assert secret_batches(Manifest.model_validate(values), "record") == SecretBatches(
        ((10, 2),), rounds=3
    )


def test_clusters_with_one_public_number_of_batches(changed):
    manifest, clusters = changed({"clusters": "public-centers"})
    assert secret_batches(manifest, "record", clusters) == SecretBatches(((5, 1),))
    uneven = clusters.model_copy(update={"batches": ((5, 5), (5, 6))})
    for other in (uneven, None):  # nothing says why, or nobody can tell
        assert secret_batches(manifest, "record", other) is NotSecret.CLUSTERS_UNCOUNTED


def test_clusters_by_counts_have_a_public_number_at_least(changed):
    manifest, clusters = changed({"clusters": "public-centers-rebalanced"})
    assert clusters.batches == ((4, 8), (6, 6))
    assert secret_batches(manifest, "record", clusters) is NotSecret.CLUSTERS_UNCOUNTED
    # beside another neighbour they are not
    equal = clusters.model_copy(update={"batches": ((6, 6), (6, 6))})
    assert secret_batches(manifest, "record", equal) is NotSecret.CLUSTERS_UNCOUNTED
    least, _ = changed({"clusters": "public-centers-rebalanced"}, batching={"least_batches": 4})
    for known in (clusters, None):
        assert secret_batches(least, "record", known) == SecretBatches(((4, 1),))
    many, _ = changed(
        {"clusters": "public-centers-rebalanced"},
        batching={"least_batches": 4, "generate_per_cluster": 7},
    )
    assert secret_batches(many, "record", clusters) == SecretBatches(((4, 4),))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"allocation": None}, NotSecret.UNDECLARED),
        ({"allocation": Allocation(kind="fixed-size", secret=True)}, NotSecret.FIXED_SIZE),
        ({"allocation": Allocation(kind="by-order", secret=True)}, NotSecret.BY_ORDER),
        ({"allocation": Allocation(kind="hashed", secret=False)}, NotSecret.KNOWN),
        ({"allocation": Allocation(kind="uniform", secret=False)}, NotSecret.KNOWN),
        ({"key": None}, NotSecret.UNKEYED),
        ({"key": "5e" * 31}, NotSecret.SHORT_KEY),
        ({"key": "a5" * 32}, NotSecret.COMMON_KEY),
        ({"key": "5eed" * 16}, NotSecret.COMMON_KEY),
        ({"key": (hashlib.sha1(b"a").digest() * 2)[:32].hex()}, NotSecret.COMMON_KEY),
        ({"key": b"my own key".ljust(32, b"\0").hex()}, NotSecret.COMMON_KEY),
        ({"key": b"my own key".rjust(32, b"\0").hex()}, NotSecret.COMMON_KEY),
        ({"key": hashlib.sha256(b"secret\n").hexdigest()}, NotSecret.COMMON_KEY),
        ({"key": "0102030405" * 6 + "0102"}, NotSecret.COMMON_KEY),
        ({"key": bytes(range(8, 40)).hex()}, NotSecret.COMMON_KEY),
        ({"key": hashlib.sha256(b"Changeme").hexdigest()}, NotSecret.COMMON_KEY),
        ({"key": hashlib.sha512(b"7").hexdigest()[:64]}, NotSecret.COMMON_KEY),
        ({"batches_per_label": None, "generate_per_label": None}, NotSecret.LABELS_UNCOUNTED),
        ({"generate_per_label": None}, NotSecret.GENERATED_UNCOUNTED),
        ({"batches_per_label": 1, "generate_per_label": 1, "batches": 2}, NotSecret.SINGLE_BATCH),
    ],
    ids=str,
)
def test_gives_the_reason_why_levels_are_equal(changed, fields, reason):
    manifest, _ = changed(batching=fields)
    assert secret_batches(manifest, "record") is reason


def test_rejects_slices_whatever_they_say_of_themselves(changed):
    manifest, _ = changed({"rule": "paper-slices", "unit": "context"})
    assert secret_batches(manifest, "record") is NotSecret.SLICED


@pytest.mark.parametrize(
    "spec", [{"users": 3, "unit": "user", "records_per_user": 4}, {"before": 0.1}], ids=str
)
def test_rejects_budgets_that_hang_on_other_batches(changed, spec):
    manifest, _ = changed({"budget": 0.5} | spec)
    assert secret_batches(manifest, "record") is NotSecret.SHARED_BUDGETS


def test_a_uniform_draw_needs_no_key(changed):
    manifest, _ = changed(
        batching={"allocation": Allocation(kind="uniform", secret=True), "key": None}
    )
    assert secret_batches(manifest, "record") == SecretBatches(((10, 2),))
