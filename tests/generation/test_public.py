"""Public-only texts: what a run's prompts give without records, in a directory that nobody takes for a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.generation.config import Config
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import OwnCache
from dpaudit.generation.prompts import template
from dpaudit.generation.public import generate_public
from dpaudit.generation.sampling import SeededStream, sample
from dpaudit.runs import Sample
from dpaudit.runs.public import PublicReader

MakeConfig = Callable[..., Config]
MakeRun = Callable[..., Path]

TOP = {"support": {"kind": "public-top-k", "size": 12}}
NOWHERE = {"path": "/nowhere/at/all.csv"}
EXAMPLES = {"north": ["Snow until noon.", "A cold wind."], "south": ["Dust in the afternoon."]}
CLUSTERED: dict[str, Any] = {
    "clustering": {"method": "public-centers", "public": "/nowhere/public.csv", "centers": 3},
    "batching": {
        "batches_per_label": None,
        "generate_per_label": 1,
        "batches_per_cluster": 4,
        "generate_per_cluster": 2,
    },
}


def texts(folder: Path) -> list[Sample]:
    return list(PublicReader(folder).samples())


@pytest.fixture
def public(tmp_path: Path, make_config: MakeConfig) -> MakeRun:
    def make(**sections: Any) -> Path:
        return Path(generate_public(make_config(**sections), tmp_path / f"public-{len(list(tmp_path.iterdir()))}"))

    return make


def test_each_token_is_drawn_from_the_public_prompt_alone(public: MakeRun, tiny: LanguageModel) -> None:
    """Naively: softmax over the support of the template with the public examples, divided by the temperature."""
    wording = template("pt", tiny.tokenizer)
    for mechanism in (
        {**TOP, "temperature": 0.7},
        {"temperature": 1.5},
        {"support": {"kind": "public-top-k", "size": 12, "margin": 0.25}},
    ):
        found = texts(public(mechanism=mechanism, prompt={"public_examples": EXAMPLES}, data=NOWHERE))
        assert [(one.id, one.label) for one in found] == [(0, "north"), (1, "north"), (2, "south"), (3, "south")]
        for one in found:
            source, tokens = SeededStream(7, one.id), list[int]()
            for token in one.tokens:
                prompt = wording.tokens(one.label or "", EXAMPLES[one.label or ""])
                cache = OwnCache(tiny, [prompt], 150)
                for earlier in tokens:
                    cache.append(earlier)
                logits = cache.logits[0].numpy().astype(np.float64)
                support = np.arange(len(logits))
                if "support" in mechanism:
                    least = np.sort(logits)[-12] - mechanism["support"].get("margin", 0)  # type: ignore[attr-defined]
                    support = np.flatnonzero(logits > least) if "margin" in mechanism["support"] else support  # type: ignore[operator]
                    support = support if "margin" in mechanism["support"] else np.sort(np.argsort(-logits)[:12])  # type: ignore[operator]
                draw = sample(logits[support], mechanism.get("temperature", 1.0), source)  # type: ignore[arg-type]
                assert support[draw.index] == token
                tokens.append(token)
