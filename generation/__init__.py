"""Algorithm 1: prompts, language models, batching, aggregation and decoding. Writes run directories.

What is named here is imported when it is first used: configs are read, and a table's costs worked out, without torch.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# Before MKL's first use: the same sums in the same order in every row and thread, wherever its numbers lie in memory.
# Without it a context's logits would depend, in their last bits, on which rows the other contexts sit in.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

if TYPE_CHECKING:
    from generation.algorithm import generate
    from generation.config import Config, load_config
    from generation.demo import demo_configs
    from generation.events import BatchDone, BatchStarted, MemoryRanOut, Progress, StepDone

__all__ = [
    "BatchDone",
    "BatchStarted",
    "Config",
    "MemoryRanOut",
    "Progress",
    "StepDone",
    "demo_configs",
    "generate",
    "load_config",
]

_MODULES = {"Config": "config", "demo_configs": "demo", "generate": "algorithm", "load_config": "config"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'events')}"), name)
