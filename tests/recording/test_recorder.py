"""A generator's arrays become a run that audits: misshapen ones are refused, wrong ones fail."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting import ApproximateAccountant, ReleaseAccountant
from dpaudit.auditing.run import audit_run
from dpaudit.mechanisms import ContextChange
from dpaudit.recording import RecordedBatch, Recorder, hashed_records
from dpaudit.runs import (
    Allocation,
    Assigned,
    Claim,
    CommittedSeed,
    Data,
    Decoding,
    InputError,
    KeyedHash,
    Manifest,
    Model,
    Origins,
    Privacy,
    Prompt,
    Record,
    RunReader,
    Sampling,
    SecretBatches,
    data_digest,
)
from tests.nesting import mechanism_with

VOCABULARY, CLIP, LENGTH, END = 24, 3.0, 8, 23
#: Without the model.
AT_MOST_OPEN = {
    "mechanism.support-public",
    "neighbors.regenerated",
    "release.disclosure",
    "replay.logits",
    "replay.lower-bound",
}
RECORDS = [f"record {number}" for number in range(40)]
MEDIAN = {"aggregator": "median", "clip": CLIP, "temperature": 1.0}
MEAN = {"aggregator": "mean", "clip": CLIP, "temperature": 1.0, "divisor": 9.0}
ANCHORED = {**MEAN, "contribution": "differences", "support": {"kind": "public-top-k", "size": 6}}


def logits(record: str, position: int) -> np.ndarray:
    """Of one record, which a text so far does not change."""
    return (
        np.random.default_rng([*record.encode(), position])
        .normal(size=VOCABULARY)
        .astype(np.float32)
        * 2
    )


def handed(fields: dict[str, Any], texts: list[str], position: int) -> dict[str, Any]:
    """What an honest generator hands over at a step, by its own arithmetic."""
    scores = np.array([logits(text, position) for text in texts]).reshape(-1, VOCABULARY)
    if "contribution" in fields:
        public = logits("public", position)
        support = np.sort(np.argsort(-public)[:6])
        anchor = (public[support] - np.logaddexp.reduce(public[support].astype(float))).astype(
            np.float32
        )
        kept = scores[:, support].astype(float)
        values = np.clip(kept - np.logaddexp.reduce(kept, axis=1)[:, None] - anchor, -CLIP, CLIP)
        return {
            "contexts": values,
            "aggregate": anchor + values.sum(0) / 9,
            "support": support,
            "anchor": anchor,
        }
    values = np.maximum(
        -CLIP, scores - scores.max(axis=1, keepdims=True) + np.float32(CLIP)
    ).astype(np.float32)
    if fields is MEAN:
        return {"contexts": values, "aggregate": values.astype(float).sum(0) / 9}
    return {"contexts": values, "aggregate": np.median(values, axis=0)}


def manifest_of(fields: dict[str, Any], placed: Any, **changes: Any) -> Manifest:
    mechanism, claim = mechanism_with(fields), None
    if fields["aggregator"] == "mean":
        accountant = ApproximateAccountant.of(mechanism, ContextChange("add_remove"))
        assert accountant is not None
        claim = Claim(
            epsilon=accountant.epsilon(LENGTH, 1e-4, "rdp").epsilon, delta=1e-4, kind="approximate"
        )
    settings: dict[str, Any] = {
        "created": "2026-01-01T00:00:00+00:00",
        "mechanism": mechanism,
        "batching": placed.batching,
        "data": placed.data,
        "chosen_from": Origins(batching="public", settings="public"),
        "decoding": Decoding(max_tokens=LENGTH, sequences=((END,),)),
        "record": Record(
            vocabulary=VOCABULARY,
            contexts=True,
            dtype="float64" if fields["aggregator"] == "mean" else "float32",
        ),
        "model": Model(name="noise"),
        "prompt": Prompt(template="none"),
        "claim": claim,
    }
    return Manifest(**settings | changes)


def record(
    path: Any,
    fields: dict[str, Any] = MEDIAN,
    spoilt: Any = lambda given, position: given,
    placed: Any = None,
    **changes: Any,
) -> Any:
    """Record a run; `spoilt` may change what is handed over. Token ids alone are released."""
    placed = placed or hashed_records(RECORDS, batches=4, generated=3)
    with Recorder.create(
        path, manifest_of(fields, placed, **changes), placed.assignment
    ) as recorder:
        for number, texts in enumerate(placed.batches):
            with recorder.batch(number, contexts=len(texts)) as batch:
                write(batch, fields, list(texts), spoilt)
        recorder.finish()
    return path


def write(batch: RecordedBatch, fields: dict[str, Any], texts: list[str], spoilt: Any) -> None:
    while batch.stop is None:
        position = len(batch.tokens)
        batch.draw(**spoilt(handed(fields, texts, position), position))
    batch.finish()


def failing(path: Any) -> set[str]:
    return {check.id for check in audit_run(path).checks if check.status in ("fail", "error")}


def by_key(key: bytes) -> Any:
    """Records placed as by `hashed_records`, with the caller's key, which is said to be secret."""
    placed, keyed = hashed_records(RECORDS, batches=4, generated=3), KeyedHash(key)
    where = {text: keyed.of_round(0).batch(keyed.digest("", text), 4) for text in RECORDS}
    lines = [
        Assigned(keyed.digest("", text), number if number < 3 else None, None)
        for text, number in where.items()
    ]
    lines.sort(key=lambda line: line.digest)
    return dataclasses.replace(
        placed,
        batching=placed.batching.model_copy(update={"key": key.hex()}),
        data=Data(records=len(lines), digest=data_digest(line.digest for line in lines)),
        assignment=tuple(lines),
        batches=tuple(
            tuple(sorted(text for text in RECORDS if where[text] == number)) for number in range(3)
        ),
    )


