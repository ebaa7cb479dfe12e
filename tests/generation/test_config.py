import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml

from dpaudit.generation.config import UNRECORDED, Config, in_config, load_config
from dpaudit.mechanisms import Fields
from dpaudit.runs import InputError
from dpaudit.runs.manifest import Settings as RunSettings

Settings = Callable[..., dict[str, Any]]


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def failure(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        load_config(path)
    return caught.value


def assert_told(folder: Path, values: dict[str, Any], field: str, given: str, allowed: str) -> None:
    """Reading these values fails over this field, and names what was given and what is allowed."""
    path = write(folder, yaml.safe_dump(values))
    error = failure(path)
    assert error.where == f"{path}: {field}"
    assert given in error.problem, field
    assert allowed in error.remedy, field


def test_a_valid_config_is_read(tmp_path: Path, settings: Settings) -> None:
    config = load_config(write(tmp_path, yaml.safe_dump(settings())))
    assert config == Config.model_validate(settings())
    assert config.batching.full_rule == "hashed-records"
    assert config.privacy.unit == "record"
    # A clip is what float32 makes of it.
    again = Config.model_validate(settings(mechanism={"clip": 0.3}))
    assert (
        again.mechanism
        == Config.model_validate(settings(mechanism={"clip": float(np.float32(0.3))})).mechanism
    )


def test_numbers_without_a_dot_are_numbers(tmp_path: Path, settings: Settings) -> None:
    text = (
        yaml.safe_dump(settings(mechanism={"aggregator": "mean", "divisor": 8}))
        + "privacy: {delta: 1e-5}\n"
    )
    assert load_config(write(tmp_path, text)).privacy.delta == 1e-5
    config = load_config(write(tmp_path, text.replace("- south", "- 1e5")))
    assert config.data.labels == ("north", "1e5"), "no field of the data is a number"


TOP: dict[str, Any] = {"kind": "public-top-k"}
SLICES = {"rule": "paper-slices", "batches_per_label": None, "slots": 2}

LIST = "Notes:\n- {example}\n-"
OWN_PROMPT_MISTAKES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"text": ""}, "prompt.text", "''", "not empty"),
    ({"text": LIST + "x" * 16_384}, "prompt.text", "'Notes:", "at most 16,384 characters"),
    ({"text": 5}, "prompt.text", "5", "put it in quotes"),
    ({"text": "Notes:"}, "prompt.text", "'Notes:'", "holds {example} once, and not 0 times"),
    ({"text": LIST + "{example}"}, "prompt.text", "'Notes:", "once, and not 2 times"),
    (
        {"text": LIST + "{exmple}"},
        "prompt.text",
        "'{exmple}'",
        "{example} and {label}, and no other placeholder",
    ),
    ({"text": LIST + "{"}, "prompt.text", "'{'", "doubled, {{ or }}"),
    ({"text": "{example}"}, "prompt.text", "'{example}'", "words in a line without {example}"),
    ({"text": "a\0" + LIST}, "prompt.text", "'\\x00'", "without control characters"),
    ({"text": LIST, "end": ""}, "prompt.end", "''", "not empty"),
    ({"text": LIST, "end": "#" * 65}, "prompt.end", "'###", "at most 64 characters"),
    ({"text": LIST, "end": "\x07"}, "prompt.end", "'\\x07'", "without control characters"),
]

