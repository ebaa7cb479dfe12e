"""Rivals of whole generation, in a process without our setting for repeatable sums.

- The bare loop makes forward passes and nothing else: left-padded to the longest prompt, with a
  key-value cache and the logits of the last position, for random tokens. Without its head it scores
  no token: whoever scores a support alone gains no more than that, but by faster passes.
- InvisibleInk (arXiv 2507.02974, package `invink`) averages clipped logits of many prompts too. It
  gets as many rows a step as a batch has contexts, its public prompt among them (so one private
  text less), all in one forward pass, in the same dtype, with its default top-k and its own clip
  for its default epsilon. No end token stops it.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest import mock

import torch
from transformers import DynamicCache

from benchmarks.workload import LABEL, Workload
from dpaudit.generation.model_loading import load_model
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.prompts import Template, template

INVINK = "invink"
INSTALL = "pip install --no-deps invink==0.1.0 (Python 3.12 or later)"


class Rivals:
    """The rivals' process. Each method runs one of them over the whole workload."""

    def __init__(self, work: Workload) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare, (work,))

    def __enter__(self) -> Rivals:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def bare(self, rows: int, *, head: bool = True) -> float:
        """Return seconds a token of the bare loop, `rows` rows together, with or without head."""
        return self._pool.submit(_bare, rows, head).result()

    def lacks_invink(self) -> str:
        """Return why InvisibleInk cannot be run, and the remedy, or ""."""
        return self._pool.submit(_load_invink).result()

    def invink(self, tokens: int) -> float:
        """Return seconds a token of InvisibleInk, for texts of so many tokens."""
        return self._pool.submit(_invink, tokens).result()


class _Here:
    """The state of the process."""

    work: Workload
    model: LanguageModel
    wording: Template
    invink: Any
    tokenizer: Any
    network: Any


def _prepare(work: Workload) -> None:
    os.environ.pop("MKL_CBWR", None)
    _Here.work, _Here.model = work, load_model(work.model)
    _Here.wording = template("pt", _Here.model.tokenizer)


def _bare(rows: int, head: bool) -> float:
    work = _Here.work
    prompts = [_Here.wording.tokens(LABEL, [text]) for text in work.texts]
    start = time.perf_counter()
    for first in range(0, len(prompts), rows):
        _continue(_Here.model, prompts[first : first + rows], work.tokens, head)
    return (time.perf_counter() - start) / (work.batches * work.tokens)


@torch.inference_mode()
def _continue(
    model: LanguageModel, prompts: Sequence[Sequence[int]], tokens: int, head: bool
) -> None:
    """Run forward passes for `tokens` more tokens of every prompt."""
    network = model.network if head else model.network.base_model
    last = {"logits_to_keep": 1} if head else {}
    longest, device = max(map(len, prompts)), model.device
    ids = torch.tensor(
        [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device
    )
    mask = torch.tensor(
        [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device
    )
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.network.config)
    sampled = torch.randint(model.vocabulary, (len(prompts), tokens), device=device)
    for step in range(tokens):
        network(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **last,
        )
        ids = sampled[:, step : step + 1]
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
        positions = positions[:, -1:] + 1
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _load_invink() -> str:
    try:
        package: Any = importlib.import_module(f"{INVINK}.generate")
    except ImportError:
        return f"{INVINK} is not installed: {INSTALL}"
    except SyntaxError:
        return f"{INVINK} 0.1.0 does not parse on this Python: {INSTALL}"
    folder, model, wording = str(_Here.model.tokenizer.name_or_path), _Here.model, _Here.wording
    with _silent():
        tokenizer = package.load_hf_tokenizer(folder, dtype="float32")
        network = package.load_hf_model(
            folder,
            dtype="float32",
            device_map=package.setup_device(_gpu()),
            trust_remote_code=False,
        )
    # It fills in a chat, of which only the request is wanted: our prompt, word for word.
    tokenizer.chat_template = "{{ messages[1]['content'] }}"
    # An id that its top-k does not hold, so that all its texts are of full length.
    network.generation_config.eos_token_id = model.vocabulary - 1
    for text in _Here.work.texts:
        prompt = package.get_prompt(tokenizer, private_ref=text, **_prompts(wording))
        if tokenizer(prompt)["input_ids"] != wording.tokens(LABEL, [text]):
            raise RuntimeError(f"{INVINK} would continue another prompt than ours")
    _Here.invink, _Here.tokenizer, _Here.network = package, tokenizer, network
    return ""


def _invink(tokens: int) -> float:
    work, package = _Here.work, _Here.invink
    with (
        mock.patch.object(package, "load_hf_tokenizer", lambda **_: _Here.tokenizer),
        mock.patch.object(package, "load_hf_model", lambda **_: _Here.network),
        _silent(),
    ):
        start = time.perf_counter()
        found = package.generate(
            list(work.texts),
            "loaded",
            **_prompts(_Here.wording),
            batch_size=work.contexts,
            num=work.batches,
            max_toks=tokens,
            dtype="float32",
            device_map=_gpu(),
            trust_remote_code=False,
        )
        return (time.perf_counter() - start) / int(sum(found.lens))


def _prompts(wording: Template) -> dict[str, str]:
    private, public = wording.text(LABEL, ["{1}"]), wording.text(LABEL, [])
    return {"dataset_desc": LABEL, "system_prompt": "", "prv_prompt": private, "pub_prompt": public}


def _gpu() -> int:
    """Return the package's number of the device; -1 is the CPU."""
    return -1 if _Here.model.device.type == "cpu" else 0


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silence its prints and bars."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield
