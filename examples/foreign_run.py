"""Record a generator that is not ours as a run that dpaudit audits: bigram models, in numpy.

    python examples/foreign_run.py RUN_DIR && dpaudit report RUN_DIR

docs/foreign-runs.md explains it part by part.
"""

import secrets
import sys
from datetime import UTC, datetime
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from dpaudit.mechanisms import Mechanism, Median, TopClippedLogits
from dpaudit.recording import HashedRecords, RecordedBatch, Recorder, hashed_records
from dpaudit.runs import Decoding, InputError, Manifest, Model, Origins, Prompt, Record

# Public: all that was fixed without looking at a record.
START = "."
WORDS = [START, "the", "a", "cat", "dog", "fox", "mat", "moon", "sat", "saw", "on"]
CLIP, TEMPERATURE, LENGTH = np.float32(2), 0.5, 30
MECHANISM = Mechanism(
    contribution=TopClippedLogits(clip=float(CLIP)), aggregator=Median(), temperature=TEMPERATURE
)
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
    """Return one record's prediction of the next word: clipped logarithms of its bigram counts."""
    pairs = list(pairwise(record.split()))
    scores = np.log(
        np.array([pairs.count((last, word)) for word in WORDS], dtype=np.float32) + np.float32(0.01)
    )
    return np.maximum(-CLIP, scores - scores.max() + CLIP)


def blend(records: list[str], last: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return each record's prediction, and their median, which a word is drawn from."""
    values = np.array([logits(record, last) for record in records])
    return values, np.median(values, axis=0)


def write_text(batch: RecordedBatch, records: list[str]) -> None:
    """Generate a text, a word at a time, and hand over what each was drawn from."""
    last = START
    while batch.stop is None:
        contexts, blended = blend(records, last)
        scaled = blended.astype(np.float64) / TEMPERATURE
        log_probabilities = scaled - np.logaddexp.reduce(scaled)
        weights = np.exp(log_probabilities)
        (token,) = secrets.SystemRandom().choices(range(len(WORDS)), weights=weights)
        last = WORDS[
            batch.step(token, log_probabilities[token], contexts=contexts, aggregate=blended)
        ]
    batch.finish()


def manifest(placed: HashedRecords) -> Manifest:
    """Declare everything that an auditor must know before the first step."""
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        mechanism=MECHANISM,
        batching=placed.batching,
        data=placed.data,
        chosen_from=Origins(batching="public", settings="public"),
        decoding=Decoding(max_tokens=LENGTH),
        record=Record(vocabulary=len(WORDS), contexts=True),
        model=Model(name="bigrams of a record"),
        prompt=Prompt(template="a record and the last word"),
    )


def tokenizer() -> Tokenizer:
    """Return words and their numbers, in the form in which an auditor can decode them again."""
    return Tokenizer(
        WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=START)
    )


def write_run(path: str) -> None:
    """Generate a text from each batch, and record the run with the claim that it supports."""
    placed = hashed_records(RECORDS, batches=BATCHES, generated=GENERATED)
    settings = manifest(placed)
    with Recorder.create(
        path, settings, placed.assignment, tokenizer_json=tokenizer().to_str()
    ) as recorder:
        for number in range(settings.batching.batches):
            records = list(placed.batches[number])
            with recorder.batch(number, contexts=len(records)) as batch:
                write_text(batch, records)
        recorder.finish()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/foreign_run.py RUN_DIR")
    try:
        write_run(sys.argv[1])
    except InputError as error:
        sys.exit(str(error))
