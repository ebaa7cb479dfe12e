"""A random small Llama with a byte-level tokenizer: real enough to generate with, and fast."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

#: Gemma's turns.
CHAT_TEMPLATE = (
    "{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def save_tiny_model(folder: Path) -> None:
    """Save a model whose vocabulary of 272 exceeds its tokenizer's 259."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=272,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        eos_token_id=0,
        bos_token_id=None,
        initializer_range=0.4,
    )
    with contextlib.redirect_stderr(io.StringIO()):  # saving draws a bar
        LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token a byte, but for the fence and the special tokens.

    The fence is one token.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<eos>", *alphabet, "``", "```"])}
    backend = Tokenizer(models.BPE(vocabulary, [("`", "`"), ("``", "`")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<eos>",  # noqa: S106
        chat_template=CHAT_TEMPLATE,
    )
    return tokenizer
