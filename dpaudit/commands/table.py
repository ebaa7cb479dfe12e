"""`dpaudit table`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from dpaudit.commands.options import (
    POSITIVE,
    NamedPath,
    TitledCommand,
    model_engine_options,
    output_options,
    private_cache_option,
    tokenizer_option,
)
from dpaudit.commands.terminal import TERMINAL, note, show


@click.command(cls=TitledCommand)
@click.argument("table", type=NamedPath(path_type=Path), metavar="TABLE.yaml")
@click.option("--out", type=NamedPath(path_type=Path, file_okay=False), help="Folder for the rows' runs and the table.")
@click.option("--only", multiple=True, metavar="ROW", help="This row, a config without .yaml, alone. Repeat it.")
@click.option("--dry-run", is_flag=True, help="Say what every row costs, without model or data, and do nothing.")
@click.option(
    "--tokens-per-second",
    type=POSITIVE,
    help="Contexts that the model continues by a token in a second [default: from benchmarks/results/latest.json].",
)
@click.option("--no-evaluation", is_flag=True, help="Generate and audit alone.")
@click.option(
    "--unverified",
    is_flag=True,
    help="Run rows that cannot pass their audit, too: the table says that they did not.",
)
@private_cache_option("for evaluations")
@tokenizer_option
@model_engine_options
@output_options
def table(
    table: Path,
    out: Path | None,
    only: tuple[str, ...],
    dry_run: bool,
    tokens_per_second: float | None,
    no_evaluation: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Generate, audit and evaluate a table of runs.

    Prints the table beside the paper's figures, and writes table.md, table.csv and table.json, unless --only chose some
    of its rows. The same command goes on where it stopped; a row that fails does not stop the others. Rows that could
    not pass their audit are refused before the first one runs. Evaluations are of MAUVE and accuracy: held-out
    likelihood is for `dpaudit evaluate`.

    \b
    Exit codes: 0 all claims hold, 1 an audit did not pass, 2 a row could not be run, 3 internal error.

    \b
    Example:
      dpaudit table examples/paper/results.yaml --dry-run
    """
    from dpaudit.api.research import estimate_table, run_table
    from dpaudit.reports.experiments import print_estimates, print_table

    if dry_run:
        show(estimate_table(table, only=only, tokens_per_second=tokens_per_second), as_json, print_estimates)
        return
    if tokens_per_second is not None:
        raise click.UsageError("--tokens-per-second is for --dry-run.")
    if out is None:
        raise click.UsageError("Name a folder with --out, or ask for a --dry-run.")

    def watch(number: int, rows: int, name: str, what: str) -> None:
        note(f"[{number}/{rows}] {name}: {what}")

    found = run_table(table, out, only=only, evaluated=not no_evaluation, watch=watch, monitor=TERMINAL, **asked)
    show(found.result, as_json, print_table)
    if not only:  # part of a table does not replace the whole one
        note("Written: " + ", ".join(map(str, found.save())))
    sys.exit(found.result.exit_code)
