"""A language model from its files, tried out.

What generation cannot use is refused before anything is done with it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from dpaudit.generation.config import ModelConfig
from dpaudit.generation.events import PhaseBegan, Progress
from dpaudit.generation.model_probe import UnusableModelError, has_experts, probe, vocabulary_of
from dpaudit.generation.models import (
    FIELD,
    LanguageModel,
    converted,
    device_of,
    digest_of,
    dtype_of,
    gguf_file,
    identity_files,
    load_network,
    loading,
    origin_of,
)
from dpaudit.runs import InputError


def load_model(
    config: ModelConfig, digest: str | None = None, progress: Progress = lambda _: None
) -> LanguageModel:
    """Load a model and its tokenizer.

    Args:
        config: which one, and how.
        digest: what the model's digest must be; None for any.
        progress: told of the phases.

    Raises:
        InputError: there is no such model or device, it is another one, or it cannot generate.
    """
    progress(PhaseBegan("loading"))
    device = device_of(config)
    with loading(config.name, FIELD, "a causal language model"):
        source = origin_of(config.name, FIELD)
        gguf = gguf_file(source) if isinstance(source, Path) else None
        found = None
        # known before its weights are loaded; a hub's files may not be here yet
        if isinstance(source, Path):
            found = digest_of([gguf] if gguf is not None else identity_files(source, FIELD))
            _require_digest(config.name, digest, found)
        origin: Path | str = source
        if gguf is not None:
            origin = converted(gguf, lambda: progress(PhaseBegan("converting")))
        network, missing = load_network(AutoModelForCausalLM, origin, dtype_of(config, device))
        # such weights would be random: an encoder, say, that was given a new language model's head
        if missing:
            problem = f"{config.name!r} lacks weights of a causal language model."
            raise InputError(FIELD, problem, "Name one that has them.")
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            origin, trust_remote_code=False
        )
        if found is None:
            found = digest_of(identity_files(origin, FIELD))
            _require_digest(config.name, digest, found)
        network.to(device)
        network.train(False)
    try:
        model = LanguageModel(
            network, tokenizer, found, vocabulary_of(network), config.coupled_rows
        )
        couples = probe(model).couples
    except UnusableModelError as error:
        raise InputError(FIELD, f"{config.name!r} {error}.", error.remedy) from None
    # On CPUs with AMX, bfloat16 sums hang on the number of rows; passes of one context each take
    # four times as long as shared ones in float32 (one core, SmolLM2-135M, 2026-11-26).
    half = config.dtype == "auto" and device.type == "cpu" and network.dtype == torch.bfloat16
    if half and couples and not has_experts(network):  # experts couple rows in any dtype
        del model, network
        return load_model(config.model_copy(update={"dtype": "float32"}), digest, progress)
    return model


def _require_digest(name: str, wanted: str | None, found: str) -> None:
    if wanted is not None and found != wanted:
        problem = (
            f"this is not the model of the run: {name!r} has the digest {found[:12]}..., "
            f"not {wanted[:12]}..."
        )
        raise InputError(FIELD, problem, "Name the folder of the very model with --model.")
