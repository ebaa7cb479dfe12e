"""Honest runs over made-up logits, as large as wanted and without a model: what the audit's cost is measured on."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import ExPostAccountant
from dpaudit.mechanisms import ContextChange, Mechanism, Median, TopClippedLogits
from dpaudit.runs import (
    Assigned,
    BatchHeader,
    Batching,
    Claim,
    Data,
    KeyedHash,
    Manifest,
    Model,
    Origins,
    Prompt,
    Record,
    RunWriter,
    Step,
    Stopping,
    aggregate_digest,
    data_digest,
)

#: Deviations of a step's common row and of each context's own from it, at the clip below: some 70% of a vocabulary of
#: 50,000 lies at the floor.
COMMON, OWN = 3.75, 0.8
MECHANISM = Mechanism(contribution=TopClippedLogits(clip=7.0), aggregator=Median(), temperature=2.0)
WIDTH = 2


@dataclass(frozen=True)
class Shape:
    """Size of a run: `steps` tokens for each of `batches` batches of `contexts` contexts."""

    batches: int
    steps: int
    contexts: int
    vocabulary: int


def write_run(path: Path, shape: Shape) -> None:
    """Write a run of the median that claims its own ex-post epsilon per record."""
    random = np.random.default_rng(0)
    key = secrets.token_bytes(32)
    assignment = _assignment(KeyedHash(key), shape)
    accountant = ExPostAccountant(MECHANISM, ContextChange("add_remove"))
    manifest = _manifest(shape, key, [assigned.digest for assigned in assignment])
    with RunWriter.create(path, manifest, tokenizer_json=None, assignment=assignment) as run:
        for batch in range(shape.batches):
            with run.batch(BatchHeader(id=batch, contexts=shape.contexts)) as record:
                for _ in range(shape.steps):
                    step = _step(random, shape)
                    accountant.charge(batch, MECHANISM.reduced(dict(step.arrays), step.token))
                    record.write(step)
                record.finish(text=None, stop="max-tokens")
            accountant.close(batch)
        run.finish(Claim(epsilon=math.ceil(accountant.epsilon * 1e4 + 1e-6) / 1e4, kind="ex-post"))


def _step(random: np.random.Generator, shape: Shape) -> Step:
    own = random.standard_normal((shape.contexts, shape.vocabulary), dtype=np.float32) * np.float32(OWN)
    values = own + random.standard_normal(shape.vocabulary, dtype=np.float32) * np.float32(COMMON)
    MECHANISM.contribution.write(values, MECHANISM.contribution.row_constants(values), None, values)
    arrays = MECHANISM.aggregator.step(values, MECHANISM.clip, WIDTH)
    aggregate = MECHANISM.aggregator.aggregate(arrays)
    token, log_probability = _draw(random, aggregate)
    return Step(token, log_probability, aggregate_digest(aggregate), arrays)


def _draw(random: np.random.Generator, aggregate: NDArray[np.floating]) -> tuple[int, float]:
    """A token from softmax(aggregate / temperature), and its log-probability."""
    scores = aggregate.astype(np.float64) / MECHANISM.temperature
    weights = np.exp(scores - scores.max())
    cumulated = np.cumsum(weights)
    token = int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right"))
    return token, float(scores[token] - scores.max() - np.log(weights.sum()))


def _assignment(keyed: KeyedHash, shape: Shape) -> list[Assigned]:
    """Records that the keyed hash spreads over twice as many batches as are generated, so many for each of these.

    An auditor checks the hash, so records are made up until every batch has its contexts.
    """
    wanted = dict.fromkeys(range(shape.batches), shape.contexts)
    found = []
    number = 0
    while wanted:
        digest = keyed.digest("", f"record {number}")
        number += 1
        batch = keyed.batch(digest, 2 * shape.batches)
        if batch in wanted:
            found.append(Assigned(digest, batch, None))
            wanted[batch] -= 1
            if not wanted[batch]:
                del wanted[batch]
    return sorted(found, key=lambda assigned: assigned.digest)


def _manifest(shape: Shape, key: bytes, digests: list[str]) -> Manifest:
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        mechanism=MECHANISM,
        batching=Batching(
            rule="hashed-records",
            batches=shape.batches,
            batches_per_label=2 * shape.batches,
            generate_per_label=shape.batches,
            key=key.hex(),
        ),
        origins=Origins(batching="public", settings="public"),
        stopping=Stopping(max_tokens=shape.steps),
        record=Record(vocabulary=shape.vocabulary, width=WIDTH),
        data=Data(records=len(digests), digest=data_digest(digests)),
        model=Model(name="made up"),
        prompt=Prompt(template="none"),
    )
