"""The interface of engines, and their common part: workers get tasks, results come in order."""

from __future__ import annotations

import pickle
import traceback
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

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

    def map(
        self, make_worker: MakeWork[Task, Result], tasks: Iterable[Task]
    ) -> Generator[Result, None, None]:
        """Yield the result of every task, in the tasks' order and each once.

        A worker is built where it works, once, and given one task at a time. A task is taken from
        `tasks` only when it can soon run, and no more than a few results wait for their turn:
        memory does not grow with the number of tasks. A task whose worker dies is run again, so a
        task that changes something outside must bear that.

        Args:
            make_worker: builds a worker. It, the tasks and the results are pickled where workers
                are other processes.
            tasks: what to do.

        Raises:
            InputError: workers died on the same task again and again.
            Exception: whatever a worker raises, at its task's turn or before. Tasks that are under
                way are given up, and no process is left behind; the same holds when the generator
                is closed early, as callers who may stop do (`contextlib.closing`).
        """
        ...


class WorkerDiedError(Exception):
    """The death of a worker's process, with its cause."""


class RemoteWorker(Protocol):
    """A worker in another process. It says when it is there, and then an answer to each task."""

    def give(self, task: bytes) -> None:
        """Hand a task to a worker that is there and free."""

    def answer(self) -> bytes:
        """Return what the worker says, after it was waited for.

        Raises:
            WorkerDiedError: the worker's process is gone.
        """

    def stop(self) -> None:
        """End the worker, in the middle of a task too."""


@dataclass
class _Job:
    """A pickled task, the answer once there is one, and how many workers died over it."""

    task: bytes
    answer: bytes | None = None
    deaths: int = 0


AnyWorker = TypeVar("AnyWorker", bound=RemoteWorker)


@dataclass
class Pool(Generic[AnyWorker]):
    """Workers in other processes: a free one gets the next task.

    Attributes:
        size: how many workers.
        start: starts a worker, and does not wait for it.
        wait: returns one of these workers as soon as it says something, or is dead.
        attempts: how many workers may die over one task.
        refusal: what is said then, by how many died, why the last one did, and whether a task had
            been given to it.
    """

    size: int
    start: Callable[[], AnyWorker]
    wait: Callable[[Collection[AnyWorker]], AnyWorker]
    attempts: int
    refusal: Callable[[int, str, bool], InputError]

    def map(self, tasks: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield every task's result, in order; the workers end with the generator."""
        free, busy = list[AnyWorker](), dict[AnyWorker, _Job | None]()  # None for one that starts
        jobs, todo = deque[_Job](), deque[_Job]()
        left, unstarted = iter(tasks), 0
        try:
            while True:
                for task in islice(left, WAITING * self.size - len(jobs)):
                    jobs.append(_Job(pickle.dumps(task)))
                    todo.append(jobs[-1])
                if not jobs:
                    return
                while len(free) + len(busy) < min(self.size, len(jobs)):
                    busy[self.start()] = None
                while free and todo:
                    worker = free.pop()
                    busy[worker] = job = todo.popleft()
                    worker.give(job.task)
                if (said := jobs[0].answer) is not None:
                    jobs.popleft()
                    yield _result(said)
                    continue
                worker = self.wait(busy.keys())
                done = busy[worker]
                try:
                    answer = worker.answer()
                except WorkerDiedError as death:
                    worker.stop()
                    del busy[worker]
                    if done is None:
                        unstarted += 1
                        if unstarted >= self.attempts * self.size:
                            raise self.refusal(unstarted, str(death), False) from None
                    else:
                        done.deaths += 1
                        if done.deaths >= self.attempts:
                            raise self.refusal(done.deaths, str(death), True) from None
                        todo.appendleft(done)
                    continue
                del busy[worker]
                free.append(worker)
                if done is None:
                    unstarted = 0
                else:
                    done.answer = answer
        finally:
            for worker in (*free, *busy):
                worker.stop()


def _result(answer: bytes) -> Any:
    """Return what a worker answered, or raise its error."""
    raised, content = pickle.loads(answer)  # noqa: S301  (from a process that we started)
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
