"""`dpaudit generate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from dpaudit.commands.init import WORKING, note_fewer, note_model, show_menu
from dpaudit.commands.options import (
    RUN_DIR,
    NamedPath,
    TitledCommand,
    WholeRange,
    model_engine_options,
    output_options,
)
from dpaudit.commands.own_data import Given, note_persons, own_data_options
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import note, print_json, show_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpaudit.api.generating import Settings
    from dpaudit.api.places import Location
    from dpaudit.api.reading import Run
    from dpaudit.api.starting import First
    from dpaudit.api.workers import Engine

#: How a config's name ends; other names are of records.
_CONFIGS = (".yaml", ".yml")
#: Parameters that `--audit` hands on to `dpaudit report`.
_OF_REPORT = ("workers", "engine", "ray_address", "as_json")
#: How the name of records in an installed package begins. As in dpaudit.generation.sources.
_PACKAGE = "package:"


@click.command(cls=TitledCommand)
@click.argument("source", metavar="DATA_OR_CONFIG", type=NamedPath(path_type=Path))
@click.option("--out", type=RUN_DIR, help="Run directory to write or to continue: a path or a URL.")
@own_data_options
@click.option(
    "--dry-run",
    is_flag=True,
    help="Write nothing. Print what the run would be: contexts, texts, tokens, claim, time, disk "
    "space, and what else the same epsilon gives.",
)
@click.option(
    "--public-only",
    is_flag=True,
    help="Write the baseline of this config instead: texts from its prompts without any record, "
    "epsilon 0.",
)
@click.option(
    "--spent",
    type=RUN_DIR,
    multiple=True,
    help="Finished run of the same records, whose remaining budgets this run uses. Repeat it for "
    "each run.",
)
@click.option(
    "--stop-after",
    type=WholeRange(min=1),
    metavar="ROUNDS",
    help="Stop after this many of batching.rounds. The run costs as much as all rounds "
    "(docs/generation.md).",
)
@click.option(
    "--unverified",
    is_flag=True,
    help="Generate even if the run cannot pass its audit: for experiments whose texts are not "
    "released.",
)
@click.option(
    "--no-worth",
    is_flag=True,
    help="Skip the texts of the same prompts without any record, and the gain of held-out records.",
)
@click.option(
    "--audit",
    "with_audit",
    is_flag=True,
    help="When the run is finished, write its reports too, and leave with the audit's exit code.",
)
@model_engine_options
@output_options
def generate(
    source: Path,
    out: Location | None,
    given: Given,
    dry_run: bool,
    public_only: bool,
    spent: tuple[Location, ...],
    stop_after: int | None,
    unverified: bool,
    no_worth: bool,
    with_audit: bool,
    engine: Engine | None,
    as_json: bool,
) -> None:
    """Generate synthetic texts from your private records.

    DATA_OR_CONFIG is your records (.csv, .tsv, .jsonl, .parquet, or a folder of LABEL/*.txt) or a
    config (.yaml). For records, the options below say what everyone may know of them; the config
    made of these stands in the run directory as config.yaml, to be edited and used.

    An interrupted run goes on at its first unfinished batch when you give the same command again.
    On a Ray cluster every worker reads the data, loads the model and writes to the run directory:
    all nodes must reach them.

    A config whose run could not pass `dpaudit verify` is refused, with the reason, before the model
    is loaded.

    \b
    Example:
      dpaudit generate claims.csv --text note --label kind --labels Motor,Theft \\
        --records 1200 --epsilon 3 --texts 200 --out run
      dpaudit generate examples/bbc-median.yaml --out run
      dpaudit generate examples/bbc-median.yaml --out public --public-only
    """
    if (out is None) != dry_run:
        raise click.UsageError("Give --out, or --dry-run without it.")
    if dry_run and (public_only or stop_after or engine or with_audit):
        raise click.UsageError("--dry-run takes --spent and --unverified alone.")
    if public_only and engine is not None:
        raise click.UsageError(
            "--public-only works in this process: leave out --workers and --engine."
        )
    if public_only and spent:
        raise click.UsageError("--public-only spends nothing: leave out --spent.")
    if public_only and stop_after:
        raise click.UsageError("--public-only has no rounds: leave out --stop-after.")
    if public_only and with_audit:
        raise click.UsageError("--public-only has nothing to audit: leave out --audit.")
    with TERMINAL.waiting("starting"):
        from dpaudit.api import generating
        from dpaudit.api.places import last_part
        from dpaudit.reports.planning import build

    if out is not None:
        place = generating.place_for_run(out)
        if not public_only:  # told before the records are read and the plans worked out
            generating.require_unfinished(place, worth=not no_worth and engine is None)
    first = _first(source, given)
    config: Settings = source if first is None else first.config
    if out is None:
        note_model(
            "time a few steps and to write texts of the public prompt",
            "`dpaudit budget --help` says how to work out epsilons without a model.",
        )
        menu = None if first is None else first.menu
        planned = generating.plan(
            config, spent=spent, unverified=unverified, menu=menu, monitor=TERMINAL
        )
        show_document(planned, as_json, lambda found: build(found, str(source)))
        if first is not None:
            note_fewer(first.menu, first.own)
        return
    if first is not None:
        show_menu(first.menu, first.own)
    monitor = TERMINAL.titled(last_part(out))
    if public_only:
        generating.generate_public(config, out, monitor=monitor)
        _tell_public(out, as_json)
        return
    run = generating.generate(
        config,
        out=out,
        spent=spent,
        stop_after=stop_after,
        unverified=unverified,
        worth=not no_worth,
        engine=engine,
        made_config=None if first is None else first.text,
        monitor=monitor,
    )
    settings = generating.read_config(config)
    told = _told(out, run, settings.model.name, settings.sampling.seed_files or ())
    if with_audit:
        note(told.fingerprints)
        _audit(out, told.options)
    elif as_json:
        digests = {"commitment": run.commitment, "head": run.head}
        print_json(json.dumps({"run": str(out), **digests}))
    else:
        note(told.fingerprints)
        note(told.next)


def _first(source: Path, given: Given) -> First | None:
    """Return the config that is made for records; None where a config is given."""
    of_package = str(source).startswith(_PACKAGE)
    is_data = of_package or source.suffix or source.is_dir()
    if source.suffix.lower() in _CONFIGS or not is_data:
        _require_config(source)
        if options := given.options:
            remedy = "are for records. In a config, its fields say that (docs/generation.md)."
            raise click.UsageError(f"{', '.join(options)} {remedy}")
        return None
    from dpaudit.api import starting

    own = given.own(str(source))
    note_persons(given, str(source))
    with TERMINAL.waiting(WORKING):
        return starting.first(own, aggregator=given.aggregator)


def _require_config(config: Path) -> None:
    from dpaudit import InputError
    from dpaudit.results.shell import argument

    if not config.exists():
        remedy = f"Write one with `dpaudit init {argument(str(config), 'CONFIG')}`."
        raise InputError(str(config), "there is no such file.", remedy)


def _tell_public(out: Location, as_json: bool) -> None:
    from dpaudit.reports.text import in_a_line
    from dpaudit.results.shell import argument

    if as_json:
        print_json(json.dumps({"public": str(out)}))
        return
    baseline = argument(str(out), "PUBLIC_DIR")
    note(
        f"Texts written to {in_a_line(out)}. No private record went into them, so there is "
        "nothing to audit. Next, "
        f"for a run of this config: dpaudit evaluate RUN_DIR --reference DATA --baseline {baseline}"
    )


class _Told(NamedTuple):
    """What is said of a finished run.

    Attributes:
        fingerprints: how it can be held against them.
        next: how it is audited.
        options: of `dpaudit report`, which its audit takes.
    """

    fingerprints: str
    next: str
    options: dict[str, Any]


def _told(out: Location, made: Run, model: str, seeds: Sequence[str]) -> _Told:
    """Return what to say of a finished run."""
    from dpaudit.api.generating import unknown_tokenizer
    from dpaudit.reports.text import in_a_line
    from dpaudit.results.shell import argument

    digests = {"commitment": made.commitment, "head": made.head}
    given = " ".join(f"--{name} {digest}" for name, digest in digests.items())
    given += "".join(f" --seed-file {argument(file, 'FILE')}" for file in seeds)
    tokenizer = unknown_tokenizer(made, model)
    run = argument(str(out), "RUN_DIR")
    run += "" if tokenizer is None else f" --tokenizer {argument(str(tokenizer), 'FILE')}"
    # Audits recompute what a run took from its public prompts with the model.
    public = f" --model {argument(model, 'NAME')}" if made.manifest.public_parts else ""
    options = {
        "tokenizers": () if tokenizer is None else (tokenizer,),
        "model": model if public else None,
    }
    return _Told(
        f"Save the second fingerprint (head) with the first. To check both: dpaudit verify {run} "
        f"{given}{public}",
        f"Run written to {in_a_line(out)}. Next: dpaudit report {run}{public}",
        options,
    )


def _audit(out: Location, options: dict[str, Any]) -> None:
    """Do what `dpaudit report` does, with the workers and the output of this command, and leave.

    It comes after the last text and not beside the writer: an audit takes half a hundredth of the
    time that texts take over a support, and some hundredths over the whole vocabulary.
    """
    from dpaudit.commands.report import report

    context = click.get_current_context()
    own = {name: context.params[name] for name in _OF_REPORT}
    context.invoke(report, run_dir=out, **own, **options)
