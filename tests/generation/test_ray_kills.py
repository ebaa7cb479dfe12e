"""Ray workers killed at ten moments of `generate` and `report`, and two nodes with a store between.

Each moment is a row of the kill table: command, moment, who is killed; whatever it is, the exit
code is that of one process, and so is every byte.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from dpaudit.auditing.run import audit_run
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.runs.engines import RayEngine
from dpaudit.runs.engines import ray as engine
from tests.generation.on_ray import actors, record, two_workers

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
# Ray leaves sockets and log files to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]

Dpaudit = Callable[..., tuple[int, str, str]]
#: Twelve batches, a task each: a command waits for 12 answers, and for one or two workers.
SMALL = {
    "batching": {"batches_per_label": 6, "generate_per_label": 6},
    "decoding": {"max_tokens": 9},
    "model": {"rows": 2},
}
#: Before which wait workers are killed, and whether all of them are.
MOMENTS = ((1, False), (3, False), (6, True), (10, False), (13, True))
RAY = ("--engine", "ray", "--workers", 2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with two_workers():
        yield


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bool], list[int]]:
    """Kills workers before a wait of the next command; gives a list of the killed."""
    wait = engine._first

    def prepare(moment: int, everyone: bool) -> list[int]:
        killed, waits = list[int](), 0

        def first(*arguments: Any) -> Any:
            nonlocal waits
            waits += 1
            if waits == moment:
                while not (found := actors()):  # the cluster is still starting the first
                    time.sleep(0.02)
                for actor in map(psutil.Process, found if everyone else found[:1]):
                    actor.kill()
                    actor.wait()
                    killed.append(actor.pid)
            return wait(*arguments)

        monkeypatch.setattr(engine, "_first", first)
        return killed

    return prepare


@pytest.mark.parametrize(("moment", "everyone"), MOMENTS)
def test_killed_workers_change_no_byte_of_a_run(
    moment: int,
    everyone: bool,
    cluster: None,
    kill: Callable[[int, bool], list[int]],
    settings: Callable[..., dict[str, Any]],
    generated: Callable[..., Path],
    tmp_path: Path,
    dpaudit: Dpaudit,
) -> None:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(settings(**SMALL)))
    killed = kill(moment, everyone)
    code, out, err = dpaudit("generate", "own.yaml", "--out", "run", "--unverified", *RAY)
    assert (code, out) == (0, ""), err
    assert killed
    assert record(tmp_path / "run") == record(generated(**SMALL))
    assert not list((tmp_path / "run/steps").glob("*partial*"))


@pytest.mark.parametrize(("moment", "everyone"), MOMENTS)
def test_killed_workers_change_no_byte_of_a_report(
    moment: int,
    everyone: bool,
    cluster: None,
    kill: Callable[[int, bool], list[int]],
    generated: Callable[..., Path],
    tmp_path: Path,
    dpaudit: Dpaudit,
) -> None:
    run, reports = generated(**SMALL), list[dict[str, bytes]]()
    killed = kill(moment, everyone)
    codes = []
    for place, options in (("here", ("--workers", 1)), ("there", RAY)):
        codes.append(dpaudit("report", run, "--no-model", "--out", place, *options)[0])
        files = sorted((tmp_path / place).glob("*.*"))
        reports.append({file.name: file.read_bytes() for file in files})
    assert killed
    assert codes[0] == codes[1] == 1  # its tokens are drawn by a seed
    assert {"report.html", "report.json", "report.md"} <= reports[0].keys()
    # HTML and Markdown name the folder that they stand in nowhere.
    assert reports[0] == reports[1]


def test_two_nodes_share_a_run_in_an_object_store(
    make_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two raylets of one CPU each; nothing but the store is between them."""
    servers = pytest.importorskip("moto.server", reason="pip install 'moto[server]' s3fs")
    pytest.importorskip("s3fs", reason="pip install s3fs")
    from ray.cluster_utils import Cluster

    server = servers.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "RAY_worker_niceness": "0",
    }.items():
        monkeypatch.setenv(name, value)
    config, url = make_config(**SMALL), "s3://bucket/run"
    import s3fs

    s3fs.S3FileSystem().mkdir("bucket")
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        nodes.add_node(num_cpus=1)
        workers = RayEngine(nodes.address, workers=2, models=True)
        generate(config, url, engine=workers)
        generate(config, tmp_path / "run")
        assert record(url) == record(tmp_path / "run")
        there = audit_run(url, engine=RayEngine(nodes.address, workers=2))
        here = audit_run(url)
        assert there.to_json() == here.to_json()
    finally:
        nodes.shutdown()
        server.stop()
