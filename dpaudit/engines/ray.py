"""Workers on a Ray cluster: actors that are built once and take one task at a time.

Only what makes a worker, the tasks and the results travel, through Ray. Runs are read and written by the actors
themselves, at locations that they must be able to reach.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import socket
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import Any

import dpaudit
from dpaudit.engines.interfaces import WAITING, Job, Result, Task, Work
from dpaudit.engines.local import cores
from dpaudit.engines.process import answered
from dpaudit.runs import InputError

#: How often a task is tried whose actor dies. Machines of a cluster are taken away for reasons that are not the task's.
ATTEMPTS = 4
#: Seconds that a cluster may take to answer at all.
_SECONDS = 10.0
#: Seconds without any worker until that is said.
_PATIENCE = 60.0
#: Of a cluster that is started here, for results on their way. The least that Ray takes is a quarter of it.
_STORE_BYTES = 1 << 28

_LOGGER = logging.getLogger(__name__)


class RayEngine:
    """An engine on a Ray cluster.

    Attributes:
        address: of the cluster, as `ray.init` takes it; None for one that is started on this machine and stopped in
            the end.
        workers: how many actors; None means as many as the cluster has room for at the start.
        models: whether a worker holds a language model. It then gets a GPU, if the cluster has any, and its share of
            the CPUs; one CPU otherwise.
    """

    def __init__(self, address: str | None = None, workers: int | None = None, *, models: bool = False) -> None:
        """Connects to nothing yet. No address means RAY_ADDRESS. Raises ValueError for fewer than one worker."""
        if workers is not None and workers < 1:
            raise ValueError(f"at least one worker is needed, not {workers}")
        self.address, self.workers = address or os.environ.get("RAY_ADDRESS") or None, workers
        self.models = models

    def require_cluster(self) -> None:
        """Ask before anything else is done whether there is a cluster. One that answers may refuse later.

        Raises:
            InputError: Ray is not installed, or nobody answers at the address.
        """
        _ray(starting=self.address is None)
        with _reached():
            _require_answer(self.address)

    def map(
        self, make_worker: Callable[[], Work[Task, Result]], tasks: Iterable[Task]
    ) -> Generator[Result, None, None]:
        """See Engine. Raises InputError too where Ray is not installed or the cluster cannot be reached."""
        with connected(self) as ray:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            size, needs = room(nodes, self.workers, self.models)
            actors = _Actors(ray, make_worker, size, needs)
            try:
                yield from actors.results(tasks)
            finally:
                actors.close()


def room(nodes: list[dict[str, float]], workers: int | None, models: bool) -> tuple[int, dict[str, int]]:
    """How many workers a cluster gets, and what each asks of it.

    Args:
        nodes: what each node has of "CPU" and "GPU".
        workers: how many are wanted; None means as many as there is room for.
        models: see RayEngine.
    """
    sizes = [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in nodes]
    if not models:
        return workers or max(1, sum(cpus for cpus, _ in sizes)), {"num_cpus": 1}
    gpus = sum(gpus for _, gpus in sizes)
    # A node has room for so many: by its GPUs, or by its CPUs alone.
    places = [(cpus, most) for cpus, most in sizes if most] if gpus else [(cpus, cpus) for cpus, _ in sizes if cpus]
    size = workers or gpus or max(1, len(places))
    wanted = min(size, sum(min(cpus, most) for cpus, most in places))
    largest = max((cpus for cpus, _ in places), default=1)
    fitting = (c for c in range(1, largest + 1) if sum(min(cpus // c, most) for cpus, most in places) >= wanted)
    return size, {"num_cpus": max(fitting, default=1)} | ({"num_gpus": 1} if gpus else {})


@dataclass
class _Actors:
    """Actors, and the results that wait for their turn. An actor gets a task only once it has found its place."""

    ray: Any
    make_worker: Callable[[], Work[Any, Any]]
    size: int
    needs: dict[str, int]
    free: list[Any] = field(default_factory=list)
    #: What Ray will answer by -> whose answer it is, and for `busy` to which task.
    starting: dict[Any, Any] = field(default_factory=dict)
    busy: dict[Any, tuple[Any, Job]] = field(default_factory=dict)
    todo: deque[Job] = field(default_factory=deque)
    done: dict[int, Any] = field(default_factory=dict)
    due: int = 0
    failed_starts: int = 0

    def results(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """Every task's result, in order."""
        jobs = (Job(number, task) for number, task in enumerate(tasks))
        upcoming = next(jobs, None)
        while True:
            while upcoming is not None and self._takes(upcoming):
                self.todo.append(upcoming)
                upcoming = next(jobs, None)
            self._give()
            if self.due in self.done:
                yield self.done.pop(self.due)
                self.due += 1
            elif self.busy or self.todo:
                self._receive()
            else:
                return

    def close(self) -> None:
        """Let no actor go on."""
        for actor in [*self.free, *self.starting.values(), *(actor for actor, _ in self.busy.values())]:
            self.ray.kill(actor)

    def _takes(self, job: Job) -> bool:
        return len(self.todo) + len(self.busy) < self.size and job.number < self.due + WAITING * self.size

    def _give(self) -> None:
        """Give tasks to actors that have none, and start further ones for the others."""
        while self.todo and self.free:
            actor, job = self.free.pop(), self.todo.popleft()
            self.busy[actor.run.remote(pickle.dumps(job.task))] = actor, job
        while len(self.starting) < len(self.todo) and len(self.starting) + len(self.busy) < self.size:
            actor = self._actor.remote(self.make_worker, dpaudit.__version__)
            self.starting[actor.ready.remote()] = actor

    @cached_property
    def _actor(self) -> Any:
        # A dead actor is replaced by `_give`, not restarted by Ray: whose task it was must be known, and counted.
        return self.ray.remote(**self.needs, max_restarts=0, max_task_retries=0)(_Actor)

    def _receive(self) -> None:
        """Wait until an actor is there, has a result, or dies."""
        answered, _ = self.ray.wait([*self.busy, *self.starting], timeout=None if self.busy else _PATIENCE)
        if not answered:
            _LOGGER.warning("The Ray cluster has no room for a worker yet, which asks for %s: waiting.", self.needs)
            return
        (reference,) = answered
        actor, job = self.busy.pop(reference, (None, None))
        if job is None:
            actor = self.starting.pop(reference)
        try:
            answer = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            self.ray.kill(actor)  # it may only be out of reach, and go on
            self._bury(job, error)
            return
        self.free.append(actor)
        if job is not None:
            raised, content = pickle.loads(answer)  # noqa: S301  (from an actor that we started)
            if raised:
                raise content
            self.done[job.number] = content

    def _bury(self, job: Job | None, error: Exception) -> None:
        """An actor died: another one gets its task. Raises InputError when that has been tried often enough."""
        if job is None:
            self.failed_starts += 1
            if self.failed_starts >= ATTEMPTS:
                problem = f"{self.failed_starts} of them could not be started ({_last_line(error)})."
                remedy = "Install the same dpaudit on every node, and look into Ray's logs."
                raise InputError("the workers of the Ray cluster", problem, remedy) from None
            return
        job.deaths += 1
        if job.deaths >= ATTEMPTS:
            problem = f"{job.deaths} of them died over the same task ({_last_line(error)})."
            remedy = "Look into Ray's logs; give each worker more memory, or take fewer with --workers."
            raise InputError("the workers of the Ray cluster", problem, remedy) from None
        self.todo.appendleft(job)


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()[:200]


