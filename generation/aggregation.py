"""One step from raw logits to scores: contributions, truncation and aggregation, on all cores.

A batch is worked off in blocks of columns: clipped, aggregated, forgotten. Logits on another device
stay there until the results, which are small, are moved. Every number is the plain definition's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.generation.config import LEAST_WIDTH
from dpaudit.generation.threads import each, even_blocks, slices
from dpaudit.mechanisms import ANCHOR, Arrays, Contribution, Mechanism, PublicPart
from dpaudit.runs.engines import cores

Floats: TypeAlias = NDArray[np.float32]
#: Raw logits [n, V]: an array or a tensor in float32, or a tensor in bfloat16; tensors on any
#: device.
Logits: TypeAlias = Floats | torch.Tensor
Array = TypeVar("Array", Floats, torch.Tensor)
#: What a step takes from the public prompt where it takes nothing.
NOTHING_PUBLIC = PublicPart()
#: Values of a block. Small enough for a processor's cache; many enough that numpy's calls cost less
#: than they do.
BLOCK = 1 << 20
LEAST_COLUMNS, MOST_COLUMNS = 4096, 16384


def aggregated(
    logits: Logits, public: PublicPart, mechanism: Mechanism, width: int = LEAST_WIDTH
) -> Arrays:
    """Return the arrays of a step (Algorithm 1, lines 6 and 7).

    Generation, replay and attack all take them from here.

    Args:
        logits: [n, V], n >= 0.
        public: the step's part of the public prompt. Columns are aggregated one by one, so a
            support equals truncating the aggregate.
        mechanism: the run's.
        width: central order statistics to keep on each side, where the mechanism records such.

    Raises:
        ValueError: a logit is NaN or +inf, or a row has no finite logit.
    """
    aggregator, clip = mechanism.aggregator, mechanism.clip
    there = _on_device(logits, public, mechanism.contribution)
    if there is not None:
        return aggregator.step_on_device(there, clip, width)
    rows = _Rows(logits, public, mechanism.contribution)
    blocks = each(
        rows.blocks, lambda block: aggregator.step(rows.contributions(block), clip, width)
    )
    arrays = {
        name: np.concatenate([block[name] for block in blocks], axis=-1) for name in blocks[0]
    }
    if public.anchor is None:
        return arrays
    return arrays | {ANCHOR: public.anchor}


def contributions(logits: Logits, public: PublicPart, contribution: Contribution) -> Floats:
    """Return every context's contribution, float32 [n, S] in [-clip, clip].

    Args:
        logits: [n, V]; -inf marks tokens that a model rules out.
        public: the step's part of the public prompt. Constants of whole rows are taken over all V
            for the paper's contribution, and over the support for an anchored one.
        contribution: of the run's mechanism.

    Raises:
        ValueError: a logit is NaN or +inf, or a row has no finite logit.
    """
    there = _on_device(logits, public, contribution)
    if there is not None:
        moved: Floats = there.cpu().numpy()
        return moved
    rows = _Rows(logits, public, contribution)
    result = np.empty(rows.shape, dtype=np.float32)

    def fill(block: slice) -> None:
        result[:, block] = rows.contributions(block)

    each(rows.blocks, fill)
    return result


class Budgets:
    """Contexts' spending from their budgets while a text grows outside a run.

    Such texts are those of attacks and held-out texts.
    """

    def __init__(self, mechanism: Mechanism, budgets: Sequence[float] | None = None) -> None:
        """Start before the first token.

        Args:
            budgets: each context's budget [n], if not all have the mechanism's.
        """
        self._mechanism, self._spent = mechanism, np.zeros(0)
        self._budgets = None if budgets is None else np.array(budgets)

    def paying(self, logits: Array, public: PublicPart) -> Array:
        """Return raw logits [n, V] of the contexts that pay for the next token and so take part.

        Without budgets all contexts take part.
        """
        if self._mechanism.budget is None or not len(logits):
            return logits
        before = self._spent if len(self._spent) else np.zeros(len(logits))
        values = contributions(logits, public, self._mechanism.contribution)
        self._spent = self._mechanism.spend(values, before, self._budgets)
        active = self._spent > before
        return logits[active if isinstance(logits, np.ndarray) else torch.from_numpy(active)]


class _Rows:
    """Raw logits [n, V], and what their contributions take.

    Raises ValueError if logits are not numbers.

    Attributes:
        shape: [n, S].
        blocks: of the S columns, for all threads.

    Raises:
        ValueError: logits are no numbers.
    """

    def __init__(self, logits: Logits, public: PublicPart, contribution: Contribution) -> None:
        support = public.support
        # rows are looked at over the support alone
        if contribution.over_support and support is not None:
            where = (
                torch.as_tensor(support, dtype=torch.long)
                if isinstance(logits, torch.Tensor)
                else support
            )
            logits, support = logits[:, where], None
        if isinstance(logits, torch.Tensor):
            logits = logits.detach().to("cpu", torch.float32).numpy()
        array: Floats = logits
        n, vocabulary = array.shape
        self._logits, self._support, self._contribution = array, support, contribution
        self._anchor = public.anchor
        self._row_constants = np.empty((n, contribution.row_numbers), dtype=np.float32)
        each(
            slices(n, max(n // (4 * cores()), BLOCK // 16 // max(vocabulary, 1), 1)), self._look_at
        )
        self.shape = n, vocabulary if support is None else len(support)
        most = min(max(BLOCK // max(n, 1), LEAST_COLUMNS), MOST_COLUMNS)
        self.blocks = slices(self.shape[1], even_blocks(self.shape[1], LEAST_COLUMNS, most))

    def contributions(self, block: slice) -> Floats:
        """Return the contributions [n, columns] in some of the S columns."""
        kept = self._logits
        kept = kept[:, block] if self._support is None else kept.take(self._support[block], axis=1)
        out = np.empty(kept.shape, dtype=np.float32)
        anchor = None if self._anchor is None else self._anchor[block]
        self._contribution.write(kept, self._row_constants, anchor, out)
        return out

    def _look_at(self, rows: slice) -> None:
        self._row_constants[rows] = self._contribution.row_constants(self._logits[rows])


def _on_device(
    logits: Logits, public: PublicPart, contribution: Contribution
) -> torch.Tensor | None:
    """Return contributions on another device than the CPU; None to work them out here."""
    if not isinstance(logits, torch.Tensor) or logits.device.type == "cpu" or not len(logits):
        return None
    return contribution.on_device(logits, public.support)
