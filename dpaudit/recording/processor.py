"""A logits processor for `generate` of transformers: it stands beside a team's own aggregation, and records it.

A batch of the run is a batch of `generate`: a row for each private context, and what else the aggregation needs, such
as the public prompt. All rows go on with one token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpaudit.recording.recorder import RecordedBatch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Handed:
    """What an aggregation hands over: the arguments of `RecordedBatch.draw`, as tensors or arrays."""

    contexts: Any
    aggregate: Any
    support: Any = None
    anchor: Any = None


class RecordingProcessor:
    """Has a team's function aggregate the logits of all rows, draws one token for all of them, and records the step.

    To be the only one of `logits_processor`: `generate` then finds a single token in every row that can be drawn. No
    temperature, top-k, top-p or seed of `generate` has any say after that, whatever its defaults are.
    """

    def __init__(self, batch: RecordedBatch, aggregation: Callable[[Tensor], Handed]) -> None:
        """One for each batch.

        Args:
            batch: what `Recorder.batch` gave.
            aggregation: the team's own, from raw logits [rows, V] of a step to what was made of them.
        """
        self._batch, self._aggregation = batch, aggregation
        self._length: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """One step of `generate`.

        Args:
            input_ids: [rows, tokens so far].
            scores: [rows, V] raw logits.

        Returns:
            [rows, V]: 0 at the drawn token, -inf elsewhere.

        Raises:
            ValueError: steps were left out, a row went on with another token than was drawn, or the aggregation gave
                something else; else as `RecordedBatch.draw`.
        """
        rows, length = input_ids.shape
        if self._length is not None and length != self._length + 1:
            raise ValueError(
                f"rows grew from {self._length} to {length} tokens in a step: use plain sampling, one beam, one batch"
            )
        drawn = self._batch.tokens
        if drawn and any(row != drawn for row in input_ids[:, -len(drawn) :].tolist()):
            raise ValueError(
                "a row does not end with the tokens that were drawn: leave other logits processors out, and write a "
                "text in one call of generate"
            )
        if scores.shape[0] != rows:
            raise ValueError(f"scores have {scores.shape[0]} rows, and input_ids {rows}")
        handed = self._aggregation(scores)
        if not isinstance(handed, Handed):
            raise ValueError(f"the aggregation must give Handed(contexts, aggregate), not {type(handed).__name__}")
        token = self._batch.draw(**vars(handed))
        self._length = length
        forced = scores.new_full(scores.shape, float("-inf"))
        forced[:, token] = 0.0
        return forced