def saying(placed: Any, allocation: Allocation | None) -> Any:
    return dataclasses.replace(
        placed, batching=placed.batching.model_copy(update={"allocation": allocation})
    )


def claim_at_release_level(path: Any) -> Claim:
    """What the run would state, were its batches secret."""
    manifest = RunReader(path).manifest
    batch = ApproximateAccountant.of(manifest.mechanism, ContextChange("add_remove"))
    secret = SecretBatches(((4, 3),))
    release = ReleaseAccountant.of(
        batch, manifest.mechanism, manifest.privacy, "hashed-records", secret
    )
    return Claim(epsilon=release.epsilon(LENGTH, 1e-4), delta=1e-4, kind="approximate")


def levels(path: Any) -> tuple[float, float, str]:
    found = audit_run(path).guarantees.approximate
    assert found is not None
    reason = found.amplification.reason
    return found.epsilon, found.batch_epsilon, "" if reason is None else reason.code


def test_secret_hashes_amplify_and_the_run_states_both_levels(tmp_path: Path) -> None:
    epsilon, batch_epsilon, reason = levels(record(tmp_path / "mean", MEAN))
    assert epsilon < batch_epsilon
    assert reason == ""
    claim = RunReader(record(tmp_path / "median")).manifest.claim
    found = audit_run(tmp_path / "median")
    assert found.verdict == "pass"
    assert claim is not None
    assert claim.batch_epsilon is not None
    assert claim.epsilon < claim.batch_epsilon
    assert claim.epsilon - 1e-4 < found.guarantees.ex_post.epsilon <= claim.epsilon


@pytest.mark.parametrize(
    ("allocation", "reason"),
    [
        (None, "levels.undeclared"),
        (Allocation(kind="hashed", secret=False), "levels.known"),
        (Allocation(kind="uniform", secret=False), "levels.known"),
        (Allocation(kind="fixed-size", secret=True), "levels.fixed-size"),
        (Allocation(kind="by-order", secret=True), "levels.by-order"),
    ],
    ids=lambda value: "nothing" if value is None else getattr(value, "kind", ""),
)
def test_other_ways_to_batches_have_equal_levels(
    tmp_path: Path, allocation: Allocation | None, reason: str
) -> None:
    placed = saying(hashed_records(RECORDS, batches=4, generated=3), allocation)
    epsilon, batch_epsilon, found = levels(record(tmp_path / "run", MEAN, placed=placed))
    assert epsilon == batch_epsilon
    assert found == reason
    claim = RunReader(record(tmp_path / "median", placed=placed)).manifest.claim
    assert claim is not None
    assert claim.epsilon == claim.batch_epsilon
    assert failing(tmp_path / "run") | failing(tmp_path / "median") == set()