MISTAKES: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("mechanism", {"clip": -3.0}, "mechanism.contribution.clip", "-3.0", "greater than 0"),
    ("mechanism", {"clip": 0}, "mechanism.contribution.clip", "0", "greater than 0"),
    ("mechanism", {"clip": float("nan")}, "mechanism.contribution.clip", "nan", "finite"),
    ("mechanism", {"clip": float("inf")}, "mechanism.contribution.clip", "inf", "finite"),
    ("mechanism", {"temperature": "warm"}, "mechanism.temperature", "'warm'", "number"),
    ("mechanism", {"temperature": 0.01}, "mechanism.temperature", "0.01", "2 * clip"),
    ("mechanism", {"temperature": True}, "mechanism.temperature", "True", "number"),
    (
        "mechanism",
        {"aggregator": "max"},
        "mechanism.aggregator.kind",
        "'max'",
        "'median' or 'mean'",
    ),
    ("mechanism", {"aggregator": None}, "mechanism.aggregator.kind", "null", "'median' or 'mean'"),
    (
        "mechanism",
        {"aggregator": "mean"},
        "mechanism.aggregator.divisor",
        "missing",
        "without the data, or start from `dpaudit init",
    ),
    (
        "mechanism",
        {"aggregator": "mean", "divisor": 0.0},
        "mechanism.aggregator.divisor",
        "0.0",
        "greater than 0",
    ),
    ("mechanism", {"divisor": 8.0}, "mechanism.aggregator.divisor", "no such field", "kind"),
    (
        "mechanism",
        {"aggregator": "central"},
        "mechanism.aggregator.central",
        "missing",
        "without the data",
    ),
    (
        "mechanism",
        {"aggregator": "central", "central": 2.5},
        "mechanism.aggregator.central",
        "2.5",
        "a whole number",
    ),
    (
        "mechanism",
        {"aggregator": "central", "central": 0},
        "mechanism.aggregator.central",
        "0",
        "greater than or equal to 1",
    ),
    ("mechanism", {"central": 8}, "mechanism.aggregator.central", "no such field", "kind"),
    ("mechanism", {"grid": 0.1}, "mechanism.contribution.grid", "0.1", "a power of two"),
    ("mechanism", {"grid": -0.5}, "mechanism.contribution.grid", "-0.5", "greater than 0"),
    ("mechanism", {"grid": 16.0}, "mechanism.contribution.grid", "16.0", "is a multiple"),
    ("mechanism", {"grid": 2.0**-40}, "mechanism.contribution.grid", "e-13", "up to 4194304 times"),
    ("mechanism", {"grid": 5e-324}, "mechanism.contribution.grid", "5e-324", "is a multiple"),
    (
        "mechanism",
        {"clip": 0.3, "grid": 0.5},
        "mechanism.contribution.grid",
        "0.5",
        "is a multiple",
    ),
    ("mechanism", {"contribution": "ranks"}, "mechanism.contribution.kind", "'ranks'", "'logits'"),
    (
        "mechanism",
        {"support": TOP | {"size": 0}},
        "mechanism.support.size",
        "0",
        "greater than or equal to 1",
    ),
    (
        "mechanism",
        {"support": TOP | {"size": 2.5}},
        "mechanism.support.size",
        "2.5",
        "a whole number",
    ),
    (
        "mechanism",
        {"support": TOP},
        "mechanism.support.size",
        "null",
        "a whole number of at least 1 when kind is public-",
    ),
    (
        "mechanism",
        {"support": {"size": 3}},
        "mechanism.support.size",
        "3",
        "null when kind is full",
    ),
    (
        "mechanism",
        {"support": TOP | {"top": 3}},
        "mechanism.support.top",
        "no such field",
        "kind, size",
    ),
    ("mechanism", {"top_k": 20}, "mechanism.top_k", "no such field", "support"),
    (
        "decoding",
        {"least_tokens": 6},
        "decoding.least_tokens",
        "6",
        "at most max_tokens, which is 5",
    ),
    ("decoding", {"no_line_breaks": "yes"}, "decoding.no_line_breaks", "'yes'", "true or false"),
    (
        "decoding",
        {"no_repeated_ngram": 1},
        "decoding.no_repeated_ngram",
        "1",
        "greater than or equal to 2",
    ),
    ("decoding", {"banned_words": "a"}, "decoding.banned_words", "'a'", "a list, such as"),
    ("decoding", {"banned_words": ["a", 1]}, "decoding.banned_words.1", "1", "put it in quotes"),
    (
        "decoding",
        {"banned_word": ["a"]},
        "decoding.banned_word",
        "no such field",
        "Did you mean banned_words?",
    ),
    ("data", {"labels": []}, "data.labels", "[]", "at least one item"),
    ("data", {"labels": ["a", "a"]}, "data.labels", "['a', 'a']", "each label once"),
    ("data", {"labels": [True]}, "data.labels.0", "True", "put it in quotes"),
    ("data", {"labels": "north"}, "data.labels", "'north'", "a list, such as"),
    ("data", {"dataset": "ag_news"}, "data.path", ".csv", "either path or dataset"),
    ("data", {"split": "train"}, "data.split", "'train'", "dataset"),
    ("data", {"label_values": ["1"]}, "data.label_values", "['1']", "for each of labels"),
    ("data", {"label_values": ["1", "1"]}, "data.label_values", "['1', '1']", "a value of its own"),
    ("model", {"dtype": "float16"}, "model.dtype", "'float16'", "'float32', 'bfloat16' or 'auto'"),
    (
        "model",
        {"trained_on_records": False},
        "model.trained_on_records",
        "'false'",
        "'no', 'yes' or 'unknown'",
    ),
    ("model", {"device": "tpu"}, "model.device", "'tpu'", "'auto', 'cpu' or 'cuda'"),
    ("prompt", {"template": "chat"}, "prompt.template", "'chat'", "'pt' or 'it'"),
    ("prompt", {"text": LIST}, "prompt.template", "'pt'", "null with text"),
    ("prompt", {"end": "###"}, "prompt.end", "'###'", "null without text"),
    ("prompt", {"one_line": "yes"}, "prompt.one_line", "'yes'", "true or false"),
    (
        "prompt",
        {"examples_per_context": 2},
        "batching.slots",
        "null",
        "examples_per_context is above 1",
    ),
    ("batching", {"cells": 3}, "batching.cells", "3", "null when prompt.examples_per_context is 1"),
    ("batching", {"cells": 3, "slots": 3}, "batching.cells", "3", "null with slots"),
    ("batching", {"cells": 0}, "batching.cells", "0", "greater than or equal to 1"),
    ("batching", {**SLICES, "cells": 2}, "batching.cells", "2", "null with slots"),
    ("batching", {"batches_per_label": None}, "batching.batches_per_label", "null", "at least 1"),
    ("batching", {"generate_per_label": 3}, "batching.generate_per_label", "3", "which is 2"),
    (
        "batching",
        {"batches_per_label": 10**7, "generate_per_label": 10**7},
        "batching.generate_per_label",
        "10000000",
        "at most 8,388,608: there are 2 labels",
    ),
    ("batching", {"rule": "paper-slices"}, "batching.batches_per_label", "2", "null"),
    ("batching", {**SLICES, "slots": None}, "batching.slots", "null", "paper-slices"),
    ("batching", SLICES, "privacy.unit", "'record'", "no claim per record"),
    ("decoding", {"max_tokens": 0}, "decoding.max_tokens", "0", "greater than or equal to 1"),
    (
        "decoding",
        {"max_tokens": None},
        "decoding.max_tokens",
        "null",
        "at least 1 without tokens_per_batch",
    ),
    (
        "decoding",
        {"tokens_per_batch": 0},
        "decoding.tokens_per_batch",
        "0",
        "greater than or equal to 1",
    ),
    (
        "decoding",
        {"max_tokens": 9, "tokens_per_batch": 8},
        "decoding.max_tokens",
        "9",
        "tokens_per_batch, which is 8",
    ),
    (
        "sampling",
        {"generator": "test-seed", "seed": -1},
        "sampling.seed",
        "cannot be used",
        "greater than or equal to 0",
    ),
    (
        "sampling",
        {"generator": "committed-seed", "seed_files": ["a\0b"]},
        "sampling.seed_files.0",
        "a\\x00b",
        "pattern",
    ),
    ("record", {"contexts": "yes"}, "record.contexts", "'yes'", "true or false"),
    ("privacy", {"unit": "home"}, "privacy.unit", "'home'", "'record', 'context' or 'user'"),
    ("privacy", {"unit": "user"}, "privacy.records_per_user", "null", "data.user names no column"),
    ("data", {"user": "text"}, "data.user", "'text'", "another column than data.text"),
    (
        "privacy",
        {"records_per_user": 0},
        "privacy.records_per_user",
        "0",
        "greater than or equal to 1",
    ),
    ("privacy", {"relation": "swap"}, "privacy.relation", "'swap'", "'add_remove' or 'replace'"),
    ("privacy", {"delta": 0.1}, "privacy.delta", "0.1", "null for median"),
    ("privacy", {"delta": 1.5}, "privacy.delta", "1.5", "less than 1"),
    ("claim", {"epsilon": 3.0, "delta": 1e-6}, "claim.delta", "1e-06", "0 for median"),
    ("claim", {"epsilon": -3.0}, "claim.epsilon", "-3.0", "greater than or equal to 0"),
]


