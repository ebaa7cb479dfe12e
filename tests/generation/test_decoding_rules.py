"""Runs whose texts may not hold something: output, resumption, audit, replay and attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.auditing.run import audit_run
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.events import BatchDone, Event
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import next_logits
from dpaudit.generation.prompts import Prompts, RuledPrompt, template
from dpaudit.generation.public_parts import replay_public
from dpaudit.generation.replay import replay_run
from dpaudit.mechanisms import Support
from dpaudit.runs import DecodingRules, ForbiddenTokens, InputError, RunReader, without_stop
from tests.nesting import read_run, write_run
from tests.trials import trial

MakeConfig = Callable[..., Config]
MakeRun = Callable[..., Path]

WORDS = ["a", "%%"]
RULES: dict[str, Any] = {
    "mechanism": {"support": {"kind": "public-top-k", "size": 20}, "temperature": 0.3},
    "model": {"rows": 1},
    "decoding": {
        "max_tokens": 30,
        "least_tokens": 8,
        "no_line_breaks": True,
        "no_repeated_ngram": 2,
        "banned_words": WORDS,
    },
}
FREE = RULES | {"decoding": {"max_tokens": 30, "test_seed": 9}}


def kept(run: Path) -> list[tuple[tuple[int, ...], str]]:
    """Tokens of each text, its end aside, and what they say."""
    reader = RunReader(run)
    ends = reader.manifest.decoding.sequences
    return [
        (tuple(without_stop(sample.tokens, ends)), sample.text or "") for sample in reader.samples()
    ]


def broken(text: tuple[int, ...], said: str, prompt: Sequence[int]) -> list[str]:
    """The rules that a text breaks, by looking at it as a whole."""
    pairs = [*zip((*prompt, *text), (*prompt, *text)[1:], strict=False)]
    written = pairs[len(prompt) - 1 :]
    found = {
        "least_tokens": len(text) < 8,
        "no_line_breaks": len(said.splitlines()) > 1,
        "no_repeated_ngram": any(
            pair in pairs[: len(prompt) - 1 + i] for i, pair in enumerate(written)
        ),
        "banned_words": any(word in said for word in WORDS),
    }
    return [rule for rule, breaks in found.items() if breaks]


def test_texts_keep_the_rules_that_others_break(generated: MakeRun, tiny: LanguageModel) -> None:
    prompt = template("pt", tiny.tokenizer).tokens("north", [])
    free = {rule for text, said in kept(generated(**FREE)) for rule in broken(text, said, prompt)}
    assert free == DecodingRules.model_fields.keys()
    for text, said in kept(generated(**RULES)):
        assert not broken(text, said, prompt)
        assert text and said


@pytest.mark.parametrize(
    "mechanism",
    [
        RULES["mechanism"],
        {"support": {"kind": "full"}},
        {"contribution": "differences"},
        {
            "contribution": "differences",
            "support": {"kind": "public-top-k", "size": 20, "margin": 0.5},
        },
    ],
)
def test_a_run_with_rules_passes_its_audit_and_its_replay(
    generated: MakeRun, data_file: Path, mechanism: dict[str, Any]
) -> None:
    run = generated(**RULES | {"mechanism": mechanism})
    manifest = RunReader(run).manifest
    stated = manifest.decoding.model_dump(mode="json") | {"max_tokens": 30}
    assert {name: stated[name] for name in RULES["decoding"]} == RULES["decoding"]
    assert len(manifest.prompt.public) == len(manifest.data.groups) == 2
    found = replay_run(run, str(data_file), steps=1000, left_out=1, trials=2)
    assert not any(step.problems for step in found.steps) and len(found.steps) > 30
    result = audit_run(run, evidence=4, replay=found, disclosed=trial())
    assert {check.id for check in result.checks if check.status == "fail"} == {
        "mechanism.randomness"
    }, "a test seed"
    (check,) = (check for check in result.checks if check.id == "mechanism.support-rules")
    assert check.status == "pass"


def test_a_run_with_rules_goes_on_as_if_unbroken(
    tmp_path: Path, make_config: MakeConfig, generated: MakeRun
) -> None:
    class StoppedError(Exception):
        """Stands for whatever ends a process."""

    def stop(event: Event) -> None:
        if isinstance(event, BatchDone) and event.batch == 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        generate(make_config(**RULES), tmp_path / "run", stop)
    assert len(RunReader(tmp_path / "run").batches) < 4
    other = RULES | {"decoding": RULES["decoding"] | {"banned_words": ["b"]}}
    with pytest.raises(InputError, match=r"another decoding\.banned_words"):
        generate(make_config(**other), tmp_path / "run")
    generate(make_config(**RULES), tmp_path / "run")
    whole = generated(**RULES)
    for name in ("samples.jsonl", *(f"steps/{batch:08d}.zip" for batch in range(4))):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()


def test_a_replay_finds_what_the_record_alone_does_not_show(
    own_run: MakeRun, data_file: Path
) -> None:
    """The rules of a run that had none: its supports hold what they forbid, by the model too."""
    run = own_run(**FREE)
    values = read_run(run)
    values["decoding"]["banned_words"] = WORDS
    write_run(run, values)
    found = replay_public(run).public
    assert found is not None and 0 < found.wrong < found.steps
    assert found.first is not None and "replay.other-support" in str(found.first)
    run = own_run(**RULES)
    values = read_run(run)
    values["prompt"]["public"][1][0] += 1
    write_run(run, values)
    with pytest.raises(InputError, match=r"prompt\.public: .*public prompts"):
        replay_run(run, str(data_file), steps=1, left_out=0, trials=0)


def test_a_public_prompt_rules_out_what_is_forbidden_and_nothing_else(tiny: LanguageModel) -> None:
    wording = template("pt", tiny.tokenizer)
    rules = ForbiddenTokens(DecodingRules(no_repeated_ngram=2), (), tiny.vocabulary, 20, None)
    ruled, free = (Prompts(tiny, wording, ["north"], 1, 8, rules=which) for which in (rules, None))
    one, other = ruled.public("north", 8), free.public("north", 8)
    newline = ruled.public_tokens("north")[-1]
    for prompts in (one, other):
        for token in (5, newline, 5):
            prompts.append(token)
    twin = one.fork()
    twin.append(7)
    before, after = next_logits(other)[0], next_logits(one)[0]
    assert (
        np.flatnonzero(before != after).tolist()
        == np.flatnonzero(np.isneginf(after)).tolist()
        == [newline]
    )
    assert np.isfinite(next_logits(twin)).all(), "7 was never there before"
    twin.append(5)
    assert np.flatnonzero(np.isneginf(next_logits(twin)[0])).tolist() == sorted([7, newline])
    assert next_logits(ruled.public("north", 8, wanted=False)).shape == (0, tiny.vocabulary)


def test_what_a_model_rules_out_stays_before_what_is_forbidden() -> None:
    class Masked:
        logits = torch.tensor([[1.0, -torch.inf, 3.0, -torch.inf, 2.0]])

    rules = ForbiddenTokens(DecodingRules(least_tokens=1), [(0,), (2,)], 5, 3, None)
    logits = next_logits(RuledPrompt(Masked(), rules, ()))[0]  # type: ignore[arg-type]
    for fields in ({"size": 3}, {"size": 5}, {"size": 1, "margin": 1e15}, None):
        support = (
            Support()
            if fields is None
            else Support.model_validate({"kind": "public-top-k", **fields})
        )
        found = support.tokens(logits, ruled=True)
        assert found is not None and found.tolist() == (
            [4] if fields and fields["size"] == 1 else [1, 3, 4]
        )


def test_rules_that_a_model_cannot_keep_are_refused(
    tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"support": {"kind": "public-top-k", "size": 272}}
    with pytest.raises(
        InputError, match=r"decoding: .* may forbid . of .* 272 tokens, .* needs 272"
    ):
        generate(
            make_config(**RULES | {"mechanism": large, "decoding": {"least_tokens": 1}}),
            tmp_path / "run",
        )
    monkeypatch.setattr(LanguageModel, "tokenizer_json", None)
    with pytest.raises(InputError, match=r"decoding\.no_line_breaks: .* not say"):
        generate(make_config(**RULES), tmp_path / "run")
    assert not (tmp_path / "run").exists()
