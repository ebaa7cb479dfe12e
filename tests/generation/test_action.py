"""The GitHub Action's whole way: a config in, a release folder with a full replay's audit out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpaudit.releasing.keys import make_key
from tests.releasing.test_action import Job


@pytest.mark.slow  # tests/releasing/test_action.py tries every step but a whole generation
def test_from_a_config_to_a_release(
    tmp_path: Path, settings: Callable[..., dict[str, Any]], data_file: Path
) -> None:
    pytest.importorskip("pyarrow")
    job = Job(tmp_path)
    make_key(job.work / "key")
    values = settings(
        mechanism={"aggregator": "mean", "divisor": 4.0, "clip": 0.5},
        privacy={"delta": 1e-5},
        record={"contexts": True},
        decoding={"test_seed": None},
    )
    (job.work / "config.yaml").write_text(yaml.safe_dump(values))
    given = {
        "config": "config.yaml",
        "run": "run",
        "out": "texts",
        "evidence": "4",
        "options": f"--data={data_file}",
    }
    key = {"key": (job.work / "key").read_text(), "public_key": "key.pub"}
    assert job.run(**given, **key) == 0, job.printed + (job.work / "dpaudit.log").read_text()
    # The commitment is in the job's log before the first token, and what is not public never is.
    assert job.printed.startswith(f"the commitment is {job.outputs['commitment']}")
    assert not any(private in job.printed for private in (str(data_file), "records", "epsilon"))
    report = json.loads((job.work / "texts" / "report" / "report.json").read_text())
    assert report["verdict"] == "pass"
    held = {check["id"]: check["status"] for check in report["checks"]}
    assert held["integrity.commitment"] == "pass"