def test_a_mistake_is_named_with_field_value_and_what_is_allowed(
    tmp_path: Path, settings: Settings
) -> None:
    for section, fields, field, given, allowed in MISTAKES:
        assert_told(tmp_path, settings(**{section: fields}), field, given, allowed)


def test_takes_one_line_about_who_makes_the_run(tmp_path: Path, settings: Settings) -> None:
    made_by = {"made_by": "The records team"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings() | made_by))
    assert load_config(tmp_path / "config.yaml").made_by == "The records team"
    for wrong in ("two\nlines", "x" * 101, "a \u2028 line", ""):
        assert_told(tmp_path, settings() | {"made_by": wrong}, "made_by", "", "")


@pytest.mark.parametrize("word", ["no", "yes", "unknown"])
@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_words_that_yaml_takes_for_booleans_are_words(
    tmp_path: Path, settings: Settings, word: str, quote: str
) -> None:
    path = tmp_path / "config.yaml"
    written = yaml.safe_dump(settings(model={"trained_on_records": "here"}))
    path.write_text(
        written.replace("trained_on_records: here", f"trained_on_records: {quote}{word}{quote}")
    )
    assert load_config(path).model.trained_on_records == word


def test_a_mean_claims_delta_is_given_once(tmp_path: Path, settings: Settings) -> None:
    mean = {"aggregator": "mean", "divisor": 8}
    for delta, field, given in ((0.0, "claim.delta", "0.0"), (0.1, "privacy.delta", "0.2")):
        values = settings(
            mechanism=mean, claim={"epsilon": 3, "delta": delta}, privacy={"delta": 0.2}
        )
        assert_told(tmp_path, values, field, given, "")


