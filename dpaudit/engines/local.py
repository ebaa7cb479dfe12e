"""Workers on this machine: this process itself, or one process per core.

Workers are started afresh rather than forked, since threads and a loaded torch do not survive a fork. They are plain
interpreters on a socket instead of `multiprocessing`'s pool: that would run the caller's script again in each of them
unless it is guarded by `if __name__ == "__main__"`, break as a whole when one worker is killed, and leave workers
behind when the caller is. Here a worker that dies is replaced, and one whose socket closes leaves at once.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from dpaudit.engines.interfaces import WAITING, Job, Result, Task, Work
from dpaudit.runs import InputError

#: How often a task is tried whose worker dies.
ATTEMPTS = 2
#: Numerical libraries start as many threads as there are cores, in every process, unless these say otherwise.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
#: A worker finds the caller's modules where the caller does. Only a socket's number and this path are passed.
_SERVE = "import sys; sys.path[:] = {path!r}; from dpaudit.engines.process import serve; serve({handle})"


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalEngine:
    """An engine on this machine.

    Attributes:
        workers: how many processes. One means this one.
    """

    def __init__(self, workers: int | None = None) -> None:
        """None means one process per core. Raises ValueError for fewer than one."""
        self.workers = cores() if workers is None else workers
        if self.workers < 1:
            raise ValueError(f"at least one worker is needed, not {workers}")

    def map(
        self, make_worker: Callable[[], Work[Task, Result]], tasks: Iterable[Task]
    ) -> Generator[Result, None, None]:
        """See Engine."""
        if self.workers == 1:
            work = make_worker()
            for task in tasks:
                yield work(task)
            return
        pool = _Pool(make_worker, self.workers)
        try:
            yield from pool.results(tasks)
        finally:
            pool.close()


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    job: Job | None = None

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


@dataclass
class _Pool:
    """Processes, and the results that wait for their turn."""

    make_worker: Callable[[], Work[Any, Any]]
    size: int
    workers: list[_Worker] = field(default_factory=list)
    done: dict[int, Any] = field(default_factory=dict)
    due: int = 0

    def results(self, tasks: Iterable[Any]) -> Generator[Any, None, None]:
        """Every task's result, in order."""
        jobs = (Job(number, task) for number, task in enumerate(tasks))
        upcoming = next(jobs, None)
        while True:
            while upcoming is not None and upcoming.number < self.due + WAITING * self.size and self._has_room():
                self._give(self._free_worker(), upcoming)
                upcoming = next(jobs, None)
            if self.due in self.done:
                yield self.done.pop(self.due)
                self.due += 1
            elif any(worker.job for worker in self.workers):
                self._receive()
            else:
                return

    def close(self) -> None:
        """Let no process go on."""
        for worker in self.workers:
            worker.stop()
        self.workers.clear()

    def _has_room(self) -> bool:
        return len(self.workers) < self.size or any(worker.job is None for worker in self.workers)

    def _free_worker(self) -> _Worker:
        """One that has no task, or a further one."""
        for worker in self.workers:
            if worker.job is None:
                return worker
        worker = _start(self.size)
        self.workers.append(worker)
        self._send(worker, self.make_worker)
        return worker

    def _give(self, worker: _Worker, job: Job) -> None:
        worker.job = job
        self._send(worker, job.task)

    def _send(self, worker: _Worker, content: Any) -> None:
        with suppress(OSError):  # it is dead, which _receive finds out
            worker.connection.send(content)

    def _receive(self) -> None:
        """Wait until a worker has a result, or dies."""
        busy = {worker.connection: worker for worker in self.workers if worker.job is not None}
        for connection in wait(list(busy)):
            worker = busy[connection]  # type: ignore[index]
            job = worker.job
            assert job is not None
            try:
                raised, content = worker.connection.recv()
            except (EOFError, OSError):
                self._replace(worker, job)
                continue
            if raised:
                raise content
            worker.job = None
            self.done[job.number] = content

    def _replace(self, worker: _Worker, job: Job) -> None:
        """A worker died: another one gets its task."""
        self.workers.remove(worker)
        worker.stop()
        job.deaths += 1
        if job.deaths >= ATTEMPTS:
            raise InputError(
                "a worker process",
                f"it was killed {job.deaths} times over the same task ({_cause(worker.process.returncode)}).",
                "Give the machine more memory, or try `--workers 1`.",
            )
        self._give(self._free_worker(), job)


def _start(size: int) -> _Worker:
    """Start an interpreter that waits for its worker's maker and then for tasks."""
    ours, theirs = socket.socketpair()
    share = str(max(1, cores() // size))
    environment = dict.fromkeys(_THREADS, share) | dict(os.environ)
    with theirs:
        process = subprocess.Popen(  # noqa: S603  (our own interpreter, and no shell)
            [sys.executable, "-c", _SERVE.format(path=[str(place) for place in sys.path], handle=theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the caller's may be JSON
            pass_fds=[theirs.fileno()],
            process_group=0,  # Ctrl-C reaches the caller alone, who then decides
            env=environment,
        )
    return _Worker(process, Connection(ours.detach()))


def _cause(returncode: int) -> str:
    """Why a process is no more, in words."""
    if returncode == -signal.SIGKILL:
        return "signal 9, probably for lack of memory"
    if returncode < 0:
        return f"signal {-returncode}"
    return f"exit code {returncode}"
