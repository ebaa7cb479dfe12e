"""`dpaudit record`: runs a script whose generator is somebody else's, under the recorder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from dpaudit.commands.options import COUNT, RUN_DIR, TitledCommand, output_options
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import note, print_json

if TYPE_CHECKING:
    from dpaudit.api.places import Location
    from dpaudit.api.recording import Mend

#: What each word for --mend replaces, and all of them; as in dpaudit.runs.manifest, which is not
#: loaded for this.
MENDS: tuple[Mend, ...] = ("randomness", "batches", "lengths", "rows")


@click.command(cls=TitledCommand)
@click.argument("generator")
@click.option("--out", type=RUN_DIR, required=True, help="Run directory to write: a path or a URL.")
@click.option(
    "--mend",
    type=click.Choice([*MENDS, "all"]),
    multiple=True,
    help="Replace only this part of the generator by a sound one. Repeat for several, or give all.",
)
@click.option(
    "--texts",
    type=COUNT,
    metavar="N",
    help="For --mend lengths: number of texts, chosen without the records.",
)
@click.option(
    "--max-tokens",
    type=COUNT,
    metavar="N",
    help="For --mend lengths: most tokens of a text, chosen without the records.",
)
@click.option(
    "--claim",
    type=click.Choice(["asked", "spent"]),
    default="asked",
    show_default=True,
    help="Claim the epsilon that the script asks for, or the largest that the generator reports "
    "for a text.",
)
@click.option(
    "--trained-on-records",
    type=click.Choice(["no", "yes", "unknown"]),
    default="unknown",
    show_default=True,
    help="Whether the model was trained on any of the private records. The run states this.",
)
@click.argument(
    "command",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="-- PYTHON SCRIPT [ARGUMENTS]...",
)
@output_options
def record(
    generator: str,
    out: Location,
    mend: tuple[str, ...],
    command: tuple[str, ...],
    as_json: bool,
    **asked: Any,
) -> None:
    """Record another tool's generator while a script runs it.

    The script calls the generator once. Only the parts that --mend names are changed. The result is
    a run directory like any other: audit it with `dpaudit report`.

    \b
    Example:
      dpaudit record invink --out run -- python their_script.py
      dpaudit record invink --out mended --mend all --texts 2 --max-tokens 40 -- python their_script.py
    """  # noqa: E501
    from dpaudit.api.recording import record as run_recorded
    from dpaudit.results.shell import argument

    mended = MENDS if "all" in mend else tuple(name for name in MENDS if name in mend)
    # With --json standard output is ours alone.
    run_recorded(generator, out, command, mend=mended, quiet=as_json, monitor=TERMINAL, **asked)
    if as_json:
        print_json(json.dumps({"run": str(out), "generator": generator, "mended": mended}))
    note(f"Next: dpaudit report {argument(str(out), 'RUN_DIR')}")
