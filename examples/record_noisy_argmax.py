"""Record few-shot generation by noisy sums (Tang et al.).

One run draws contexts by coins. The other takes samples of a fixed size, and fails its audit.
"""

import secrets

import foreign_run as toy
import numpy as np

from dpaudit.accounting import ApproximateAccountant
from dpaudit.auditing.run import audit_run
from dpaudit.mechanisms import ContextChange, Mechanism
from dpaudit.recording import Recorder, hashed_records
from dpaudit.runs import Claim

few_shot = Mechanism.model_validate(
    {
        "contribution": {"kind": "probabilities", "clip": 1.0},
        "aggregator": {"kind": "mean", "divisor": 10.0},
        "draw": {"kind": "noisy-argmax", "noise_multiplier": 2.0, "sampling_rate": 0.3},
        "temperature": 1.0,
    }
)
accountant = ApproximateAccountant.of(few_shot, ContextChange("add_remove"))
# Of one batch: the batch level, and the release level with it.
claim = Claim(epsilon=accountant.epsilon(toy.LENGTH, 1e-3).epsilon, delta=1e-3, kind="approximate")


def predictions(records, last):
    """Return the prediction of each record's prompt, [n, V]."""
    scores = np.exp([toy.logits(record, last).astype(np.float64) for record in records])
    return scores / scores.sum(axis=1, keepdims=True)


def record_run(path, in_draw):
    """Record a run; `in_draw` returns which of the contexts are in a draw, [n]."""
    placed = hashed_records(toy.RECORDS, batches=6, generated=4)
    settings = toy.manifest(placed).model_copy(
        update={
            "mechanism": few_shot,
            "claim": claim,
            "record": toy.Record(vocabulary=11, contexts=True, dtype="float64"),
        }
    )
    random = secrets.SystemRandom()
    with Recorder.create(
        path, settings, placed.assignment, tokenizer_json=toy.tokenizer().to_str()
    ) as recorder:
        for number, records in enumerate(placed.batches):
            with recorder.batch(number, contexts=len(records)) as batch:
                last = toy.START
                while batch.stop is None:
                    contexts = predictions(records, last) * in_draw(random, len(records))[:, None]
                    mean = contexts.sum(axis=0) / 10
                    noise = np.array([random.gauss(0, 2.0 / 10) for _ in toy.WORDS])
                    token = int((mean + noise).argmax())
                    last = toy.WORDS[
                        batch.step(token, 0.0, contexts=contexts, aggregate=mean, noise=noise)
                    ]
                batch.finish()
        recorder.finish()
    result = audit_run(path)
    return {check.id for check in result.checks if check.status == "fail"}


assert not record_run(
    "by-coins", lambda random, n: np.array([random.random() < 0.3 for _ in range(n)])
)
samples = record_run(
    "samples", lambda random, n: np.isin(np.arange(n), random.sample(range(n), round(0.3 * n)))
)
assert samples == {"sampling.subsets"}
