"""Algorithm 1: prompts, language models, batching, aggregation and decoding. Writes run directories."""

from generation.algorithm import BatchDone, BatchStarted, Progress, StepDone, generate
from generation.config import Config, load_config
from generation.demo import demo_configs

__all__ = [
    "BatchDone",
    "BatchStarted",
    "Config",
    "Progress",
    "StepDone",
    "demo_configs",
    "generate",
    "load_config",
]
