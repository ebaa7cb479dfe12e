"""What a table's file may hold, and estimates whose arithmetic can be checked by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpaudit.runs import InputError
from generation.config import Config
from generation.experiments.estimates import estimate, measured_throughput, stated_throughput
from generation.experiments.table import Row, load_table

LATEST = Path(__file__).parents[3] / "benchmarks" / "results" / "latest.json"
PUBLISHED = {"mauve": 0.5, "mauve_std": 0.01, "accuracy": 0.75, "accuracy_std": 0.02}
CLUSTERED = {"method": "public-centers-rebalanced", "public": "x.csv", "centers": 30, "keep": 5, "epsilon": 0.5}


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
    assert (row.held_out.dataset, row.held_out.split, row.held_out.path) == ("org/letters", "test", None)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"titel": "x"}, "titel: there is no such field"),
        ({"parameters": 0}, "parameters: the value is 0"),
        ({"rows": []}, "rows: "),
        ({"rows": [{"config": "../row.yaml", "dataset": "Letters", "method": "x"}]}, "rows.0.config"),
        ({"rows": [{"config": "row.yaml", "dataset": "Digits", "method": "x"}]}, "one of Letters"),
        ({"rows": [{"config": "row.yaml", "dataset": "Letters", "method": "x"}] * 2}, "each config once"),
        ({"rows": [{"config": "none.yaml", "dataset": "Letters", "method": "x"}]}, "none.yaml: the file cannot be"),
        ({"evaluation": {"classifier": "bert"}}, "classifier"),
        ({"datasets": {"Letters": {"records": 10, "held_out": {"path": "a", "dataset": "b"}}}}, "held_out"),
    ],
)
def test_a_mistake_is_answered_with_its_place(write: Callable[..., Path], fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        load_table(write(**fields))
    assert told in str(caught.value)


def test_private_texts_are_not_held_out(write: Callable[..., Path], data_file: Path) -> None:
    with pytest.raises(InputError, match="are the private ones"):
        load_table(write(datasets={"Letters": {"records": 10, "held_out": {"path": str(data_file)}}}))


def test_work_and_hours_of_batches_by_label(make_config: Callable[..., Config]) -> None:
    batching = {"batches_per_label": 20, "generate_per_label": 3}
    found = estimate(row_of(make_config(batching=batching)), stated_throughput(50.0))
    assert (found.clusters, found.batches, found.contexts, found.tokens) == (2, 6, 25.0, 5)
    assert found.context_tokens == 6 * 25 * 5 and found.hours == pytest.approx(750 / 50 / 3600)
    slots = {**batching, "slots": 7}
    assert estimate(row_of(make_config(batching=slots)), None).context_tokens == 6 * 7 * 5


def clustered(make_config: Callable[..., Config], clustering: dict[str, Any], **batching: Any) -> Row:
    values = make_config().model_dump(exclude_unset=True)
    values["clustering"], values["batching"] = clustering, batching
    private = clustering["method"] == "k-means"
    values["chosen_from"] = {"batching": "private" if private else "public", "settings": "public"}
    return row_of(Config.model_validate(values))


def test_batches_of_clusters_are_so_many_as_records_fill_and_no_more_than_are_generated(
    make_config: Callable[..., Config],
) -> None:
    by_counts = {"records_per_batch": 20.0, "most_batches": 50}
    assert estimate(clustered(make_config, CLUSTERED, **by_counts, generate_per_cluster=50), None).batches == 50
    assert estimate(clustered(make_config, CLUSTERED, **by_counts, generate_per_cluster=2), None).batches == 20
    wide = {**by_counts, "records_per_batch": 500.0}
    assert estimate(clustered(make_config, CLUSTERED, **wide, generate_per_cluster=2), None).batches == 10
    fixed = clustered(make_config, CLUSTERED, batches_per_cluster=4, generate_per_cluster=3)
    assert estimate(fixed, None).batches == 30 and estimate(fixed, None).contexts == 25.0


MEAN = {"aggregator": "mean", "clip": 9.0, "temperature": 1.5, "divisor": 64.0}


def mean(make_config: Callable[..., Config], clustering: dict[str, Any] | None = None, **batching: Any) -> Row:
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
    assert alone.epsilon is not None and slots.epsilon is not None
    assert counts.epsilon is not None and centers.epsilon is not None
    assert slots.epsilon > 2 * alone.epsilon - 1e-9  # a slot's context is replaced
    assert alone.epsilon < counts.epsilon < alone.epsilon + 0.5  # jointly
    assert centers.epsilon > alone.epsilon + 0.5  # added, at the delta that they leave
    k_means = estimate(mean(make_config, {"method": "k-means", "centers": 5}, batches_per_cluster=1), None)
    assert k_means.epsilon == math.inf
    assert alone.epsilon_as_paper == slots.epsilon_as_paper == k_means.epsilon_as_paper


def test_the_estimate_is_what_the_run_will_claim(make_config: Callable[..., Config], tmp_path: Path) -> None:
    from dpaudit.runs import RunReader
    from generation.algorithm import generate

    config = make_config(mechanism=MEAN, privacy={"delta": 1e-5})
    generate(config, tmp_path / "run")
    claim = RunReader(tmp_path / "run").manifest.claim
    found = estimate(row_of(config), None)
    assert claim is not None and found.epsilon is not None
    assert found.epsilon <= claim.epsilon <= found.epsilon + 1e-4 and found.delta == claim.delta


def test_throughput_is_the_measured_one_in_proportion_to_parameters() -> None:
    small, large = (measured_throughput(LATEST, parameters) for parameters in (134.5e6, 269e6))
    assert small.context_tokens_per_second == pytest.approx(2 * large.context_tokens_per_second)
    machine = json.loads(LATEST.read_text())["machine"]
    assert machine["date"] in small.source and machine["processor"] in small.source


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"rows": [], "machine": {}}', '{"rows": [{"what": 3}], "machine": {}}']
)
def test_what_is_no_benchmark_is_said(tmp_path: Path, content: str) -> None:
    path = tmp_path / "latest.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"python -m benchmarks"):
        measured_throughput(path, 1e9)
