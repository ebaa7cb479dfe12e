"""How many contexts fit into one forward pass."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch
from transformers import DynamicCache

from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import PREFILL_TOKENS

#: Rows of a pass beyond which a device gains nothing: weights are read once for all rows, and from here on computing
#: takes longer than reading.
MOST_ROWS = {"cpu": 64, "cuda": 1024}
#: The share of free memory that caches and logits may take.
SHARE = 0.6
#: Copies of a row's logits that are around at a time: the network's, in float32, and the aggregation's.
_LOGIT_COPIES = 4
#: Activations of a prompt's token, as multiples of the hidden size: the widest layer and what stands around it.
_ACTIVATIONS = 24
_CGROUP = Path("/sys/fs/cgroup")


def planned_rows(model: LanguageModel, places: int, tokens: int, free: int | None = None) -> int:
    """The rows of a pass: a power of two, as many as fit into free memory and serve a purpose. At least 1.

    It depends on the model, the machine and public lengths; and not on any record, where `free` was measured before the
    first one was read.

    Args:
        model: a loaded model.
        places: of a prompt.
        tokens: after it, at most.
        free: bytes that were free before the model was loaded; None for those that are free beside it.
    """
    if free is None:
        free = free_memory(model.device)
    else:
        free -= sum(weights.numel() * weights.element_size() for weights in model.network.parameters())
    config = model.network.config.get_text_config()
    item = torch.finfo(model.network.dtype).bits // 8
    cached = _cached_bytes(model)
    row = (places + tokens + 1) * cached + 4 * _LOGIT_COPIES * model.vocabulary
    prefill = PREFILL_TOKENS * (_ACTIVATIONS * config.hidden_size * item + cached)
    fitting = max(1, int((SHARE * free - prefill) // row))
    return min(MOST_ROWS.get(model.device.type, MOST_ROWS["cpu"]), 1 << (fitting.bit_length() - 1))


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device. On the CPU a container's limit counts too."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(int(psutil.virtual_memory().available), _left_to_container())


def _left_to_container() -> int:
    """Bytes up to the limit that a control group sets."""
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return max(0, int(limit) - int(used))
    except (OSError, ValueError):  # there is none, or it says "max"
        return 1 << 62


@torch.inference_mode()
def _cached_bytes(model: LanguageModel) -> int:
    """What a model caches of one token in one row."""
    cache = model.network(input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device)).past_key_values
    layers = cache.layers if isinstance(cache, DynamicCache) else []
    tensors = [x for layer in layers for x in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    return sum(x.numel() * x.element_size() for x in tensors if x is not None)
