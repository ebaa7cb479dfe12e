"""The overhead of an engine: starting workers, handing out batches; what a second one saves."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.rows import Row
from benchmarks.synthetic import ANCHORED, Shape, write_run
from benchmarks.timing import command
from dpaudit.runs.engines import Engine, LocalEngine, Work

WORKERS = 2
#: Of the run whose report is timed: batches of 64 steps over a support.
BATCHES = 400
#: Of a generated text.
TOKENS = 32


def rows(small: bool) -> Iterator[Row]:
    """Measure the seconds until the first result, and for each task after it.

    Tasks take no time.
    """
    tasks, rounds = (20, 1) if small else (2000, 3)
    yield from _rows("local", LocalEngine(WORKERS), tasks, rounds)
    if not small:
        yield from _saved()
    if importlib.util.find_spec("ray") is None:
        yield Row(
            "engine",
            "ray: start",
            None,
            unit="s",
            skipped="ray is not installed: pip install '.[ray]'",
        )
    elif not small:  # starting a cluster takes longer than all of the small form
        from dpaudit.runs.engines.ray import RayEngine

        yield from _rows("ray", RayEngine(workers=WORKERS), tasks, rounds)


def _saved() -> Iterator[Row]:
    """Compare whole commands with one worker and with two: starts and loading included."""
    # With torch, which workers of the rows above would import with this module.
    from benchmarks.workload import workload, write_config

    cases: dict[str, tuple[str, ...]] = {
        "one": ("--workers", "1"),
        "local": ("--workers", str(WORKERS)),
    }
    if importlib.util.find_spec("ray") is not None:
        cases["ray"] = ("--engine", "ray", "--workers", str(WORKERS))
    with TemporaryDirectory() as name:
        folder = Path(name)
        work, _ = workload(folder, small=False, contexts=16, batches=8, tokens=TOKENS)
        config, texts, steps = folder / "config.yaml", folder / "texts", folder / "steps"
        write_config(work.anchored(), config)
        write_run(steps, Shape(BATCHES, 64, 32, 4096, ANCHORED))
        commands = {
            f"8 texts of 16 contexts and {TOKENS} tokens: `dpaudit generate {config.name}`": (
                ("generate", str(config), "--out", str(texts)),
                texts,
            ),
            f"{BATCHES} batches of 64 steps over a support: `dpaudit report`": (
                ("report", str(steps), "--out", str(folder / "report")),
                folder / "report",
            ),
        }
        for case, (arguments, made) in commands.items():
            seconds = {}
            for engine, options in cases.items():
                seconds[engine] = command("-m", "dpaudit", *arguments, *options).wall
                shutil.rmtree(made)
            for engine in seconds.keys() - {"one"}:
                yield Row(
                    "engine",
                    f"one process over {WORKERS} workers, {engine}, whole commands: {case}",
                    seconds["one"] / seconds[engine],
                    figures={f"{of}, s": seconds[of] for of in ("one", engine)},
                )


def _rows(name: str, engine: Engine, tasks: int, rounds: int) -> Iterator[Row]:
    starts, each = zip(*(_run(engine, tasks) for _ in range(rounds)), strict=True)
    case = f"{WORKERS} workers"
    yield Row(
        "engine", f"{name}: until the first of {tasks:,} results, {case}", median(starts), unit="s"
    )
    yield Row("engine", f"{name}: for each result after it, {case}", 1e3 * median(each), unit="ms")


def _run(engine: Engine, tasks: int) -> tuple[float, float]:
    start = time.perf_counter()
    results = engine.map(_make_worker, range(tasks))
    found = [next(results)]
    first = time.perf_counter()
    found += results
    last = time.perf_counter()
    if found != list(range(tasks)):
        raise RuntimeError("the engine lost, doubled or moved a task")
    return first - start, (last - first) / (tasks - 1)


def _make_worker() -> Work[int, int]:
    return _same


def _same(task: int) -> int:
    return task
