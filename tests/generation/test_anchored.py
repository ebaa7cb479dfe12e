"""Runs of anchored contributions: records move nothing public, and the audit recomputes all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dpaudit.auditing.run import audit_run
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config, load_config
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import OwnCache
from dpaudit.generation.prompts import template
from dpaudit.generation.public_parts import replay_public
from dpaudit.generation.records import read_public_examples
from dpaudit.generation.replay import replay_run
from dpaudit.mechanisms import ANCHOR, Mechanism, PublicPart
from dpaudit.results import Finding
from dpaudit.runs import InputError, RunReader, Step
from tests.trials import trial

MakeConfig = Callable[..., Config]
MakeRun = Callable[..., Path]

EXAMPLES = {"north": ["Snow until noon.", "A cold wind."], "south": ["Dust in the afternoon."]}
DIFFERENCES = {"contribution": "differences", "clip": 0.5}
TOP = {"support": {"kind": "public-top-k", "size": 12}}
MEAN = {"aggregator": "mean", "divisor": 4.0}
#: Every aggregator, support, relation, batching rule and precision at least once.
RUNS: list[dict[str, Any]] = [
    {"mechanism": {**DIFFERENCES, **MEAN, **TOP}, "prompt": {"public_examples": EXAMPLES}},
    {
        "mechanism": {**DIFFERENCES, **MEAN},
        "record": {"contexts": True},
        "privacy": {"relation": "replace"},
    },
    {"mechanism": {**DIFFERENCES, **TOP, "grid": 0.125}, "decoding": {"tokens_per_batch": 9}},
    {"mechanism": DIFFERENCES, "model": {"dtype": "bfloat16"}},
    {
        "mechanism": {
            **DIFFERENCES,
            "aggregator": "central",
            "central": 3,
            "support": {"kind": "public-top-k", "size": 12, "margin": 0.25},
        },
        "prompt": {"public_examples": EXAMPLES, "examples_per_context": 2},
        "batching": {"slots": 3},
        "privacy": {"relation": "replace"},
    },
]


def every_step(run: Path) -> list[tuple[str | None, list[int], int, Step]]:
    """Label, tokens before, number of contexts and record of every step."""
    reader, found = RunReader(run), []
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            for position, step in enumerate(opened.steps()):
                found.append(
                    (
                        opened.header.label,
                        opened.tokens[:position].tolist(),
                        opened.header.contexts,
                        step,
                    )
                )
    return found


def test_runs_pass_with_all_evidence(generated: MakeRun, data_file: Path) -> None:
    for sections in RUNS:
        run = generated(**sections)
        replay = replay_run(run, str(data_file), steps=6, left_out=2, trials=3)
        result = audit_run(run, evidence=4, replay=replay, disclosed=trial())
        assert {c.id: c.code for c in result.checks if c.status == "fail"} == {
            "mechanism.randomness": "test-seed"
        }
        passed = {check.id for check in result.checks if check.status == "pass"}
        assert {
            "mechanism.support-public",
            "record.aggregate",
            "neighbors.removal",
            "replay.logits",
        } <= passed
        recorded = RunReader(run).manifest.record.contexts
        assert ("mechanism.clip" in passed) == recorded


def test_anchors_and_supports_are_those_of_a_prompt_without_records(
    generated: MakeRun, tiny: LanguageModel
) -> None:
    """Naively: the template with the public examples alone, then the tokens so far."""
    run = generated(**RUNS[0])
    wording = template("pt", tiny.tokenizer)
    seen_empty = False
    for label, tokens, contexts, step in every_step(run):
        prompt = wording.tokens(label or "", EXAMPLES[label or ""])
        logits = OwnCache(tiny, [prompt + tokens], len(prompt + tokens) + 1).logits[0].numpy()
        top = np.sort(np.argsort(-logits, kind="stable")[:12])
        assert step.support is not None
        assert step.support.tolist() == top.tolist()
        anchor = logits[top] - np.log(np.exp(logits[top].astype(float)).sum())
        np.testing.assert_allclose(step.arrays[ANCHOR], anchor, atol=1e-5)
        if not contexts:
            seen_empty = True
            place = int(np.searchsorted(step.support, step.token))
            assert step.log_probability == pytest.approx(float(anchor[place]), abs=1e-4)
    assert seen_empty  # a batch without contexts samples from the public prompt


def test_records_do_not_reach_what_is_public(
    generated: MakeRun, data_file: Path, tmp_path: Path, make_config: MakeConfig
) -> None:
    """Another data set: the same anchors and supports after the same tokens."""
    other = tmp_path / "other.csv"
    other.write_text(
        "label,text\n" + "".join(f"north,{number} entirely other\n" for number in range(30))
    )
    sections = {**RUNS[0], "data": {"path": str(other)}}
    found: dict[Any, bytes] = {}
    compared = 0
    for run in (generated(**RUNS[0]), Path(generate(make_config(**sections), tmp_path / "run"))):
        for label, tokens, _, step in every_step(run):
            assert step.support is not None
            public = step.support.tobytes() + step.arrays[ANCHOR].tobytes()
            compared += (label, *tokens) in found
            assert found.setdefault((label, *tokens), public) == public
    assert compared > 4


def test_public_examples_come_from_a_file_too(
    generated: MakeRun, make_config: MakeConfig, tmp_path: Path, data_file: Path
) -> None:
    file = tmp_path / "public.jsonl"
    rows = [{"label": label, "text": text} for label, texts in EXAMPLES.items() for text in texts]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sections = {**RUNS[0], "prompt": {"public_examples": str(file)}}
    manifest = RunReader(generated(**sections)).manifest
    assert {
        label: list(texts) for label, texts in manifest.prompt.public_examples.items()
    } == EXAMPLES
    with pytest.raises(ValidationError, match="which lie neither"):
        make_config(**{**RUNS[0], "prompt": {"public_examples": str(data_file)}})
    for text, problem in (
        ("", "the file is empty"),
        ('{"label": "north", "text": "x"}\n' * 65, "more than 64"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=problem):
            read_public_examples(make_config(**sections))


def test_public_examples_that_fit_no_label_are_refused(make_config: MakeConfig) -> None:
    for examples, problem in (
        ({"east": ["x"]}, "texts under north, south"),
        (["x"], "a list of texts for each label"),
        ({"north": []}, "at least 1"),
        ({"north": [""]}, "at least 1"),
        (3, "public_examples"),
    ):
        with pytest.raises(ValidationError, match=problem):
            make_config(prompt={"public_examples": examples})


def test_a_public_example_or_a_banned_word_that_is_a_record_fails(
    generated: MakeRun, canary: str
) -> None:
    record = f"{canary} 3 lorem"
    for field, section in [
        ("prompt.public_examples", {"prompt": {"public_examples": {"north": [text]}}})
        for text in (record, f" {record}\n", record.replace(" ", "  "))
    ] + [("decoding.banned_words", {"decoding": {"banned_words": [record]}})]:
        run = generated(**RUNS[0] | section)
        result = audit_run(run)
        check = {check.id: check for check in result.checks}["disclosure.sensitive"]
        assert check.status == "fail", section
        assert result.guarantee.code == "verdict.record-unreliable"
        assert [note.code for note in check.notes] == ["disclosure.in-every-text"]
        assert (check.code, check.values["field"]) == ("record", field)


def test_mistakes_in_public_examples_are_told_by_their_place(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """Without the types that they were held against, and counted once."""
    values = make_config().model_dump(mode="json", exclude_unset=True)
    for examples, told in (
        ({"north": "one"}, "north: the value is 'one'"),
        ({"north": ["x", ""]}, "north.1: the"),
    ):
        written = {**values, "prompt": {**values["prompt"], "public_examples": examples}}
        (tmp_path / "config.yaml").write_text(json.dumps(written))
        with pytest.raises(InputError) as caught:
            load_config(tmp_path / "config.yaml")
        assert f"prompt.public_examples.{told}" in str(caught.value) and "more to mend" not in str(
            caught.value
        )


def test_a_token_beyond_the_margin_fails(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that private rows favour, say.

    After the first step no other batch's support has to agree.
    """
    own = Mechanism.public_part

    def widened(self: Mechanism, logits: Any, ruled: bool) -> PublicPart:
        support = own(self, logits, ruled).support
        assert support is not None
        support = np.union1d(support, np.argmin(logits)).astype(np.int32)
        return PublicPart(support, self.contribution.anchor(logits[support]))

    config = make_config(**RUNS[4])
    honest, planted = tmp_path / "honest", tmp_path / "planted"
    generate(config, honest)
    monkeypatch.setattr(Mechanism, "public_part", widened)
    generate(config, planted)
    for run, status in ((honest, "pass"), (planted, "fail")):
        check = {check.id: check for check in audit_run(run).checks}["record.range"]
        assert check.status == status
    problem = check.values["problem"]
    assert isinstance(problem, Finding)
    assert (problem.code, problem.values["size"]) == ("mechanisms.beyond-margin", 12)


