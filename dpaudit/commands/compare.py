"""`dpaudit compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.audits import audit_of, leave, with_quality
from dpaudit.commands.options import RUN_DIR, NamedPath, engine_options, output_options
from dpaudit.commands.places import reports_of, save_comparison, spare_runs
from dpaudit.commands.terminal import show, tell

if TYPE_CHECKING:
    from dpaudit.engines import Engine
    from dpaudit.runs.storage import Location


@click.command()
@click.argument("run_dirs", type=RUN_DIR, nargs=-1, required=True, metavar="RUN_DIR RUN_DIR [...]")
@click.option("--out", type=NamedPath(path_type=Path, dir_okay=False), help="Write the comparison as HTML here.")
@engine_options
@output_options
def compare(run_dirs: tuple[Location, ...], out: Path | None, engine: Engine | None, as_json: bool) -> None:
    """Put the budgets of two or more runs side by side.

    Each kind of epsilon has tables of its own. Also: every run's epsilon at one length, and the tokens it can have
    within each other's epsilon.

    \b
    Example:
      dpaudit compare median-run mean-run --out comparison.html
    """
    from dpaudit.audit.comparison import compare_runs
    from dpaudit.reports.compare import print_comparison

    if len(run_dirs) < 2:
        raise click.UsageError("Name two or more run directories.")
    if out is not None:
        spare_runs(out, run_dirs, f"Name a file elsewhere, or in {reports_of(run_dirs[0])}.", keep_folder=True)
    results = {str(path): with_quality(audit_of(path, engine=engine), path, digests=True) for path in run_dirs}
    if len(results) < len(run_dirs):
        raise click.UsageError("A run directory is named twice.")
    comparison = compare_runs(results)
    if out is not None:
        save_comparison(comparison, out)
    show(comparison, as_json, print_comparison)
    unread = [name for name, result in results.items() if result.verdict == "error"]
    if out is not None and unread:
        tell(f"dpaudit: {out} is written, with no figures of what cannot be read: {', '.join(unread)}")
    leave(*results.values())
