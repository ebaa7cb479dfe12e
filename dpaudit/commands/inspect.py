"""`dpaudit inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.options import (
    RUN_DIR,
    TitledCommand,
    engine_options,
    output_options,
    tokenizer_option,
)
from dpaudit.commands.terminal import note, progress_bar, show_document, tell

if TYPE_CHECKING:
    from dpaudit.api.places import Location
    from dpaudit.runs.engines import Engine


@click.command(cls=TitledCommand)
@click.argument("run_dir", type=RUN_DIR)
@click.option("--batch", type=click.IntRange(min=0), help="Id of the batch to look into.")
@click.option(
    "--step", type=click.IntRange(min=0), help="Step of the batch to look into, counted from 0."
)
@click.option(
    "--top",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="How many tokens of a step to list.",
)
@tokenizer_option
@engine_options
@output_options
def inspect(
    run_dir: Location,
    batch: int | None,
    step: int | None,
    top: int,
    tokenizers: tuple[Path, ...],
    engine: Engine | None,
    as_json: bool,
) -> None:
    """Look into a run, a batch or a step, for debugging.

    Of a run, it shows the settings, the figures and the most expensive batches; of a batch, its
    texts and what each token cost; of a step, the most probable tokens and how far a neighbour can
    move them. The exit code is no verdict: it is 0, or 2 where a run, batch or step cannot be read.

    \b
    Example:
      dpaudit inspect examples/runs/bbc-median --batch 4 --step 7
    """
    from dpaudit.api import inspecting
    from dpaudit.results.shell import argument

    if step is not None and batch is None:
        raise click.UsageError("--step needs --batch: a step belongs to a batch.")
    if batch is not None and step is not None:
        look = inspecting.look_into_step(run_dir, batch, step, top)
    elif batch is not None:
        with progress_bar("Reading", "tokens") as advance:
            look = inspecting.look_into_batch(run_dir, batch, advance)
    else:
        with progress_bar("Reading", "batches") as advance:
            look = inspecting.look_into_run(run_dir, engine, advance, tokenizers)
    show_document(look, as_json, lambda look: look.document)
    tell("Internal: as sensitive as the private records. Do not share it.")
    if deeper := look.deeper:
        note(f"Next: dpaudit inspect {argument(str(run_dir), 'RUN_DIR')} {deeper}")
