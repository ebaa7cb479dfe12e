"""Workers on this machine: this process itself, or one process per core.

Workers are started afresh rather than forked, since threads and a loaded torch do not survive a
fork. They are plain interpreters on a socket. The pools of `multiprocessing` and
`concurrent.futures` would run the caller's script again in each of them unless it is guarded by `if
__name__ == "__main__"`; these and loky's break as a whole when one worker is killed, without a word
on which task it had, and leave workers at their tasks when the caller is killed. Here a worker that
dies is replaced, and one whose socket closes leaves at once.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Collection, Generator, Iterable
from contextlib import suppress
from functools import partial
from threading import Thread

from dpaudit.runs import InputError
from dpaudit.runs.engines.engine import MakeWork, Pool, Result, Task, Worker, WorkerDiedError

#: How often a task is tried whose worker dies.
ATTEMPTS = 2
#: Numerical libraries start as many threads as there are cores, in every process, unless these say
#: otherwise.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
#: A worker finds the caller's modules where the caller does. Only a socket's number and this path
#: are passed.
_SERVE = (
    "import sys; sys.path[:] = {path!r}; "
    "from dpaudit.runs.engines.local import serve; serve({handle})"
)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
        self, make_worker: MakeWork[Task, Result], tasks: Iterable[Task]
    ) -> Generator[Result, None, None]:
        """Yield the result of every task (see `Engine`)."""
        if self.workers == 1:
            work = make_worker()
            for task in tasks:
                yield work(task)
            return
        pickled, threads = pickle.dumps(make_worker), max(1, cores() // self.workers)
        start = partial(_Process, pickled, threads)
        yield from Pool(self.workers, start, _first, ATTEMPTS, _refusal).map(tasks)


class _Process:
    """An interpreter that gets what makes its work, and then tasks."""

    def __init__(self, make_work: bytes, threads: int) -> None:
        from multiprocessing import Pipe  # not where all work is done in this process

        self.connection, theirs = Pipe()
        with theirs:
            path = [str(place) for place in sys.path]
            self._process = subprocess.Popen(  # noqa: S603  (our own interpreter, and no shell)
                [sys.executable, "-c", _SERVE.format(path=path, handle=theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the caller's may be JSON
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C reaches the caller alone, who then decides
                env=dict.fromkeys(_THREADS, str(threads)) | dict(os.environ),
            )
        self.give(make_work)

    def give(self, task: bytes) -> None:
        with suppress(OSError):  # it is dead, which `answer` finds out
            self.connection.send_bytes(task)

    def answer(self) -> bytes:
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            self.stop()
            code = self._process.returncode
            memory = ", probably for lack of memory" if code == -signal.SIGKILL else ""
            raise WorkerDiedError(
                f"signal {-code}{memory}" if code < 0 else f"exit code {code}"
            ) from None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self.connection.close()


def _first(processes: Collection[_Process]) -> _Process:
    """Return one of these that says something or is dead, as soon as there is one."""
    from multiprocessing.connection import wait

    ready = wait([process.connection for process in processes])
    return next(process for process in processes if process.connection in ready)


def _refusal(deaths: int, cause: str, over_task: bool) -> InputError:
    if not over_task:
        problem = f"{deaths} of them ended before they could begin ({cause})."
        return InputError("the worker processes", problem, "Try `--workers 1`.")
    problem = f"it was killed {deaths} times over the same task ({cause})."
    return InputError(
        "a worker process", problem, "Give the machine more memory, or try `--workers 1`."
    )


def serve(handle: int) -> None:
    """Answer, in a worker process, what comes on a socket, until its other end closes."""
    from multiprocessing.connection import Connection

    Thread(target=_leave_with_caller, args=(handle,), daemon=True).start()
    connection = Connection(handle)
    with suppress(EOFError, OSError):
        make_work = connection.recv_bytes()
        worker = Worker(lambda: pickle.loads(make_work)())  # noqa: S301  (from the process that started this one)
        connection.send_bytes(b"")  # it is there
        while True:
            connection.send_bytes(worker.answer(connection.recv_bytes()))


def _leave_with_caller(handle: int) -> None:
    """End this process as soon as the caller's end of the socket is closed.

    That may be in the middle of a task.
    """
    poller = select.poll()
    poller.register(handle, 0)  # hanging up is always reported
    poller.poll()
    os._exit(1)