def test_an_anchor_that_rounding_excuses_is_no_pass(
    make_config: MakeConfig, data_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All batches are off alike, by less than bfloat16 may be: only an equal one hides nothing."""
    config = make_config(**RUNS[0] | {"model": {"dtype": "bfloat16"}})
    own, off = Mechanism.public_part, 0.02

    def moved(self: Mechanism, logits: Any, ruled: bool) -> PublicPart:
        part = own(self, logits, ruled)
        assert part.anchor is not None and part.support is not None
        tilted = part.anchor + off * (part.support % 2)
        return part._replace(anchor=self.contribution.anchor(tilted))

    for name, status in (("honest", "pass"), ("moved", "skip")):
        run = tmp_path / name
        generate(config, run)
        monkeypatch.undo()
        replay = replay_public(run)
        assert replay.public is not None and not replay.public.wrong
        check = {check.id: check for check in audit_run(run, replay=replay).checks}[
            "mechanism.support-public"
        ]
        assert check.status == status, check
        monkeypatch.setattr(Mechanism, "public_part", moved)


def test_rules_may_take_a_contexts_likeliest_token(generated: MakeRun) -> None:
    """Then its largest logit lies below the clip."""
    rules = {"banned_words": ["a", "e", "i", "o"], "least_tokens": 3}
    run = generated(decoding=rules, record={"contexts": True})
    check = {check.id: check for check in audit_run(run).checks}["mechanism.clip"]
    assert (check.status, check.applicable) == ("skip", False)


def test_empty_slots_are_terms_of_an_anchored_mean(generated: MakeRun) -> None:
    """They give 0: where all others are at -clip, and as many as the divisor, the mean is -clip."""
    mechanism = {
        **DIFFERENCES,
        **MEAN,
        "divisor": 1.0,
        "clip": 1e-3,
        "support": {"kind": "public-top-k", "size": 100},
    }
    run = generated(mechanism=mechanism, batching={"slots": 200}, privacy={"delta": 1e-3})
    (check,) = (check for check in audit_run(run).checks if check.id == "mechanism.divisor")
    assert (check.status, check.evidence) == ("pass", 1)


@pytest.mark.usefixtures("masked_token")
def test_masked_tokens_of_the_whole_vocabulary_are_refused(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """Beside the least finite number float32 tells no differences, and bounds would say nothing."""
    with pytest.raises(InputError, match="masked logits: take"):
        generate(make_config(mechanism=DIFFERENCES), tmp_path / "run")
