"""Workers on a Ray cluster: actors that are built once and take one task at a time.

Only what makes a worker, the tasks and the results travel, through Ray. Runs are read and written
by the actors themselves, at locations that they must be able to reach.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, cast

from dpaudit.runs import InputError
from dpaudit.runs.engines.engine import MakeWork, Pool, Result, Task, Work, Worker, WorkerDiedError
from dpaudit.runs.engines.local import cores
from dpaudit.runs.extras import installing
from dpaudit.version import __version__

#: How often a task is tried whose actor dies. Machines of a cluster are taken away for reasons that
#: are not the task's.
ATTEMPTS = 4
#: Seconds that a cluster may take to answer at all.
_SECONDS = 10.0
#: How often a cluster of our own is started that does not come up: on a busy machine Ray waits too
#: short for its parts.
_STARTS = 3
#: Seconds without any worker until that is said.
_PATIENCE = 60.0
#: What has Ray print nothing that its cluster reports, such as a worker's death: it would print
#: that among our JSON.
_SILENT = {
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_ALLOW_REGEX": "",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",
}
#: Of a cluster that is started here, for results on their way. The least that Ray takes is a
#: quarter of it.
_STORE_BYTES = 1 << 28

_LOGGER = logging.getLogger(__name__)


class RayEngine:
    """An engine on a Ray cluster.

    Attributes:
        address: of the cluster, as `ray.init` takes it; None for one that is started on this
            machine and stopped in the end.
        workers: how many actors; None means as many as the cluster has room for at the start.
        models: whether a worker holds a language model. It then gets a GPU, if the cluster has any,
            and its share of the CPUs; one CPU otherwise.
    """

    def __init__(
        self, address: str | None = None, workers: int | None = None, *, models: bool = False
    ) -> None:
        """Prepare the engine without connecting.

        No address means RAY_ADDRESS.

        Raises:
            ValueError: fewer than one worker is asked for.
        """
        if workers is not None and workers < 1:
            raise ValueError(f"at least one worker is needed, not {workers}")
        self.address, self.workers = address or os.environ.get("RAY_ADDRESS") or None, workers
        self.models = models

    def require_cluster(self) -> None:
        """Require a cluster, before anything else is done. One that answers may refuse later.

        Raises:
            InputError: Ray is not installed, or nobody answers at the address.
        """
        _ray(starting=self.address is None)
        with _reached(self.address):
            pass

    def map(
        self, make_worker: MakeWork[Task, Result], tasks: Iterable[Task]
    ) -> Generator[Result, None, None]:
        """Yield the result of every task (see `Engine`).

        Raises:
            InputError: also if Ray is not installed or the cluster cannot be reached.
        """
        with connected(self) as ray:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            size, needs = room(nodes, self.workers, self.models)
            make_work = partial(_of_version, __version__, make_worker)
            start, first = partial(_Actor, ray, make_work, needs), partial(_first, ray, needs)
            yield from Pool(size, start, first, ATTEMPTS, _refusal).map(tasks)


def room(
    nodes: list[dict[str, float]], workers: int | None, models: bool
) -> tuple[int, dict[str, int]]:
    """Return the number of a cluster's workers, and what each asks of "CPU" and "GPU"."""
    sizes = [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in nodes]
    if not models:
        return workers or max(1, sum(cpus for cpus, _ in sizes)), {"num_cpus": 1}
    gpus = sum(gpus for _, gpus in sizes)
    # A node has room for so many: by its GPUs, or by its CPUs alone.
    places = (
        [(cpus, most) for cpus, most in sizes if most]
        if gpus
        else [(cpus, cpus) for cpus, _ in sizes if cpus]
    )
    size = workers or gpus or max(1, len(places))
    wanted = min(size, sum(min(cpus, most) for cpus, most in places))
    largest = max((cpus for cpus, _ in places), default=1)
    fitting = (
        c
        for c in range(1, largest + 1)
        if sum(min(cpus // c, most) for cpus, most in places) >= wanted
    )
    return size, {"num_cpus": max(fitting, default=1)} | ({"num_gpus": 1} if gpus else {})


class _Actor:
    """An actor of the cluster.

    Ray is not asked to restart it: its task goes to another one, which may be free.

    Attributes:
        reference: of what it says next.
        there: whether it has found room.
    """

    def __init__(self, ray: Any, make_work: MakeWork[Any, Any], needs: dict[str, int]) -> None:
        self._ray, self.there = ray, False
        self._actor = ray.remote(**needs, max_restarts=0, max_task_retries=0)(Worker).remote(
            make_work
        )
        self.reference = self._actor.__ray_ready__.remote()

    def give(self, task: bytes) -> None:
        self.reference = self._actor.answer.remote(task)

    def answer(self) -> bytes:
        try:
            said = cast(bytes, self._ray.get(self.reference))
        except self._ray.exceptions.RayError as error:
            cause = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()[:200]
            raise WorkerDiedError(cause) from None
        self.there = True
        return said

    def stop(self) -> None:
        self._ray.kill(self._actor)  # it may only be out of reach, and go on


def _first(ray: Any, needs: dict[str, int], actors: Collection[_Actor]) -> _Actor:
    """Return one of these that says something or is dead, as soon as there is one.

    Raises:
        InputError: no machine of the cluster is alive.
    """
    waiting = {actor.reference: actor for actor in actors}
    while not (done := ray.wait([*waiting], timeout=_PATIENCE)[0]):
        if not any(node["Alive"] for node in ray.nodes()):
            problem = (
                "none of its machines is alive: Ray's own processes were killed, or the "
                "network is gone."
            )
            raise InputError(
                "the Ray cluster", problem, "Look into Ray's logs, then give the command again."
            )
        if not any(actor.there for actor in actors):
            _LOGGER.warning(
                "The Ray cluster has no room for a worker yet, which asks for %s: waiting.", needs
            )
    return waiting[done[0]]


def _refusal(deaths: int, cause: str, over_task: bool) -> InputError:
    problem = f"{deaths} of them could not be started ({cause})."
    remedy = "Install the same dpaudit on every node, and look into Ray's logs."
    if over_task:
        problem = f"{deaths} of them died over the same task ({cause})."
        remedy = "Look into Ray's logs; give each worker more memory, or take fewer with --workers."
    return InputError("the workers of the Ray cluster", problem, remedy)


def _of_version(version: str, make_worker: MakeWork[Any, Any]) -> Work[Any, Any]:
    """Build a worker.

    Raises:
        InputError: the node has other code: its results could differ, and nobody would see.
    """
    if __version__ != version:
        raise InputError(
            f"the Ray node {os.uname().nodename}",
            f"it has dpaudit {__version__}, and the caller {version}.",
            "Install the same version on every node.",
        )
    return make_worker()


def _ray(starting: bool) -> Any:
    """Import Ray, after the settings that it reads only then."""
    if "ray" not in sys.modules:
        os.environ |= _SILENT
        if starting:
            # The ports of a cluster are open to the network: who has no token, which is in no file,
            # is turned away.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        else:  # 20 by default: a quarter of an hour where something else than Ray answers
            os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report its use to its makers
    try:
        with redirect_stdout(sys.stderr):
            import ray
            import ray.exceptions
    except ImportError:
        remedy = f"{installing('ray')}, or leave --engine ray away."
        raise InputError("--engine ray", "Ray is not installed.", remedy) from None
    return ray


@contextmanager
def connected(engine: RayEngine) -> Iterator[Any]:
    """Yield Ray's module, connected to the engine's cluster, or as the caller connected it.

    Raises:
        InputError: Ray is not installed, or the cluster cannot be reached or started.
    """
    ray = _ray(starting=engine.address is None)
    with ExitStack() as stack:
        if not ray.is_initialized():
            if engine.address is None:
                # Ray opens its folder to everyone, so it lies in another. With a longer path a
                # socket's name would be too long.
                folder = TemporaryDirectory(
                    prefix="dpaudit-", dir="/tmp", ignore_cleanup_errors=True
                )
                path = stack.enter_context(folder)
                stack.callback(_shut_down, ray)
                _start(ray, path, cores() if engine.models else engine.workers or cores())
            else:
                stack.callback(_shut_down, ray)
                with _reached(engine.address):
                    _init(ray, address=engine.address)
        yield ray


def _start(ray: Any, folder: str, cpus: int) -> None:
    """Start a cluster on this machine. Raises InputError where that fails again and again."""
    for attempt in range(1, _STARTS + 1):
        try:
            return _init(
                ray,
                address="local",
                num_cpus=cpus,
                object_store_memory=_STORE_BYTES,
                include_dashboard=False,
                _temp_dir=f"{folder}/ray{attempt}",
            )
        except Exception as error:  # Ray raises a bare one where a part of it is not there in time
            _shut_down(ray)
            cause = " ".join(str(error).split())[:200] or type(error).__name__
            _LOGGER.warning("Ray did not start (attempt %d of %d): %s", attempt, _STARTS, cause)
    problem = f"Ray could not be started on this machine in {_STARTS} attempts ({cause})."
    raise InputError(
        "--engine ray",
        problem,
        "Try again when the machine is less busy, or leave --engine ray away.",
    )


def _init(ray: Any, **options: Any) -> None:
    with redirect_stdout(sys.stderr):
        ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)


def _shut_down(ray: Any) -> None:
    with redirect_stdout(sys.stderr):
        ray.shutdown()


@contextmanager
def _reached(address: str | None) -> Iterator[None]:
    """Say in a caller's words why a cluster cannot be reached.

    Ray itself takes minutes to notice.
    """
    try:
        host, _, port = (address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()
        yield
    except Exception as error:  # Ray raises bare ones, too
        said_by = "RAY_ADDRESS" if address == os.environ.get("RAY_ADDRESS") else "--ray-address"
        problem = f"the Ray cluster cannot be reached at {address} ({str(error)[:200]})."
        raise InputError(said_by, problem, "Check the address, and that it is running.") from None
