"""Plant faults in a package and list the unnoticed: `python -m tests.mutants --package accounting`.

Every fault is planted in a copy of the repository. There those of the package's tests run that can
tell of its file, until one fails (likeliest_first.py). In the end the tests that failed run once
without a fault: a kill is the mutant's doing. Read the survivors by hand: some change nothing that
anybody could notice.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from tests.mutants.planting import Mutant, mutants

#: The tests among which those are that ought to notice a fault in a package.
TESTS = {
    "mechanisms": (
        "tests/mechanisms",
        "tests/accounting",
        "tests/runs",
        "tests/checks/test_clean_runs.py",
    ),
    "accounting": (
        "tests/accounting",
        "tests/claims",
        "tests/auditing",
        "tests/checks/test_clean_runs.py",
    ),
    "checks": ("tests/checks", "tests/auditing"),
}
#: Seconds until one test counts as hung, which is a kill, and until all tests of a mutant were
#: given enough time.
HUNG, PATIENCE = 60, 150
#: What became of a mutant.
KILLED, SURVIVED, UNDECIDED = "killed", "survived", "undecided"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant, and the test that failed."""

    mutant: Mutant
    outcome: str
    killer: str = ""


def copy_repository(root: Path, to: Path) -> None:
    """Copy the checkout, with the egg-info's entry points; byte code goes by source digests."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "site")
    shutil.copytree(root, to, symlinks=True, ignore=ignored)
    compile_dir(to, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)


def run_tests(
    copy: Path, tests: Sequence[str], seconds: float, mutated: str = ""
) -> tuple[str, list[str]]:
    """Run tests in a copy; return what became of its mutant, and the tests that failed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not model",
    ]
    command += ["-o", f"faulthandler_timeout={HUNG}", "-o", "faulthandler_exit_on_timeout=true"]
    command += ["-x", "-p", "tests.mutants.likeliest_first"] if mutated else []
    path = os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MUTATED": mutated}
    process = subprocess.Popen(
        [*command, *tests],
        cwd=copy,
        env=env,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said, _ = process.communicate(timeout=max(seconds, 0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return UNDECIDED, []
    failed = [
        line.split(" ", 2)[1]
        for line in said.splitlines()
        if line.startswith(("FAILED tests/", "ERROR tests/"))
    ]
    return KILLED if process.returncode else SURVIVED, failed


def judged(mutant: Mutant, tests: Sequence[str], copy: Path, until: float) -> Verdict:
    """Plant the fault in a copy, run the tests, and take it out again."""
    left = until - time.monotonic()
    if left <= 0:
        return Verdict(mutant, UNDECIDED)
    path = copy / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutant.source, encoding="utf-8")
    try:
        outcome, failed = run_tests(copy, tests, min(left, PATIENCE), mutant.file)
    finally:
        path.write_text(text, encoding="utf-8")
    return Verdict(mutant, outcome, "".join(failed[:1]))


def verdicts(
    found: Sequence[Mutant], tests: Sequence[str], root: Path, jobs: int, until: float
) -> Iterator[Verdict]:
    """Yield each mutant's verdict as it comes.

    Leave with an error where a killer fails without a fault.
    """
    copies: SimpleQueue[Path] = SimpleQueue()

    def judge(mutant: Mutant) -> Verdict:
        copy = copies.get()
        try:
            return judged(mutant, tests, copy, until)
        finally:
            copies.put(copy)

    with TemporaryDirectory(prefix="dpaudit-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        whole = Path(folder, "0")
        copy_repository(root, whole)
        if run_tests(whole, ["--collect-only", *tests], PATIENCE)[0] != SURVIVED:
            sys.exit(f"No fault is planted, and these tests cannot be collected: {tests}")
        copies.put(whole)
        for number in range(1, jobs):
            copies.put(Path(shutil.copytree(whole, Path(folder, str(number)), symlinks=True)))
        killers = set[str]()
        for future in as_completed([pool.submit(judge, mutant) for mutant in found]):
            yield (verdict := future.result())
            killers |= {verdict.killer} - {""}
        _, failed = run_tests(whole, sorted(killers), 10 * PATIENCE) if killers else ("", [])
    if failed:
        sys.exit(
            f"These tests fail without a fault, so nothing is known of what they killed: {failed}"
        )


def main() -> None:
    """Run a sample of mutants, and write down those that were not killed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Plant faults and see who notices."
    )
    parser.add_argument("--package", required=True, choices=TESTS)
    parser.add_argument(
        "--sample", type=int, default=300, metavar="N", help="mutants to try (default: 300)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="another seed draws other mutants (default: 0)"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="mutants at a time"
    )
    parser.add_argument(
        "--minutes", type=float, default=24 * 60, help="begin no mutant after this time"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="list of survivors (build/mutants-PACKAGE.txt)"
    )
    asked, root = parser.parse_args(), Path.cwd()
    until = time.monotonic() + asked.minutes * 60
    out = asked.out or root / f"build/mutants-{asked.package}.txt"
    out.parent.mkdir(parents=True, exist_ok=True)
    found = mutants(asked.package, root, asked.sample, asked.seed)
    tally = Counter[str]()
    with out.open("w", encoding="utf-8") as file:
        for verdict in verdicts(found, TESTS[asked.package], root, asked.jobs, until):
            tally[verdict.outcome] += 1
            mutant = verdict.mutant
            print(f"{mutant.file}:{mutant.line}: {verdict.outcome} {verdict.killer}", flush=True)  # noqa: T201
            if verdict.outcome != KILLED:
                file.write(f"# {verdict.outcome}: {mutant.file}:{mutant.line}\n{mutant.diff}\n\n")
                file.flush()
    print(f"{dict(tally)}; those not killed are in {out}")  # noqa: T201


if __name__ == "__main__":
    main()
