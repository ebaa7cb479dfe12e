"""Refusals of models at load: one cannot generate, or its contexts move each other's bits."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from benchmarks.tiny import byte_tokenizer
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import ModelConfig
from dpaudit.generation.model_loading import load_model
from dpaudit.generation.model_probe import Probe, isolation_of, passes_for, probe
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import SharedPasses
from dpaudit.generation.replay import replay_run
from dpaudit.runs import InputError, RunReader
from dpaudit.runs.manifest import CoupledRows
from tests.nesting import read_run, write_run

VOCABULARY = 272
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.4,
}
WIDE = SIZES | {"num_key_value_heads": 2, "head_dim": 16}
EXPERTS = WIDE | {"num_experts_per_tok": 2}
STATES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 16}

MIXTURES: dict[str, Callable[[], PreTrainedConfig]] = {
    "Mixtral": lambda: transformers.MixtralConfig(**EXPERTS, num_local_experts=4),
    "Qwen2-MoE": lambda: transformers.Qwen2MoeConfig(
        **EXPERTS, num_experts=4, moe_intermediate_size=32
    ),
    "Qwen3-MoE": lambda: transformers.Qwen3MoeConfig(
        **EXPERTS, num_experts=4, moe_intermediate_size=32
    ),
    "OLMoE": lambda: transformers.OlmoeConfig(**EXPERTS, num_experts=4),
    "GPT-OSS": lambda: transformers.GptOssConfig(**EXPERTS, num_local_experts=4),
}
DENSE: dict[str, Callable[[], PreTrainedConfig]] = {
    "Llama": lambda: transformers.LlamaConfig(**WIDE),
    "GPT-2": lambda: transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2),
    "Gemma 3": lambda: transformers.Gemma3TextConfig(**WIDE),
    "Mamba": lambda: transformers.MambaConfig(**STATES),
    "Mamba 2": lambda: transformers.Mamba2Config(**STATES, num_heads=8, head_dim=8, n_groups=2),
    "LFM2": lambda: transformers.Lfm2Config(**WIDE, layer_types=["conv", "full_attention"]),
}
UNUSABLE: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "BERT": (lambda: transformers.BertConfig(**SIZES), "no causal language model"),
    "RoBERTa": (lambda: transformers.RobertaConfig(**SIZES), "no causal language model"),
    "RoBERTa as a decoder": (
        lambda: transformers.RobertaConfig(**SIZES, is_decoder=True),
        "other scores",
    ),
    "RWKV": (lambda: transformers.RwkvConfig(**STATES), "no cache of earlier tokens"),
    "GPT": (
        lambda: transformers.OpenAIGPTConfig(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2),
        "no cache of earlier tokens",
    ),
    "RecurrentGemma": (
        lambda: transformers.RecurrentGemmaConfig(**WIDE),
        "first pass ends in an error",
    ),
    "BART's decoder": (
        lambda: transformers.BartConfig(
            vocab_size=VOCABULARY,
            d_model=32,
            decoder_layers=2,
            decoder_attention_heads=2,
            decoder_ffn_dim=64,
        ),
        "other scores",
    ),
    "XLNet": (
        lambda: transformers.XLNetConfig(
            vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=2, d_inner=64
        ),
        "no causal language model",
    ),
}


def made(
    config: PreTrainedConfig, coupled_rows: CoupledRows = "alone", seed: int = 0
) -> LanguageModel:
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(config).eval()
    return LanguageModel(network, None, "", VOCABULARY, coupled_rows)  # type: ignore[arg-type]


def saved(config: PreTrainedConfig, folder: Path) -> Path:
    made(config).network.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("config", MIXTURES.values(), ids=MIXTURES)
def test_experts_couple_contexts_which_then_go_alone(
    config: Callable[[], PreTrainedConfig],
) -> None:
    model = made(config())
    assert probe(model).couples
    assert isolation_of(model) == "alone"
    watched, tokens = [[5], [7, 8, 9]], (30, 31, 200)

    def logits(others: list[list[int]]) -> np.ndarray:
        batch = passes_for(model, 8, 16, 6).start([*watched, *others])
        found = [batch.logits[:2].clone()]
        for token in tokens:
            batch.append(token)
            found.append(batch.fork().logits[:2].clone())
        return torch.stack(found).numpy()

    alone = logits([])
    for others in ([[1, 2, 3]], [[40] * 15, [9], [200, 201]], [[50]] * 9):
        assert np.array_equal(alone, logits(others))
    support = np.array([3, 100, 271])
    batch = passes_for(model, 8, 16, 6).start(watched)
    assert np.array_equal(batch.logits_over(support).numpy(), alone[0][:, support])


@pytest.mark.parametrize("config", DENSE.values(), ids=DENSE)
def test_dense_networks_and_state_spaces_couple_nothing(
    config: Callable[[], PreTrainedConfig],
) -> None:
    model = made(config())
    assert not probe(model).couples
    assert isolation_of(model) == "shared"


def test_a_probe_says_the_same_again(tiny: LanguageModel) -> None:
    assert probe(tiny) == Probe(shares=True, couples=False)
    assert probe(made(MIXTURES["Mixtral"]())) == probe(made(MIXTURES["Mixtral"]()))
    assert isinstance(passes_for(tiny, 8, 16, 6), SharedPasses)


def test_a_config_may_ask_for_a_pass_a_batch() -> None:
    model = made(MIXTURES["Mixtral"](), "batch")
    assert isolation_of(model) == "batch"
    passes = passes_for(model, 16, 16, 6)
    first, second = passes.start([[5], [6, 7]]), passes.start([[9] * 9])
    alone = passes_for(model, 16, 16, 6).start([[5], [6, 7]])
    for token in (3, 4):
        passes.advance([(first, token), (second, 200)])
        alone.append(token)
        assert np.array_equal(first.logits.numpy(), alone.logits.numpy())


@pytest.mark.parametrize(("config", "said"), UNUSABLE.values(), ids=UNUSABLE)
def test_refuses_networks_that_cannot_generate(
    config: Callable[[], PreTrainedConfig], said: str, tmp_path: Path
) -> None:
    folder = saved(config(), tmp_path / "model")
    with pytest.raises(InputError, match=said) as caught:
        load_model(ModelConfig(name=str(folder), device="cpu"))
    assert caught.value.where == "model.name"


def test_refuses_a_tokenizer_with_more_ids_than_the_model_knows(
    tiny_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.add_tokens([f"<added {number}>" for number in range(20)])
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match=r"ids up to 278, .* 272"):
        load_model(ModelConfig(name=str(tmp_path / "model"), device="cpu"))


@pytest.mark.parametrize(
    "files", [{"model.safetensors"}, {"tokenizer.json", "tokenizer_config.json"}, {"config.json"}]
)
def test_refuses_a_folder_without_some_of_its_files(
    tiny_folder: Path, tmp_path: Path, files: set[str]
) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model", ignore=lambda _, names: files & set(names))
    with pytest.raises(InputError) as caught:
        load_model(ModelConfig(name=str(tmp_path / "model"), device="cpu"))
    assert caught.value.where == "model.name"


def test_refuses_weights_that_are_quantized_in_a_way_that_is_not_there(
    tiny_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model")
    config = tmp_path / "model/config.json"
    config.write_text(
        json.dumps(
            json.loads(config.read_text())
            | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
        )
    )
    with pytest.raises(InputError) as caught:
        load_model(ModelConfig(name=str(tmp_path / "model"), device="cpu"))
    assert caught.value.where == "model.name"


def test_a_dry_run_refuses_it_too(
    settings: Callable[..., dict[str, Any]],
    tmp_path: Path,
    dpaudit: Callable[..., tuple[int, str, str]],
) -> None:
    folder = saved(UNUSABLE["BERT"][0](), tmp_path / "model")
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(settings(model={"name": str(folder)})))
    for more in (["--dry-run"], ["--out", str(tmp_path / "run")]):
        code, _, err = dpaudit("generate", config, *more)
        assert code == 2
        assert "causal language model" in err


def test_a_state_space_generates_and_is_replayed(
    make_config: Callable[..., Any], data_file: Path, tmp_path: Path
) -> None:
    folder = saved(DENSE["Mamba"](), tmp_path / "model")
    run = generate(make_config(model={"name": str(folder)}), tmp_path / "run")
    assert RunReader(run).manifest.model.isolation == "shared"
    found = replay_run(run, str(data_file), steps=4, left_out=0, trials=0)
    assert all(step.difference <= step.tolerance and not step.problems for step in found.steps)


def test_a_run_says_what_keeps_contexts_apart(
    make_config: Callable[..., Any], data_file: Path, tmp_path: Path
) -> None:
    folder = str(saved(MIXTURES["Mixtral"](), tmp_path / "model"))
    for coupled, said in (("alone", "alone"), ("batch", "batch")):
        run = Path(
            generate(
                make_config(model={"name": folder, "coupled_rows": coupled}), tmp_path / coupled
            )
        )
        assert RunReader(run).manifest.model.isolation == said
        found = replay_run(run, str(data_file), steps=3, left_out=1, trials=0)
        assert all(step.difference <= step.tolerance and not step.problems for step in found.steps)
    manifest = read_run(run)
    manifest["model"]["isolation"] = "alone"
    write_run(run, manifest)
    with pytest.raises(InputError, match=r"model\.coupled_rows"):  # it asked for batch
        RunReader(run)
    manifest["model"]["isolation"] = "shared"
    write_run(run, manifest)
    with pytest.raises(InputError, match=r"model\.isolation"):
        replay_run(run, str(data_file), steps=3, left_out=0, trials=0)
