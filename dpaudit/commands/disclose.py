"""`dpaudit disclose`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import click

from dpaudit.commands.options import (
    DATA_HELP,
    MOST_EPSILON,
    SHARE,
    FiniteRange,
    NamedPath,
    TitledCommand,
    TitledOption,
    WholeRange,
    output_options,
)
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import show_document

_FILE = NamedPath(path_type=str)


_of_run = partial(click.option, cls=TitledOption, heading="Of a run of dpaudit")
_of_files = partial(click.option, cls=TitledOption, heading="Of any other generator")


@click.command(cls=TitledCommand)
@click.argument("texts", type=_FILE, metavar="RUN_DIR|TEXTS")
@_of_run("--data", type=_FILE, metavar="FILE", help=DATA_HELP)
@_of_files("--shown", type=_FILE, metavar="FILE", help="The records that the generator was given.")
@_of_files(
    "--held-out",
    type=_FILE,
    metavar="FILE",
    help="The records of the same draw that it was not given.",
)
@_of_files(
    "--split-is-random",
    is_flag=True,
    help="You say that lots decided which file each record is in, and that nobody cleaned or "
    "chose records or texts after that.",
)
@_of_files(
    "--p",
    type=SHARE,
    help="The chance of each record to be shown, where each had a lot of its own [default: a fixed "
    "number was drawn].",
)
@_of_files("--text", metavar="COLUMN", help="Column of the texts [default: text].")
@_of_files(
    "--label",
    metavar="COLUMN",
    help="Column of labels, in all three files: texts and records of one label alone are compared.",
)
@_of_files(
    "--user",
    metavar="COLUMN",
    help="Column that says whose a record is: the lots were drawn for users.",
)
@click.option(
    "--epsilon",
    type=FiniteRange(min=0, max=MOST_EPSILON),
    help="The claim to compare, fixed before the texts [default: the run's]. Of a run it is of the "
    "batch level, for each round.",
)
@click.option("--delta", type=FiniteRange(min=0, max=1, max_open=True), help="Its delta.")
@click.option(
    "--level",
    type=SHARE,
    help="Level of the test, for both of its tails together [default: 0.001].",
)
@click.option("--ask", metavar="TEXT", help="Say whether this name stands in records and texts.")
@click.option(
    "--entities",
    type=_FILE,
    metavar="FILE",
    help="Names or numbers, one a line: list those that stand in the texts.",
)
@click.option(
    "--public",
    type=_FILE,
    metavar="FILE",
    multiple=True,
    help="Texts that everybody has: what stands in them is nobody's. Repeat it for several.",
)
@click.option(
    "--unit",
    type=click.Choice(["words", "characters"]),
    default="words",
    show_default=True,
    help="What is counted in a row. Take characters for scripts without spaces.",
)
@click.option(
    "--expect-nothing",
    is_flag=True,
    help="Leave with 1 if the texts depend on the records at all: for texts that should not.",
)
@click.option(
    "--seed",
    type=WholeRange(0, 2**63 - 1),
    help="Seed of ties and redraws [default: 0 for a run, a new one for files].",
)
@output_options
def disclose(texts: str, as_json: bool, expect_nothing: bool, **asked: Any) -> None:
    """Put released texts on trial: do they name their records?

    Records that a random draw kept from a text are its control group: the text can name them by
    chance only. A run of dpaudit has that group already, in its secret batches. Any other generator
    has one if you split the records by lot, and give it one part.

    \b
    Example:
      dpaudit disclose run --data records.csv
      dpaudit disclose texts.csv --shown given.csv --held-out kept.csv --split-is-random

    Exit code 1 says that the texts refute the claim (at level 0.001), or with --expect-nothing that
    they depend on the records. Texts with a privacy budget may depend on records: that alone is no
    failure. A pass is weak: it bounds nothing, and never lowers an epsilon.

    Everything that this prints is private.
    """
    from dpaudit.api.disclosing import disclose as put_on_trial
    from dpaudit.reports.disclosed import build

    given = {name: value for name, value in asked.items() if value is not None}
    found = put_on_trial(texts, monitor=TERMINAL, **given)
    show_document(found.result, as_json, build)
    sys.exit(found.claim_refuted or (expect_nothing and (found.depends or found.avoids)))
