"""`dpaudit generate`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.options import RUN_DIR, NamedPath, model_engine_options, output_options
from dpaudit.commands.places import last_part
from dpaudit.commands.terminal import note, output, progress_bars, tell

if TYPE_CHECKING:
    from dpaudit.engines import Engine
    from dpaudit.generation.config import Config
    from dpaudit.generation.events import RecordsPlaced
    from dpaudit.runs.storage import Location

#: Batches with fewer contexts than this are warned of; with WELL or more, noise seldom decides a token.
FEW, WELL = 8, 30


@click.command()
@click.argument("config", type=NamedPath(path_type=Path))
@click.option("--out", required=True, type=RUN_DIR, help="Run directory to write, or to go on with: a path or a URL.")
@click.option(
    "--public-only",
    is_flag=True,
    help="Write the baseline of this config's runs instead: its prompts without any record, epsilon 0.",
)
@model_engine_options
@output_options
def generate(config: Path, out: Location, public_only: bool, engine: Engine | None, as_json: bool) -> None:
    """Run Algorithm 1 on private records and write a run directory.

    A run that was interrupted goes on at its first unfinished batch. On a Ray cluster every worker reads the data and
    loads the model itself, and writes to the run directory: all nodes must reach them.

    \b
    Example:
      dpaudit generate examples/bbc-median.yaml --out run
      dpaudit generate examples/bbc-median.yaml --out public --public-only
    """
    from dpaudit.runs import InputError

    if str(out).startswith("memory:"):
        raise InputError(str(out), "this lives no longer than this command.", "Name a folder, or a URL of a store.")
    if not config.exists():
        raise InputError(str(config), "there is no such file.", f"Write one with `dpaudit init {config}`.")
    from dpaudit.generation.config import in_config, load_config

    if public_only and engine is not None:
        raise click.UsageError("--public-only works in this process: leave out --workers and --engine.")
    settings = load_config(config)
    try:
        generate_run(settings, out, last_part(out), engine, public_only)
    except InputError as error:
        raise in_config(config, error) from None
    with output():
        if as_json:
            click.echo(json.dumps({"public": str(out)} if public_only else {"run": str(out)} | _digests(out)))
        elif public_only:
            note(
                f"Texts written to {out}. Nothing private went into them: there is nothing to audit. Next, for a run "
                f"of this config: dpaudit evaluate RUN_DIR --reference DATA --baseline {shlex.quote(str(out))}"
            )
        else:
            given = " ".join(f"--{name} {digest}" for name, digest in _digests(out).items())
            note(f"Give whoever has the commitment the head, too. They check both: dpaudit verify RUN_DIR {given}")
            note(f"Run written to {out}. Next: dpaudit report {shlex.quote(str(out))}")


def _digests(out: Location) -> dict[str, str | None]:
    """What a finished run can be held against, by the option of `verify` that takes it."""
    from dpaudit.runs import RunReader

    reader = RunReader(out)
    return {"commitment": reader.manifest.commitment, "head": reader.head()}


def generate_run(
    config: Config, out: Location, title: str, engine: Engine | None = None, public_only: bool = False
) -> None:
    """Write a run, or go on with it, or write its baseline (`public_only`), and show how far it is under `title`."""
    from dpaudit.generation import events
    from dpaudit.generation.algorithm import generate as run_algorithm
    from dpaudit.generation.public import generate_public
    from dpaudit.generation.starting import require_labels
    from dpaudit.results.rounding import decimals

    require_labels(config.data)
    steps, done = config.decoding.most_tokens, 0
    under_way: dict[int, int] = {}
    with progress_bars("tokens") as progress:
        task = progress.add_task(f"{title}: loading", total=None, epsilon="")

        def show(event: events.Event) -> None:
            nonlocal done
            match event:
                case events.RecordsPlaced():
                    _tell_placed(title, event)
                    return
                case events.RunCommitted():
                    note(
                        f"{title}: the commitment is {event.commitment}. Put it now where nobody can change it, a "
                        "ticket, say: `dpaudit verify --commitment` tells whether what is settled by now was changed"
                    )
                    return
                case events.MemoryRanOut():
                    note(f"{title}: out of memory; going on with {event.rows} contexts in a pass")
                    return
                case events.TextsEmbedded():
                    where = f"{title}: embedding {event.texts} texts"
                    progress.update(task, description=where, total=event.total, completed=event.done)
                    return
                case events.StepDone():
                    under_way[event.batch] = event.tokens
                case events.BatchStarted() | events.BatchDone():
                    ended = isinstance(event, events.BatchDone)
                    done += ended
                    under_way.pop(event.batch, None)
                    where = f"{title}: {done}/{event.batches} batches"
                    progress.update(task, description=where, total=event.batches * steps)
                    if progress.disable and ended:
                        note(f"{where} are {'done' if public_only else 'on disk'}")
            # A text that ended early takes no more steps.
            progress.update(task, completed=done * steps + sum(under_way.values()))
            if not isinstance(event, events.BatchStarted) and event.epsilon is not None:
                progress.update(task, epsilon=f"epsilon so far {decimals(event.epsilon, 3)}")

        if public_only:
            generate_public(config, out, show)
        else:
            run_algorithm(config, out, show, engine)


def _tell_placed(title: str, placed: RecordsPlaced) -> None:
    """What the records' places show before anything is spent. Counts are private: for this terminal, not the record."""
    from dpaudit.reports.text import counted

    if placed.repeated:
        rows = "1 row repeats" if placed.repeated == 1 else f"{placed.repeated:,} rows repeat"
        note(f"{title}: {rows} another in text and label and {'counts' if placed.repeated == 1 else 'count'} once")
    if placed.unused:
        unused = counted(placed.unused, "record")
        note(f"{title}: cells with fewer or more records than a context shows leave {unused} of these batches unused")
    if placed.fewest >= FEW:
        return
    held = counted(placed.most, "context") if placed.most else "no context"
    if placed.fewest != placed.most:
        held = f"{placed.fewest:,} to {held}"
    empty = f" An empty batch writes {placed.of_none} at full price." if placed.fewest == 0 else ""
    tell(
        f"dpaudit: warning: {title}: batches to be generated hold {held}; {WELL} or more do well.{empty} "
        f"{placed.remedy} (having counted, say chosen_from.batching: private)."
    )