def test_an_unknown_field_gets_the_known_ones_and_a_guess(
    tmp_path: Path, settings: Settings
) -> None:
    error = failure(write(tmp_path, yaml.safe_dump(settings(mechanism={"temprature": 1.0}))))
    assert error.where.endswith("mechanism.temprature")
    assert "you mean temperature?" in error.remedy
    assert "contribution" in error.remedy


def test_a_missing_field_is_told_with_the_misspelt_one_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("daat: {path: x.csv}\nmodel: {nmae: x}\n")
    with pytest.raises(InputError, match=r"data: .*missing.* write daat for"):
        load_config(path)


def test_a_misspelt_field_of_the_mechanism_is_told_with_the_one_it_leaves_missing(
    tmp_path: Path, settings: Settings
) -> None:
    values = settings()
    values["mechanism"]["contribution"]["clipp"] = values["mechanism"]["contribution"].pop("clip")
    error = failure(write(tmp_path, yaml.safe_dump(values)))
    assert error.where.endswith("mechanism.contribution.clip")
    assert "clipp" in error.remedy


def test_a_missing_section_is_named(tmp_path: Path, settings: Settings) -> None:
    values = settings()
    del values["model"]
    error = failure(write(tmp_path, yaml.safe_dump(values)))
    assert error.field == "model" and "is missing" in error.problem


def test_a_section_that_is_no_mapping_is_named(tmp_path: Path, settings: Settings) -> None:
    error = failure(write(tmp_path, yaml.safe_dump(settings() | {"model": "gemma"})))
    assert "model" in error.where
    assert "name, dtype" in error.remedy


def test_several_mistakes_are_counted(tmp_path: Path, settings: Settings) -> None:
    values = settings(mechanism={"clip": -1.0}, decoding={"max_tokens": 0})
    assert "1 more" in str(failure(write(tmp_path, yaml.safe_dump(values))))


def test_the_key_is_never_shown(tmp_path: Path, settings: Settings) -> None:
    error = failure(write(tmp_path, yaml.safe_dump(settings(batching={"key": "secretsecret"}))))
    assert "batching.key" in str(error)
    assert "secretsecret" not in str(error)


def test_text_that_is_no_config_is_refused(tmp_path: Path) -> None:
    for text, message in (
        ("", "the file is empty"),
        ("- a\n- b\n", "a list, not a mapping"),
        ("data: {path: x\nmodel: y\n", "not valid YAML"),
        ("data:\n\tpath: x\n", "line 2, column 1"),
        ("data: !!python/object:os.system {}\n", "not valid YAML"),
        (
            "model: {name: x}\nmodel: {name: y}\n",
            "line 2, column 1: this is not valid YAML: a field is given twice",
        ),
        ("[" * 5000, "nests too deeply"),
        ("decoding: {max_tokens: " + "9" * 6000 + "}\n", "a number is too long to be read"),
        ("#" * (1 << 22) + "\n", "the file has more than 4,194,304 bytes"),
    ):
        assert message in str(failure(write(tmp_path, text)))
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in str(failure(path))
    error = failure(tmp_path / "absent.yaml")
    assert "absent.yaml" in error.where
    assert "No such file" in error.problem


