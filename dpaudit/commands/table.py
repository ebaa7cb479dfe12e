"""`dpaudit table`."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpaudit.commands.generate import generate_run
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

if TYPE_CHECKING:
    from dpaudit.engines import Engine
    from dpaudit.generation.config import DataConfig
    from dpaudit.generation.experiments.table import EvaluationConfig, Row, Table
    from dpaudit.results import AuditResult
    from dpaudit.results.quality import Quality

#: What `python -m benchmarks` measured, in a checkout of this repository.
MEASURED = Path("benchmarks/results/latest.json")


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
    unverified: bool,
    private_cache: Path | None,
    tokenizers: tuple[Path, ...],
    engine: Engine | None,
    as_json: bool,
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
    from dpaudit.generation.experiments.table import load_table

    rows = load_table(table)
    if dry_run:
        _estimate_table(rows.only(only), tokens_per_second, as_json)
        return
    if tokens_per_second is not None:
        raise click.UsageError("--tokens-per-second is for --dry-run.")
    if out is None:
        raise click.UsageError("Name a folder with --out, or ask for a --dry-run.")
    if not unverified:
        _require_possible(rows.only(only))
    _run_table(rows, out, only, not no_evaluation, unverified, private_cache, tokenizers, engine, as_json)


def _require_possible(table: Table) -> None:
    """Raises InputError where rows could not pass their audits. What else is wrong with a row it says at its turn."""
    from dpaudit.generation.config import in_config
    from dpaudit.generation.obstacles import Obstacle, obstacles, refuse
    from dpaudit.generation.records import Records, read_records
    from dpaudit.runs import InputError

    @cache
    def read(data: DataConfig) -> Records | None:
        with suppress(InputError):
            return None if data.path is None else read_records(data)
        return None

    refused: dict[Path, tuple[Obstacle, ...]] = {}
    for row in table.rows:
        with suppress(InputError):
            found = obstacles(row.config, read(row.config.data))
            refused |= {row.path: found} if any(not each.meant for each in found) else {}
    if refused:
        path, found = next(iter(refused.items()))
        rows = "This row" if len(refused) == 1 else f"{len(refused)} rows"
        try:
            refuse(found, f"{rows} could not pass; --unverified runs the table all the same.")
        except InputError as error:
            raise in_config(path, error) from None


def _estimate_table(table: Table, tokens_per_second: float | None, as_json: bool) -> None:
    from dpaudit.generation.experiments import estimates
    from dpaudit.reports.experiments import print_estimates

    throughput = None
    if tokens_per_second is not None:
        throughput = estimates.stated_throughput(tokens_per_second)
    elif MEASURED.exists():
        throughput = estimates.measured_throughput(MEASURED, table.parameters)
    found = estimates.estimates(table, throughput)
    show(found, as_json, print_estimates)


def _run_table(
    table: Table,
    out: Path,
    only: tuple[str, ...],
    evaluated: bool,
    unverified: bool,
    private_cache: Path | None,
    tokenizers: tuple[Path, ...],
    engine: Engine | None,
    as_json: bool,
) -> None:
    from dpaudit.api.audits import Audit, audit
    from dpaudit.api.evaluating import evaluate as measure
    from dpaudit.api.places import spare_runs
    from dpaudit.generation.experiments import driver
    from dpaudit.generation.experiments.table import ALL_RECORDS, TABLE_FILES
    from dpaudit.reports.experiments import print_table, render_table_markdown, table_csv
    from dpaudit.results.quality_file import write_private

    def make(row: Row, run: Path) -> None:
        generate_run(row.config, run, row.name, engine, unverified=unverified)

    def compare(row: Row, run: Path) -> None:
        from dpaudit.generation.algorithm import require_made_with

        require_made_with(row.config, run)

    results: dict[Path, AuditResult] = {}

    def write(run: Path) -> None:
        if results[run].claim is not None:
            Audit(run, results[run], TERMINAL).save()

    def audited(run: Path) -> AuditResult:
        results[run] = audit(run, tokenizers=tokenizers, engine=engine, monitor=TERMINAL).result
        write(run)
        return results[run]

    def evaluate(row: Row, run: Path, settings: EvaluationConfig) -> Quality:
        test, public = None if row.held_out is None else _named(row.held_out), None
        if row.baseline:
            public = run.parent / driver.BASELINE
            if not public.exists():
                generate_run(row.config, public, f"{row.name}, public only", public_only=True)
        options: dict[str, Any] = {
            "embedding": settings.embedding,
            "classifier": settings.classifier,
            "preset": settings.fine_tune,
            "most_records": settings.most_records or ALL_RECORDS,
        }
        found = measure(
            run,
            _named(row.config.data),
            test=test,
            baseline=public,
            private_cache=private_cache,
            engine=engine,
            monitor=TERMINAL,
            **options,
        )
        write(run)  # its report shows the evaluation
        return found.result

    def watch(number: int, rows: int, name: str, what: str) -> None:
        note(f"[{number}/{rows}] {name}: {what}")

    spare_runs(out, (), "Name another folder with --out.")
    stages = driver.Stages(make, compare, audited, evaluate if evaluated else None)
    result = driver.run_table(table, out, stages, watch, only)
    show(result, as_json, print_table)
    if only:  # part of a table does not replace the whole one
        sys.exit(result.exit_code)
    contents = (render_table_markdown(result), table_csv(result), result.to_json())
    for name, content in zip(TABLE_FILES, contents, strict=True):
        write_private(out / name, content.encode(), driver.ELSEWHERE)
    note("Written: " + ", ".join(str(out / name) for name in TABLE_FILES))
    sys.exit(result.exit_code)


def _named(data: DataConfig) -> str:
    """Real texts as --reference and --test name them."""
    return data.path or f"{data.dataset}:{data.split or 'train'}"