#: What a script may say is a secret, and whoever reads the script knows.
PUBLIC_KEYS = {
    "numpy.random.seed": lambda: np.random.RandomState(42).bytes(32),
    "default_rng": lambda: np.random.default_rng(7).bytes(32),
    "random": lambda: random.Random(1234).randbytes(32),
    "digest of a number": lambda: hashlib.sha256(b"2026").digest(),
    "digest of a word": lambda: hashlib.blake2b(b"dpaudit", digest_size=32).digest(),
    "one byte": lambda: b"\xa5" * 32,
}


@pytest.mark.parametrize("name", PUBLIC_KEYS)
def test_a_key_that_a_seed_gives_is_no_secret(tmp_path: Path, name: str) -> None:
    placed = by_key(PUBLIC_KEYS[name]())
    epsilon, batch_epsilon, reason = levels(record(tmp_path / "run", MEAN, placed=placed))
    assert failing(tmp_path / "run") == set()
    assert epsilon == batch_epsilon
    assert reason == "levels.common-key"
    record(
        tmp_path / "claimed", MEAN, placed=placed, claim=claim_at_release_level(tmp_path / "run")
    )
    assert failing(tmp_path / "claimed") == {"claim.epsilon", "amplification.key"}


@pytest.mark.parametrize("kind", ["hashed", "uniform"])
def test_batches_of_a_seeded_generator_are_no_secret(tmp_path: Path, kind: Any) -> None:
    placed = saying(
        hashed_records(RECORDS, batches=4, generated=3), Allocation(kind=kind, secret=True)
    )
    seeded = Sampling(generator="mt19937", seed=20_261_126)
    epsilon, batch_epsilon, reason = levels(
        record(tmp_path / "run", MEAN, placed=placed, sampling=seeded)
    )
    assert epsilon == batch_epsilon
    assert reason == "levels.seeded"
    claim = claim_at_release_level(tmp_path / "run")
    record(tmp_path / "claimed", MEAN, placed=placed, sampling=seeded, claim=claim)
    assert failing(tmp_path / "claimed") == {
        "claim.epsilon",
        "amplification.key",
        "mechanism.randomness",
    }


def test_uniform_draws_without_a_key_cannot_pass_per_record(tmp_path: Path) -> None:
    """Nobody can see where a draw would have sent a record."""
    placed = saying(
        hashed_records(RECORDS, batches=4, generated=3), Allocation(kind="uniform", secret=True)
    )
    unkeyed = dataclasses.replace(placed, batching=placed.batching.model_copy(update={"key": None}))
    record(tmp_path / "run", MEAN, placed=unkeyed)
    found = audit_run(tmp_path / "run")
    assert {check.id: check.status for check in found.checks}["partition.stable"] == "skip"
    assert found.verdict != "pass"


def drawn(where: list[int], batches: int, generated: int) -> Any:
    """Records whose batches somebody drew, by a number each, and of which no hash is known."""
    placed = hashed_records(RECORDS, batches=batches, generated=generated)
    batching = placed.batching.model_copy(
        update={"key": None, "allocation": Allocation(kind="uniform", secret=True)}
    )
    lines = [
        line._replace(batch=number if number < generated else None)
        for line, number in zip(placed.assignment, where, strict=True)
    ]
    texts = tuple(
        tuple(text for text, number in zip(RECORDS, where, strict=True) if number == each)
        for each in range(generated)
    )
    return dataclasses.replace(placed, batching=batching, assignment=tuple(lines), batches=texts)


