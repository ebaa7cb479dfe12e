"""`python -m benchmarks.soak`: kill -9 generating processes, resume them, prove nothing is lost.

Each run is started by `dpaudit generate`, killed at a moment drawn from its whole duration, started
again, and so on until it ends. Then every batch must be there exactly once and be the one that was
there after the first kill that it survived, every digest must be right, no other file may be left,
and the audit must pass.

With `--engine ray` the workers of a Ray cluster are killed instead, and the process that asks them
must end by itself.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import click
import psutil
import yaml

from benchmarks.tiny import save_tiny_model
from dpaudit.auditing.run import audit_run
from dpaudit.runs import RunReader
from dpaudit.runs.reader import read_tokenizer

LABELS = ("north", "south")
#: Batches of each label, in all rounds.
BATCHES, ROUNDS = 6, 2
TOKENS = 24
RECORDS = 60
#: Ray workers that are killed in one run: fewer than may die over one task.
WORKERS_A_RUN = 3
#: The longest time from a worker's start to its death, in seconds: more than it takes to load and
#: generate.
LONGEST_PAUSE = 8.0
#: What Ray calls the processes of our actors.
_WORKER = "ray::Worker"
#: Of a forward pass: room for a batch or two, so that batches end at many moments.
ROWS = 8
#: All that a finished run holds beside its batches.
FILES = {"run.json", "samples.jsonl", "assignment", "clusters", "tokenizer.json", "hashes"}
#: What a process imports first, once for all of them, so that a life is spent on generating.
PRELOADED = ["dpaudit.commands.cli", "dpaudit.generation.algorithm"]

Tell = Callable[[str], None]


class BrokenError(Exception):
    """A run did not survive its kills."""


@dataclass
class Run:
    """One run directory over all its lives.

    Attributes:
        digests: of every batch file that was there after a kill.
        options: more options of `dpaudit generate`.
    """

    config: Path
    path: Path
    digests: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def start(self) -> ForkServerProcess:
        """Start `dpaudit generate` in a process of its own."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        process = context.Process(
            target=_generate, args=(self.config, self.path, self._log, self.options)
        )
        process.start()
        return process

    def live(self, seconds: float | None) -> tuple[bool, bool]:
        """Generate until the end, or until killed after so many seconds.

        Returns:
            Whether the run is finished, and whether the process was killed.
        """
        process = self.start()
        process.join(seconds)
        killed = process.is_alive()
        if killed:
            process.kill()  # SIGKILL
            process.join()
        else:
            self._require_success(process)
        for name, digest in self._batches().items():
            if self.digests.setdefault(name, digest) != digest:
                raise BrokenError(f"{name} was whole after a kill, and was written again")
        # A process may be killed when its run is finished and it has nothing left to do but to say
        # so.
        return not killed or (self.path / "hashes").exists(), killed

    def live_on_ray(self, pauses: Iterable[float]) -> int:
        """Generate until the end, and kill a Ray worker after each of these pauses, in seconds.

        Returns:
            How many workers were killed.
        """
        process, killed = self.start(), 0
        for seconds in pauses:
            while not (workers := ray_workers(process.pid)) and process.is_alive():
                time.sleep(0.05)
            process.join(seconds)
            with suppress(psutil.NoSuchProcess):  # it may have ended meanwhile
                for worker in workers[:1] if process.is_alive() else []:
                    worker.kill()
                    worker.wait()
                    killed += 1
        process.join()
        self._require_success(process)
        self.digests = self._batches()
        return killed

    def _require_success(self, process: ForkServerProcess) -> None:
        if process.exitcode:
            raise BrokenError(
                f"dpaudit generate ended with code {process.exitcode}: {self._log.read_text()}"
            )

    @property
    def _log(self) -> Path:
        return self.path.with_suffix(".log")

    @property
    def whole(self) -> int:
        """Batches that are whole on disk."""
        return len(self._batches())

    def prove(self) -> None:
        """Require that the finished run is whole, and holds nothing else.

        Raises:
            BrokenError: it is not.
        """
        wanted = [f"{batch:08d}.zip" for batch in range(BATCHES * len(LABELS))]
        found = sorted(
            path.relative_to(self.path).as_posix()
            for path in self.path.rglob("*")
            if not path.is_dir()
        )
        if found != sorted([*FILES, *(f"steps/{name}" for name in wanted)]):
            raise BrokenError(f"files are missing or left over: {found}")
        if sorted(self.digests) != wanted:
            raise BrokenError(f"batches are missing: {sorted(self.digests)}")
        # of bytes: texts hold line breaks of Unicode
        samples = (self.path / "samples.jsonl").read_bytes().splitlines()
        if [json.loads(line)["id"] for line in samples] != list(range(len(wanted))):
            raise BrokenError("samples.jsonl does not hold every batch exactly once")
        recorded = RunReader(self.path).hashes()
        if recorded.digests != {
            name: _digest(self.path / name) for name in found if name != "hashes"
        }:
            raise BrokenError("a digest in `hashes` is wrong")
        own = frozenset({read_tokenizer(self.path)})  # of the tiny model, which no audit knows
        result = audit_run(self.path, tokenizers=own)
        if result.verdict != "pass":
            failures = [
                f"{check.id}: {check.detail}"
                for check in result.checks
                if check.status in ("fail", "error")
            ]
            raise BrokenError(f"the audit says {result.verdict}: {failures}")

    def _batches(self) -> dict[str, str]:
        """Name -> SHA-256 of every batch file under its final name."""
        return {path.name: _digest(path) for path in sorted((self.path / "steps").glob("*.zip"))}


