"""`dpaudit replay`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from dpaudit.commands.audits import audit_of, leave, replay_of
from dpaudit.commands.options import DATA_HELP, MODEL, RUN_DIR, NamedPath, engine_options, output_options, step_name
from dpaudit.commands.terminal import note, show

if TYPE_CHECKING:
    from rich.console import Console

    from dpaudit.engines import Engine
    from dpaudit.results import AuditResult
    from dpaudit.runs.storage import Location


@click.command()
@click.argument("run_dir", type=RUN_DIR)
@click.option("--data", type=NamedPath(path_type=str), metavar="FILE", required=True, help=DATA_HELP)
@click.option("--steps", type=click.IntRange(min=0), help="Recompute this many random steps [default: 10].")
@click.option(
    "--step",
    "chosen",
    type=step_name,
    metavar="BATCH:POSITION",
    multiple=True,
    help="Recompute this step instead; both count from 0. Repeat it.",
)
@click.option("--left-out", type=click.IntRange(min=0), help="Leave out this many random contexts [default: 2].")
@click.option("--trials", type=click.IntRange(min=0), help="The attack's texts a side and canary [default: 6].")
@MODEL
@engine_options
@output_options
def replay(
    run_dir: Location,
    data: str,
    chosen: tuple[tuple[int, int], ...],
    engine: Engine | None,
    as_json: bool,
    **amounts: Any,
) -> None:
    """Recompute a run with its model and its data.

    Audits the run with all that this shows: recorded values, sides and supports of random steps, every record's place,
    the loss of random contexts that are left out, and an attack on neighbouring data.

    \b
    Example:
      dpaudit replay run --data records.csv --steps 20
    """
    if chosen and amounts["steps"] is not None:
        raise click.UsageError("Give either --steps or --step.")
    found = replay_of(run_dir, data, chosen=chosen, **amounts)
    result = audit_of(run_dir, evidence=4, replay=found, engine=engine)
    show(result, as_json, _print_replayed)
    if not as_json and result.claim is not None:
        where = "" if amounts["model"] is None else f" --model {shlex.quote(amounts['model'])}"
        note(f"Next: dpaudit report {shlex.quote(str(run_dir))} --data {shlex.quote(data)}{where} --evidence 4")
    leave(result)


def _print_replayed(result: AuditResult, console: Console) -> None:
    from dpaudit.reports.terminal import print_higher_levels, print_summary

    print_summary(result, console)
    print_higher_levels(result, console)
