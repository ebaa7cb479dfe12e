"""Record what a jitted step of JAX returns; numpy stands in for JAX where it is not installed."""

import foreign_run as toy
import numpy as np

from dpaudit.auditing.run import audit_run
from dpaudit.recording import Recorder, hashed_records

try:
    import jax
    import jax.numpy as jnp
except ImportError:  # arrays of numpy, then
    jax, jnp = None, np


def step(scores):
    """Return the clipped logits [n, V] of every context, and their median [V]."""
    clipped = jnp.maximum(-toy.CLIP, scores - scores.max(axis=1, keepdims=True) + toy.CLIP)
    return clipped, jnp.median(clipped, axis=0)


jitted = step if jax is None else jax.jit(step)
placed = hashed_records(toy.RECORDS, batches=6, generated=2)
with Recorder.create("jax-run", toy.manifest(placed), placed.assignment) as recorder:
    for number, texts in enumerate(placed.batches):
        with recorder.batch(number, contexts=len(texts)) as batch:
            last = toy.START
            while batch.stop is None:
                contexts, aggregate = jitted(jnp.array([toy.logits(text, last) for text in texts]))
                last = toy.WORDS[batch.draw(contexts=contexts, aggregate=aggregate)]
            batch.finish()
    recorder.finish()
assert audit_run("jax-run").verdict == "pass"
