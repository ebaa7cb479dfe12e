"""`dpaudit init`."""

from __future__ import annotations

import json
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.options import NamedPath, TitledCommand, output_options
from dpaudit.commands.own_data import (
    Given,
    ask,
    ask_data,
    ask_plan,
    is_terminal,
    keeping_answers,
    note_persons,
    own_data_options,
)
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import (
    console,
    note,
    print_document,
    print_json,
    print_line,
    session,
)

if TYPE_CHECKING:
    from dpaudit.api.starting import Demo, Own
    from dpaudit.results.plan import Menu, PlanName

#: What takes a moment.
WORKING = "reading the records and working out the plans"


@click.command(cls=TitledCommand)
@click.argument(
    "config", type=NamedPath(path_type=Path, dir_okay=False), default=Path("dpaudit.yaml")
)
@click.option(
    "--data",
    type=NamedPath(path_type=str),
    metavar="FILE",
    help="Your records: .csv, .tsv, .jsonl, .parquet or a folder of LABEL/*.txt [default: the "
    "example's].",
)
@own_data_options
@click.option(
    "--draft-examples",
    is_flag=True,
    help="Let the model write four public examples for each label, from the labels and --about, "
    "for you to edit.",
)
@click.option("--force", is_flag=True, help="Overwrite CONFIG.")
@output_options
def init(
    config: Path,
    data: str | None,
    given: Given,
    draft_examples: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a commented config for `dpaudit generate`.

    CONFIG is dpaudit.yaml unless you name another file. Without --data, it is the config of the
    example, which runs as it is. For your records, `init` shows what they give at your epsilon. On
    a terminal, it asks for what was not given, and shows the columns of your file. If the model is
    installed here, `init` shows what it writes from the public prompt alone.

    \b
    Example:
      dpaudit init mine.yaml --data records.csv --text body --label topic \\
        --labels sport,tech --records 1200 --epsilon 3
    """
    terminal = is_terminal() and not as_json
    if data is None and terminal and not given.options:
        data = ask_data()
    options = given.options + ["--draft-examples"] * draft_examples
    if data is None and options and options != ["--aggregator"]:
        raise click.UsageError(
            f"{', '.join(options)}: these are about records. Name them in --data."
        )
    with TERMINAL.waiting("starting"):
        from dpaudit.api import starting
        from dpaudit.api.generating import preview
        from dpaudit.reports.preview import build
        from dpaudit.reports.text import in_a_line
        from dpaudit.results.shell import argument
    starting.require_free(config, force)
    own, asks = None, data is not None and terminal
    with ExitStack() as kept:
        if data is not None:
            if asks:
                given = ask(given, data, examples=not draft_examples)
                kept.enter_context(keeping_answers(str(config), data, lambda: given))
            own = given.own(data)
            if not asks:
                note_persons(given, data)
            elif given.plan is None:
                given = replace(given, plan=_chosen_plan(own, given.aggregator))
                own = given.own(data)
        with nullcontext() if draft_examples else TERMINAL.waiting(WORKING):
            written = starting.init(
                config,
                own,
                aggregator=given.aggregator,
                overwrite=force,
                draft_examples=draft_examples,
                monitor=TERMINAL,
            )
    if written.at_hand:
        done = f"{in_a_line(config)} is written: Ctrl-C leaves this out."
        note_model("show texts of the public prompt", done)
    seen = preview(config, monitor=TERMINAL) if written.at_hand else None
    run = argument(f"{config.stem}-run", "RUN_DIR")
    then = f"dpaudit generate {argument(str(config), 'CONFIG')} --out {run}"
    first = written.first
    if as_json:
        menu = None if first is None else first.menu.model_dump(mode="json")
        shown = None if seen is None else seen.model_dump(mode="json")
        found = {"config": str(config), "next": then, "menu": menu, "preview": shown}
        print_json(json.dumps(found))
    else:
        print_line(f"  {in_a_line(config)}")
        if seen is not None:
            print_document(build(seen))
    if first is not None and not asks:
        show_menu(first.menu, first.own)
    if written.needs:
        what = "the example's model and texts" if first is None else "the model"
        note(f"To install {what}: {written.needs}")
    if own is not None and own.label is None and own.about is None:
        note(f"First: in {in_a_line(config)}, say in prompt.text what your texts are.")
    note(f"Next: {then}")


def _chosen_plan(own: Own, aggregator: Demo) -> PlanName:
    """Show the plans, with their times where they can be measured, and ask which is wanted."""
    from dpaudit.api import starting

    with TERMINAL.waiting(WORKING):
        first = starting.first(own, aggregator=aggregator)
    if starting.is_installed(own.model):
        note_model("time the plans", "--plan leaves this out.")
    menu = starting.timed_menu(first, monitor=TERMINAL)
    show_menu(menu, own)
    return ask_plan(tuple(offer.name for offer in menu.offers))


def note_model(purpose: str, without: str) -> None:
    """Say beforehand that a model is loaded, for how long about, and what does without it."""
    # SmolLM2's dry run of 24 texts by 32 contexts takes one to two minutes of CPU time (AMD EPYC
    # with AVX2, 2026-11-28).
    note(
        f"This loads the model, to {purpose}: one to three minutes with the example's model on two "
        f"free cores, longer with a larger one. {without}"
    )


def show_menu(menu: Menu, own: Own) -> None:
    """Show the plans on stderr, and what the chosen one gives before them."""
    from dpaudit.reports.planning import menu_document
    from dpaudit.reports.writers import terminal

    if not session().quiet:
        terminal.print_document(menu_document(menu, own.plan), console(stderr=True))
    note_fewer(menu, own)


def note_fewer(menu: Menu, own: Own) -> None:
    """Say what gives more texts, where the chosen plan gives fewer than were asked for."""
    made = next(offer.texts for offer in menu.offers if offer.name == own.plan)
    if own.texts is None or made + max(1, len(own.labels)) > own.texts:  # labels have equal numbers
        return
    smaller = "--tokens" if own.user is None else "--tokens or --records-per-user"
    note(
        f"These are fewer than the {own.texts:,} texts that you asked for. More records of each "
        f"label, a larger limit (--epsilon) or a smaller {smaller} give more."
    )
