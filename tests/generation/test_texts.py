"""Several texts from a batch: their record, that each begins from the prompts, and their replay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpaudit.accounting import ApproximateAccountant, ExPostAccountant
from dpaudit.api.inspecting import look_into_batch
from dpaudit.api.reading import open_run
from dpaudit.auditing.run import audit_run
from dpaudit.generation import passes
from dpaudit.generation.aggregation import aggregated
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.events import BatchDone, Event, MemoryRanOut, StepDone
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import next_logits
from dpaudit.generation.replay import _Replayer, replay_run
from dpaudit.mechanisms import ContextChange, PublicPart
from dpaudit.results import AuditResult
from dpaudit.runs import RunReader, Sample, aggregate_digest
from tests.generation.after_load import after_load

MakeConfig = Callable[..., Config]
Sections = dict[str, dict[str, Any]]
Failed = Callable[[AuditResult], set[str]]

LONGEST, BUDGET = 6, 16
TEXTS: Sections = {"decoding": {"max_tokens": LONGEST, "tokens_per_batch": BUDGET}}
MEAN = {"aggregator": "mean", "divisor": 4.0}
TOP = {"support": {"kind": "public-top-k", "size": 20}}
#: What an audit holds against a run that can be repeated.
SEEDED = {"mechanism.randomness"}
KINDS: list[Sections] = [
    {},
    {"mechanism": TOP},
    {"mechanism": {**MEAN, **TOP}, "record": {"contexts": True}},
    {"prompt": {"examples_per_context": 2}, "batching": {"slots": 3}},
]


@pytest.fixture(autouse=True)
def one_token_in_eight_ends_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        LanguageModel, "end_tokens", property(lambda model: tuple(range(0, model.vocabulary, 8)))
    )


@pytest.fixture
def made(tmp_path: Path, make_config: MakeConfig) -> Callable[..., Path]:
    """Runs of several texts a batch. Arguments as for `make_config`."""
    numbers = itertools.count()

    def make(**sections: dict[str, Any]) -> Path:
        return Path(generate(make_config(**TEXTS | sections), tmp_path / f"made-{next(numbers)}"))

    return make


def texts_of(run: Path) -> dict[int, list[Sample]]:
    """All texts of a run, by batch."""
    found, reader = {}, RunReader(run)
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            found[batch] = list(opened.samples())
    return found


def digests(run: Path) -> list[list[bytes]]:
    """What was sampled from and what was sampled, by batch and step."""
    reader, found = RunReader(run), []
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            found.append(
                [step.aggregate_digest + bytes([step.token % 256]) for step in opened.steps()]
            )
    return found


def test_a_batch_writes_texts_until_its_tokens_are_spent(
    made: Callable[..., Path], failed: Failed
) -> None:
    stops: set[str] = set()
    for sections in KINDS:
        run = made(**sections)
        reader = RunReader(run)
        released = list(reader.samples())
        for batch, texts in texts_of(run).items():
            assert sum(len(text.tokens) for text in texts) == BUDGET
            assert [text.number for text in texts] == list(range(len(texts))) and len(texts) > 2
            assert {text.stop for text in texts[:-1]} <= {"end-token", "max-tokens"}
            assert [text for text in released if text.id == batch] == texts
            assert all(len(text.tokens) == LONGEST for text in texts if text.stop == "max-tokens")
            stops |= {text.stop for text in texts}
        result = audit_run(run)
        assert failed(result) == SEEDED
        assert sum(batch.texts for batch in result.batches) == len(released) == result.run.texts
        assert {batch.steps for batch in result.batches} == {BUDGET}
        assert result.tokens is not None and result.tokens.position[-1] == BUDGET
        assert [sample.tokens for sample in result.samples] == [
            len(text.tokens) for text in released
        ]
    assert stops == {"end-token", "max-tokens", "budget"}


def test_every_token_of_a_batch_is_paid_for(made: Callable[..., Path]) -> None:
    reader = RunReader(made())
    manifest, accountant = (
        reader.manifest,
        ExPostAccountant(reader.manifest.mechanism, ContextChange("add_remove")),
    )
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            for step in opened.steps():
                accountant.charge(batch, manifest.mechanism.reduced(dict(step.arrays), step.token))
    assert manifest.claim is not None and 0 <= manifest.claim.epsilon - accountant.epsilon < 1e-4
    manifest = RunReader(made(mechanism=MEAN)).manifest
    beforehand = ApproximateAccountant.of(manifest.mechanism, ContextChange("add_remove"))
    assert manifest.claim is not None and beforehand is not None
    assert (
        0
        <= manifest.claim.epsilon - beforehand.epsilon(BUDGET, manifest.claim.delta, "rdp").epsilon
        < 1e-4
    )


def test_without_a_longest_text_the_batchs_tokens_bound_it(
    tmp_path: Path, make_config: MakeConfig, failed: Failed
) -> None:
    config = make_config(decoding={"max_tokens": None, "tokens_per_batch": 12})
    run = Path(generate(config, tmp_path / "run"))
    assert RunReader(run).manifest.decoding.max_tokens == 12
    assert {sum(len(text.tokens) for text in texts) for texts in texts_of(run).values()} == {12}
    assert max(len(text.tokens) for texts in texts_of(run).values() for text in texts) > LONGEST
    assert failed(audit_run(run)) == SEEDED


def test_every_text_begins_from_its_batchs_prompts_bit_for_bit(
    made: Callable[..., Path], data_file: Path
) -> None:
    """Each text against prompts that are fed anew for it: no bit may come from the texts before."""
    for sections in KINDS[:3]:
        run = made(**sections)
        reader, replayer = (
            RunReader(run),
            _Replayer(RunReader(run), str(data_file), None, lambda _: None),
        )
        for batch in replayer.partition.batches:
            with reader.batch(batch.id) as opened:
                for span in opened.spans:
                    prompts = replayer._cached(batch.label, batch.contexts)
                    for position in span:
                        step = opened.step(position)
                        arrays = aggregated(
                            next_logits(prompts),
                            PublicPart(step.support),
                            reader.manifest.mechanism,
                        )
                        found = reader.manifest.mechanism.aggregator.aggregate(arrays)
                        assert aggregate_digest(found) == step.aggregate_digest
                        prompts.append(step.token)


def test_whoever_shares_passes_and_wherever_memory_runs_out_texts_are_the_same(
    tmp_path: Path, made: Callable[..., Path], make_config: MakeConfig
) -> None:
    for sections in ({}, {"mechanism": TOP}):
        whole = digests(made(**sections))
        for rows in (1, 5):
            assert digests(made(**sections, model={"rows": rows})) == whole
        for fails_at in (2, 9, 14):
            events: list[Event] = []
            config, own, left = make_config(**TEXTS | sections), passes.forward, itertools.count(1)

            def scarce(*arguments: Any, **named: Any) -> Any:
                if next(left) == fails_at:
                    raise MemoryError
                return own(*arguments, **named)

            with after_load(passes, "forward", scarce):
                run = Path(
                    generate(config, tmp_path / f"{len(sections)}-{fails_at}", events.append)
                )
            assert sum(isinstance(event, MemoryRanOut) for event in events) == 1
            assert digests(run) == whole


def test_a_model_with_a_cache_of_another_kind_begins_texts_anew_too(
    made: Callable[..., Path],
    data_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    failed: Failed,
    tried_anew: None,
) -> None:
    monkeypatch.setattr(passes.SharedPasses, "fit", classmethod(lambda *_: None))
    for sections in KINDS[:2]:
        run = made(**sections)
        found = replay_run(run, str(data_file), steps=1000, left_out=2, trials=0)
        assert {(step.difference, step.problems) for step in found.steps} == {(0.0, ())}
        assert failed(audit_run(run, replay=found)) == SEEDED


class KilledError(Exception):
    """Stands for whatever ends a process."""


def test_a_run_that_was_interrupted_within_a_later_text_equals_an_unbroken_one(
    tmp_path: Path, made: Callable[..., Path], make_config: MakeConfig
) -> None:
    alone: Sections = {"model": {"rows": 1}}
    whole = made(**alone)
    starts = [len(text.tokens) for text in texts_of(whole)[1]]

    def kill(event: Event) -> None:
        if isinstance(event, StepDone) and (event.batch, event.tokens) == (1, starts[0] + 1):
            raise KilledError

    broken, events = tmp_path / "broken", list[Event]()
    with pytest.raises(KilledError):
        generate(make_config(**TEXTS | alone), broken, kill)
    assert RunReader(broken).batches == (0,)
    generate(make_config(**TEXTS | alone), broken, events.append)
    assert digests(broken) == digests(whole)
    assert (broken / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()
    assert [event.tokens for event in events if isinstance(event, BatchDone)] == [BUDGET] * 4
    told = [event.tokens for event in events if isinstance(event, StepDone) and event.batch == 2]
    assert told == list(range(1, BUDGET + 1))


def test_a_replay_of_every_step_and_context_agrees(
    made: Callable[..., Path], data_file: Path, failed: Failed
) -> None:
    for sections in KINDS:
        run, passed = made(**sections), list[tuple[int, int]]()
        found = replay_run(
            run,
            str(data_file),
            steps=1000,
            left_out=3,
            trials=1,
            progress=lambda *counts: passed.append(counts),
        )
        assert len(found.steps) == 4 * BUDGET
        assert {(step.difference, step.problems) for step in found.steps} == {(0.0, ())}
        assert all(
            abs(left.recorded - left.regenerated) <= left.tolerance for left in found.left_out
        )
        assert found.texts is None and passed[-1][0] == passed[-1][1]
        assert failed(audit_run(run, evidence=3, replay=found)) == SEEDED


def test_a_replay_of_one_step_computes_its_own_text_alone(
    made: Callable[..., Path], data_file: Path
) -> None:
    run, passed = made(), list[tuple[int, int]]()
    with RunReader(run).batch(0) as opened:
        last = opened.spans[-1]
    (step,) = replay_run(
        run,
        str(data_file),
        chosen=[(0, last.stop - 1)],
        left_out=0,
        trials=0,
        progress=lambda *counts: passed.append(counts),
    ).steps
    assert (step.position, step.difference, step.problems) == (BUDGET - 1, 0.0, ())
    assert passed[-1] == (len(last), len(last))


def spans_of(run: Path, batch: int) -> Iterator[range]:
    with RunReader(run).batch(batch) as opened:
        yield from opened.spans


def test_inspecting_a_batch_tells_its_texts_apart(made: Callable[..., Path]) -> None:
    run = made()
    for batch, texts in texts_of(run).items():
        spans, found = list(spans_of(run, batch)), open_run(run).batches[batch]
        assert found.starts == tuple(span.start for span in spans)
        assert look_into_batch(run, batch).figures["texts"] == [
            {
                "first": span.start,
                "tokens": len(span),
                "stop": text.stop,
                "end": (text.tokens[-1],) if text.stop == "end-token" else (),
                "text": text.text,
            }
            for span, text in zip(spans, texts, strict=True)
        ]
        for span in spans:
            first, last = found.steps[span.start], found.steps[span.stop - 1]
            assert first.first and first.prefix == ""
            assert last.first == (len(span) == 1)
