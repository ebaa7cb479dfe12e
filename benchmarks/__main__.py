"""`python -m benchmarks`: measure and print a table of all ratios, machine, versions and date."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks import page, scaling
from benchmarks.machine import describe, made
from benchmarks.rows import RESULTS, Results, Row

#: Topic -> its module, whose function `rows` measures it.
MODULES = {
    "aggregation": "aggregation",
    "generation": "generating",
    "record": "recording",
    "audit": "auditing",
    "engine": "engines",
    "clustering": "clustering",
    "composition": "composition",
    "matching": "matching",
}


@click.command()
@click.option(
    "--small", is_flag=True, help="Small arrays and a tiny model: shows that it works, and no more."
)
@click.option(
    "--only", type=click.Choice(list(MODULES)), multiple=True, help="Measure this topic. Repeat it."
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the results here."
)
@click.option(
    "--publish",
    is_flag=True,
    help="Write benchmarks/results/latest.json and the pages made from it.",
)
@click.option(
    "--page", "only_pages", is_flag=True, help="Measure nothing: write the pages from latest.json."
)
def main(
    small: bool, only: tuple[str, ...], json_file: Path | None, publish: bool, only_pages: bool
) -> None:
    """Measure what dpaudit costs. All of it takes an hour; leave the machine alone meanwhile.

    \b
    Example:
      python -m benchmarks --only aggregation --json results.json
    """
    if publish and small:
        raise click.UsageError("--publish needs full size: leave --small away.")
    if not only_pages:
        results, date = Results(describe(), {}, (), small), made()
        if publish and only:
            try:
                results = Results.read(RESULTS).with_newer(results)
            except ValueError as error:
                raise click.ClickException(str(error)) from None
        for topic in only or MODULES:
            rows = tuple(_measured(topic, small))
            results = results.with_newer(replace(results, made={topic: date}, rows=rows))
            if publish:  # what comes later may be stopped
                results.write(RESULTS)
        _print(results)
        if json_file is not None:
            results.write(json_file)
    if publish or only_pages:
        latest = Results.read(RESULTS)
        for path, text in (
            (page.PAGE, page.rendered(latest)),
            (scaling.PAGE, scaling.rendered(latest)),
        ):
            path.write_text(text, encoding="utf-8")
            click.echo(f"written: {os.path.relpath(path)}", err=True)


def _measured(topic: str, small: bool) -> Iterator[Row]:
    module = importlib.import_module(f"benchmarks.{MODULES[topic]}")
    for row in module.rows(small):
        click.echo(f"{topic}: {row.what}: {page.measured(row)}", err=True)
        yield row


def _print(results: Results) -> None:
    console = Console()
    for topic in dict.fromkeys(row.topic for row in results.rows):
        table = Table(topic, "measured", "wanted", "kept")
        for row in results.rows:
            if row.topic == topic:
                what = f"{row.what}\n[dim]{page.figures(row)}[/dim]" if row.figures else row.what
                table.add_row(
                    what,
                    page.measured(row),
                    page.wanted(row),
                    {None: "", True: "yes", False: "no"}[row.met],
                )
        console.print(table)
    for line in page.machine_lines(results):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    bounds = [row.met for row in results.rows if row.met is not None]
    kept = f"{sum(bounds)} of {len(bounds)} bounds kept"
    console.print(
        "the small form works; its figures mean nothing" if results.small else kept, highlight=False
    )


if __name__ == "__main__":
    main()
