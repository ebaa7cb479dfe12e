"""`dpaudit inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dpaudit.commands.options import RUN_DIR, TitledCommand, WholeRange, output_options
from dpaudit.commands.progress import progress_bar
from dpaudit.commands.terminal import note, show_document, tell

if TYPE_CHECKING:
    from dpaudit.api.places import Location


@click.command(cls=TitledCommand)
@click.argument("run_dir", type=RUN_DIR)
@click.option(
    "--batch", type=WholeRange(min=0), required=True, help="Id of the batch to look into."
)
@click.option(
    "--step", type=WholeRange(min=0), help="Step of the batch to look into, counted from 0."
)
@click.option(
    "--top",
    type=WholeRange(1, 1000),
    default=10,
    show_default=True,
    help="How many tokens of a step to list.",
)
@output_options
def inspect(
    run_dir: Location,
    batch: int,
    step: int | None,
    top: int,
    as_json: bool,
) -> None:
    """Look into a batch or a step, for debugging.

    Of a batch, it shows the texts and what each token cost; of a step, the most probable tokens and
    how far a neighbour can move them. The exit code is no verdict: it is 0, or 2 where a run, batch
    or step cannot be read.

    \b
    Example:
      dpaudit inspect examples/runs/bbc-median --batch 4 --step 7
    """
    from dpaudit.api import inspecting
    from dpaudit.results.shell import argument

    if step is not None:
        look = inspecting.look_into_step(run_dir, batch, step, top)
    else:
        with progress_bar("Reading", "tokens") as advance:
            look = inspecting.look_into_batch(run_dir, batch, advance)
    show_document(look, as_json, lambda look: look.document)
    tell("Internal: as sensitive as the private records. Do not share it.")
    if deeper := look.deeper:
        note(f"Next: dpaudit inspect {argument(str(run_dir), 'RUN_DIR')} {deeper}")
