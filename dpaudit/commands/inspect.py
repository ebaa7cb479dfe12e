"""`dpaudit inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.options import RUN_DIR, TitledCommand, engine_options, output_options, tokenizer_option
from dpaudit.commands.terminal import note, progress_bar, show, tell

if TYPE_CHECKING:
    from dpaudit.api.places import Location
    from dpaudit.engines import Engine
    from dpaudit.results.inspection import InspectedBatch, InspectedRun, InspectedStep


@click.command(cls=TitledCommand)
@click.argument("run_dir", type=RUN_DIR)
@click.option("--batch", type=click.IntRange(min=0), help="Look into this batch, by its id.")
@click.option("--step", type=click.IntRange(min=0), help="Look into this step of the batch; steps count from 0.")
@click.option(
    "--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many tokens of a step to show."
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

    A run: its settings, its figures and its costliest batches. A batch: its text and what each token cost. A step: the
    most probable tokens, and how far a neighbour can move them. Exits with 0 whatever is found: it judges nothing.

    \b
    Example:
      dpaudit inspect examples/runs/bbc-median --batch 4 --step 7
    """
    from dpaudit.api.reading import open_run
    from dpaudit.reports import inspection
    from dpaudit.results.shell import argument

    if step is not None and batch is None:
        raise click.UsageError("--step is a step of a batch: give --batch too.")
    run = open_run(run_dir)
    found: InspectedRun | InspectedBatch | InspectedStep
    if batch is not None and step is not None:
        found = run.batches[batch].steps[step].inspect(top)
    elif batch is not None:
        chosen = run.batches[batch]
        with progress_bar("Reading", "tokens") as advance:
            found = chosen.inspect(advance)
    else:
        with progress_bar("Reading", "batches") as advance:
            found = run.inspect(engine, advance, tokenizers)
    show(found, as_json, inspection.print_found)
    tell(inspection.WARNING)
    if deeper := inspection.deeper(found):
        note(f"Next: dpaudit inspect {argument(str(run_dir), 'RUN_DIR')} {deeper}")
