"""The GitHub Action: its steps run as on a runner, but for what `pip install` fetches."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpaudit.commands.cli import cli

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{ (inputs|steps)\.([\w.-]+) \}\}")
#: Stands in for `python3 -I -m venv DIR`: the environment's pip notes what it is asked for, its
#: dpaudit is the one tested. What the workspace holds must not run: it has a module of the name of
#: one that venv imports.
PYTHON = """#!/bin/sh
for DIR; do :; done
set -e
"{python}" "$@" --help >/dev/null
mkdir -p "$DIR/bin"
printf '#!/bin/sh\\nprintf "%%s\\\\n" "$@" >"{noted}"\\n' >"$DIR/bin/pip"
printf '#!/bin/sh\\nexec {dpaudit} "$@"\\n' >"$DIR/bin/dpaudit"
chmod +x "$DIR/bin/pip" "$DIR/bin/dpaudit"
"""


class Job:
    """One job on a runner: what its steps print, and what they leave."""

    def __init__(self, folder: Path, dpaudit: str = f"{sys.executable} -P -m dpaudit") -> None:
        """`dpaudit`: what is installed as the command."""
        self.folder, self.printed, self.outputs = folder, "", dict[str, str]()
        self.noted, self.temp = folder / "noted", folder / "temp of the runner"
        for part in ("bin", self.temp, "work"):
            (folder / part).mkdir()
        (folder / "bin" / "python3").write_text(
            PYTHON.format(noted=self.noted, python=sys.executable, dpaudit=dpaudit)
        )
        (folder / "bin" / "python3").chmod(0o755)
        self.work = folder / "work"
        (self.work / "logging.py").write_text(
            "raise SystemExit('a file of the workspace was run')\n"
        )
        self.summary = folder / "summary"
        self.summary.touch()

    def run(self, **inputs: str) -> int:
        """The steps in order, until one fails: its exit code."""
        values = {name: str(field.get("default", "")) for name, field in ACTION["inputs"].items()}
        values |= {name.replace("_", "-"): value for name, value in inputs.items()}

        def value(found: re.Match[str]) -> str:
            return (
                values[found[2]]
                if found[1] == "inputs"
                else self.outputs.get(found[2].rpartition(".")[2], "")
            )

        for step in STEPS:
            if "if" in step and not values[re.fullmatch(r"inputs\.(\w+) != ''", step["if"])[1]]:  # type: ignore[index]
                continue
            given = {name: EXPRESSION.sub(value, text) for name, text in step["env"].items()}
            if code := self._step(step["run"], given):
                return code
        return 0

    def _step(self, script: str, given: dict[str, str]) -> int:
        (self.folder / "output").write_text("")
        environment = os.environ | given | {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }  # fmt: skip
        (self.folder / "script.sh").write_text(script)
        # As a runner starts `shell: bash`.
        command = [
            "bash",
            "--noprofile",
            "--norc",
            "-eo",
            "pipefail",
            str(self.folder / "script.sh"),
        ]
        done = subprocess.run(
            command, cwd=self.work, env=environment, capture_output=True, text=True
        )
        self.printed += done.stdout + done.stderr
        self.outputs |= dict(
            line.split("=", 1) for line in (self.folder / "output").read_text().splitlines()
        )
        return done.returncode


@pytest.fixture
def job(tmp_path: Path, warm_dpaudit: Path) -> Job:
    pytest.importorskip("pyarrow")
    (tmp_path / "job").mkdir()
    return Job(tmp_path / "job", f"{warm_dpaudit}")


@pytest.fixture
def cold_job(tmp_path: Path) -> Job:
    """One whose commands are as they are installed."""
    pytest.importorskip("pyarrow")
    (tmp_path / "cold").mkdir()
    return Job(tmp_path / "cold")


def signed(keys: Path) -> dict[str, str]:
    return {"key": (keys / "key").read_text(), "public_key": str(keys / "key.pub")}


def known(run: Path) -> str:
    """The option that says which tokenizer decodes a run of these tests."""
    return f"--tokenizer={run}\n"


def test_no_value_becomes_part_of_a_script() -> None:
    for step in STEPS:
        assert "${{" not in step["run"] and step["shell"] == "bash" and "uses" not in step
        assert all(EXPRESSION.fullmatch(value) for value in step["env"].values())
        assert {
            found[2] for text in step["env"].values() for found in EXPRESSION.finditer(text)
        } <= {
            *ACTION["inputs"],
            *(f"generate.outputs.{name}" for name in ACTION["outputs"]),
        }


def test_what_passes_is_released_signed_and_verified(
    cold_job: Job, make_run: Callable[..., Any], keys: Path
) -> None:
    job, run = cold_job, make_run(aggregator="mean", sizes=(3, 4, 5, 4))
    (job.work / "policy.yaml").write_text("policy_version: 1\nepsilon: 1000\n")
    options = known(run.path) + "--epsilon=900\n\n--delta=1e-5\n  \n--test-share=0.4\n"
    assert (
        job.run(
            run=str(run.path), out="texts", policy="policy.yaml", options=options, **signed(keys)
        )
        == 0
    ), (job.work / "dpaudit.log").read_text()
    assert (job.work / "texts" / "data" / "test.parquet").is_file()
    assert "pass" in job.printed and "(900, 1e-5)-differentially private" in job.summary.read_text()
    assert {path.name for path in (job.work / "dpaudit-findings").iterdir()} == {
        "junit.xml",
        "findings.sarif",
    }
    assert (job.work / "dpaudit.log").stat().st_mode & 0o077 == 0
    assert not (job.temp / "release-key").exists()
    assert job.noted.read_text().splitlines()[-1] == f"{ROOT}[release]"
    # A second release into the same folder would be another text under the same name.
    for more in (options, "--help"):
        assert job.run(run=str(run.path), out="texts", options=more, **signed(keys)) == 2
    assert {path.name for path in job.work.iterdir()} == {
        *("logging.py", "policy.yaml", "texts", "dpaudit.log", "dpaudit-findings"),
    }


def test_an_option_does_not_say_otherwise_what_an_input_says(
    job: Job, make_run: Callable[..., Any], keys: Path
) -> None:
    run = make_run(aggregator="mean", sizes=(3, 4, 5, 4))
    assert job.run(run=str(run.path), out="b", options="--help", **signed(keys)) == 2
    for more in (
        "--out=elsewhere",
        "--level=2",
        f"--key={keys / 'other'}",
        "--junit=elsewhere",
        "--unsigned",
    ):
        options = f"{known(run.path)}--epsilon=900\n{more}"
        assert job.run(run=str(run.path), out="b", options=options, **signed(keys)) == 2, more
    assert {path.name for path in job.work.iterdir()} <= {
        "logging.py",
        "dpaudit.log",
        "dpaudit-findings",
    }


def test_a_log_that_cannot_be_written_is_no_outcome_of_the_audit(
    job: Job, make_run: Callable[..., Any]
) -> None:
    run = str(make_run(aggregator="mean").path)
    assert (
        job.run(run=run, out="texts", log="texts/log") == 2 and "cannot be written" in job.printed
    )
    for findings in ("found", "found/"):
        assert job.run(run=run, out="texts", log="found/log", findings=findings) == 2
    assert job.printed.count("log is private") == 2
    assert "audit" not in job.printed.replace("dpaudit", "") and not (job.work / "texts").exists()


def test_what_fails_is_not_released_and_the_jobs_log_has_no_figure(
    job: Job, make_run: Callable[..., Any], keys: Path
) -> None:
    run = make_run(aggregator="median")
    cost = f"{run.audit().guarantees.ex_post.batch_epsilon:.4f}"[:-1]
    assert job.run(run=str(run.path), out="texts", options="--epsilon=0.5", **signed(keys)) == 1
    assert cost in (job.work / "dpaudit.log").read_text()
    assert "audit does not" in job.printed + job.summary.read_text()
    assert not (job.work / "texts").exists() and not (job.temp / "release-key").exists()
    found = [path.read_text() for path in (job.work / "dpaudit-findings").iterdir()]
    assert len(found) == 2 and all("claim.epsilon" in text for text in found)
    assert not any(cost in text for text in (job.printed, job.summary.read_text(), *found))


def test_what_is_not_verified_is_not_released_and_called_that(
    job: Job, make_run: Callable[..., Any]
) -> None:
    run = make_run(aggregator="mean", top_k=5, sizes=(4,))
    assert run.audit().verdict == "not_verified"
    assert job.run(run=str(run.path), out="texts", options="--no-model") == 1
    assert "not verified" in job.printed + job.summary.read_text()
    assert not (job.work / "texts").exists()


def test_a_key_that_did_not_sign_and_a_missing_one_shut_the_gate(
    job: Job, make_run: Callable[..., Any], keys: Path
) -> None:
    path = make_run(aggregator="mean").path
    run, options = str(path), known(path)
    foreign = signed(keys) | {"public_key": str(keys / "other.pub")}
    assert job.run(run=run, out="a", options=options, **foreign) == 1
    assert "a different key" in job.printed
    assert (
        "does not verify" in job.summary.read_text()
        and "differentially private" not in job.summary.read_text()
    )
    (job.work / "dpaudit.log").unlink()
    for given in ({"key": signed(keys)["key"]}, {"public_key": signed(keys)["public_key"]}):
        assert job.run(run=run, out="a", options=options, **given) == 2
        assert "public-key go together" in job.summary.read_text()
    assert (
        job.run(run=run, out="a", options=options, **signed(keys) | {"public_key": "nowhere.pub"})
        == 2
    )
    assert not (job.work / "dpaudit.log").read_text(), "nothing was audited"
    assert job.run(run=run, out="a", evidence="3", **signed(keys)) != 0
    assert job.noted.read_text().splitlines()[-1] == f"{ROOT}[generate,release]"
    assert not (job.work / "a").exists(), "what does not verify does not stay"


def test_hostile_names_are_names(job: Job, make_run: Callable[..., Any], keys: Path) -> None:
    run = make_run(aggregator="mean")
    for name in ('a"; touch planted; "$(touch planted)`touch planted`', "--json"):
        (job.work / name).symlink_to(run.path)
        # no such file: a folder
        assert job.run(run=name, out=f"texts of {name}", options=f"--about={name}") == 2
        assert job.run(run=name, out=f"./texts of {name}", options=known(run.path)) == 0, (
            job.work / "dpaudit.log"
        ).read_text()
    assert (
        job.run(run=str(run.path), out="x", options="--epsilon=3; touch planted\n$(touch planted)")
        == 2
    )
    assert not list(job.folder.rglob("planted"))


def test_a_config_that_cannot_be_used_is_not_generated(job: Job) -> None:
    (job.work / "config.yaml").write_text("data: {}\n")
    assert job.run(config="config.yaml", run="run", out="texts") == 1
    assert "Not generated" in job.printed and not (job.work / "texts").exists()


def test_the_documents_workflow_says_what_the_action_takes() -> None:
    document = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    jobs = yaml.safe_load(block)["jobs"]
    (given,) = [
        step["with"] for step in jobs["release"]["steps"] if "/dpaudit@" in step.get("uses", "")
    ]
    assert set(given) <= set(ACTION["inputs"])
    rows = re.findall(r"^\| (`.*?`) \|", document, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == set(
        ACTION["inputs"]
    )
    options = cli.commands["release"].make_context(
        "release",
        ["--out=texts", "--unsigned", *given["options"].split(), "--", str(ROOT)],
        resilient_parsing=True,
    )
    assert options.params["data"] == "/srv/records.csv"
    # What leaves the runner is the folder, after a pass, and the findings for readers outside.
    uploads = [
        step["with"] for step in jobs["release"]["steps"] if "upload" in step.get("uses", "")
    ]
    assert [next(iter({"path", "sarif_file"} & set(upload))) for upload in uploads] == [
        "path",
        "sarif_file",
    ]
    assert uploads[0]["path"] == given["out"]
    assert uploads[1]["sarif_file"] == f"{ACTION['inputs']['findings']['default']}/findings.sarif"
    (gate,) = [
        step["run"]
        for step in jobs["publish"]["steps"]
        if step.get("run", "").startswith("dpaudit ")
    ]
    params = (
        cli.commands["verify"]
        .make_context("verify", gate.split()[2:], resilient_parsing=True)
        .params
    )
    assert (params["evidence"], str(params["key"])) == (given["evidence"], given["public-key"])
