"""`dpaudit record`: runs a script whose generator is somebody else's, under the recorder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from dpaudit.commands.options import COUNT, RUN_DIR, TitledCommand, output_options
from dpaudit.commands.terminal import note, output, print_json

if TYPE_CHECKING:
    from dpaudit.runs.manifest import Mend, TrainedOnRecords
    from dpaudit.runs.storage import Location

#: What each word for --mend replaces, and all of them; as in dpaudit.runs.manifest, which is not loaded for this.
MENDS: tuple[Mend, ...] = ("randomness", "batches", "lengths", "rows")


@click.command(cls=TitledCommand)
@click.argument("generator")
@click.option("--out", type=RUN_DIR, required=True, help="Run directory to write: a path or a URL.")
@click.option(
    "--mend",
    type=click.Choice([*MENDS, "all"]),
    multiple=True,
    help="Replace this part of the generator by one that is sound, and nothing else. Repeat it, or say all.",
)
@click.option("--texts", type=COUNT, metavar="N", help="A public number of texts, for --mend lengths.")
@click.option("--max-tokens", type=COUNT, metavar="N", help="A public number of tokens of a text, for --mend lengths.")
@click.option(
    "--claim",
    type=click.Choice(["asked", "spent"]),
    default="asked",
    show_default=True,
    help="Audit the epsilon that the script asks for, or the largest that the generator says it spent on a text.",
)
@click.option(
    "--trained-on-records",
    type=click.Choice(["no", "yes", "unknown"]),
    default="unknown",
    show_default=True,
    help="Whether the model's weights were trained on any of the private records; the run says so.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- PYTHON SCRIPT [ARGUMENTS]...")
@output_options
def record(
    generator: str,
    out: Location,
    mend: tuple[str, ...],
    texts: int | None,
    max_tokens: int | None,
    claim: Literal["asked", "spent"],
    trained_on_records: TrainedOnRecords,
    command: tuple[str, ...],
    as_json: bool,
) -> None:
    """Record somebody else's generator while a script runs it.

    The generator is unmodified but for what --mend names, and the script calls it once. What is recorded is a run like
    any other: audit it with `report`.

    \b
    Example:
      dpaudit record invink --out run -- python their_script.py
      dpaudit record invink --out mended --mend all --texts 2 --max-tokens 40 -- python their_script.py
    """
    from dpaudit.auditing.caveats import rows_held
    from dpaudit.catalogue import sentence
    from dpaudit.recording.generators import Asked, find_recorder
    from dpaudit.results import Amplification
    from dpaudit.results.shell import argument
    from dpaudit.runs import InputError, NotSecret, RunReader, secret_batches
    from dpaudit.runs.layout import HASHES
    from dpaudit.runs.storage import open_storage

    mended = MENDS if "all" in mend else tuple(name for name in MENDS if name in mend)
    if ("lengths" in mended) != (texts is not None and max_tokens is not None) or (texts is None) != (
        max_tokens is None
    ):
        raise click.UsageError("--mend lengths goes with --texts and --max-tokens, which are for nothing else.")
    find_recorder(generator)
    interpreter, *arguments = script_of(command)
    _require_place(out)
    asked = Asked(out, mended, texts, max_tokens, claim, trained_on_records)
    called = [interpreter, *asked.called(generator), *arguments]
    # With --json standard output is ours alone.
    done = subprocess.run(called, check=False, stdout=sys.stderr if as_json else None)  # noqa: S603
    whole = open_storage(out).exists(HASHES)
    if done.returncode or not whole:
        problem = f"the script ended with exit code {done.returncode}{'' if whole else ', and wrote no whole run'}."
        remedy = "Let it call the generator once, to its end, in a Python that has dpaudit, too."
        raise InputError(str(out), problem, remedy)
    if as_json:
        with output():
            print_json(json.dumps({"run": str(out), "generator": generator, "mended": mended}) + "\n")
    reader = RunReader(out)
    if (cells := reader.manifest.batching.cells) is not None:
        held = sentence(rows_held(reader.contexts(), cells * len(reader.batches)))
        note(f"{held} Most do with about as many cells as records.")
    secret = secret_batches(reader.manifest, reader.manifest.privacy.unit)
    if isinstance(secret, NotSecret):
        reason = sentence(Amplification.why_equal(secret))
        note(f"Readers of the texts are promised no more than whoever knows the batches: {reason}.")
    note(f"Next: dpaudit report {argument(str(out), 'RUN_DIR')}")


def _require_place(out: Location) -> None:
    """Refuse a directory that a run cannot be written to, before a script has run for nothing."""
    from dpaudit.api.places import require_writable, spare_runs
    from dpaudit.runs.storage import open_storage
    from dpaudit.runs.writer import require_unused

    if isinstance(out, Path):
        spare_runs(out.parent, (), "Name another directory with --out.")
        require_writable(out, "--out")
    if not isinstance(out, Path) or out.exists():
        require_unused(open_storage(out))


def script_of(command: tuple[str, ...]) -> tuple[str, ...]:
    """The path of a Python, a script's file and its arguments. Raises click.UsageError where they are none."""
    python, script, *arguments = (*command, "")[:2] + command[2:]
    interpreter, form = shutil.which(python), "the command must be a Python and a script's file."
    if interpreter is None:
        raise click.UsageError(f"{python!r} is no program here: {form}")
    if not Path(script).is_file():
        raise click.UsageError(f"{script!r} is no file: {form}" if script else f"There is no script: {form}")
    return (interpreter, script, *arguments)
