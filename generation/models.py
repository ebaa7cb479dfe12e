"""Causal language models from Hugging Face, a folder or a GGUF file. Remote code is never run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dpaudit.generation.checkpoints import digest_of, identity_files, loading, origin_of
from dpaudit.generation.config import ModelConfig
from dpaudit.runs import InputError

FIELD = "model.name"
CACHE_VARIABLE = "DPAUDIT_CACHE"


@dataclass(frozen=True)
class LanguageModel:
    """A loaded model with its tokenizer.

    Attributes:
        digest: SHA-256 over names and contents of its weight, config and tokenizer files.
        vocabulary: V, the number of tokens it scores.
    """

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    digest: str
    vocabulary: int

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.device

    @property
    def positions(self) -> int | None:
        """The longest sequence it was made for, in tokens; None when it sets no limit."""
        limit = getattr(self.network.config.get_text_config(), "max_position_embeddings", None)
        return limit if isinstance(limit, int) else None

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Ids that end a text, by the tokenizer and by the model's generation settings; ascending."""
        settings = self.network.generation_config
        listed = settings.eos_token_id if settings is not None else None
        ids = [*(listed if isinstance(listed, list) else [listed]), self.tokenizer.eos_token_id]
        return tuple(sorted({token for token in ids if isinstance(token, int)}))

    @property
    def tokenizer_json(self) -> str | None:
        """The tokenizer as the `tokenizers` library reads it; None when it has no such form."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return None if backend is None else str(backend.to_str())

    def leave_gpu(self) -> None:
        """Give a GPU's memory back: the weights go on in the computer's own."""
        if self.device.type == "cuda":
            self.network.cpu()
            torch.cuda.empty_cache()

    def decode(self, ids: list[int]) -> str | None:
        """Text of token ids, as the `tokenizers` library alone decodes them; None where it cannot."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return None if backend is None else str(backend.decode(ids, skip_special_tokens=True))


def load_model(config: ModelConfig, digest: str | None = None) -> LanguageModel:
    """Load a model and its tokenizer.

    Args:
        config: which one, and how.
        digest: what the model's digest must be; None for any.

    Raises:
        InputError: there is no such model or device, it is no causal language model, or it is another one.
    """
    device = device_of(config)
    with loading(config.name, FIELD, "a causal language model"):
        source = origin_of(config.name, FIELD)
        gguf = _gguf_file(source) if isinstance(source, Path) else None
        found = None
        if isinstance(source, Path):  # known before its weights are loaded; a hub's files may not be here yet
            found = digest_of([gguf] if gguf is not None else identity_files(source, FIELD))
            _require_digest(config.name, digest, found)
        origin: Path | str = source if gguf is None else _converted(gguf)
        network = _load_network(origin, config)
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(origin)
        if found is None:
            found = digest_of(identity_files(origin, FIELD))
            _require_digest(config.name, digest, found)
    network.to(device)  # type: ignore[arg-type]
    network.train(False)
    with torch.inference_mode():
        probe = network(input_ids=torch.zeros((1, 1), dtype=torch.long, device=device))
    return LanguageModel(network, tokenizer, found, int(probe.logits.shape[-1]))


def _require_digest(name: str, wanted: str | None, found: str) -> None:
    if wanted is not None and found != wanted:
        problem = f"this is not the model of the run: {name!r} has the digest {found[:12]}..., not {wanted[:12]}..."
        raise InputError(FIELD, problem, "Name the folder of the very model with --model.")


def cache_folder() -> Path:
    """Where converted models are kept: DPAUDIT_CACHE, or the user's cache folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("dpaudit"))


def device_of(config: ModelConfig) -> torch.device:
    """Where a config puts the model. Raises InputError where there is no such device."""
    wanted = config.device
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise InputError("model.device", "this is cuda, but there is no GPU here.", "Allowed: auto or cpu.")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def _gguf_file(folder: Path) -> Path | None:
    """The .gguf file of a folder that holds one instead of a Hugging Face model."""
    if (folder / "config.json").exists():
        return None
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise InputError(FIELD, f"{folder} holds several GGUF files: {names}.", "Leave one in the folder.")
    if not files:
        remedy = "Name a folder with config.json or a .gguf file."
        raise InputError(FIELD, f"{folder} holds no model.", remedy)
    return files[0]


def _load_network(origin: Path | str, config: ModelConfig) -> PreTrainedModel:
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        origin,
        dtype=dtype,
        output_loading_info=True,
        use_safetensors=True,  # other weight files may be pickles
    )
    network, loading = loaded
    if loading["missing_keys"]:
        # Such weights would be random: an encoder, say, that was given a new language model's head.
        raise InputError(FIELD, f"{config.name!r} lacks weights of a causal language model.", "Name one that has them.")
    result: PreTrainedModel = network
    return result


def _converted(gguf: Path) -> Path:
    """The folder that a GGUF file was converted into; converted now if it was not. Atomic: whole or absent."""
    with open(gguf, "rb") as file:
        folder = cache_folder() / "models" / hashlib.file_digest(file, "sha256").hexdigest()
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    try:
        _convert(gguf, partial)
        with contextlib.suppress(OSError):  # another process may have been first
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's weights, dequantized to float32, and its tokenizer as a Hugging Face model."""
    auto: Any = AutoModelForCausalLM  # its methods are untyped
    quantized = auto.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    fields: dict[str, Any] = quantized.config.to_dict()
    # With this field the saved weights would be taken for quantized ones.
    fields.pop("quantization_config", None)
    network = auto.from_config(type(quantized.config).from_dict(fields))
    network.load_state_dict(quantized.state_dict())
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
