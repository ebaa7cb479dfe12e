"""Held-out likelihood against a naive loop, its sums and errors, and `dpaudit lab likelihood`."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpaudit.accounting import ApproximateAccountant, ExPostAccountant
from dpaudit.commands.cli import main
from dpaudit.generation.aggregation import aggregated
from dpaudit.generation.algorithm import prepare
from dpaudit.generation.config import Config
from dpaudit.generation.evaluation.likelihood import HeldOut, per_token
from dpaudit.generation.experiments.likelihood_results import MechanismLikelihood
from dpaudit.generation.experiments.likelihoods import held_out_texts, measure
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import OwnCache
from dpaudit.generation.prompts import Prompts, template
from dpaudit.mechanisms import ContextChange, PublicPart
from dpaudit.runs import InputError

MakeConfig = Callable[..., Config]
TEXTS = {"north": ("canary, ice", "wind again"), "south": ("dust", "a dry noon")}
EXAMPLES = {"north": ["Snow until noon."], "south": ["Dust in the afternoon."]}
TOP = {"kind": "public-top-k", "size": 30}
MEAN = {"aggregator": "mean", "divisor": 4.0}
DIFFERENCES = {"contribution": "differences", "clip": 0.5}
SHORT = {"decoding": {"max_tokens": 8}}
#: Every contribution, aggregator and support, one or two batches.
CONFIGS: list[dict[str, Any]] = [
    {"mechanism": {}},
    {"mechanism": {**MEAN, "support": TOP, "temperature": 1.5}},
    {"mechanism": {**DIFFERENCES, **MEAN}, "privacy": {"relation": "replace"}},
    {"mechanism": {**DIFFERENCES, **MEAN, "support": TOP}, "prompt": {"public_examples": EXAMPLES}},
    {
        "mechanism": {
            **DIFFERENCES,
            "aggregator": "central",
            "central": 3,
            "support": TOP,
            "temperature": 0.7,
        }
    },
]


def quiet(done: int, total: int) -> None:
    """No progress."""


def log_softmax(values: Any) -> Any:
    scaled = np.asarray(values, dtype=np.float64)
    scaled = scaled - scaled.max()
    return scaled - np.log(np.exp(scaled).sum())


def naive(config: Config, batches: int, model: LanguageModel) -> dict[str, Any]:
    """Prompts and the text so far are fed anew for every token."""
    ready = prepare(config)
    mechanism, wording = config.mechanism, template("pt", model.tokenizer)
    examples = config.prompt.public_examples or {}
    assert isinstance(examples, dict)
    sums = {(label, text): np.zeros(4) for label in TEXTS for text in TEXTS[label]}
    costs, contexts = [], []
    change = ContextChange(config.privacy.relation)
    for label, texts in TEXTS.items():
        for batch in [batch for batch in ready.records.batches if batch.label == label][:batches]:
            contexts.append(len(batch.contexts))
            for text in texts:
                shown = list(examples.get(label, ()))
                public = wording.tokens(label, shown)
                prompts = [
                    wording.tokens(label, [*shown, context[0].text]) for context in batch.contexts
                ]
                lead = model.tokenizer(f"{label}\n", add_special_tokens=False)["input_ids"]
                whole = model.tokenizer(f"{label}\n{text}\n```", add_special_tokens=False)[
                    "input_ids"
                ]
                whole = whole[: config.decoding.max_tokens]
                accountant = ExPostAccountant(mechanism, change)
                for position, token in enumerate(whole):
                    before = whole[:position]
                    raw = [
                        OwnCache(model, [p + before], 300).logits[0].numpy()
                        for p in [public, *prompts]
                    ]
                    everyone = np.array(raw[1:]).reshape(len(prompts), model.vocabulary)
                    part = (
                        mechanism.public_part(raw[0])
                        if mechanism.contribution.anchored or mechanism.support.size
                        else PublicPart()
                    )
                    support = np.arange(model.vocabulary) if part.support is None else part.support
                    counts = position >= len(lead)
                    sums[label, text][3] += counts
                    if token not in support:
                        continue
                    column = support.tolist().index(token)
                    arrays = aggregated(everyone, part, mechanism)
                    nats = log_softmax(mechanism.aggregate(arrays) / mechanism.temperature)[column]
                    alone = log_softmax(raw[0][support] / mechanism.temperature)[column]
                    accountant.charge(0, mechanism.reduced(arrays, column))
                    if counts:
                        sums[label, text] += [-nats, -alone, 1, 0]
                costs.append(accountant.epsilon)
    nats, alone, supported, tokens = np.array(list(sums.values())).T
    return {
        "nll": nats.sum() / supported.sum(),
        "public": alone.sum() / supported.sum(),
        "supported": supported.sum(),
        "tokens": tokens.sum(),
        "most_expensive": max(costs),
        "contexts": contexts,
    }


@pytest.mark.parametrize(("sections", "batches"), list(zip(CONFIGS, (1, 2, 1, 2, 1), strict=True)))
def test_a_loop_that_feeds_everything_anew_finds_the_same(
    make_config: MakeConfig, tiny: LanguageModel, sections: dict[str, Any], batches: int
) -> None:
    config = make_config(**{**sections, "decoding": {"max_tokens": 9}})
    told: list[tuple[int, int]] = []
    found = measure(config, "one", HeldOut(TEXTS, 0), batches, lambda *done: told.append(done))
    wanted = naive(config, batches, tiny)
    assert found.nll.mean == pytest.approx(wanted["nll"], abs=1e-4)
    assert found.public_nll.mean == pytest.approx(wanted["public"], abs=1e-4)
    assert found.gain.mean == pytest.approx(wanted["public"] - wanted["nll"], abs=1e-4)
    assert (found.tokens, found.supported) == (wanted["tokens"], wanted["supported"])
    assert (found.supported < found.tokens) == ("support" in sections["mechanism"])
    assert found.ex_post is not None
    assert found.ex_post.epsilon == pytest.approx(wanted["most_expensive"], rel=1e-3, abs=1e-4)
    assert (found.batches, found.fewest, found.most) == (
        len(wanted["contexts"]),
        min(wanted["contexts"]),
        max(wanted["contexts"]),
    )
    assert told[-1][0] == told[-1][1] == len(told) >= found.tokens


def test_a_means_epsilon_is_what_its_run_would_claim(make_config: MakeConfig) -> None:
    asked = {"mechanism": {**DIFFERENCES, **MEAN}, "claim": {"epsilon": 0.001, "delta": 1e-4}}
    config = make_config(**asked, **SHORT)
    found = measure(config, "one", HeldOut(TEXTS, 0), 1, quiet)
    accountant = ApproximateAccountant.of(config.mechanism, ContextChange("add_remove"))
    assert accountant is not None and found.approximate is not None
    assert found.approximate.delta == 1e-4
    assert found.batch_epsilon == pytest.approx(
        accountant.epsilon(8, 1e-4, "rdp").epsilon, abs=1e-4
    )
    assert measure(make_config(**SHORT), "one", HeldOut(TEXTS, 0), 1, quiet).approximate is None


def test_configs_without_a_key_have_the_same_batches(make_config: MakeConfig) -> None:
    config = make_config(**SHORT, batching={"key": None})
    first, second = (measure(config, "one", HeldOut(TEXTS, 0), 1, quiet) for _ in range(2))
    assert first == second


def test_errors_are_of_ratios_over_texts() -> None:
    found = per_token(np.array([2.0, 9.0, 4.0]), np.array([1.0, 3.0, 2.0]))
    residuals = [2 - 2.5, 9 - 7.5, 4 - 5]
    assert found.mean == 2.5
    assert found.error == pytest.approx(math.sqrt(3 / 2 * sum(r * r for r in residuals)) / 6)
    assert per_token(np.array([3.0]), np.array([2.0])).error is None


def test_continuations_are_as_the_template_shows_examples(tiny: LanguageModel) -> None:
    """Label's line, text, end mark: of the paper's templates and of one's own."""

    def found(
        name: str, own: str | None, end: str | None, most: int, one_line: bool = False
    ) -> tuple[str, int]:
        prompts = Prompts(
            tiny, template(name, tiny.tokenizer, own, end), ["sport"], 1, 96, one_line
        )
        tokens, lead = prompts.continuation("sport", "a\nb c", most)
        return tiny.tokenizer.decode(tokens), lead

    assert found("pt", None, None, 96) == ("sport\na\nb c\n```", len("sport\n"))
    assert found("pt", None, None, 8) == ("sport\na\n", len("sport\n"))
    assert found("own", "Of {label}:\n- {example}\n-", "\n", 96, True) == (" a b c\n", len(" "))
    assert found("own", "Of {label}:\n- {example}\n-", "\n", 96) == (" a\n", len(" "))
    text, lead = found("it", None, None, 96)
    assert text.startswith("a\nb c") and lead == 0


