"""The interface of engines, and their common part: threads hand tasks to workers, in order."""

from __future__ import annotations

import pickle
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar

from dpaudit.runs import InputError

Task = TypeVar("Task")
Result = TypeVar("Result")

#: What a worker does with a task. It may hold something heavy, such as a model.
Work: TypeAlias = Callable[[Task], Result]
MakeWork: TypeAlias = Callable[[], Work[Task, Result]]

#: Results that may wait for an earlier one, for each worker.
WAITING = 4


class Engine(Protocol):
    """An engine spreads tasks over workers."""

    def map(self, make_worker: MakeWork[Task, Result], tasks: Iterable[Task]) -> Generator[Result, None, None]:
        """Yield the result of every task, in the tasks' order and each once.

        A worker is built where it works, once, and given one task at a time. A task is taken from `tasks` only when it
        can soon run, and no more than a few results wait for their turn: memory does not grow with the number of tasks.
        A task whose worker dies is run again, so a task that changes something outside must bear that.

        Args:
            make_worker: builds a worker. It, the tasks and the results are pickled where workers are other processes.
            tasks: what to do.

        Raises:
            InputError: workers died on the same task again and again.
            Exception: whatever a worker raises, at its task's turn or before. Tasks that are under way are given up,
                and no process is left behind; the same holds when the generator is closed early, as callers who may
                stop do (`contextlib.closing`).
        """
        ...


class WorkerDiedError(Exception):
    """A worker's process is no more; says why."""


class RemoteWorker(Protocol):
    """A worker in another process. One thread asks it, and another may stop it meanwhile."""

    def wait_until_there(self) -> None:
        """Return when it can be asked.

        Raises:
            WorkerDiedError: it died.
            InputError: no other worker could be there either.
        """

    def ask(self, task: bytes) -> bytes:
        """Return the answer of its `Worker.answer`.

        Raises:
            WorkerDiedError: it died.
        """

    def stop(self) -> None:
        """End it, in the middle of a task too; whoever waits for it is told that it died."""


@dataclass
class Pool:
    """Workers in other processes: a free one takes the next task.

    Attributes:
        size: how many workers.
        start: starts a worker, and does not wait for it.
        attempts: how many workers may die in a row over one task, or before they are there.
        refusal: what is said then, by how many died, why the last one did, and whether a task had been given to it.
    """

    size: int
    start: Callable[[], RemoteWorker]
    attempts: int
    refusal: Callable[[int, str, bool], InputError]
    _free: SimpleQueue[RemoteWorker | Exception] = field(default_factory=SimpleQueue)
    _workers: list[RemoteWorker] = field(default_factory=list)
    _closed: bool = False

    def map(self, tasks: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield every task's result, in order; the workers end with the generator."""
        # One thread waits for each worker's start, and another for its answer: no task waits for a worker to come.
        starting, asking = ThreadPoolExecutor(self.size), ThreadPoolExecutor(self.size)
        waiting: deque[Future[Any]] = deque()
        try:
            for number, task in enumerate(tasks):
                if number < self.size:
                    starting.submit(self._bring)
                waiting.append(asking.submit(self._run, pickle.dumps(task), starting))
                if len(waiting) >= WAITING * self.size:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            self._closed = True  # before the workers are stopped: a thread that has just started one looks at it after
            for worker in self._workers:
                worker.stop()
            for _ in range(self.size):
                self._free.put(WorkerDiedError("the work is given up"))  # wakes a thread that waits for one
            for pool in (asking, starting):
                pool.shutdown(cancel_futures=True)

    def _bring(self) -> None:
        """Put a worker that is there among the free ones, or the error where none can be started."""
        try:
            self._free.put(self._started())
        except Exception as error:
            self._free.put(error)

    def _started(self) -> RemoteWorker:
        """Return a worker that is there.

        Raises:
            InputError: none can be started.
        """
        deaths = 0
        while True:
            worker = self.start()
            self._workers.append(worker)
            if self._closed:
                worker.stop()
            try:
                worker.wait_until_there()
                return worker
            except WorkerDiedError as death:
                deaths += 1
                if self._closed or deaths >= self.attempts:
                    raise self.refusal(deaths, str(death), False) from None

    def _run(self, task: bytes, starting: Executor) -> Any:
        """Return a worker's result of a pickled task. Raises what the worker raised, or what became of it."""
        deaths = 0
        while True:
            worker = self._free.get()
            if isinstance(worker, Exception):
                raise worker
            try:
                raised, content = pickle.loads(worker.ask(task))  # noqa: S301  (from a process that we started)
            except WorkerDiedError as death:
                deaths += 1
                if self._closed or deaths >= self.attempts:
                    raise self.refusal(deaths, str(death), True) from None
                starting.submit(self._bring)
                continue
            self._free.put(worker)
            if raised:
                raise content
            return content


@dataclass
class Worker:
    """A worker where it works: built with the first task, it does one after the other."""

    make_work: MakeWork[Any, Any]

    @cached_property
    def _work(self) -> Work[Any, Any]:
        return self.make_work()

    def answer(self, task: bytes) -> bytes:
        """Return the pickled pair (False, result) or (True, exception) of a pickled task."""
        try:
            return pickle.dumps((False, self._work(pickle.loads(task))))  # noqa: S301  (from who started this process)
        except Exception as error:
            story = "".join(traceback.format_exception(error))
            error.add_note(story)
            try:
                answer = pickle.dumps((True, error))
                pickle.loads(answer)  # noqa: S301  (written one line above)
            except Exception:
                return pickle.dumps((True, RuntimeError(story)))
            return answer
