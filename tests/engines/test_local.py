"""The local engine: each result once and in order, for any fate of workers, and no process left."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from dpaudit.runs import InputError
from dpaudit.runs.engines import LocalEngine, cores

#: What the workers of these tests do. A module of its own: other processes import it.
WORKERS = '''
import json
import os
import pathlib
import signal
import sys
import time


class Traced:
    """Notes its process, so that a test can look for it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        (self.folder / f"worker-{os.getpid()}").touch()


class Square(Traced):
    """Later tasks are the quicker ones."""

    def __call__(self, n):
        time.sleep(0.02 * (5 - n % 5))
        return n * n


class Killed(Traced):
    """Dies over task 3: as often as it is asked to."""

    def __init__(self, folder, times, signal=signal.SIGKILL):
        super().__init__(folder)
        self.times, self.signal = times, signal

    def __call__(self, n):
        deaths = len(list(self.folder.glob("death-*")))
        if n == 3 and deaths < self.times:
            (self.folder / f"death-{deaths}").touch()
            os.kill(os.getpid(), self.signal)
        return n, os.getpid()


class Raising(Traced):
    def __call__(self, n):
        if n == 2:
            raise ZeroDivisionError("task 2")
        return n


class Unpicklable(Traced):
    def __call__(self, n):
        class Local(Exception):
            pass
        raise Local("cannot travel")


class Unmade:
    def __init__(self, folder):
        raise LookupError("no model here")


class Slow(Traced):
    def __call__(self, n):
        time.sleep(60)


class Forking(Traced):
    """Leaves a process behind that holds all that it holds."""

    def __call__(self, n):
        if n < 2 and os.fork() == 0:
            time.sleep(10)
            os._exit(0)
        return n


class Threads(Traced):
    def __call__(self, n):
        print("noise on standard output")
        return os.environ["OMP_NUM_THREADS"], os.getpid()


class Sized(Traced):
    """A result of a megabyte."""

    def __call__(self, n):
        return n, b"." * (1 << 20)
