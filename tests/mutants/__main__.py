"""Plant faults one at a time, and see whether the tests notice: `python -m tests.mutants`, in the repository's root.

Every mutant is applied to a copy of the tracked files, and its tests run there until one fails, without the slow ones.
In the end all tests that failed run once without a fault: a kill is the mutant's doing. A mutant that does not fit its
file is an error.

results.md has a line for each. Its column "Before" says what became of the same fault at bb62dc5, before the tests were
halved; it is kept as it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from tests.mutants.catalogue import MUTANTS, Mutant

RESULTS = Path(__file__).with_name("results.md")
HEAD = "| Mutant | Fault | Before | After |\n|---|---|---|---|\n"
NOT_TRIED = "not tried"
#: Seconds until tests count as hung, which is a kill too.
PATIENCE, HUNG = 300, "tests that do not end"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: `by` is the first test that failed, None where none did, after so many seconds."""

    mutant: Mutant
    by: str | None
    seconds: float
    error: str = ""

    def __str__(self) -> str:
        """Its cell of the table."""
        return f"error: {self.error}" if self.error else f"killed by `{self.by}`" if self.by else "survived"


def table(known: dict[str, list[str]]) -> str:
    """The table of results, from what is known before and after by the mutants' ids, in the catalogue's order."""
    rows = [(f"`{mutant.id}`", mutant.fault, *known[mutant.id]) for mutant in MUTANTS]
    return HEAD + "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def known_results() -> dict[str, list[str]]:
    """Before and after by id, as results.md has them."""
    known = {mutant.id: [NOT_TRIED, NOT_TRIED] for mutant in MUTANTS}
    for line in RESULTS.read_text(encoding="utf-8").splitlines()[2:] if RESULTS.exists() else ():
        name, _, *cells = line.strip("| ").split(" | ")
        if name.strip("`") in known:
            known[name.strip("`")] = [cell.replace("\\|", "|") for cell in cells]
    return known


def problems(root: Path) -> Iterator[str]:
    """What keeps mutants from being planted, by id."""
    for name, count in Counter(mutant.id for mutant in MUTANTS).items():
        if count > 1:
            yield f"{name}: {count} mutants have this id"
    for mutant in MUTANTS:
        path = root / mutant.file
        found = path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0
        if found != 1 or mutant.old == mutant.new:
            yield f"{mutant.id}: its text is {found} times in {mutant.file}, instead of once, or it changes nothing"
        yield from (f"{mutant.id}: there is no {test}" for test in mutant.tests if not (root / test).exists())


def copy_tracked(root: Path, to: Path) -> None:
    """Copy what git tracks, links as links. Its byte code is known by the source's digest: ages are too close here."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(root / name):
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name, follow_symlinks=False)
    compile_dir(to, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)


def failures(root: Path, *arguments: str, patience: float | None = None) -> tuple[list[str], str]:
    """Which tests fail, in order, by pytest with these arguments; and why it could not say, if so."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *arguments]
    env = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    try:
        ran = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        return [HUNG], ""
    told = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    if ran.returncode in (0, 1, 2) and bool(told) == bool(ran.returncode):
        return [line.split(" ", 1)[1].split(" - ")[0] for line in told], ""
    return [], f"pytest left with {ran.returncode}: {(ran.stdout + ran.stderr).strip().splitlines()[-1:]}"


def judged(mutant: Mutant, root: Path) -> Verdict:
    """Plant the fault in a copy, run its tests, and take it out again."""
    path, start = root / mutant.file, time.monotonic()
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        found, error = failures(root, "-x", *mutant.tests, patience=PATIENCE)
    finally:
        path.write_text(text, encoding="utf-8")
    return Verdict(mutant, found[0] if found else None, time.monotonic() - start, error)


def verdicts(root: Path, mutants: Sequence[Mutant], jobs: int) -> Iterator[Verdict]:
    """Each mutant's verdict as it comes, `jobs` at a time in a copy each; in the end again those that do not hold."""
    copies: SimpleQueue[Path] = SimpleQueue()

    def judge(mutant: Mutant) -> Verdict:
        copy = copies.get()
        try:
            return judged(mutant, copy)
        finally:
            copies.put(copy)

    with TemporaryDirectory(prefix="dpaudit-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copy_tracked(root, Path(folder, str(number)))
            copies.put(Path(folder, str(number)))
        found = list[Verdict]()
        for future in as_completed([pool.submit(judge, mutant) for mutant in mutants]):
            found.append(future.result())
            yield found[-1]
        killers = {verdict.by for verdict in found if verdict.by and verdict.by != HUNG}
        failing, problem = failures(copies.get(), *sorted(killers)) if killers else ([], "")
        for verdict in found:
            if verdict.by in failing or (problem and verdict.by):
                yield replace(verdict, error=problem or f"{verdict.by} fails without it too")


def main() -> int:
    """Run the mutants; 0 where all died, 1 where some survived, 2 where one cannot be planted or judged."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Plant faults and see who notices.")
    parser.add_argument("--only", nargs="+", metavar="ID", choices=[mutant.id for mutant in MUTANTS])
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at a time (default: 1)")
    parser.add_argument("--check", action="store_true", help="only see whether every mutant can be planted")
    asked, root = parser.parse_args(), Path.cwd()
    wrong = list(problems(root))
    if wrong or asked.check:
        sys.stdout.writelines(f"{line}\n" for line in wrong or [f"{len(MUTANTS)} mutants can be planted"])
        return 2 if wrong else 0
    known, found = known_results(), dict[str, Verdict]()
    by_id = {mutant.id: mutant for mutant in MUTANTS}
    for verdict in verdicts(root, [by_id[name] for name in asked.only or by_id], asked.jobs):
        found[verdict.mutant.id] = verdict
        known[verdict.mutant.id][1] = str(verdict)
        print(f"{verdict.mutant.id}, {verdict.seconds:.0f} s: {verdict}", flush=True)  # noqa: T201
        RESULTS.write_text(table(known), encoding="utf-8")
    tally = Counter("error" if each.error else "died" if each.by else "survived" for each in found.values())
    print(f"{tally['died']} mutants died, {tally['survived']} survived, {tally['error']} are errors")  # noqa: T201
    return 2 if tally["error"] else 1 if tally["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