def test_uniform_draws_are_taken_at_their_word_only_where_they_look_like_draws(
    tmp_path: Path,
) -> None:
    system = random.SystemRandom()
    honest = drawn([system.randrange(4) for _ in RECORDS], 4, 3)
    sliced = drawn([number // 2 for number, _ in enumerate(RECORDS)], 20, 20)
    # 36 batches that nothing could be in
    more = drawn([system.randrange(4) for _ in RECORDS], 40, 4)
    per_context = {"privacy": Privacy(unit="context")}
    found = {}
    for name, placed in (("honest", honest), ("sliced", sliced), ("more", more)):
        claim = Claim(epsilon=50.0, delta=1e-4, kind="approximate", unit="context")
        record(tmp_path / name, MEAN, placed=placed, claim=claim, **per_context)
        found[name] = failing(tmp_path / name)
    assert found == {
        "honest": set(),
        "sliced": {"amplification.records"},
        "more": {"amplification.records"},
    }
    epsilon, batch_epsilon, _ = levels(tmp_path / "honest")
    assert epsilon < batch_epsilon


def test_a_hash_that_cannot_be_made_again_is_no_pass(tmp_path: Path) -> None:
    placed = hashed_records(RECORDS, batches=3, generated=3)
    less = {"batches_per_label": None, "generate_per_label": None}
    unsaid = dataclasses.replace(placed, batching=placed.batching.model_copy(update=less))
    claim = Claim(epsilon=50.0, delta=1e-4, kind="approximate", unit="context")
    record(tmp_path / "run", MEAN, placed=unsaid, claim=claim, privacy=Privacy(unit="context"))
    assert {check.id: check.status for check in audit_run(tmp_path / "run").checks}[
        "amplification.records"
    ] == "skip"


@pytest.mark.parametrize("fields", [MEDIAN, MEAN, ANCHORED], ids=["median", "mean", "anchored"])
def test_honest_generators_pass(tmp_path, fields):
    result = audit_run(record(tmp_path / "run", fields))
    left_open = {check.id for check in result.checks if check.status != "pass" and check.applicable}
    # Texts that part at once leave nothing to compare a support with: only the model shows the
    # rest.
    assert left_open <= AT_MOST_OPEN, left_open
    assert failing(tmp_path / "run") == set()
    assert {check.id for check in result.checks if check.status == "pass"} >= {
        "mechanism.clip",
        "record.aggregate",
    }


def test_own_draws_and_several_texts_a_batch(tmp_path):
    decoding = Decoding(max_tokens=3, tokens_per_batch=LENGTH)
    placed = hashed_records(RECORDS, batches=4, generated=2)
    with Recorder.create(
        tmp_path / "run", manifest_of(MEDIAN, placed, decoding=decoding), placed.assignment
    ) as recorder:
        for number, texts in enumerate(placed.batches):
            with recorder.batch(number, contexts=len(texts)) as batch:
                for position in range(LENGTH):
                    given = handed(MEDIAN, list(texts), position)
                    scores = given["aggregate"].astype(float)
                    scores -= np.logaddexp.reduce(scores)
                    token = int(np.random.default_rng().choice(VOCABULARY, p=np.exp(scores)))
                    batch.step(token, float(scores[token]), **given)
                    if batch.stop is not None and position < LENGTH - 1:
                        batch.end_text()
                batch.finish()
        recorder.finish()
    assert audit_run(tmp_path / "run").verdict == "pass"
    assert [len(sample.tokens) for sample in RunReader(tmp_path / "run").samples()] == [3, 3, 2] * 2


def test_what_is_wrong_is_recorded_as_it_was_and_fails(tmp_path):
    def replaced(**change: Any) -> Any:
        return lambda given, position: (
            given | {name: value(given) for name, value in change.items()}
        )

    faults = {
        "drawn from another aggregate": (
            MEDIAN,
            replaced(aggregate=lambda g: g["aggregate"] * 2),
            {"record.aggregate"},
        ),
        "sums in half precision": (
            MEAN,
            replaced(aggregate=lambda g: g["contexts"].sum(0).astype(np.float16).astype(float) / 9),
            {"record.aggregate"},
        ),
        "divided by the number of contexts": (
            MEAN,
            replaced(aggregate=lambda g: g["aggregate"] * 9 / len(g["contexts"])),
            {"record.aggregate"},
        ),
        "not clipped": (
            MEDIAN,
            replaced(contexts=lambda g: g["contexts"] * np.float32(1.5)),
            {"record.range"},
        ),
        "a support of the records'": (
            ANCHORED,
            lambda given, position: (
                given | {"support": np.sort(np.random.default_rng().permutation(VOCABULARY)[:6])}
            ),
            {"mechanism.support-public"},
        ),
    }
    for number, (name, (fields, spoilt, expected)) in enumerate(faults.items()):
        path = tmp_path / str(number)
        record(path, fields, spoilt)
        assert expected <= failing(path), name
        assert audit_run(path).verdict == "fail", name


def test_a_log_probability_of_another_distribution_fails(tmp_path):
    """A sampler that is colder than the mechanism says."""
    placed = hashed_records(RECORDS, batches=4, generated=1)
    with Recorder.create(
        tmp_path / "run", manifest_of(MEDIAN, placed), placed.assignment
    ) as recorder:
        with recorder.batch(0, contexts=len(placed.batches[0])) as batch:
            while batch.stop is None:
                given = handed(MEDIAN, list(placed.batches[0]), len(batch.tokens))
                scores = given["aggregate"].astype(float) * 2
                scores -= np.logaddexp.reduce(scores)
                batch.step(int(scores.argmax()), float(scores.max()), **given)
            batch.finish()
        recorder.finish()
    assert "record.aggregate" in failing(tmp_path / "run")


#: What is handed over wrongly, and what the error names.
MISSHAPEN = {
    "too few rows": (
        MEDIAN,
        lambda g: {"contexts": g["contexts"][1:]},
        "contexts must have the shape",
    ),
    "too few tokens": (
        MEDIAN,
        lambda g: {"aggregate": g["aggregate"][1:]},
        "aggregate must have the shape",
    ),
    "no number": (
        MEDIAN,
        lambda g: {"contexts": g["contexts"] * np.float32("nan")},
        "contexts holds a value that is",
    ),
    "infinite": (
        MEDIAN,
        lambda g: {"aggregate": g["aggregate"] - np.inf},
        "aggregate holds a value that is",
    ),
    "integers": (
        MEDIAN,
        lambda g: {"contexts": g["contexts"].astype(int)},
        "contexts must be real numbers",
    ),
    "too precise": (
        MEDIAN,
        lambda g: {"contexts": g["contexts"].astype(float)},
        "record.dtype of the manifest",
    ),
    "nothing": (MEDIAN, lambda g: {"contexts": None}, "contexts is missing"),
    "no array": (MEDIAN, lambda g: {"contexts": [[1.0], [1.0, 2.0]]}, "contexts"),
    "superfluous support": (
        MEDIAN,
        lambda g: {"support": np.arange(VOCABULARY)},
        "support is given",
    ),
    "superfluous anchor": (MEDIAN, lambda g: {"anchor": g["aggregate"]}, "anchor is given"),
    "no support": (ANCHORED, lambda g: {"support": None}, "support is missing"),
    "disorder": (ANCHORED, lambda g: {"support": g["support"][::-1]}, "support must ascend"),
    "twice": (
        ANCHORED,
        lambda g: {"support": np.minimum(g["support"], g["support"][1])},
        "support must ascend",
    ),
    "outside": (
        ANCHORED,
        lambda g: {"support": g["support"] + VOCABULARY},
        "outside the vocabulary of 24",
    ),
    "no ids": (
        ANCHORED,
        lambda g: {"support": g["support"] + 0.5},
        "support must be whole numbers",
    ),
    "no anchor": (ANCHORED, lambda g: {"anchor": None}, "anchor is missing"),
    "too precise an anchor": (
        ANCHORED,
        lambda g: {"anchor": g["anchor"].astype(float) + 1e-12},
        "more precise than float32",
    ),
}


@pytest.mark.parametrize("name", MISSHAPEN)
def test_what_is_misshapen_is_refused_where_it_is_given(tmp_path, name):
    fields, change, message = MISSHAPEN[name]
    with pytest.raises(ValueError, match=r"batch \d, step 1: ") as refused:
        record(
            tmp_path / "run",
            fields,
            lambda given, position: given | (change(given) if position == 1 else {}),
        )
    assert message in str(refused.value)
    assert audit_run(tmp_path / "run").verdict == "error"


def test_own_draws_are_looked_at(tmp_path):
    placed = hashed_records(RECORDS, batches=4, generated=1)
    given = handed(MEDIAN, list(placed.batches[0]), 0)
    contexts = len(placed.batches[0])
    with (
        Recorder.create(
            tmp_path / "run", manifest_of(MEDIAN, placed), placed.assignment
        ) as recorder,
        recorder.batch(0, contexts=contexts) as batch,
    ):
        for token, logarithm, message in (
            (99, -1.0, "token 99 is not among the 24"),
            (-1, -1.0, "token -1"),
            (1, 0.5, "no logarithm of a probability"),
            (1, math.nan, "no logarithm of a probability"),
            (1, -math.inf, "no logarithm of a probability"),
            (1, None, "batch 0, step 0: token and log_probability must be .* not int and NoneType"),
            (1, "x", "not int and str"),
            (np.array([1]), -1.0, "not ndarray and float"),
            (1.0, -1.0, "not float and float"),
        ):
            with pytest.raises(ValueError, match=message):
                batch.step(token, logarithm, **given)
        with pytest.raises(ValueError, match="ends after 0 of 8 tokens"):
            batch.finish()
        batch.step(END, -1.0, **given)
        assert batch.stop == "end-token"
        with pytest.raises(ValueError, match=r"has ended \(end-token\)"):
            batch.draw(**given)


def test_what_is_no_number_of_batches_or_contexts_is_refused(tmp_path):
    for batches, generated in ((0, 1), (-3, 1), (2, 0), (2, 3)):
        with pytest.raises(ValueError, match="generated must be 1 to batches"):
            hashed_records(RECORDS, batches=batches, generated=generated)
    for records in ([1, "a"], [None]):
        with pytest.raises(ValueError, match=r"^records must be .*(int|NoneType)$"):
            hashed_records(records, batches=2, generated=1)
    placed = hashed_records(RECORDS, batches=4, generated=1)
    with Recorder.create(
        tmp_path / "run", manifest_of(MEDIAN, placed), placed.assignment
    ) as recorder:
        for number, contexts in ((0, "3"), (0, 3.0), (0, placed.batches[0]), ("0", 3)):
            with (
                pytest.raises(ValueError, match=r"whole number, not (str|float|tuple)$"),
                recorder.batch(number, contexts=contexts),
            ):
                pass
        with recorder.batch(np.int64(0), contexts=np.int64(len(placed.batches[0]))) as batch:
            write(batch, MEDIAN, list(placed.batches[0]), lambda given, position: given)
        recorder.finish()
    assert audit_run(tmp_path / "run").verdict == "pass"


def test_what_is_not_recorded_here_is_refused_beforehand(tmp_path):
    placed = hashed_records(RECORDS, batches=4, generated=1)
    with pytest.raises(ValueError, match=r"^tokenizer_json cannot be "):
        Recorder.create(
            tmp_path / "run",
            manifest_of(MEDIAN, placed),
            placed.assignment,
            tokenizer_json="{not json",
        )
    for changes, message in (
        ({"record": Record(vocabulary=VOCABULARY)}, "record.contexts is off"),
        ({"mechanism": mechanism_with({**MEAN, "budget": 1.0})}, "mechanism.budget is set"),
    ):
        manifest = manifest_of(MEDIAN, placed)
        if "mechanism" in changes:
            manifest = manifest_of(MEAN, placed)
        with pytest.raises(ValueError, match=message):
            Recorder.create(
                tmp_path / "run", manifest.model_copy(update=changes), placed.assignment
            )
        assert not (tmp_path / "run").exists()


def test_a_crash_midway_leaves_a_run_that_cannot_pass(tmp_path):
    def crash(given: Any, position: int) -> Any:
        if position == 2:
            raise RuntimeError("out of memory")
        return given

    with pytest.raises(RuntimeError, match="out of memory"):
        record(tmp_path / "run", MEAN, crash, decoding=Decoding(max_tokens=LENGTH))
    assert audit_run(tmp_path / "run").verdict == "error"

    placed = hashed_records(RECORDS, batches=4, generated=2)
    with Recorder.create(
        tmp_path / "half", manifest_of(MEAN, placed), placed.assignment
    ) as recorder:
        with recorder.batch(0, contexts=len(placed.batches[0])) as batch:
            write(batch, MEAN, list(placed.batches[0]), lambda given, position: given)
        with pytest.raises(ValueError, match="1 batches are missing"):
            recorder.finish()
    assert audit_run(tmp_path / "half").verdict == "error"
    with pytest.raises(InputError, match="not empty"):
        record(tmp_path / "half")


def test_nothing_is_claimed_where_nothing_bounds_the_cost(tmp_path):
    """Slices move when a record comes or goes.

    Per record no figure holds, and the recorder makes none up.
    """
    placed = hashed_records(RECORDS, batches=4, generated=1)
    sliced = placed.batching.model_copy(
        update={"rule": "paper-slices", "slots": 64, "batches_per_label": None}
    )
    assignment = [place.__class__(place.digest, None, None) for place in placed.assignment]
    manifest = manifest_of(MEDIAN, placed, batching=sliced)
    with Recorder.create(tmp_path / "run", manifest, assignment) as recorder:
        with recorder.batch(0, contexts=2) as batch:
            write(batch, MEDIAN, RECORDS[:2], lambda given, position: given)
        with pytest.raises(ValueError, match="nothing bounds"):
            recorder.finish()


def test_records_are_placed_by_a_hash_of_each_alone():
    placed = hashed_records([*RECORDS, RECORDS[0]], batches=5, generated=2)
    assert placed.data.records == len(RECORDS) == len(placed.assignment)
    shown = [text for batch in placed.batches for text in batch]
    assert (
        len(shown) == len(set(shown)) == sum(place.batch is not None for place in placed.assignment)
    )
    again = hashed_records(RECORDS, batches=5, generated=2)
    assert placed.batching.key != again.batching.key, "a key is secret, and new each time"


def test_the_example_goes_on_with_the_token_that_a_step_gives_back():
    """Its own, or the released one where it is run again."""
    toy, seen = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "foreign_run.py")), []

    def step(token: int, logarithm: float, *, contexts: Any, aggregate: Any) -> int:
        seen.append(aggregate)
        batch.stop = "max-tokens" if len(seen) == len(toy["WORDS"]) else None
        return len(seen) - 1

    batch = SimpleNamespace(stop=None, step=step, finish=lambda: None)
    toy["write_text"](batch, toy["RECORDS"][:9])
    lasts = [toy["START"], *toy["WORDS"][:-1]]
    assert all(
        (found == toy["blend"](toy["RECORDS"][:9], last)[1]).all()
        for found, last in zip(seen, lasts, strict=True)
    )


def test_draws_of_a_committed_seed_are_held_to_it(tmp_path):
    seed, other = (
        CommittedSeed.of([hashlib.sha256(name).digest()]) for name in (b"part", b"another")
    )
    placed = hashed_records(RECORDS, batches=4, generated=3)
    manifest = manifest_of(
        MEDIAN, placed, sampling=Sampling(generator="committed-seed", seed_hashes=seed.hashes)
    )
    with Recorder.create(tmp_path / "run", manifest, placed.assignment, seed=seed) as recorder:
        for number, texts in enumerate(placed.batches):
            with recorder.batch(number, contexts=len(texts)) as batch:
                write(batch, MEDIAN, list(texts), lambda given, position: given)
        recorder.finish()
    (check,) = [
        each
        for each in audit_run(tmp_path / "run", seed=seed).checks
        if each.id == "sampling.committed-seed"
    ]
    assert check.status == "pass"
    for given in (None, other):
        with pytest.raises(ValueError, match="seed_hashes"):
            Recorder.create(tmp_path / "new", manifest, placed.assignment, seed=given)
    with pytest.raises(ValueError, match="seed_hashes"):
        Recorder.create(tmp_path / "new", manifest_of(MEDIAN, placed), placed.assignment, seed=seed)
