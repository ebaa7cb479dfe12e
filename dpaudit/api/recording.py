"""Recording from Python: another generator's script, run under the recorder of that generator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dpaudit.api import places
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.api.reading import Run, open_run
from dpaudit.auditing.caveats import rows_held
from dpaudit.recording.generators import RecordingOptions, find_recorder
from dpaudit.recording.rerun import Script
from dpaudit.recording.rerun import rerun as run_again
from dpaudit.results import Amplification
from dpaudit.results.catalogue import sentence
from dpaudit.results.replay import Rerun
from dpaudit.runs import InputError, NotSecret, RunReader, secret_batches
from dpaudit.runs.layout import HASHES
from dpaudit.runs.manifest import Mend as Mend
from dpaudit.runs.manifest import TrainedOnRecords
from dpaudit.runs.storage import open_storage
from dpaudit.runs.writer import require_unused

_FORM = "The command must be a Python and a script's file."


def record(
    generator: str,
    out: str | os.PathLike[str],
    command: Sequence[str],
    *,
    mend: Sequence[Mend] = (),
    texts: int | None = None,
    max_tokens: int | None = None,
    claim: Literal["asked", "spent"] = "asked",
    trained_on_records: TrainedOnRecords = "unknown",
    quiet: bool = False,
    monitor: Monitor = SILENT,
) -> Run:
    """Record somebody else's generator while a script runs it.

    The script calls it once, unmodified but for `mend`.

    Args:
        generator: which one, such as invink.
        out: the run directory to write: a path or a URL.
        command: a Python that has dpaudit, a script's file, and the script's arguments.
        mend: parts of the generator to replace by sound ones: randomness, batches, lengths or rows.
        texts: a public number of texts, for mending lengths.
        max_tokens: a public number of tokens of a text, for mending lengths.
        claim: audit the epsilon that the script asks for, or the largest that the generator says it
            spent on a text.
        trained_on_records: whether the model's weights were trained on any of the private records.
        quiet: send what the script prints to standard error.
        monitor: is told what the run's claim rests on.

    Returns:
        The run. Audit it like any other.

    Raises:
        InputError: an argument or the directory cannot be used, or the script fails or writes no
            whole run.
    """
    find_recorder(generator)
    interpreter, *arguments = script_of(command)
    place = places.location_of(out, "out")
    _require_place(place)
    try:
        asked = RecordingOptions(place, tuple(mend), texts, max_tokens, claim, trained_on_records)
    except ValueError as error:
        raise InputError("mend", f"{error}.", "Give all three or none.") from None
    called = [interpreter, *asked.called(generator), *arguments]
    done = subprocess.run(called, check=False, stdout=sys.stderr if quiet else None)  # noqa: S603
    whole = open_storage(place).exists(HASHES)
    if done.returncode or not whole:
        problem = (
            "the script ended with exit code "
            f"{done.returncode}{'' if whole else ' and wrote no complete run'}."
        )
        remedy = (
            "It must call the generator once, until it ends, in a Python that has dpaudit "
            "installed."
        )
        raise InputError(str(place), problem, remedy)
    _say_what_it_rests_on(RunReader(place), monitor)
    return open_run(place)


def _say_what_it_rests_on(reader: RunReader, monitor: Monitor) -> None:
    if (cells := reader.manifest.batching.cells) is not None:
        held = sentence(rows_held(reader.contexts(), cells * len(reader.batches)))
        monitor.hint(f"{held} Most do with about as many cells as records.")
    secret = secret_batches(reader.manifest, reader.manifest.privacy.unit)
    if isinstance(secret, NotSecret):
        reason = sentence(Amplification.why_equal(secret))
        monitor.hint(
            f"Readers of the texts are promised no more than whoever knows the batches: {reason}."
        )


def _require_place(out: places.Location) -> None:
    """Refuse a directory that a run cannot be written to, before a script has run for nothing."""
    if isinstance(out, Path):
        places.spare_runs(out.parent, (), "Name another directory with --out.")
        places.require_writable(out, "--out")
    if not isinstance(out, Path) or out.exists():
        require_unused(open_storage(out))


def script_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return paths of a Python and a script, and arguments. Raises InputError for others."""
    python, script, *arguments = (*command, "", "")[: max(2, len(command))]
    interpreter = shutil.which(python)
    if interpreter is None:
        raise InputError("command", f"{python!r} is no program here.", _FORM)
    if not Path(script).is_file():
        problem = f"{script!r} is not a file." if script else "there is no script."
        raise InputError("command", problem, _FORM)
    return (interpreter, script, *arguments)


def rerun(
    run: str | os.PathLike[str],
    data: str | os.PathLike[str],
    rows: Sequence[int],
    command: Sequence[str],
    monitor: Monitor = SILENT,
) -> tuple[Rerun, ...]:
    """Run a recorded run's script again without each of some records.

    Every token is frozen to the released one.

    Args:
        run: the run directory.
        data: the file of records that the script is given.
        rows: numbers of records to leave out, from 1.
        command: as for `record`.
        monitor: is told what is being done.

    Returns:
        What moved, for `audit(run, reruns=...)`.

    Raises:
        InputError: the script does not run, or the run, the data or a row cannot be used.
    """
    interpreter, *arguments = script_of(command)
    script = Script(interpreter, tuple(arguments))
    return run_again(
        places.location_of(run), places.path_of(data, "data"), rows, script, monitor.note
    )
