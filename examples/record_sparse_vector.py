"""Record private tokens where a noisy test asks for them (Amin et al. 2024).

One run draws thresholds as the proof asks. The other draws one for each text, and fails its audit.
"""

import secrets

import foreign_run as toy
import numpy as np

from dpaudit.accounting import ApproximateAccountant
from dpaudit.auditing.run import audit_run
from dpaudit.mechanisms import ContextChange, Mechanism
from dpaudit.recording import Recorder, hashed_records
from dpaudit.runs import Claim, Decoding

CLIP, DIVISOR, THRESHOLD, NOISE, PRIVATE, TOKENS = 2.0, 35.0, 0.5, 0.2, 60, 240
test_first = Mechanism.model_validate(
    {
        "contribution": {"kind": "differences", "clip": CLIP},
        "aggregator": {"kind": "mean", "divisor": DIVISOR},
        "temperature": 1.0,
        "draw": {
            "kind": "sparse-vector",
            "threshold": THRESHOLD,
            "threshold_noise": NOISE,
            "private_tokens": PRIVATE,
            "public_temperature": 1.0,
        },
    }
)
accountant = ApproximateAccountant.of(test_first, ContextChange("add_remove"))
# Of one batch: the batch level, which holds for readers of the texts as well.
claim = Claim(epsilon=accountant.epsilon(TOKENS, 1e-3).epsilon, delta=1e-3, kind="approximate")
random = secrets.SystemRandom()


def laplace(scale):
    """Draw Laplace noise."""
    return scale * random.choice((-1, 1)) * random.expovariate(1)


def log_softmax(logits):
    """Return log-probabilities along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def predictions(records, last):
    """Return public log-probabilities [V], and each record's clipped differences [n, V]."""
    public = log_softmax(
        np.array(toy.logits("the moon saw the dog . a cat sat .", last), dtype=np.float64)
    ).astype(np.float32)
    private = log_softmax(
        np.array([toy.logits(record, last) for record in records], dtype=np.float64)
    )
    return public, np.clip(private - public, -CLIP, CLIP)


def write_batch(batch, records, new_at_each_text):
    """Write the texts of one batch."""
    threshold, left = laplace(NOISE), PRIVATE
    for text in range(TOKENS // 15):
        if new_at_each_text and text:
            threshold = laplace(NOISE)
        last = toy.START
        for _ in range(15):
            public, differences = predictions(records, last)
            mean = differences.sum(axis=0) / DIVISOR
            shares = np.exp(log_softmax(public + differences)).sum(axis=0) / DIVISOR
            test = (
                (float(np.abs(shares - np.exp(public)).sum()), threshold, laplace(2 * NOISE))
                if left
                else None
            )
            is_private = test is not None and test[0] + test[2] >= THRESHOLD + threshold
            logarithms = log_softmax(public + mean if is_private else public.astype(np.float64))
            token = random.choices(range(len(toy.WORDS)), weights=np.exp(logarithms))[0]
            token = batch.step(
                token,
                float(logarithms[token]),
                contexts=differences,
                aggregate=public + mean,
                anchor=public,
                test=test,
            )
            if is_private:
                threshold, left = laplace(NOISE), left - 1
            last = toy.WORDS[token]
        batch.end_text() if text + 1 < TOKENS // 15 else batch.finish()


def record_run(path, **fault):
    """Record and audit a run; return the checks that fail."""
    placed = hashed_records(toy.RECORDS, batches=6, generated=4)
    settings = toy.manifest(placed).model_copy(
        update={
            "mechanism": test_first,
            "claim": claim,
            "record": toy.Record(vocabulary=11, contexts=True, dtype="float64"),
            "decoding": Decoding(max_tokens=15, sequences=(), tokens_per_batch=TOKENS),
        }
    )
    with Recorder.create(
        path, settings, placed.assignment, tokenizer_json=toy.tokenizer().to_str()
    ) as recorder:
        for number, records in enumerate(placed.batches):
            with recorder.batch(number, contexts=len(records)) as batch:
                write_batch(batch, records, fault.get("new_at_each_text", False))
        recorder.finish()
    result = audit_run(path)
    return {check.id for check in result.checks if check.status == "fail"}


assert not record_run("as-proved")
assert record_run("as-read", new_at_each_text=True) == {"sampling.threshold"}
