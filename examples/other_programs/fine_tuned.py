"""A fine-tune of SmolLM2 without noise, and texts that it writes.

Only LoRA matrices of the last layers are trained (peft): a CPU has no time for more. What the
layers below make of the records is worked out once.

python fine_tuned.py shown.csv 150 texts.csv --epochs 10 --rank 64 --save model
"""

from __future__ import annotations

import argparse

import torch
from peft import LoraConfig, get_peft_model
from shared import continuations, language_model, read_texts, write_texts
from torch.utils.data import DataLoader, TensorDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

LAYERS, TOKENS = 4, 48


def main() -> None:
    """Train, and write samples."""
    parser = argparse.ArgumentParser()
    parser.add_argument("shown", help="CSV files of private records, separated by commas")
    parser.add_argument("count", type=int, help="texts to write")
    parser.add_argument("out")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--save", help="a folder for the model")
    asked = parser.parse_args()
    network, tokenizer = language_model()
    network.requires_grad_(False)
    records = encoded(read_texts(*asked.shown.split(",")), tokenizer)
    layers = network.model.layers
    hidden = below(network, *records)
    network.model.layers = layers[-LAYERS:]
    lora = LoraConfig(r=asked.rank, lora_alpha=2 * asked.rank, target_modules="all-linear")
    upper = get_peft_model(network, lora)
    train(upper, TensorDataset(hidden, *records), asked)
    merged = upper.merge_and_unload()
    merged.model.layers = torch.nn.ModuleList([*layers[:-LAYERS], *merged.model.layers])
    merged.train(False)
    if asked.save:
        merged.save_pretrained(asked.save)
        tokenizer.save_pretrained(asked.save)
    prompts = [tokenizer.bos_token] * asked.count
    write_texts(asked.out, continuations(merged, tokenizer, prompts, tokens=TOKENS, rows=50))


def encoded(
    texts: list[str], tokenizer: PreTrainedTokenizerBase
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and mask [n, TOKENS] of `<bos> text <eos>`, padded on the right."""
    framed = [tokenizer.bos_token + text + tokenizer.eos_token for text in texts]
    batch = tokenizer(
        framed,
        padding="max_length",
        padding_side="right",
        max_length=TOKENS,
        truncation=True,
        return_tensors="pt",
    )
    return batch["input_ids"], batch["attention_mask"]


@torch.no_grad()
def below(network: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return what the layers below the last ones make of records: [n, TOKENS, hidden size]."""
    layers, norm = network.model.layers, network.model.norm
    network.model.layers, network.model.norm = layers[:-LAYERS], torch.nn.Identity()
    parts = [
        network.model(input_ids=some, attention_mask=masked, use_cache=False).last_hidden_state
        for some, masked in zip(ids.split(16), mask.split(16), strict=True)
    ]
    network.model.layers, network.model.norm = layers, norm
    return torch.cat(parts)


def train(upper: torch.nn.Module, records: TensorDataset, asked: argparse.Namespace) -> None:
    """Train by AdamW."""
    upper.train()
    weights = [weight for weight in upper.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=asked.rate, weight_decay=0.0)
    loader = DataLoader(records, batch_size=asked.batch, shuffle=True)
    for epoch in range(asked.epochs):
        losses = []
        for hidden, ids, mask in loader:
            optimizer.zero_grad()
            longest = int(mask.sum(1).max())
            hidden, ids, mask = hidden[:, :longest], ids[:, :longest], mask[:, :longest]
            logits = upper(inputs_embeds=hidden, attention_mask=mask, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none"
            )
            counts = mask[:, 1:]
            loss = ((loss * counts).sum(1) / counts.sum(1)).mean()
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
        print(f"epoch {epoch + 1}: {sum(losses) / len(losses):.3f} nats a token", flush=True)


if __name__ == "__main__":
    main()
