"""Record `generate` of transformers, beside a mean of clipped logits that a team wrote itself.

    python examples/record_transformers.py RUN_DIR MODEL TEXTS && dpaudit report RUN_DIR

MODEL is a folder or a hub's name; TEXTS has a private text a line.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dpaudit.accounting import ApproximateAccountant, ReleaseAccountant
from dpaudit.mechanisms import ContextChange, Mean, Mechanism, TopClippedLogits
from dpaudit.recording import Handed, Recorder, RecordingProcessor, hashed_records
from dpaudit.runs import (
    Claim,
    Decoding,
    InputError,
    Manifest,
    Model,
    Origins,
    Privacy,
    Prompt,
    Record,
    SecretBatches,
)

# Public: all that was fixed without looking at a text.
PROMPT = "Here is a text:\n{}\nHere is another one like it:\n"
CLIP, TEMPERATURE, DIVISOR, LENGTH, DELTA = 10.0, 1.0, 8.0, 20, 1e-5
BATCHES, GENERATED = 2, 2
MECHANISM = Mechanism(
    contribution=TopClippedLogits(clip=CLIP),
    aggregator=Mean(divisor=DIVISOR),
    temperature=TEMPERATURE,
)


def aggregation(scores):
    """Clip every row's logits [rows, V], sum them, and divide by a fixed number: the team's own."""
    scores = scores.double()
    clipped = (scores - scores.amax(dim=1, keepdim=True) + CLIP).clamp(min=-CLIP)
    return Handed(contexts=clipped, aggregate=clipped.sum(dim=0) / DIVISOR)


def manifest(placed, name, vocabulary, end):
    """Declare everything that an auditor must know beforehand, with the claim at both levels."""
    batch = ApproximateAccountant.of(MECHANISM, ContextChange("add_remove"))
    # hashed_records drew the key, and nobody is shown it
    secret = SecretBatches(((BATCHES, GENERATED),))
    accountant = ReleaseAccountant.of(batch, MECHANISM, Privacy(), placed.batching.rule, secret)
    levels = {
        "epsilon": accountant.epsilon(LENGTH, DELTA),
        "batch_epsilon": accountant.batch_level(LENGTH, DELTA).epsilon,
    }
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        mechanism=MECHANISM,
        batching=placed.batching,
        data=placed.data,
        chosen_from=Origins(batching="public", settings="public"),
        decoding=Decoding(max_tokens=LENGTH, sequences=((end,),)),
        record=Record(vocabulary=vocabulary, dtype="float64", contexts=True),
        model=Model(name=name),
        prompt=Prompt(template="another one like it"),
        claim=Claim(**levels, delta=DELTA, kind="approximate"),
    )


def write_run(path, name, texts):
    """Generate a text from each batch, and record the run."""
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    placed = hashed_records(texts, batches=BATCHES, generated=GENERATED)
    settings = manifest(placed, name, model.config.vocab_size, tokenizer.eos_token_id)
    words = tokenizer.backend_tokenizer.to_str()
    with Recorder.create(path, settings, placed.assignment, tokenizer_json=words) as recorder:
        for number, shown in enumerate(placed.batches):
            with recorder.batch(number, contexts=len(shown)) as batch:
                if shown:
                    prompts = tokenizer(
                        [PROMPT.format(text) for text in shown], return_tensors="pt", padding=True
                    )
                    recorded = [RecordingProcessor(batch, aggregation)]
                    model.generate(**prompts, max_new_tokens=LENGTH, logits_processor=recorded)
                # no record hashed here: its text comes from a sum of none
                while not shown and batch.stop is None:
                    none = torch.zeros(0, model.config.vocab_size)
                    batch.draw(contexts=none, aggregate=none.sum(dim=0) / DIVISOR)
                batch.finish()
        recorder.finish()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/record_transformers.py RUN_DIR MODEL TEXTS")
    try:
        write_run(
            sys.argv[1], sys.argv[2], Path(sys.argv[3]).read_text(encoding="utf-8").splitlines()
        )
    except (InputError, OSError, UnicodeError) as error:
        sys.exit(str(error))
