"""A generator that is not ours, in numpy: bigram models of private records, written as a run that dpaudit audits.

    python examples/foreign_run.py RUN_DIR && dpaudit report RUN_DIR

docs/run-directory.md goes through it part by part.
"""

import math
import secrets
import sys
from datetime import UTC, datetime
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from dpaudit.accounting import ExPostAccountant
from dpaudit.mechanisms import Mechanism, central_order_statistics, context_change, median_of, median_sides
from dpaudit.runs import (
    Assigned,
    BatchHeader,
    Batching,
    Claim,
    Data,
    InputError,
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

# Public: all that was fixed without looking at a record.
START = "."
WORDS = [START, "the", "a", "cat", "dog", "fox", "mat", "moon", "sat", "saw", "on"]
CLIP, TEMPERATURE, LENGTH = np.float32(2), 0.5, 30
MECHANISM = Mechanism.model_validate({"aggregator": "median", "clip": float(CLIP), "temperature": TEMPERATURE})
BATCHES, GENERATED = 6, 4  # records are hashed into 6 batches; the first 4 are generated

# Private: every record is six of these sentences.
SENTENCES = [
    "the cat sat on the mat .",
    "the cat saw the dog .",
    "the dog sat on the cat .",
    "a dog saw the moon .",
    "the moon saw a cat .",
    "a cat sat on a dog .",
    "the fox saw the mat .",
    "a fox sat on the moon .",
    "the dog saw a fox .",
    "the mat sat on the fox .",
]
RECORDS = [" ".join(six) for six in combinations(SENTENCES, 6)]


def logits(record: str, last: str) -> NDArray[np.float32]:
    """What one record says of the next word: logarithms of its bigram counts, clipped."""
    pairs = list(pairwise(record.split()))
    scores = np.log(np.array([pairs.count((last, word)) for word in WORDS], dtype=np.float32) + np.float32(0.01))
    return np.maximum(-CLIP, scores - scores.max() + CLIP)


def place(keyed: KeyedHash) -> dict[str, tuple[str, int | None]]:
    """Each record by its keyed digest, ascending, with the batch that the hash of this record alone gives it."""
    placed = {}
    for digest, record in sorted((keyed.digest("", record), record) for record in RECORDS):
        number = keyed.batch(digest, BATCHES)
        placed[digest] = (record, number if number < GENERATED else None)
    return placed


def next_step(records: list[str], last: str) -> Step:
    """Blend the records' logits by their median, draw a word, and record what it was drawn from."""
    values = np.array([logits(record, last) for record in records]).reshape(-1, len(WORDS))
    central = central_order_statistics(values, float(CLIP))
    sides, holder = median_sides(values, central)
    arrays = {"central": central, "sides": sides, "holder": holder}
    scaled = median_of(central).astype(np.float64) / TEMPERATURE
    log_probabilities = scaled - np.logaddexp.reduce(scaled)
    (token,) = secrets.SystemRandom().choices(range(len(WORDS)), weights=np.exp(log_probabilities))
    return Step(
        token=token,
        log_probability=float(log_probabilities[token]),
        aggregate_digest=aggregate_digest(median_of(central)),
        arrays={name: array for name, array in arrays.items() if array is not None},  # an even number has no holder
        contexts=values,
    )


def manifest(key: bytes, digests: list[str]) -> Manifest:
    """Everything that an auditor must know before the first step."""
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        mechanism=MECHANISM,
        batching=Batching(
            rule="hashed-records",
            batches=GENERATED,
            batches_per_label=BATCHES,
            generate_per_label=GENERATED,
            key=key.hex(),
        ),
        origins=Origins(batching="public", settings="public"),
        stopping=Stopping(max_tokens=LENGTH),
        record=Record(vocabulary=len(WORDS), contexts=True),
        data=Data(records=len(digests), digest=data_digest(digests)),
        model=Model(name="bigrams of a record"),
        prompt=Prompt(template="a record and the last word"),
    )


def write_batch(run: RunWriter, accountant: ExPostAccountant, number: int, records: list[str]) -> None:
    """Generate one text from the records of a batch, a word at a time, and add up what it costs."""
    tokens = [WORDS.index(START)]
    with run.batch(BatchHeader(id=number, contexts=len(records))) as batch:
        for _ in range(LENGTH):
            step = next_step(records, WORDS[tokens[-1]])
            batch.write(step)
            accountant.charge(number, MECHANISM.reduced(dict(step.arrays), step.token))
            tokens.append(step.token)
        batch.finish(text=tokenizer().decode(tokens[1:]), stop="max-tokens")
    accountant.close(number)


def tokenizer() -> Tokenizer:
    """Words and their numbers, in the form in which an auditor can decode them again."""
    return Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=START))


def write_run(path: str) -> None:
    """Generate a text from each batch, and write the run with the claim that it supports."""
    key = secrets.token_bytes(32)
    placed = place(KeyedHash(key))
    assignment = [Assigned(digest, batch, slot=None) for digest, (_, batch) in placed.items()]
    settings = manifest(key, list(placed))
    accountant = ExPostAccountant(MECHANISM, context_change("record", "add_remove", settings.batching.rule))
    with RunWriter.create(path, settings, tokenizer_json=tokenizer().to_str(), assignment=assignment) as run:
        for number in range(settings.batching.batches):
            write_batch(run, accountant, number, [record for record, batch in placed.values() if batch == number])
        # Rounded up: a claim must not be below the sum that an auditor finds.
        run.finish(Claim(epsilon=math.ceil(accountant.epsilon * 1000 + 1e-6) / 1000, kind="ex-post"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/foreign_run.py RUN_DIR")
    try:
        write_run(sys.argv[1])
    except InputError as error:
        sys.exit(str(error))