REBALANCED = {
    "method": "public-centers-rebalanced",
    "public": "public.csv",
    "centers": 6,
    "keep": 3,
    "epsilon": 0.5,
}
CHANG = {"method": "chang", "centers": 6, "epsilon": 0.5, "delta": 1e-6, "dimension": 4}
MEAN = {"aggregator": "mean", "divisor": 8}


@pytest.fixture
def clustered(settings: Settings) -> Settings:
    """A config's values with a clustering; keyword arguments replace fields of sections."""

    def make(**sections: dict[str, Any]) -> dict[str, Any]:
        values = settings(**{"clustering": REBALANCED, **sections})
        values["batching"] = {"batches_per_cluster": 2, **sections.get("batching", {})}
        return values

    return make


def test_a_clustering_is_read(tmp_path: Path, clustered: Settings) -> None:
    config = load_config(write(tmp_path, yaml.safe_dump(clustered())))
    assert config.clustering is not None
    assert (config.clustering.budget, config.clustering.normalize, config.clustering.embedding) == (
        0.5,
        True,
        None,
    )
    by_counts = {
        "batches_per_cluster": None,
        "records_per_batch": 20,
        "most_batches": 4,
        "generate_per_cluster": 4,
    }
    config = load_config(write(tmp_path, yaml.safe_dump(clustered(batching=by_counts))))
    assert (config.batching.records_per_batch, config.batching.generate_per_cluster) == (20.0, 4)


CLUSTERED_MISTAKES: list[tuple[dict[str, dict[str, Any]], str, str, str]] = [
    (
        {"clustering": {**REBALANCED, "method": "dbscan"}},
        "clustering.method",
        "'dbscan'",
        "'chang', 'dpm'",
    ),
    (
        {"clustering": {**REBALANCED, "public": None}},
        "clustering.public",
        "null",
        "public texts when method is",
    ),
    (
        {"clustering": {**REBALANCED, "centers": None}},
        "clustering.centers",
        "null",
        "a whole number",
    ),
    (
        {"clustering": {**REBALANCED, "keep": 7}},
        "clustering.keep",
        "7",
        "at most centers, which is 6",
    ),
    (
        {"clustering": {**REBALANCED, "keep": 0}},
        "clustering.keep",
        "0",
        "greater than or equal to 1",
    ),
    ({"clustering": {**REBALANCED, "epsilon": None}}, "clustering.epsilon", "null", "above 0"),
    (
        {"clustering": {**REBALANCED, "epsilon": -1}},
        "clustering.epsilon",
        "-1",
        "greater than or equal to 0.000000001",
    ),
    (
        {"clustering": {**REBALANCED, "delta": 1e-6}},
        "clustering.delta",
        "1e-06",
        "null when method is public",
    ),
    (
        {"clustering": {**REBALANCED, "epsilom": 1}},
        "clustering.epsilom",
        "no such field",
        "Did you mean epsilon?",
    ),
    (
        {"clustering": {**CHANG, "dimension": None}},
        "clustering.dimension",
        "null",
        "method is chang",
    ),
    (
        {"clustering": {**CHANG, "public": "p.csv"}},
        "clustering.public",
        "'p.csv'",
        "null when method is chang",
    ),
    (
        {"clustering": {**CHANG, "normalize": False}},
        "clustering.normalize",
        "False",
        "true when method is chang",
    ),
    (
        {"clustering": CHANG, "privacy": {"unit": "user", "records_per_user": 2}},
        "privacy.unit",
        "'user'",
        "record",
    ),
    (
        {"clustering": {"method": "k-means", "centers": 6}},
        "chosen_from.batching",
        "'public'",
        "private when clustering.method is k-means",
    ),
    (
        {"batching": {"batches_per_label": 2}},
        "batching.batches_per_label",
        "2",
        "batches_per_cluster instead",
    ),
    (
        {"batching": {"generate_per_label": 1}},
        "batching.generate_per_label",
        "1",
        "generate_per_cluster instead",
    ),
    (
        {"batching": {"batches_per_cluster": None, "generate_per_cluster": 1}},
        "batching.batches_per_cluster",
        "null",
        "or give",
    ),
    ({"batching": {"records_per_batch": 9}}, "batching.most_batches", "null", "go together"),
    (
        {"batching": {"records_per_batch": 9, "most_batches": 2}},
        "batching.records_per_batch",
        "9",
        "null when",
    ),
    ({"batching": {"generate_per_cluster": 3}}, "batching.generate_per_cluster", "3", "which is 2"),
    (
        {"batching": {"rule": "paper-slices", "slots": 2}, "privacy": {"unit": "context"}},
        "batching.rule",
        "'paper-slices'",
        "hashed",
    ),
    (
        {"batching": {"slots": 2}, "privacy": {"unit": "context"}},
        "privacy.unit",
        "'context'",
        "record or user",
    ),
    (
        {"batching": {"batches_per_cluster": 10**7, "generate_per_cluster": 10**7}},
        "batching.generate_per_cluster",
        "10000000",
        "at most 2,796,202: there are 6 clusters in all",
    ),
    (
        {
            "clustering": {**CHANG, "centers": 1 << 20},
            "data": {"labels": [str(number) for number in range(17)]},
        },
        "clustering.centers",
        "1048576",
        "at most 986,895: there are 17 labels",
    ),
    ({"clustering": CHANG, "claim": {"epsilon": 3.0}}, "claim.delta", "0.0", "1e-06 for median"),
    ({"claim": {"epsilon": 3.0, "delta": 1e-6}}, "claim.delta", "1e-06", "0 for median"),
    (
        {"clustering": CHANG, "mechanism": MEAN, "privacy": {"delta": 1e-6}},
        "privacy.delta",
        "1e-06",
        "above",
    ),
    (
        {"clustering": CHANG, "mechanism": MEAN, "claim": {"epsilon": 3.0, "delta": 1e-7}},
        "claim.delta",
        "1e-07",
        "above",
    ),
]


