"""`dpaudit init`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.options import NamedPath, TitledCommand, output_options
from dpaudit.commands.own_data import Given, ask, ask_plan, is_terminal, own_data_options
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import note, print_json, print_line

if TYPE_CHECKING:
    from dpaudit.results.plan import Menu, PlanName


@click.command(cls=TitledCommand)
@click.argument(
    "config", type=NamedPath(path_type=Path, dir_okay=False), default=Path("dpaudit.yaml")
)
@click.option(
    "--data",
    type=NamedPath(path_type=str),
    metavar="FILE",
    help="Your records: .csv, .jsonl, .parquet or a folder of LABEL/*.txt [default: the "
    "example's].",
)
@own_data_options
@click.option("--force", is_flag=True, help="Overwrite CONFIG.")
@output_options
def init(config: Path, data: str | None, given: Given, force: bool, as_json: bool) -> None:
    """Write a commented config for `dpaudit generate`, and show what it gives.

    CONFIG is dpaudit.yaml unless you name another file. Without --data, it is the config of the
    example, which runs as it is. On a terminal, `init` shows the columns of your file and asks for
    what was not given.

    \b
    Example:
      dpaudit init mine.yaml --data records.csv --text body --label topic \\
        --labels sport,tech --records 1200 --epsilon 3
    """
    if data is None and (options := given.options) and options != ["--aggregator"]:
        raise click.UsageError(
            f"{', '.join(options)}: these are about records. Name them in --data."
        )
    with TERMINAL.waiting("starting"):
        from dpaudit.api import starting
        from dpaudit.reports.text import in_a_line
        from dpaudit.results.shell import argument
    own, asks = None, data is not None and is_terminal() and not as_json
    if data is not None:
        given = ask(given, data) if asks else given
        own, aggregator = given.own(data), given.aggregator
        if asks:
            with TERMINAL.waiting("working out the plans"):
                found = starting.menu(own, aggregator=aggregator)
            show_menu(found)
            given = ask_plan(given, tuple(offer.name for offer in found.offers))
            own = given.own(data)
    with TERMINAL.waiting("reading the records and working out the plans"):
        written = starting.init(config, own, aggregator=given.aggregator, overwrite=force)
    run = argument(f"{config.stem}-run", "RUN_DIR")
    then = f"dpaudit generate {argument(str(config), 'CONFIG')} --out {run}"
    first = written.first
    if as_json:
        menu = None if first is None else first.menu.model_dump(mode="json")
        print_json(json.dumps({"config": str(config), "next": then, "menu": menu}))
    else:
        print_line(f"  {in_a_line(config)}")
    if first is not None and not asks:
        show_menu(first.menu, given.plan or "many")
    if written.needs:
        what = "the example's model and texts" if first is None else "the model"
        note(f"To install {what}: {written.needs}")
    if own is not None and own.label is None:
        note(f"First: in {in_a_line(config)}, say in prompt.text what your texts are.")
    note(f"Next: {then}")


def show_menu(menu: Menu, chosen: PlanName = "many") -> None:
    """Show the plans, and what the chosen one gives first."""
    from dpaudit.reports.planning import headline, menu_lines

    offer = next(offer for offer in menu.offers if offer.name == chosen)
    note(headline(menu, offer.texts, offer.epsilon), wrapped=True)
    for name, words in menu_lines(menu):
        note(f"  {name}: {words}", wrapped=True)
