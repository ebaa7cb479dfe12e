# ruff: noqa: S603, S607, T201
"""python .ci/changed.py groups|options: which groups of tests a change is about.

`groups` prints the groups that have to run, `options` what pytest needs to leave the others out.
The change is what HEAD and the working tree have that HEAD's first parent has not. HEAD must be a
merge into main: of any other commit nobody knows whether all tests saw its parent. All groups run
where there is no such base, with CI_ALL=1, and where a path changed that is not named here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The subject that git gives a merge on main; of one on another branch it says "into" which.
LANDED = re.compile(r"Merge branch '\S+'")
#: Tests that no group takes anything from, but for what it uses.
OTHER_TESTS = ("tests/*test_*.py", "tests/*/golden/*", "tests/mutants/*", "tests/receivers/*")
#: Arithmetic and judgement, which other tests hold to the same runs.
AUDITOR = ("dpaudit/accounting/*", "dpaudit/auditing/*", "dpaudit/results/catalogue/*")
DOCUMENTS = ("docs/*", "docsite/*", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml")


@dataclass(frozen=True)
class Group:
    """Tests that run where a change is about them.

    Attributes:
        tests: files and folders that are left out otherwise; none where .ci/run itself asks for the
            group.
        unrelated: patterns of paths whose change these tests cannot notice, or others notice it as
            well.
        uses: patterns of tests that concern the group all the same.
        new_files: whether files that come or go in a package concern it, whatever their path.
    """

    tests: tuple[str, ...]
    unrelated: tuple[str, ...]
    uses: tuple[str, ...] = ()
    new_files: bool = False

    @property
    def own(self) -> tuple[str, ...]:
        """Patterns of paths that concern the group first of all."""
        return (*self.tests, *(f"{test}/*" for test in self.tests), *self.uses)


GROUPS = {
    "site": Group(
        ("tests/docs/test_site.py", "tests/docs/test_site_pages.py"),
        ("benchmarks/*", "dpaudit/runs/engines/*", "reports/*"),
    ),
    "browser": Group(
        ("tests/browser",),
        (
            *DOCUMENTS,
            "benchmarks/*",
            "dpaudit/accounting/*",
            "dpaudit/auditing/checks/*",
            "dpaudit/commands/*",
            "dpaudit/contrib/*",
            "dpaudit/runs/engines/*",
            "dpaudit/mechanisms/*",
            "dpaudit/recording/*",
            "dpaudit/releasing/*",
            "generation/*",
            "README.md",
        ),
        uses=(
            "generation/experiments/cluster_page.py",
            "tests/generation/experiments/test_cluster_page.py",
        ),
    ),
    "packaging": Group(
        ("tests/packaging",),
        (
            *DOCUMENTS,
            *AUDITOR,
            "benchmarks/*",
            "dpaudit/mechanisms/*",
            "dpaudit/recording/*",
            "generation/*",
            "reports/*",
        ),
        uses=("tests/mechanisms/test_toy_aggregator.py",),
        new_files=True,
    ),
    "ray": Group(
        ("tests/engines/test_ray.py", "tests/generation/test_generation_on_ray.py"),
        (
            *DOCUMENTS,
            *AUDITOR,
            "dpaudit/contrib/*",
            "dpaudit/recording/*",
            "dpaudit/releasing/*",
            "examples/*",
            "reports/*",
            "README.md",
        ),
    ),
    "invink": Group(
        (),
        (
            *DOCUMENTS,
            *AUDITOR,
            "benchmarks/*",
            "dpaudit/runs/engines/*",
            "dpaudit/releasing/*",
            "reports/*",
            "README.md",
        ),
        uses=("tests/recording/*", "tests/runs/test_round_trip.py"),
    ),
}
#: Folders whose files are installed.
PACKAGES = ("dpaudit/*", "generation/*", "reports/*")


@dataclass(frozen=True)
class Change:
    """A changed path, and whether the file comes or goes."""

    path: str
    new: bool = False


def _git(root: Path, *arguments: str) -> list[str]:
    """Return the fields that git prints, each with a null byte after it."""
    command = ["git", "-c", "core.quotePath=false", *arguments]
    return subprocess.run(
        command, cwd=root, check=True, capture_output=True, text=True
    ).stdout.split("\0")[:-1]


def _base_is_known(root: Path) -> bool:
    """Return whether HEAD is on a branch, and what `git merge --no-ff` made of another one."""
    on_a_branch = not subprocess.run(
        ["git", "symbolic-ref", "-q", "HEAD"], cwd=root, check=False, capture_output=True
    ).returncode
    parents, subject = _git(root, "log", "-1", "-z", "--format=%P%x00%s")[:2]
    return on_a_branch and len(parents.split()) == 2 and LANDED.fullmatch(subject) is not None


def changes(root: Path) -> list[Change] | None:
    """Return what HEAD and the working tree change, or None where the base is not known."""
    try:
        if not _base_is_known(root):
            return None
        listed = _git(root, "diff", "--name-status", "--no-renames", "-z", "HEAD^1")
        untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None
    tracked = [
        Change(path, status != "M") for status, path in zip(listed[::2], listed[1::2], strict=True)
    ]
    return tracked + [Change(path, new=True) for path in untracked]


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def concerns(group: Group, change: Change) -> bool:
    """Return whether a group has to run because of one path."""
    if _matches(change.path, group.own) or (
        group.new_files and change.new and _matches(change.path, PACKAGES)
    ):
        return True
    return not _matches(change.path, (*OTHER_TESTS, *group.unrelated))


def needed(found: Sequence[Change] | None) -> set[str]:
    """Return the names of the groups that have to run."""
    if not found or os.environ.get("CI_ALL"):
        return set(GROUPS)
    return {
        name for name, group in GROUPS.items() if any(concerns(group, change) for change in found)
    }


def main(asked: str) -> None:
    """Print what was asked for."""
    run = needed(changes(ROOT))
    if asked == "groups":
        print(*sorted(run))
    else:
        left_out = [
            test for name, group in GROUPS.items() if name not in run for test in group.tests
        ]
        print(*(f"--ignore={test}" for test in left_out))


if __name__ == "__main__":
    main(*sys.argv[1:])
