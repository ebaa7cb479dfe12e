"""Algorithm 1: prompts, language models, batching, aggregation and decoding. Writes run directories."""

import os
from typing import TYPE_CHECKING, Any

# Before MKL's first use: the same sums in the same order in every row and thread, wherever its numbers lie in memory.
# Without it a context's logits would depend, in their last bits, on which rows the other contexts sit in.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

from dpaudit.generation.config import Config, load_config
from dpaudit.generation.events import BatchDone, BatchStarted, MemoryRanOut, Progress, StepDone
from dpaudit.generation.starting import demo_configs

if TYPE_CHECKING:
    from dpaudit.generation.algorithm import generate


def __getattr__(name: str) -> Any:
    """Import `generate` when it is used: PyTorch comes with it, and a config can be read without."""
    if name != "generate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dpaudit.generation.algorithm import generate

    return generate
