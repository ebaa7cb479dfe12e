"""A package beside dpaudit, installed into a fresh environment: its run, its check, its report."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.mechanisms.test_toy_aggregator import settings
from tests.packaging.test_wheel import ALONE, build
from tests.plug_ins import PACKAGE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="links environments"),
]


def environment_of(folder: Path) -> Path:
    """A virtual environment with all that the tests have but dpaudit, and its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    (own,) = folder.glob("lib/python3*/site-packages")
    (theirs,) = site.getsitepackages()
    for entry in Path(theirs).iterdir():
        if "dpaudit" not in entry.name and not entry.name.endswith(".pth"):
            (own / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def test_installed_package_takes_part(tmp_path: Path) -> None:
    from benchmarks.tiny import save_tiny_model

    wheel, _ = build(tmp_path)
    python = environment_of(tmp_path / "environment")
    shutil.copytree(PACKAGE, tmp_path / "package")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
    ]
    for source in (wheel, tmp_path / "package"):
        subprocess.run(
            [*pip, "--no-build-isolation", str(source)], check=True, capture_output=True, env=ALONE
        )

    save_tiny_model(tmp_path / "model")
    lines = ["label,text", *(f"north,{number} lorem ipsum" for number in range(14))]
    (tmp_path / "records.csv").write_text("\n".join(lines) + "\n")
    config = settings(tmp_path, {"aggregator": "trimmed-sum", "scale": 2.5})
    (tmp_path / "config.yaml").write_text(json.dumps(config))

    def dpaudit(*arguments: str, code: int = 0) -> str:
        called = [str(python), "-P", "-m", "dpaudit", *arguments]
        environment = {**ALONE, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        done = subprocess.run(called, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout

    dpaudit("generate", "config.yaml", "--out", "run")
    dpaudit("report", "run", "--out", "report", "--tokenizer", "run")
    result = json.loads((tmp_path / "report" / "report.json").read_text())
    (check,) = (each for each in result["checks"] if each["id"] == "acme.temperature")
    assert (result["verdict"], check["status"], check["code"]) == ("pass", "pass", "moderate")
    assert result["run"]["plugins"] == {"acme-dpaudit": "0.1"}
    page = (tmp_path / "report" / "report.html").read_text()
    assert check["title"] in page
    assert "acme-dpaudit" in page

    subprocess.run(
        [*pip[:-3], "uninstall", "--yes", "acme-dpaudit"],
        check=True,
        capture_output=True,
        env=ALONE,
    )
    dpaudit("verify", "run", code=2)
