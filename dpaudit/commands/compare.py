"""`dpaudit compare`: several runs beside each other, and figures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpaudit.commands.audits import leave
from dpaudit.commands.options import (
    RUN_DIR,
    NamedPath,
    TitledCommand,
    output_options,
    several_runs_options,
)
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import note, print_line, show_document, tell

if TYPE_CHECKING:
    from dpaudit.api.places import Location
    from dpaudit.reports.figures import Format


@click.command(cls=TitledCommand)
@click.argument("run_dirs", type=RUN_DIR, nargs=-1, required=True, metavar="RUN_DIR [...]")
@click.option(
    "--out",
    type=NamedPath(path_type=Path, dir_okay=False),
    help="Write the comparison as HTML here.",
)
@click.option(
    "--figures",
    type=NamedPath(path_type=Path),
    metavar="FOLDER",
    help="Draw figures for papers, too.",
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(["svg", "png", "pdf"]),
    multiple=True,
    default=("svg", "png"),
    show_default=True,
    help="Format of the figures. Repeat it for several.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="Name of a run on figures. Repeat it, in the runs' order [default: their folders' names].",
)
@several_runs_options
@output_options
def compare(
    run_dirs: tuple[Location, ...],
    out: Path | None,
    figures: Path | None,
    formats: tuple[Format, ...],
    names: tuple[str, ...],
    as_json: bool,
    **asked: Any,
) -> None:
    """Put the audits of two or more runs side by side.

    Each kind of epsilon has a table of its own. Also shown: settings and checks that differ,
    ex-post epsilon at one length, and what the texts are worth where that was evaluated.

    --figures draws where each run spent its ex-post epsilon: by batch and by token position, and
    for several runs on common axes. One run is enough for that. captions.md says what each figure
    shows.

    \b
    Example:
      dpaudit compare median-run mean-run --out comparison.html
      dpaudit compare median-run --figures figures --format pdf
    """
    from dpaudit.api import comparing
    from dpaudit.api.audits import audits_of
    from dpaudit.reports.compare import summary

    if len(run_dirs) < 2 and (figures is None or as_json or out is not None):
        raise click.UsageError("Name two or more run directories.")
    if out is not None:
        comparing.require_page(out, run_dirs)
    if figures is not None:
        comparing.require_drawable(run_dirs, names, figures)
    audits = audits_of(run_dirs, monitor=TERMINAL, **asked)
    unread = [str(run) for run, audit in audits.items() if audit.verdict == "error"]
    drawn: list[Path] = []
    if figures is not None and not unread:
        drawn = comparing.draw_figures(list(audits.values()), figures, formats=formats, names=names)
    if len(audits) > 1:
        found = comparing.compare(*audits.values(), monitor=TERMINAL)
        if out is not None:
            found.save(out)
        show_document(found.result, as_json, summary)
    if out is not None and unread:
        tell(
            f"dpaudit: {out} is written, with no figures of what cannot be read: "
            f"{', '.join(unread)}"
        )
    if drawn:
        _say_drawn(drawn, as_json)
    leave(*audits.values())


def _say_drawn(paths: list[Path], as_json: bool) -> None:
    from dpaudit.reports.text import in_a_line
    from dpaudit.reports.wording import say

    if not as_json:
        print_line("\n".join(f"  {in_a_line(path)}" for path in paths))
    note(f"Internal. {say('figures-private')}")
