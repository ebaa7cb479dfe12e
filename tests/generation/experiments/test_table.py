"""What a table's file may hold, and estimates whose arithmetic can be checked by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpaudit.accounting import ApproximateAccountant, rebalancing_events
from dpaudit.generation.config import Config
from dpaudit.generation.experiments.estimates import (
    estimate,
    measured_throughput,
    stated_throughput,
    unbounded,
)
from dpaudit.generation.experiments.table import Row, load_table
from dpaudit.mechanisms import ContextChange, bounded_range
from dpaudit.runs import InputError

LATEST = Path(__file__).parents[3] / "benchmarks" / "results" / "latest.json"
PUBLISHED = {"mauve": 0.5, "mauve_std": 0.01, "accuracy": 0.75, "accuracy_std": 0.02}
CLUSTERED = {
    "method": "public-centers-rebalanced",
    "public": "x.csv",
    "centers": 30,
    "keep": 5,
    "epsilon": 0.5,
}


def rows(*names: str) -> list[dict[str, str]]:
    return [{"config": f"{name}.yaml", "dataset": "Letters", "method": "x"} for name in names]


@pytest.fixture
def write(tmp_path: Path, settings: Callable[..., dict[str, Any]]) -> Callable[..., Path]:
    """A table of one row, some of whose fields are replaced; a name with dots is a path into it."""

    def make(**fields: Any) -> Path:
        (tmp_path / "row.yaml").write_text(yaml.safe_dump(settings()))
        values: dict[str, Any] = {
            "title": "A table",
            "parameters": 1e6,
            "datasets": {"Letters": {"records": 10}},
            "rows": [{"config": "row.yaml", "dataset": "Letters", "method": "Median"}],
        }
        (tmp_path / "table.yaml").write_text(yaml.safe_dump({**values, **fields}))
        return tmp_path / "table.yaml"

    return make


def row_of(config: Config, records: int = 1000) -> Row:
    return Row("row", "Letters", "Any", Path("row.yaml"), config, records, None, None)


def test_held_out_texts_are_read_like_the_private_ones(write: Callable[..., Path]) -> None:
    held_out = {"dataset": "org/letters", "split": "test"}
    row = load_table(write(datasets={"Letters": {"records": 10, "held_out": held_out}})).rows[0]
    assert row.held_out is not None and row.held_out.labels == row.config.data.labels
    assert (row.held_out.dataset, row.held_out.split, row.held_out.path) == (
        "org/letters",
        "test",
        None,
    )


def test_a_mistake_is_answered_with_its_place(write: Callable[..., Path]) -> None:
    for fields, told in [
        ({"titel": "x"}, "titel: there is no such field"),
        ({"parameters": 0}, "parameters: the value is 0"),
        ({"rows": []}, "rows: "),
        (
            {"rows": [{"config": "../row.yaml", "dataset": "Letters", "method": "x"}]},
            "rows.0.config",
        ),
        ({"rows": [{"config": "row.yaml", "dataset": "Digits", "method": "x"}]}, "one of Letters"),
        (
            {"rows": [{"config": "row.yaml", "dataset": "Letters", "method": "x"}] * 2},
            "rows.1.config",
        ),
        ({"rows": rows("row", "ROW/run")}, "rows.1.config"),
        ({"rows": rows("sub/row/run", "sub/row")}, "rows.1.config"),
        ({"rows": rows("table.md")}, "rows.0.config"),
        ({"rows": rows("Table.json/row")}, "a folder of its own beside table.md"),
        ({"rows": rows("writer.lock")}, "rows.0.config"),
        ({"datasets": {"Letters": {"records": 10**400}}}, "datasets.Letters.records"),
        (
            {"rows": [{"config": "none.yaml", "dataset": "Letters", "method": "x"}]},
            "none.yaml: the file cannot be",
        ),
        ({"evaluation": {"classifier": "bert"}}, "classifier"),
        (
            {"datasets": {"Letters": {"records": 10, "held_out": {"path": "a", "dataset": "b"}}}},
            "held_out",
        ),
    ]:
        with pytest.raises(InputError) as caught:
            load_table(write(**fields))
        assert told in str(caught.value)


def test_rows_beside_each_other_are_free(write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "row").mkdir()
    for name in ("row-2", "row/a", "row/ab"):
        (tmp_path / f"{name}.yaml").write_bytes((write()).with_name("row.yaml").read_bytes())
    assert len(load_table(write(rows=rows("row-2", "row/a", "row/ab"))).rows) == 3


def test_a_small_files_endless_value_is_told_in_a_line(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0

    class Counting:
        def __repr__(self) -> str:
            nonlocal written
            written += 1
            return "lol"

    value: Any = Counting()
    for _ in range(5):
        value = [value] * 9
    path = write()
    values = {**yaml.safe_load(path.read_text()), "title": value}
    monkeypatch.setattr(
        "dpaudit.generation.experiments.table.read_yaml", lambda path, fields: values
    )
    with pytest.raises(InputError, match="title: the value ") as caught:
        load_table(path)
    assert len(str(caught.value)) < 400
    monkeypatch.undo()
    monkeypatch.setattr(
        "dpaudit.generation.config.read_yaml", lambda path, fields: {"model": value}
    )
    with pytest.raises(InputError):
        load_table(path)
    assert written == 0  # what lies so deep is never written out


def test_private_texts_are_not_held_out(write: Callable[..., Path], data_file: Path) -> None:
    with pytest.raises(InputError, match=r"held_out.* the private ones"):
        load_table(
            write(datasets={"Letters": {"records": 10, "held_out": {"path": str(data_file)}}})
        )


def test_work_and_hours_of_batches_by_label(make_config: Callable[..., Config]) -> None:
    batching = {"batches_per_label": 20, "generate_per_label": 3}
    found = estimate(row_of(make_config(batching=batching)), stated_throughput(50.0))
    assert (found.clusters, found.batches, found.contexts, found.tokens) == (2, 6, 25.0, 5)
    assert found.context_tokens == 6 * 25 * 5 and found.hours == pytest.approx(750 / 50 / 3600)
    slots = {**batching, "slots": 7}
    assert estimate(row_of(make_config(batching=slots)), None).context_tokens == 6 * 7 * 5
    cells = {**batching, "cells": 10}
    found = estimate(row_of(make_config(batching=cells, prompt={"examples_per_context": 3})), None)
    each = 1000 / 2 / 20 / 10
    assert found.contexts == pytest.approx(10 * each**3 * math.exp(-each) / 6)


def clustered(
    make_config: Callable[..., Config], clustering: dict[str, Any], **batching: Any
) -> Row:
    values = make_config().model_dump(exclude_unset=True)
    values["clustering"], values["batching"] = clustering, batching
    private = clustering["method"] == "k-means"
    values["chosen_from"] = {"batching": "private" if private else "public", "settings": "public"}
    return row_of(Config.model_validate(values))


def test_batches_of_clusters_are_so_many_as_records_fill_and_no_more_than_are_generated(
    make_config: Callable[..., Config],
) -> None:
    by_counts = {"records_per_batch": 20.0, "most_batches": 50}
    assert (
        estimate(
            clustered(make_config, CLUSTERED, **by_counts, generate_per_cluster=50), None
        ).batches
        == 50
    )
    assert (
        estimate(
            clustered(make_config, CLUSTERED, **by_counts, generate_per_cluster=2), None
        ).batches
        == 20
    )
    wide = {**by_counts, "records_per_batch": 500.0}
    assert (
        estimate(clustered(make_config, CLUSTERED, **wide, generate_per_cluster=2), None).batches
        == 10
    )
    fixed = clustered(make_config, CLUSTERED, batches_per_cluster=4, generate_per_cluster=3)
    assert estimate(fixed, None).batches == 30 and estimate(fixed, None).contexts == 25.0


MEAN = {"aggregator": "mean", "clip": 9.0, "temperature": 1.5, "divisor": 64.0}


def mean(
    make_config: Callable[..., Config], clustering: dict[str, Any] | None = None, **batching: Any
) -> Row:
    values = make_config(mechanism=MEAN, privacy={"delta": 1e-5}).model_dump(exclude_unset=True)
    values["clustering"] = clustering
    values["batching"] = batching or values["batching"]
    if clustering is not None and clustering["method"] == "k-means":
        values["chosen_from"] = {"batching": "private", "settings": "public"}
    return row_of(Config.model_validate(values))


def test_what_a_row_claims_holds_counts_and_centres(make_config: Callable[..., Config]) -> None:
    alone = estimate(mean(make_config), None)
    slots = estimate(mean(make_config, batches_per_label=2, slots=8), None)
    counts = estimate(mean(make_config, CLUSTERED, batches_per_cluster=1), None)
    noised = {"method": "chang", "centers": 5, "dimension": 4, "epsilon": 0.5, "delta": 1e-6}
    centers = estimate(mean(make_config, noised, batches_per_cluster=1), None)
    assert alone.batch_epsilon is not None and slots.batch_epsilon is not None
    assert counts.batch_epsilon is not None and centers.batch_epsilon is not None
    assert slots.batch_epsilon > 2 * alone.batch_epsilon - 1e-9  # a slot's context is replaced
    assert alone.batch_epsilon < counts.batch_epsilon < alone.batch_epsilon + 0.5  # jointly
    assert centers.batch_epsilon > alone.batch_epsilon + 0.5  # added, at the delta that they leave
    k_means_row = mean(make_config, {"method": "k-means", "centers": 5}, batches_per_cluster=1)
    k_means = estimate(k_means_row, None)
    assert k_means.batch_epsilon == math.inf
    assert k_means.epsilon_as_paper == math.inf and unbounded(k_means_row.config)
    assert alone.epsilon_as_paper is not None
    assert (
        alone.epsilon_as_paper == slots.epsilon_as_paper == counts.epsilon_as_paper
        and counts.counts_epsilon == 0.5
    )
    assert centers.epsilon_as_paper is not None and not centers.counts_epsilon
    assert alone.epsilon_as_paper + 0.5 < centers.epsilon_as_paper < alone.epsilon_as_paper + 0.51
    config = mean(make_config, noised, batches_per_cluster=1).config
    # at their delta, records ** -1.1, centres leave nothing
    small = estimate(row_of(config, records=10**9), None)
    assert small.epsilon_as_paper == math.inf and small.batch_epsilon == centers.batch_epsilon


def test_a_medians_epsilon_is_known_afterwards_but_where_nothing_bounds_it(
    make_config: Callable[..., Config],
) -> None:
    median = estimate(clustered(make_config, CLUSTERED, batches_per_cluster=1), None)
    assert (median.epsilon, median.batch_epsilon, median.epsilon_as_paper, median.delta) == (
        None,
        None,
        None,
        None,
    )
    k_means = estimate(
        clustered(make_config, {"method": "k-means", "centers": 5}, batches_per_cluster=1), None
    )
    assert (k_means.epsilon, k_means.epsilon_as_paper) == (math.inf, math.inf)


def test_a_user_has_many_records_and_a_replaced_one_counts_twice(
    make_config: Callable[..., Config],
) -> None:
    values = mean(make_config, CLUSTERED, batches_per_cluster=1).config.model_dump(
        exclude_unset=True
    )

    def epsilon(**privacy: Any) -> float:
        row = row_of(Config.model_validate({**values, "privacy": {"delta": 1e-5, **privacy}}))
        found = estimate(row, None).batch_epsilon
        assert found is not None
        return found

    record = epsilon()
    assert epsilon(epsilon=0.75) == 0.75, "what contexts' own budgets promise, whatever the length"
    assert epsilon(unit="user", records_per_user=1) == pytest.approx(record)
    assert epsilon(unit="user", records_per_user=3) > 2 * record
    values["clustering"] = {**CLUSTERED, "epsilon": 5.0}

    def claimed(change: ContextChange, laplace: tuple[float, ...]) -> float:
        eta = bounded_range(9.0, 1.5, 64.0, change)
        return ApproximateAccountant(eta, laplace=laplace).epsilon(5, 1e-5, "rdp").epsilon

    two, counts = ContextChange("add_remove", 2), rebalancing_events(5.0, "replace")
    assert epsilon(relation="replace") == claimed(two, counts)
    one = rebalancing_events(5.0, "add_remove")
    assert epsilon(relation="replace") != claimed(two, one)


def test_the_estimate_is_what_the_run_will_claim(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    from dpaudit.generation.algorithm import generate
    from dpaudit.runs import RunReader

    config = make_config(mechanism=MEAN, privacy={"delta": 1e-5})
    generate(config, tmp_path / "run")
    claim = RunReader(tmp_path / "run").manifest.claim
    found = estimate(row_of(config), None)
    assert claim is not None and found.epsilon is not None
    assert found.epsilon <= claim.epsilon <= found.epsilon + 1e-4 and found.delta == claim.delta


def test_throughput_is_the_measured_one_in_proportion_to_parameters(tmp_path: Path) -> None:
    """5 tokens/s for 32 contexts are 160 context tokens/s of SmolLM2-135M."""
    machine = {"accelerator": "none", "processor": "A processor", "cores": 2}
    made = {"generation": "2026-01-02, commit 0123456789ab"}
    figures = {"ours, tokens/s": 5.0}
    rows = [
        {
            "topic": "generation",
            "what": "ours over a bare loop: 2 texts of 32 contexts and 64 tokens, cpu",
            "figures": figures,
        }
    ]
    path = tmp_path / "latest.json"
    path.write_text(json.dumps({"machine": machine, "made": made, "rows": rows}))
    assert measured_throughput(path, 134.5e6).context_tokens_per_second == pytest.approx(160.0)
    found = measured_throughput(path, 2.69e9)
    assert found.context_tokens_per_second == pytest.approx(8.0)
    assert "160 with SmolLM2-135M on A processor, 2 cores, 2026-01-02" in found.source


def test_a_checkout_has_such_results() -> None:
    results = json.loads(LATEST.read_text())
    found = measured_throughput(LATEST, 134.5e6)
    date = results["made"]["generation"].partition(",")[0]
    assert date in found.source and results["machine"]["processor"] in found.source


def test_what_is_no_benchmark_is_said(tmp_path: Path) -> None:
    for content in [
        "{",
        "[]",
        '{"rows": [], "machine": {}}',
        '{"rows": [{"what": 3}], "machine": {}}',
    ]:
        path = tmp_path / "latest.json"
        path.write_text(content)
        with pytest.raises(InputError, match=r"python -m benchmarks"):
            measured_throughput(path, 1e9)
