"""One step from raw logits to what it samples from, on all cores: contributions, truncation, aggregation.

A batch is worked off in blocks of columns: clipped, aggregated, forgotten. Logits on another device stay there until
the results, which are small, are moved. Every number is the plain definition's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.engines import cores
from dpaudit.generation.threads import even_blocks, share_out
from dpaudit.mechanisms import Arrays, Contribution, Mechanism

Floats: TypeAlias = NDArray[np.float32]
#: Raw logits [n, V]: an array or a tensor in float32, or a tensor in bfloat16; tensors on any device.
Logits: TypeAlias = Floats | torch.Tensor
#: Ids of the tokens to sample from, ascending: int [S]; None for the whole vocabulary.
Support: TypeAlias = NDArray[np.integer] | None

#: Values of a block. Small enough for a processor's cache; many enough that numpy's calls cost less than they do.
BLOCK = 1 << 20
LEAST_COLUMNS, MOST_COLUMNS = 4096, 16384


def aggregated(logits: Logits, support: Support, mechanism: Mechanism, width: int) -> Arrays:
    """The arrays of a step (Algorithm 1, lines 6 and 7). Generation, replay and attack all take them from here.

    Args:
        logits: [n, V], n >= 0.
        support: the tokens to sample from. Columns are aggregated one by one, so this equals truncating the aggregate.
        mechanism: the run's.
        width: central order statistics to keep on each side, where the mechanism records such.

    Raises:
        ValueError: a logit is NaN or +inf, or a row has no finite logit.
    """
    aggregator, clip = mechanism.aggregator, mechanism.clip
    if isinstance(logits, torch.Tensor) and _is_elsewhere(logits):
        return aggregator.step_on_device(mechanism.contribution.on_device(logits, support), clip, width)
    rows = _rows(logits, support, mechanism.contribution)
    parts: dict[int, Arrays] = {}

    def work(blocks: Iterator[slice]) -> None:
        for block in blocks:
            parts[block.start] = aggregator.step(rows.contributions(block), clip, width)

    share_out(rows.size, rows.columns, work)
    blocks = [parts[start] for start in sorted(parts)]
    return {name: np.concatenate([block[name] for block in blocks], axis=-1) for name in blocks[0]}


def contributions(logits: Logits, support: Support, contribution: Contribution) -> Floats:
    """What every context gives, float32 [n, S] in [-clip, clip].

    Args:
        logits: [n, V]; -inf marks tokens that a model rules out.
        support: the tokens to keep. What a contribution needs of whole rows is taken over all V.
        contribution: of the run's mechanism.

    Raises:
        ValueError: a logit is NaN or +inf, or a row has no finite logit.
    """
    if isinstance(logits, torch.Tensor) and _is_elsewhere(logits):
        there: Floats = contribution.on_device(logits, support).cpu().numpy()
        return there
    rows = _rows(logits, support, contribution)
    result = np.empty((len(rows.logits), rows.size), dtype=np.float32)

    def work(blocks: Iterator[slice]) -> None:
        for block in blocks:
            result[:, block] = rows.contributions(block)

    share_out(rows.size, rows.columns, work)
    return result


def top_tokens(logits: Floats, size: int) -> NDArray[np.int32]:
    """Ids of the `size` largest logits of a public prompt, ascending: int32 [size] from float32 [V]."""
    largest = np.argsort(-logits, kind="stable")[:size]
    return np.sort(largest).astype(np.int32)


@dataclass(frozen=True)
class _Rows:
    """Raw logits, and what their contributions take.

    Attributes:
        logits: float32 [n, V].
        row_constants: see `Contribution.row_constants`.
        support: the columns to keep.
        columns: of a block; the same for all threads.
    """

    contribution: Contribution
    logits: Floats
    row_constants: Floats
    support: Support
    columns: int

    @property
    def size(self) -> int:
        """S."""
        return self.logits.shape[1] if self.support is None else len(self.support)

    def contributions(self, block: slice) -> Floats:
        """Of some of the S columns: [n, columns]."""
        kept = self.logits[:, block] if self.support is None else self.logits.take(self.support[block], axis=1)
        out = np.empty(kept.shape, dtype=np.float32)
        self.contribution.write(kept, self.row_constants, out)
        return out


def _is_elsewhere(logits: torch.Tensor) -> bool:
    return logits.device.type != "cpu" and len(logits) > 0


def _rows(logits: Logits, support: Support, contribution: Contribution) -> _Rows:
    """Raises ValueError where logits are no numbers."""
    array: Floats = logits.detach().to("cpu", torch.float32).numpy() if isinstance(logits, torch.Tensor) else logits
    row_constants = np.empty((len(array), 1), dtype=np.float32)

    def work(blocks: Iterator[slice]) -> None:
        for block in blocks:
            row_constants[block] = contribution.row_constants(array[block])

    share_out(len(array), max(len(array) // (4 * cores()), BLOCK // 16 // max(array.shape[1], 1), 1), work)
    most = min(max(BLOCK // max(len(array), 1), LEAST_COLUMNS), MOST_COLUMNS)
    size = array.shape[1] if support is None else len(support)
    return _Rows(contribution, array, row_constants, support, even_blocks(size, LEAST_COLUMNS, most))
