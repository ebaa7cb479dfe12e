"""`dpaudit init`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Literal

import click

from dpaudit.commands.options import NamedPath, output_options
from dpaudit.commands.places import writing
from dpaudit.commands.terminal import note, output


@click.command()
@click.argument("config", type=NamedPath(path_type=Path, dir_okay=False), default=Path("dpaudit.yaml"))
@click.option("--aggregator", type=click.Choice(["mean", "central"]), default="mean", show_default=True)
@click.option(
    "--data",
    type=NamedPath(path_type=str),
    metavar="FILE",
    help="Your records: .csv, .jsonl, .parquet or a folder of LABEL/*.txt [default: the example's].",
)
@click.option("--text", metavar="COLUMN", help="Their column of texts [default: text].")
@click.option("--label", metavar="COLUMN", help="Their column of labels [default: label].")
@click.option(
    "--label-value",
    "label_values",
    multiple=True,
    metavar="LABEL",
    help="A label, as everyone may know it: none is read off the data. Repeat it.",
)
@click.option("--no-labels", is_flag=True, help="Your records have no labels: write a prompt of your own for them.")
@click.option("--force", is_flag=True, help="Overwrite CONFIG.")
@output_options
def init(
    config: Path,
    aggregator: Literal["mean", "central"],
    data: str | None,
    text: str | None,
    label: str | None,
    label_values: tuple[str, ...],
    no_labels: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a commented config for `dpaudit generate`.

    CONFIG is dpaudit.yaml unless named. Without --data it is the example, which runs as it stands.

    \b
    Example:
      dpaudit init mine.yaml --data records.csv --text body --label topic \\
        --label-value sport --label-value tech
    """
    from dpaudit.generation.starting import PARTS, PLACEHOLDER, first_config, missing_parts
    from dpaudit.runs import InputError

    if data is None and (text or label or label_values or no_labels):
        raise click.UsageError("--text, --label, --label-value and --no-labels are about --data, which is not given.")
    if no_labels and (label or label_values):
        raise click.UsageError("--no-labels does not go with --label and --label-value.")
    column = None if no_labels else label or "label"
    written = first_config(aggregator, data, text or "text", column, label_values)
    with writing(config, "CONFIG"):
        try:
            with config.open("w" if force and config.is_file() else "x", encoding="utf-8") as file:
                file.write(written)
        except FileExistsError:
            remedy = "Name another file, or overwrite it with --force."
            raise InputError(str(config), "this is there already.", remedy) from None
    # Names as a command takes them for none of its options.
    config_name, run = (f"./{name}" if name.startswith("-") else name for name in (str(config), config.stem + "-run"))
    then = shlex.join(["dpaudit", "generate", config_name, "--out", run])
    with output():
        click.echo(json.dumps({"config": str(config), "next": then}) if as_json else f"  {config}")
    if data is None:
        note(f"The example's model and texts need: {PARTS}")
    elif missing := missing_parts(written):
        note(f"The model needs: {missing}")
    if PLACEHOLDER in written:
        note(f"First list your labels in {config}, in the place of {PLACEHOLDER}; without any, give --no-labels.")
    if no_labels:
        note(f"First say in {config}, prompt.text, what your texts are.")
    note(f"Next: {then}")