'''


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "engine_test_workers.py").write_text(WORKERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("engine_test_workers")
    sys.modules.pop("engine_test_workers")


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """A task that nobody runs fails its test, and does not hold up the others."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(180)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def processes(folder: Path) -> list[int]:
    """The worker processes that there were."""
    return [int(path.name.removeprefix("worker-")) for path in folder.glob("worker-*")]


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def gone(folder: Path, within: float = 20) -> bool:
    deadline = time.monotonic() + within
    while any(map(alive, processes(folder))):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_results_come_once_and_in_order(workers: ModuleType, tmp_path: Path) -> None:
    for count in (3, 1):
        found = list(LocalEngine(count).map(partial(workers.Square, tmp_path), range(12)))
        assert found == [n * n for n in range(12)]
        others = [process for process in processes(tmp_path) if process != os.getpid()]
        assert len(others) == 3
        assert not any(map(alive, others))


def test_no_tasks_start_no_process(workers: ModuleType, tmp_path: Path) -> None:
    assert list(LocalEngine(2).map(partial(workers.Square, tmp_path), [])) == []
    assert not processes(tmp_path)
    assert list(LocalEngine(1).map(partial(workers.Square, tmp_path), [])) == []


def test_tasks_are_taken_when_they_can_soon_run(workers: ModuleType, tmp_path: Path) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for n in range(100):
            taken.append(n)
            yield n

    with closing(LocalEngine(2).map(partial(workers.Sized, tmp_path), tasks())) as results:
        for done in range(1, 21):
            next(results)
            assert len(taken) <= done + 10


def test_a_killed_worker_is_replaced_and_its_task_run_again(
    workers: ModuleType, tmp_path: Path
) -> None:
    found = list(LocalEngine(2).map(partial(workers.Killed, tmp_path, 1), range(8)))
    assert [n for n, _ in found] == list(range(8))
    assert len(processes(tmp_path)) in (2, 3)  # the other may have been free for the rest
    assert gone(tmp_path)


def test_a_task_that_kills_its_workers_is_given_up(workers: ModuleType, tmp_path: Path) -> None:
    causes = {signal.SIGKILL: "signal 9, probably for lack of memory", signal.SIGTERM: "signal 15"}
    for sent, cause in causes.items():
        folder = tmp_path / sent.name
        folder.mkdir()
        said = rf"killed 2 times over the same task \({cause}\)"
        with pytest.raises(InputError, match=said) as refused:
            list(LocalEngine(2).map(partial(workers.Killed, folder, 99, sent), range(8)))
        assert "--workers 1" in refused.value.remedy
        assert len(list(folder.glob("death-*"))) == 2
        assert gone(folder)


def test_what_a_worker_raises_is_raised_here(workers: ModuleType, tmp_path: Path) -> None:
    for count in (2, 1):
        with pytest.raises(ZeroDivisionError, match="task 2"):
            list(LocalEngine(count).map(partial(workers.Raising, tmp_path), range(50)))
        with pytest.raises(LookupError, match="no model here"):
            list(LocalEngine(count).map(partial(workers.Unmade, tmp_path), range(3)))
        assert count == 1 or gone(tmp_path)
    with pytest.raises(RuntimeError, match="cannot travel"):
        list(LocalEngine(2).map(partial(workers.Unpicklable, tmp_path), range(3)))


def test_workers_share_the_cores_and_are_silent(
    workers: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = list(LocalEngine(cores() + 1).map(partial(workers.Threads, tmp_path), range(4)))
    assert {threads for threads, _ in found} == {"1"}  # type: ignore[misc]
    assert capfd.readouterr().out == ""


def test_no_worker_outlives_a_generator_that_is_closed_early(
    workers: ModuleType, tmp_path: Path
) -> None:
    with closing(LocalEngine(2).map(partial(workers.Square, tmp_path), range(1000))) as results:
        next(results)
        assert processes(tmp_path)
    assert gone(tmp_path)


SLOW = """
import functools, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's \
background jobs inherit that it is ignored
sys.path.insert(0, {modules!r})
import engine_test_workers
from dpaudit.runs.engines import LocalEngine
list(LocalEngine(2).map(functools.partial(engine_test_workers.Slow, {folder!r}), range(4)))
"""


def test_no_worker_outlives_the_process_that_started_it(
    workers: ModuleType, tmp_path: Path
) -> None:
    """Not even in the middle of a task; and a script needs no `if __name__ == "__main__"`."""
    callers = {}
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        folder = tmp_path / sent.name
        folder.mkdir()
        script = folder / "script.py"
        script.write_text(SLOW.format(folder=str(folder), modules=str(tmp_path)))
        callers[sent, folder] = subprocess.Popen(
            [sys.executable, str(script)], stderr=subprocess.DEVNULL
        )
    deadline = time.monotonic() + 60
    for (sent, folder), caller in callers.items():
        while len(processes(folder)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(processes(folder)) == 2
        caller.send_signal(sent)
        assert caller.wait(20) != 0
        assert gone(folder)


def test_no_worker_outlives_a_caller_that_lets_go(workers: ModuleType, tmp_path: Path) -> None:
    """A dropped generator ends its workers.

    A process that one of them left does not hold up the end.
    """
    results = LocalEngine(2).map(partial(workers.Forking, tmp_path), range(100))
    assert next(results) == 0
    let_go = time.monotonic()
    del results
    assert time.monotonic() - let_go < 5
    assert gone(tmp_path)


def test_input_errors_pickle_as_they_are() -> None:
    error = pickle.loads(pickle.dumps(InputError("a file", "is odd.", "Mend it.")))
    assert (error.where, error.problem, error.remedy, str(error)) == (
        "a file",
        "is odd.",
        "Mend it.",
        "a file: is odd. Mend it.",
    )


def test_fewer_than_one_worker_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        LocalEngine(0)
    assert LocalEngine().workers == cores() >= 1
