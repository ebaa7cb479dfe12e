"""Groups of tests that .ci/run leaves out, in small repositories.

Anything unknown makes all of them run.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_changed", ROOT / ".ci/changed.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


CHANGED = loaded()
ALL = set(CHANGED.GROUPS)


@pytest.fixture(autouse=True)
def no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI_ALL", raising=False)


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, **files: str) -> None:
    for path, text in files.items():
        path = path.replace("__", "/") + ".py"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    git(folder, "add", "--all")
    git(folder, "commit", "-m", "a change")


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """A branch of two commits, about checks and about engines, merged."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-b", "main")
    commit(
        folder,
        dpaudit__auditing__checks__one="1",
        dpaudit__runs__engines__ray="1",
        dpaudit__accounting__old="1",
    )
    git(folder, "checkout", "-b", "branch")
    commit(folder, dpaudit__runs__engines__ray="2")
    commit(folder, dpaudit__auditing__checks__one="2")
    git(folder, "checkout", "main")
    git(folder, "merge", "--no-ff", "--no-edit", "branch")
    return folder


def test_all_commits_of_a_merge_count(merged: Path) -> None:
    found = CHANGED.changes(merged)
    assert {(change.path, change.new) for change in found} == {
        ("dpaudit/auditing/checks/one.py", False),
        ("dpaudit/runs/engines/ray.py", False),
    }
    assert "ray" in CHANGED.needed(found)


def test_working_tree_counts(merged: Path) -> None:
    (merged / "dpaudit/auditing/checks/two é.py").write_text("new", encoding="utf-8")
    (merged / "dpaudit/accounting/old.py").unlink()
    new = {change.path for change in CHANGED.changes(merged) if change.new}
    assert new == {"dpaudit/auditing/checks/two é.py", "dpaudit/accounting/old.py"}


def test_single_commit_has_no_known_base(merged: Path) -> None:
    commit(merged, dpaudit__auditing__checks__one="3")
    assert CHANGED.changes(merged) is None


def test_merge_into_another_branch_has_no_known_base(merged: Path) -> None:
    git(merged, "checkout", "branch")
    commit(merged, dpaudit__auditing__checks__one="3")
    git(merged, "merge", "--no-ff", "--no-edit", "main")
    assert CHANGED.changes(merged) is None


def test_first_commit_has_no_base(tmp_path: Path) -> None:
    git(tmp_path, "init")
    commit(tmp_path, one="1")
    assert CHANGED.changes(tmp_path) is None


def test_shallow_clone_has_no_base(merged: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--depth", "1", merged.as_uri(), "shallow")
    assert CHANGED.changes(tmp_path / "shallow") is None


def test_detached_checkout_has_no_base(merged: Path) -> None:
    git(merged, "checkout", "--detach")
    assert CHANGED.changes(merged) is None


def test_folder_without_git_has_no_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert CHANGED.changes(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert CHANGED.changes(tmp_path) is None


def test_all_groups_run_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CHANGED.needed(None) == CHANGED.needed([]) == ALL
    monkeypatch.setenv("CI_ALL", "1")
    assert CHANGED.needed([CHANGED.Change("dpaudit/auditing/checks/claim.py")]) == ALL


@pytest.mark.parametrize(
    ("path", "groups"),
    [
        ("a new folder/file.py", ALL),
        ("pyproject.toml", ALL),
        ("constraints.txt", ALL),
        ("Makefile", ALL),
        (".ci/run", ALL),
        ("tests/conftest.py", ALL),
        ("tests/forging.py", ALL),
        ("dpaudit/errors.py", ALL),
        ("tests/checks/test_faults.py", set()),
        ("tests/reports/golden/a.html", set()),
        ("tests/browser/probes.js", ALL),
        ("tests/browser/test_pages.py", {"browser"}),
        ("tests/generation/experiments/test_cluster_page.py", {"browser"}),
        ("tests/packaging/test_wheel.py", {"packaging"}),
        ("tests/engines/test_ray.py", {"ray"}),
        ("tests/engines/test_local.py", set()),
        ("tests/generation/test_generation_on_ray.py", {"ray"}),
        ("tests/generation/conftest.py", ALL),
        ("tests/recording/test_invink.py", {"invink"}),
        ("tests/docs/test_site.py", {"site"}),
        ("docs/claims.md", {"site"}),
        ("README.md", {"site", "packaging"}),
        ("dpaudit/auditing/checks/claim.py", {"site"}),
        ("dpaudit/runs/engines/ray.py", {"ray", "packaging"}),
        ("dpaudit/recording/generators.py", {"site", "invink"}),
        ("dpaudit/runs/reader.py", ALL),
        ("reports/figures.py", {"browser"}),
        ("generation/algorithm.py", {"site", "ray", "invink"}),
    ],
)
def test_change_of_a_file_runs_its_groups(path: str, groups: set[str]) -> None:
    assert CHANGED.needed([CHANGED.Change(path)]) == groups


def test_file_that_comes_or_goes_concerns_the_wheel() -> None:
    assert "packaging" in CHANGED.needed([CHANGED.Change("reports/figures.py", new=True)])
    assert "packaging" not in CHANGED.needed([CHANGED.Change("tests/checks/test_new.py", new=True)])


def test_every_named_path_is_there() -> None:
    for group in CHANGED.GROUPS.values():
        assert all((ROOT / test).exists() for test in group.tests)
        for pattern in (*group.unrelated, *group.uses):
            assert any(ROOT.glob(pattern)), pattern


def test_options_leave_out_what_does_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CHANGED, "changes", lambda root: [CHANGED.Change("reports/figures.py")])
    CHANGED.main("groups")
    CHANGED.main("options")
    groups, options = capsys.readouterr().out.splitlines()
    assert groups == "browser"
    assert set(options.split()) == {
        f"--ignore={test}"
        for name, group in CHANGED.GROUPS.items()
        if name != "browser"
        for test in group.tests
    }
