"""`dpaudit replay`, and replays of `report` and `verify`: arguments, exit codes, what is loaded."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpaudit.commands.cli import main
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.replay import LEFT_OUT, STEPS, TRIALS
from dpaudit.results.replay import Replay, ReplayedStep
from dpaudit.runs import RunReader

pytestmark = pytest.mark.usefixtures("empty_figures")
TEXT = "a-secret-text-of-someone"
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dpaudit(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the entry point in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
            raise SystemExit(0)  # --help only returns
        out, err = capfd.readouterr()
        assert TEXT not in out + err
        assert isinstance(left.value.code, int)
        return left.value.code, out, err

    return run


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that commands name: a path that is not there is refused before any replay."""
    monkeypatch.chdir(tmp_path)
    for name in ("x.csv", "x", "x y.csv"):
        (tmp_path / name).touch()


@dataclass
class Asked:
    """Stands in for the replay: keeps what it was asked, and finds what it is told to."""

    step: ReplayedStep
    amounts: dict[str, Any]

    def __call__(self, run: Path, data: str, **amounts: Any) -> Replay:
        amounts.pop("progress")
        self.amounts = {"data": data, **amounts}
        return Replay(None, None, None, None, (self.step,), (), None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    stand_in = Asked(ReplayedStep(0, 0, 0.0, 1.0), {})
    monkeypatch.setattr("dpaudit.generation.replay.replay_run", stand_in)
    return stand_in


def checks(out: str) -> dict[str, str]:
    return {check["id"]: check["status"] for check in json.loads(out)["checks"]}


def test_amounts_are_passed_on_where_they_are_given(
    dpaudit: Command, make_run: Any, asked: Asked, tmp_path: Path
) -> None:
    run = make_run().path
    claim = RunReader(run).manifest.claim
    assert claim is not None
    dpaudit("replay", run, "--data", "x.csv")
    assert asked.amounts == {"data": "x.csv", "model": None, "claim": claim, "chosen": ()}
    dpaudit(
        "replay", run, "--data", "x", "--steps", 3, "--left-out", 0, "--trials", 4, "--model", "m"
    )
    amounts = {"chosen": (), "steps": 3, "left_out": 0, "trials": 4}
    assert asked.amounts == {"data": "x", "model": "m", "claim": claim, **amounts}
    dpaudit("replay", run, "--data", "x", "--step", "0:7", "--step", "1:0")
    assert asked.amounts["chosen"] == ((0, 7), (1, 0))
    # The attack is held against the claim that is asked about.
    for command in (["verify"], ["report", "--out", tmp_path / "report"]):
        dpaudit(*command, run, "--data", "x", "--delta", 0.25, "--relation", "replace")
        other = claim.model_copy(update={"delta": 0.25, "relation": "replace"})
        assert asked.amounts == {"data": "x", "model": None, "claim": other}


def test_the_help_tells_the_defaults(dpaudit: Command) -> None:
    out = " ".join(dpaudit("replay", "--help")[1].split())
    for words, default in (
        ("random steps", STEPS),
        ("random contexts", LEFT_OUT),
        ("without it", TRIALS),
    ):
        assert f"{words} [default: {default}]" in out


def test_every_command_judges_what_the_replay_found(
    dpaudit: Command, make_run: Any, asked: Asked, tmp_path: Path
) -> None:
    run = make_run().path
    for found, status in (
        (ReplayedStep(0, 0, 0.0, 1.0), "pass"),
        (ReplayedStep(0, 0, 2.0, 1.0), "fail"),
    ):
        asked.step = found
        for command in (["replay"], ["verify"], ["report", "--out", tmp_path / "report"]):
            code, out, _ = dpaudit(*command, run, "--data", "x.csv", "--json")
            assert checks(out)["replay.logits"] == status
            # A replay asks for every check; the others pass at the level of the record.
            assert code == (1 if status == "fail" or command == ["replay"] else 0)
            assert json.loads(out)["evidence"] == (4 if command == ["replay"] else 2)


def test_a_log_has_a_line_for_each_phase_of_a_replay(
    dpaudit: Command, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run().path

    def replay(*_: object, progress: Callable[[int, int], None], **__: object) -> Replay:
        for done in range(1, 8):
            progress(done, 7)
        return Replay(None, None, None, None, (ReplayedStep(0, 0, 0.0, 1.0),), (), None)

    monkeypatch.setattr("dpaudit.generation.replay.replay_run", replay)
    begun = [
        "Reading the data and loading the model",
        "Replaying 7 steps; Ctrl-C keeps those that are done",
        "Comparing the texts with the data",
        "Auditing the run with what its replay found",
    ]
    assert dpaudit("report", run, "--data", "x.csv")[2].splitlines()[:4] == begun
    lines = dpaudit("replay", run, "--data", "x y.csv", "--model", "m")[2].splitlines()
    following = f"Next: dpaudit report {run} --data 'x y.csv' --model m --evidence 4"
    assert lines[:5] == [*begun, following]
    assert dpaudit("verify", run, "--data", "x.csv", "--quiet")[2] == ""


def test_the_evidence_level_is_passed_on(dpaudit: Command, make_run: Any, tmp_path: Path) -> None:
    run = make_run().path
    for command in (["verify"], ["report", "--out", tmp_path / "report"]):
        for level, code in ((0, 0), (2, 0), (3, 1)):
            assert dpaudit(*command, run, "--evidence", level)[0] == code
        assert dpaudit(*command, run, "--evidence", 5)[0] == 2


def test_a_command_line_that_cannot_be_meant_is_refused(dpaudit: Command, make_run: Any) -> None:
    run = make_run().path
    for arguments, said in (
        (["replay", run], "--data"),
        (["replay", run, "--data", ""], "empty"),
        (["replay", run, "--data", "x", "--step", "7"], "BATCH:POSITION"),
        (["replay", run, "--data", "x", "--step", "0:-1"], "BATCH:POSITION"),
        (["replay", run, "--data", "x", "--step", "0:1", "--steps", "2"], "--steps or --step"),
        (["replay", run, "--data", "x", "--trials", "-1"], "--trials"),
    ):
        code, out, err = dpaudit(*arguments)
        assert (code, out) == (2, "")
        assert said in err


def test_an_unreadable_run_is_told_before_torch_is_loaded(tmp_path: Path) -> None:
    script = f"""
import sys
from dpaudit.commands.cli import main
for command in ("replay", "report", "verify"):
    try:
        main([command, {str(tmp_path / "absent")!r}, "--data", "x.csv"])
    except SystemExit as left:
        assert left.code == 2
    assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stderr.count("no such directory") == 3


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> tuple[Path, Path]:
    """A run of the tiny model with one batch of three contexts and two tokens, and its data."""
    folder = tmp_path_factory.mktemp("replayed")
    data = folder / "records.csv"
    # Prompts show the first tokens alone, and texts that begin alike would cost nothing.
    data.write_text(
        "label,text\n" + "".join(f"north,{word} of {TEXT}\n" for word in ("Sport", "7", "def"))
    )
    config = Config.model_validate(
        {
            "data": {"path": str(data), "labels": ["north"]},
            "model": {"name": str(tiny_folder), "device": "cpu"},
            "prompt": {"max_example_tokens": 8},
            "batching": {"batches_per_label": 1},
            "mechanism": {
                "contribution": {"kind": "logits", "clip": 8.0},
                "aggregator": {"kind": "median"},
                "temperature": 1.0,
                "support": {"kind": "public-top-k", "size": 64},
            },
            "decoding": {"max_tokens": 2},
            "chosen_from": {"batching": "public", "settings": "public"},
        }
    )
    return generate(config, folder / "run"), data


AMOUNTS = ("--steps", 2, "--left-out", 1, "--trials", 1)


def test_a_clean_run_passes_with_every_check_made(
    dpaudit: Command, tiny_run: tuple[Path, Path]
) -> None:
    run, data = tiny_run
    code, out, err = dpaudit("replay", run, "--data", data, *AMOUNTS, "--json", "--quiet")
    result = json.loads(out)
    assert (code, err, result["verdict"]) == (0, "", "pass")
    found = checks(out)
    for check in (
        "replay.logits",
        "neighbors.regenerated",
        "replay.lower-bound",
        "partition.stable",
    ):
        assert found[check] == "pass"


def test_other_data_another_model_and_steps_that_are_not_there_exit_with_2(
    dpaudit: Command, tiny_run: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = tiny_run
    more = tmp_path / "more.csv"
    more.write_text(data.read_text() + f"north,{TEXT} more\n")
    (tmp_path / "config.json").write_text("{}")
    digest = RunReader(run).manifest.model.digest
    assert digest is not None
    for arguments, said in (
        (("--data", more), "this is not the data of the run: 4 records"),
        (("--data", data, "--step", "0:99"), "there is no step 99 of batch 0"),
        (("--data", data, "--model", tmp_path), "this is not the model of the run"),
    ):
        code, out, err = dpaudit("replay", run, *arguments)
        assert (code, out) == (2, "")
        assert said in err
    assert digest[:12] in err


def test_a_changed_assignment_fails(
    dpaudit: Command, tiny_run: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = tiny_run
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    lines = (copy / "assignment").read_text().splitlines()
    lines[1] = lines[1].replace("\t0\t", "\t-\t")
    (copy / "assignment").write_text("\n".join(lines) + "\n")
    code, out, _ = dpaudit(
        "replay", copy, "--data", data, "--step", "0:0", "--left-out", 0, "--trials", 0, "--json"
    )
    assert code == 1
    assert checks(out)["partition.stable"] == "fail"
