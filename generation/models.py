"""Models as files: where a name leads, a model's identity, and loading.

Remote code is never run.

A model comes from the Hugging Face hub, from a folder, or, a causal language model, from a GGUF
file.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file

from dpaudit.generation.config import ModelConfig
from dpaudit.generation.joined import JOINED, building, cache_folder, joined_folder
from dpaudit.generation.sources import PACKAGE, locate, require_file
from dpaudit.runs import InputError
from dpaudit.runs.layout import TOKENIZER
from dpaudit.runs.manifest import CoupledRows

FIELD = "model.name"
#: What to do where a record's logits are of no use. That a record broke the run is private.
UNUSABLE_LOGITS = (
    "Try public texts with model.dtype float32, or another model, and take what serves them: a "
    "choice by the records "
    "is one that no epsilon pays for (chosen_from.settings: private)."
)
#: For tokenizers and encoders that name no limit.
_MOST_TOKENS = 512
#: The files in a model's folder that decide what it computes.
IDENTITY = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")


def origin_of(name: str, field: str) -> Path | str:
    """Return the folder that a config's field names, or else a Hugging Face name.

    The field names it as itself, as package:NAME/FOLDER, or as a model that was joined of parts.

    Raises:
        InputError: the name is a path, and nothing is there.
    """
    if name in JOINED:
        return joined_folder(name, field)
    if name.startswith((PACKAGE, "/", "./", "../", "~")):
        return locate(name, field)
    return Path(name) if Path(name).is_dir() else name


def identity_files(origin: Path | str, field: str) -> list[Path]:
    """Return the files that decide what a model computes.

    A hub's model must have been loaded before, so that they are here.

    Raises:
        InputError: it has none, or a pipe, a device or the like among them, whose reading might
            never end.
    """
    if isinstance(origin, str):
        config = cached_file(origin, "config.json")
        if config is None:
            raise InputError(
                field, f"{origin!r} has no config.json.", "Name a model in Hugging Face's format."
            )
        origin = Path(config).parent
    files = [file for pattern in IDENTITY for file in origin.glob(pattern)]
    for file in files:
        require_file(file, field)  # links are followed: the hub's own files are some
    return files


def digest_of(files: Iterable[Path]) -> str:
    """Return the SHA-256 over sorted (file name, SHA-256 of its content)."""
    total = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{content}  {path.name}\n".encode())
    return total.hexdigest()


@contextlib.contextmanager
def loading(name: str, field: str, kind: str) -> Iterator[None]:
    """Load a model without noise, and say in a config author's words why it cannot be loaded.

    Args:
        name: the model, as the config has it.
        field: the config's field that holds the name.
        kind: what it is loaded as, with its article.

    Raises:
        InputError: whatever went wrong inside.
    """
    try:
        with _quiet():
            yield
    except InputError:
        raise
    except PermissionError as error:
        problem = f"{str(error.filename)!r} of the model {name!r} may not be read."
        raise InputError(
            field, problem, "Give this user leave to read it, or name a copy."
        ) from None
    except OSError:
        problem = f"the model {name!r} was not found, here or on the Hugging Face hub."
        remedy = (
            "Check the name and the network; without a network, name a folder or an "
            "installed package."
        )
        raise InputError(field, problem, remedy) from None
    except Exception as error:  # a broken file makes the libraries raise many kinds
        reason = str(error).strip().split("\n")[0][:200]
        problem = f"{name!r} cannot be loaded as {kind} without running its own code ({reason})."
        raise InputError(field, problem, "Name a model that transformers supports.") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bars and warnings; errors are raised all the same."""
    logging: Any = transformers.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub = getLogger("huggingface_hub")  # it tells of every retry
    hub_level = hub.level
    hub.setLevel(CRITICAL)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # Reading a GGUF file draws a bar that no setting turns off.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        hub.setLevel(hub_level)
        if bars:
            logging.enable_progress_bar()