@pytest.fixture
def test_file(tmp_path: Path, canary: str) -> Path:
    """Held-out texts: one is a private record but for case, one a public example."""
    path = tmp_path / "held-out.csv"
    with path.open("w", newline="") as file:
        rows = [
            ["north", text]
            for text in ("rain", "fog", "hail", f"{canary.upper()}  3 lorem", "Snow until noon.")
        ]
        csv.writer(file).writerows([["label", "text"], *rows, ["south", "heat"]])
    return path


def test_texts_that_a_prompt_may_have_shown_are_left_out(
    make_config: MakeConfig, test_file: Path
) -> None:
    config = make_config(prompt={"public_examples": EXAMPLES})
    texts, left_out = held_out_texts(config, str(test_file), 2)
    assert left_out == 2
    assert len(texts["north"]) == 2 and set(texts["north"]) < {"rain", "fog", "hail"}
    assert texts["south"] == ("heat",)
    assert held_out_texts(make_config(), str(test_file), 2).texts["south"] == ("heat",)


def test_files_that_hold_no_held_out_texts(
    make_config: MakeConfig, data_file: Path, tmp_path: Path, test_file: Path
) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(data_file)
    copy = tmp_path / "copy.csv"
    copy.write_bytes(data_file.read_bytes())
    (tmp_path / "odd.csv").write_text("label,other\nnorth,x\n")
    for path, where, problem in (
        (data_file, "--test", "leads to the private records"),
        (link, "--test", "leads to the private records"),
        (data_file.parent, "--test", "leads to the private records"),
        (copy, "--test", "has no held-out text of the label 'north'"),
        (tmp_path / "none.csv", "--test", "nothing is there"),
        (tmp_path / "odd.csv", "column 'text'", "there is no such column"),
    ):
        with pytest.raises(InputError, match=problem) as refused:
            held_out_texts(make_config(), str(path), 1)
        assert where in str(refused.value)


