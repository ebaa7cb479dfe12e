"""Runs with the user's own template, with and without labels: record, replay, resume, compare."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.commands.cli import main
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.events import BatchDone, Event
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.partition import Context
from dpaudit.generation.prompts import Prompts, template
from dpaudit.generation.records import Record
from dpaudit.generation.replay import replay_run
from dpaudit.runs import InputError, RunReader
from tests.forging import list_digests
from tests.nesting import read_run, write_run
from tests.trials import trial

MakeConfig = Callable[..., Config]
MakeRun = Callable[..., Path]

LIST = "Notes of a day, one a line:\n- {example}\n- "
OWN: dict[str, Any] = {"template": None, "text": LIST, "end": "\n", "one_line": True}


class KilledError(Exception):
    """What a test kills a generation with."""


@pytest.fixture(scope="session")
def notes_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine texts of two lines each, and no labels; some look like placeholders."""
    path = tmp_path_factory.mktemp("notes") / "notes.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["note"])
        writer.writerows(
            [f"note {number} {{label}}\n\tand {{example}} {{0.__class__}}"] for number in range(9)
        )
    return path


@pytest.fixture(scope="session")
def unlabelled(notes_file: Path) -> dict[str, dict[str, Any]]:
    """The sections of a config without labels."""
    return {"data": {"path": str(notes_file), "text": "note", "labels": None}, "prompt": OWN}


def audited(run: Path, data: Path) -> dict[str, str]:
    """The outcome of each check, with a replay: nothing fails but that the run has a test seed."""
    found = audit_run(
        run,
        evidence=4,
        replay=replay_run(run, str(data), steps=4, left_out=2, trials=1),
        disclosed=trial(),
    )
    failed = {check.id: check.measured for check in found.checks if check.status == "fail"}
    assert failed.keys() == {"mechanism.randomness"}, failed
    return {check.id: check.status for check in found.checks}


def test_a_run_without_labels_is_whole(
    generated: MakeRun, unlabelled: dict[str, Any], notes_file: Path
) -> None:
    run = generated(**unlabelled)
    manifest = RunReader(run).manifest
    said = read_run(run)["prompt"]
    assert said == {
        "template": "own",
        "examples_per_context": 1,
        "digest": hashlib.sha256(f"own\0{LIST}\0\n".encode()).hexdigest(),
        "max_example_tokens": 32,
        "text": LIST,
        "end": "\n",
        "one_line": True,
        "public_examples": {},
        "drafted": False,
        "public": [],
    }
    assert (
        manifest.data.labels is None
        and manifest.batching.batches == 2
        and manifest.data.label is None
    )
    assert {sample.label for sample in RunReader(run).samples()} == {None}
    assert manifest.data.records == 9
    outcomes = audited(run, notes_file)
    assert {
        outcomes[id_] for id_ in ("release.selection", "partition.stable", "replay.logits")
    } == {"pass"}


def test_a_run_without_labels_has_slots_and_several_examples(
    generated: MakeRun, unlabelled: dict[str, Any], notes_file: Path
) -> None:
    run = generated(
        data=unlabelled["data"],
        prompt=OWN | {"examples_per_context": 2, "max_example_tokens": 12},
        batching={"slots": 4, "generate_per_label": 1},
        mechanism={"support": {"kind": "public-top-k", "size": 20}},
    )
    audited(run, notes_file)


def test_an_own_template_shows_labels(generated: MakeRun, data_file: Path) -> None:
    text = "A note from the {label}:\n{{{example}}}\n"
    run = generated(prompt={"template": None, "text": text, "end": "}"})
    audited(run, data_file)
    assert {sample.label for sample in RunReader(run).samples()} == {"north", "south"}


def kill(event: Event) -> None:
    """After the first batch."""
    if isinstance(event, BatchDone):
        raise KilledError