def load_network(
    auto: Any, origin: Path | str, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Load weights from safetensors files: others may be pickles.

    Args:
        auto: a class of transformers such as `AutoModel`.
        origin: see `origin_of`.
        dtype: of the weights.
        options: of `from_pretrained`.

    Returns:
        The model, and the names of the weights that the files lack, so that they are random.
    """
    network, info = auto.from_pretrained(
        origin,
        dtype=dtype,
        output_loading_info=True,
        use_safetensors=True,
        trust_remote_code=False,
        **options,
    )
    return network, [*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])]


def token_limit(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stated: int | None
) -> int:
    """Return an encoder's longest text, in tokens.

    It is the least that the tokenizer, its positions and `stated` allow.
    """
    limits = [
        stated,
        tokenizer.model_max_length,
        getattr(network.config, "max_position_embeddings", None),
    ]
    # "none" is 10^30
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**9]
    return min(known, default=_MOST_TOKENS)


def padded(
    prompts: Sequence[Sequence[int]], rows: int, places: int, tokenizer: PreTrainedTokenizerBase
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and attention mask, int64 [rows, places].

    Rows without any token have one token of padding.
    """
    ids = torch.full((rows, places), int(tokenizer.pad_token_id or 0), dtype=torch.long)
    mask = torch.zeros((rows, places), dtype=torch.long)
    mask[:, 0] = 1
    for row, tokens in enumerate(prompts):
        ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        mask[row, : len(tokens)] = 1
    return ids, mask


@dataclass(frozen=True)
class LanguageModel:
    """A loaded model with its tokenizer.

    Attributes:
        digest: SHA-256 over names and contents of its weight, config and tokenizer files.
        vocabulary: V, the number of tokens it scores.
        coupled_rows: see `ModelConfig`.
    """

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    digest: str
    vocabulary: int
    coupled_rows: CoupledRows = "alone"

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.network.device
        return device

    @property
    def positions(self) -> int | None:
        """The longest sequence it was made for, in tokens; None when it sets no limit."""
        config = self.network.config.get_text_config()
        limits = (
            getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len")
        )
        return next((limit for limit in limits if isinstance(limit, int)), None)

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Ids that end a text, ascending, by the tokenizer and the model's generation settings."""
        settings = self.network.generation_config
        listed = settings.eos_token_id if settings is not None else None
        ids = [*(listed if isinstance(listed, list) else [listed]), self.tokenizer.eos_token_id]
        return tuple(sorted({token for token in ids if isinstance(token, int)}))

    @cached_property  # a large vocabulary takes a second to write
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
        """Decode token ids as the `tokenizers` library alone does; None if it cannot."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        return str(backend.decode(ids, skip_special_tokens=True))


def tokenizer_file(name: str) -> Path | None:
    """Return the path of the tokenizer.json of a model that was loaded before; None without one.

    Raises:
        InputError: there is no such model.
    """
    source = origin_of(name, FIELD)
    if isinstance(source, Path):
        gguf = gguf_file(source)
        file = (source if gguf is None else converted(gguf)) / TOKENIZER
        return file if file.is_file() else None
    with contextlib.suppress(OSError):
        found = cached_file(source, TOKENIZER)
        return None if found is None else Path(found)
    return None


def device_of(config: ModelConfig) -> torch.device:
    """Return the device of a config's model.

    Raises:
        InputError: there is no such device.
    """
    wanted = config.device
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise InputError(
            "model.device", "this is cuda, but there is no GPU here.", "Allowed: auto or cpu."
        )
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def dtype_of(config: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the dtype that a config names, or bfloat16 on a device that computes in it by itself.

    Otherwise `auto` is float32.
    """
    if config.dtype == "auto":
        if device.type == "cuda":
            if torch.cuda.is_bf16_supported(including_emulation=False):
                return torch.bfloat16
            return torch.float32
        # older versions do not say
        known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        if known.get("avx512_bf16") or known.get("amx_bf16"):
            return torch.bfloat16
        return torch.float32
    return torch.float32 if config.dtype == "float32" else torch.bfloat16


def gguf_file(folder: Path) -> Path | None:
    """Return the .gguf file of a folder that holds one instead of a Hugging Face model."""
    if (folder / "config.json").exists():
        return None
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise InputError(
            FIELD, f"{folder} holds several GGUF files: {names}.", "Leave one in the folder."
        )
    if not files:
        remedy = "Name a folder with config.json or a .gguf file."
        raise InputError(FIELD, f"{folder} holds no model.", remedy)
    require_file(files[0], FIELD)
    return files[0]


def converted(gguf: Path, begin: Callable[[], None] = lambda: None) -> Path:
    """Return the folder of a GGUF file converted into a Hugging Face model with float32 weights.

    It is converted now if it was not. Atomic: whole or absent.

    Args:
        gguf: the file.
        begin: called where it is converted now, which can take minutes.
    """
    with open(gguf, "rb") as file:
        folder = cache_folder() / "models" / hashlib.file_digest(file, "sha256").hexdigest()
    if folder.exists():
        return folder
    begin()
    with building(folder) as partial:
        auto: Any = AutoModelForCausalLM  # its methods are untyped
        quantized = auto.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        fields: dict[str, Any] = quantized.config.to_dict()
        # With this field the saved weights would be taken for quantized ones.
        fields.pop("quantization_config", None)
        network = auto.from_config(type(quantized.config).from_dict(fields))
        network.load_state_dict(quantized.state_dict())
        network.save_pretrained(partial)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(partial)
    return folder
