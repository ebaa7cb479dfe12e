"""The overhead of an engine: starting workers, and handing out batches."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from statistics import median

from benchmarks.rows import Row
from dpaudit.runs.engines import Engine, LocalEngine, Work

WORKERS = 2


def rows(small: bool) -> Iterator[Row]:
    """Measure the seconds until the first result, and for each task after it.

    Tasks take no time.
    """
    tasks, rounds = (20, 1) if small else (2000, 3)
    yield from _rows("local", LocalEngine(WORKERS), tasks, rounds)
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