def soak(folder: Path, kills: int, moments: random.Random, tell: Tell) -> int:
    """Kill `kills` times, over as many runs as it takes, and prove each run.

    Args:
        folder: where the model, the data and the runs go; a run that is proved is deleted.
        kills: how many.
        moments: the source of the moments.
        tell: told of every life.

    Returns:
        The number of runs.

    Raises:
        BrokenError: a run did not survive.
    """
    config = write_config(folder)
    # starts the server of processes too
    _life_after_life(Run(config, folder / "first"), [None], tell)
    start = time.perf_counter()
    Run(config, folder / "second").live(None)
    duration = time.perf_counter() - start
    tell(f"an undisturbed run takes {duration:.2f} s")
    done = runs = 0
    while done < kills:
        lives = [*(moments.uniform(0, duration) for _ in range(kills - done)), None]
        done += _life_after_life(Run(config, folder / f"run{runs}"), lives, tell)
        runs += 1
    return runs


def soak_ray(folder: Path, kills: int, moments: random.Random, tell: Tell) -> int:
    """Kill this many Ray workers, over as many runs as needed, and prove each run.

    See `soak`.
    """
    config = write_config(folder)
    done = runs = 0
    while done < kills:
        run = Run(config, folder / f"run{runs}", options=("--engine", "ray", "--workers", "2"))
        pauses = [
            moments.uniform(0, LONGEST_PAUSE) for _ in range(min(WORKERS_A_RUN, kills - done))
        ]
        killed = run.live_on_ray(pauses)
        _prove(run, killed, tell)
        done, runs = done + killed, runs + 1
    return runs


def _life_after_life(run: Run, lives: Sequence[float | None], tell: Tell) -> int:
    """Generate a run, killed after each of these times until it is finished; return the kills."""
    name, kills = run.path.name, 0
    for seconds in lives:
        finished, killed = run.live(seconds)
        kills += killed
        if killed:
            tell(
                f"{name}: killed after {seconds:.3f} s, {run.whole} of {BATCHES * len(LABELS)} "
                "batches whole"
            )
        if finished:
            break
    _prove(run, kills, tell)
    return kills


def _prove(run: Run, kills: int, tell: Tell) -> None:
    run.prove()
    tell(f"{run.path.name}: proved after {kills} kills")
    shutil.rmtree(run.path)


def ray_workers(process: int | None) -> list[psutil.Process]:
    """Return the processes of our actors on the Ray cluster that a process has started."""
    with suppress(psutil.NoSuchProcess):
        return [
            child
            for child in psutil.Process(process).children(recursive=True)
            if _title(child).startswith(_WORKER)
        ]
    return []


def _title(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def write_config(folder: Path) -> Path:
    """Write a config that may be released, but for its model, with a tiny model and data.

    Returns the config's path.
    """
    save_tiny_model(folder / "model")
    rows = (f"{LABELS[number % 2]},story {number} of a storm\n" for number in range(RECORDS))
    (folder / "data.csv").write_text("label,text\n" + "".join(rows), encoding="utf-8")
    settings = {
        "data": {"path": str(folder / "data.csv"), "labels": list(LABELS)},
        "model": {"name": str(folder / "model"), "device": "cpu", "rows": ROWS},
        "prompt": {"max_example_tokens": 24},
        "batching": {
            "batches_per_label": BATCHES,
            "generate_per_label": BATCHES // ROUNDS,
            "rounds": ROUNDS,
        },
        "mechanism": {
            "contribution": {"kind": "logits", "clip": 4.0},
            "aggregator": {"kind": "median"},
            "temperature": 1.0,
        },
        "decoding": {"max_tokens": TOKENS},
        "chosen_from": {"batching": "public", "settings": "public"},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def _generate(config: Path, out: Path, log: Path, options: tuple[str, ...]) -> None:
    """Run the command in a process of its own; its output goes to the log."""
    from dpaudit.commands.cli import main

    with log.open("w", encoding="utf-8") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
        command = ["dpaudit", "generate", str(config), "--out", str(out), "--no-worth"]
        sys.argv = [*command, *options]
        main()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@click.command()
@click.option(
    "--kills", type=click.IntRange(min=1), default=50, show_default=True, help="How often to kill."
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Kill the generating process, or workers of a Ray cluster that it starts.",
)
@click.option("--seed", type=int, help="Draws the same moments again [default: at random].")
def main(kills: int, engine: str, seed: int | None) -> None:
    """Kill a generating process or its workers again and again, and prove every run.

    \b
    Example:
      python -m benchmarks.soak --kills 200
      python -m benchmarks.soak --kills 12 --engine ray
    """
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    click.echo(f"{kills} kills, --seed {seed}")
    # The killed processes' semaphores are found and freed at the end; nobody needs to read of that.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    # by default Ray's workers wait for all other processes
    os.environ |= {"RAY_worker_niceness": "0"}
    folder = Path(tempfile.mkdtemp(prefix="dpaudit-soak-"))
    try:
        kill = soak_ray if engine == "ray" else soak
        runs = kill(folder, kills, random.Random(seed), click.echo)  # noqa: S311
    except BrokenError as error:
        click.echo(f"BROKEN: {error}\nLeft for inspection: {folder}", err=True)
        sys.exit(1)
    shutil.rmtree(folder)
    click.echo(
        f"{kills} kills, {runs} runs: every batch exactly once, all digests right, every audit "
        "passed"
    )


if __name__ == "__main__":
    main()
