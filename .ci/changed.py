# ruff: noqa: S603, S607, T201
"""python .ci/changed.py groups|options: which groups of tests a change is about.

`groups` prints the groups that have to run, `options` what pytest needs to leave the others out.
The change is what HEAD and the working tree have that HEAD's first parent has not. HEAD must be a
merge: of a single commit nobody knows whether the tests saw its parent. All groups run where there
is no such base, with CI_ALL=1, and where a path changed that is not named here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Tests that no group takes anything from, but for what it uses.
OTHER_TESTS = ("tests/*test_*.py", "tests/*/golden/*", "tests/mutants/*", "tests/receivers/*")
#: Arithmetic and judgement, which other tests hold to the same runs.
AUDITOR = ("dpaudit/accounting/*", "dpaudit/auditing/*", "dpaudit/catalogue/*", "dpaudit/checks/*")
DOCUMENTS = ("docs/*", "docsite/*", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml")


@dataclass(frozen=True)
class Group:
    """Tests that run where a change is about them.

    Attributes:
        tests: files and folders that are left out otherwise; none where .ci/run itself asks for the group.
        unrelated: patterns of paths whose change these tests cannot notice, or others notice it as well.
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
        ("benchmarks/*", "dpaudit/engines/*", "reports/*"),
    ),
    "browser": Group(
        ("tests/browser",),
        (
            *DOCUMENTS,
            "benchmarks/*",
            "dpaudit/accounting/*",
            "dpaudit/checks/*",
            "dpaudit/commands/*",
            "dpaudit/contrib/*",
            "dpaudit/engines/*",
            "dpaudit/mechanisms/*",
            "dpaudit/recording/*",
            "dpaudit/releasing/*",
            "generation/*",
            "README.md",
        ),
        uses=("tests/reports/test_clusters_report.py",),
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
        (*DOCUMENTS, *AUDITOR, "benchmarks/*", "dpaudit/engines/*", "dpaudit/releasing/*", "reports/*", "README.md"),
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
    """Return the fields that git prints, separated by null bytes."""
    command = ["git", "-c", "core.quotePath=false", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")[:-1]


def _has(root: Path, *arguments: str) -> bool:
    return not subprocess.run(["git", *arguments], cwd=root, check=False, capture_output=True).returncode


def changes(root: Path) -> list[Change] | None:
    """Return what HEAD and the working tree change, or None where the base is not known."""
    try:
        on_a_branch = _has(root, "symbolic-ref", "-q", "HEAD")
        merge = _has(root, "rev-parse", "-q", "--verify", "HEAD^2^{tree}")
        if not (on_a_branch and merge):
            return None
        listed = _git(root, "diff", "--name-status", "--no-renames", "-z", "HEAD^1")
        untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    except (OSError, subprocess.CalledProcessError):
        return None
    tracked = [Change(path, status != "M") for status, path in zip(listed[::2], listed[1::2], strict=True)]
    return tracked + [Change(path, new=True) for path in untracked]


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def concerns(group: Group, change: Change) -> bool:
    """Return whether a group has to run because of one path."""
    if _matches(change.path, group.own) or (group.new_files and change.new and _matches(change.path, PACKAGES)):
        return True
    return not _matches(change.path, (*OTHER_TESTS, *group.unrelated))


def needed(found: Sequence[Change] | None) -> set[str]:
    """Return the names of the groups that have to run."""
    if not found or os.environ.get("CI_ALL"):
        return set(GROUPS)
    return {name for name, group in GROUPS.items() if any(concerns(group, change) for change in found)}


def main(asked: str) -> None:
    """Print what was asked for."""
    run = needed(changes(ROOT))
    if asked == "groups":
        print(*sorted(run))
    else:
        left_out = [test for name, group in GROUPS.items() if name not in run for test in group.tests]
        print(*(f"--ignore={test}" for test in left_out))


if __name__ == "__main__":
    main(*sys.argv[1:])