def test_a_run_that_was_interrupted_goes_on_and_equals_an_unbroken_one(
    tmp_path: Path, make_config: MakeConfig, generated: MakeRun, unlabelled: dict[str, Any]
) -> None:
    run = tmp_path / "run"
    with pytest.raises(KilledError):
        generate(make_config(**unlabelled), run, kill)
    generate(make_config(**unlabelled), run)
    whole = generated(**unlabelled)
    assert (run / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()
    audited(run, Path(unlabelled["data"]["path"]))


def test_a_run_does_not_go_on_with_another_template(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    pt: dict[str, Any] = {"template": "pt", "text": None, "end": None, "one_line": False}
    for begun, after, fields in (
        (OWN, {"text": LIST + "x"}, "prompt.digest, prompt.text"),
        (OWN, {"end": "###"}, "decoding.sequences, prompt.digest, prompt.end"),
        (OWN, {"end": None}, "decoding.sequences, prompt.digest, prompt.end"),
        (OWN, {"one_line": False}, "prompt.one_line"),
        (
            OWN,
            pt,
            "decoding.sequences, prompt.digest, prompt.end, prompt.one_line, prompt.template, "
            "prompt.text",
        ),
        (pt, {"one_line": True}, "prompt.one_line"),
        (
            pt,
            OWN,
            "decoding.sequences, prompt.digest, prompt.end, prompt.one_line, prompt.template, "
            "prompt.text",
        ),
    ):
        run = tmp_path / "run"
        with pytest.raises(KilledError):
            generate(make_config(prompt=begun), run, kill)
        with pytest.raises(InputError, match=f"started with another {fields}\\."):
            generate(make_config(prompt=begun | after), run)
        shutil.rmtree(run)


def test_records_are_put_on_one_line_one_by_one(tiny: LanguageModel) -> None:
    wording = template("own", tiny.tokenizer, "Notes:\n- {example}\n-", "\n")
    prompts = Prompts(tiny, wording, ("",), 2, 8, one_line=True)
    context: Context = (Record("", " a\n\n b\tc\u2028d"), Record("", "{example}\r\n"))
    (ids,) = prompts.of("", [context])
    # The first eight tokens of each are shown, of the text in one line.
    assert tiny.tokenizer.decode(ids) == "Notes:\n- a b c d\n- {example\n-"
    (alone,) = prompts.of("", [context[:1]])
    assert tiny.tokenizer.decode(alone) == "Notes:\n- a b c d\n-"
    assert tiny.tokenizer.decode(prompts.of("", [()])[0]) == "Notes:\n-"
    assert len(ids) < prompts.places


def test_a_template_that_the_model_has_no_room_for_is_told(
    tmp_path: Path, make_config: MakeConfig
) -> None:
    config = make_config(prompt={"template": None, "text": "x" * 400 + "\n{example}"})
    with pytest.raises(InputError, match=r"^prompt\.text: .* may take .* Shorten it"):
        generate(config, tmp_path / "run")


def test_a_public_report_leaves_the_template_out(
    own_run: MakeRun, unlabelled: dict[str, Any]
) -> None:
    run = own_run(**unlabelled)
    published = public_form(audit_run(run)).model_dump_json()
    prompt = json.loads(published)["run"]["settings"]["prompt"]
    told = {"template": "own", "max_example_tokens": 32, "end": "\n", "one_line": True}
    told["examples_per_context"] = 1
    assert {name: value for name, value in prompt.items() if value is not None} == told
    digest = RunReader(run).manifest.prompt.digest
    assert digest is not None
    assert "Notes of a day" not in published and digest[:12] not in published


def test_a_record_in_a_template_is_found(generated: MakeRun, data_file: Path, canary: str) -> None:
    run = generated(
        prompt={
            "template": None,
            "text": f"Such as this:\n  {canary} 3 lorem \n{{label}}: {{example}}\n",
        }
    )
    found = audit_run(run)
    (check,) = (check for check in found.checks if check.id == "disclosure.sensitive")
    assert (check.status, found.verdict) == ("fail", "fail")
    assert (check.code, check.values["field"]) == (
        "record",
        "prompt.text",
    ) and canary not in check.model_dump_json()


def test_clusters_need_no_labels(
    tmp_path: Path,
    settings: Callable[..., dict[str, Any]],
    unlabelled: dict[str, Any],
    encoder_folder: Path,
) -> None:
    public = tmp_path / "public.csv"
    public.write_text("text\n" + "".join(f"a public text {number}\n" for number in range(20)))
    clustering = {"method": "public-centers-rebalanced", "centers": 3, "keep": 2, "epsilon": 0.5}
    values = settings(
        **unlabelled,
        clustering=clustering | {"public": str(public), "embedding": str(encoder_folder)},
    )
    values["batching"] = {"batches_per_cluster": 2, "key": "0f" * 32}
    run = Path(generate(Config.model_validate(values), tmp_path / "run"))
    assert RunReader(run).manifest.batching.batches == 2
    audited(run, Path(values["data"]["path"]))


def test_commands_take_a_run_without_labels(
    own_run: MakeRun,
    unlabelled: dict[str, Any],
    notes_file: Path,
    encoder_folder: Path,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    run, other = (
        own_run(**unlabelled, decoding={"test_seed": None}),
        own_run(decoding={"test_seed": None}),
    )
    html, real = tmp_path / "report", ["--reference", notes_file, "--embedding", encoder_folder]
    for arguments in (
        ["verify", run],
        ["report", run, "--data", notes_file, "--evidence", "4", "--out", html],
        ["inspect", run, "--batch", "0"],
        ["compare", run, other, "--out", tmp_path / "comparison"],
        ["evaluate", run, *real],
    ):
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
            raise SystemExit(0)
        out, err = capfd.readouterr()
        assert left.value.code == 0, (arguments, out, err)
    assert "No accuracy: it is of classifiers of labels, and the run has none." in out + err
    with pytest.raises(SystemExit) as left:
        main(["evaluate", *map(str, [run, *real, "--label", "note"])])
    said = capfd.readouterr().err
    assert (
        left.value.code == 2
        and "--label: " in said
        and "the value is 'note'" in said
        and "has no labels." in said
    )


def test_a_replay_refuses_templates_that_cannot_be(
    own_run: MakeRun, unlabelled: dict[str, Any], notes_file: Path
) -> None:
    run = own_run(**unlabelled)
    whole = read_run(run)
    for fields, said in (
        ({"text": LIST + "{label}"}, "data.labels"),
        ({"text": "{example}"}, "prompt.text"),
        ({"text": "a{0}\n{example}"}, "prompt.text"),
        ({"text": "\ud800\n{example}"}, "run.json"),
        ({"text": LIST + "."}, "prompt.digest"),
        ({"end": "."}, "prompt.digest"),
        ({"end": "\x07"}, "prompt.end"),
        ({"end": r"\n"}, "prompt.end"),
        ({"text": None, "end": None}, "prompt.template"),
        ({"text": None, "end": None, "template": "pt"}, "data.labels"),
        ({"template": "pt"}, "prompt.template"),
    ):
        manifest = whole | {"prompt": whole["prompt"] | fields}
        write_run(run, manifest)
        list_digests(run)
        with pytest.raises(InputError, match=said):
            replay_run(run, str(notes_file), steps=1, left_out=0, trials=0)
