"""Logits processors that record a team's own aggregation, for `generate` of transformers.

Here a batch of the run is a batch of `generate`: a row for each private context, and other rows
that the aggregation needs, such as the public prompt. All rows continue with one token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.recording.recorder import RecordedBatch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Handed:
    """The result of an aggregation: the arguments of `RecordedBatch.draw`, as tensors or arrays."""

    contexts: Any
    aggregate: Any
    support: Any = None
    anchor: Any = None


def rows_of_batch(
    places: Sequence[tuple[int, int] | None], batch: int, contexts: int
) -> NDArray[np.int64]:
    """Return which rows of an engine's logits are a batch's, in the order of its contexts.

    An engine that schedules requests itself reorders rows from step to step, and may have several
    of one, or none.

    Args:
        places: of every row [rows], batch and context that its request is of; None of a row that is
            something else.
        batch: whose rows are asked for.
        contexts: how many the batch has.

    Returns:
        The row of each context [contexts].

    Raises:
        ValueError: a context has no row in this step or more than one, or a row is of a context
            that there is not.
    """
    rows: dict[int, int] = {}
    for row, place in enumerate(places):
        if place is None or place[0] != batch:
            continue
        if not 0 <= place[1] < contexts:
            raise ValueError(
                f"row {row} is of context {place[1]} of batch {batch}, which has {contexts}"
            )
        if place[1] in rows:
            raise ValueError(
                f"rows {rows[place[1]]} and {row} are both of context {place[1]} of batch "
                f"{batch}: one row a request "
                "and step is recorded, so turn speculative decoding off"
            )
        rows[place[1]] = row
    if missing := [context for context in range(contexts) if context not in rows]:
        raise ValueError(
            f"{len(missing)} of {contexts} contexts of batch {batch} have no row in this step, "
            "first of them context "
            f"{missing[0]}: let all requests of a batch run at once (as many sequences, no "
            "chunked prefill)"
        )
    return np.array([rows[context] for context in range(contexts)], dtype=np.int64)


class RecordingProcessor:
    """A logits processor that aggregates, draws one token for all rows, and records the step.

    A team's function aggregates the logits of all rows. It must be the only one of
    `logits_processor`: `generate` then finds a single token in every row that can be drawn.
    Temperature, top-k, top-p and seed of `generate` have no effect after that, whatever its
    defaults are.
    """

    def __init__(self, batch: RecordedBatch, aggregation: Callable[[Tensor], Handed]) -> None:
        """Make a processor for one batch.

        Args:
            batch: what `Recorder.batch` gave.
            aggregation: the team's own, from raw logits [rows, V] of a step to `Handed`.
        """
        self._batch, self._aggregation = batch, aggregation
        self._length: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Run one step of `generate`.

        Args:
            input_ids: [rows, tokens so far].
            scores: [rows, V] raw logits.

        Returns:
            [rows, V]: 0 at the drawn token, -inf elsewhere.

        Raises:
            ValueError: steps were left out, a row went on with another token than was drawn, or the
                aggregation gave something else; else as `RecordedBatch.draw`.
        """
        rows, length = input_ids.shape
        if self._length is not None and length != self._length + 1:
            raise ValueError(
                f"rows grew from {self._length} to {length} tokens in a step: use plain "
                "sampling, one beam, one batch"
            )
        drawn = self._batch.tokens
        if drawn and any(row != drawn for row in input_ids[:, -len(drawn) :].tolist()):
            raise ValueError(
                "a row does not end with the tokens that were drawn: leave other logits "
                "processors out, and write a "
                "text in one call of generate"
            )
        if scores.dim() != 2 or scores.shape[0] != rows:
            raise ValueError(
                f"scores have the shape {[*scores.shape]}, not one row of logits for each of "
                f"{rows} rows"
            )
        handed = self._aggregation(scores)
        if not isinstance(handed, Handed):
            raise ValueError(
                "the aggregation must give Handed(contexts, aggregate), not "
                f"{type(handed).__name__}"
            )
        token = self._batch.draw(**vars(handed))
        self._length = length
        forced = scores.new_full(scores.shape, float("-inf"))
        forced[:, token] = 0.0
        return forced