def test_what_leaves_no_token_to_measure_is_refused(make_config: MakeConfig) -> None:
    for sections, problem in (
        (
            {**SHORT, "mechanism": {"support": {"kind": "public-top-k", "size": 1}}},
            "no token of the held-out texts",
        ),
        ({"decoding": {"max_tokens": 6}}, "this is 6, and what leads up to a text takes as many"),
    ):
        with pytest.raises(InputError, match=problem):
            measure(
                make_config(**sections),
                "one",
                HeldOut({"north": ("~",), "south": ("~",)}, 0),
                1,
                quiet,
            )


@pytest.fixture
def command(
    tmp_path: Path, settings: Callable[..., dict[str, Any]], test_file: Path
) -> Callable[..., int]:
    for name, sections in (("median", CONFIGS[0]), ("anchored", CONFIGS[3])):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings(**sections, **SHORT)))

    def run(
        *options: str, configs: tuple[str, ...] = ("median", "anchored"), test: Path = test_file
    ) -> int:
        paths = [str(tmp_path / f"{name}.yaml") for name in configs]
        try:
            main(["lab", "likelihood", *paths, "--test", str(test), "--texts", "2", *options])
        except SystemExit as left:
            return int(str(left.code or 0))
        return 0

    return run


def test_the_table_and_its_files_hold_no_text(
    command: Callable[..., int], tmp_path: Path, canary: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert command("--json", "--out", str(out)) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert [row["name"] for row in found["rows"]] == ["median", "anchored"]
    assert MechanismLikelihood.model_validate_json(json.dumps(found["rows"][1])).left_out == 2
    assert (found["rows"][0]["approximate"], found["rows"][0]["left_out"]) == (None, 1)
    assert {path.name for path in out.iterdir()} == {
        "likelihood.json",
        "likelihood.svg",
        "likelihood.png",
    }
    assert json.loads((out / "likelihood.json").read_text()) == found
    assert command() == 0
    shown_too = capsys.readouterr()
    assert "mean of anchored differences, divisor 4, top 30" in " ".join(shown_too.out.split())
    everything = (
        shown.out + shown.err + shown_too.out + shown_too.err + (out / "likelihood.svg").read_text()
    )
    assert not any(text in everything for text in (canary, canary.upper(), "hail", "Snow"))


def test_command_lines_that_cannot_be_used(
    command: Callable[..., int], tmp_path: Path, data_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.yaml").write_text("data: 3\n")
    (tmp_path / "file").write_text("")
    cases: list[tuple[Callable[[], int], str]] = [
        (lambda: command(configs=("median", "median")), "named twice"),
        (lambda: command(configs=("median", "broken")), "broken.yaml"),
        (lambda: command(configs=("none",)), "none.yaml"),
        (lambda: command(test=data_file), "--test: this leads to the private records"),
        (lambda: command("--out", str(tmp_path / "file" / "out")), "--out"),
        (lambda: command("--texts", "0"), "--texts"),
    ]
    for run, said in cases:
        assert run() == 2
        shown = capsys.readouterr()
        assert said in " ".join(shown.err.split())
        assert "Traceback" not in shown.err and not shown.out


def test_a_model_takes_the_place_of_the_configs_own(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent"
    assert command("--model", str(absent), configs=("median",)) == 2
    assert f"'{absent}'" in capsys.readouterr().err
