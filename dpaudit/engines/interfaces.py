"""What an engine is: the one contract between those who have work to spread and those who spread it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

#: What a worker does with a task. It may hold something heavy, such as a model.
Work: TypeAlias = Callable[[Task], Result]


#: Results that may wait for an earlier one, for each worker.
WAITING = 4


@dataclass
class Job:
    """A task, its place among all tasks, and how many workers died over it."""

    number: int
    task: Any
    deaths: int = 0


class Engine(Protocol):
    """Spreads tasks over workers."""

    def map(
        self, make_worker: Callable[[], Work[Task, Result]], tasks: Iterable[Task]
    ) -> Generator[Result, None, None]:
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
