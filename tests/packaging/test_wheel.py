"""`python -m build` gives a complete wheel, which runs with only its dependencies installed."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dpaudit.auditing.run import audit_run
from dpaudit.releasing.folder import write_release
from dpaudit.releasing.keys import read_signer
from dpaudit.runs import RunReader

ROOT = Path(__file__).parents[2]
#: In the repository, and no part of what is installed.
NOT_INSTALLED = ("benchmarks", "docsite", "tests")
#: Without what would make a Python find this repository.
ALONE = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
#: Names that our packages have within dpaudit, and what a package of that name says that is
#: imported instead.
HOSTILE = (
    "accounting",
    "audit",
    "checks",
    "commands",
    "engines",
    "generation",
    "release",
    "reports",
    "results",
    "runs",
)
TRAP = "a package of the folder was imported"
#: What only a development environment has, and what dpaudit would have if it laid its packages
#: beside itself.
NOT_FOUND = ("torch", "pytest", *HOSTILE)
FOUND = f"""
from importlib.util import find_spec
import dpaudit.generation, dpaudit.reports
print(dpaudit.reports.__file__, *map(find_spec, {NOT_FOUND}), sep="\\n")
"""


def build(folder: Path) -> tuple[Path, Path]:
    """A wheel, and the source distribution it is built from, of a copy: building writes there."""
    source = folder / "source"
    for name in ("dpaudit", "generation", "reports", *NOT_INSTALLED):
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for path in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / path, source)
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True, env=ALONE)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def expected_files() -> set[str]:
    """Every file of the package by its place in the wheel, but for caches."""
    places = {
        "dpaudit": "dpaudit",
        "generation": "dpaudit/generation",
        "reports": "dpaudit/reports",
    }
    return {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, place in places.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def required(lines: list[str]) -> dict[str, importlib.metadata.Distribution]:
    """The distributions that requirements name, without extras, and what these require in turn."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [Requirement(line) for line in lines]
    while waiting:
        needed = waiting.pop()
        key = canonicalize_name(needed.name)
        if key not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found[key] = importlib.metadata.distribution(needed.name)
            waiting += [Requirement(line) for line in found[key].requires or ()]
    return found


def clean_environment(folder: Path, wheel: Path, requirements: list[str]) -> Path:
    """A virtual environment of the wheel and its dependencies alone.

    The dependencies are links to those that the tests run with.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for distribution in required(requirements).values():
        for top in {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "--disable-pip-version-check",
    ]
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
        env=ALONE,
    )
    return folder / "bin"


def release(run: Path, key: Path, folder: Path) -> Path:
    """A release of a run, written here, where pyarrow is."""
    write_release(audit_run(run), RunReader(run), folder, signer=read_signer(key))
    return folder


def metadata(archive: zipfile.ZipFile) -> Message:
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(archive.read(name).decode("utf-8"))


def test_wheel_installs_and_runs_in_a_clean_environment(
    make_run: Callable[[], Any], tmp_path: Path
) -> None:
    wheel, sdist = build(tmp_path)
    assert sdist.stat().st_size > 100_000
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = metadata(archive)
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert names == expected_files()
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload().startswith("# dpaudit")
    assert set(about.get_all("Provides-Extra")) >= {"generate", "evaluate", "ray"}

    commands = clean_environment(tmp_path / "clean", wheel, about.get_all("Requires-Dist"))
    run = make_run().path

    # Whoever audits stands in a folder of their own, whose packages may have the names of ours, or
    # the library's.
    folder = tmp_path / "folder"
    for name in (*HOSTILE, "types"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit({TRAP!r})")

    def output(*command: str, code: int = 0, trap: bool = False, **environment: str) -> str:
        called = [str(commands / command[0]), *command[1:]]
        done = subprocess.run(
            called, cwd=folder, env=ALONE | environment, capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
        assert (TRAP in done.stderr) == trap, done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    for name in (*HOSTILE, "types"):  # the traps work: this is what Python itself finds here
        output("python", "-c", f"import {name}", code=1, trap=True)
    installed, *top_level = output("python", "-P", "-c", FOUND).splitlines()
    assert Path(installed).is_relative_to(tmp_path / "clean")
    assert top_level == ["None"] * len(NOT_FOUND)
    assert about["Version"] in output("dpaudit", "--version")
    output("dpaudit", "report", str(run), "--out", "report", "--tokenizer", str(run))
    written = {path.name for path in (folder / "report").iterdir()}
    assert written >= {"report.html", "report.json", "report.md", "junit.xml"}
    verify = ("verify", str(run), "--tokenizer", str(run))
    output("python", "-P", "-m", "dpaudit", *verify)
    # Without -P, Python looks in the folder first, and would take its own `types` from there. Ours
    # it must not.
    shutil.rmtree(folder / "types")
    output("python", "-m", "dpaudit", *verify)
    output("dpaudit", *verify, PYTHONPATH=".")

    # A release is verified where nothing else is installed, and neither the run nor a private key
    # is there.
    output("dpaudit", "key", "--out", "key")
    released = release(run, folder / "key", tmp_path / "texts")
    gate = ("verify", str(released), "--key", "key.pub")
    output("dpaudit", *gate)
    (released / "README.md").write_text("another card")
    assert "FAIL The card (README.md) was changed" in output("dpaudit", *gate, code=1)
    # To write one takes pyarrow, which is said.
    said = output("dpaudit", "release", str(run), "--out", "more", "--unsigned", code=2)
    (remedy,) = re.findall("Run `(.*)` to write releases", said)
    assert shlex.split(remedy) == ["pip", "install", f"{wheel}[release]"]
    pip = [
        sys.executable,
        "-m",
        *shlex.split(remedy),
        "--dry-run",
        "--no-deps",
        "--no-index",
        "--ignore-installed",
    ]
    subprocess.run(pip, check=True, capture_output=True, env=ALONE)
