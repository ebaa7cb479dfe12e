"""Honest runs of any size over made-up logits, without a model, to measure the audit's cost on."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import ExPostAccountant
from dpaudit.mechanisms import (
    ANCHOR,
    AnchoredDifferences,
    ContextChange,
    Mechanism,
    Median,
    PublicPart,
    Support,
    TopClippedLogits,
)
from dpaudit.runs import (
    Assigned,
    BatchHeader,
    Batching,
    Claim,
    Data,
    Decoding,
    KeyedHash,
    Manifest,
    Model,
    Origins,
    Prompt,
    Record,
    RunWriter,
    Step,
    aggregate_digest,
    data_digest,
)

#: Deviations of a step's common row and of each context's own from it, at the clip below: some 70%
#: of a vocabulary of 50,000 lies at the floor.
COMMON, OWN = 3.75, 0.8
MECHANISM = Mechanism(contribution=TopClippedLogits(clip=7.0), aggregator=Median(), temperature=2.0)
#: Of differences, all of which are recorded: over the whole vocabulary, and over the tokens of a
#: public support.
ANCHORED_FULL = Mechanism(
    contribution=AnchoredDifferences(clip=2.0), aggregator=Median(), temperature=1.0
)
ANCHORED = ANCHORED_FULL.model_copy(update={"support": Support(kind="public-top-k", size=100)})
WIDTH = 2


@dataclass(frozen=True)
class Shape:
    """A run's size and mechanism.

    There are `batches` batches of `contexts` contexts each, and `steps` tokens for each batch.
    """

    batches: int
    steps: int
    contexts: int
    vocabulary: int
    mechanism: Mechanism = MECHANISM


def write_run(path: Path, shape: Shape) -> None:
    """Write a run of the median that claims its own ex-post epsilon per record."""
    random = np.random.default_rng(0)
    key = secrets.token_bytes(32)
    assignment = _assignment(KeyedHash(key), shape)
    accountant = ExPostAccountant(shape.mechanism, ContextChange("add_remove"))
    manifest = _manifest(shape, key, [assigned.digest for assigned in assignment])
    with RunWriter.create(path, manifest, tokenizer_json=None, assignment=assignment) as run:
        for batch in range(shape.batches):
            with run.batch(BatchHeader(id=batch, contexts=shape.contexts)) as record:
                tokens: list[int] = []
                for _ in range(shape.steps):
                    step, index = _step(random, shape, tokens)
                    accountant.charge(batch, shape.mechanism.reduced(dict(step.arrays), index))
                    record.write(step)
                    tokens.append(step.token)
                record.finish(text=None, stop="max-tokens")
            accountant.close(batch)
        run.finish(Claim(epsilon=math.ceil(accountant.epsilon * 1e4 + 1e-6) / 1e4, kind="ex-post"))


def _step(random: np.random.Generator, shape: Shape, tokens: list[int]) -> tuple[Step, int]:
    """Return a step after these tokens, and the place of its token in the support."""
    mechanism, part = shape.mechanism, PublicPart()
    # What all contexts have in common: of the tokens alone where it is public, and new at every
    # step where it is not.
    common = np.random.default_rng(tokens) if mechanism.contribution.anchored else random
    row = common.standard_normal(shape.vocabulary, dtype=np.float32) * np.float32(COMMON)
    if mechanism.contribution.anchored:
        part = mechanism.public_part(row)
        row = row if part.support is None else row[part.support]
    values = (
        random.standard_normal((shape.contexts, len(row)), dtype=np.float32) * np.float32(OWN) + row
    )
    mechanism.contribution.write(
        values, mechanism.contribution.row_constants(values), part.anchor, values
    )
    arrays = mechanism.aggregator.step(values, mechanism.clip, WIDTH)
    if part.anchor is not None:
        arrays[ANCHOR] = part.anchor
    aggregate = mechanism.aggregate(arrays)
    index, log_probability = _draw(random, aggregate, mechanism.temperature)
    token = index if part.support is None else int(part.support[index])
    contexts = values if mechanism.contribution.anchored else None
    return Step(
        token, log_probability, aggregate_digest(aggregate), arrays, contexts, part.support
    ), index


def _draw(
    random: np.random.Generator, aggregate: NDArray[np.floating], temperature: float
) -> tuple[int, float]:
    """Draw a token from softmax(aggregate / temperature), with its log-probability."""
    scores = aggregate.astype(np.float64) / temperature
    weights = np.exp(scores - scores.max())
    cumulated = np.cumsum(weights)
    token = int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right"))
    return token, float(scores[token] - scores.max() - np.log(weights.sum()))


def _assignment(keyed: KeyedHash, shape: Shape) -> list[Assigned]:
    """Return records that fill each generated batch; the keyed hash has twice as many batches.

    Each of these gets its contexts. An auditor checks the hash, so records are made up until every
    batch has them.
    """
    places, wanted = keyed.of_round(0), dict.fromkeys(range(shape.batches), shape.contexts)
    found = []
    number = 0
    while wanted:
        digest = keyed.digest("", f"record {number}")
        number += 1
        batch = places.batch(digest, 2 * shape.batches)
        if batch in wanted:
            found.append(Assigned(digest, batch, None))
            wanted[batch] -= 1
            if not wanted[batch]:
                del wanted[batch]
    return sorted(found, key=lambda assigned: assigned.digest)


def _manifest(shape: Shape, key: bytes, digests: list[str]) -> Manifest:
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        mechanism=shape.mechanism,
        batching=Batching(
            rule="hashed-records",
            batches=shape.batches,
            batches_per_label=2 * shape.batches,
            generate_per_label=shape.batches,
            key=key.hex(),
        ),
        chosen_from=Origins(batching="public", settings="public"),
        decoding=Decoding(max_tokens=shape.steps),
        record=Record(
            vocabulary=shape.vocabulary, width=WIDTH, contexts=shape.mechanism.contribution.anchored
        ),
        data=Data(records=len(digests), digest=data_digest(digests)),
        model=Model(name="made up"),
        prompt=Prompt(template="none"),
    )
