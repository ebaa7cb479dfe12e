"""Every code block in the README and the docs runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: `make` builds environments: .ci/run runs these two themselves. `console` blocks need minutes of generation; the
#: same commands run in tests/generation and in `make demo`.
RUN_BY_CI = {"make demo\n", "make test\n"}


def blocks(document: Path, language: str) -> list[str]:
    found = BLOCK.findall(document.read_text(encoding="utf-8"))
    return [text for kind, text in found if kind == language and text not in RUN_BY_CI]


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder that looks like the repository's root to the documents, and can be written to."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_run_in_order(document: Path, workplace: Path) -> None:
    source = "\n".join(blocks(document, "python"))
    subprocess.run([sys.executable, "-W", "error", "-c", source], cwd=workplace, check=True)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_shell_blocks_run(document: Path, workplace: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for block in blocks(document, "bash"):
        subprocess.run(["bash", "-euc", block], cwd=workplace, check=True, env={**os.environ, "PATH": path})


def test_ci_runs_what_the_readme_promises() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in RUN_BY_CI:
        assert command in (ROOT / "README.md").read_text(encoding="utf-8")
        assert command.strip() in ci


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
