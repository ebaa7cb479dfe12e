"""The Ray engine, on two workers: it finds what the local one does, for any fate of its actors."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from dpaudit.auditing.run import audit_run
from dpaudit.commands.cli import main
from dpaudit.runs import InputError, RunReader, RunWriter
from dpaudit.runs.engines import LocalEngine, RayEngine
from dpaudit.runs.engines.ray import connected, room

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
# Ray leaves sockets and log files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

#: What the actors of these tests do. A module of its own: other processes import it.
WORKERS = '''
import os
import pathlib
import signal
import time

from dpaudit.runs import BatchExistsError, RunReader


class Traced:
    """Notes its process, so that a test can look for it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        (self.folder / f"worker-{os.getpid()}").touch()

    def die(self, times):
        """Have this process killed, as often as that."""
        deaths = len(list(self.folder.glob("death-*")))
        if deaths < times:
            (self.folder / f"death-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Square(Traced):
    """Later tasks are the quicker ones; task 3 kills."""

    def __init__(self, folder, times=0):
        super().__init__(folder)
        self.times = times

    def __call__(self, n):
        time.sleep(0.02 * (5 - n % 5))
        if n == 3:
            self.die(self.times)
        return n * n


class Raising(Traced):
    def __call__(self, n):
        raise ZeroDivisionError(f"task {n}")


class Unmade:
    def __init__(self):
        raise LookupError("no model here")


class Copying(Traced):
    """Writes batches of a run as another has them. Dies twice: within a batch, \
and as soon as one is published."""

    def __init__(self, folder, original, store):
        super().__init__(folder)
        self.original, self.store = RunReader(original), store

    def __call__(self, batch):
        with self.original.batch(batch) as source:
            try:
                with self.store.batch(source.header) as copy:
                    for step in source.steps():
                        copy.write(step)
                        if batch == 2:
                            self.die(1)
                    (sample,) = source.samples()
                    copy.finish(text=sample.text, stop=sample.stop)
            except BatchExistsError:
                return batch, "was there"
        if batch == 5:
            self.die(2)
        return batch, "written"
'''


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("workers")
    (folder / "ray_test_workers.py").write_text(WORKERS)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("ray_test_workers")
    sys.path.remove(str(folder))
    sys.modules.pop("ray_test_workers")


@pytest.fixture(scope="module")
def engine(workers: ModuleType) -> Iterator[RayEngine]:
    """On one cluster for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        places = [str(Path(workers.__file__ or "").parent), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(places).rstrip(os.pathsep))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_worker_niceness", "0")  # by default its workers wait for all other tests
        engine = RayEngine(workers=2)
        with connected(engine):
            yield engine


def processes(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("worker-")) for path in folder.glob("worker-*")]


def require_all_gone(folder: Path) -> None:
    started, until = processes(folder), time.monotonic() + 20
    assert started
    while any(Path(f"/proc/{process}").exists() for process in started):
        assert time.monotonic() < until, "an actor was left behind"
        time.sleep(0.05)


def without_path(result: Any) -> Any:
    # Remedies name the run, too.
    return json.loads(result.to_json().replace(result.run.path, "AT"))


def test_results_come_in_order_and_once(
    engine: RayEngine, workers: ModuleType, tmp_path: Path
) -> None:
    assert list(engine.map(partial(workers.Square, tmp_path), range(40))) == [
        n * n for n in range(40)
    ]
    assert len(processes(tmp_path)) == 2
    require_all_gone(tmp_path)


def test_killed_actor_loses_and_doubles_nothing(
    engine: RayEngine, workers: ModuleType, tmp_path: Path
) -> None:
    assert list(engine.map(partial(workers.Square, tmp_path, 2), range(20))) == [
        n * n for n in range(20)
    ]
    assert len(list(tmp_path.glob("death-*"))) == 2
    assert len(processes(tmp_path)) in (3, 4)  # the other one may have been free for the rest
    require_all_gone(tmp_path)


def test_task_that_kills_every_actor_is_given_up(
    engine: RayEngine, workers: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="4 of them died") as refused:
        list(engine.map(partial(workers.Square, tmp_path, 99), range(20)))
    assert "memory" in refused.value.remedy
    require_all_gone(tmp_path)


def test_exception_of_a_worker_is_raised_as_it_is(
    engine: RayEngine, workers: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError, match="task 0"):
        list(engine.map(partial(workers.Raising, tmp_path), [0]))
    with pytest.raises(LookupError, match="no model here"):
        list(engine.map(workers.Unmade, [0]))
    require_all_gone(tmp_path)


def test_no_more_tasks_are_taken_than_can_soon_run(
    engine: RayEngine, workers: ModuleType, tmp_path: Path
) -> None:
    taken = count()
    tasks = (next(taken) for _ in range(1000))
    with closing(engine.map(partial(workers.Square, tmp_path), tasks)) as results:
        assert next(results) == 0
    assert next(taken) <= 12
    require_all_gone(tmp_path)


def test_tasks_do_not_wait_for_actors_that_find_no_room(
    engine: RayEngine, workers: ModuleType, tmp_path: Path
) -> None:
    assert list(RayEngine(workers=5).map(partial(workers.Square, tmp_path), range(30))) == [
        n * n for n in range(30)
    ]
    assert len(processes(tmp_path)) in (
        1,
        2,
    )  # on a busy machine the first may be done before the second is there


def test_node_with_another_version_is_refused(
    engine: RayEngine, workers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpaudit.runs.engines.ray.__version__", "0.0.0")
    with pytest.raises(InputError, match="same version"):
        list(engine.map(partial(workers.Square, tmp_path), [0]))


def test_audit_on_ray_equals_the_local_one(engine: RayEngine, make_run: Callable[..., Any]) -> None:
    run = make_run(sizes=(3, 4, 5, 0, 1, 2, 8, 3, 4, 5, 6, 7), contexts=True)
    here = audit_run(run.path, engine=LocalEngine(1))
    assert audit_run(run.path, engine=engine).to_json() == here.to_json()
    run.steps_file(5).write_bytes(b"PK")
    damaged = audit_run(run.path, engine=engine)
    assert damaged.verdict == "error"
    assert damaged.to_json() == audit_run(run.path, engine=LocalEngine(1)).to_json()


def test_actors_that_are_killed_while_they_write_leave_every_batch_once(
    engine: RayEngine, workers: ModuleType, make_run: Callable[..., Any], tmp_path: Path
) -> None:
    run = make_run(sizes=(3, 4, 5, 2, 1, 2, 8, 3))
    reader, location = RunReader(run.path), tmp_path / "written"
    started = reader.manifest.model_copy(update={"claim": None})
    with RunWriter.create(
        location, started, tokenizer_json=reader.tokenizer_json(), assignment=reader.assignment()
    ) as writer:
        copying = partial(workers.Copying, tmp_path, run.path, writer.store)
        outcomes = list(engine.map(copying, range(8)))
        writer.finish(reader.manifest.claim)
    assert outcomes == [(batch, "was there" if batch == 5 else "written") for batch in range(8)]
    assert len(list(tmp_path.glob("death-*"))) == 2
    assert sorted(os.listdir(location / "steps")) == [f"{batch:08d}.zip" for batch in range(8)]
    written, original = without_path(audit_run(location)), without_path(audit_run(run.path))
    assert {**written, "run": None} == {
        **original,
        "run": None,
    }  # which states nonce and commitment, of a run alone


def test_command_with_a_cluster_of_its_own_prints_json_alone_though_workers_are_killed(
    make_run: Callable[..., Any], tmp_path: Path
) -> None:
    from benchmarks.soak import ray_workers  # which needs what Ray's extra brings

    run = make_run(sizes=(3, 4, 5, 2))
    environment = {name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"}
    command = [
        sys.executable,
        "-c",
        "from dpaudit.commands.cli import main; main()",
        "verify",
        str(run.path),
        "--json",
        "--quiet",
    ]
    command += ["--tokenizer", str(run.path)]
    here = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, timeout=120, check=True
    )
    talkative = environment | {"RAY_DEDUP_LOGS": "0"}
    with subprocess.Popen(
        [*command, "--engine", "ray", "--workers", "2"],
        env=talkative,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        for _ in range(2):
            until = time.monotonic() + 120
            while not (workers := ray_workers(process.pid)):
                assert process.poll() is None, "it ended before its workers were killed"
                assert time.monotonic() < until
                time.sleep(0.02)
            workers[0].kill()
            workers[0].wait()
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert out == here.stdout
    assert err == b""


class StubbornRay(ModuleType):
    """Ray that does not start the first times, as on a busy machine.

    It raises a bare Exception, and prints.
    """

    def __init__(self, failures: int) -> None:
        super().__init__("ray")
        self.failures, self.folders, self.running = failures, list[str](), False

    def is_initialized(self) -> bool:
        return self.running

    def init(self, *, _temp_dir: str, **_: Any) -> None:
        sys.stdout.write("what Ray says")
        self.folders.append(_temp_dir)
        if len(self.folders) <= self.failures:
            raise Exception("The current node timed out\nduring startup.")
        self.running = True

    def shutdown(self) -> None:
        sys.stdout.write("what Ray says at the end")
        self.running = False


def test_cluster_that_does_not_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for failures in (0, 2):
        ray = StubbornRay(failures)
        monkeypatch.setattr("dpaudit.runs.engines.ray._ray", lambda ray=ray, **_: ray)
        with connected(RayEngine(workers=2)) as found:
            assert found is ray
            assert ray.running
        assert not ray.running
        assert len(set(ray.folders)) == failures + 1  # nothing of an earlier attempt is in the way
    assert capsys.readouterr().out == ""


def test_cluster_that_never_starts_is_one_error(
    make_run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("dpaudit.runs.engines.ray._ray", lambda **_: StubbornRay(99))
    with pytest.raises(SystemExit) as left:
        main(["verify", str(make_run().path), "--engine", "ray", "--json"])
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert "in 3 attempts (The current node" in err


def test_cluster_without_a_machine_alive_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = MagicMock()
    ray.is_initialized.return_value = True
    ray.remote.return_value.return_value.remote.return_value = SimpleNamespace(
        __ray_ready__=MagicMock()
    )
    ray.wait.return_value = [], [object()]
    ray.nodes.side_effect = [[{"Alive": True, "Resources": {"CPU": 2.0}}]] * 2 + [
        [{"Alive": False}]
    ] * 9
    monkeypatch.setattr("dpaudit.runs.engines.ray._ray", lambda **_: ray)
    with pytest.raises(InputError, match="none of its machines"):
        list(RayEngine(workers=2).map(partial(partial, abs), [1, 2, 3]))


def test_ray_that_is_not_installed_is_named(
    make_run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit) as left:
        main(["verify", str(make_run().path), "--engine", "ray"])
    assert left.value.code == 2
    assert (
        "[ray]"
        in re.findall("un `(pip install [^`]*)`, or leave --engine", capsys.readouterr().err)[0]
    )


def test_address_where_nobody_answers_is_named_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    for command in ("verify", "report"):
        with pytest.raises(SystemExit) as left:
            main(
                [
                    command,
                    str(tmp_path / "no run"),
                    "--engine",
                    "ray",
                    "--ray-address",
                    "127.0.0.1:1",
                ]
            )
        assert left.value.code == 2
        assert "--ray-address: the Ray" in capsys.readouterr().err
    assert time.monotonic() - started < 30  # Ray itself takes minutes


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "no such host:6379"])
def test_stale_address_of_the_environment_is_named(
    make_run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    address: str,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(SystemExit) as left:
        main(["verify", str(make_run().path), "--engine", "ray"])
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert "RAY_ADDRESS: the Ray" in err and f"be reached at {address}" in err


def test_address_without_ray_is_a_mistake(
    make_run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["verify", str(make_run().path), "--ray-address", "auto"])
    assert left.value.code == 2
    assert "--engine ray" in capsys.readouterr().err


ROOMS: list[tuple[list[dict[str, float]], int | None, bool, tuple[int, dict[str, int]]]] = [
    ([{"CPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}], None, False, (12, {"num_cpus": 1})),
    ([{"CPU": 4.0}], 7, False, (7, {"num_cpus": 1})),
    (
        [{"CPU": 16.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}],
        None,
        True,
        (6, {"num_cpus": 4, "num_gpus": 1}),
    ),
    ([{"CPU": 16.0, "GPU": 4.0}], 2, True, (2, {"num_cpus": 8, "num_gpus": 1})),
    ([{"CPU": 16.0}, {"CPU": 8.0}, {}], None, True, (2, {"num_cpus": 8})),
    ([{"CPU": 64.0}, {"CPU": 8.0, "GPU": 4.0}], None, True, (4, {"num_cpus": 2, "num_gpus": 1})),
    ([{"CPU": 8.0, "GPU": 2.0}], 5, True, (5, {"num_cpus": 4, "num_gpus": 1})),
    ([{"CPU": 4.0}] * 4, 5, True, (5, {"num_cpus": 2})),
    ([{"CPU": 2.0}], 5, True, (5, {"num_cpus": 1})),
    ([], None, True, (1, {"num_cpus": 1})),
]


def test_workers_fit_onto_the_nodes() -> None:
    for nodes, workers, models, expected in ROOMS:
        assert room(nodes, workers, models) == expected
