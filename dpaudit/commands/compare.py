"""`dpaudit compare` and `dpaudit figures`: several runs beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.audits import leave
from dpaudit.commands.options import RUN_DIR, NamedPath, TitledCommand, engine_options, output_options, tokenizer_option
from dpaudit.commands.terminal import TERMINAL, note, output, show, tell

if TYPE_CHECKING:
    from dpaudit.api.places import Location
    from dpaudit.engines import Engine
    from dpaudit.reports.figures import Format


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
    from dpaudit.api.research import draw_figures, require_drawable
    from dpaudit.reports.text import in_a_line
    from dpaudit.reports.wording import say

    require_drawable(run_dirs, names, out)
    audits = tuple(audits_of(run_dirs, tokenizers=tokenizers, engine=engine, monitor=TERMINAL).values())
    if any(audit.verdict == "error" for audit in audits):
        leave(*audits)
    paths = draw_figures(audits, out, formats=formats, names=names)
    with output():
        if as_json:
            verdicts = {str(audit.run): audit.verdict for audit in audits}
            files = [str(path) for path in paths]
            click.echo(json.dumps({"audience": "internal", "verdicts": verdicts, "files": files}))
        else:
            click.echo("\n".join(f"  {in_a_line(path)}" for path in paths))
            note(f"Internal. {say('figures-private')}")
    leave(*audits)
