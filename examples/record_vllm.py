"""Record inside a logits processor of vLLM; arrays stand in for vLLM, with reordered rows."""

from contextlib import ExitStack
from types import SimpleNamespace

import foreign_run as toy
import numpy as np

from dpaudit.auditing.run import audit_run
from dpaudit.recording import Recorder, hashed_records, rows_of_batch


class RecordedRows:
    """The recording parts of a logits processor of vLLM's V2 runner.

    Derive from its `LogitsProcessor`, too.
    """

    def __init__(self, batches):
        self.batches = batches  # by number: what Recorder.batch gave, and how many contexts it has
        self.places = {}  # batch and context of each slot

    def add_request(self, slot, params):
        """Keep the batch and context of a request."""
        self.places[slot] = params.extra_args.get("place")
        return True

    def apply(self, logits, ctx):
        """Record and force the drawn tokens in `logits` [rows, V].

        In V1 there is no `ctx`: `places` is by row, and kept by `update_state`.
        """
        places = [self.places.get(slot) for slot in ctx.expanded_idx_mapping.tolist()]
        for number, (batch, contexts) in self.batches.items():
            rows = rows_of_batch(places, number, contexts)
            if batch.tokens and (ctx.input_ids[rows] != batch.tokens[-1]).any():
                raise ValueError(
                    f"a row of batch {number} did not go on with the token that was drawn"
                )
            clipped = np.maximum(
                -toy.CLIP, logits[rows] - logits[rows].max(axis=1, keepdims=True) + toy.CLIP
            )
            token = batch.draw(contexts=clipped, aggregate=np.median(clipped, axis=0))
            logits[rows] = -np.inf
            logits[rows, token] = 0.0
        return logits


placed = hashed_records(toy.RECORDS, batches=6, generated=2)
shuffled = np.random.default_rng(0)
with Recorder.create("vllm-run", toy.manifest(placed), placed.assignment) as recorder:
    with ExitStack() as open_batches:
        processor = RecordedRows(
            {
                number: (
                    open_batches.enter_context(recorder.batch(number, contexts=len(texts))),
                    len(texts),
                )
                for number, texts in enumerate(placed.batches)
            }
        )
        requests = [(number, text) for number, texts in enumerate(placed.batches) for text in texts]
        contexts = [context for texts in placed.batches for context in range(len(texts))]
        for slot, ((number, _), context) in enumerate(zip(requests, contexts, strict=True)):
            processor.add_request(slot, SimpleNamespace(extra_args={"place": (number, context)}))
        last = dict.fromkeys(processor.batches, toy.START)
        for _ in range(toy.LENGTH):
            slots = shuffled.permutation(len(requests))
            logits = np.array(
                [toy.logits(requests[slot][1], last[requests[slot][0]]) for slot in slots]
            )
            fed = np.array([toy.WORDS.index(last[requests[slot][0]]) for slot in slots])
            processor.apply(logits, SimpleNamespace(expanded_idx_mapping=slots, input_ids=fed))
            last = {
                number: toy.WORDS[batch.tokens[-1]]
                for number, (batch, _) in processor.batches.items()
            }
        for batch, _ in processor.batches.values():
            batch.finish()
    recorder.finish()
assert audit_run("vllm-run").verdict == "pass"
