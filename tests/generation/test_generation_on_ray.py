"""Generation on two Ray workers makes one process's run, though a worker is killed on the way."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.events import BatchDone, Event
from dpaudit.generation.joined import CACHE_VARIABLE
from dpaudit.runs import RunReader
from dpaudit.runs.engines import RayEngine
from tests.forging import unfinish
from tests.generation.on_ray import actors, record, two_workers

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
# Ray leaves sockets and log files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

MakeConfig = Callable[..., Config]
#: Twelve batches, in two rounds.
SMALL = {
    "batching": {"batches_per_label": 6, "generate_per_label": 3, "rounds": 2},
    "model": {"rows": 2},
}


@pytest.fixture(scope="module")
def engine() -> Iterator[RayEngine]:
    with two_workers():
        yield RayEngine(workers=2, models=True)


def test_unfinished_run_ends_on_a_cluster_as_in_one_process_though_a_worker_is_killed(
    engine: RayEngine, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(**SMALL, decoding={"max_tokens": 20})
    events: list[Event] = []
    killed: list[int] = []

    def kill_one(event: Event) -> None:
        events.append(event)
        if isinstance(event, BatchDone) and not event.resumed and not killed:
            killed.append(actors()[0])
            os.kill(killed[0], signal.SIGKILL)

    generate(config, tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    for batch in set(range(12)) - {1, 2}:
        (tmp_path / f"there/steps/{batch:08d}.zip").unlink()
    unfinish(tmp_path / "there")
    generate(config, tmp_path / "there", kill_one, engine)
    assert killed
    assert record(tmp_path / "there") == record(tmp_path / "here")
    here, there = (RunReader(tmp_path / name) for name in ("here", "there"))
    assert there.manifest.model_dump(exclude={"created"}) == here.manifest.model_dump(
        exclude={"created"}
    )
    assert sorted(os.listdir(tmp_path / "there/steps")) == [
        f"{batch:08d}.zip" for batch in range(12)
    ]
    done = [(event.batch, event.resumed) for event in events if isinstance(event, BatchDone)]
    assert sorted(done) == [(batch, batch in (1, 2)) for batch in range(12)]


class TwoWorkersHere:
    """An engine whose workers live in this process, made of what an engine would send to others."""

    def map(
        self, make_worker: Callable[[], Callable[..., Any]], tasks: Iterable[Any]
    ) -> Generator[Any, None, None]:
        """Each task in turn to one of two workers."""
        sent = pickle.dumps(make_worker)
        workers = [pickle.loads(sent)() for _ in range(2)]
        for worker, task in zip(cycle(workers), tasks, strict=False):
            yield worker(task)


def test_clusters_are_found_once_for_all_workers(
    settings: Callable[..., dict[str, Any]],
    encoder_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers read centres and places from the run: counts have one draw of noise."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    public = tmp_path / "public.csv"
    public.write_text("text\n" + "".join(f"public {'rain' * (n % 4)} {n}\n" for n in range(12)))
    values = settings(model={"rows": 2}, mechanism={"aggregator": "mean", "divisor": 4.0})
    values["batching"] = {"batches_per_cluster": 2, "generate_per_cluster": 2, "key": "0f" * 32}
    values["clustering"] = {
        "method": "public-centers-rebalanced",
        "public": str(public),
        "embedding": str(encoder_folder),
        "centers": 4,
        "keep": 2,
        "epsilon": 1.0,
    }
    config = Config.model_validate(values)
    generate(config, tmp_path / "here")
    generate(config, tmp_path / "there", engine=TwoWorkersHere())
    assert record(tmp_path / "there") == record(tmp_path / "here")
    assert len(RunReader(tmp_path / "there").batches) == 2 * 2 * 2
