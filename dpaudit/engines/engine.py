"""The interface of engines, and their common part: threads hand tasks to workers, in order."""

from __future__ import annotations

import pickle
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from queue import PriorityQueue
from threading import Thread
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
    """Spreads tasks over workers."""

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
                and no process is left behind; the same holds when the generator is closed early.
        """
        ...


class WorkerDiedError(Exception):
    """A worker's process is no more; says why."""


class RemoteWorker(Protocol):
    """A worker in another process. One thread asks it, and another may stop it meanwhile."""

    def wait_until_there(self) -> None:
        """Return when it can be asked. Raises WorkerDiedError, and InputError where no other could be there either."""

    def ask(self, task: bytes) -> bytes:
        """Return the answer of its `Worker.answer`.

        Raises:
            WorkerDiedError: it died.
        """

    def stop(self) -> None:
        """End it, in the middle of a task too; whoever waits for it is told that it died."""


@dataclass(order=True)
class _Job:
    """A task's place among all tasks, the pickled task, the answer to it, and how many workers died over it."""

    number: int
    task: bytes = field(compare=False, default=b"")
    answer: Future[bytes] = field(compare=False, default_factory=Future)
    deaths: int = field(compare=False, default=0)


@dataclass
class Pool:
    """Workers in other processes, and a thread here for each of them.

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
    _jobs: PriorityQueue[_Job] = field(default_factory=PriorityQueue)
    _workers: list[RemoteWorker] = field(default_factory=list)
    _closed: bool = False

    def map(self, tasks: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield every task's result, in order; the workers end with the generator."""
        waiting: deque[_Job] = deque()
        threads: list[Thread] = []
        try:
            for number, task in enumerate(tasks):
                waiting.append(_Job(number, pickle.dumps(task)))
                self._jobs.put(waiting[-1])
                if len(threads) < self.size:
                    threads.append(Thread(target=self._serve, daemon=True))
                    threads[-1].start()
                if len(waiting) >= WAITING * self.size:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        finally:
            self._closed = True  # before the workers are stopped: a thread that has just started one looks at it after
            for worker in self._workers:
                worker.stop()
            for _ in threads:
                self._jobs.put(_Job(-1))  # wakes one
            for thread in threads:
                thread.join()

    def _serve(self) -> None:
        """Hand tasks to a worker, and start another one when it dies; a task is taken only once a worker is there."""
        worker: RemoteWorker | None = None
        while not self._closed:
            try:
                worker = worker or self._started()
            except Exception as error:
                self._jobs.get().answer.set_exception(error)
                return
            job = self._jobs.get()
            if self._closed:
                return
            try:
                job.answer.set_result(worker.ask(job.task))
            except WorkerDiedError as death:
                worker, job.deaths = None, job.deaths + 1
                if job.deaths < self.attempts:
                    self._jobs.put(job)
                else:
                    job.answer.set_exception(self.refusal(job.deaths, str(death), True))
            except Exception as error:
                job.answer.set_exception(error)

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


def _result(job: _Job) -> Any:
    """Return a worker's answer, once it has come, or raise its error."""
    raised, content = pickle.loads(job.answer.result())  # noqa: S301  (from a process that we started)
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
