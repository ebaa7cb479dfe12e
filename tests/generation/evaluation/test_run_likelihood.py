"""Held-out likelihood of a run: against a naive loop, the command of configs, and refusals."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.commands.cli import main
from dpaudit.generation import passes
from dpaudit.generation.config import Config
from dpaudit.generation.evaluation.likelihood import measure_run
from dpaudit.generation.evaluation.texts import RealData
from dpaudit.generation.experiments.likelihoods import held_out_texts, measure
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import OwnCache
from dpaudit.generation.prompts import template
from dpaudit.results.quality import HeldOutLikelihood, Quality
from dpaudit.runs import InputError, KeyedHash, RunReader

MakeRun = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]
HELD_OUT = [
    ("north", "rain"),
    ("north", "fog"),
    ("north", "hail"),
    ("south", "heat"),
    ("south", "a dry noon"),
]
PUBLIC = {"north": ["Snow until noon."]}
LONGER = {"decoding": {"max_tokens": 14}}
MEAN = {"aggregator": "mean", "divisor": 4.0}
ANCHORED = {
    "contribution": "differences",
    "clip": 0.5,
    "support": {"kind": "public-top-k", "size": 30},
}
RUNS: list[dict[str, Any]] = [
    LONGER,
    {**LONGER, "mechanism": {**MEAN, "temperature": 1.5}},
    {**LONGER, "mechanism": {**MEAN, **ANCHORED}, "prompt": {"public_examples": PUBLIC}},
    {**LONGER, "prompt": {"examples_per_context": 2}, "batching": {"cells": 5}},
]


def write(path: Path, rows: Iterable[tuple[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *rows])
    return path


@pytest.fixture
def held_out(tmp_path: Path, canary: str) -> Path:
    """Held-out texts: one is a private record, in another letter case, and one a public example."""
    return write(
        tmp_path / "held-out.csv",
        [*HELD_OUT, ("south", f"{canary.upper()} 3  lorem"), ("north", "snow UNTIL noon.")],
    )


def measured(run: Path, data: Path, test: Path, most: int = 2) -> HeldOutLikelihood:
    return measure_run(RunReader(run), RealData(str(data), str(test)), most, lambda *_: None)


@pytest.mark.parametrize("sections", RUNS)
def test_the_command_of_configs_finds_the_same_in_a_runs_batches(
    generated: MakeRun,
    make_config: Callable[..., Config],
    data_file: Path,
    held_out: Path,
    sections: dict[str, Any],
) -> None:
    found = measured(generated(**sections), data_file, held_out)
    config = make_config(**sections)
    texts = held_out_texts(config, str(held_out), 2)
    wanted = measure(config, "", texts, 1, lambda *_: None)
    for name in ("tokens", "supported", "nll", "public_nll", "gain", "left_out"):
        assert getattr(found, name) == getattr(wanted, name)
    assert (found.texts.texts, found.model.max_tokens) == (wanted.texts, 14) == (4, 14)
    assert found.left_out == (2 if "public_examples" in sections.get("prompt", {}) else 1)


def test_a_runs_own_contexts_make_the_aggregate(
    generated: MakeRun, data_file: Path, tiny: LanguageModel, tmp_path: Path
) -> None:
    """A mean of clipped logits by hand.

    Contexts are read off the run's assignment, and every token is fed anew.
    """
    run, clip, divisor, temperature = generated(**RUNS[1]), 4.0, 4.0, 1.5
    reader, wording = RunReader(run), template("pt", tiny.tokenizer)
    with data_file.open(newline="") as file:
        records = [(row["label"], row["text"]) for row in csv.DictReader(file)]
    hashing = KeyedHash(bytes.fromhex(reader.manifest.batching.key or ""))
    placed = {assigned.digest: assigned.batch for assigned in reader.assignment()}
    shown = {
        batch: [text for label, text in records if placed[hashing.digest(label, text)] == batch]
        for batch in (0, 2)
    }
    test = write(tmp_path / "two.csv", [("north", "fog"), ("south", "heat")])
    nats, alone = [], []
    for batch, label, text in ((0, "north", "fog"), (2, "south", "heat")):
        lead = tiny.tokenizer(f"{label}\n", add_special_tokens=False)["input_ids"]
        tokens = tiny.tokenizer(f"{label}\n{text}\n```", add_special_tokens=False)["input_ids"][:14]
        prompts = [
            wording.tokens(label, examples) for examples in ([], *([each] for each in shown[batch]))
        ]
        for position in range(len(lead), len(tokens)):
            fed = [prompt + tokens[:position] for prompt in prompts]
            public, *private = (
                OwnCache(tiny, [each], 300).logits[0].double().numpy() for each in fed
            )
            clipped = [np.clip(row - row.max() + clip, -clip, clip) for row in private]
            aggregate = np.sum([*clipped, np.zeros_like(public)], axis=0) / divisor
            for scores, sums in ((aggregate, nats), (public, alone)):
                scaled = scores / temperature
                sums.append(
                    np.log(np.exp(scaled - scaled.max()).sum())
                    + scaled.max()
                    - scaled[tokens[position]]
                )
    found = measured(run, data_file, test)
    assert found.tokens == found.supported == len(nats)
    assert found.nll.mean == pytest.approx(np.mean(nats), abs=1e-4)
    assert found.public_nll.mean == pytest.approx(np.mean(alone), abs=1e-4)
    assert (
        found.added.difference
        == found.gain.mean
        == pytest.approx(np.mean(alone) - np.mean(nats), abs=1e-4)
    )
    assert (found.score.mean, found.public.mean) == (-found.nll.mean, -found.public_nll.mean)


@pytest.fixture
def refused(tmp_path: Path, data_file: Path, held_out: Path) -> Callable[..., str]:
    """Refusals of unusable runs, data and held-out texts: where, problem, remedy, but no text."""

    def told(run: Path, data: Path = data_file, test: Path | None = held_out) -> str:
        with pytest.raises(InputError) as error:
            measure_run(
                RunReader(run),
                RealData(str(data), None if test is None else str(test)),
                1,
                lambda *_: None,
            )
        assert "canary" not in str(error.value).lower() and "lorem" not in str(error.value)
        return str(error.value)

    return told


def test_what_is_not_the_runs_own_is_named(
    refused: Callable[..., str],
    own_run: MakeRun,
    data_file: Path,
    tmp_path: Path,
    tiny_folder: Path,
) -> None:
    run, other = own_run(**LONGER), tmp_path / "other.csv"
    other.write_text(data_file.read_text() + "south,one more\n")
    said = refused(run, data=other)
    assert (
        said.startswith("--likelihood: ")
        and "the run: 11 records" in said
        and "--reference" in said
    )
    assert "--test" in refused(run, test=None)
    everything = run / "run.json"
    whole = everything.read_text()
    for change, problem in (
        (("model", "digest", "0" * 64), "not the model of the run"),
        (("model", "digest", None), "does not say which model"),
        (("prompt", "digest", "0" * 64), "another digest than this version's"),
        (("batching", "key", None), "no key of"),
        (("data", "digest", None), "does not say which data"),
    ):
        fields = json.loads(whole)
        fields["made"][change[0]][change[1]] = change[2]
        everything.write_text(json.dumps(fields))
        assert problem in refused(run)
    everything.write_text(whole)
    lines = (run / "assignment").read_text().splitlines()
    digest, batch, slot = lines[0].split("\t")
    (run / "assignment").write_text(
        "\n".join([f"{digest}\t{(int(batch) + 1) % 2}\t{slot}", *lines[1:], ""])
    )
    said = refused(run)
    assert "line 1 of assignment" in said and "what the rule" in said


def test_texts_that_cannot_be_measured_are_named(
    refused: Callable[..., str],
    generated: MakeRun,
    data_file: Path,
    tmp_path: Path,
    canary: str,
    tiny: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    tried_anew: None,
) -> None:
    run = generated(**LONGER)
    shouted = write(
        tmp_path / "shouted.csv", [("north", f"{canary} 3 LOREM".upper()), ("south", "heat")]
    )
    for test in (data_file, shouted):
        assert refused(run, test=test).startswith("--test: ") and "no held-out text" in refused(
            run, test=test
        )
    assert "--likelihood: decoding.max_tokens" in refused(generated(decoding={"max_tokens": 6}))
    own = passes.forward

    def silent(*arguments: Any, **named: Any) -> Any:
        scores, cache = own(*arguments, **named)
        scores = scores.clone()
        scores[:, tiny.tokenizer("ea", add_special_tokens=False)["input_ids"]] = -np.inf
        return scores, cache

    monkeypatch.setattr(passes, "forward", silent)
    assert "the model rules out" in refused(run)


def test_records_that_no_batch_shows_are_not_held_out(
    generated: MakeRun, data_file: Path, tmp_path: Path, canary: str
) -> None:
    run = generated(**LONGER, batching={"generate_per_label": 1})
    with data_file.open(newline="") as file:
        records = [(row["label"], row["text"]) for row in csv.DictReader(file)]
    found = measured(run, data_file, write(tmp_path / "most.csv", [*records, *HELD_OUT]), 100)
    assert (found.texts.texts, found.left_out) == (len(HELD_OUT), len(records))


@pytest.fixture
def command(
    tmp_path: Path,
    encoder_folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    """Run `dpaudit`: exit code, stdout, stderr, none of which quotes a record or held-out text."""
    monkeypatch.setenv("COLUMNS", "200")

    def called(name: str, *options: object) -> tuple[int, str, str]:
        arguments = [name, *map(str, options)]
        if name == "evaluate":
            arguments += [
                "--embedding",
                str(encoder_folder),
                "--seeds",
                "1",
                "--initialisations",
                "1",
            ]
        with pytest.raises(SystemExit) as left:
            main(arguments)
            raise SystemExit(0)
        out, err = capfd.readouterr()
        assert not any(text in out + err for text in ("canary", "lorem", "dry noon", "Traceback"))
        return int(str(left.value.code or 0)), out, err

    return called


def test_an_evaluation_says_what_the_records_added_without_a_baseline(
    command: Command, own_run: MakeRun, data_file: Path, held_out: Path, tmp_path: Path
) -> None:
    run = own_run(**LONGER)
    asked = ("evaluate", run, "--reference", data_file, "--likelihood", 2)
    code, out, err = command(*asked)
    assert (code, out) == (2, "") and "--test" in err and not (run / "report").exists()
    code, out, err = command(*asked, "--test", held_out)
    assert code == 0 and "Held-out likelihood, nats" in out and "records added" in out, err
    content = (run / "report" / "evaluation.json").read_text()
    found = Quality.model_validate_json(content)
    assert found.baseline is None and found.likelihood == measured(run, data_file, held_out)
    assert not any(text in content for text in ("canary", "lorem", "dry noon"))
    figure = f"{-found.likelihood.nll.mean:.3f}"
    assert figure in command("report", run)[1]
    texts = [(run / "report" / name).read_text() for name in ("report.html", "report.md")]
    assert all(figure in text and "Held-out likelihood, nats" in text for text in texts)
    reported = json.loads((run / "report" / "report.json").read_text())["quality"]["likelihood"]
    assert (
        reported["gain"]["mean"] == found.likelihood.gain.mean
        and reported["texts"]["digest"] is None
    )
    other = shutil.copytree(run, tmp_path / "other")
    page = tmp_path / "page.html"
    command("compare", run, other, "--out", page)
    assert "nats a token, 4 test texts" in page.read_text()
    assert "Added by records" in page.read_text()
    command("report", run, "--audience", "public")
    public = "".join(path.read_text() for path in (run / "report" / "public").iterdir())
    assert (
        figure not in public and "ikelihood, nats" not in public and "records added" not in public
    )
    tampered = json.loads(content)
    tampered["likelihood"]["gain"]["mean"] += 0.01
    (run / "report" / "evaluation.json").write_text(json.dumps(tampered))
    code, out, err = command("report", run)
    assert "no evaluation that" in err and figure not in out
