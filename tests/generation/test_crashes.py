"""Processes that are killed at any moment, and two that want the same run directory."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from benchmarks.soak import BATCHES, LABELS, TOKENS, BrokenError, Run, soak, soak_ray, write_config
from dpaudit.commands.cli import main
from dpaudit.runs import RunReader
from tests.forging import unfinish

PATIENCE = 120


def test_runs_survive_being_killed_at_random_moments(tmp_path: Path) -> None:
    said: list[str] = []
    runs = soak(tmp_path, 1, random.Random(0), said.append)
    assert sum("killed" in line for line in said) == 1
    assert sum("proved" in line for line in said) == runs + 1


@pytest.mark.slow
def test_runs_survive_their_ray_workers_being_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # by default its workers wait for all other tests
    monkeypatch.setenv("RAY_worker_niceness", "0")
    said: list[str] = []
    soak_ray(tmp_path, 2, random.Random(0), said.append)
    assert said[-1].endswith("proved after 2 kills")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("finished")
    run = Run(write_config(folder), folder / "run")
    assert run.live(None) == (True, False)
    return run


def leave_a_partial_file(path: Path) -> None:
    (path / "steps" / "00000000.zip.part").touch()


def lose_a_batch(path: Path) -> None:
    (path / "steps" / "00000001.zip").unlink()


def release_a_batch_twice(path: Path) -> None:
    lines = (path / "samples.jsonl").read_text().splitlines(keepends=True)
    (path / "samples.jsonl").write_text("".join([*lines, lines[0]]))


def change_a_byte(path: Path) -> None:
    (path / "clusters").write_bytes((path / "clusters").read_bytes() + b" ")


@pytest.mark.parametrize(
    "damage", [leave_a_partial_file, lose_a_batch, release_a_batch_twice, change_a_byte]
)
def test_the_soak_notices_what_a_crash_could_do(
    finished: Run, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    copy = Run(
        finished.config,
        Path(shutil.copytree(finished.path, tmp_path / "run")),
        dict(finished.digests),
    )
    copy.prove()
    damage(copy.path)
    with pytest.raises(BrokenError):
        copy.prove()


def test_what_a_killed_writer_left_beside_the_batches_is_dropped(
    finished: Run, tmp_path: Path
) -> None:
    killed_at_the_end = Run(finished.config, Path(shutil.copytree(finished.path, tmp_path / "end")))
    unfinish(killed_at_the_end.path)
    for name in ("hashes", "samples.jsonl"):
        (killed_at_the_end.path / f"{name}.0123abcd.part").touch()
    killed_at_the_start = Run(finished.config, tmp_path / "start")
    (killed_at_the_start.path / "steps").mkdir(parents=True)
    (killed_at_the_start.path / "tokenizer.json.0123abcd.part").touch()
    for run in (killed_at_the_end, killed_at_the_start):
        assert run.live(None) == (True, False)
        run.prove()


def test_the_soak_notices_a_batch_that_is_written_again(tmp_path: Path) -> None:
    run = Run(write_config(tmp_path), tmp_path / "run", {"00000000.zip": "of an earlier life"})
    with pytest.raises(BrokenError, match="written again"):
        run.live(None)


@pytest.fixture
def first_writer(tmp_path: Path) -> Iterator[tuple[Run, ForkServerProcess]]:
    """`dpaudit generate`, stopped in the middle of its run so that it lives as long as the test."""
    run = Run(write_config(tmp_path), tmp_path / "run")
    process = run.start()
    deadline = time.monotonic() + PATIENCE
    while (
        not (run.path / "run.json").exists() and process.is_alive() and time.monotonic() < deadline
    ):
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGSTOP)
    yield run, process
    process.kill()
    process.join()


def test_a_second_writer_is_refused_while_the_first_lives(
    first_writer: tuple[Run, ForkServerProcess], capfd: pytest.CaptureFixture[str]
) -> None:
    run, process = first_writer
    with pytest.raises(SystemExit) as left:
        main(["generate", str(run.config), "--out", str(run.path)])
    said = capfd.readouterr().err
    assert left.value.code == 2
    assert "another process is" in said
    assert "Traceback" not in said
    os.kill(process.pid, signal.SIGCONT)
    process.join(PATIENCE)
    assert process.exitcode == 0
    reader = RunReader(run.path)
    assert len(reader.batches) == BATCHES * len(LABELS)
    assert all(len(sample.tokens) <= TOKENS for sample in reader.samples())
