"""An audit is the same wherever its batches are read.

It keeps nothing of a step, and tells of workers that die.
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
import random
import tracemalloc
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dpaudit.auditing.batches import BatchAuditor, gather
from dpaudit.auditing.checks.integrity import Hashes
from dpaudit.auditing.checks.seeds import MOST_BATCHES
from dpaudit.auditing.run import audit_run
from dpaudit.commands.cli import cli
from dpaudit.results import Place
from dpaudit.runs import InputError, RunReader
from dpaudit.runs.engines import LocalEngine

KINDS = [
    {"sizes": (0, 1, 2, 3, 4, 5, 8), "max_tokens": 5},
    {"sizes": (3, 4, 4, 5), "unit": "user", "records_per_user": 2, "width": 3},
    {"aggregator": "mean", "sizes": (2, 3, 4, 8), "contexts": True},
    {"sizes": (4, 5, 4, 5), "top_k": 6},
    {
        "sizes": (4, 4),
        "rule": "hashed-slots",
        "relation": "replace",
        "width": 4,
        "dtype": "float64",
    },
]


class Shuffled:
    """An engine that reads batches in another order.

    Its workers share nothing, and batches travel as bytes.
    """

    def map(
        self, make_worker: Callable[[], Callable[[Any], Any]], tasks: Iterable[Any]
    ) -> Generator[Any, None, None]:
        listed = list(tasks)
        order = random.Random(0).sample(range(len(listed)), len(listed))
        make = pickle.dumps(make_worker)
        results = {place: pickle.dumps(pickle.loads(make)()(listed[place])) for place in order}
        yield from (pickle.loads(results[place]) for place in range(len(listed)))


def test_the_report_is_the_same_in_whatever_order_batches_are_read(make_run):
    for kind in KINDS:
        run = make_run(**kind)
        alone = audit_run(run.path, engine=LocalEngine(1))
        assert alone.verdict == "pass"
        assert audit_run(run.path, engine=Shuffled()).to_json() == alone.to_json()
        assert audit_run(run.path).to_json() == alone.to_json()


def test_the_report_is_the_same_for_any_number_of_processes(make_run):
    run = make_run(sizes=(2, 3, 4, 5, 4, 3), max_tokens=4)
    for batch in (4, 5):
        run.rewrite(batch, lambda draft: draft.alter(1, "central", (1, 0), np.nan))
    run.steps_file(1).write_bytes(b"no zip file")
    run.rezip(
        2,
        lambda entries: [
            e._replace(data=e.data[:-1] + b"?") if e.name == "sides/c/0/0/0" else e for e in entries
        ],
    )
    run.rehash()
    alone = audit_run(run.path, engine=LocalEngine(1))
    assert alone.verdict == "error"
    spread = audit_run(run.path, engine=LocalEngine(3))
    assert spread.to_json() == alone.to_json()
    checks = {check.id: check for check in spread.checks}
    assert checks["integrity.format"].values["first"].values["file"] == "steps/00000001.zip"
    assert checks["record.range"].values["place"] == Place(batch=4, step=1)


def children() -> set[str]:
    """Process ids of this process's children."""
    threads = Path("/proc/self/task").iterdir()
    return {child for thread in threads for child in (thread / "children").read_text().split()}


def test_an_interrupted_audit_leaves_no_process_and_stops_the_bar_where_it_is(make_run):
    seen = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        raise KeyboardInterrupt

    run, before = make_run(sizes=(2, 3, 4, 5)), children()
    with pytest.raises(KeyboardInterrupt):
        audit_run(run.path, progress=stop, engine=LocalEngine(2))
    assert seen == [(1, 4)]
    assert children() == before


KILLING = """
import os, signal
from dpaudit.auditing.batches import BatchAuditor
from dpaudit.commands.cli import cli


class Killing(BatchAuditor):
    def __call__(self, batches):
        if 1 in batches:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batches)
"""


def test_workers_that_are_killed_are_an_input_error(make_run, monkeypatch, tmp_path):
    (tmp_path / "killing_auditor.py").write_text(KILLING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        "dpaudit.auditing.batches.BatchAuditor", importlib.import_module("killing_auditor").Killing
    )
    with pytest.raises(InputError, match="killed 2 times"):
        audit_run(make_run(sizes=(2, 3, 4)).path, engine=LocalEngine(2))


def test_what_a_batch_says_is_small_whatever_its_vocabulary(make_run):
    sizes = []
    for vocabulary in (12, 4096):
        run = make_run(sizes=(4,), vocabulary=vocabulary)
        sizes.append(len(pickle.dumps(BatchAuditor(str(run.path), None)([0]))))
    assert sizes[1] < 2 * sizes[0] < 16_384


def test_nothing_of_a_step_is_kept_and_little_of_a_batch(make_run, monkeypatch):
    """Arrays of one step have some 80 kB here; 50 batches more would keep 12 MB of them.

    Those that are looked at together are in memory at once.
    """
    peaks, kept = [], []

    def gather_all(*arguments):
        gather(*arguments)
        kept.append(tracemalloc.get_traced_memory()[0])

    audit_run(make_run(sizes=(4,) * MOST_BATCHES, vocabulary=4096).path)  # what is worked out once
    monkeypatch.setattr("dpaudit.auditing.run.gather", gather_all)
    for batches in (MOST_BATCHES, MOST_BATCHES + 50):
        run = make_run(sizes=(4,) * batches, vocabulary=4096)
        tracemalloc.start()
        audit_run(run.path, engine=LocalEngine(1))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 1_000_000
    assert kept[1] - kept[0] < 50 * 4_000 and kept[1] < 2_000_000


def test_a_file_is_hashed_where_it_is_read(make_run, monkeypatch):
    hashed = []
    digest = RunReader.digest
    monkeypatch.setattr(
        RunReader, "digest", lambda reader, name: hashed.append(name) or digest(reader, name)
    )
    run = make_run(sizes=(2, 3))
    assert audit_run(run.path).verdict == "pass"
    assert not [name for name in hashed if name.startswith("steps/")]
    (found,) = BatchAuditor(str(run.path), None)([1])
    assert found.evidence[Hashes] == hashlib.sha256(run.steps_file(1).read_bytes()).hexdigest()


def test_the_assignment_is_read_twice_at_most(make_run, monkeypatch):
    read = []
    assignment = RunReader.assignment
    monkeypatch.setattr(
        RunReader, "assignment", lambda reader: read.append(1) or assignment(reader)
    )
    assert audit_run(make_run().path).verdict == "pass"
    assert len(read) <= 2


def test_the_command_line_says_the_same_for_any_number_of_workers(
    empty_figures, make_run, tmp_path
):
    run, said = make_run(sizes=(2, 3, 4)), []
    for workers in ("1", "2"):
        out = ["--out", str(tmp_path / workers)]
        command = ["report", str(run.path), "--workers", workers, "--json", *out]
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0
        said.append(result.stdout)
    assert said[0] == said[1]
    for name in ("report", "verify"):
        assert CliRunner().invoke(cli, [name, str(run.path), "--workers", "0"]).exit_code == 2


def test_a_batch_that_cannot_be_read_is_named(make_run):
    run = make_run()
    run.steps_file(1).write_bytes(b"no archive")
    (found,) = BatchAuditor(RunReader(run.path).location, None)([1])
    unreadable = found.unreadable
    assert unreadable is not None and unreadable.values["file"] == "steps/00000001.zip"