def test_a_mistake_in_an_own_prompt_is_named(tmp_path: Path, settings: Settings) -> None:
    for fields, field, given, allowed in OWN_PROMPT_MISTAKES:
        assert_told(tmp_path, settings(prompt={"template": None} | fields), field, given, allowed)


def test_labels_may_be_left_out_where_no_prompt_shows_them(
    tmp_path: Path, settings: Settings
) -> None:
    own = {"template": None, "text": LIST}
    mistakes: list[tuple[dict[str, Any], dict[str, Any], str, str, str]] = [
        (
            {},
            {},
            "data.labels",
            "null",
            "which the prompt pt shows; data without labels needs prompt.text",
        ),
        ({}, {"template": "it"}, "data.labels", "null", "which the prompt it shows"),
        ({}, own | {"text": LIST + "{label}"}, "prompt.text", "{label}", "{example} alone"),
        ({"labels": []}, own, "data.labels", "[]", "at least one item"),
        ({"label": "topic"}, own, "data.label", "'topic'", "left out without labels"),
        ({"label_values": ["1"]}, own, "data.label_values", "1", "left out without labels"),
    ]
    for data, prompt, field, given, allowed in mistakes:
        values = settings(prompt=prompt)
        values["data"] = {"path": values["data"]["path"]} | data
        assert_told(tmp_path, values, field, given, allowed)
    values = settings(prompt=own, data={"labels": None})
    assert load_config(write(tmp_path, yaml.safe_dump(values))).data.groups == ("",)
    del values["data"]["labels"]
    assert load_config(write(tmp_path, yaml.safe_dump(values))).data.labels is None


def test_a_mistake_with_clusters_is_named(tmp_path: Path, clustered: Settings) -> None:
    for sections, field, given, allowed in CLUSTERED_MISTAKES:
        assert_told(tmp_path, clustered(**sections), field, given, allowed)


