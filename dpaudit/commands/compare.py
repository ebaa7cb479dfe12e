"""`dpaudit compare` and `dpaudit figures`: several runs beside each other."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.audits import leave
from dpaudit.commands.options import RUN_DIR, NamedPath, TitledCommand, engine_options, output_options, tokenizer_option
from dpaudit.commands.terminal import TERMINAL, note, output, show, tell

if TYPE_CHECKING:
    from dpaudit.engines import Engine
    from dpaudit.reports.figures import Format
    from dpaudit.results import AuditResult
    from dpaudit.runs.storage import Location


@click.command(cls=TitledCommand)
@click.argument("run_dirs", type=RUN_DIR, nargs=-1, required=True, metavar="RUN_DIR RUN_DIR [...]")
@click.option("--out", type=NamedPath(path_type=Path, dir_okay=False), help="Write the comparison as HTML here.")
@click.option(
    "--model", type=NamedPath(path_type=str), metavar="NAME", help="Recompute what is public in the runs, all with it."
)
@tokenizer_option
@engine_options
@output_options
def compare(
    run_dirs: tuple[Location, ...],
    out: Path | None,
    model: str | None,
    tokenizers: tuple[Path, ...],
    engine: Engine | None,
    as_json: bool,
) -> None:
    """Put the budgets of two or more runs side by side.

    Each kind of epsilon has tables of its own. Also: every run's epsilon at one length, and the tokens it can have
    within each other's epsilon.

    \b
    Example:
      dpaudit compare median-run mean-run --out comparison.html
    """
    from dpaudit.api import comparing
    from dpaudit.reports.compare import print_comparison

    if len(run_dirs) < 2:
        raise click.UsageError("Name two or more run directories.")
    if out is not None:
        comparing.require_page(out, run_dirs)
    found = comparing.compare(*run_dirs, model=model, tokenizers=tokenizers, engine=engine, monitor=TERMINAL)
    if out is not None:
        found.save(out)
    show(found.result, as_json, print_comparison)
    unread = [name for name, audit in found.audits.items() if audit.verdict == "error"]
    if out is not None and unread:
        tell(f"dpaudit: {out} is written, with no figures of what cannot be read: {', '.join(unread)}")
    leave(*found.audits.values())


@click.command(cls=TitledCommand)
@click.argument("run_dirs", type=RUN_DIR, nargs=-1, required=True, metavar="RUN_DIR [...]")
@click.option("--out", required=True, type=NamedPath(path_type=Path), help="Folder for the figures.")
@click.option(
    "--format",
    "formats",
    type=click.Choice(["svg", "png", "pdf"]),
    multiple=True,
    default=("svg", "png"),
    show_default=True,
    help="Repeat it for several.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="What to call a run on figures. Repeat it, in the runs' order [default: their folders' names].",
)
@tokenizer_option
@engine_options
@output_options
def figures(
    run_dirs: tuple[Location, ...],
    out: Path,
    formats: tuple[Format, ...],
    names: tuple[str, ...],
    tokenizers: tuple[Path, ...],
    engine: Engine | None,
    as_json: bool,
) -> None:
    """Draw where ex-post epsilon was spent, for papers.

    For each run a histogram of its batches' costs and the mean cost of a token by position; for several runs also both
    with all of them on one axis. captions.md says what each figure shows.

    \b
    Example:
      dpaudit figures median-run clustered-run --out figures --format pdf
    """
    from dpaudit.api.audits import audits_of
    from dpaudit.api.places import reports_of, spare_runs
    from dpaudit.reports.figures import MOST_RUNS

    if names and len(names) != len(run_dirs):
        raise click.UsageError(f"{len(run_dirs)} runs are named with {len(names)} of --name: give each run one.")
    if len(run_dirs) > MOST_RUNS:
        raise click.UsageError(f"Nobody can tell more than {MOST_RUNS} runs apart on a figure: name fewer.")
    spare_runs(out, run_dirs, f"Name a folder elsewhere, or in {reports_of(run_dirs[0])}.")
    audits = audits_of(run_dirs, tokenizers=tokenizers, engine=engine, monitor=TERMINAL).values()
    if any(audit.verdict == "error" for audit in audits):
        leave(*audits)
    results = [audit.result for audit in audits]
    paths = _write_figures(run_dirs, names, results, formats, out)
    with output():
        if as_json:
            verdicts = {str(path): result.verdict for path, result in zip(run_dirs, results, strict=True)}
            files = [str(path) for path in paths]
            click.echo(json.dumps({"audience": "internal", "verdicts": verdicts, "files": files}))
        else:
            from dpaudit.reports.figure_files import WARNING
            from dpaudit.reports.text import in_a_line

            click.echo("\n".join(f"  {in_a_line(path)}" for path in paths))
            note(f"Internal. {WARNING}")
    leave(*audits)


def _write_figures(
    run_dirs: tuple[Location, ...],
    names: tuple[str, ...],
    results: list[AuditResult],
    formats: tuple[Format, ...],
    folder: Path,
) -> list[Path]:
    """All of them are drawn before the first is written."""
    from dpaudit.api.places import folder_name, writing
    from dpaudit.auditing.comparison import batch_spread
    from dpaudit.reports.figure_files import FigureRun, figure_files, why_not_drawn
    from dpaudit.reports.write import write_files
    from dpaudit.results.shell import argument
    from dpaudit.runs import InputError

    runs = []
    for path, name, result in zip(run_dirs, names or map(folder_name, run_dirs), results, strict=True):
        if problem := why_not_drawn(result):
            raise InputError(str(path), problem, "Leave it out.")
        runs.append(FigureRun(name, str(path), result, batch_spread(str(path), result)))
    asked = [("--name", name) for name in names] + [("--format", each) for each in formats]
    named = " ".join(argument(str(path), "RUN_DIR") for path in run_dirs)
    options = shlex.join(word for option in asked for word in option)
    command = f"dpaudit figures {named} {options} --out {argument(str(folder), 'FOLDER')}"
    files = figure_files(runs, formats, command)
    with writing(folder, "--out"):
        return write_files(files, folder)