class _Actor:
    """Builds a worker where it runs, with its first task, and gives it one task after the other."""

    def __init__(self, make_worker: Callable[[], Work[Any, Any]], version: str) -> None:
        self._make_worker, self._version = make_worker, version
        self._work: Work[Any, Any] | None = None

    def ready(self) -> None:
        """Answer when the cluster has found room for it."""

    def run(self, task: bytes) -> bytes:
        """The pickled pair (False, result) or (True, exception) of a pickled task."""
        return answered(self._worked, task)

    def _worked(self, task: Any) -> Any:
        if self._work is None:
            self._require_same_version()
            self._work = self._make_worker()
        return self._work(task)

    def _require_same_version(self) -> None:
        """Other code could give other results, and nobody would see it."""
        if dpaudit.__version__ != self._version:
            raise InputError(
                f"the Ray node {os.uname().nodename}",
                f"it has dpaudit {dpaudit.__version__}, and the caller {self._version}.",
                "Install the same version on every node.",
            )


def _ray(starting: bool) -> Any:
    """The package, told in time what it only asks when it is loaded."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report its use to its makers
    if starting and "ray" not in sys.modules:
        # The ports of a cluster are open to the network: who has no token, which is in no file, is turned away.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
        import ray.exceptions
    except ImportError:
        remedy = "pip install 'dpaudit[ray]', or leave --engine ray away."
        raise InputError("--engine ray", "Ray is not installed.", remedy) from None
    return ray


@contextmanager
def connected(engine: RayEngine) -> Iterator[Any]:
    """Ray's module, connected to the engine's cluster, or as the caller has it connected.

    Raises:
        InputError: Ray is not installed, or the cluster cannot be reached.
    """
    ray = _ray(starting=engine.address is None)
    with ExitStack() as stack:
        if not ray.is_initialized():
            stack.callback(ray.shutdown)
            with _reached():
                _connect(ray, engine, stack)
        yield ray


@contextmanager
def _reached() -> Iterator[None]:
    """Say in a caller's words why a cluster cannot be reached."""
    try:
        yield
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        problem = f"the Ray cluster cannot be reached ({str(error)[:200]})."
        raise InputError("--ray-address", problem, "Check the address, and that it is running.") from None


def _require_answer(address: str | None) -> None:
    """Raises OSError where nobody listens at host:port: Ray itself takes minutes to notice."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()


def _connect(ray: Any, engine: RayEngine, stack: ExitStack) -> None:
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    if engine.address is not None:
        _require_answer(engine.address)
        ray.init(engine.address, **quiet)
        return
    # Ray opens its folder to everyone, so it lies in another. With a longer path a socket's name would be too long.
    folder = stack.enter_context(TemporaryDirectory(prefix="dpaudit-", dir="/tmp", ignore_cleanup_errors=True))
    stack.callback(ray.shutdown)
    ray.init(
        "local",
        num_cpus=cores() if engine.models else engine.workers or cores(),
        object_store_memory=_STORE_BYTES,
        include_dashboard=False,
        _temp_dir=f"{folder}/ray",
        **quiet,
    )