def test_public_texts_are_the_private_ones_by_no_other_name(
    tmp_path: Path, clustered: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "folder/in"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "folder/in/records.csv").write_text("label,text\n")
    (tmp_path / "link.csv").symlink_to("folder/in/records.csv")
    (tmp_path / "records.csv").symlink_to("folder/in/records.csv")
    (tmp_path / "hard.csv").hardlink_to("folder/in/records.csv")
    for public, private in (
        ("records.csv", "records.csv"),
        ("a/../records.csv", "records.csv"),
        (f"{tmp_path}/records.csv", "records.csv"),
        ("link.csv", "records.csv"),
        ("hard.csv", "records.csv"),
        ("folder", "link.csv"),  # of a file in the folder
        ("folder/../folder/in", "folder"),
        ("absent/../gone.csv", "gone.csv"),
        ("gone", "gone/away.csv"),
    ):
        values = clustered(data={"path": private}, clustering={**REBALANCED, "public": public})
        assert_told(
            tmp_path,
            values,
            "clustering.public",
            "the value is",
            "neither in data.path nor around it",
        )
        other = clustered(data={"path": private}, clustering={**REBALANCED, "public": "a"})
        assert load_config(write(tmp_path, yaml.safe_dump(other))).data.path == private


def test_numbers_for_clusters_need_what_they_are_for(
    tmp_path: Path, clustered: Settings, settings: Settings
) -> None:
    by_counts = {"batches_per_cluster": None, "records_per_batch": 9, "most_batches": 2}
    values = clustered(batching=by_counts) | {"clustering": CHANG}
    only = "only public-centers-rebalanced has noisy counts"
    assert_told(tmp_path, values, "batching.records_per_batch", "9", only)
    values = settings(batching={"generate_per_cluster": 2})
    assert_told(
        tmp_path, values, "batching.generate_per_cluster", "2", "null without a section clustering"
    )


def test_configs_are_read_without_pytorch() -> None:
    code = (
        "import sys, dpaudit.generation.config; assert not {'torch', 'transformers'} & "
        "set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_contexts_are_recorded_where_a_mean_over_few_tokens_needs_them(settings: Settings) -> None:
    """Over the whole vocabulary contexts are too large; medians have their central values."""
    top = {"support": {"kind": "public-top-k", "size": 5}}
    for mechanism, asked, recorded in (
        ({**MEAN, **top}, None, True),
        ({**MEAN, **top}, False, False),
        (MEAN, None, False),
        (MEAN, True, True),
        ({**MEAN, **top, "contribution": "differences"}, None, True),
        ({**top, "contribution": "differences"}, None, True),
        (top, None, False),
    ):
        config = Config.model_validate(settings(mechanism=mechanism, record={"contexts": asked}))
        assert config.records_contexts == recorded, mechanism


def test_a_file_that_is_called_like_a_section_is_no_field_of_the_config() -> None:
    for where, named in [
        ("data.csv: row 3, column 'text'", False),
        ("data.parquet", False),
        ("model.gguf", False),
        ("data.path", True),
        ("data", True),
        ("mechanism.support.size", True),
        ("prompt.public_examples: data.csv: row 3", True),
    ]:
        told = in_config(Path("own.yaml"), InputError(where, "It is wrong.", "Mend it.")).where
        assert told == (f"own.yaml: {where}" if named else where)


# --- what run.json repeats ------------------------------------------------------------------------


def test_every_field_is_a_setting_that_run_json_repeats_or_says_that_it_is_not() -> None:
    """A path, a key or the device of a config gets into run.json by no oversight.

    Each field is marked or a setting.
    """
    recorded = {
        name: section_of(field.annotation) for name, field in RunSettings.model_fields.items()
    }
    unrecorded = set()
    for name, field in Config.model_fields.items():
        if UNRECORDED in field.metadata:
            unrecorded.add(name)
            continue
        section, settings = section_of(field.annotation), recorded[name]
        if section is None or settings is None:
            assert section is settings is None
            continue
        for part, own in section.model_fields.items():
            marked = UNRECORDED in own.metadata
            assert marked != (part in settings.model_fields), f"{name}.{part}"
            unrecorded |= {f"{name}.{part}"} if marked else set()
    assert unrecorded >= {
        "data.path",
        "data.dataset",
        "model.device",
        "model.rows",
        "batching.key",
        "clustering.public",
    }
    assert "sampling.seed_files" in unrecorded


def section_of(kind: Any) -> type[Fields] | None:
    """Return the type of a section, which may be one that can be left out."""
    kinds = (
        each
        for each in (kind, *get_args(kind))
        if isinstance(each, type) and issubclass(each, Fields)
    )
    return next(kinds, None)
