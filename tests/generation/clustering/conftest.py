"""A sentence-embedding model that is made in a moment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from benchmarks.tiny import byte_tokenizer


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialised encoder with one token a byte."""
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=272,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=48,
        initializer_range=0.4,
    )
    BertModel(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
